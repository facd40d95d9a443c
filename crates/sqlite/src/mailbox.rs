//! Mailboxes: a grant reaches the waiting process as a datagram, so that waiters need not poll for it.
//!
//! 1. A message is a hint, and may be forged or lost. Waiters poll from time to time as well.
//! 2. Sending never blocks for longer than [`PATIENCE`]: the receiver may be stopped, with a full queue.
//! 3. A receiver whose queue may have been full reports it, so that no message is lost silently.
//! 4. Closing does not wait.

use super::life::Sessions;
use leasehold_core::{Notification, SessionId};
use leasehold_store::NotificationSink;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a sender waits for space in the receiver's queue.
const PATIENCE: Duration = Duration::from_millis(2);
/// How long it sleeps between two attempts.
const PAUSE: Duration = Duration::from_micros(250);
/// How long a receiver pauses after an error.
const AFTER_A_FAULT: Duration = Duration::from_secs(1);
/// Longer than any message of this store.
const TOO_LONG: usize = 128;

/// The open mailbox of a session of this process, and its life file.
pub(super) struct Mailbox {
    session: SessionId,
    sessions: Sessions,
    ear: Arc<Ear>,
    /// Dropped last, after its name was removed: see [`life`](super::life).
    _life: File,
}

/// State shared by the receiving thread and the mailbox.
struct Ear {
    session: SessionId,
    socket: UnixDatagram,
    post: Mutex<Arc<dyn NotificationSink>>,
    closed: AtomicBool,
}

impl Mailbox {
    /// Begins the life of a session, and receives its messages.
    pub(super) fn open(
        sessions: &Sessions,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
    ) -> io::Result<Self> {
        let life = sessions.begin(session)?;
        let listening = bind(&sessions.socket(session)).and_then(|socket| {
            let closed = AtomicBool::new(false);
            let ear = Arc::new(Ear { session, socket, post: Mutex::new(post), closed });
            let heard = ear.clone();
            std::thread::Builder::new().name("leasehold-mail".into()).spawn(move || heard.listen())?;
            Ok(ear)
        });
        match listening {
            Ok(ear) => Ok(Self { session, sessions: sessions.clone(), ear, _life: life }),
            Err(error) => {
                sessions.remove(session);
                Err(error)
            }
        }
    }

    /// Delivers a message of this process.
    pub(super) fn deliver(&self, wake: Notification) {
        self.ear.post().deliver(wake);
    }

    /// Sends messages to another sink from now on, and notifies it that it may have missed some.
    pub(super) fn redirect(&self, post: Arc<dyn NotificationSink>) {
        let renewed = post.clone();
        *self.ear.post.lock().unwrap_or_else(PoisonError::into_inner) = post;
        renewed.resubscribed();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.sessions.remove(self.session);
        self.ear.closed.store(true, Ordering::Release);
        // Wakes and ends the receiving thread.
        let _ = self.ear.socket.shutdown(Shutdown::Both);
    }
}

impl Ear {
    /// Receives until the mailbox is closed.
    fn listen(&self) {
        let room = queue_length();
        let mut message = [0; TOO_LONG];
        let mut in_a_row = 0_u32;
        while !self.closed.load(Ordering::Acquire) {
            // Non-blocking first: only that shows whether the queue has been empty in between.
            match self.receive(&mut message, in_a_row > 0) {
                Ok(len) => {
                    in_a_row += 1;
                    if let Ok(wake) = Notification::parse(self.session, &message[..len]) {
                        self.post().deliver(wake);
                    }
                }
                Err(Errno::AGAIN) => {
                    if in_a_row >= room {
                        self.post().resubscribed();
                    }
                    in_a_row = 0;
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::warn!(session = %self.session, %errno, "the mailbox cannot be read");
                    self.post().resubscribed();
                    std::thread::sleep(AFTER_A_FAULT);
                }
            }
        }
    }

    fn post(&self) -> Arc<dyn NotificationSink> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn receive(&self, message: &mut [u8], at_once: bool) -> Result<usize, Errno> {
        let flags = if at_once { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        rustix::net::recv(&self.socket, message, flags).map(|(len, _)| len)
    }
}

/// Sends a message to the mailbox of another process (1, 2).
pub(super) fn send(sessions: &Sessions, wake: Notification) -> io::Result<()> {
    // One socket per message: messages that a stopped receiver has not read count against the sending socket, and
    // must not block messages to others.
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let (message, to) = (wake.message(), sessions.socket(wake.to()));
    let mut waited = Duration::ZERO;
    loop {
        match socket.send_to(message.as_bytes(), &to) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < PATIENCE => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Binds a socket to a path, to which only this user may send.
fn bind(path: &str) -> io::Result<UnixDatagram> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Linux creates the name with the mode of the socket.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// The number of messages that fill a queue.
fn queue_length() -> u32 {
    let length = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen");
    length.ok().and_then(|length| length.trim().parse().ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{FencingToken, Nonce};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    #[derive(Debug, PartialEq, Eq)]
    enum Post {
        Notification(Notification),
        Renewed,
    }

    struct TestBox(mpsc::Sender<Post>, Option<Mutex<mpsc::Receiver<()>>>);

    impl NotificationSink for TestBox {
        fn deliver(&self, wake: Notification) {
            if let Some(gate) = &self.1 {
                let _ = gate.lock().expect("one thread").recv();
            }
            let _ = self.0.send(Post::Notification(wake));
        }

        fn resubscribed(&self) {
            let _ = self.0.send(Post::Renewed);
        }
    }

    fn wake(to: SessionId, n: u64) -> Notification {
        Notification::Grant { to, nonce: Nonce::new(1, n), fence: FencingToken::new(n) }
    }

    fn sessions() -> (tempfile::TempDir, Sessions) {
        let dir = tempfile::tempdir().expect("a directory");
        let fd = OwnedFd::from(File::open(dir.path()).expect("just made"));
        (dir, Sessions::new(fd))
    }

    #[test]
    fn a_message_arrives_and_a_closed_mailbox_leaves_nothing() {
        let (dir, sessions) = sessions();
        let session = SessionId::from_random([1; 12]);
        let (posted, posts) = mpsc::channel();
        let mailbox = Mailbox::open(&sessions, session, Arc::new(TestBox(posted, None))).expect("fresh");
        let socket = dir.path().join(format!("{session}.sock"));
        assert_eq!(socket.metadata().expect("bound").permissions().mode() & 0o777, 0o600);
        let forged = UnixDatagram::unbound().expect("a socket");
        forged.send_to(b"grant me everything", &socket).expect("the mailbox is open");
        send(&sessions, wake(session, 7)).expect("the mailbox is open");
        assert_eq!(posts.recv(), Ok(Post::Notification(wake(session, 7))));
        drop(mailbox);
        assert_eq!(posts.recv(), Err(mpsc::RecvError), "the thread has ended and dropped the sink");
        assert!(send(&sessions, wake(session, 8)).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn a_queue_that_may_have_been_full_is_reported() {
        let (_dir, sessions) = sessions();
        let session = SessionId::from_random([1; 12]);
        let ((posted, posts), (open, gate)) = (mpsc::channel(), mpsc::channel());
        let postbox = TestBox(posted, Some(Mutex::new(gate)));
        let _mailbox = Mailbox::open(&sessions, session, Arc::new(postbox)).expect("fresh");
        let mut sent = 0;
        while send(&sessions, wake(session, sent)).is_ok() {
            sent += 1;
        }
        assert!(sent >= u64::from(queue_length()), "{sent}");
        for _ in 0..sent {
            open.send(()).expect("it waits");
        }
        let received: Vec<_> = (0..sent).map(|_| posts.recv().expect("it was sent")).collect();
        assert!(received.iter().all(|post| matches!(post, Post::Notification(_))));
        assert_eq!(posts.recv(), Ok(Post::Renewed), "the last one was lost");
    }
}
