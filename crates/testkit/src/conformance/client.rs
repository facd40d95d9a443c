//! A test client: one session with its own store handle, like a process.

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
/// How long a call may take, and how long a notification may take.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// A session that uses one lock.
#[derive(Debug, Clone)]
pub struct TestClient {
    /// Its own handle to the store.
    pub store: Arc<dyn Store>,
    /// The session.
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
    /// The other sessions to watch, of a lock with several holders.
    pub other_holders: Vec<SessionId>,
}

impl TestClient {
    /// The same session for another lock.
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

    /// A fresh claim with a custom value, or of that owner.
    pub fn claim_with_value(&self, value: &str) -> Claim {
        Claim { value: Some(OwnValue::new(value).expect("a plain text")), ..self.claim() }
    }

    /// A fresh claim of the same owner.
    pub fn same_owner_claim(&self, of: &Claim) -> Claim {
        Claim { value: of.value.clone(), ..self.claim() }
    }

    /// A fresh nonce.
    pub fn nonce(&self) -> Nonce {
        Nonce::new(0, self.random.bits())
    }

    /// An acquire that does not queue.
    pub fn request(&self, claim: &Claim, lease: Duration) -> Acquire {
        let (claim, lease_ms) = (claim.clone(), millis(lease));
        Acquire {
            claim,
            lease_ms,
            label: self.label(),
            queue: None,
            expire_foreign_ms: None,
            liveness: Liveness::Session { alive_ms: 1_000 },
            predecessor: None,
            mode: alone(self.lock.kind),
        }
    }

    /// An acquire that queues or polls, with a fresh nonce.
    pub fn queued_request(&self, claim: &Claim, lease: Duration, kept: Duration) -> Acquire {
        let queue = Some(Enqueue { nonce: self.nonce(), ttl_ms: millis(kept) });
        Acquire { queue, ..self.request(claim, lease) }
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
    pub async fn acquire(&self, request: &Acquire) -> Acquired {
        match self.execute(&Op::Acquire(request.clone())).await {
            Reply::Acquire(acquired) => acquired,
            other => panic!("{}: an acquire was answered by {other:?}", self.lock),
        }
    }

    /// Sends an acquire that must be granted.
    pub async fn granted(&self, request: &Acquire) -> Granted {
        granted(self.acquire(request).await)
    }

    /// Sends an acquire that must be refused.
    pub async fn taken(&self, request: &Acquire) -> Taken {
        taken(self.acquire(request).await)
    }

    /// Acquires the free lock with a fresh claim, and returns the fencing token as well.
    pub async fn acquire_with_token(&self) -> (Claim, FencingToken) {
        let claim = self.claim();
        let fence = self.granted(&self.request(&claim, LONG)).await.fence;
        (claim, fence)
    }

    /// Acquires the free lock with a fresh claim.
    pub async fn acquire_new(&self, lease: Duration) -> Claim {
        let claim = self.claim();
        self.granted(&self.request(&claim, lease)).await;
        claim
    }

    /// Queues with a fresh claim until the case ends.
    pub async fn enqueue(&self) -> (Claim, Nonce) {
        let claim = self.claim();
        let nonce = self.enqueue_as(&claim, LONG).await;
        (claim, nonce)
    }

    /// Ends the case unless the store has a queue.
    pub async fn require_queue(&self) {
        if !self.store.capabilities().queue {
            self.unsupported.end_case("queue").await;
        }
    }

    /// Repeats an acquire until it is granted. A store without a queue needs a new claim each time, after the former was
    /// released. Returns the claim that holds the lock.
    pub async fn acquire_eventually(&self, request: &Acquire) -> Claim {
        let start = Instant::now();
        let mut request = request.clone();
        loop {
            if !self.store.capabilities().queue {
                self.release(&request.claim).await;
                request.claim = self.same_owner_claim(&request.claim);
            }
            match self.acquire(&request).await {
                Acquired::Taken { .. }
                    if !self.store.capabilities().queue && start.elapsed() < CALL_TIMEOUT =>
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                reply => {
                    granted(reply);
                    return request.claim;
                }
            }
        }
    }

    /// Queues or polls. Returns the nonce.
    pub async fn enqueue_as(&self, claim: &Claim, kept: Duration) -> Nonce {
        self.require_queue().await;
        self.enqueue_with(&self.queued_request(claim, LONG, kept)).await
    }

    /// Acquires a mode with a fresh claim.
    pub async fn acquire_mode(&self, mode: LockMode) -> Claim {
        let claim = self.claim();
        self.granted(&self.mode_request(&claim, mode)).await;
        claim
    }

    /// Queues for a mode with a fresh claim until the case ends.
    pub async fn enqueue_mode(&self, mode: LockMode) -> (Claim, Nonce) {
        let claim = self.claim();
        let nonce = self.enqueue_mode_as(&claim, mode).await;
        (claim, nonce)
    }

    /// Queues or polls for a mode. Returns the nonce.
    pub async fn enqueue_mode_as(&self, claim: &Claim, mode: LockMode) -> Nonce {
        self.enqueue_with(&self.queued_mode_request(claim, mode)).await
    }

    async fn enqueue_with(&self, request: &Acquire) -> Nonce {
        let taken = self.taken(request).await;
        assert!(taken.position.is_some(), "a queued client has a position");
        request.queue.as_ref().expect("the request has a queue entry").nonce
    }

    /// An acquire of a mode that does not queue.
    pub fn mode_request(&self, claim: &Claim, mode: LockMode) -> Acquire {
        Acquire { mode, ..self.request(claim, LONG) }
    }

    /// An acquire for a mode that queues or polls, with a fresh nonce.
    pub fn queued_mode_request(&self, claim: &Claim, mode: LockMode) -> Acquire {
        Acquire { mode, ..self.queued_request(claim, LONG, LONG) }
    }

    /// Why an acquire is refused.
    pub async fn refused(&self, request: &Acquire) -> Refused {
        match self.execute(&Op::Acquire(request.clone())).await {
            Reply::Refused(refused) => refused,
            other => panic!("{}: expected a refusal, got {other:?}", self.lock),
        }
    }

    /// Sets the number of permits, if the current one is `observed`.
    pub async fn resize(&self, observed: Option<u32>, limit: u32) -> Resized {
        match self.execute(&Op::Resize(Resize { observed, limit, agreed: false })).await {
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
        let (claim, lease_ms) = (claim.clone(), millis(lease));
        self.send_extend(Extend { claim, lease_ms, keep_record: false, reserve, fence: None }).await
    }

    /// Sends an extend of a hold that was granted with this token.
    pub async fn extend_grant(&self, claim: &Claim, fence: FencingToken, lease: Duration) -> Extended {
        let (claim, lease_ms, fence) = (claim.clone(), millis(lease), Some(fence));
        self.send_extend(Extend { claim, lease_ms, keep_record: false, reserve: None, fence }).await
    }

    /// The votes of a quorum are an extend like any other.
    async fn send_extend(&self, extend: Extend) -> Extended {
        match self.execute(&Op::Extend(extend)).await {
            Reply::Extend(Extended::Voted(votes)) if votes.margin() > 0 => Extended::Extended,
            Reply::Extend(extended) => extended,
            other => panic!("{}: an extend was answered by {other:?}", self.lock),
        }
    }

    /// Reserves fencing tokens for the hold without extending it. Returns them in order, and whether others wait.
    pub async fn reserve(&self, claim: &Claim, reserve: Reserve) -> (Vec<FencingToken>, bool) {
        self.require_queue().await;
        match self.extend_and(claim, Duration::from_millis(1), Some(reserve)).await {
            Extended::Reserved { mut block, others_wait } => {
                (std::iter::from_fn(|| block.pop_first()).collect(), others_wait)
            }
            other => panic!("{}: expected a block of tokens, got {other:?}", self.lock),
        }
    }

    /// Releases a hold.
    pub async fn release(&self, claim: &Claim) -> Released {
        self.release_and(claim, ReleaseAction::Grant, None).await
    }

    /// Releases a hold with the given action, and optionally acquires again.
    pub async fn release_and(&self, claim: &Claim, action: ReleaseAction, next: Option<Acquire>) -> Released {
        let release = Release { claim: claim.clone(), action, next, history: 0 };
        match self.execute(&Op::Release(release)).await {
            Reply::Release(released) => released,
            other => panic!("{}: a release was answered by {other:?}", self.lock),
        }
    }

    /// Acquires several locks in one step, each with its own claim. `None` if the store has no such step.
    pub async fn acquire_all(&self, requests: &[(Lock, Acquire)]) -> Option<Vec<MultiAcquired>> {
        match self.store.acquire_all(requests, CALL_TIMEOUT).await? {
            Outcome::Done(replies) => Some(replies),
            Outcome::Failed(Executed::No, fault) => panic!("refused {requests:?}: {fault}"),
            Outcome::Failed(Executed::Unknown, fault) => panic!("unknown outcome of {requests:?}: {fault}"),
        }
    }

    /// Inspects the lock.
    pub async fn inspect(&self) -> Inspection {
        self.inspect_for(None).await
    }

    /// The status of a hold.
    pub async fn status(&self, claim: &Claim) -> HoldStatus {
        let inspection = self.inspect_for(Some(claim.clone())).await;
        inspection.hold_status.expect("the reply has the status of the hold")
    }

    /// How long the holder still has, in milliseconds.
    pub async fn remaining_ms(&self) -> u64 {
        let holder = self.inspect().await.holder.expect("a holder");
        holder.remaining_ms.expect("a lease ends")
    }

    /// Waits for the next grant.
    pub async fn next_grant(&self) -> GrantMessage {
        if !self.store.capabilities().notifications {
            self.unsupported.end_case("mailbox").await;
        }
        let message = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next_grant()).await;
        let wake =
            message.unwrap_or_else(|_| panic!("{}: no grant for {:?} arrived", self.lock, self.session));
        assert_eq!(wake.to, self.session, "a grant to another session");
        wake
    }

    /// Waits for the notification of a forced release. Returns its fencing token.
    pub async fn next_force_release(&self) -> FencingToken {
        let freed = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next_force_release()).await;
        freed.unwrap_or_else(|_| {
            panic!("{}: {:?} was not notified of the forced release", self.lock, self.session)
        })
    }

    /// Waits for the notification that another client waits. Returns the fencing token of the hold.
    pub async fn next_wanted(&self) -> FencingToken {
        let wanted = tokio::time::timeout(CALL_TIMEOUT, self.inbox.next_wanted()).await;
        wanted.unwrap_or_else(|_| panic!("{}: {:?} was not notified of a waiter", self.lock, self.session))
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

    /// Releases by force the observed hold.
    pub async fn force_release(&self, observed: ObservedHolder) -> ForceReleased {
        match self.execute(&Op::ForceRelease(ForceRelease { observed, actor: self.label() })).await {
            Reply::ForceRelease(freed) => freed,
            other => panic!("{}: a forced release was answered by {other:?}", self.lock),
        }
    }

    /// The partition of the lock, which also has the session.
    pub fn partition(&self) -> Partition {
        self.store.partition(&self.lock)
    }

    /// Executes an operation on sessions on a healthy store.
    pub async fn execute_session(&self, op: &SessionOp) -> SessionReply {
        match self.store.execute_session(self.partition(), op, CALL_TIMEOUT).await {
            Outcome::Done(reply) => reply,
            Outcome::Failed(Executed::No, fault) => panic!("refused {op:?}: {fault}"),
            Outcome::Failed(Executed::Unknown, fault) => panic!("unknown outcome of {op:?}: {fault}"),
        }
    }

    /// The public metadata of the session.
    pub fn metadata(&self) -> String {
        format!("{{\"client\":\"{}\"}}", self.session)
    }

    /// A heartbeat that changes nothing else.
    pub fn heartbeat_request(&self, alive: Duration) -> Heartbeat {
        let (session, alive_ms) = (self.session, millis(alive));
        Heartbeat {
            session,
            alive_ms,
            begin: None,
            acquired: Vec::new(),
            released: Vec::new(),
            renew_listing: true,
            activity: None,
        }
    }

    /// Begins its session, which lapses after `alive` without a heartbeat.
    pub async fn begin(&self, alive: Duration) {
        let begin = Some(self.metadata());
        let reply = self.heartbeat(Heartbeat { begin, ..self.heartbeat_request(alive) }).await;
        assert_eq!(reply, HeartbeatReply::Alive, "{:?} could not begin", self.session);
    }

    /// Sends a heartbeat.
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> HeartbeatReply {
        match self.execute_session(&SessionOp::Heartbeat(heartbeat)).await {
            SessionReply::Heartbeat(reply) => reply,
            other => panic!("a heartbeat was answered by {other:?}"),
        }
    }

    /// Ends its session.
    pub async fn end(&self) {
        let ended = self.execute_session(&SessionOp::End(self.session)).await;
        assert_eq!(ended, SessionReply::End);
    }

    /// The listed entry of a session.
    pub async fn session_entry(&self, session: SessionId) -> Option<SessionEntry> {
        match self.execute_session(&SessionOp::List).await {
            SessionReply::List(list) => {
                let mut found = list.entries.into_iter().filter(|entry| entry.session == session);
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
pub(super) fn owner_holds(granted: &Granted) -> OwnerHolds {
    granted.owner_holds.expect("a grant of a ReentrantMutex has its count")
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
