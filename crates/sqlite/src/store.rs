//! The handle of a SQLite store: it sends jobs to the store's thread and waits for their results.

use super::database::Database;
use super::location::StoreLocation;
use super::machine::{Machine, ThisMachine};
use super::worker::{Job, StartFlag, Worker};
use futures_util::future::BoxFuture;
use leasehold_core::{
    Acquire, KeyError, Lock, Moment, MultiAcquired, Op, Partition, SessionId, SessionOp, SessionReply,
};
use leasehold_store::clock::boottime;
use leasehold_store::{
    Capabilities, Executed, Fault, FaultKind, NotificationSink, Outcome, Phase, SessionTracking, Store,
};
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long opening a file may take: other processes may be writing.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// How much earlier than its caller the thread stops waiting for other writers, so that the caller receives the
/// reason.
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
/// Processes that open the same path share its locks: processes of one user, also in containers that share the
/// directory. Beside the file are SQLite's `-wal` and `-shm` files, and a directory `-sessions` with a lock file and
/// a socket for every process that has the store open. All are accessible to their owner only (0600 and 0700); a file
/// of another user or a symbolic link is refused. The directory of the file must exist, on a local file system:
/// network file systems do not implement file locks reliably, and the kernels of two machines do not know each
/// other's processes. Do not use a directory in which old files are cleaned up (`/tmp`), and do not replace the file
/// while it is in use.
///
/// - **Which processes are alive** is known by a file lock, which ends exactly when the process does. Locks held by a
///   killed process are free at the next attempt to acquire them, unless they were detached; a process that is only
///   stopped keeps its locks until their leases end. A forked child keeps its parent's sessions alive until it calls
///   `exec`. A process that closes descriptors it did not open, such as a daemon, must open the store after that.
/// - **Time** advances during a suspend, and cannot be set. A restart of the machine ends all holds.
/// - **A loss of power** may lose the last operations, and ends every process that could hold a lock by them.
/// - A process that is stopped while it writes (about 0.1 ms) blocks all others until it continues, or their calls
///   time out.
///
/// The store works on a thread of its own, so its futures never block; handles are cheap to clone and share the
/// thread. Time limits use tokio's timers inside a tokio runtime (with timers enabled), and the thread alone
/// elsewhere.
#[derive(Clone)]
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    path: PathBuf,
    node: Arc<str>,
}

impl SqliteStore {
    /// Opens the store at a path, and creates it if the file does not exist.
    ///
    /// Does not block: a thread of the store does the work. Fails if the directory is missing, if the file belongs to
    /// or is accessible to another user, if it is not a store of this format, and if it cannot be opened within 5
    /// seconds.
    ///
    /// Cancel safety: a file that was being created stays, as an empty store.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, Fault> {
        let path = path.as_ref();
        let machine = ThisMachine::new().map_err(|error| {
            let kind = if error.kind() == io::ErrorKind::NotFound {
                let what = format!("the machine's boot id cannot be read ({error}): is /proc mounted?");
                FaultKind::Unsupported(what)
            } else {
                FaultKind::Failed(format!("the machine's boot id cannot be read: {error}"))
            };
            Fault::new(kind, Phase::Connect, path.display().to_string()).with_source(error)
        })?;
        Self::open_on(Box::new(machine), path).await
    }

    /// Opens the store with the boot id and the clock of `machine`.
    pub(super) async fn open_on(machine: Box<dyn Machine>, path: &Path) -> Result<Self, Fault> {
        let (path, node): (_, Arc<str>) = (path.to_owned(), path.display().to_string().into());
        let (jobs, received) = mpsc::channel();
        let (opened, outcome) = oneshot::channel();
        let at = path.clone();
        let work = move || {
            let deadline = boottime() + OPEN_WITHIN;
            let database =
                StoreLocation::prepare(&at).and_then(|location| Database::open(location, machine, deadline));
            match database {
                Ok(database) => {
                    if opened.send(Ok(())).is_ok() {
                        Worker::new(database).run(&received);
                    }
                }
                // The caller may be gone.
                Err(fault) => drop(opened.send(Err(fault))),
            }
        };
        let thread = std::thread::Builder::new().name("leasehold-sqlite".into()).spawn(work);
        let store = Self { jobs, path, node };
        match (thread, outcome.await) {
            (_, Ok(Ok(()))) => Ok(store),
            (_, Ok(Err(fault))) => Err(fault),
            (Err(error), _) => Err(store.fault(Phase::Connect, failed(&error)).with_source(error)),
            (Ok(_), Err(_)) => Err(store.gone(Phase::Connect)),
        }
    }

    /// The path that the store was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs a job on the thread.
    async fn run<T>(
        &self,
        within: Duration,
        job: impl FnOnce(Moment, StartFlag, oneshot::Sender<Outcome<T>>) -> Job,
    ) -> Outcome<T> {
        let (reply, outcome) = oneshot::channel();
        let start = CancelOnDrop(StartFlag::default());
        let deadline = boottime() + within.saturating_sub(MARGIN.min(within / 4));
        if self.jobs.send(job(deadline, start.0.clone(), reply)).is_err() {
            return Outcome::Failed(Executed::No, self.gone(Phase::Send));
        }
        match timeout_if_possible(within, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) if start.0.take() => Outcome::Failed(Executed::No, self.gone(Phase::Send)),
            Some(Err(_)) => Outcome::Failed(Executed::Unknown, self.gone(Phase::Reply)),
            None if start.0.take() => {
                Outcome::Failed(Executed::No, self.fault(Phase::Send, FaultKind::TimedOut))
            }
            None => Outcome::Failed(Executed::Unknown, self.fault(Phase::Reply, FaultKind::TimedOut)),
        }
    }

    async fn request_mailbox(
        &self,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> Result<(), Fault> {
        let (reply, outcome) = oneshot::channel();
        let start = CancelOnDrop(StartFlag::default());
        let job = Job::Open { session, sink, start: start.0.clone(), reply };
        self.jobs.send(job).map_err(|_| self.gone(Phase::Connect))?;
        match timeout_if_possible(within, outcome).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(self.gone(Phase::Connect)),
            None => Err(self.fault(Phase::Connect, FaultKind::TimedOut)),
        }
    }

    fn fault(&self, phase: Phase, kind: FaultKind) -> Fault {
        Fault::new(kind, phase, self.node.clone())
    }

    /// The fault of a store whose thread has ended, for example after a fork.
    fn gone(&self, phase: Phase) -> Fault {
        self.fault(phase, FaultKind::Failed("the store's thread has ended: open the store again".into()))
    }
}

/// Withdraws a job when its caller is dropped, unless it has begun.
struct CancelOnDrop(StartFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.take();
    }
}

/// Waits for at most `within` if there are timers. Elsewhere the thread's own deadline applies.
async fn timeout_if_possible<T>(within: Duration, future: impl Future<Output = T>) -> Option<T> {
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
        Box::pin(self.run(within, move |deadline, start, reply| Job::Execute {
            lock,
            op,
            deadline,
            start,
            reply,
        }))
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        let requests = requests.to_vec();
        let job = move |deadline, start, reply| Job::AcquireAll { requests, deadline, start, reply };
        Box::pin(async move { Some(self.run(within, job).await) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().sessions(SessionTracking::ByStore)
    }

    /// Also creates the session's file: from now on, its holds end when the process ends.
    fn open_mailbox(
        &self,
        _partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.request_mailbox(session, sink, within))
    }

    /// Also removes the session's file: what the session still holds ends by its lease.
    fn close_mailbox(&self, _partition: Partition, session: SessionId) {
        // Without its thread the store has no mailboxes.
        let _ = self.jobs.send(Job::Close(session));
    }

    /// A session is alive while its mailbox is open, whether or not it sends heartbeats.
    fn execute_session<'a>(
        &'a self,
        _partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        let op = op.clone();
        Box::pin(self.run(within, move |deadline, start, reply| Job::ExecuteSession {
            op,
            deadline,
            start,
            reply,
        }))
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, _lock: &Lock) -> Result<(), KeyError> {
        Ok(())
    }
}
