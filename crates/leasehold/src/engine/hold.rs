//! A hold: what this process holds at the store. Shared by its guard and the keeper.
//!
//! Also what a hold and its keeper report to the lock entry, and what they learn from it.

use super::activity::Actor;
use super::session::Session;
use crate::lost_reason::LostReason;
use crate::telemetry::{AcquireTrace, AcquiredTrace, HoldTrace, HowReleased};
use leasehold_core::{Claim, Extended, FencingToken, Lock, Moment, TokenBlock, Votes};
use leasehold_store::Environment;
use leasehold_store::sync::{AtomicBool, AtomicU64, OnceLock};
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Identifies a hold that the keeper tracks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TrackingId(pub(super) u64);

/// One hold.
pub(crate) struct Hold {
    pub(crate) lock: Lock,
    pub(crate) claim: Claim,
    pub(crate) fence: FencingToken,
    /// The token by which the store knows the hold. Differs from `fence` after a hand-off inside the process.
    pub(super) store_fence: FencingToken,
    pub(crate) session: Arc<Session>,
    entry: Weak<dyn HoldEvents>,
    /// Microseconds of the client's clock; zero once the hold is lost.
    valid_until: AtomicU64,
    /// Microseconds of the same clock: until when the store is known to keep the hold. The next holder of a hand-off
    /// starts from it.
    kept_until: AtomicU64,
    /// Set once its guard was released and the process keeps it for hand-off: a loss is not reported any more.
    idle: AtomicBool,
    /// Microseconds of the same clock: until when the store may keep the hold if every request was executed as late
    /// as its sender waits.
    may_last_until: AtomicU64,
    /// The lease that it is renewed with, in microseconds; zero until the keeper has it.
    lease: AtomicU64,
    /// How much longer the store keeps it than this client relies on it.
    margin: Duration,
    /// How many holds the history of the lock keeps when this one is released; 0 to leave the history as it is.
    history: u16,
    /// Set once it is known whether it is released, or left to expire at the store.
    is_released: OnceLock<bool>,
    /// The votes of the last extend over a quorum: the nodes that have it, and in the upper half all nodes. Zero if
    /// there was none.
    votes: AtomicU64,
    /// Set once only its cap ends it.
    capped: OnceLock<()>,
    lost: OnceLock<LostReason>,
    /// Created on first use.
    signal: OnceLock<CancellationToken>,
    /// The shared signal of a set of holds; set if this hold belongs to one. Distinct from the hold's own signal,
    /// which reports the loss of this hold and ends the query for its reason.
    shared: OnceLock<CancellationToken>,
    /// What is reported of it to observers.
    trace: HoldTrace,
    /// What holds it, as far as reports of waits are concerned. Set with the guard.
    actor: OnceLock<Actor>,
}

impl Hold {
    pub(super) fn new(
        lock: Lock,
        claim: Claim,
        fence: FencingToken,
        valid_until: Moment,
        session: Arc<Session>,
        entry: Weak<dyn HoldEvents>,
    ) -> Self {
        Self {
            lock,
            claim,
            fence,
            store_fence: fence,
            session,
            entry,
            valid_until: AtomicU64::new(valid_until.as_micros()),
            kept_until: AtomicU64::new(valid_until.as_micros()),
            idle: AtomicBool::new(false),
            may_last_until: AtomicU64::new(valid_until.as_micros()),
            lease: AtomicU64::new(0),
            margin: Duration::ZERO,
            history: 0,
            is_released: OnceLock::new(),
            votes: AtomicU64::new(0),
            capped: OnceLock::new(),
            lost: OnceLock::new(),
            signal: OnceLock::new(),
            shared: OnceLock::new(),
            trace: HoldTrace::default(),
            actor: OnceLock::new(),
        }
    }

    /// The same hold at the store for the next local holder, with a fencing token of its own. It counts for that
    /// holder only once the keeper says until when.
    pub(super) fn handed_off(&self, fence: FencingToken) -> Self {
        let next = Self::new(
            self.lock.clone(),
            self.claim.clone(),
            fence,
            self.valid_until(),
            self.session.clone(),
            self.entry.clone(),
        );
        next.may_last_until.store(self.may_last_until.load(Ordering::Acquire), Ordering::Release);
        next.votes.store(self.votes.load(Ordering::Acquire), Ordering::Release);
        next.kept_until.store(self.kept_until.load(Ordering::Acquire), Ordering::Release);
        Self { store_fence: self.store_fence, margin: self.margin, history: self.history, ..next }
    }

    /// The same hold, which the store keeps for longer than this client relies on it.
    pub(super) fn with_margin(self, margin: Duration) -> Self {
        Self { margin, ..self }
    }

    /// The same hold, which is added to the history of its lock when it is released.
    pub(super) fn with_history(self, history: u16) -> Self {
        Self { history, ..self }
    }

    /// How many holds the history of the lock keeps when this one is released; 0 to leave the history as it is.
    pub(crate) fn history(&self) -> u16 {
        self.history
    }

    /// How much longer the store keeps it than this client relies on it.
    pub(super) fn margin(&self) -> Duration {
        self.margin
    }

    /// The lease to request at the store, so that this client may rely on the hold for `lease`.
    pub(crate) fn store_lease(&self, lease: Duration) -> Duration {
        lease + self.margin
    }

    /// Whether the hold may be released at the store. The answer of the first call is final, since a release may be repeated.
    /// A hold with a margin that has ended before it was released is left to expire: what its holder has begun may still go
    /// on, and a release would grant the lock to another client before the margin is over.
    pub(super) fn may_release(&self, now: Moment) -> bool {
        self.margin.is_zero() || *self.is_released.get_or_init(|| now < self.valid_until())
    }

    /// Sets what holds it. The first call is final.
    pub(crate) fn set_actor(&self, actor: Actor) {
        // Has no effect if it was set before.
        let _ = self.actor.set(actor);
    }

    /// What holds it; `None` before there is a guard.
    pub(super) fn actor(&self) -> Option<&Actor> {
        self.actor.get()
    }

    /// Marks it as idle: its guard was released, and the process keeps it for hand-off.
    pub(super) fn set_idle(&self) {
        self.idle.store(true, Ordering::Release);
    }

    /// Whether it is idle.
    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    /// Until when the store keeps it, for the next holder of a hand-off.
    pub(super) fn kept_until(&self) -> Moment {
        Moment::from_micros(self.kept_until.load(Ordering::Acquire)).min(self.session.alive_until())
    }

    /// Its lock entry, if that still exists.
    pub(super) fn entry(&self) -> Option<Arc<dyn HoldEvents>> {
        self.entry.upgrade()
    }

    /// Until when the hold is valid; [`Moment::ZERO`] once it is lost.
    pub(crate) fn valid_until(&self) -> Moment {
        self.leased_until().min(self.session.alive_until())
    }

    /// The same, by its own lease alone.
    fn leased_until(&self) -> Moment {
        Moment::from_micros(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether the hold is valid now. Reads the clock each time: timers miss a suspend.
    pub(crate) fn check(&self, environment: &dyn Environment) -> Result<(), LostReason> {
        let now = environment.now();
        if now < self.valid_until() { Ok(()) } else { Err(self.reason(now)) }
    }

    /// Why it was lost, as far as known.
    pub(crate) fn reason(&self, now: Moment) -> LostReason {
        let by_itself = if now < self.leased_until() {
            LostReason::SessionLapsed
        } else if self.is_capped() {
            LostReason::Capped
        } else {
            LostReason::Expired
        };
        self.lost.get().cloned().unwrap_or(by_itself)
    }

    /// Whether no renewal extends it any more, because of its cap.
    pub(crate) fn is_capped(&self) -> bool {
        self.capped.get().is_some()
    }

    /// Whether its cap is what ends it: not its session, which heartbeats keep alive, and not a loss that was reported.
    pub(crate) fn ends_at_cap(&self) -> bool {
        let is_lost_otherwise = self.lost.get().is_some_and(|reason| *reason != LostReason::Capped);
        self.is_capped() && !is_lost_otherwise && self.leased_until() <= self.session.alive_until()
    }

    /// Why it was lost, if that has been reported.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.lost.get().cloned()
    }

    /// From now on only its cap ends it.
    pub(super) fn set_capped(&self) {
        // Has no effect if it was set before.
        let _ = self.capped.set(());
    }

    /// Whether it was found to be gone.
    pub(crate) fn is_invalid(&self) -> bool {
        self.leased_until() == Moment::ZERO
    }

    /// The store has extended it.
    pub(in crate::engine) fn extend_validity(&self, valid_until: Moment) {
        let raised = |old| (old != 0 && old < valid_until.as_micros()).then_some(valid_until.as_micros());
        // A refusal means that it is lost or lasts longer already.
        let _ = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }

    /// The store keeps it until then.
    pub(in crate::engine) fn set_kept_until(&self, kept_until: Moment) {
        self.kept_until.fetch_max(kept_until.as_micros(), Ordering::AcqRel);
    }

    /// About to be extended: the store may keep it until then, whatever it replies.
    pub(crate) fn may_last(&self, until: Moment) {
        self.may_last_until.fetch_max(until.as_micros(), Ordering::AcqRel);
    }

    /// Until when the store may keep it.
    pub(super) fn may_last_until(&self) -> Moment {
        Moment::from_micros(self.may_last_until.load(Ordering::Acquire))
    }

    /// Sets the lease that it is renewed with.
    pub(crate) fn set_lease(&self, lease: Duration) {
        self.lease.store(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The lease that it is renewed with; zero if not yet known.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_micros(self.lease.load(Ordering::Acquire))
    }

    /// Records the votes of an extend over a quorum.
    pub(crate) fn handle_votes(&self, extended: Extended) {
        let Extended::Voted(votes) = extended else { return };
        let old = self.votes.swap(u64::from(votes.nodes) << 32 | u64::from(votes.held), Ordering::AcqRel);
        let is_bare = |votes: Votes| votes.margin() <= 1;
        if is_bare(votes) && !unpack(old).is_some_and(is_bare) {
            tracing::debug!(
                lock = %self.lock, fence = %self.fence, %votes,
                "held by a bare majority: it is lost with the next node that forgets it"
            );
        }
    }

    /// The votes of the last extend over a quorum.
    pub(crate) fn votes(&self) -> Option<Votes> {
        unpack(self.votes.load(Ordering::Acquire))
    }

    /// Limits its validity, unless it is extended.
    pub(crate) fn limit_validity(&self, until: Moment) {
        self.valid_until.fetch_min(until.as_micros(), Ordering::AcqRel);
    }

    /// Invalidates it now. The reason may follow.
    pub(crate) fn invalidate(&self) {
        self.valid_until.store(0, Ordering::Release);
    }

    /// Marks it as lost and signals the loss.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.invalidate();
        if self.is_idle() {
            // Its last guard was released, so there is no holder to inform. Queued tasks send their own requests.
            if let Some(entry) = self.entry.upgrade() {
                entry.remove_hold(self);
            }
            return;
        }
        let asked_for = reason == LostReason::ShutDown;
        if self.lost.set(reason).is_ok()
            && let Some(reason) = self.lost.get()
        {
            if asked_for {
                tracing::debug!(lock = %self.lock, fence = %self.fence, "lock released by a shutdown");
            } else {
                tracing::warn!(lock = %self.lock, fence = %self.fence, %reason, "lock lost");
            }
        }
        // A task that awaits the signal creates it first and checks for the loss then. With a weaker ordering on
        // either side each could miss the other's write, and the signal would never fire.
        fence(Ordering::SeqCst);
        for signal in [&self.signal, &self.shared].into_iter().filter_map(OnceLock::get) {
            signal.cancel();
        }
        if let Some(entry) = self.entry.upgrade() {
            entry.remove_hold(self);
        }
        if let Some(reason) = self.lost.get() {
            self.trace.lost(&self.lock, self.fence, reason);
        }
    }

    /// Reports that a guard has it, after an acquire.
    pub(crate) fn report_acquired(&self, acquire: AcquireTrace<'_>) {
        let is_local = self.fence != self.store_fence;
        acquire.acquired(AcquiredTrace { trace: &self.trace, fence: self.fence, is_local }, || self.loss());
    }

    /// Reports that its guard was released or dropped.
    pub(crate) fn report_released(&self, how: HowReleased) {
        self.trace.released(&self.lock, self.fence, how);
    }

    /// Reports a loss that was found when its guard ended.
    pub(crate) fn report_lost(&self, reason: &LostReason) {
        self.trace.lost(&self.lock, self.fence, reason);
    }

    /// Reports that it was extended when `slack` of it was left.
    pub(crate) fn report_renewed(&self, slack: Duration) {
        self.trace.renewed(&self.lock, self.fence, slack);
    }

    /// Reports that a request to extend it has failed, and so much of it is left.
    pub(super) fn report_renewal_failed(&self, remaining: Duration) {
        self.trace.renewal_failed(&self.lock, self.fence, remaining);
    }

    /// Also fires the signal of a set of holds when this one is lost. A hold belongs to at most one set.
    pub(crate) fn share_signal(&self, signal: &CancellationToken) {
        let signal = self.shared.get_or_init(|| signal.clone());
        fence(Ordering::SeqCst);
        if self.lost.get().is_some() {
            signal.cancel();
        }
    }

    /// The signal that fires when the hold is lost.
    pub(crate) fn signal(&self) -> &CancellationToken {
        let signal = self.signal.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if self.lost.get().is_some() {
            signal.cancel();
        }
        signal
    }
}

/// The votes that an atomic number stands for.
fn unpack(votes: u64) -> Option<Votes> {
    let part = |shift: u32| u32::try_from((votes >> shift) & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (votes != 0).then(|| Votes { held: part(0), nodes: part(32) })
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("lock", &self.lock).field("fence", &self.fence).finish_non_exhaustive()
    }
}

/// A request for a hold that is handed off: it reserves fencing tokens and reports whether other clients wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReserveRequest {
    /// The lease that the next holder needs at least, if the hold must be extended as well.
    pub(super) lease: Option<Duration>,
    /// Set to be notified when another process wants the lock.
    pub(super) notify_wanted: bool,
}

/// What the keeper does after the reply to a [`ReserveRequest`].
pub(super) enum AfterReserve {
    /// Nothing: the holder or the queue continues.
    Nothing,
    /// Send this request to the store.
    Request(ReserveRequest),
    /// Returns the hold to the store.
    Release,
}

/// The result of checking the lock entry of an idle hold.
pub(super) enum IdleCheck {
    /// It has a holder, or is about to.
    InUse,
    /// It is kept until then.
    Until(Moment),
    /// It must be returned to the store.
    Over,
}

/// What a hold, and its keeper, report to the lock entry that the hold occupies.
pub(super) trait HoldEvents: Send + Sync {
    /// The hold is over: it does not occupy the entry any more.
    fn remove_hold(&self, hold: &Hold);

    /// Handles the store's reply to a reserve request. With an empty queue the hold may have to be returned. Another
    /// request is due if this one did not subscribe to notifications of other waiters, and the hold is to be kept by
    /// now.
    fn handle_reserved(
        &self,
        hold: &Hold,
        reserved: Option<(TokenBlock, bool)>,
        subscribed: bool,
        sent_at: Moment,
    ) -> AfterReserve;

    /// Handles a notification that another process wants the lock. Returns whether the hold must be returned: the
    /// queue is empty, and the hold is idle.
    fn handle_wanted(&self, hold: &Hold, now: Moment) -> bool;

    /// Checks whether the idle time of a hold is over.
    fn check_idle(&self, now: Moment) -> IdleCheck;
}

#[cfg(test)]
mod tests {
    use super::super::NEVER;
    use super::*;
    use leasehold_core::{HoldId, Liveness, SessionId};

    fn hold() -> Hold {
        let session = SessionId::from_random([1; 12]);
        let claim = Claim { hold: HoldId::from_random(session, [2; 16]), value: None };
        let lock = Lock::mutex("job".parse().expect("a good name"));
        let session =
            Arc::new(Session::new(leasehold_core::Partition::ONLY, session, Liveness::Lease, NEVER));
        Hold::new(lock, claim, FencingToken::new(1), NEVER, session, Weak::<crate::engine::LockEntry>::new())
    }

    /// The query for the reason listens to the hold's own signal before the hold joins a set.
    #[test]
    fn a_hold_with_a_listener_fires_the_signal_of_its_set_as_well() {
        let (hold, shared) = (hold(), CancellationToken::new());
        let own = hold.signal().clone();
        hold.share_signal(&shared);
        assert!(!shared.is_cancelled());
        hold.lose(LostReason::ForceReleased);
        assert!(own.is_cancelled() && shared.is_cancelled());
    }

    #[test]
    fn a_hold_that_is_lost_already_gives_the_signal_of_several_at_once() {
        let (hold, shared) = (hold(), CancellationToken::new());
        hold.lose(LostReason::ForceReleased);
        hold.share_signal(&shared);
        assert!(shared.is_cancelled());
    }

    /// Otherwise the query for another hold's reason would stop early and report a wrong reason.
    #[test]
    fn the_signal_of_several_is_not_that_of_each() {
        let (one, other, shared) = (hold(), hold(), CancellationToken::new());
        one.share_signal(&shared);
        other.share_signal(&shared);
        one.lose(LostReason::ForceReleased);
        assert!(shared.is_cancelled() && !other.signal().is_cancelled());
    }
}
