//! A guard: what a task has of a hold.

use crate::earlier::Earlier;
use crate::engine::{self, Engine, Hold, KeepId, Missed, NotReleased, Parting, Seat};
use crate::error::{ExtendError, Lost, ReleaseError};
use crate::store::Fault;
use leasehold_core::tenure::Wish;
use leasehold_core::{
    Executed, Extend, Extended, FencingToken, Lease, LockName, Moment, Op, Reply, whole_millis,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A lock that is held.
///
/// [`release`](Self::release) gives it back and says whether that worked. A guard that is dropped gives
/// it back too, as soon as it can and without waiting for it.
///
/// A lease can end before its guard does: the process was stopped, or the network was down for too
/// long. Therefore call [`check`](Self::check) before what must not be done without the lock, have
/// [`lost`](Self::lost) stop what takes long, and give the [`fencing_token`](Self::fencing_token) to
/// whatever can refuse old ones.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// # async fn rebuild_index() {}
/// let guard = client.mutex("index")?.acquire().await?;
/// tokio::select! {
///     lost = guard.lost() => eprintln!("stopped: {lost}"),
///     () = rebuild_index() => guard.release().await?,
/// }
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    engine: Arc<Engine>,
    seat: Arc<Seat>,
    hold: Arc<Hold>,
    keep: KeepId,
    lease: Option<Lease>,
    /// The leases that an extend takes into account beside its own.
    earlier: Earlier,
    parting: Parting,
    /// Set once the hold is not the guard's to give back any more.
    spent: bool,
}

impl Guard {
    pub(crate) fn new(
        engine: Arc<Engine>,
        seat: Arc<Seat>,
        hold: Arc<Hold>,
        keep: KeepId,
        lease: Option<Lease>,
        parting: Parting,
    ) -> Self {
        Self { engine, seat, hold, keep, lease, earlier: Earlier::default(), parting, spent: false }
    }

    /// Its owner had the lock already, for these leases.
    pub(crate) fn after(mut self, earlier: Earlier) -> Self {
        self.earlier = earlier;
        self
    }

    /// What becomes of it when the guard is done with it.
    pub(crate) fn parting(mut self, parting: Parting) -> Self {
        self.parting = parting;
        self
    }

    /// Waits until others have it as well, where the store was told to ask for that. It may have ended meanwhile: then that
    /// was longer than its lease.
    pub(crate) async fn confirmed(&self, limit: Option<Moment>) -> Result<(), Missed> {
        engine::confirm(&self.engine, &self.hold, limit).await?;
        self.hold.check(&*self.engine.world).map_err(|_| Missed::TooSlow)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.hold.lock.name
    }

    /// The number of this hold: greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.fence
    }

    /// Until when the hold may be believed as things stand, on the clock of [`Moment`]: as long as its lease, and as
    /// its client's [session](crate::ClientBuilder::session). It moves on with every renewal and every beat; [`Moment::ZERO`] once the hold is known to be lost.
    pub fn valid_until(&self) -> Moment {
        self.hold.valid_until()
    }

    /// How long the hold may be believed as things stand: zero if it may not any more. At most 3 s at first,
    /// whatever the lease: the keeper lengthens it in the background.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.engine.world.now())
    }

    /// Whether the lock is still held: fails once its deadline has passed, or it is known to be lost.
    ///
    /// Needs no network. It reads a clock that goes on while the machine is suspended, so it fails also
    /// where no timer has noticed yet.
    pub fn check(&self) -> Result<(), Lost> {
        self.hold.check(&*self.engine.world).map_err(|_| self.loss())
    }

    /// Whether the hold ends by its cap as things stand, and nothing lengthens it beyond
    /// [`valid_until`](Self::valid_until): [`Mutex::max_hold`](crate::Mutex::max_hold),
    /// [`Mutex::max_renewals`](crate::Mutex::max_renewals).
    pub fn is_capped(&self) -> bool {
        self.hold.is_capped()
    }

    /// Waits until the lock is lost, and says why. It does not end while the lock is held. After a suspend of
    /// the machine it may end late, as timers do; [`check`](Self::check) does not.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> Lost {
        self.hold.signal().cancelled().await;
        self.loss()
    }

    /// A token that is cancelled when the lock is lost, for work that is spread over tasks. It outlives
    /// the guard, and is never cancelled by a release.
    pub fn lost_signal(&self) -> CancellationToken {
        // A child, so that a caller who cancels it does not tell everybody that the lock is lost.
        self.hold.signal().child_token()
    }

    /// Lengthens the hold now: to the lease that was asked for, counted from now, or else to the
    /// watchdog's lease; where it has a cap, up to that at most. It never ends earlier for it.
    ///
    /// Fails if the lock is lost; with [`ExtendError::Capped`] if it has reached its cap; or if the store does not
    /// answer within the call timeout. Unless it is lost, it lasts at least as long as it did.
    ///
    /// Cancel safety: if the future is dropped, the hold may have been extended; the guard then still
    /// counts as if it had not.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        let lease = match self.lease {
            Some(lease) => self.earlier.with(lease.remaining(self.engine.world.wall())?),
            None => self.engine.timings.watchdog,
        };
        self.extend_by(Wish::UpTo(lease)).await
    }

    /// Lengthens the hold to last `lease` from now, if it would end earlier. Otherwise as
    /// [`extend`](Self::extend), except that it fails with [`ExtendError::Capped`] also where it would get
    /// less than `lease`: then nothing is sent.
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        self.extend_by(Wish::Exactly(lease.into().remaining(self.engine.world.wall())?)).await
    }

    /// Gives the lock back, and hands it to the next who waits.
    ///
    /// Fails if it was lost before, which says why, and if the store does not answer within the call
    /// timeout: then the hold ends with its lease at the latest. Once this has returned, nothing more is
    /// sent about the hold.
    ///
    /// Cancel safety: if the future is dropped, the lock is given back in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.give_back().await.map(drop)
    }

    /// Gives it back, and says how often its owner has the lock yet.
    pub(crate) async fn give_back(mut self) -> Result<u64, ReleaseError> {
        // From here on the departure gives the hold back, also if this future is dropped.
        self.spent = true;
        let released = engine::release(&self.engine, &self.seat, &self.hold, self.keep, self.parting).await;
        released.map_err(|error| match error {
            NotReleased::Lost(reason) => ReleaseError::Lost(reason),
            NotReleased::Fault { fault, executed: Executed::No } => ReleaseError::Store(fault),
            NotReleased::Fault { fault, executed: Executed::Unknown } => ReleaseError::Unknown(fault),
        })
    }

    /// Gives the lock back, in the background where the store does not answer: no user is told what became of it.
    pub(crate) async fn hand_on(self) -> Result<(), ReleaseError> {
        let (engine, hold) = (self.engine.clone(), self.hold.clone());
        let released = self.release().await;
        if let Err(ReleaseError::Store(_) | ReleaseError::Unknown(_)) = &released {
            engine::carry_on(&engine, &hold);
        }
        released
    }

    /// Runs a future, and drops it if the lock is lost.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it.
    pub(crate) async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, Lost> {
        let lost = self.lost_signal();
        tokio::select! {
            biased;
            () = lost.cancelled() => Err(self.loss()),
            result = work => Ok(result),
        }
    }

    /// The hold, for tests that look after what is sent about it.
    #[cfg(all(test, shuttle))]
    pub(crate) fn claim(&self) -> &leasehold_core::Claim {
        &self.hold.claim
    }

    /// Gives the signal of several holds when this one is lost.
    pub(crate) fn share_signal(&self, signal: &CancellationToken) {
        self.hold.share_signal(signal);
    }

    /// Its loss, if everybody has been told why.
    pub(crate) fn told(&self) -> Option<Lost> {
        self.hold.loss().map(|_| self.loss())
    }

    pub(crate) fn loss(&self) -> Lost {
        Lost {
            lock: self.name().clone(),
            fence: self.hold.fence,
            reason: self.hold.reason(self.engine.world.now()),
        }
    }

    async fn extend_by(&self, wish: Wish) -> Result<(), ExtendError> {
        self.check()?;
        let engine = &self.engine;
        let claim = self.hold.claim.clone();
        let sent_at = engine.world.now();
        let allowed = engine.keeper.allow(self.keep, sent_at, wish);
        let (lease, keep_record) = allowed.map_err(|left| ExtendError::Capped { left })?;
        let lease_ms = whole_millis(lease);
        let op = Op::Extend(Extend { claim, lease_ms, keep_record, reserve: None });
        let within = engine.timings.call.min(self.remaining());
        self.hold.may_last(sent_at + within + lease);
        let reply = engine.unless_shut(engine.call(&self.hold.lock, &op, within)).await;
        let Some(reply) = reply else {
            // Whoever shuts down tells all guards, in a moment if not yet.
            self.hold.signal().cancelled().await;
            return Err(self.loss().into());
        };
        match reply {
            Ok(Reply::Extend(Extended::Extended)) => {
                engine.keeper.prolonged(self.keep, sent_at, lease);
                self.check().map_err(ExtendError::Lost)
            }
            Ok(Reply::Extend(Extended::NotHeld)) => Err(self.found_gone().await.into()),
            Ok(odd) => Err(ExtendError::Store(Fault::odd_reply(odd))),
            Err(failed) => Err(ExtendError::Store(failed.fault)),
        }
    }

    /// The store says that the hold is gone: nobody may believe in it from now on.
    async fn found_gone(&self) -> Lost {
        let engine = &self.engine;
        let in_time = self.hold.check(&*engine.world).is_ok();
        self.hold.doubt();
        engine.keeper.found_lost(self.keep);
        let announced = engine::announce(&*engine.store, &*engine.world, engine.timings, &self.hold, in_time);
        // Where it is cut off the loss is told without its reason.
        engine.unless_shut(announced).await;
        self.loss()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.spent {
            engine::abandon(&self.engine, &self.seat, &self.hold, self.keep, self.parting);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", self.name())
            .field("fence", &self.hold.fence)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
