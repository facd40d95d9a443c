//! Detached holds: got by the engine's one way of waiting, and kept by nobody afterwards.
//!
//! 1. A detached hold has a session of its own, never the client's: it shall outlive the client. Its mailbox is closed
//!    before the hold is lengthened, so that the store that answers the extend knows of no life on which the hold would
//!    depend.
//! 2. Until it is lengthened to the lease that was asked for, it is given back wherever its future ends.
//! 3. What a client was told to release it never keeps, and what it keeps it keeps once: two guards of one hold would
//!    end each other's. A hold is remembered for this as long as a store may have it.

use super::loss::explain;
use super::session::{Mailbox, Session, fresh_id};
use super::{
    Answer, Engine, FAR, Hold, LostReason, Missed, NotReleased, Pursuit, Seat, Seats, Uncertain, Won,
    acquire, confirm, read_release,
};
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::contend::Grant;
use leasehold_core::{
    Claim, Executed, Extend, Extended, FencingToken, HoldId, Lease, LeaseError, Life, Lock, Moment, Op, Pass,
    Release, Reply, SessionId, drift, whole_millis,
};
use leasehold_store::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A hold that is kept by nobody.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) claim: Claim,
    pub(crate) fence: FencingToken,
    pub(crate) lease: Duration,
    /// Until when it may be believed: counted from before its lease was asked for.
    pub(crate) valid_until: Moment,
}

/// Why there is no detached hold.
#[derive(Debug)]
pub(crate) enum NotDetached {
    /// Nobody has said when it should end.
    NoLease,
    /// The lock was not had.
    Missed(Missed),
    /// It was had, but its lease cannot be: the instant at which it should end has passed.
    Lease(LeaseError),
    /// It was had, and not lengthened.
    NotKept { fence: FencingToken, why: NotExtended },
}

/// Why a hold was not lengthened.
#[derive(Debug)]
pub(crate) enum NotExtended {
    /// It is not there any more.
    Lost(LostReason),
    /// The store did not answer, or refused.
    Fault(Fault),
}

/// A session of its own for a hold that nobody keeps: it is known to no store, and its absence means nothing (1).
pub(crate) fn own_session(engine: &Engine, lock: &Lock) -> Arc<Session> {
    Arc::new(Session::new(engine.store.place(lock), fresh_id(&*engine.world), Life::Lease, FAR))
}

/// Acquires a lock for nobody in particular, as a session of its own (1).
pub(crate) async fn acquire_detached(
    engine: &Engine,
    lock: &Lock,
    session: SessionId,
    mut pursuit: Pursuit,
    lease: Lease,
) -> Result<Detached, NotDetached> {
    let seats = Arc::new(Seats::new(engine.world.clone()));
    let place = engine.store.place(lock);
    let seat = seats.seat(lock, place, session);
    engine.seats.receive(&seat);
    // Who does not queue is sent nothing.
    let mailbox = if pursuit.terms.queue {
        let mailbox = Mailbox { store: &*engine.store, place, session };
        open(engine, &mailbox, seats, &mut pursuit).await.map_err(NotDetached::Missed)?;
        Some(mailbox)
    } else {
        None
    };
    let Won { hold, grant, inside, kept: _ } =
        acquire(engine, &seat, &pursuit).await.map_err(NotDetached::Missed)?;
    let mut unkept = Unkept { engine, hold, kept: false };
    drop(inside);
    drop(mailbox);
    let kept = engine.unless_shut(unkept.keep(&grant, lease, pursuit.limit)).await;
    // A shutdown has found the hold in the seat, and has given it back.
    kept.unwrap_or(Err(NotDetached::Missed(Missed::Closed)))
}

/// Opens the mailbox of a pursuit. While that fails for a reason that may pass, one looks for oneself.
async fn open(
    engine: &Engine,
    mailbox: &Mailbox<'_>,
    seats: Arc<Seats>,
    pursuit: &mut Pursuit,
) -> Result<(), Missed> {
    let now = engine.world.now();
    let call = engine.timings.call;
    let within = pursuit.limit.map_or(call, |limit| limit.since(now).min(call));
    let Err(fault) = engine.store.open_mailbox(mailbox.place, mailbox.session, seats, within).await else {
        return Ok(());
    };
    let over = pursuit.limit.is_some_and(|limit| limit <= engine.world.now());
    if over || !fault.is_transient() {
        return Err(Missed::Fault { fault, executed: Executed::No });
    }
    Arc::make_mut(&mut pursuit.terms).look_often = true;
    Ok(())
}

/// A hold that was granted and is not yet what was asked for (2).
struct Unkept<'a> {
    engine: &'a Engine,
    hold: Arc<Hold>,
    /// Set once it is the caller's, or known to be gone.
    kept: bool,
}

impl Unkept<'_> {
    async fn keep(
        &mut self,
        grant: &Grant,
        lease: Lease,
        limit: Option<Moment>,
    ) -> Result<Detached, NotDetached> {
        let Self { engine, hold, .. } = self;
        let lease = lease.remaining(engine.world.wall()).map_err(NotDetached::Lease)?;
        let now = engine.world.now();
        let within = engine.timings.call.min(grant.valid_until.since(now));
        hold.may_last(now + within + lease);
        match extend(engine, &hold.lock, &hold.claim, lease, within).await {
            Ok(valid_until) if valid_until > engine.world.now() => {
                // Nobody renews it meanwhile.
                let limit = limit.map_or(valid_until, |limit| limit.min(valid_until));
                confirm(engine, hold, Some(limit)).await.map_err(NotDetached::Missed)?;
                if valid_until <= engine.world.now() {
                    return Err(NotDetached::Missed(Missed::TooSlow));
                }
                self.kept = true;
                let (claim, fence) = (self.hold.claim.clone(), self.hold.fence);
                Ok(Detached { claim, fence, lease, valid_until })
            }
            Ok(_) => Err(NotDetached::Missed(Missed::TooSlow)),
            Err(Unextended::NotHeld) => {
                let in_time = engine.world.now() < grant.valid_until;
                self.kept = true;
                let reason = why(self.engine, &self.hold.lock, &self.hold.claim, in_time).await;
                Err(NotDetached::NotKept { fence: self.hold.fence, why: NotExtended::Lost(reason) })
            }
            Err(Unextended::Fault(fault)) => {
                Err(NotDetached::NotKept { fence: self.hold.fence, why: NotExtended::Fault(fault) })
            }
        }
    }
}

impl Drop for Unkept<'_> {
    fn drop(&mut self) {
        let _inside = self.engine.gate.inside();
        if !self.kept {
            self.engine.keeper.give_back(&self.hold);
        }
    }
}

/// Asks the store about a hold that no shutdown gives back: a client that was shut down asks nothing any more.
async fn ask(engine: &Engine, lock: &Lock, op: &Op, within: Duration) -> Result<Answer<Reply>, Uncertain> {
    let reply = engine.unless_shut(engine.ask(lock, op, within)).await;
    reply.unwrap_or_else(|| {
        let text = "this client was shut down: another one can release the hold".to_owned();
        let fault = Fault::new(FaultKind::Unusable(text), Phase::Send, "the client");
        Err(Uncertain { fault, executed: Executed::Unknown })
    })
}

/// Why an extend did nothing.
enum Unextended {
    NotHeld,
    Fault(Fault),
}

/// Lengthens a hold, and says until when it may be believed: counted from the sending.
async fn extend(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    lease: Duration,
    within: Duration,
) -> Result<Moment, Unextended> {
    let sent_at = engine.world.now();
    // Nobody remembers when the record was last kept, and nobody will renew it: each extend looks after it.
    let op = Op::Extend(Extend {
        claim: claim.clone(),
        lease_ms: whole_millis(lease),
        keep_record: true,
        reserve: None,
    });
    match ask(engine, lock, &op, within).await.map(|answer| answer.reply) {
        Ok(Reply::Extend(Extended::Extended)) => Ok(sent_at + lease - drift(lease)),
        Ok(Reply::Extend(Extended::NotHeld)) => Err(Unextended::NotHeld),
        Ok(odd) => Err(Unextended::Fault(Fault::odd_reply(odd))),
        Err(failed) => Err(Unextended::Fault(failed.fault)),
    }
}

async fn why(engine: &Engine, lock: &Lock, claim: &Claim, in_time: bool) -> LostReason {
    explain(&*engine.store, &*engine.world, engine.timings, lock, claim, in_time).await
}

/// Lengthens a detached hold. `in_time` says whether its lease had not ended, as far as its holder can tell.
pub(crate) async fn extend_detached(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    lease: Duration,
    in_time: bool,
) -> Result<(), NotExtended> {
    match extend(engine, lock, claim, lease, engine.timings.call).await {
        Ok(_) => Ok(()),
        Err(Unextended::NotHeld) => Err(NotExtended::Lost(why(engine, lock, claim, in_time).await)),
        Err(Unextended::Fault(fault)) => Err(NotExtended::Fault(fault)),
    }
}

/// Releases a detached hold. From the first poll on this client keeps it no more (3). `pass` is what becomes of the lock, and
/// `may_last` how long the store may have the hold.
pub(crate) async fn release_detached(
    engine: &Engine,
    lock: &Lock,
    claim: &Claim,
    pass: Pass,
    in_time: bool,
    may_last: Duration,
) -> Result<(), NotReleased> {
    let now = engine.world.now();
    let attached = engine.attached.spend(claim.hold, now + may_last + engine.timings.call, now);
    let op = Op::Release(Release { claim: claim.clone(), pass, next: None });
    match ask(engine, lock, &op, engine.timings.call).await {
        Ok(Answer { reply: Reply::Release(released), unanswered }) => {
            if !attached {
                // The store will say so to whoever would attach it, and nobody is about to.
                engine.attached.forget(claim.hold);
            }
            read_release(released, in_time, unanswered).map(drop)
        }
        Ok(odd) => {
            Err(NotReleased::Fault { fault: Fault::odd_reply(odd.reply), executed: Executed::Unknown })
        }
        Err(Uncertain { fault, executed }) => Err(NotReleased::Fault { fault, executed }),
    }
}

/// Why a hold cannot be kept by a client.
#[derive(Debug)]
pub(crate) enum NotAttached {
    /// The client keeps it already, or has.
    Already,
    /// It was not lengthened.
    NotExtended(NotExtended),
}

/// Lengthens a detached hold for `lease`, and makes it this process's own, for the keeper to take over.
pub(crate) async fn attach(
    engine: &Engine,
    lock: &Lock,
    detached: (Claim, FencingToken),
    lease: Duration,
    in_time: bool,
    may_last: Duration,
) -> Result<(Arc<Seat>, Arc<Hold>), NotAttached> {
    let (claim, fence) = detached;
    let reserved = engine.attached.reserve(claim.hold, engine.world.now()).ok_or(NotAttached::Already)?;
    let within = engine.timings.call.min(lease);
    let may_last_until = engine.world.now() + (within + lease).max(may_last);
    match extend(engine, lock, &claim, lease, within).await {
        Ok(valid_until) => {
            let seat = if lock.kind.is_shared() { engine.own_seat(lock) } else { engine.seat(lock) };
            // It lives by its lease alone, also where the client that keeps it has a session.
            let session = Arc::new(Session::new(seat.place, claim.hold.session(), Life::Lease, FAR));
            let entry = Arc::downgrade(&seat);
            let hold = Arc::new(Hold::new(lock.clone(), claim, fence, valid_until, session, entry));
            hold.may_last(may_last_until);
            // It was released by another copy of it while it was lengthened.
            let released = || NotAttached::NotExtended(NotExtended::Lost(LostReason::Released));
            reserved.fill(&hold).ok_or_else(released)?;
            seat.occupy(&hold);
            Ok((seat, hold))
        }
        Err(Unextended::NotHeld) => {
            let reason = why(engine, lock, &claim, in_time).await;
            Err(NotAttached::NotExtended(NotExtended::Lost(reason)))
        }
        Err(Unextended::Fault(fault)) => Err(NotAttached::NotExtended(NotExtended::Fault(fault))),
    }
}

/// The detached holds that a client has to do with (3).
#[derive(Default)]
pub(super) struct Attached {
    holds: Mutex<HashMap<HoldId, Use>>,
}

/// What a client does with a detached hold.
enum Use {
    /// It is about to keep it.
    Reserved,
    /// It keeps it, or has kept it, and may be giving it back: known until the store has it for certain no more.
    Kept(Arc<Hold>),
    /// It was told to release it; the store may have it until then.
    Released(Moment),
}

impl Use {
    /// Whether nothing can be sent about the hold any more that would matter to the store.
    fn is_over(&self, now: Moment) -> bool {
        match self {
            Self::Reserved => false,
            // Ours is the last hand on it: neither a guard nor the keeper has it.
            Self::Kept(hold) => Arc::strong_count(hold) == 1 && hold.may_last_until() < now,
            Self::Released(until) => *until < now,
        }
    }
}

impl Attached {
    fn holds(&self, now: Option<Moment>) -> MutexGuard<'_, HashMap<HoldId, Use>> {
        // Nothing in here panics while it has the table.
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

    /// A hold is about to be released by itself: whoever keeps it here believes in it no more. Says whether anybody
    /// here has had to do with it before.
    fn spend(&self, hold: HoldId, until: Moment, now: Moment) -> bool {
        let mut holds = self.holds(Some(now));
        let before = holds.remove(&hold);
        let until = match &before {
            Some(Use::Kept(kept)) => until.max(kept.may_last_until()),
            Some(Use::Released(earlier)) => until.max(*earlier),
            Some(Use::Reserved) | None => until,
        };
        holds.insert(hold, Use::Released(until));
        drop(holds);
        if let Some(Use::Kept(kept)) = &before {
            kept.lose(LostReason::Released);
        }
        before.is_some()
    }

    /// A hold that was released is known to be over.
    fn forget(&self, hold: HoldId) {
        self.holds(None).remove(&hold);
    }
}

/// The right to keep a hold, which is given up unless it is used.
struct Reserved<'a> {
    attached: &'a Attached,
    hold: HoldId,
}

impl Reserved<'_> {
    /// Uses it, if nobody has released the hold meanwhile.
    fn fill(self, hold: &Arc<Hold>) -> Option<()> {
        let mut holds = self.attached.holds(None);
        let used = holds.get_mut(&self.hold).filter(|used| matches!(used, Use::Reserved))?;
        *used = Use::Kept(hold.clone());
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
