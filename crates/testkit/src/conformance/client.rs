//! A test client: one session with its own store handle, like another process.

use super::inbox::GrantMessage;
use super::inbox::Inbox;
use super::unsupported::Unsupported;
use crate::Random;
use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, Evict, Evicted, Extend, Extended, FencingToken, ForceRelease,
    ForceReleased, Heartbeat, HeartbeatReply, HoldId, HoldStatus, Holder, Inspect, Inspection, Kind, Label,
    Liveness, Lock, LockMode, MultiAcquired, Nonce, ObservedHolder, Op, OwnValue, OwnerHolds, Partition,
    Predecessor, Refused, Release, ReleaseAction, Released, Reply, Reserve, Resize, Resized, SessionEntry,
    SessionId, SessionOp, SessionReply,
};
use leasehold_store::{Executed, Outcome, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease, or the lifetime of a queue entry, that does not end during a case.
pub const LONG: Duration = Duration::from_secs(3600);
/// How long a call may take, and how long a message may be under way.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A session that uses one lock.
#[derive(Debug, Clone)]
pub struct TestClient {
    /// Its own handle to the store.
    pub store: Arc<dyn Store>,
    /// Which session it is.
    pub session: SessionId,
    /// Received notifications.
    pub inbox: Arc<Inbox>,
    /// The lock that it uses.
    pub lock: Lock,
    pub(super) random: Arc<Random>,
    pub(super) unsupported: Arc<Unsupported>,
}

/// The contents of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The fencing token.
    pub fence: FencingToken,
    /// How long the hold lasts, in milliseconds.
    pub remaining_ms: u64,
    /// Whether others wait.
    pub others_wait: bool,
    /// The re-entrant state, of a ReentrantMutex.
    pub owner_holds: Option<OwnerHolds>,
}

/// The contents of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// The holder.
    pub holder: Option<Holder>,
    /// The queue position.
    pub position: Option<u64>,
    /// The session to watch: its lapse would bring this client closer to the lock.
    pub predecessor: Option<Predecessor>,
    /// The others of those, of a lock that several have.
    pub other_holders: Vec<SessionId>,
}

impl TestClient {
    /// The same session at another lock.
    #[must_use]
    pub fn at(&self, lock: &Lock) -> Self {
        Self { lock: lock.clone(), ..self.clone() }
    }

    /// The public label of the session.
    pub fn label(&self) -> Label {
        Label::new(format!("client {}", self.session)).expect("an id is plain text")
    }

    /// A fresh claim, with a fresh owner for kinds that have owners.
    pub fn claim(&self) -> Claim {
        let owner = || format!("{}:{}", self.session, self.random.bits());
        let value = self.lock.kind.has_owners().then(|| OwnValue::new(owner()).ok()).flatten();
        Claim { hold: HoldId::from_random(self.session, self.random.bytes()), value }
    }

    /// A fresh hold with a value of the user's own, or by that owner.
    pub fn claim_with(&self, value: &str) -> Claim {
        Claim { value: Some(OwnValue::new(value).expect("a plain text")), ..self.claim() }
    }

    /// A fresh claim of the same owner.
    pub fn again(&self, of: &Claim) -> Claim {
        Claim { value: of.value.clone(), ..self.claim() }
    }

    /// A fresh nonce.
    pub fn nonce(&self) -> Nonce {
        Nonce::new(0, self.random.bits())
    }

    /// A try: no queue.
    pub fn ask(&self, claim: &Claim, lease: Duration) -> Acquire {
        let (claim, lease_ms) = (claim.clone(), millis(lease));
        Acquire {
            claim,
            lease_ms,
            label: self.label(),
            queue: None,
            adopt_ms: None,
            liveness: Liveness::Session { alive_ms: 1_000 },
            predecessor: None,
            mode: alone(self.lock.kind),
        }
    }

    /// An acquire that queues or polls, with a fresh nonce.
    pub fn look(&self, claim: &Claim, lease: Duration, kept: Duration) -> Acquire {
        let queue = Some(Enqueue { nonce: self.nonce(), ttl_ms: millis(kept) });
        Acquire { queue, ..self.ask(claim, lease) }
    }

    /// Executes an operation on a healthy store. When this returns, work that the store does in the background has
    /// ended too, before a test sets the clock.
    pub async fn execute(&self, op: &Op) -> Reply {
        let outcome = self.store.execute(&self.lock, op, CALL_TIMEOUT).await;
        self.store.flush().await;
        match outcome {
            Outcome::Done(reply) => reply,
            Outcome::Failed(Executed::No, fault) => panic!("{} refused {op:?}: {fault}", self.lock),
            Outcome::Failed(Executed::Unknown, fault) => {
                panic!("{}: unknown outcome of {op:?}: {fault}", self.lock)
            }
        }
    }

    /// Sends an acquire.
    pub async fn acquire(&self, ask: &Acquire) -> Acquired {
        match self.execute(&Op::Acquire(ask.clone())).await {
            Reply::Acquire(acquired) => acquired,
            other => panic!("{}: an acquire was answered by {other:?}", self.lock),
        }
    }

    /// Sends an acquire that must be granted.
    pub async fn granted(&self, ask: &Acquire) -> Granted {
        granted(self.acquire(ask).await)
    }

    /// Sends an acquire that must be refused.
    pub async fn taken(&self, ask: &Acquire) -> Taken {
        taken(self.acquire(ask).await)
    }

    /// Takes the free lock with a fresh hold.
    pub async fn take(&self, lease: Duration) -> Claim {
        let claim = self.claim();
        self.granted(&self.ask(&claim, lease)).await;
        claim
    }

    /// Queues with a fresh claim until the case ends.
    pub async fn enqueue(&self) -> (Claim, Nonce) {
        let claim = self.claim();
        let nonce = self.enqueue_as(&claim, LONG).await;
        (claim, nonce)
    }

    /// Ends the case unless the store has a queue.
    pub async fn needs_queue(&self) {
        if !self.store.capabilities().queue {
            self.unsupported.leave("queue").await;
        }
    }

    /// Repeats an acquire that may have been granted already. A store without a queue needs a new claim each time,
    /// once the former is undone. Returns the claim that holds the lock.
    pub async fn granted_after_all(&self, ask: &Acquire) -> Claim {
        let start = Instant::now();
        let mut ask = ask.clone();
        loop {
            if !self.store.capabilities().queue {
                self.release(&ask.claim).await;
                ask.claim = self.again(&ask.claim);
            }
            match self.acquire(&ask).await {
                Acquired::Taken { .. }
                    if !self.store.capabilities().queue && start.elapsed() < CALL_TIMEOUT =>
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                reply => {
                    granted(reply);
                    return ask.claim;
                }
            }
        }
    }

    /// Queues or polls. Returns the nonce.
    pub async fn enqueue_as(&self, claim: &Claim, kept: Duration) -> Nonce {
        self.needs_queue().await;
        let look = self.look(claim, LONG, kept);
        let taken = self.taken(&look).await;
        assert!(taken.position.is_some(), "who queues has a position");
        look.queue.map_or_else(|| self.nonce(), |queue| queue.nonce)
    }

    /// Takes a part with a fresh hold.
    pub async fn take_part(&self, mode: LockMode) -> Claim {
        let claim = self.claim();
        self.granted(&self.ask_part(&claim, mode)).await;
        claim
    }

    /// Queues for a part with a fresh hold, for as long as the case runs.
    pub async fn enqueue_part(&self, mode: LockMode) -> (Claim, Nonce) {
        let claim = self.claim();
        let nonce = self.enqueue_part_as(&claim, mode).await;
        (claim, nonce)
    }

    /// Queues or polls for a mode. Returns the nonce.
    pub async fn enqueue_part_as(&self, claim: &Claim, mode: LockMode) -> Nonce {
        let look = self.look_part(claim, mode);
        let taken = self.taken(&look).await;
        assert!(taken.position.is_some(), "who queues has a position");
        look.queue.map_or_else(|| self.nonce(), |queue| queue.nonce)
    }

    /// A try of a part.
    pub fn ask_part(&self, claim: &Claim, mode: LockMode) -> Acquire {
        Acquire { mode, ..self.ask(claim, LONG) }
    }

    /// An acquire for a mode that queues or polls, with a fresh nonce.
    pub fn look_part(&self, claim: &Claim, mode: LockMode) -> Acquire {
        Acquire { mode, ..self.look(claim, LONG, LONG) }
    }

    /// Why an acquire is refused.
    pub async fn refused(&self, ask: &Acquire) -> Refused {
        match self.execute(&Op::Acquire(ask.clone())).await {
            Reply::Refused(refused) => refused,
            other => panic!("{}: expected a refusal, got {other:?}", self.lock),
        }
    }

    /// Sets the number of permits, having seen `seen`.
    pub async fn resize(&self, observed: Option<u32>, limit: u32) -> Resized {
        match self.execute(&Op::Resize(Resize { observed, limit })).await {
            Reply::Resize(resized) => resized,
            other => panic!("{}: a resize was answered by {other:?}", self.lock),
        }
    }

    /// Sends an extend.
    pub async fn extend(&self, claim: &Claim, lease: Duration) -> Extended {
        self.extend_and(claim, lease, None).await
    }

    /// Sends an extend that may have fencing tokens reserved.
    pub async fn extend_and(&self, claim: &Claim, lease: Duration, reserve: Option<Reserve>) -> Extended {
        let extend = Extend { claim: claim.clone(), lease_ms: millis(lease), keep_record: false, reserve };
        match self.execute(&Op::Extend(extend)).await {
            Reply::Extend(extended) => extended,
            other => panic!("{}: an extend was answered by {other:?}", self.lock),
        }
    }

    /// Reserves fencing tokens for the hold without extending it. Returns them in order, and whether others wait.
    pub async fn reserve(&self, claim: &Claim, reserve: Reserve) -> (Vec<FencingToken>, bool) {
        self.needs_queue().await;
        match self.extend_and(claim, Duration::from_millis(1), Some(reserve)).await {
            Extended::Reserved { mut block, others_wait } => {
                (std::iter::from_fn(|| block.pop_first()).collect(), others_wait)
            }
            other => panic!("{}: expected a block of tokens, got {other:?}", self.lock),
        }
    }

    /// Gives a hold up.
    pub async fn release(&self, claim: &Claim) -> Released {
        self.release_and(claim, ReleaseAction::Grant, None).await
    }

    /// Releases a hold with the given action, and optionally acquires again.
    pub async fn release_and(&self, claim: &Claim, action: ReleaseAction, next: Option<Acquire>) -> Released {
        let release = Release { claim: claim.clone(), action, next };
        match self.execute(&Op::Release(release)).await {
            Reply::Release(released) => released,
            other => panic!("{}: a release was answered by {other:?}", self.lock),
        }
    }

    /// Acquires several locks in one step, each with its own claim. `None` if the store has no such step.
    pub async fn acquire_all(&self, asks: &[(Lock, Acquire)]) -> Option<Vec<MultiAcquired>> {
        match self.store.acquire_all(asks, CALL_TIMEOUT).await? {
            Outcome::Done(shares) => Some(shares),
            Outcome::Failed(Executed::No, fault) => panic!("refused {asks:?}: {fault}"),
            Outcome::Failed(Executed::Unknown, fault) => panic!("unknown outcome of {asks:?}: {fault}"),
        }
    }

    /// How the lock stands.
    pub async fn inspect(&self) -> Inspection {
        self.inspect_for(None).await
    }

    /// The status of a hold.
    pub async fn fate(&self, claim: &Claim) -> HoldStatus {
        let inspection = self.inspect_for(Some(claim.clone())).await;
        inspection.hold_status.expect("who asks about a hold is told")
    }

    /// How long the holder still has, in milliseconds.
    pub async fn remaining_ms(&self) -> u64 {
        let holder = self.inspect().await.holder.expect("a holder");
        holder.remaining_ms.expect("a lease ends")
    }

    /// The next message.
    pub async fn message(&self) -> GrantMessage {
        if !self.store.capabilities().notifications {
            self.unsupported.leave("mailbox").await;
        }
        let message = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next()).await;
        let wake = message.unwrap_or_else(|_| panic!("{}: no grant came to {:?}", self.lock, self.session));
        assert_eq!(wake.to, self.session, "a message to another session");
        wake
    }

    /// Waits for the notification of a forced release. Returns its fencing token.
    pub async fn freed(&self) -> FencingToken {
        let freed = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next_freed()).await;
        freed.unwrap_or_else(|_| panic!("{}: {:?} was not told of the force", self.lock, self.session))
    }

    /// Waits for the notification that another client waits. Returns the fencing token of the hold.
    pub async fn wanted(&self) -> FencingToken {
        let wanted = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next_wanted()).await;
        wanted.unwrap_or_else(|_| panic!("{}: {:?} was not told of another", self.lock, self.session))
    }

    /// Inspects the lock in full.
    pub async fn inspect_full(&self) -> Inspection {
        self.inspect_by(Inspect { claim: None, details: true }).await
    }

    /// Evicts a lapsed session from the lock.
    pub async fn evict(&self, session: SessionId) -> Evicted {
        match self.execute(&Op::Evict(Evict { session, actor: self.label() })).await {
            Reply::Evict(evicted) => evicted,
            other => panic!("{}: an evict was answered by {other:?}", self.lock),
        }
    }

    /// Releases by force the hold that was seen.
    pub async fn free(&self, observed: ObservedHolder) -> ForceReleased {
        match self.execute(&Op::ForceRelease(ForceRelease { observed, actor: self.label() })).await {
            Reply::ForceRelease(freed) => freed,
            other => panic!("{}: a free was answered by {other:?}", self.lock),
        }
    }

    /// Where its session lives: with the lock.
    pub fn partition(&self) -> Partition {
        self.store.partition(&self.lock)
    }

    /// Executes an operation on the sessions that a store in good health executes.
    pub async fn execute_session(&self, op: &SessionOp) -> SessionReply {
        match self.store.execute_session(self.partition(), op, CALL_TIMEOUT).await {
            Outcome::Done(reply) => reply,
            Outcome::Failed(Executed::No, fault) => panic!("refused {op:?}: {fault}"),
            Outcome::Failed(Executed::Unknown, fault) => panic!("unknown outcome of {op:?}: {fault}"),
        }
    }

    /// The public metadata of the session.
    pub fn about(&self) -> String {
        format!("{{\"client\":\"{}\"}}", self.session)
    }

    /// A heartbeat that changes nothing else.
    pub fn beat_for(&self, alive: Duration) -> Heartbeat {
        let (session, alive_ms) = (self.session, millis(alive));
        Heartbeat { session, alive_ms, begin: None, acquired: Vec::new(), released: Vec::new() }
    }

    /// Begins its session, for so long if it beats no more.
    pub async fn begin(&self, alive: Duration) {
        let begin = Some(self.about());
        let beaten = self.beat(Heartbeat { begin, ..self.beat_for(alive) }).await;
        assert_eq!(beaten, HeartbeatReply::Alive, "{:?} could not begin", self.session);
    }

    /// Sends a beat.
    pub async fn beat(&self, beat: Heartbeat) -> HeartbeatReply {
        match self.execute_session(&SessionOp::Heartbeat(beat)).await {
            SessionReply::Heartbeat(beaten) => beaten,
            other => panic!("a beat was answered by {other:?}"),
        }
    }

    /// Ends its session in order.
    pub async fn end(&self) {
        let ended = self.execute_session(&SessionOp::End(self.session)).await;
        assert_eq!(ended, SessionReply::End);
    }

    /// The listed entry of a session.
    pub async fn listed(&self, session: SessionId) -> Option<SessionEntry> {
        match self.execute_session(&SessionOp::List).await {
            SessionReply::List(list) => {
                let mut found = list.into_iter().filter(|entry| entry.session == session);
                let entry = found.next();
                assert_eq!(found.next(), None, "listed twice");
                entry
            }
            other => panic!("a list was answered by {other:?}"),
        }
    }

    async fn inspect_for(&self, claim: Option<Claim>) -> Inspection {
        self.inspect_by(Inspect { claim, details: false }).await
    }

    async fn inspect_by(&self, inspect: Inspect) -> Inspection {
        match self.execute(&Op::Inspect(inspect)).await {
            Reply::Inspect(inspection) => inspection,
            other => panic!("{}: an inspect was answered by {other:?}", self.lock),
        }
    }
}

/// The reply must be a grant.
pub(super) fn granted(reply: Acquired) -> Granted {
    match reply {
        Acquired::Granted { fence, remaining_ms, others_wait, owner_holds } => {
            Granted { fence, remaining_ms, others_wait, owner_holds }
        }
        other => panic!("expected a grant, got {other:?}"),
    }
}

/// The re-entrant state of a grant on a ReentrantMutex.
pub(super) fn entered(granted: &Granted) -> OwnerHolds {
    granted.owner_holds.expect("who has a ReentrantMutex is told how often")
}

/// The refusal in a reply.
pub(super) fn taken(reply: Acquired) -> Taken {
    match reply {
        Acquired::Taken { holder, position, predecessor, other_holders } => {
            Taken { holder, position, predecessor, other_holders }
        }
        other => panic!("expected to find the lock taken, got {other:?}"),
    }
}

/// The most exclusive mode of a kind; for a Latch and a Barrier, a mode that is always granted.
pub(super) const fn alone(kind: Kind) -> LockMode {
    match kind {
        Kind::Semaphore => LockMode::Permits { count: 1, total: 1 },
        Kind::RwLock => LockMode::Write,
        Kind::Latch => LockMode::CountDown { count: 1, total: 1 },
        Kind::Barrier => LockMode::BarrierWait { total: 1 },
        _ => LockMode::Exclusive,
    }
}

/// Whole milliseconds.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
