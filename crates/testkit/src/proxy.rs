//! A network that loses, delays, doubles and breaks, on request.
//!
//! Owns the faults between a client and a server: a TCP proxy on loopback that knows the boundaries of commands and
//! replies, so that it can lose exactly one. It does not interpret commands. Faults of the server process belong to
//! [`RedisServer`](crate::RedisServer).
//!
//! 1. The proxy has its own thread and runtime. A test may block or pause its clock, and the network keeps working.
//! 2. A reply is matched with its command by counting: each command has one reply, in order; push messages do not
//!    count. `CLIENT REPLY OFF` and `SKIP` break this and are not supported.
//! 3. TCP never loses bytes in the middle of a stream. A swallowed message takes the rest of its connection with it:
//!    cut or stalled, see [`Then`].
//! 4. Every queue is bounded. A full one stops reading, as a full socket does.

mod hold;
mod link;
mod log;
mod owed;
mod rules;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::hold::{Batch, Holds};
use self::link::Ends;
use self::log::Log;
use self::rules::{Counted, Rules};
use crate::server::RedisServer;

pub use self::rules::{Then, any_command, command};

/// A TCP proxy for a server, with faults that a test turns on and off while it runs.
///
/// A new fault applies to what arrives after it. Dropping the proxy closes all its connections.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::{Proxy, RedisServer, RespConnection, Then, command};
/// use std::time::Duration;
///
/// let server = RedisServer::start()?;
/// let proxy = Proxy::to_server(&server)?;
/// proxy.swallow_replies(1, Then::Cut, command("SET"));
///
/// let mut client = RespConnection::open(proxy.port(), Duration::from_secs(5))?;
/// assert!(client.call(&["SET", "orders/42", "token"]).is_err(), "the reply was lost");
/// assert_eq!(server.cli(&["GET", "orders/42"])?.text(), Some("token"), "but the command was applied");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    /// Ends the thread.
    shutdown: CancellationToken,
    /// `None` once joined.
    thread: Option<JoinHandle<()>>,
}

/// State shared by the test and the connections.
#[derive(Debug)]
pub(crate) struct Shared {
    server: SocketAddr,
    rules: Mutex<Rules>,
    log: Mutex<Log>,
    holds: Holds,
    links: Mutex<BTreeMap<u64, Ends>>,
    accepted: AtomicU64,
    /// Signals every change that a test may wait for.
    changed: watch::Sender<()>,
}

impl Proxy {
    /// A proxy for a test server. It stays usable across restarts of the server.
    pub fn to_server(server: &RedisServer) -> io::Result<Self> {
        Self::to_port(server.port())
    }

    /// A proxy before whatever listens on a port of 127.0.0.1.
    pub fn to_port(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let own_port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let shutdown = CancellationToken::new();
        let accepting = {
            let (shared, shutdown) = (Arc::clone(&shared), shutdown.clone());
            async move {
                tokio::select! {
                    () = shutdown.cancelled() => Ok(()),
                    end = link::accept(listener, shared) => end,
                }
            }
        };
        let thread = thread::Builder::new().name("proxy".into()).spawn(move || {
            // Without a listener every client is refused, and a test that waits for one fails.
            let _ = runtime.block_on(accepting);
        })?;
        Ok(Self { shared, port: own_port, shutdown, thread: Some(thread) })
    }

    /// The proxy's own port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port/`, by way of the proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Turns all faults off. Held commands stay held until [`release_held`](Self::release_held), and stalled
    /// connections stay stalled.
    pub fn pass(&self) {
        *self.shared.rules() = Rules::default();
    }

    /// Drops all connections now, on both sides, with everything that is delayed or held on them.
    pub fn cut(&self) {
        for ends in self.shared.links().values() {
            ends.both.cancel();
        }
    }

    /// Closes all connections on the client's side. Data in flight still reaches the server, and held commands can
    /// still be [released](Self::release_held): they then run after those of newer connections.
    pub fn cut_clients(&self) {
        for ends in self.shared.links().values() {
            ends.client.cancel();
        }
    }

    /// Sets whether new connections are closed at once. Current ones stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.rules().refuse = refuse;
    }

    /// Each command reaches the server this much later. They overlap as on a long wire; nothing is slowed down.
    pub fn delay_requests(&self, delay: Duration) {
        self.shared.rules().delay_requests = delay;
    }

    /// Each reply and message reaches the client this much later.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.rules().delay_replies = delay;
    }

    /// Holds back the next `n` commands that match, each with everything that follows it on its connection. Held
    /// commands outlive the client's side of their connection. `usize::MAX` holds all that match.
    pub fn hold(&self, n: usize, matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) {
        self.shared.rules().hold = Some(Counted::new(n, matching));
    }

    /// The number of held commands, including those queued behind a held one.
    pub fn held(&self) -> usize {
        self.shared.holds.current().held()
    }

    /// Sends all held commands to the server, over their own connections. Holding continues for later commands if
    /// more were requested.
    pub fn release_held(&self) -> Late<'_> {
        let (batch, count) = self.shared.holds.release();
        Late { proxy: self, count, batch }
    }

    /// The next `n` commands that match reach the server, but their replies are lost, and their connections with them.
    pub fn swallow_replies(
        &self,
        n: usize,
        then: Then,
        matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static,
    ) {
        self.shared.rules().swallow_replies = Some((Counted::new(n, matching), then));
    }

    /// The next `n` commands that match never reach the server, and nothing that follows on their connections does.
    pub fn swallow_requests(
        &self,
        n: usize,
        then: Then,
        matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static,
    ) {
        self.shared.rules().swallow_requests = Some((Counted::new(n, matching), then));
    }

    /// Every command that matches is sent twice in a row, until [`pass`](Self::pass). The client gets the second reply,
    /// as it would after a resend.
    pub fn double_requests(&self, matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) {
        self.shared.rules().double_requests = Some(Counted::new(usize::MAX, matching));
    }

    /// How often a command was forwarded, by its name in any case. A duplicated one counts once.
    pub fn count(&self, name: &str) -> u64 {
        self.shared.log().count(name)
    }

    /// How many commands were passed on.
    pub fn total(&self) -> u64 {
        self.shared.log().total()
    }

    /// The last commands that were passed on, oldest first; at most 4096, and long arguments are cut off.
    pub fn requests(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.log().recent()
    }

    /// Forgets all counts and the log.
    pub fn reset_counts(&self) {
        *self.shared.log() = Log::default();
    }

    /// The number of open connections, including those whose client is gone while data is in flight.
    pub fn connections(&self) -> usize {
        self.shared.links().len()
    }

    /// The number of accepted connections, including refused ones.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Waits until at least `n` commands are held back. Fails when the time is over.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn until_held(&self, n: usize, within: Duration) -> io::Result<()> {
        self.until(&format!("{n} held commands"), within, || self.held() >= n).await
    }

    /// Waits until a command was passed on at least `n` times. Fails when the time is over.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn until_counted(&self, name: &str, n: u64, within: Duration) -> io::Result<()> {
        self.until(&format!("{n} times {name}"), within, || self.count(name) >= n).await
    }

    /// Waits until exactly `n` connections are open. Fails when the time is over.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn until_connections(&self, n: usize, within: Duration) -> io::Result<()> {
        self.until(&format!("{n} connections"), within, || self.connections() == n).await
    }

    async fn until(&self, what: &str, within: Duration, reached: impl Fn() -> bool) -> io::Result<()> {
        let mut changed = self.shared.changed.subscribe();
        let waiting = async {
            while !reached() {
                // The sender lives in `self`.
                changed.changed().await.expect("the proxy outlives a borrow of it");
            }
        };
        tokio::time::timeout(within, waiting).await.map_err(|_| {
            let text = format!("the proxy did not see {what} within {within:?}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic in a test's own predicate was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Commands that were held and are now on their way: late, and perhaps after newer ones.
#[derive(Debug)]
pub struct Late<'a> {
    proxy: &'a Proxy,
    count: usize,
    batch: Arc<Batch>,
}

impl Late<'_> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits until the server has answered each of them, or its connection broke. Fails when the time is over.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn answered(self, within: Duration) -> io::Result<()> {
        self.proxy.until("replies to late commands", within, || self.batch.unanswered() == 0).await
    }
}

impl Shared {
    fn new(server: SocketAddr) -> Self {
        Self {
            server,
            rules: Mutex::default(),
            log: Mutex::default(),
            holds: Holds::default(),
            links: Mutex::default(),
            accepted: AtomicU64::new(0),
            changed: watch::Sender::new(()),
        }
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Ends>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_replace(());
    }
}
