//! Detached holds: acquired like all others, then tracked by no keeper.
//!
//! 1. A detached hold has a session of its own, never the client's, because it outlives the client. Its mailbox is
//!    closed before the hold is extended, so that the store that executes the extend knows of no session on which the
//!    hold would depend.
//! 2. Until it is extended to the requested lease, it is released wherever its future ends.
//! 3. A client never attaches a hold whose release the user has requested, and attaches each at most once: two guards of one
//!    hold would release each other's. It remembers a hold for this as long as a store may keep it.

use super::loss::query_loss_reason;
use super::session::{Mailbox, PartitionSink, Session, fresh_id};
use super::{
    AcquireFailure, AcquireParams, AcquiredHold, Answer, CallFailure, Engine, Hold, LockEntry, LockTable,
    LostReason, NEVER, NotReleased, acquire, confirm, read_release, unexpected_reply,
};
use crate::store::{Fault, FaultKind, Phase};
use crate::telemetry::AcquireTrace;
use leasehold_core::machine::contender::Grant;
use leasehold_core::{
    Claim, Ended, Executed, Extend, Extended, FencingToken, HoldId, HoldStatus, Inspect, Lease, LeaseError,
    Liveness, Lock, Moment, Op, Reply, SessionId, drift, whole_millis,
};
use leasehold_store::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A hold without a keeper.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) claim: Claim,
    pub(crate) fence: FencingToken,
    pub(crate) lease: Duration,
    /// How much longer the store keeps it.
    pub(crate) margin: Duration,
    /// Until when it is valid: counted from before its lease was requested.
    pub(crate) valid_until: Moment,
}

/// Why there is no detached hold.
#[derive(Debug)]
pub(crate) enum NotDetached {
    /// No lease was given.
    NoLease,
    /// The lock was not acquired.
    AcquireFailure(AcquireFailure),
    /// It was acquired, but the requested lease ends at an instant that has passed.
    Lease(LeaseError),
    /// It was acquired, but not extended.
    NotKept { fence: FencingToken, why: NotExtended },
}

/// Why a hold was not extended.
#[derive(Debug)]
pub(crate) enum NotExtended {
    /// It is gone.
    Lost(LostReason),
    /// The store did not answer, or refused.
    Fault(Fault),
}

/// A session for one detached hold. No store tracks it, and its absence means nothing (1).
pub(crate) fn detached_session(engine: &Engine, lock: &Lock) -> Arc<Session> {
    Arc::new(Session::new(
        engine.store.partition(lock),
        fresh_id(&*engine.environment),
        Liveness::Lease,
        NEVER,
    ))
}

/// Acquires a lock under a session of its own (1).
pub(crate) async fn acquire_detached(
    engine: &Engine,
    lock: &Lock,
    session: SessionId,
    mut params: AcquireParams,
    lease: Lease,
    trace: &AcquireTrace<'_>,
) -> Result<Detached, NotDetached> {
    let locks = Arc::new(LockTable::new(engine.environment.clone()));
    let partition = engine.store.partition(lock);
    let entry = locks.entry(lock, partition, session);
    engine.locks.add_detached(&entry);
    // A client that does not queue receives no messages.
    let mailbox = if params.terms.queue {
        let mailbox = Mailbox { store: &*engine.store, partition, session };
        open(engine, &mailbox, locks, &mut params).await.map_err(NotDetached::AcquireFailure)?;
        Some(mailbox)
    } else {
        None
    };
    let AcquiredHold { hold, grant, permit, tracking: _ } =
        acquire(engine, &entry, &params, trace).await.map_err(NotDetached::AcquireFailure)?;
    let mut unextended = UnextendedHold { engine, hold, done: false };
    drop(permit);
    drop(mailbox);
    let detached = engine.unless_shut(unextended.extend(&grant, lease, params.limit)).await;
    // Otherwise a shutdown found the hold in the lock entry and released it.
    detached.unwrap_or(Err(NotDetached::AcquireFailure(AcquireFailure::Closed)))
}

/// Opens the mailbox of an acquisition. If that fails for a transient reason, the waiter polls instead.
async fn open(
    engine: &Engine,
    mailbox: &Mailbox<'_>,
    locks: Arc<LockTable>,
    params: &mut AcquireParams,
) -> Result<(), AcquireFailure> {
    let now = engine.environment.now();
    let call = engine.timings.call;
    let within = params.limit.map_or(call, |limit| limit.since(now).min(call));
    let Mailbox { partition, session, .. } = *mailbox;
    let sink = Arc::new(PartitionSink { events: locks, partition });
    let Err(fault) = engine.store.open_mailbox(partition, session, sink, within).await else {
        return Ok(());
    };
    let over = params.limit.is_some_and(|limit| limit <= engine.environment.now());
    if over || !fault.is_transient() {
        return Err(AcquireFailure::Fault { fault, executed: Executed::No });
    }
    Arc::make_mut(&mut params.terms).poll_often = true;
    Ok(())
}

/// A granted hold that does not have the requested lease yet (2).
struct UnextendedHold<'a> {
    engine: &'a Engine,
    hold: Arc<Hold>,
    /// Set once it belongs to the caller, or is known to be lost.
    done: bool,
}

impl UnextendedHold<'_> {
    async fn extend(
        &mut self,
        grant: &Grant,
        lease: Lease,
        limit: Option<Moment>,
    ) -> Result<Detached, NotDetached> {
        let Self { engine, hold, .. } = self;
        let lease = lease.remaining(engine.environment.system_time()).map_err(NotDetached::Lease)?;
        let now = engine.environment.now();
        let within = engine.timings.call.min(grant.valid_until.since(now));
        hold.may_last(now + within + hold.store_lease(lease));
        match extend(engine, &hold.lock, &hold.claim, (lease, hold.margin()), within).await {
            Ok(valid_until) if valid_until > engine.environment.now() => {
                // No keeper renews it meanwhile.
                let limit = limit.map_or(valid_until, |limit| limit.min(valid_until));
                confirm(engine, hold, Some(limit)).await.map_err(NotDetached::AcquireFailure)?;
                if valid_until <= engine.environment.now() {
                    return Err(NotDetached::AcquireFailure(AcquireFailure::LeaseTooShort));
                }
                self.done = true;
                let (claim, fence) = (self.hold.claim.clone(), self.hold.fence);
                Ok(Detached { claim, fence, lease, margin: self.hold.margin(), valid_until })
            }
            Ok(_) => Err(NotDetached::AcquireFailure(AcquireFailure::LeaseTooShort)),
            Err(ExtendFailure::NotHeld) => {
                let in_time = engine.environment.now() < grant.valid_until;
                self.done = true;
                let reason = loss_reason(self.engine, &self.hold.lock, &self.hold.claim, in_time).await;
                Err(NotDetached::NotKept { fence: self.hold.fence, why: NotExtended::Lost(reason) })
            }
            // As if the hold itself had not been confirmed.
            Err(ExtendFailure::Fault(fault)) if fault.is_unconfirmed() => {
                let executed = Executed::Unknown;
                Err(NotDetached::AcquireFailure(AcquireFailure::Fault { fault, executed }))
            }
            Err(ExtendFailure::Fault(fault)) => {
                Err(NotDetached::NotKept { fence: self.hold.fence, why: NotExtended::Fault(fault) })
            }
        }
    }
}

impl Drop for UnextendedHold<'_> {
    fn drop(&mut self) {
        let _permit = self.engine.gate.permit();
        if !self.done {
            self.engine.keeper.release(&self.hold);
        }
    }
}

/// Sends a request about a hold that no shutdown releases. A client that was shut down sends nothing more.
async fn request(
    engine: &Engine,
    lock: &Lock,
    op: &Op,
    within: Duration,
) -> Result<Answer<Reply>, CallFailure> {
    let reply = engine.unless_shut(engine.request(lock, op, within)).await;
    reply.unwrap_or_else(|| {
        let text = "this client was shut down; use another client to release the hold".to_owned();
        let fault = Fault::new(FaultKind::Unusable(text), Phase::Send, "the client");
        Err(CallFailure { fault, executed: Executed::Unknown })
    })
}

/// Why an extend did nothing.
enum ExtendFailure {
    NotHeld,
    Fault(Fault),
}

/// Extends a hold, which the store keeps for the margin longer, and returns until when it is valid: counted from the sending.
async fn extend(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    (lease, margin): (Duration, Duration),
    within: Duration,
) -> Result<Moment, ExtendFailure> {
    let sent_at = engine.environment.now();
    // It is not known when the record was last renewed, and no keeper renews it: each extend does.
    let op = Op::Extend(Extend {
        claim: claim.clone(),
        lease_ms: whole_millis(lease + margin),
        keep_record: true,
        reserve: None,
        fence: None,
    });
    match request(engine, lock, &op, within).await.map(|answer| answer.reply) {
        Ok(Reply::Extend(Extended::Extended | Extended::Voted(_))) => Ok(sent_at + lease - drift(lease)),
        Ok(Reply::Extend(Extended::NotHeld)) => Err(ExtendFailure::NotHeld),
        Ok(other) => Err(ExtendFailure::Fault(Fault::unexpected_reply(other))),
        Err(failed) => Err(ExtendFailure::Fault(failed.fault)),
    }
}

async fn loss_reason(engine: &Engine, lock: &Lock, claim: &Claim, in_time: bool) -> LostReason {
    let Engine { store, environment, telemetry, timings, .. } = engine;
    query_loss_reason(&**store, &**environment, telemetry, *timings, (lock, claim), in_time).await
}

/// Extends a detached hold by a lease and a margin. `in_time` is set if its lease had not ended, as far as its holder knows.
pub(crate) async fn extend_detached(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    lease: (Duration, Duration),
    in_time: bool,
) -> Result<(), NotExtended> {
    match extend(engine, lock, claim, lease, engine.timings.call).await {
        Ok(_) => Ok(()),
        Err(ExtendFailure::NotHeld) => {
            Err(NotExtended::Lost(loss_reason(engine, lock, claim, in_time).await))
        }
        Err(ExtendFailure::Fault(fault)) => Err(NotExtended::Fault(fault)),
    }
}

/// Releases a detached hold by this operation. From the first poll on this client does not attach it (3). `may_last` is how
/// long the store may keep the hold.
pub(crate) async fn release_detached(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    op: &Op,
    in_time: bool,
    may_last: Duration,
) -> Result<(), NotReleased> {
    let now = engine.environment.now();
    let earlier = engine.attached.spend(claim.hold, now + may_last + engine.timings.call, now);
    match request(engine, lock, op, engine.timings.call).await {
        Ok(Answer { reply: Reply::Release(released), unanswered }) => {
            if earlier != EarlierUse::Attached {
                // The store reports the release to later attempts to attach, and none is in flight here.
                engine.attached.forget(claim.hold);
            }
            // A release that repeats one without an answer may find the lock granted by that one.
            let is_repeated = unanswered.is_some() || earlier == EarlierUse::Unanswered;
            if released.status == HoldStatus::Ended(Ended::Released)
                && !is_repeated
                && let Some(reason) = taken_over_since(engine, lock, claim).await
            {
                return Err(NotReleased::Lost(reason));
            }
            read_release(released, in_time, unanswered).map(drop)
        }
        Ok(other) => {
            let (fault, executed) = unexpected_reply(other.reply);
            Err(NotReleased::Fault { fault, executed })
        }
        Err(CallFailure { fault, executed }) => Err(NotReleased::Fault { fault, executed }),
    }
}

/// The loss of a hold that was released before, if another client holds the lock by now, for another owner. A lock that several
/// can hold tells nothing of that.
async fn taken_over_since(engine: &Engine, lock: &Lock, claim: &Claim) -> Option<LostReason> {
    if lock.kind.is_shared() {
        return None;
    }
    let op = Op::Inspect(Inspect { claim: None, details: false });
    let reply = engine.unless_shut(engine.call(lock, &op, engine.timings.call)).await?;
    let Ok(Reply::Inspect(inspection)) = reply else { return None };
    let own = engine.sessions.id_at(engine.store.partition(lock));
    let holder = inspection.holder.filter(|holder| !holder.in_cooldown && holder.session != Some(own))?;
    // The owner of a ReentrantMutex may have other holds.
    if holder.owner.is_some() && holder.owner == claim.value {
        return None;
    }
    Some(LostReason::TakenOver { by: holder.label })
}

/// Why a hold cannot be attached.
#[derive(Debug)]
pub(crate) enum NotAttached {
    /// The client has attached or released it before.
    Already,
    /// It was not extended.
    NotExtended(NotExtended),
}

/// Extends a detached hold by `lease` and makes it this process's own, for the keeper to take over.
pub(crate) async fn attach(
    engine: &Engine,
    lock: &Lock,
    (claim, fence, margin): (Claim, FencingToken, Duration),
    lease: Duration,
    in_time: bool,
    may_last: Duration,
) -> Result<(Arc<LockEntry>, Arc<Hold>), NotAttached> {
    let reserved =
        engine.attached.reserve(claim.hold, engine.environment.now()).ok_or(NotAttached::Already)?;
    let within = engine.timings.call.min(lease);
    let may_last_until = engine.environment.now() + (within + lease + margin).max(may_last);
    match extend(engine, lock, &claim, (lease, margin), within).await {
        Ok(valid_until) => {
            let entry = if lock.kind.is_shared() { engine.own_entry(lock) } else { engine.entry(lock) };
            // It lives by its lease alone, even if the client that attaches it has a session.
            let session =
                Arc::new(Session::new(entry.partition, claim.hold.session(), Liveness::Lease, NEVER));
            let weak = Arc::downgrade(&entry);
            let hold = Hold::new(lock.clone(), claim, fence, valid_until, session, weak);
            let hold = Arc::new(hold.with_margin(margin));
            hold.may_last(may_last_until);
            // Another handle released it while it was extended.
            let released = || NotAttached::NotExtended(NotExtended::Lost(LostReason::Released));
            reserved.fill(&hold).ok_or_else(released)?;
            entry.attach(&hold);
            Ok((entry, hold))
        }
        Err(ExtendFailure::NotHeld) => {
            let reason = loss_reason(engine, lock, &claim, in_time).await;
            Err(NotAttached::NotExtended(NotExtended::Lost(reason)))
        }
        Err(ExtendFailure::Fault(fault)) => Err(NotAttached::NotExtended(NotExtended::Fault(fault))),
    }
}

/// The detached holds that a client has used (3).
#[derive(Default)]
pub(super) struct Attached {
    holds: Mutex<HashMap<HoldId, Use>>,
}

/// How a client has used a detached hold.
enum Use {
    /// About to be attached.
    Reserved,
    /// Attached, or attached earlier and possibly being released: remembered until the store has certainly dropped
    /// it.
    Attached(Arc<Hold>),
    /// Released by this client; the store may keep it until then. Forgotten once the store has answered.
    Released(Moment),
}

/// How a client has used a detached hold before its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EarlierUse {
    None,
    /// It has sent a release that was not answered.
    Unanswered,
    /// It has attached the hold, or was about to.
    Attached,
}

impl Use {
    /// Whether no request about the hold can matter to the store any more.
    fn is_over(&self, now: Moment) -> bool {
        match self {
            Self::Reserved => false,
            // This is the last reference: neither a guard nor the keeper holds it.
            Self::Attached(hold) => Arc::strong_count(hold) == 1 && hold.may_last_until() < now,
            Self::Released(until) => *until < now,
        }
    }
}

impl Attached {
    fn holds(&self, now: Option<Moment>) -> MutexGuard<'_, HashMap<HoldId, Use>> {
        // No code panics while it holds the table.
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            holds.retain(|_, used| !used.is_over(now));
        }
        holds
    }

    fn reserve(&self, hold: HoldId, now: Moment) -> Option<Reserved<'_>> {
        match self.holds(Some(now)).entry(hold) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => {
                free.insert(Use::Reserved);
                Some(Reserved { attached: self, hold })
            }
        }
    }

    /// A detached hold is about to be released directly: if it is attached here, it is lost.
    fn spend(&self, hold: HoldId, until: Moment, now: Moment) -> EarlierUse {
        let mut holds = self.holds(Some(now));
        let before = holds.remove(&hold);
        let until = match &before {
            Some(Use::Attached(attached)) => until.max(attached.may_last_until()),
            Some(Use::Released(earlier)) => until.max(*earlier),
            Some(Use::Reserved) | None => until,
        };
        holds.insert(hold, Use::Released(until));
        drop(holds);
        match before {
            None => EarlierUse::None,
            Some(Use::Released(_)) => EarlierUse::Unanswered,
            Some(Use::Reserved) => EarlierUse::Attached,
            Some(Use::Attached(attached)) => {
                attached.lose(LostReason::Released);
                EarlierUse::Attached
            }
        }
    }

    /// A released hold is known to be gone.
    fn forget(&self, hold: HoldId) {
        self.holds(None).remove(&hold);
    }
}

/// The right to attach a hold, given up on drop unless used.
struct Reserved<'a> {
    attached: &'a Attached,
    hold: HoldId,
}

impl Reserved<'_> {
    /// Uses it, unless the hold was released meanwhile.
    fn fill(self, hold: &Arc<Hold>) -> Option<()> {
        let mut holds = self.attached.holds(None);
        let used = holds.get_mut(&self.hold).filter(|used| matches!(used, Use::Reserved))?;
        *used = Use::Attached(hold.clone());
        Some(())
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(used) = self.attached.holds(None).entry(self.hold)
            && matches!(used.get(), Use::Reserved)
        {
            used.remove();
        }
    }
}
