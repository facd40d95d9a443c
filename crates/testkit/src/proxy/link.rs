//! One client connection and its connection to the server.
//!
//! Four loops, two for each direction: one splits frames and decides, one sends them when due. They form one future,
//! so dropping it closes both sockets.
//!
//! 1. A command is entered among the owed replies before its bytes are sent, so no reply is unexpected.
//! 2. The client's end does not end the server's side: data in flight is delivered, then the server's side closes.
//!    With released late commands, it first waits for their replies, since Redis drops a client that closes.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::hold::{Batch, Held};
use super::owed::Owed;
use super::rules::{Fate, Holding, ReplyFate, Then};
use crate::frame::{Splitter, arguments};

/// How many frames a direction holds before it stops reading.
const QUEUE: usize = 1024;

/// How long the server may take to accept, and to answer late commands.
const LIMIT: Duration = Duration::from_secs(5);

/// How to end a link from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// Closes the client's side.
    pub(super) client: CancellationToken,
    /// Closes both sides, and discards data in flight.
    pub(super) both: CancellationToken,
}

/// Accepts clients for ever.
pub(super) async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors, as a rule: not for ever.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        shared.notify();
        if shared.rules().refuse {
            continue;
        }
        let registration = Registration::new(id, Arc::clone(&shared));
        tokio::spawn(run(client, registration));
    }
}

/// A link's entry among those that a test can cut.
struct Registration {
    id: u64,
    ends: Ends,
    shared: Arc<Shared>,
}

impl Registration {
    fn new(id: u64, shared: Arc<Shared>) -> Self {
        let ends = Ends::default();
        shared.links().insert(id, ends.clone());
        shared.notify();
        Self { id, ends, shared }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.links().remove(&self.id);
        self.shared.notify();
    }
}

async fn run(client: TcpStream, registration: Registration) {
    let ends = registration.ends.clone();
    let traffic = async {
        let connecting = timeout(LIMIT, TcpStream::connect(registration.shared.server)).await;
        // A server that is down is a connection that breaks.
        let Ok(Ok(server)) = connecting else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        Link::new(&registration).run(client, server).await;
    };
    tokio::select! {
        biased;
        () = ends.both.cancelled() => {}
        () = traffic => {}
    }
}

struct Link {
    shared: Arc<Shared>,
    ends: Ends,
    owed: Mutex<Owed>,
    /// Told when a late command was answered.
    settled: Notify,
}

struct Request {
    frame: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    due: Instant,
    copies: usize,
    reply: ReplyFate,
    held: Option<Held>,
}

struct Reply {
    frame: Vec<u8>,
    due: Instant,
}

impl Link {
    fn new(registration: &Registration) -> Self {
        Self {
            shared: Arc::clone(&registration.shared),
            ends: registration.ends.clone(),
            owed: Mutex::default(),
            settled: Notify::new(),
        }
    }

    async fn run(&self, client: TcpStream, server: TcpStream) {
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        let (to_server, requests) = mpsc::channel(QUEUE);
        let (to_client, replies) = mpsc::channel(QUEUE);
        let requests = async {
            tokio::join!(
                self.read_requests(client_read, to_server),
                self.send_requests(requests, server_write)
            )
        };
        let replies = async {
            tokio::join!(self.read_replies(server_read, to_client), self.send_replies(replies, client_write));
        };
        // Once the server has closed, sending to it is pointless.
        tokio::select! {
            () = replies => {}
            () = async { requests.await; std::future::pending().await } => {}
        }
    }

    async fn read_requests(&self, mut client: OwnedReadHalf, to_server: mpsc::Sender<Request>) {
        let mut frames = Splitter::requests();
        let mut chunk = vec![0; 16 << 10];
        let mut flow = Flow::Open;
        let mut behind = None;
        while let Some(length) = self.read_client(&mut client, &mut chunk).await {
            frames.push(&chunk[..length]);
            loop {
                let frame = match frames.next_frame() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return self.ends.both.cancel(),
                };
                let arguments = arguments(&frame);
                if flow == Flow::Stalled || arguments.is_empty() {
                    continue;
                }
                let (fate, delay) = {
                    let mut rules = self.shared.rules();
                    (rules.fate(&arguments), rules.delay_requests)
                };
                let (holding, copies, reply) = match fate {
                    Fate::Swallowed(Then::Cut) => return self.ends.client.cancel(),
                    Fate::Swallowed(Then::Stall) => {
                        flow = Flow::Stalled;
                        continue;
                    }
                    Fate::Sent { holding, copies, reply } => (holding, copies, reply),
                };
                let held = self.hold(holding, &mut behind);
                let request = Request { frame, arguments, due: Instant::now() + delay, copies, reply, held };
                if !self.queue(&to_server, request).await {
                    return;
                }
            }
        }
    }

    /// The next bytes of the client; `None` at its end.
    async fn read_client(&self, client: &mut OwnedReadHalf, chunk: &mut [u8]) -> Option<usize> {
        tokio::select! {
            biased;
            () = self.ends.client.cancelled() => None,
            read = client.read(chunk) => read.ok().filter(|&length| length > 0),
        }
    }

    /// Holds a command if a fault requires it, or if an earlier one is held.
    fn hold(&self, holding: Holding, behind: &mut Option<Arc<Batch>>) -> Option<Held> {
        let batch = match behind.take().filter(|batch| !batch.is_released()) {
            Some(batch) => batch,
            None if holding == Holding::Held => self.shared.holds.current(),
            None => return None,
        };
        *behind = Some(Arc::clone(&batch));
        Some(Held::new(batch, Arc::clone(&self.shared)))
    }

    /// Queues a command for the sender; `false` if the sender has ended. With room in the queue it succeeds even if
    /// the client is gone: the command was seen, and perhaps counted as held (2).
    async fn queue(&self, to_server: &mpsc::Sender<Request>, request: Request) -> bool {
        tokio::select! {
            biased;
            sent = to_server.send(request) => sent.is_ok(),
            () = self.ends.client.cancelled() => false,
        }
    }

    async fn send_requests(&self, mut requests: mpsc::Receiver<Request>, mut server: OwnedWriteHalf) {
        while let Some(mut request) = requests.recv().await {
            sleep_until(request.due).await;
            if let Some(held) = &mut request.held {
                held.released().await;
            }
            self.shared.log().record(&request.arguments);
            self.shared.notify();
            let bytes = request.frame.repeat(request.copies);
            self.owed().enter(&request.arguments, request.copies, request.reply, request.held);
            if server.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // A close right behind late commands would lose them (2).
        let _ = timeout(LIMIT, self.late_answered()).await;
    }

    async fn late_answered(&self) {
        loop {
            let settled = self.settled.notified();
            if !self.owed().is_late() {
                return;
            }
            settled.await;
        }
    }

    async fn read_replies(&self, mut server: OwnedReadHalf, to_client: mpsc::Sender<Reply>) {
        let mut frames = Splitter::replies();
        let mut chunk = vec![0; 16 << 10];
        let mut flow = Flow::Open;
        while let Some(length) = server.read(&mut chunk).await.ok().filter(|&length| length > 0) {
            frames.push(&chunk[..length]);
            loop {
                let frame = match frames.next_frame() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return self.ends.both.cancel(),
                };
                let fate = self.owed().settle(&frame);
                self.settled.notify_one();
                match fate {
                    ReplyFate::Passed if flow == Flow::Open => {
                        let due = Instant::now() + self.shared.rules().delay_replies;
                        // A client that is gone does not keep the others from being paired.
                        let _ = to_client.send(Reply { frame, due }).await;
                    }
                    ReplyFate::Passed | ReplyFate::Dropped => {}
                    ReplyFate::Swallowed(Then::Stall) => flow = Flow::Stalled,
                    // Replies before it are still delivered: the queue closes, and the link behind it.
                    ReplyFate::Swallowed(Then::Cut) => return,
                }
            }
        }
    }

    async fn send_replies(&self, mut replies: mpsc::Receiver<Reply>, mut client: OwnedWriteHalf) {
        let sending = async {
            while let Some(reply) = replies.recv().await {
                sleep_until(reply.due).await;
                if client.write_all(&reply.frame).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.ends.client.cancelled() => {}
            () = sending => {}
        }
    }

    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a direction still carries anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    Stalled,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that was counted as held was lost when the client's side was cut before it stood in the queue.
    #[tokio::test]
    async fn a_command_that_was_seen_outlives_its_client() {
        let shared = Arc::new(Shared::new(([127, 0, 0, 1], 0).into()));
        let registration = Registration::new(0, shared);
        let link = Link::new(&registration);
        let (to_server, mut requests) = mpsc::channel(1);
        let held = link.hold(Holding::Held, &mut None);
        let request = Request {
            frame: b"PING\r\n".to_vec(),
            arguments: vec![b"PING".to_vec()],
            due: Instant::now(),
            copies: 1,
            reply: ReplyFate::Passed,
            held,
        };
        registration.ends.client.cancel();
        assert!(link.queue(&to_server, request).await);
        assert!(requests.recv().await.is_some_and(|request| request.held.is_some()));
    }
}
