//! The guard: what a task receives when it acquires a lock.

pub(crate) mod attach;
pub(crate) mod detached;
pub(crate) mod existing_leases;
pub(crate) mod lock_guard;
pub(crate) mod owner;
mod proclaim;
pub(crate) mod status;
pub(crate) mod unreleased;
mod watching;

use crate::engine::{self, AcquireFailure, Engine, Hold, LockEntry, NotReleased, ReleasePolicy, TrackingId};
use crate::error::{ExtendError, LostHold, ReleaseError, ReturnPermitsError};
use crate::guard::existing_leases::ExistingLeases;
use crate::guard::unreleased::Unreleased;
use crate::store::Fault;
use crate::telemetry::{AcquireTrace, HowReleased};
use leasehold_core::machine::renewal::{ExtendRequest, HoldLimits, RenewalPlan};
use leasehold_core::{
    Executed, Extend, Extended, FencingToken, HoldStatus, Lease, LockName, Moment, Op, Release,
    ReleaseAction, Released, Reply, Votes, whole_millis,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A held lock.
///
/// [`release`](Self::release) releases the lock and returns whether that succeeded. Dropping the guard
/// releases the lock too: in the background, as soon as possible, and without a result.
///
/// A lease can end before its guard is dropped, for example if the process was suspended or the network was
/// down for too long. Therefore:
///
/// - call [`check`](Self::check) before each action that must not happen without the lock;
/// - use [`lost`](Self::lost) to stop long-running work;
/// - pass the [`fencing_token`](Self::fencing_token) to every resource that can reject stale tokens.
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
#[must_use = "dropping a guard releases its lock"]
pub struct Guard {
    engine: Arc<Engine>,
    entry: Arc<LockEntry>,
    hold: Arc<Hold>,
    tracking: TrackingId,
    lease: Option<Lease>,
    /// The leases that an extend takes into account beside its own.
    existing_leases: ExistingLeases,
    release_policy: ReleasePolicy,
    /// Set once the engine, and no longer the guard, releases the hold.
    released: bool,
}

impl Guard {
    pub(crate) fn new(
        engine: Arc<Engine>,
        entry: Arc<LockEntry>,
        hold: Arc<Hold>,
        tracking: TrackingId,
        lease: Option<Lease>,
        release_policy: ReleasePolicy,
    ) -> Self {
        Self {
            engine,
            entry,
            hold,
            tracking,
            lease,
            existing_leases: ExistingLeases::default(),
            release_policy,
            released: false,
        }
    }

    /// Reports that an acquire gave this guard.
    pub(crate) fn report_acquired(&self, trace: AcquireTrace<'_>) {
        self.hold.report_acquired(trace);
    }

    /// Records the leases under which the owner already held the lock.
    pub(crate) fn with_existing_leases(mut self, existing: ExistingLeases) -> Self {
        self.existing_leases = existing;
        self
    }

    /// Sets what happens to the hold when the guard is released or dropped.
    pub(crate) fn release_policy(mut self, release_policy: ReleasePolicy) -> Self {
        self.release_policy = release_policy;
        self
    }

    /// Keeps the hold by another plan and with other limits from now on: `given` is the lease of its handle, and `lease` how
    /// long it lasts without a renewal.
    pub(crate) fn replan(
        mut self,
        given: Option<Lease>,
        lease: Duration,
        plan: (RenewalPlan, HoldLimits),
        now: Moment,
    ) -> Self {
        self.lease = given;
        self.hold.set_lease(lease);
        self.engine.keeper.replan(self.tracking, plan, now);
        self
    }

    /// Waits until replicas have acknowledged the hold, if the store was configured to require that. Fails if
    /// the hold was lost meanwhile: a primary that lacks it was promoted, or the wait took longer than its lease.
    pub(crate) async fn confirmed(&self, limit: Option<Moment>) -> Result<(), AcquireFailure> {
        let as_failure = |lost: LostHold| AcquireFailure::Lost(lost.fence, Box::new(lost.reason));
        self.unless_lost(engine::confirm(&self.engine, &self.hold, limit)).await.map_err(as_failure)??;
        self.check().map_err(as_failure)
    }

    /// Returns the lock's name.
    pub fn name(&self) -> &LockName {
        &self.hold.lock.name
    }

    /// Returns the fencing token of this hold: a number greater than that of every earlier hold of the lock.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.fence
    }

    /// Returns how many nodes of a quorum have the hold, as of its last extend; `None` for any other store, and until the
    /// first extend: 0.1 s after the grant, or never with a lease of at most 3 s. Each extend puts the hold on nodes that
    /// lack it, where they vote. The holder loses its majority once [`Votes::margin`] of these nodes have forgotten it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use leasehold::store::{MemoryStore, QuorumStore, Store};
    /// use std::sync::Arc;
    ///
    /// let nodes = (0..5).map(|_| Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    /// let client = Client::with_store(QuorumStore::new(nodes)?).connect().await?;
    /// let guard = client.mutex("orders/42")?.acquire().await?;
    /// guard.extend().await?;
    /// let votes = guard.votes().expect("this is a quorum");
    /// assert_eq!((votes.to_string(), votes.margin()), ("5 of 5".to_owned(), 3));
    /// # Ok(()) }
    /// ```
    pub fn votes(&self) -> Option<Votes> {
        self.hold.votes()
    }

    /// Returns until when the hold is valid, on the clock of [`Moment`]: as far as its lease and its client's
    /// [session](crate::ClientBuilder::session_ttl) both reach. Every renewal and every heartbeat moves it
    /// forward. [`Moment::ZERO`] once the hold is known to be lost.
    pub fn valid_until(&self) -> Moment {
        self.hold.valid_until()
    }

    /// Returns how long the hold is still valid: zero if it no longer is. At most 3 s at first, whatever the
    /// lease, unless another task of the process handed the hold off: the keeper extends it in the background.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.engine.environment.now())
    }

    /// Checks that the lock is still held. Fails once [`valid_until`](Self::valid_until) has passed, or once
    /// the hold is known to be lost.
    ///
    /// Needs no network. It reads a clock that keeps running while the machine is suspended, so it fails even
    /// where no timer has fired yet.
    pub fn check(&self) -> Result<(), LostHold> {
        self.hold.check(&*self.engine.environment).map_err(|_| self.loss())
    }

    /// Returns whether the hold ends at its cap and nothing extends it beyond
    /// [`valid_until`](Self::valid_until): see [`Mutex::max_hold`](crate::Mutex::max_hold) and
    /// [`Mutex::max_renewals`](crate::Mutex::max_renewals).
    pub fn is_capped(&self) -> bool {
        self.hold.ends_at_cap()
    }

    /// Waits until the lock is lost, and returns the reason. Does not complete while the lock is held. After
    /// the machine was suspended it may complete late, as timers do; [`check`](Self::check) does not.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> LostHold {
        self.hold.signal().cancelled().await;
        self.loss()
    }

    /// Returns a token that is cancelled when the lock is lost, for work spread over tasks. It outlives the
    /// guard, and a release never cancels it.
    pub fn lost_signal(&self) -> CancellationToken {
        // A child token, so that a caller that cancels it does not signal the loss to other tasks.
        self.hold.signal().child_token()
    }

    /// Extends the hold now, to the configured lease counted from now, or to the watchdog lease if none is
    /// configured. If the hold has a cap, it is extended up to the cap at most. A call never shortens the
    /// hold.
    ///
    /// Fails if the lock is lost; with [`ExtendError::Capped`] if the hold has reached its cap; or if the
    /// store does not reply within the call timeout. Unless the lock is lost, the hold lasts at least as long
    /// as before.
    ///
    /// Cancel safety: if the future is dropped, the store may have extended the hold. The guard does not know
    /// that, and is valid as long as before.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        let lease = match self.lease {
            Some(lease) => self.existing_leases.with(lease.remaining(self.engine.environment.system_time())?),
            None => self.engine.timings.watchdog,
        };
        self.extend_by(ExtendRequest::UpTo(lease)).await
    }

    /// Extends the hold so that it lasts `lease` from now, if it would end earlier. Otherwise like
    /// [`extend`](Self::extend), except that it also fails with [`ExtendError::Capped`] if the cap allows
    /// less than `lease`: then nothing is sent.
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        self.extend_by(ExtendRequest::Exactly(lease.into().remaining(self.engine.environment.system_time())?))
            .await
    }

    /// Releases the lock and hands it to the next waiter.
    ///
    /// Fails if the lock was lost before, with the reason, and if the store does not reply within the call
    /// timeout. In the second case the error has the hold, to [try again](Unreleased::release); if the error is
    /// dropped, the client goes on in the background, as for a dropped guard. Otherwise nothing more is sent about
    /// the hold once this has returned, unless the connection breaks: then the release may be repeated.
    ///
    /// Cancel safety: if the future is dropped, the lock is released in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.release_hold().await.map(drop)
    }

    /// Releases this hold, and returns how many holds of the lock its owner still has.
    pub(crate) async fn release_hold(mut self) -> Result<u64, ReleaseError> {
        // From here on the engine releases the hold, even if this future is dropped.
        self.released = true;
        let in_time = self.check().is_ok();
        let unreported = UnreportedRelease(&self.hold);
        let released =
            engine::release(&self.engine, &self.entry, &self.hold, self.tracking, self.release_policy).await;
        unreported.report(&released);
        let hold = (&self.engine, &self.hold);
        released.map_err(|error| Unreleased::error(error, hold, in_time, Executed::No))
    }

    /// Runs a future, and drops it if the lock is lost.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it.
    pub(crate) async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, LostHold> {
        let lost = self.lost_signal();
        tokio::select! {
            biased;
            () = lost.cancelled() => Err(self.loss()),
            result = work => Ok(result),
        }
    }

    /// Attaches a shared signal that is cancelled when this hold is lost.
    pub(crate) fn share_signal(&self, signal: &CancellationToken) {
        self.hold.share_signal(signal);
    }

    /// The loss, once its reason has been published to all guards.
    pub(crate) fn announced_loss(&self) -> Option<LostHold> {
        self.hold.loss().map(|_| self.loss())
    }

    pub(crate) fn loss(&self) -> LostHold {
        LostHold {
            lock: self.name().clone(),
            fence: self.hold.fence,
            reason: self.hold.reason(self.engine.environment.now()),
        }
    }

    /// Gives permits back: the hold keeps `kept` of them.
    pub(crate) async fn keep_permits(&self, kept: u32) -> Result<(), ReturnPermitsError> {
        self.check_with_reason().await?;
        let engine = &self.engine;
        let (claim, action) = (self.hold.claim.clone(), ReleaseAction::KeepPermits { count: kept });
        let op = Op::Release(Release { claim, action, next: None, history: 0 });
        let within = engine.timings.call.min(self.remaining());
        let reply = engine.unless_shut(engine.call(&self.hold.lock, &op, within)).await;
        let Some(reply) = reply else { return Err(self.shut_down().await.into()) };
        match reply {
            Ok(Reply::Release(Released { status: HoldStatus::Held, .. })) => Ok(()),
            Ok(Reply::Release(_)) => Err(self.report_gone().await.into()),
            Ok(other) => Err(ReturnPermitsError::Unknown(Fault::unexpected_reply(other))),
            Err(failed) if failed.executed == Executed::No => Err(ReturnPermitsError::Store(failed.fault)),
            Err(failed) => Err(ReturnPermitsError::Unknown(failed.fault)),
        }
    }

    async fn extend_by(&self, request: ExtendRequest) -> Result<(), ExtendError> {
        self.check_with_reason().await?;
        let engine = &self.engine;
        let begins = engine.begin_session(&self.hold.session, engine.timings.call.min(self.remaining()));
        match engine.unless_shut(begins).await {
            None => return Err(self.shut_down().await.into()),
            Some(begun) => begun.map_err(ExtendError::Store)?,
        }
        self.check_with_reason().await?;
        let claim = self.hold.claim.clone();
        let sent_at = engine.environment.now();
        let allowed = engine.keeper.allowed_lease(self.tracking, sent_at, request);
        let (lease, keep_record) = allowed.map_err(|remaining| ExtendError::Capped { remaining })?;
        let store_lease = self.hold.store_lease(lease);
        let lease_ms = whole_millis(store_lease);
        let op = Op::Extend(Extend { claim, lease_ms, keep_record, reserve: None, fence: None });
        let within = engine.timings.call.min(self.remaining());
        self.hold.may_last(sent_at + within + store_lease);
        let reply = engine.unless_shut(engine.call(&self.hold.lock, &op, within)).await;
        let Some(reply) = reply else { return Err(self.shut_down().await.into()) };
        match reply {
            Ok(Reply::Extend(extended @ (Extended::Extended | Extended::Voted(_)))) => {
                self.hold.handle_votes(extended);
                let slack = self.remaining();
                engine.keeper.handle_extended(self.tracking, sent_at, lease);
                if !slack.is_zero() {
                    self.hold.report_renewed(slack);
                }
                self.check_with_reason().await.map_err(ExtendError::Lost)
            }
            Ok(Reply::Extend(Extended::NotHeld)) => Err(self.report_gone().await.into()),
            Ok(other) => Err(ExtendError::Store(Fault::unexpected_reply(other))),
            Err(failed) => Err(ExtendError::Store(failed.fault)),
        }
    }

    /// Like [`check`](Self::check), but if the store is being asked why the hold is gone, waits for its answer.
    pub(crate) async fn check_with_reason(&self) -> Result<(), LostHold> {
        self.check_with_reason_until(None).await
    }

    /// Like [`check_with_reason`](Self::check_with_reason), until `limit` at the latest.
    pub(crate) async fn check_with_reason_until(&self, limit: Option<Moment>) -> Result<(), LostHold> {
        let Err(lost) = self.check() else { return Ok(()) };
        if !self.hold.is_invalid() {
            return Err(lost);
        }
        let Some(limit) = limit else { return Err(self.lost().await) };
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            () = self.engine.environment.sleep_until(limit) => Err(self.loss()),
        }
    }

    /// A shutdown signals the loss to all guards, if not yet then in a moment.
    async fn shut_down(&self) -> LostHold {
        self.lost().await
    }

    /// Marks the hold as lost after the store reported that it no longer exists.
    async fn report_gone(&self) -> LostHold {
        let engine = &self.engine;
        let in_time = self.hold.check(&*engine.environment).is_ok();
        self.hold.invalidate();
        engine.keeper.found_lost(self.tracking);
        let Engine { store, environment, telemetry, timings, .. } = &**engine;
        let announced =
            engine::report_loss(&**store, &**environment, telemetry, *timings, &self.hold, in_time);
        // If a shutdown cuts this off, the loss is reported without its specific reason.
        engine.unless_shut(announced).await;
        self.loss()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.released {
            let in_time = self.hold.check(&*self.engine.environment);
            engine::abandon(&self.engine, &self.entry, &self.hold, self.tracking, self.release_policy);
            match in_time {
                Ok(()) => self.hold.report_released(HowReleased::Background),
                // Its loss is reported with the reason, which the store is being asked for.
                Err(_) if self.hold.is_invalid() => {}
                Err(reason) => self.hold.report_lost(&reason),
            }
        }
    }
}

/// A release in flight that observers do not know of. Dropped before, it goes on in the background.
struct UnreportedRelease<'a>(&'a Hold);

impl UnreportedRelease<'_> {
    fn report(&self, result: &Result<u64, NotReleased>) {
        match result {
            Ok(_) => self.0.report_released(HowReleased::Released),
            Err(NotReleased::Lost(reason)) => self.0.report_lost(reason),
            Err(NotReleased::Fault { .. } | NotReleased::NotFound(_)) => {
                self.0.report_released(HowReleased::Unanswered);
            }
        }
    }
}

impl Drop for UnreportedRelease<'_> {
    fn drop(&mut self) {
        // Has no effect if it was reported.
        self.0.report_released(HowReleased::Background);
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
