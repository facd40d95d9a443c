//! One client connection and its connection to the server.
//!
//! There are two loops for each direction: one splits frames and decides about them, the other sends them when due. They
//! form one future, so dropping it closes both sockets.
//!
//! 1. The pending reply of a command is recorded before the command is sent, so no reply is unexpected.
//! 2. When the client disconnects, data in flight is delivered before the server's side closes. It first waits for the
//!    replies to resumed commands, since Redis discards the commands of a client that closes.

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
use super::faults::{AfterDrop, ReplyAction, RequestAction};
use super::paused::{Batch, PausedRequest};
use super::pending_replies::PendingReplies;
use crate::frame::{FrameSplitter, arguments};

/// How many frames a direction buffers before it stops reading.
const QUEUE: usize = 1024;

/// How long the server may take to accept, and to answer resumed commands.
const LIMIT: Duration = Duration::from_secs(5);

/// Close a link from outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closers {
    /// Closes the client's side.
    pub(super) client: CancellationToken,
    /// Closes both sides, and discards data in flight.
    pub(super) both: CancellationToken,
}

/// Accepts clients.
pub(super) async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Usually there is no free file descriptor.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let id = shared.accepted.fetch_add(1, Ordering::SeqCst);
        shared.notify();
        if shared.faults().refuse_connections {
            continue;
        }
        let registration = Registration::new(id, Arc::clone(&shared));
        tokio::spawn(run(client, registration));
    }
}

/// A link's entry among those that a test can close.
struct Registration {
    id: u64,
    closers: Closers,
    shared: Arc<Shared>,
}

impl Registration {
    fn new(id: u64, shared: Arc<Shared>) -> Self {
        let closers = Closers::default();
        shared.links().insert(id, closers.clone());
        shared.notify();
        Self { id, closers, shared }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.links().remove(&self.id);
        self.shared.notify();
    }
}

async fn run(client: TcpStream, registration: Registration) {
    let closers = registration.closers.clone();
    let traffic = async {
        let connecting = timeout(LIMIT, TcpStream::connect(registration.shared.server)).await;
        // If the server is down, the connection closes.
        let Ok(Ok(server)) = connecting else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        Link::new(&registration).run(client, server).await;
    };
    tokio::select! {
        biased;
        () = closers.both.cancelled() => {}
        () = traffic => {}
    }
}

struct Link {
    shared: Arc<Shared>,
    closers: Closers,
    pending_replies: Mutex<PendingReplies>,
    /// Notified when a reply has arrived.
    reply_arrived: Notify,
}

struct Request {
    frame: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    due: Instant,
    copies: usize,
    reply: ReplyAction,
    paused: Option<PausedRequest>,
}

struct Reply {
    frame: Vec<u8>,
    due: Instant,
}

impl Link {
    fn new(registration: &Registration) -> Self {
        Self {
            shared: Arc::clone(&registration.shared),
            closers: registration.closers.clone(),
            pending_replies: Mutex::default(),
            reply_arrived: Notify::new(),
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
        let mut frames = FrameSplitter::requests();
        let mut chunk = vec![0; 16 << 10];
        let mut flow = Flow::Open;
        let mut last_batch = None;
        while let Some(length) = self.read_client(&mut client, &mut chunk).await {
            frames.push(&chunk[..length]);
            loop {
                let frame = match frames.next_frame() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return self.closers.both.cancel(),
                };
                let arguments = arguments(&frame);
                if flow == Flow::Stalled || arguments.is_empty() {
                    continue;
                }
                let (action, delay) = {
                    let mut faults = self.shared.faults();
                    (faults.action(&arguments), faults.delay_requests)
                };
                let (is_paused, copies, reply) = match action {
                    RequestAction::Drop(AfterDrop::Disconnect) => return self.closers.client.cancel(),
                    RequestAction::Drop(AfterDrop::Stall) => {
                        flow = Flow::Stalled;
                        continue;
                    }
                    RequestAction::Forward { is_paused, copies, reply } => (is_paused, copies, reply),
                };
                let paused = self.pause(is_paused, &mut last_batch);
                let request =
                    Request { frame, arguments, due: Instant::now() + delay, copies, reply, paused };
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
            () = self.closers.client.cancelled() => None,
            read = client.read(chunk) => read.ok().filter(|&length| length > 0),
        }
    }

    /// Pauses a command if a fault requires it, or if an earlier one is paused.
    fn pause(&self, is_paused: bool, last_batch: &mut Option<Arc<Batch>>) -> Option<PausedRequest> {
        let batch = match last_batch.take().filter(|batch| !batch.is_resumed()) {
            Some(batch) => batch,
            None if is_paused => self.shared.batch.current(),
            None => return None,
        };
        *last_batch = Some(Arc::clone(&batch));
        Some(PausedRequest::new(batch, Arc::clone(&self.shared)))
    }

    /// Queues a command for the sender; `false` if the sender has ended. With room in the queue it succeeds even if the
    /// client has disconnected, since the command may already count as paused (2).
    async fn queue(&self, to_server: &mpsc::Sender<Request>, request: Request) -> bool {
        tokio::select! {
            biased;
            sent = to_server.send(request) => sent.is_ok(),
            () = self.closers.client.cancelled() => false,
        }
    }

    async fn send_requests(&self, mut requests: mpsc::Receiver<Request>, mut server: OwnedWriteHalf) {
        while let Some(mut request) = requests.recv().await {
            sleep_until(request.due).await;
            if let Some(paused) = &mut request.paused {
                paused.resumed().await;
            }
            self.shared.log().record(&request.arguments);
            self.shared.notify();
            let bytes = request.frame.repeat(request.copies);
            self.pending_replies().push(&request.arguments, request.copies, request.reply, request.paused);
            if server.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // An immediate close would lose resumed commands (2).
        let _ = timeout(LIMIT, self.resumed_answered()).await;
    }

    async fn resumed_answered(&self) {
        loop {
            let reply_arrived = self.reply_arrived.notified();
            if !self.pending_replies().has_resumed() {
                return;
            }
            reply_arrived.await;
        }
    }

    async fn read_replies(&self, mut server: OwnedReadHalf, to_client: mpsc::Sender<Reply>) {
        let mut frames = FrameSplitter::replies();
        let mut chunk = vec![0; 16 << 10];
        let mut flow = Flow::Open;
        while let Some(length) = server.read(&mut chunk).await.ok().filter(|&length| length > 0) {
            frames.push(&chunk[..length]);
            loop {
                let frame = match frames.next_frame() {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(_) => return self.closers.both.cancel(),
                };
                let action = self.pending_replies().receive(&frame);
                self.reply_arrived.notify_one();
                match action {
                    ReplyAction::Forward if flow == Flow::Open => {
                        let due = Instant::now() + self.shared.faults().delay_replies;
                        // The client may have disconnected. The other replies are still matched.
                        let _ = to_client.send(Reply { frame, due }).await;
                    }
                    ReplyAction::Forward | ReplyAction::Discard => {}
                    ReplyAction::Drop(AfterDrop::Stall) => flow = Flow::Stalled,
                    // Earlier replies are still delivered, before the link closes.
                    ReplyAction::Drop(AfterDrop::Disconnect) => return,
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
            () = self.closers.client.cancelled() => {}
            () = sending => {}
        }
    }

    fn pending_replies(&self) -> MutexGuard<'_, PendingReplies> {
        self.pending_replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a direction still forwards data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Open,
    Stalled,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a command that counted as paused was lost if the client disconnected before it was queued.
    #[tokio::test]
    async fn a_paused_command_outlives_its_client() {
        let shared = Arc::new(Shared::new(([127, 0, 0, 1], 0).into()));
        let registration = Registration::new(0, shared);
        let link = Link::new(&registration);
        let (to_server, mut requests) = mpsc::channel(1);
        let paused = link.pause(true, &mut None);
        let request = Request {
            frame: b"PING\r\n".to_vec(),
            arguments: vec![b"PING".to_vec()],
            due: Instant::now(),
            copies: 1,
            reply: ReplyAction::Forward,
            paused,
        };
        registration.closers.client.cancel();
        assert!(link.queue(&to_server, request).await);
        assert!(requests.recv().await.is_some_and(|request| request.paused.is_some()));
    }
}
