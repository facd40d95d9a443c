//! What the handles of all kinds of locks share: the lock entry, the settings, and how these turn into a guard or an error.
//!
//! It turns settings into the parameters of the engine's acquire loop, and the loop's results into guards and
//! errors. It does not know how one kind of lock differs from another, except through [`AcquireOptions`], and
//! it does not wait by itself.
//!
//! Each setting is defined once, as a method of [`LockHandle`]; each kind of lock lists the settings it supports
//! with [`settings`].

mod failures;
mod to_guard;

use crate::engine::activity::Actor;
use crate::engine::{
    self, AcquireFailure, AcquireParams, Engine, LockEntry, NotDetached, ReleasePolicy, Session,
};
use crate::error::AcquireError;
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::owner::Owner;
use crate::lock::contention::Contention;
use crate::lock::deadlock::Deadlock;
use crate::store::FaultKind;
use crate::telemetry::{AcquireTrace, Class, NotAcquiredReason};
use leasehold_core::machine::contender::{AcquireTerms, WaitStatus};
use leasehold_core::{
    Lease, LeaseError, Liveness, Lock, LockMode, LockName, MAX_HISTORY, Moment, OwnValue, Refused,
    RetryPolicy, delay_margin,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The result of a single attempt.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
///
/// let nightly = Client::connect("memory:").await?.mutex("nightly")?;
/// match nightly.try_acquire().await? {
///     Attempt::Granted(guard) => guard.release().await?,
///     Attempt::Taken(contention) => println!("nothing to do: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a guard releases its lock"]
pub enum Attempt<H = Guard> {
    /// The lock is held.
    Granted(H),
    /// Another client holds the lock, or is ahead in the queue.
    Taken(Contention),
}

impl<H> Attempt<H> {
    /// Returns the guard, or the detached hold, if the lock was granted.
    pub fn granted(self) -> Option<H> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Taken(_) => None,
        }
    }

    /// Converts the guard of a granted lock.
    pub(crate) fn map<G>(self, wrap: impl FnOnce(H) -> G) -> Attempt<G> {
        match self {
            Self::Granted(held) => Attempt::Granted(wrap(held)),
            Self::Taken(contention) => Attempt::Taken(contention),
        }
    }
}

/// Declares the settings of a kind of lock, with documentation of its own: each method forwards its argument
/// to the method of the same name on the lock's [`LockHandle`], or on all of its handles. The kind provides
/// these through its `set`.
macro_rules! settings {
    ($($(#[$words:meta])* pub fn $name:ident(self, $given:ident: $type:ty) -> Self;)+) => {
        $(
            $(#[$words])*
            #[must_use]
            pub fn $name(self, $given: $type) -> Self {
                let $given = $given.into();
                self.set(|handle| handle.$name($given))
            }
        )+
    };
}
pub(crate) use settings;

/// One lock, and the settings by which a task acquires it.
#[derive(Debug, Clone)]
pub(crate) struct LockHandle {
    pub(crate) engine: Arc<Engine>,
    pub(crate) entry: Arc<LockEntry>,
    /// The lease of a hold; if not set, a watchdog renews it.
    lease: Option<Lease>,
    /// How long to wait; forever if not set.
    pub(crate) max_wait: Option<Duration>,
    /// Set to poll.
    retry: Option<RetryPolicy>,
    /// For how long other waiters go first.
    pub(crate) low_priority_for: Option<Duration>,
    /// The expiry to set on a key that has none.
    expire_foreign: Option<Duration>,
    /// What happens to the hold when its guard is released or dropped.
    release_policy: ReleasePolicy,
    /// The cap on the duration of a hold.
    max_hold: Option<Duration>,
    /// The cap on the number of renewals.
    max_renewals: Option<u32>,
    /// For how long the lock stays taken after a loss.
    lock_delay: Duration,
    /// How many holds the history keeps.
    history: u16,
    /// The class under which it is reported: given, or made from the name when it is needed first.
    class: OnceLock<Class>,
    /// Set to give up rather than be part of a cycle of waits.
    refuses_deadlock: bool,
}

/// What runs this code: the unit that waits for a lock and then holds it.
fn current_actor() -> Actor {
    Actor::current(Owner::of_scope().map(|owner| owner.text().clone()))
}

/// What differs between kinds of locks in one acquisition.
#[derive(Default)]
pub(crate) struct AcquireOptions {
    /// For a Mutex, a value set by the user; for a ReentrantMutex or an RwLock, the owner.
    pub(crate) value: Option<OwnValue>,
    /// Set if the hold ends with its lease alone, even if the client has a session.
    pub(crate) by_lease: bool,
    /// Set to add the lease to those under which the owner already holds the lock.
    pub(crate) sum_leases: bool,
    /// The mode in which the lock is requested.
    pub(crate) mode: LockMode,
}

/// How long a hold is to last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldDuration {
    lease: Duration,
    max_hold: Option<Duration>,
}

impl HoldDuration {
    /// The lease to request.
    pub(crate) fn lease(self) -> Duration {
        self.max_hold.map_or(self.lease, |max_hold| max_hold.min(self.lease))
    }
}

/// What a client is releasing of a lock in the background, for one acquisition.
#[derive(Default)]
pub(crate) struct OwnReleases {
    /// A signal for the end of each release.
    signals: Vec<CancellationToken>,
    /// Set once they were awaited.
    is_awaited: bool,
}

/// A guard, and how many holds its owner has, this one included.
pub(crate) struct AcquiredGuard {
    pub(crate) guard: Guard,
    pub(crate) count: u64,
}

/// Settings.
impl LockHandle {
    pub(crate) fn lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Whether a hold ends with a given lease, instead of being renewed.
    pub(crate) fn ends_with_its_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Whether a hold ends even if every renewal succeeds.
    pub(crate) fn has_limited_duration(&self) -> bool {
        self.lease.is_some() || self.max_hold.is_some() || self.max_renewals.is_some()
    }

    pub(crate) fn max_hold(&mut self, cap: Duration) {
        self.max_hold = Some(cap);
    }

    pub(crate) fn max_renewals(&mut self, most: u32) {
        self.max_renewals = Some(most);
    }

    pub(crate) fn deadlock(&mut self, policy: Deadlock) {
        self.refuses_deadlock = policy == Deadlock::Refuse;
    }

    pub(crate) fn lock_delay(&mut self, delay: Duration) {
        self.lock_delay = delay;
    }

    pub(crate) fn history(&mut self, entries: u16) {
        self.history = entries;
    }

    /// What ends a hold, and how much longer the store keeps it than this client relies on it. The death of a session would end
    /// the hold without a delay.
    fn liveness_and_margin(&self, options: &AcquireOptions, of_session: Liveness) -> (Liveness, Duration) {
        let by_lease = options.by_lease || !self.lock_delay.is_zero();
        (if by_lease { Liveness::Lease } else { of_session }, delay_margin(self.lock_delay))
    }

    pub(crate) fn max_wait(&mut self, limit: Duration) {
        self.max_wait = Some(limit);
    }

    pub(crate) fn retry(&mut self, policy: RetryPolicy) {
        self.retry = Some(policy);
    }

    pub(crate) fn low_priority_for(&mut self, duration: Duration) {
        self.low_priority_for = Some(duration);
    }

    pub(crate) fn expire_foreign(&mut self, expiry: Duration) {
        self.expire_foreign = Some(expiry);
    }

    pub(crate) fn sticky(&mut self, max_idle: Duration) {
        self.release_policy.max_idle = Some(max_idle).filter(|max_idle| !max_idle.is_zero());
    }

    pub(crate) fn class(&mut self, class: &str) {
        self.class =
            if class.is_empty() { OnceLock::new() } else { self.engine.telemetry.class(class).into() };
    }

    /// Has this handle reported under the class of another one.
    pub(crate) fn share_class(&mut self, other: &Self) {
        self.engine.telemetry.name_class(&other.entry.lock, &other.class);
        self.class = other.class.clone();
    }

    pub(crate) const fn share_deadlock(&mut self, other: &Self) {
        self.refuses_deadlock = other.refuses_deadlock;
    }

    pub(crate) fn yield_every(&mut self, every: u32) {
        self.release_policy.free_every = Some(every.max(1));
    }
}

/// Acquiring.
impl LockHandle {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        let (entry, history) = (engine.entry(lock), engine.history);
        Self {
            engine,
            entry,
            lease: None,
            max_wait: None,
            retry: None,
            low_priority_for: None,
            expire_foreign: None,
            release_policy: ReleasePolicy::default(),
            max_hold: None,
            max_renewals: None,
            lock_delay: Duration::ZERO,
            history,
            class: OnceLock::new(),
            refuses_deadlock: false,
        }
    }

    /// An acquire by a call that began at `start` is going on, until this is dropped or its result is reported.
    pub(crate) fn trace(&self, start: Moment) -> AcquireTrace<'_> {
        self.engine.telemetry.acquiring(&self.entry.lock, &self.class, start)
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.entry.lock.name
    }

    /// Makes one attempt.
    pub(crate) async fn try_acquire(
        &self,
        options: &AcquireOptions,
    ) -> Result<Attempt<AcquiredGuard>, AcquireError> {
        let trace = self.trace(self.now());
        let tried = self.try_acquire_within(options, self.engine.timings.call, &trace).await;
        match &tried {
            Ok(Attempt::Granted(acquired)) => acquired.guard.report_acquired(trace),
            Ok(Attempt::Taken(_)) => trace.not_acquired(NotAcquiredReason::Taken),
            Err(error) => trace.not_acquired(reason_of(error)),
        }
        tried
    }

    /// Makes one attempt, and waits for its reply for so long.
    async fn try_acquire_within(
        &self,
        options: &AcquireOptions,
        call: Duration,
        trace: &AcquireTrace<'_>,
    ) -> Result<Attempt<AcquiredGuard>, AcquireError> {
        let limit = self.engine.environment.now() + call;
        match self.acquire_until(options, Some(limit), true, trace).await? {
            Ok(acquired) => Ok(Attempt::Granted(acquired)),
            Err(AcquireFailure::Taken(status)) => Ok(Attempt::Taken((*status).into())),
            Err(failure) => Err(self.error(failure, call)),
        }
    }

    /// Acquires the lock within `wait`, or without a limit.
    pub(crate) async fn acquire(
        &self,
        options: &AcquireOptions,
        wait: Option<Duration>,
    ) -> Result<AcquiredGuard, AcquireError> {
        self.acquire_since(options, wait, self.now()).await
    }

    /// Like [`acquire`](Self::acquire), by a call that began at `start`: its wait counts from then.
    pub(crate) async fn acquire_since(
        &self,
        options: &AcquireOptions,
        wait: Option<Duration>,
        start: Moment,
    ) -> Result<AcquiredGuard, AcquireError> {
        let trace = self.trace(start);
        let acquired = self.wait_since(options, wait, start, &trace).await;
        match &acquired {
            Ok(acquired) => acquired.guard.report_acquired(trace),
            Err(error) => trace.not_acquired(reason_of(error)),
        }
        acquired
    }

    async fn wait_since(
        &self,
        options: &AcquireOptions,
        wait: Option<Duration>,
        start: Moment,
        trace: &AcquireTrace<'_>,
    ) -> Result<AcquiredGuard, AcquireError> {
        let attempt = async |call| {
            let tried = self.try_acquire_within(options, call, trace).await;
            report_taken(&tried, trace);
            tried
        };
        // In a box, so that the future has room for one request only. All others wait for an upgrade, whatever its priority.
        if options.mode != LockMode::Upgrade
            && let Some(acquired) = Box::pin(self.try_while_low_priority(wait, start, attempt)).await?
        {
            return Ok(acquired);
        }
        let (limit, once) = self.limit(wait, start);
        match self.acquire_until(options, limit, once, trace).await? {
            Ok(acquired) => Ok(acquired),
            Err(failure) => Err(self.error_since(failure, once, start)),
        }
    }

    /// Acquires the lock as a detached hold.
    pub(crate) async fn acquire_detached(
        &self,
        options: &AcquireOptions,
    ) -> Result<DetachedHold, AcquireError> {
        self.acquire_detached_since(options, self.now()).await
    }

    /// Like [`acquire_detached`](Self::acquire_detached), by a call that began at `start`: its wait counts from then.
    pub(crate) async fn acquire_detached_since(
        &self,
        options: &AcquireOptions,
        start: Moment,
    ) -> Result<DetachedHold, AcquireError> {
        let trace = self.trace(start);
        let acquired = self.wait_detached_since(options, start, &trace).await;
        match &acquired {
            Ok(hold) => trace.acquired_detached(hold.fencing_token()),
            Err(error) => trace.not_acquired(reason_of(error)),
        }
        acquired
    }

    async fn wait_detached_since(
        &self,
        options: &AcquireOptions,
        start: Moment,
        trace: &AcquireTrace<'_>,
    ) -> Result<DetachedHold, AcquireError> {
        let attempt = async |_| {
            let tried = self.try_detached_within(options, trace).await;
            report_taken(&tried, trace);
            Ok(tried?.map(|(hold, _)| hold))
        };
        if let Some(hold) = Box::pin(self.try_while_low_priority(self.max_wait, start, attempt)).await? {
            return Ok(hold);
        }
        let (limit, once) = self.limit(self.max_wait, start);
        match self.acquire_detached_until(options, limit, once, trace).await {
            Ok((hold, _)) => Ok(hold),
            Err(NotDetached::AcquireFailure(failure)) => Err(self.error_since(failure, once, start)),
            Err(not) => Err(self.not_detached(not, Duration::ZERO)),
        }
    }

    /// Makes one attempt at a detached hold.
    pub(crate) async fn try_acquire_detached(
        &self,
        options: &AcquireOptions,
    ) -> Result<Attempt<DetachedHold>, AcquireError> {
        Ok(self.try_detached(options).await?.map(|(hold, _)| hold))
    }

    /// Like [`try_acquire_detached`](Self::try_acquire_detached), with the moment until which the hold is
    /// valid.
    pub(crate) async fn try_detached(
        &self,
        options: &AcquireOptions,
    ) -> Result<Attempt<(DetachedHold, Moment)>, AcquireError> {
        let trace = self.trace(self.now());
        let tried = self.try_detached_within(options, &trace).await;
        match &tried {
            Ok(Attempt::Granted((hold, _))) => trace.acquired_detached(hold.fencing_token()),
            Ok(Attempt::Taken(_)) => trace.not_acquired(NotAcquiredReason::Taken),
            Err(error) => trace.not_acquired(reason_of(error)),
        }
        tried
    }

    async fn try_detached_within(
        &self,
        options: &AcquireOptions,
        trace: &AcquireTrace<'_>,
    ) -> Result<Attempt<(DetachedHold, Moment)>, AcquireError> {
        let call = self.engine.timings.call;
        let limit = Some(self.engine.environment.now() + call);
        match self.acquire_detached_until(options, limit, true, trace).await {
            Ok(acquired) => Ok(Attempt::Granted(acquired)),
            Err(NotDetached::AcquireFailure(AcquireFailure::Taken(status))) => {
                Ok(Attempt::Taken((*status).into()))
            }
            Err(not) => Err(self.not_detached(not, call)),
        }
    }

    /// When to give up, and whether to make a single attempt: a zero time limit still allows one.
    pub(crate) fn limit(&self, wait: Option<Duration>, start: Moment) -> (Option<Moment>, bool) {
        let once = wait == Some(Duration::ZERO);
        let wait = if once { Some(self.engine.timings.call) } else { wait };
        (wait.map(|wait| start + wait), once)
    }

    /// Acquires the lock, or returns why not. With `once` it waits for no other client. It does wait for what this client is
    /// releasing, if the lock is taken then or the request refused: a caller that has dropped a guard, or the future of an
    /// acquire, does not find its own hold.
    pub(crate) async fn acquire_until(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        once: bool,
        trace: &AcquireTrace<'_>,
    ) -> Result<Result<AcquiredGuard, AcquireFailure>, LeaseError> {
        let mut own = self.own_releases(once);
        // A loop, so that the future has room for one request only.
        loop {
            match self.request_until(options, limit, once, trace).await? {
                Err(failure) if self.try_again(&failure, &mut own, once, limit).await => {}
                result => return Ok(result),
            }
        }
    }

    /// What this client is releasing of the lock at this moment, if an attempt may have to wait for it.
    fn own_releases(&self, once: bool) -> OwnReleases {
        if once || self.entry.lock.kind.is_shared() { self.releasing() } else { OwnReleases::default() }
    }

    /// Whether to make another attempt: the last one may have failed because of a hold that this client was releasing, and has
    /// released by now.
    async fn try_again(
        &self,
        failure: &AcquireFailure,
        own: &mut OwnReleases,
        once: bool,
        limit: Option<Moment>,
    ) -> bool {
        match failure {
            AcquireFailure::Taken(_) if once => self.released(own, limit).await,
            // The owner would be in its own way, or this client with another number.
            AcquireFailure::Fault { fault, .. }
                if matches!(
                    fault.kind,
                    FaultKind::Refused(Refused::WouldDeadlock | Refused::Disagreement { .. })
                ) && !own.is_awaited =>
            {
                // A request that was refused later than it queued is being undone, too.
                own.signals.extend(self.releasing().signals);
                self.released(own, limit).await
            }
            _ => false,
        }
    }

    /// What this client is releasing of the lock at this moment.
    pub(crate) fn releasing(&self) -> OwnReleases {
        OwnReleases { signals: self.engine.keeper.releasing(&self.entry.lock), is_awaited: false }
    }

    /// Waits until this client has released what it was releasing before an attempt, at most for the call timeout and until
    /// the limit. Returns whether another attempt may find the lock free. Releases that began later are not awaited: under
    /// load there is always one.
    pub(crate) async fn released(&self, own: &mut OwnReleases, limit: Option<Moment>) -> bool {
        own.is_awaited = true;
        let signals = std::mem::take(&mut own.signals);
        if signals.is_empty() {
            return false;
        }
        let all = async {
            for signal in signals {
                signal.cancelled().await;
            }
        };
        self.unless_reached(limit, all).await
    }

    /// Acquires the lock, or returns why not. With `once` it does not wait.
    async fn request_until(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        once: bool,
        trace: &AcquireTrace<'_>,
    ) -> Result<Result<AcquiredGuard, AcquireFailure>, LeaseError> {
        let duration = self.duration()?;
        // Without this, the task would receive the idle hold from the local queue, which costs more.
        if self.release_policy.max_idle.is_some()
            && let Some(guard) = self.take_idle(options, duration)?
        {
            return Ok(Ok(AcquiredGuard { guard, count: 1 }));
        }
        let params = self.params(options, duration.lease(), limit, once, None);
        let lock = &self.entry.lock;
        let entry = if lock.kind.is_shared() { self.engine.own_entry(lock) } else { self.entry.clone() };
        loop {
            let acquired = match engine::acquire(&self.engine, &entry, &params, trace).await {
                Ok(acquired) => acquired,
                Err(failure) => return Ok(Err(failure)),
            };
            let Some(tracking) = acquired.tracking else {
                return match self.track(options, acquired, duration, &entry)? {
                    Ok(acquired) => Ok(self.confirmed(acquired, limit).await),
                    Err(failure) => Ok(Err(failure)),
                };
            };
            if let Some(guard) = self.take_over(acquired, tracking, duration, &entry)? {
                return Ok(Ok(AcquiredGuard { guard, count: 1 }));
            }
            // It was lost during the hand-off.
        }
    }

    /// Takes the hold that this process keeps idle, if the request may use it.
    fn take_idle(
        &self,
        options: &AcquireOptions,
        duration: HoldDuration,
    ) -> Result<Option<Guard>, LeaseError> {
        if options.value.is_some() {
            return Ok(None);
        }
        let kept = self.liveness_and_margin(options, self.engine.sessions.liveness);
        let Some(acquired) = engine::take_idle(&self.engine, &self.entry, kept, duration.lease()) else {
            return Ok(None);
        };
        let Some(tracking) = acquired.tracking else { return Ok(None) };
        self.take_over(acquired, tracking, duration, &self.entry)
    }

    /// How long a hold requested now is to last.
    pub(crate) fn duration(&self) -> Result<HoldDuration, LeaseError> {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.environment.system_time())?,
            None => self.engine.timings.watchdog,
        };
        let delay = self.lock_delay;
        if delay > Lease::MAX {
            return Err(LeaseError::TooLong(delay));
        }
        let kept = lease + delay_margin(delay);
        if let Some(max) = self.engine.store.capabilities().max_lease.filter(|max| kept > *max) {
            return Err(LeaseError::TooLongForStore { lease: kept, max });
        }
        let max_hold = self.max_hold.map(|cap| Lease::For(cap).check().map(|_| cap)).transpose()?;
        Ok(HoldDuration { lease, max_hold })
    }

    /// The parameters of an acquisition, under a session of its own or the client's.
    pub(crate) fn params(
        &self,
        options: &AcquireOptions,
        lease: Duration,
        limit: Option<Moment>,
        once: bool,
        session: Option<Arc<Session>>,
    ) -> AcquireParams {
        let liveness = session.as_ref().map_or(self.engine.sessions.liveness, |session| session.liveness);
        let (liveness, margin) = self.liveness_and_margin(options, liveness);
        let queues = self.engine.store.capabilities().queue;
        let terms = Arc::new(AcquireTerms {
            lease,
            label: self.engine.label.clone(),
            value: options.value.clone(),
            expire_foreign: self.expire_foreign,
            liveness,
            margin,
            history: self.history.min(MAX_HISTORY),
            queue: !once && self.retry.is_none() && queues,
            poll_often: self.release_policy.free_every.is_some()
                || !queues
                || !self.engine.store.capabilities().notifications,
            mode: options.mode,
            fresh_hold: !queues,
        });
        AcquireParams {
            terms,
            session,
            limit,
            once,
            retry: self.retry,
            actor: current_actor,
            refuses_deadlock: self.refuses_deadlock,
        }
    }

    /// Acquires the lock as a detached hold, or returns why not: like [`acquire_until`](Self::acquire_until).
    async fn acquire_detached_until(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        once: bool,
        trace: &AcquireTrace<'_>,
    ) -> Result<(DetachedHold, Moment), NotDetached> {
        let mut own = self.own_releases(once);
        loop {
            match self.request_detached_until(options, limit, once, trace).await {
                Err(NotDetached::AcquireFailure(failure))
                    if self.try_again(&failure, &mut own, once, limit).await => {}
                result => return result,
            }
        }
    }

    async fn request_detached_until(
        &self,
        options: &AcquireOptions,
        limit: Option<Moment>,
        once: bool,
        trace: &AcquireTrace<'_>,
    ) -> Result<(DetachedHold, Moment), NotDetached> {
        let environment = &self.engine.environment;
        let requested = self.lease.ok_or(NotDetached::NoLease)?;
        let lease = requested.remaining(environment.system_time()).map_err(NotDetached::Lease)?;
        let lock = &self.entry.lock;
        let session = engine::detached_session(&self.engine, lock);
        let params = self.params(options, lease, limit, once, Some(session.clone()));
        let detached =
            engine::acquire_detached(&self.engine, lock, session.id, params, requested, trace).await?;
        let (expires_at, valid_until) = (environment.system_time() + detached.lease, detached.valid_until);
        Ok((DetachedHold::new(lock.clone(), detached, expires_at), valid_until))
    }

    /// The client's clock.
    pub(crate) fn now(&self) -> Moment {
        self.engine.environment.now()
    }

    /// Waits for something of this client, at most for the call timeout and until the limit. Returns whether it happened.
    pub(crate) async fn unless_reached(
        &self,
        limit: Option<Moment>,
        event: impl Future<Output = ()>,
    ) -> bool {
        let until = self.now() + self.engine.timings.call;
        let until = limit.map_or(until, |limit| until.min(limit));
        tokio::select! {
            biased;
            () = event => true,
            () = self.engine.environment.sleep_until(until) => false,
        }
    }
}

/// Reports that an attempt which is to be repeated found the lock taken.
fn report_taken<T>(tried: &Result<Attempt<T>, AcquireError>, trace: &AcquireTrace<'_>) {
    if let Ok(Attempt::Taken(Contention { holder, ahead })) = tried {
        let status = || WaitStatus { holder: holder.clone(), position: *ahead, ..WaitStatus::default() };
        trace.waiting(status);
    }
}

/// What an error is reported as.
pub(crate) fn reason_of(error: &AcquireError) -> NotAcquiredReason {
    match error {
        AcquireError::TimedOut { .. } => NotAcquiredReason::TimedOut,
        AcquireError::RetriesExhausted { .. } => NotAcquiredReason::Taken,
        AcquireError::Closed => NotAcquiredReason::Closed,
        _ => NotAcquiredReason::Failed,
    }
}
