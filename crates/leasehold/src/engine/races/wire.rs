//! A server that runs the model, and connections to it. A connection's own thread executes what is sent on it in
//! order, whether or not the sender still waits for the reply.

use super::environment::Still;
use crate::store::{Fault, MemoryStore, NotificationSink, Outcome, Reply, Store};
use futures_util::future::{BoxFuture, ready};
use leasehold_core::{
    Claim, Extended, HoldId, HoldStatus, Inspect, KeyError, Lock, Op, Partition, Release, ReleaseAction,
    Released, SessionId,
};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::mpsc;
use shuttle::{future, thread};
use std::collections::HashSet;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A deviation of the server from its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It publishes no grants.
    TellsNobody,
    /// It answers an extend before executing it.
    AnswersFirst,
    /// It reports a release without executing it.
    ReleasesNothing,
    /// It removes a hold that is to be extended.
    TakesAway,
}

/// The server.
#[derive(Clone)]
pub(super) struct Server(Arc<Inner>);

struct Inner {
    store: MemoryStore,
    /// The number of executed operations. Counting is a scheduling point.
    executed: AtomicU64,
    /// Set to print what is executed.
    shown: bool,
    /// Not a scheduling point.
    quick: Mutex<Quick>,
}

#[derive(Default)]
struct Quick {
    /// The holds whose release was executed, and those among them whose release has returned.
    given_up: HashSet<HoldId>,
    ended: HashSet<HoldId>,
    flaw: Option<Flaw>,
    mailboxes: HashSet<SessionId>,
    lines: Vec<thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn new(environment: &Still, shown: bool) -> Self {
        let environment = environment.clone();
        let store = MemoryStore::with_clock(move || environment.now_us());
        Self(Arc::new(Inner { store, executed: AtomicU64::new(0), shown, quick: Mutex::default() }))
    }

    /// Opens a connection.
    pub(super) fn connect(&self) -> Wire {
        let (jobs, line) = mpsc::channel();
        let server = self.clone();
        let line = thread::spawn(move || line.into_iter().for_each(|job| server.work(job)));
        self.quick().lines.push(line);
        Wire { server: self.clone(), jobs }
    }

    /// Executes an operation outside all connections.
    pub(super) fn execute(&self, lock: &Lock, op: &Op) -> Reply {
        match future::block_on(self.0.store.execute(lock, op, Duration::MAX)) {
            Outcome::Done(reply) => reply,
            odd => panic!("the model has no faults: {odd:?}"),
        }
    }

    /// Ends a hold, without its holder.
    pub(super) fn take_away(&self, lock: &Lock, claim: &Claim) {
        let op = Op::Release(Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None });
        self.execute(lock, &op);
    }

    /// Gives the server a flaw, for present and future clients.
    pub(super) fn go_wrong(&self, flaw: Flaw) {
        self.quick().flaw = Some(flaw);
    }

    /// From now on no request about this hold may be sent, and no extend of it executed.
    pub(super) fn ended(&self, hold: HoldId) {
        self.quick().ended.insert(hold);
    }

    /// The same, if it was given up rather than handed on inside its process.
    pub(super) fn ended_if_given_up(&self, hold: HoldId) {
        let mut quick = self.quick();
        if quick.given_up.contains(&hold) {
            quick.ended.insert(hold);
        }
    }

    /// Whether a lock has no holder and no waiter.
    pub(super) fn is_free(&self, lock: &Lock) -> bool {
        match self.execute(lock, &Op::Inspect(Inspect { claim: None, details: false })) {
            Reply::Inspect(seen) => seen.holder.is_none() && seen.waiters == 0,
            odd => panic!("not the answer to an inspect: {odd:?}"),
        }
    }

    /// Waits until all connections have ended. Fails if a mailbox was left open.
    pub(super) fn join_lines(&self) {
        let lines = std::mem::take(&mut self.quick().lines);
        for line in lines {
            line.join().expect("a connection does not panic");
        }
        assert!(self.quick().mailboxes.is_empty(), "a mailbox was left open");
    }

    fn work(&self, mut job: Job) {
        if let Op::Extend(extend) = &job.op {
            if self.has(Flaw::TakesAway) {
                self.take_away(&job.lock, &extend.claim);
            }
            if self.has(Flaw::AnswersFirst) {
                let (unheard, _) = oneshot::channel();
                let _ = mem::replace(&mut job.answer, unheard).send(Reply::Extend(Extended::Extended));
                self.0.executed.fetch_add(1, SeqCst);
            }
            let late = self.quick().ended.contains(&extend.claim.hold);
            assert!(!late, "extended after its release: {extend:?}");
        }
        if let Op::Release(release) = &job.op {
            self.quick().given_up.insert(release.claim.hold);
        }
        let reply = match &job.op {
            Op::Release(_) if self.has(Flaw::ReleasesNothing) => Reply::Release(Released {
                status: HoldStatus::Held,
                remaining_holds: 0,
                holder: None,
                next: None,
            }),
            op => self.execute(&job.lock, op),
        };
        if self.0.shown {
            println!("{:?}\n  {reply:?}", job.op);
        }
        self.0.executed.fetch_add(1, SeqCst);
        // The sender may be gone.
        let _ = job.answer.send(reply);
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.quick().flaw == Some(flaw)
    }

    fn quick(&self) -> MutexGuard<'_, Quick> {
        self.0.quick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection.
pub(super) struct Wire {
    server: Server,
    jobs: mpsc::Sender<Job>,
}

/// An operation in flight.
struct Job {
    lock: Lock,
    op: Op,
    answer: oneshot::Sender<Reply>,
}

impl Store for Wire {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let job = Job { lock: lock.clone(), op: op.clone(), answer };
            self.jobs.send(job).expect("a connection receives while a sender exists");
            // No other thread runs between the sending and this check.
            let late = about(op).filter(|hold| self.server.quick().ended.contains(hold));
            assert!(late.is_none(), "sent after its release: {op:?}");
            Outcome::Done(answered.await.expect("everything that is sent is answered"))
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.server.quick().mailboxes.insert(session);
        if self.server.has(Flaw::TellsNobody) {
            return Box::pin(ready(Ok(())));
        }
        self.server.0.store.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.server.0.store.close_mailbox(place, session);
        self.server.quick().mailboxes.remove(&session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.server.connect())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.server.0.store.check(lock)
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

/// The hold that an operation is about.
fn about(op: &Op) -> Option<HoldId> {
    match op {
        Op::Acquire(acquire) => Some(acquire.claim.hold),
        Op::Extend(extend) => Some(extend.claim.hold),
        Op::Release(release) => Some(release.claim.hold),
        Op::Inspect(inspect) => inspect.claim.as_ref().map(|claim| claim.hold),
        _ => None,
    }
}
