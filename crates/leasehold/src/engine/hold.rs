//! A hold: what this process has at the store, as its guard and its keeper both see it.

use super::reservation::{Heard, Rest};
use super::session::Session;
use leasehold_core::cohort::Block;
use leasehold_core::{Claim, FencingToken, Label, Lock, Moment};
use leasehold_store::World;
use leasehold_store::sync::{AtomicBool, AtomicU64, OnceLock};
use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Why a hold was lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, LostReason};
/// use std::time::Duration;
///
/// let job = Client::connect("memory:").await?.mutex("job")?.lease(Duration::from_millis(20));
/// let guard = job.acquire().await?;
/// match guard.lost().await.reason {
///     LostReason::Expired => println!("the lease was too short"),
///     other => println!("somebody interfered: {other}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// Its lease ended, by this process's clock.
    Expired,
    /// Somebody else has the lock, or had it since: its lease ended, or its key was removed before that, or
    /// the store has lost its data.
    TakenOver {
        /// Who has it now, if that is known.
        by: Option<Label>,
    },
    /// Its key was removed before its lease ended: by hand, or by an eviction policy of the server.
    Removed,
    /// The store has lost its data: a restart without persistence, or a flush. Also where it takes a session for dead that
    /// has beaten in time: its record was removed, or the store's clock was set ahead.
    StoreLostData,
    /// Its process was taken for dead, and the lock was taken from it.
    Evicted,
    /// Somebody took the lock by force.
    Freed,
    /// Its session lapsed: the store could not be told in time that the process lives, or the process stood still. The
    /// lock may be another's by now, whatever is left of its lease.
    SessionLapsed,
    /// It had been released already.
    Released,
    /// It was held for as long as its cap allows, and was given back:
    /// [`Mutex::max_hold`](crate::Mutex::max_hold), [`Mutex::max_renewals`](crate::Mutex::max_renewals).
    Capped,
    /// Its client was shut down: [`Client::shutdown`](crate::Client::shutdown).
    ShutDown,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::TakenOver { by: Some(by) } if !by.as_str().is_empty() => {
                write!(f, "it was taken over by {by}")
            }
            Self::TakenOver { .. } => f.write_str("it was taken over"),
            Self::Removed => f.write_str("its key was removed before its lease ended"),
            Self::StoreLostData => f.write_str("the store has lost its data"),
            Self::Evicted => f.write_str("its process was taken for dead"),
            Self::Freed => f.write_str("it was taken by force"),
            Self::SessionLapsed => {
                f.write_str("its session lapsed: the store was not told in time that its process lives")
            }
            Self::Released => f.write_str("it was released already"),
            Self::ShutDown => f.write_str("its client was shut down"),
            Self::Capped => f.write_str("it was held for as long as its cap allows"),
        }
    }
}

/// What a hold, and its keeper, report to the seat that the hold occupies.
pub(super) trait HoldEvents: Send + Sync {
    /// The hold is over: it does not occupy the seat any more.
    fn vacate(&self, hold: &Hold);

    /// What the store has reserved for a hold, if it has. Where nobody stands in line the hold may be given back, as one that
    /// is not to be kept; or the store was asked for somebody who did not want it kept, and is asked again for one who does:
    /// it has to tell when others come.
    fn handle_reserved(
        &self,
        hold: &Hold,
        reserved: Option<(Block, bool)>,
        told: bool,
        sent_at: Moment,
    ) -> Heard;

    /// Another process is said to ask for the lock. Says whether the hold is to be given back: nobody stands in line, and it
    /// is not to be kept.
    fn handle_wanted(&self, hold: &Hold, now: Moment) -> bool;

    /// Looks whether a hold has been kept for long enough for whoever comes.
    fn end_rest(&self, now: Moment) -> Rest;
}

/// One hold.
pub(crate) struct Hold {
    pub(crate) lock: Lock,
    pub(crate) claim: Claim,
    pub(crate) fence: FencingToken,
    /// The token by which the store knows it: another one, where it was handed on inside the process.
    pub(super) known_as: FencingToken,
    pub(super) session: Arc<Session>,
    seat: Weak<dyn HoldEvents>,
    /// Microseconds of the client's clock; zero once it is lost.
    valid_until: AtomicU64,
    /// Microseconds of the same clock: until when the store has it, as far as that may be believed. For whoever it is handed
    /// on to.
    kept_until: AtomicU64,
    /// Set once its guard is done with it, and it is kept for the next in line: nobody is told any more when it is lost.
    passed: AtomicBool,
    /// Microseconds of the same clock: until when the store may have it, if all that was sent was executed as late as
    /// its sender waits.
    may_last_until: AtomicU64,
    /// For how long it is kept without a renewal, in microseconds; zero until its keeper has been told.
    lease: AtomicU64,
    /// Set once nothing but its cap ends it.
    capped: OnceLock<()>,
    lost: OnceLock<LostReason>,
    /// Made when somebody first asks for it.
    signal: OnceLock<CancellationToken>,
    /// The signal of several holds, to be given as well; set if it is one of several. Never the hold's own, which says
    /// that this one is lost, and that whoever asks why may stop.
    shared: OnceLock<CancellationToken>,
}

impl Hold {
    pub(super) fn new(
        lock: Lock,
        claim: Claim,
        fence: FencingToken,
        valid_until: Moment,
        session: Arc<Session>,
        seat: Weak<dyn HoldEvents>,
    ) -> Self {
        Self {
            lock,
            claim,
            fence,
            known_as: fence,
            session,
            seat,
            valid_until: AtomicU64::new(valid_until.as_micros()),
            kept_until: AtomicU64::new(valid_until.as_micros()),
            passed: AtomicBool::new(false),
            may_last_until: AtomicU64::new(valid_until.as_micros()),
            lease: AtomicU64::new(0),
            capped: OnceLock::new(),
            lost: OnceLock::new(),
            signal: OnceLock::new(),
            shared: OnceLock::new(),
        }
    }

    /// The same hold at the store, for the next in line, by a token of his own. His keeper says until when he may believe in
    /// it: until it does, he has nothing.
    pub(super) fn handed_on(&self, fence: FencingToken) -> Self {
        let next = Self::new(
            self.lock.clone(),
            self.claim.clone(),
            fence,
            self.valid_until(),
            self.session.clone(),
            self.seat.clone(),
        );
        next.may_last_until.store(self.may_last_until.load(Ordering::Acquire), Ordering::Release);
        next.kept_until.store(self.kept_until.load(Ordering::Acquire), Ordering::Release);
        Self { known_as: self.known_as, ..next }
    }

    /// Its guard is done with it, and the process keeps it for the next in line.
    pub(super) fn pass(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Whether its guard is done with it.
    pub(super) fn is_passed(&self) -> bool {
        self.passed.load(Ordering::Acquire)
    }

    /// Until when the store has it, for whoever it is handed on to.
    pub(super) fn kept_until(&self) -> Moment {
        Moment::from_micros(self.kept_until.load(Ordering::Acquire)).min(self.session.alive_until())
    }

    /// The seat that it occupies, if that is there.
    pub(super) fn seat(&self) -> Option<Arc<dyn HoldEvents>> {
        self.seat.upgrade()
    }

    /// Until when the hold may be believed; [`Moment::ZERO`] once it is lost.
    pub(crate) fn valid_until(&self) -> Moment {
        self.leased_until().min(self.session.alive_until())
    }

    /// The same, as far as its own lease goes.
    fn leased_until(&self) -> Moment {
        Moment::from_micros(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether the hold may be believed now. Reads the clock each time: timers miss a suspend.
    pub(crate) fn check(&self, world: &dyn World) -> Result<(), LostReason> {
        let now = world.now();
        if now < self.valid_until() { Ok(()) } else { Err(self.reason(now)) }
    }

    /// Why it was lost, as far as that is known.
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

    /// Whether it ends by its cap as things stand.
    pub(crate) fn is_capped(&self) -> bool {
        self.capped.get().is_some()
    }

    /// Why it was lost, if anybody has been told.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.lost.get().cloned()
    }

    /// Nothing but its cap ends it from now on.
    pub(super) fn reach_cap(&self) {
        // Nothing new where it had been so before.
        let _ = self.capped.set(());
    }

    /// Whether it was found to be gone.
    pub(super) fn is_doubted(&self) -> bool {
        self.leased_until() == Moment::ZERO
    }

    /// The store has lengthened it.
    pub(super) fn raise(&self, valid_until: Moment) {
        let raised = |old| (old != 0 && old < valid_until.as_micros()).then_some(valid_until.as_micros());
        // A refusal means that it is lost already, or lasts longer already.
        let _ = self.valid_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }

    /// The store has it until then, as far as that may be believed.
    pub(super) fn keep_until(&self, kept_until: Moment) {
        self.kept_until.fetch_max(kept_until.as_micros(), Ordering::AcqRel);
    }

    /// It is about to be lengthened: the store may have it until then, whatever is answered.
    pub(crate) fn may_last(&self, until: Moment) {
        self.may_last_until.fetch_max(until.as_micros(), Ordering::AcqRel);
    }

    /// Until when the store may have it.
    pub(super) fn may_last_until(&self) -> Moment {
        Moment::from_micros(self.may_last_until.load(Ordering::Acquire))
    }

    /// It is to be kept for so long without a renewal.
    pub(crate) fn plan(&self, lease: Duration) {
        self.lease.store(u64::try_from(lease.as_micros()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// For how long it is kept without a renewal; zero if that is not decided.
    pub(super) fn lease(&self) -> Duration {
        Duration::from_micros(self.lease.load(Ordering::Acquire))
    }

    /// It may be believed until then at the most, unless it is lengthened.
    pub(crate) fn cap(&self, until: Moment) {
        self.valid_until.fetch_min(until.as_micros(), Ordering::AcqRel);
    }

    /// From now on it may not be believed; why may be learned later.
    pub(crate) fn doubt(&self) {
        self.valid_until.store(0, Ordering::Release);
    }

    /// It is lost, and everybody is told.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.doubt();
        if self.is_passed() {
            // It was released, as far as anybody knows who had it. Whoever stands in line asks by himself.
            if let Some(seat) = self.seat.upgrade() {
                seat.vacate(self);
            }
            return;
        }
        let asked_for = reason == LostReason::ShutDown;
        if self.lost.set(reason).is_ok()
            && let Some(reason) = self.lost.get()
        {
            if asked_for {
                tracing::debug!(lock = %self.lock, fence = %self.fence, "lock given back by a shutdown");
            } else {
                tracing::warn!(lock = %self.lock, fence = %self.fence, %reason, "lock lost");
            }
        }
        // Whoever asks for the signal makes it first and looks for the loss then. With less than this on both sides
        // each could miss what the other has just written, and the signal would never be given.
        fence(Ordering::SeqCst);
        for signal in [&self.signal, &self.shared].into_iter().filter_map(OnceLock::get) {
            signal.cancel();
        }
        if let Some(seat) = self.seat.upgrade() {
            seat.vacate(self);
        }
    }

    /// Gives the signal of several holds, too, when this one is lost. A hold is one of several once at most.
    pub(crate) fn share_signal(&self, signal: &CancellationToken) {
        let signal = self.shared.get_or_init(|| signal.clone());
        fence(Ordering::SeqCst);
        if self.lost.get().is_some() {
            signal.cancel();
        }
    }

    /// The signal that is given when the hold is lost.
    pub(crate) fn signal(&self) -> &CancellationToken {
        let signal = self.signal.get_or_init(CancellationToken::new);
        fence(Ordering::SeqCst);
        if self.lost.get().is_some() {
            signal.cancel();
        }
        signal
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("lock", &self.lock).field("fence", &self.fence).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::FAR;
    use super::*;
    use leasehold_core::{HoldId, Life, SessionId};

    fn hold() -> Hold {
        let session = SessionId::from_random([1; 12]);
        let claim = Claim { hold: HoldId::from_random(session, [2; 16]), value: None };
        let lock = Lock::mutex("job".parse().expect("a good name"));
        let session = Arc::new(Session::new(leasehold_core::Place::ONLY, session, Life::Lease, FAR));
        Hold::new(lock, claim, FencingToken::new(1), FAR, session, Weak::<crate::engine::Seat>::new())
    }

    /// Somebody who asks why it is gone listens to its own signal before it becomes one of several.
    #[test]
    fn a_hold_that_somebody_listens_to_gives_the_signal_of_several_as_well() {
        let (hold, shared) = (hold(), CancellationToken::new());
        let heard = hold.signal().clone();
        hold.share_signal(&shared);
        assert!(!shared.is_cancelled());
        hold.lose(LostReason::Freed);
        assert!(heard.is_cancelled() && shared.is_cancelled());
    }

    #[test]
    fn a_hold_that_is_lost_already_gives_the_signal_of_several_at_once() {
        let (hold, shared) = (hold(), CancellationToken::new());
        hold.lose(LostReason::Freed);
        hold.share_signal(&shared);
        assert!(shared.is_cancelled());
    }

    /// Else whoever asks why another of them is gone would stop, and tell a wrong reason.
    #[test]
    fn the_signal_of_several_is_not_that_of_each() {
        let (one, other, shared) = (hold(), hold(), CancellationToken::new());
        one.share_signal(&shared);
        other.share_signal(&shared);
        one.lose(LostReason::Freed);
        assert!(shared.is_cancelled() && !other.signal().is_cancelled());
    }
}
