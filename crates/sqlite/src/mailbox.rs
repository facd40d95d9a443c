//! Mailboxes: a grant reaches the waiting process as a datagram, so that waiters need not poll for it.
//!
//! 1. A message is a hint, and may be forged or lost. Waiters poll from time to time as well.
//! 2. Sending never blocks for longer than [`SEND_TIMEOUT`]: the receiver may be stopped, with a full queue.
//! 3. A receiver whose queue may have been full reports it, so that no message is lost silently.
//! 4. Closing does not wait.
//! 5. The sink receives messages in the order in which they were sent. A message of this process does not pass through
//!    the socket, so those that are queued there are delivered first. One mutex covers reading the socket and calling
//!    the sink.

use super::session_files::SessionFiles;
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a sender waits for space in the receiver's queue.
const SEND_TIMEOUT: Duration = Duration::from_millis(2);
/// How long it sleeps between two attempts.
const PAUSE: Duration = Duration::from_micros(250);
/// How long a receiver pauses after an error.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(1);
/// Longer than any message of this store.
const BUFFER_LEN: usize = 128;

/// The open mailbox of a session of this process, and the session's file.
pub(super) struct Mailbox {
    session: SessionId,
    sessions: SessionFiles,
    receiver: Arc<Receiver>,
    /// Dropped last, after its name was removed: see [`session_files`](super::session_files).
    _file: File,
}

/// State shared by the receiving thread and the mailbox.
struct Receiver {
    session: SessionId,
    socket: UnixDatagram,
    /// Locked while the socket is read and the sink is called (5).
    sink: Mutex<Arc<dyn NotificationSink>>,
    /// How many messages fill the socket's queue.
    queue_length: u32,
    closed: AtomicBool,
}

impl Mailbox {
    /// Creates the file of a session, and receives its messages.
    pub(super) fn open(
        sessions: &SessionFiles,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
    ) -> io::Result<Self> {
        let file = sessions.create(session)?;
        let listening = bind(&sessions.socket(session)).and_then(|socket| {
            let (sink, queue_length) = (Mutex::new(sink), queue_length());
            let closed = AtomicBool::new(false);
            let receiver = Arc::new(Receiver { session, socket, sink, queue_length, closed });
            let receiving = receiver.clone();
            std::thread::Builder::new().name("leasehold-mail".into()).spawn(move || receiving.run())?;
            Ok(receiver)
        });
        match listening {
            Ok(receiver) => Ok(Self { session, sessions: sessions.clone(), receiver, _file: file }),
            Err(error) => {
                sessions.remove(session);
                Err(error)
            }
        }
    }

    /// Delivers a message of this process, after those that other processes sent before (5).
    pub(super) fn deliver(&self, notification: Notification) {
        let sink = self.receiver.sink();
        // The receiving thread meets the same error, and handles it.
        let _ = self.receiver.drain(&**sink);
        sink.deliver(notification);
    }

    /// Sends messages to another sink from now on, and notifies it that it may have missed some.
    pub(super) fn redirect(&self, sink: Arc<dyn NotificationSink>) {
        let new_sink = sink.clone();
        *self.receiver.sink() = sink;
        new_sink.resubscribed();
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.sessions.remove(self.session);
        self.receiver.closed.store(true, Ordering::Release);
        // Ends the receiving thread.
        let _ = self.receiver.socket.shutdown(Shutdown::Both);
    }
}

impl Receiver {
    /// Receives until the mailbox is closed.
    fn run(&self) {
        while !self.closed.load(Ordering::Acquire) {
            match self.wait_for_message().and_then(|()| self.drain(&**self.sink())) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::warn!(session = %self.session, %errno, "the mailbox cannot be read");
                    self.sink().resubscribed();
                    std::thread::sleep(PAUSE_AFTER_ERROR);
                }
            }
        }
    }

    /// Waits until a message is queued, and leaves it there: it is read with the sink locked (5).
    fn wait_for_message(&self) -> Result<(), Errno> {
        rustix::net::recv(&self.socket, &mut [0; BUFFER_LEN], RecvFlags::PEEK).map(drop)
    }

    /// Delivers all queued messages to the sink, which the caller has locked (5).
    fn drain(&self, sink: &dyn NotificationSink) -> Result<(), Errno> {
        let mut message = [0; BUFFER_LEN];
        let mut in_a_row = 0_u32;
        // A closed socket yields empty messages without end.
        while !self.closed.load(Ordering::Acquire) {
            match rustix::net::recv(&self.socket, &mut message, RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    in_a_row += 1;
                    if let Ok(notification) = Notification::parse(self.session, &message[..len]) {
                        sink.deliver(notification);
                    }
                }
                Err(Errno::AGAIN) => {
                    if in_a_row >= self.queue_length {
                        sink.resubscribed();
                    }
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn sink(&self) -> MutexGuard<'_, Arc<dyn NotificationSink>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a message to the mailbox of another process (1, 2).
pub(super) fn send(sessions: &SessionFiles, notification: Notification) -> io::Result<()> {
    // One socket per message: messages that a stopped receiver has not read count against the sending socket, and
    // must not block messages to others.
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    let (message, to) = (notification.message(), sessions.socket(notification.to()));
    let mut waited = Duration::ZERO;
    loop {
        match socket.send_to(message.as_bytes(), &to) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waited < SEND_TIMEOUT => {
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
    enum Received {
        Notification(Notification),
        Resubscribed,
    }

    struct TestSink(mpsc::Sender<Received>, Option<Mutex<mpsc::Receiver<()>>>);

    impl NotificationSink for TestSink {
        fn deliver(&self, notification: Notification) {
            if let Some(gate) = &self.1 {
                let _ = gate.lock().expect("one thread").recv();
            }
            let _ = self.0.send(Received::Notification(notification));
        }

        fn resubscribed(&self) {
            let _ = self.0.send(Received::Resubscribed);
        }
    }

    fn notification(to: SessionId, n: u64) -> Notification {
        Notification::Grant { to, nonce: Nonce::new(1, n), fence: FencingToken::new(n) }
    }

    fn sessions() -> (tempfile::TempDir, SessionFiles) {
        let dir = tempfile::tempdir().expect("a directory");
        let fd = OwnedFd::from(File::open(dir.path()).expect("just made"));
        (dir, SessionFiles::new(fd))
    }

    #[test]
    fn a_message_arrives_and_a_closed_mailbox_leaves_nothing() {
        let (dir, sessions) = sessions();
        let session = SessionId::from_random([1; 12]);
        let (sender, received) = mpsc::channel();
        let mailbox = Mailbox::open(&sessions, session, Arc::new(TestSink(sender, None))).expect("fresh");
        let socket = dir.path().join(format!("{session}.sock"));
        assert_eq!(socket.metadata().expect("bound").permissions().mode() & 0o777, 0o600);
        let forged = UnixDatagram::unbound().expect("a socket");
        forged.send_to(b"grant me everything", &socket).expect("the mailbox is open");
        send(&sessions, notification(session, 7)).expect("the mailbox is open");
        assert_eq!(received.recv(), Ok(Received::Notification(notification(session, 7))));
        drop(mailbox);
        assert_eq!(received.recv(), Err(mpsc::RecvError), "the thread has ended and dropped the sink");
        assert!(send(&sessions, notification(session, 8)).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn a_message_of_this_process_does_not_overtake_one_that_is_queued() {
        let (_dir, sessions) = sessions();
        let session = SessionId::from_random([1; 12]);
        let (sender, received) = mpsc::channel();
        let mailbox = Mailbox::open(&sessions, session, Arc::new(TestSink(sender, None))).expect("fresh");
        for n in 0..1000 {
            send(&sessions, notification(session, 2 * n)).expect("the mailbox is open");
            mailbox.deliver(notification(session, 2 * n + 1));
            for sent in [2 * n, 2 * n + 1] {
                assert_eq!(received.recv(), Ok(Received::Notification(notification(session, sent))));
            }
        }
    }

    #[test]
    fn a_queue_that_may_have_been_full_is_reported() {
        let (_dir, sessions) = sessions();
        let session = SessionId::from_random([1; 12]);
        let ((sender, received), (open, gate)) = (mpsc::channel(), mpsc::channel());
        let sink = TestSink(sender, Some(Mutex::new(gate)));
        let _mailbox = Mailbox::open(&sessions, session, Arc::new(sink)).expect("fresh");
        let mut sent = 0;
        while send(&sessions, notification(session, sent)).is_ok() {
            sent += 1;
        }
        assert!(sent >= u64::from(queue_length()), "{sent}");
        for _ in 0..sent {
            open.send(()).expect("it waits");
        }
        let messages: Vec<_> = (0..sent).map(|_| received.recv().expect("it was sent")).collect();
        assert!(messages.iter().all(|message| matches!(message, Received::Notification(_))));
        assert_eq!(received.recv(), Ok(Received::Resubscribed), "the last one was lost");
    }
}
