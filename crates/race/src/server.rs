//! A server that runs the model, and connections to it. A connection's own thread executes what is sent on it in
//! order, whether or not the sender still waits for the reply.

use crate::environment::FrozenTime;
use futures_util::future::{BoxFuture, ready};
use leasehold::store::{Fault, MemoryStore, Notification, NotificationSink, Outcome, Reply, Store};
use leasehold::{FencingToken, Guard, LockName};
use leasehold_core::{
    Acquire, Acquired, Claim, Extended, HoldId, HoldStatus, Inspect, KeyError, Lock, Nonce, Op, Partition,
    Release, ReleaseAction, Released, SessionId,
};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::mpsc;
use shuttle::{future, thread};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A deviation of the server from its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It publishes no grants.
    PublishesNoGrants,
    /// It answers an extend before executing it.
    RepliesFirst,
    /// It reports a release without executing it.
    IgnoresReleases,
    /// It removes a hold that is to be extended.
    EndsExtendedHolds,
}

/// The server.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

struct Inner {
    store: MemoryStore,
    /// The number of executed operations. Counting is a scheduling point.
    executed: AtomicU64,
    /// Set to print what is executed.
    is_shown: bool,
    /// Not a scheduling point.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The holds whose release was executed, and those among them whose release has returned.
    given_up: HashSet<HoldId>,
    ended: HashSet<HoldId>,
    flaw: Option<Flaw>,
    mailboxes: HashSet<SessionId>,
    connections: Vec<thread::JoinHandle<()>>,
    /// The latest request with each nonce, which a grant repeats.
    queued: HashMap<Nonce, (LockName, Claim)>,
    /// The holds by the fencing tokens that were granted with them.
    granted: BTreeMap<(LockName, FencingToken), Claim>,
}

impl Server {
    pub(crate) fn new(environment: &FrozenTime, is_shown: bool) -> Self {
        let environment = environment.clone();
        let store = MemoryStore::with_clock(move || environment.now_us());
        Self(Arc::new(Inner { store, executed: AtomicU64::new(0), is_shown, state: Mutex::default() }))
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Connection {
        let (jobs, sent) = mpsc::channel();
        let server = self.clone();
        let connection = thread::spawn(move || sent.into_iter().for_each(|job| server.work(job)));
        self.state().connections.push(connection);
        Connection { server: self.clone(), jobs }
    }

    /// Executes an operation outside all connections.
    pub(crate) fn execute(&self, lock: &Lock, op: &Op) -> Reply {
        match future::block_on(self.0.store.execute(lock, op, Duration::MAX)) {
            Outcome::Done(reply) => reply,
            odd => panic!("the model has no faults: {odd:?}"),
        }
    }

    /// Ends a hold, without its holder.
    pub(crate) fn end_hold(&self, lock: &Lock, claim: &Claim) {
        let op = Op::Release(Release {
            claim: claim.clone(),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        });
        self.execute(lock, &op);
    }

    /// Gives the server a flaw, for present and future clients.
    pub(crate) fn set_flaw(&self, flaw: Flaw) {
        self.state().flaw = Some(flaw);
    }

    /// From now on no request about this hold may be sent, and no extend of it executed.
    pub(crate) fn ended(&self, hold: HoldId) {
        self.state().ended.insert(hold);
    }

    /// The same, if it was given up rather than handed off inside its process.
    pub(crate) fn ended_if_given_up(&self, hold: HoldId) {
        let mut state = self.state();
        if state.given_up.contains(&hold) {
            state.ended.insert(hold);
        }
    }

    /// The claim of a guard's hold. Tasks to which their process hands the hold off have later tokens of the same hold.
    pub(crate) fn claim_of(&self, guard: &Guard) -> Claim {
        let (state, key) = (self.state(), (guard.name().clone(), guard.fencing_token()));
        let (granted, claim) = state.granted.range(..=&key).next_back().expect("its hold was granted");
        assert_eq!(granted.0, key.0, "its hold was granted");
        claim.clone()
    }

    /// Whether a lock has no holder and no waiter.
    pub(crate) fn is_free(&self, lock: &Lock) -> bool {
        match self.execute(lock, &Op::Inspect(Inspect { claim: None, details: false })) {
            Reply::Inspect(seen) => seen.holder.is_none() && seen.waiters == 0,
            odd => panic!("not the answer to an inspect: {odd:?}"),
        }
    }

    /// Waits until all connections have ended. Fails if a mailbox was left open.
    pub(crate) fn join_connections(&self) {
        let connections = mem::take(&mut self.state().connections);
        for connection in connections {
            connection.join().expect("a connection does not panic");
        }
        assert!(self.state().mailboxes.is_empty(), "a mailbox was left open");
    }

    fn work(&self, mut job: Job) {
        if let Op::Extend(extend) = &job.op {
            if self.has(Flaw::EndsExtendedHolds) {
                self.end_hold(&job.lock, &extend.claim);
            }
            if self.has(Flaw::RepliesFirst) {
                let (unread, _) = oneshot::channel();
                let _ = mem::replace(&mut job.answer, unread).send(Reply::Extend(Extended::Extended));
                self.0.executed.fetch_add(1, SeqCst);
            }
            let late = self.state().ended.contains(&extend.claim.hold);
            assert!(!late, "extended after its release: {extend:?}");
        }
        if let Op::Release(release) = &job.op {
            self.state().given_up.insert(release.claim.hold);
        }
        self.state().note_request(&job.lock, &job.op);
        let reply = match &job.op {
            Op::Release(_) if self.has(Flaw::IgnoresReleases) => Reply::Release(Released {
                status: HoldStatus::Held,
                remaining_holds: 0,
                holder: None,
                next_waiter: None,
                next: None,
            }),
            op => self.execute(&job.lock, op),
        };
        if self.0.is_shown {
            println!("{:?}\n  {reply:?}", job.op);
        }
        self.state().note_grant(&job.lock, &job.op, &reply);
        self.0.executed.fetch_add(1, SeqCst);
        // The sender may be gone.
        let _ = job.answer.send(reply);
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.state().flaw == Some(flaw)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes the acquire request that an operation contains.
    fn note_request(&mut self, lock: &Lock, op: &Op) {
        if let Some(Acquire { claim, queue: Some(queue), .. }) = requested(op) {
            self.queued.insert(queue.nonce, (lock.name.clone(), claim.clone()));
        }
    }

    /// Notes the grant that a reply contains.
    fn note_grant(&mut self, lock: &Lock, op: &Op, reply: &Reply) {
        let acquired = match reply {
            Reply::Acquire(acquired) => Some(acquired),
            Reply::Release(Released { next: Some(Ok(acquired)), .. }) => Some(acquired),
            _ => None,
        };
        if let (Some(Acquired::Granted { fence, .. }), Some(request)) = (acquired, requested(op)) {
            self.granted.insert((lock.name.clone(), *fence), request.claim.clone());
        }
    }
}

/// The acquire request that an operation contains.
fn requested(op: &Op) -> Option<&Acquire> {
    match op {
        Op::Acquire(acquire) => Some(acquire),
        Op::Release(release) => release.next.as_ref(),
        _ => None,
    }
}

/// A mailbox that notes grants before it delivers them.
struct Mailbox {
    server: Server,
    post: Arc<dyn NotificationSink>,
}

impl NotificationSink for Mailbox {
    fn deliver(&self, notification: Notification) {
        if let Notification::Grant { nonce, fence, .. } = notification {
            let mut state = self.server.state();
            let (name, claim) = state.queued.get(&nonce).expect("a grant is for a request").clone();
            state.granted.insert((name, fence), claim);
        }
        self.post.deliver(notification);
    }

    fn resubscribed(&self) {
        self.post.resubscribed();
    }
}

/// A connection.
pub(crate) struct Connection {
    server: Server,
    jobs: mpsc::Sender<Job>,
}

/// An operation in flight.
struct Job {
    lock: Lock,
    op: Op,
    answer: oneshot::Sender<Reply>,
}

impl Store for Connection {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, _within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let job = Job { lock: lock.clone(), op: op.clone(), answer };
            self.jobs.send(job).expect("a connection receives while a sender exists");
            // No other thread runs between the sending and this check.
            let late = about(op).filter(|hold| self.server.state().ended.contains(hold));
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
        self.server.state().mailboxes.insert(session);
        if self.server.has(Flaw::PublishesNoGrants) {
            return Box::pin(ready(Ok(())));
        }
        let post = Arc::new(Mailbox { server: self.server.clone(), post });
        self.server.0.store.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.server.0.store.close_mailbox(place, session);
        self.server.state().mailboxes.remove(&session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.server.connect())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.server.0.store.check(lock)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
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
