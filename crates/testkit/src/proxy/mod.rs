//! A TCP proxy that injects network faults.
//!
//! Owns the faults between a client and a server: it drops, delays, pauses and duplicates messages, and breaks
//! connections. It knows the boundaries of commands and replies, so that it can drop exactly one, but does not interpret
//! them. Faults of the server process belong to [`RedisServer`](crate::RedisServer).
//!
//! 1. The proxy has its own thread and runtime. A test may block or pause its clock, and the network keeps working.
//! 2. A reply is matched with its command by counting: each command has one reply, in order; push messages do not
//!    count. `CLIENT REPLY OFF` and `SKIP` break this and are not supported.
//! 3. TCP never loses bytes in the middle of a stream. So with a dropped message the connection ends or stalls: see
//!    [`AfterDrop`].
//! 4. Every queue is bounded. A full queue stops reading, as a full socket does.

mod faults;
mod link;
mod log;
mod paused;
mod pending_replies;

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

use self::faults::{Faults, Rule};
use self::link::Closers;
use self::log::Log;
use self::paused::{Batch, CurrentBatch};
use crate::server::RedisServer;

pub use self::faults::{AfterDrop, any_command, command};

/// A TCP proxy for a server, with faults that a test turns on and off while it runs.
///
/// A new fault applies to what arrives after it. Dropping the proxy closes all its connections.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::{AfterDrop, Proxy, RedisServer, RespConnection, command};
/// use std::time::Duration;
///
/// let server = RedisServer::start()?;
/// let proxy = Proxy::to_server(&server)?;
/// proxy.drop_replies(1, AfterDrop::Disconnect, command("SET"));
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
    faults: Mutex<Faults>,
    log: Mutex<Log>,
    batch: CurrentBatch,
    links: Mutex<BTreeMap<u64, Closers>>,
    accepted: AtomicU64,
    /// Signals every change that a test may wait for.
    changed: watch::Sender<()>,
}

impl Proxy {
    /// A proxy for a test server. It stays usable across restarts of the server.
    pub fn to_server(server: &RedisServer) -> io::Result<Self> {
        Self::to_port(server.port())
    }

    /// A proxy for the server on a port of 127.0.0.1.
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
            // Without a listener every client is refused, and the test fails.
            let _ = runtime.block_on(accepting);
        })?;
        Ok(Self { shared, port: own_port, shutdown, thread: Some(thread) })
    }

    /// The proxy's own port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port/`, with the proxy's port.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends all faults. Paused commands stay paused until [`resume_requests`](Self::resume_requests), and stalled
    /// connections stay stalled.
    pub fn clear_faults(&self) {
        *self.shared.faults() = Faults::default();
    }

    /// Closes all connections on both sides, and discards all delayed and paused messages.
    pub fn disconnect(&self) {
        for closers in self.shared.links().values() {
            closers.both.cancel();
        }
    }

    /// Closes all connections on the client's side. Data in flight still reaches the server, and paused commands can
    /// still be [resumed](Self::resume_requests): they then run after those of newer connections.
    pub fn disconnect_clients(&self) {
        for closers in self.shared.links().values() {
            closers.client.cancel();
        }
    }

    /// Sets whether new connections are closed at once. Current ones stay.
    pub fn refuse_connections(&self, refuse: bool) {
        self.shared.faults().refuse_connections = refuse;
    }

    /// Delays each command by this time, without limiting the rate.
    pub fn delay_requests(&self, delay: Duration) {
        self.shared.faults().delay_requests = delay;
    }

    /// Delays each reply and message to the client by this time.
    pub fn delay_replies(&self, delay: Duration) {
        self.shared.faults().delay_replies = delay;
    }

    /// Pauses the next `n` commands that match, each with all commands after it on its connection. Paused commands
    /// outlive the client's side of their connection. `usize::MAX` pauses all that match.
    pub fn pause_requests(&self, n: usize, matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) {
        self.shared.faults().pause_requests = Some(Rule::new(n, matching));
    }

    /// The number of paused commands, including those queued behind one.
    pub fn paused_requests(&self) -> usize {
        self.shared.batch.current().paused()
    }

    /// Sends all paused commands to the server, over their own connections. Later commands are paused if `n` is not
    /// reached yet.
    pub fn resume_requests(&self) -> ResumedRequests<'_> {
        let (batch, count) = self.shared.batch.resume();
        ResumedRequests { proxy: self, count, batch }
    }

    /// Drops the replies to the next `n` commands that match. The commands reach the server.
    pub fn drop_replies(
        &self,
        n: usize,
        then: AfterDrop,
        matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static,
    ) {
        self.shared.faults().drop_replies = Some((Rule::new(n, matching), then));
    }

    /// Drops the next `n` commands that match, and all commands after them on their connections.
    pub fn drop_requests(
        &self,
        n: usize,
        then: AfterDrop,
        matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static,
    ) {
        self.shared.faults().drop_requests = Some((Rule::new(n, matching), then));
    }

    /// Sends every command that matches twice in a row, until [`clear_faults`](Self::clear_faults). The client receives
    /// the second reply, as after a resend.
    pub fn duplicate_requests(&self, matching: impl Fn(&[Vec<u8>]) -> bool + Send + 'static) {
        self.shared.faults().duplicate_requests = Some(Rule::new(usize::MAX, matching));
    }

    /// How often a command was forwarded, by its name in any case. A duplicated command counts once.
    pub fn count(&self, name: &str) -> u64 {
        self.shared.log().count(name)
    }

    /// How many commands were forwarded.
    pub fn total(&self) -> u64 {
        self.shared.log().total()
    }

    /// The last forwarded commands, oldest first. At most 4096, and long arguments are truncated.
    pub fn requests(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.log().recent()
    }

    /// Clears all counts and the log.
    pub fn reset_counts(&self) {
        *self.shared.log() = Log::default();
    }

    /// The number of open connections, including those with data in flight whose client has disconnected.
    pub fn connections(&self) -> usize {
        self.shared.links().len()
    }

    /// The number of accepted connections, including refused ones.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Waits until at least `n` commands are paused. Fails at the time limit.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn until_paused(&self, n: usize, within: Duration) -> io::Result<()> {
        self.until(&format!("{n} paused commands"), within, || self.paused_requests() >= n).await
    }

    /// Waits until a command was forwarded at least `n` times. Fails at the time limit.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn until_counted(&self, name: &str, n: u64, within: Duration) -> io::Result<()> {
        self.until(&format!("{n} times {name}"), within, || self.count(name) >= n).await
    }

    /// Waits until exactly `n` connections are open. Fails at the time limit.
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
            // If a test's predicate has panicked, the message was printed.
            let _ = thread.join();
        }
    }
}

/// Commands that were paused and are now sent, perhaps after newer ones.
#[derive(Debug)]
pub struct ResumedRequests<'a> {
    proxy: &'a Proxy,
    count: usize,
    batch: Arc<Batch>,
}

impl ResumedRequests<'_> {
    /// The number of commands.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits until each command has its reply, or its connection broke. Fails at the time limit.
    ///
    /// Cancel safety: it changes nothing and may be dropped at any time.
    pub async fn answered(self, within: Duration) -> io::Result<()> {
        self.proxy.until("replies to resumed commands", within, || self.batch.unanswered() == 0).await
    }
}

impl Shared {
    fn new(server: SocketAddr) -> Self {
        Self {
            server,
            faults: Mutex::default(),
            log: Mutex::default(),
            batch: CurrentBatch::default(),
            links: Mutex::default(),
            accepted: AtomicU64::new(0),
            changed: watch::Sender::new(()),
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<u64, Closers>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.send_replace(());
    }
}
