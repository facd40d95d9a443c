//! The handle of a SQLite store: it hands jobs to the thread, and waits for their ends.

use super::ledger::Ledger;
use super::machine::{Machine, ThisMachine};
use super::site::Site;
use super::worker::{Job, Ticket, Worker};
use futures_util::future::BoxFuture;
use leasehold_core::{Acquire, KeyError, Lock, Moment, Op, Place, SessionId, SessionOp, SessionReply, Share};
use leasehold_store::clock::boottime;
use leasehold_store::{
    Capabilities, Executed, Fault, FaultKind, Outcome, Phase, Postbox, SessionKeeping, Store,
};
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a file may take to be opened: other processes may be writing.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// How much earlier than its caller the thread gives up waiting for other writers, so that the caller
/// learns what it was.
const MARGIN: Duration = Duration::from_millis(3);

/// Locks between the processes of one machine, in a file.
///
/// ```
/// use leasehold::store::SqliteStore;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let state = dir.path();
/// let store = SqliteStore::open(state.join("locks.db")).await?;
/// assert!(state.join("locks.db").exists());
/// # drop(store);
/// # Ok(()) }
/// ```
///
/// Whoever opens the same path shares its locks: processes of one user, also in containers that share the
/// directory. Beside the file stand SQLite's `-wal` and `-shm`, and a directory `-sessions` with a lock
/// file and a socket for every process that has the store open. All of them are for their owner's eyes
/// alone (0600 and 0700), and what is not ours, or is a symbolic link, is refused. The directory of the
/// file must be there already, on a local file system: network file systems do not keep locks as they
/// have to, and the kernels of two machines know nothing of each other's processes. Do not keep it where
/// old files are cleaned up (`/tmp`), and do not replace it while it is in use.
///
/// - **Who is alive** is known by a lock on a file, which ends with the process and not before. What a
///   killed process held is free at the next look of anybody who wants it, unless it was detached; one that is
///   only stopped keeps its lock until its lease ends. Forked children share their parent's life until they `exec`, and who
///   closes descriptors that it did not open (a daemon, say) opens the store after that.
/// - **Time** goes on during a suspend, and cannot be set. A restart of the machine ends all holds.
/// - **A loss of power** may lose the last operations, and ends all who could hold a lock by them.
/// - A process that is stopped just while it writes (some 0.1 ms) makes all others wait until it goes on,
///   or their calls end.
///
/// Work is done on one thread of the store's own, so its futures never block; handles are cheap to clone,
/// and share it. Deadlines are kept with tokio's timers where there is a tokio runtime (its timers have to
/// be enabled), and by the thread alone elsewhere.
#[derive(Clone)]
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    path: PathBuf,
    node: Arc<str>,
}

impl SqliteStore {
    /// Opens the store at a path, which is created if there is nothing.
    ///
    /// Does not block: a thread of the store's own does the work. Fails if the directory is missing, the
    /// file is not ours alone or is not a store of this format, and if it cannot be opened in 5 seconds.
    ///
    /// Cancel safety: a file that was being created stays, as an empty store.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Fault> {
        let path = path.as_ref();
        let machine = ThisMachine::new().map_err(|error| {
            let what = format!("the machine's boot id cannot be read ({error}): is /proc mounted?");
            let node = path.display().to_string();
            Fault::new(FaultKind::Unsupported(what), Phase::Connect, node).because(error)
        })?;
        Self::open_on(Box::new(machine), path).await
    }

    /// Opens the store as a process of another machine would.
    pub(super) async fn open_on(machine: Box<dyn Machine>, path: &Path) -> Result<Self, Fault> {
        let (path, node): (_, Arc<str>) = (path.to_owned(), path.display().to_string().into());
        let (jobs, received) = mpsc::channel();
        let (opened, outcome) = oneshot::channel();
        let at = path.clone();
        let work = move || {
            let deadline = boottime() + OPEN_WITHIN;
            let ledger = Site::prepare(&at).and_then(|site| Ledger::open(site, machine, deadline));
            match ledger {
                Ok(ledger) => {
                    if opened.send(Ok(())).is_ok() {
                        Worker::new(ledger).run(&received);
                    }
                }
                // Whoever wanted to know may have gone.
                Err(fault) => drop(opened.send(Err(fault))),
            }
        };
        let thread = std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(work);
        let store = Self { jobs, path, node };
        match (thread, outcome.await) {
            (_, Ok(Ok(()))) => Ok(store),
            (_, Ok(Err(fault))) => Err(fault),
            (Err(error), _) => Err(store.fault(Phase::Connect, failed(&error)).because(error)),
            (Ok(_), Err(_)) => Err(store.gone(Phase::Connect)),
        }
    }

    /// The path that the store was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has a job done by the thread.
    async fn run<T>(
        &self,
        within: Duration,
        job: impl FnOnce(Moment, Ticket, oneshot::Sender<Outcome<T>>) -> Job,
    ) -> Outcome<T> {
        let (reply, outcome) = oneshot::channel();
        let ticket = GivenUp(Ticket::default());
        let deadline = boottime() + within.saturating_sub(MARGIN.min(within / 4));
        if self.jobs.send(job(deadline, ticket.0.clone(), reply)).is_err() {
            return Outcome::Failed(Executed::No, self.gone(Phase::Send));
        }
        match in_time(within, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) if ticket.0.take() => Outcome::Failed(Executed::No, self.gone(Phase::Send)),
            Some(Err(_)) => Outcome::Failed(Executed::Unknown, self.gone(Phase::Reply)),
            None if ticket.0.take() => {
                Outcome::Failed(Executed::No, self.fault(Phase::Send, FaultKind::TimedOut))
            }
            None => Outcome::Failed(Executed::Unknown, self.fault(Phase::Reply, FaultKind::TimedOut)),
        }
    }

    async fn open_mail(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        within: Duration,
    ) -> Result<(), Fault> {
        let (reply, outcome) = oneshot::channel();
        let ticket = GivenUp(Ticket::default());
        let job = Job::Open { session, post, ticket: ticket.0.clone(), reply };
        self.jobs.send(job).map_err(|_| self.gone(Phase::Connect))?;
        match in_time(within, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(self.gone(Phase::Connect)),
            None => Err(self.fault(Phase::Connect, FaultKind::TimedOut)),
        }
    }

    fn fault(&self, phase: Phase, kind: FaultKind) -> Fault {
        Fault::new(kind, phase, self.node.clone())
    }

    /// The thread is not there any more, as after a fork.
    fn gone(&self, phase: Phase) -> Fault {
        self.fault(phase, FaultKind::Failed("the store's thread has ended: open it anew".into()))
    }
}

/// Gives a job up when the caller goes, if it was not begun.
struct GivenUp(Ticket);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Waits for at most `within`, where there are timers. Elsewhere the thread's own deadline has to do.
async fn in_time<T>(within: Duration, future: impl Future<Output = T>) -> Option<T> {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::time::timeout(within, future).await.ok()
    } else {
        Some(future.await)
    }
}

fn failed(error: &std::io::Error) -> FaultKind {
    FaultKind::Failed(error.to_string())
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        let (lock, op) = (lock.clone(), op.clone());
        Box::pin(self.run(within, move |deadline, ticket, reply| Job::Execute {
            lock,
            op,
            deadline,
            ticket,
            reply,
        }))
    }

    fn acquire_all<'a>(
        &'a self,
        asks: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<Share>>>> {
        let asks = asks.to_vec();
        let job = move |deadline, ticket, reply| Job::TakeAll { asks, deadline, ticket, reply };
        Box::pin(async move { Some(self.run(within, job).await) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionKeeping::ByItself)
    }

    /// Begins the life of the session too: from now on, its holds end when the process ends.
    fn open_mailbox(
        &self,
        _place: Place,
        session: SessionId,
        post: Arc<dyn Postbox>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.open_mail(session, post, within))
    }

    /// Ends the life of the session, in order: what it still holds ends by its lease.
    fn close_mailbox(&self, _place: Place, session: SessionId) {
        // Without its thread the store has no mailboxes.
        let _ = self.jobs.send(Job::Close(session));
    }

    /// A session whose mailbox is open is alive, whatever its beats; one without is dead, or has ended.
    fn attend<'a>(
        &'a self,
        _place: Place,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        let op = op.clone();
        Box::pin(self.run(within, move |deadline, ticket, reply| Job::Attend { op, deadline, ticket, reply }))
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
