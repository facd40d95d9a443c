//! A request: the settings of a lock handle, and how they turn into a guard or an error.
//!
//! It turns settings into the engine's terms, and the engine's results into guards and errors. It does not
//! know how one kind of lock differs from another, except through an [`Asker`], and it contains no wait loop.
//!
//! Each setting is defined once, as a method of [`Request`]; each kind of lock lists the settings it supports
//! with [`settings`].

use crate::engine::{
    self, AcquireFailure, AcquireParams, AcquiredHold, Engine, Hold, KeepId, LockEntry, NotDetached,
    ReleasePolicy, Session,
};
use crate::error::{AcquireError, ExtendError};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::existing_leases::ExistingLeases;
use crate::lock::contention::Contention;
use crate::store::{Fault, FaultKind};
use leasehold_core::machine::contender::AcquireTerms;
use leasehold_core::machine::renewal::{HoldLimits, RenewalPlan, RenewalSchedule};
use leasehold_core::{
    Executed, Lease, LeaseError, Liveness, Lock, LockMode, LockName, Moment, OwnValue, RetryPolicy,
};
use std::sync::Arc;
use std::time::Duration;

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
/// to the method of the same name on the lock's [`Request`], or on all of its requests. The kind provides
/// these through its `set`.
macro_rules! settings {
    ($($(#[$words:meta])* pub fn $name:ident(self, $given:ident: $type:ty) -> Self;)+) => {
        $(
            $(#[$words])*
            #[must_use]
            pub fn $name(self, $given: $type) -> Self {
                let $given = $given.into();
                self.set(|request| request.$name($given))
            }
        )+
    };
}
pub(crate) use settings;

/// The settings by which a lock is acquired.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) engine: Arc<Engine>,
    pub(crate) entry: Arc<LockEntry>,
    /// The lease of a hold; if not set, a watchdog renews it.
    lease: Option<Lease>,
    /// How long to wait; forever if not set.
    pub(crate) max_wait: Option<Duration>,
    /// Set to poll.
    retry: Option<RetryPolicy>,
    /// The expiry to set on a key that has none.
    expire_foreign: Option<Duration>,
    /// What happens to the hold when its guard is released or dropped.
    parting: ReleasePolicy,
    /// The cap on the duration of a hold.
    max_hold: Option<Duration>,
    /// The cap on the number of renewals.
    max_renewals: Option<u32>,
}

/// What differs between kinds of locks in one acquisition.
#[derive(Default)]
pub(crate) struct Asker {
    /// For a Mutex, a value set by the user; for a ReentrantMutex or an RwLock, the owner.
    pub(crate) value: Option<OwnValue>,
    /// Set if the hold ends with its lease alone, even if the client has a session.
    pub(crate) by_lease: bool,
    /// Set to add the lease to those under which the owner already holds the lock.
    pub(crate) sum: bool,
    /// The mode in which the lock is requested.
    pub(crate) mode: LockMode,
}

/// How long a hold is to last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    lease: Duration,
    cap: Option<Duration>,
}

impl Span {
    /// The lease to request.
    pub(crate) fn wanted(self) -> Duration {
        self.cap.map_or(self.lease, |cap| cap.min(self.lease))
    }
}

/// How the keeper renews a hold.
struct Planned {
    plan: RenewalPlan,
    caps: HoldLimits,
    /// How long it lasts without a renewal.
    lease: Duration,
    /// Fails if the hold should already have ended.
    left: Result<(), LeaseError>,
}

/// A hold that the keeper renews.
pub(crate) struct Kept {
    pub(crate) guard: Guard,
    /// How many holds the owner has, this one included.
    pub(crate) count: u64,
}

/// Settings.
impl Request {
    pub(crate) fn lease(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// Whether a hold ends with a given lease, instead of being renewed.
    pub(crate) fn ends_with_its_lease(&self) -> bool {
        self.lease.is_some()
    }

    pub(crate) fn max_hold(&mut self, cap: Duration) {
        self.max_hold = Some(cap);
    }

    pub(crate) fn max_renewals(&mut self, most: u32) {
        self.max_renewals = Some(most);
    }

    pub(crate) fn max_wait(&mut self, limit: Duration) {
        self.max_wait = Some(limit);
    }

    pub(crate) fn retry(&mut self, policy: RetryPolicy) {
        self.retry = Some(policy);
    }

    pub(crate) fn expire_foreign(&mut self, expiry: Duration) {
        self.expire_foreign = Some(expiry);
    }

    pub(crate) fn sticky(&mut self, keep_for: Duration) {
        self.parting.keep_for = Some(keep_for).filter(|keep_for| !keep_for.is_zero());
    }

    pub(crate) fn yield_every(&mut self, every: u32) {
        self.parting.free_every = Some(every.max(1));
    }
}

impl Request {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        let entry = engine.entry(lock);
        Self {
            engine,
            entry,
            lease: None,
            max_wait: None,
            retry: None,
            expire_foreign: None,
            parting: ReleasePolicy::default(),
            max_hold: None,
            max_renewals: None,
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.entry.lock.name
    }

    /// Makes one attempt.
    pub(crate) async fn try_acquire(&self, asker: &Asker) -> Result<Attempt<Kept>, AcquireError> {
        let limit = self.engine.environment.now() + self.engine.timings.call;
        match self.pursue(asker, Some(limit), true).await? {
            Ok(kept) => Ok(Attempt::Granted(kept)),
            Err(AcquireFailure::Taken(standing)) => Ok(Attempt::Taken((*standing).into())),
            Err(missed) => Err(self.error(missed, self.engine.timings.call)),
        }
    }

    /// Acquires the lock within `limit`, or without a limit.
    pub(crate) async fn acquire(&self, asker: &Asker, limit: Option<Duration>) -> Result<Kept, AcquireError> {
        let start = self.engine.environment.now();
        if limit == Some(Duration::ZERO) {
            return self.acquire_now(asker, start).await;
        }
        match self.pursue(asker, limit.map(|limit| start + limit), false).await? {
            Ok(kept) => Ok(kept),
            Err(missed) => Err(self.error(missed, self.engine.environment.now().since(start))),
        }
    }

    /// Makes one attempt for a caller whose time limit is zero.
    async fn acquire_now(&self, asker: &Asker, start: Moment) -> Result<Kept, AcquireError> {
        let call = self.engine.timings.call;
        match self.pursue(asker, Some(start + call), true).await? {
            Ok(kept) => Ok(kept),
            Err(AcquireFailure::Taken(standing)) => {
                Err(self.error(AcquireFailure::TimedOut(standing), Duration::ZERO))
            }
            Err(missed) => Err(self.error(missed, call)),
        }
    }

    /// Waits until this client's pending undos are done, at most for the call timeout.
    pub(crate) async fn undone(&self) {
        let until = self.engine.environment.now() + self.engine.timings.call;
        tokio::select! {
            () = self.engine.keeper.errands_done() => {}
            () = self.engine.environment.sleep_until(until) => {}
        }
    }

    /// Makes one attempt at a detached hold.
    pub(crate) async fn try_acquire_detached(
        &self,
        asker: &Asker,
    ) -> Result<Attempt<DetachedHold>, AcquireError> {
        Ok(self.try_detached(asker).await?.map(|(hold, _)| hold))
    }

    /// Like [`try_acquire_detached`](Self::try_acquire_detached), with the moment until which the hold is
    /// valid.
    pub(crate) async fn try_detached(
        &self,
        asker: &Asker,
    ) -> Result<Attempt<(DetachedHold, Moment)>, AcquireError> {
        let call = self.engine.timings.call;
        let limit = self.engine.environment.now() + call;
        match self.pursue_detached(asker, Some(limit), true).await {
            Ok(held) => Ok(Attempt::Granted(held)),
            Err(NotDetached::AcquireFailure(AcquireFailure::Taken(standing))) => {
                Ok(Attempt::Taken((*standing).into()))
            }
            Err(not) => Err(self.not_detached(not, call)),
        }
    }

    /// Acquires the lock as a detached hold.
    pub(crate) async fn acquire_detached(&self, asker: &Asker) -> Result<DetachedHold, AcquireError> {
        let start = self.engine.environment.now();
        let once = self.max_wait == Some(Duration::ZERO);
        let limit = if once { Some(self.engine.timings.call) } else { self.max_wait };
        match self.pursue_detached(asker, limit.map(|limit| start + limit), once).await {
            Ok((hold, _)) => Ok(hold),
            // A zero limit still allows one attempt.
            Err(NotDetached::AcquireFailure(AcquireFailure::Taken(standing))) if once => {
                Err(self.error(AcquireFailure::TimedOut(standing), Duration::ZERO))
            }
            Err(not) => Err(self.not_detached(not, self.engine.environment.now().since(start))),
        }
    }

    /// Acquires the lock, or returns why not. With `once` it does not wait.
    pub(crate) async fn pursue(
        &self,
        asker: &Asker,
        limit: Option<Moment>,
        once: bool,
    ) -> Result<Result<Kept, AcquireFailure>, LeaseError> {
        let span = self.span()?;
        if let Some(guard) = self.take_kept(asker, span)? {
            return Ok(Ok(Kept { guard, count: 1 }));
        }
        self.chase(asker, span, limit, once).await
    }

    /// Takes the hold that this process keeps idle, if the request may use it.
    fn take_kept(&self, asker: &Asker, span: Span) -> Result<Option<Guard>, LeaseError> {
        if asker.value.is_some() {
            return Ok(None);
        }
        let life = asker.by_lease.then_some(Liveness::Lease);
        let Some(won) = engine::take_kept(&self.engine, &self.entry, life, span.wanted()) else {
            return Ok(None);
        };
        let Some(kept) = won.kept else { return Ok(None) };
        self.take_over(won, kept, span, &self.entry)
    }

    async fn chase(
        &self,
        asker: &Asker,
        span: Span,
        limit: Option<Moment>,
        once: bool,
    ) -> Result<Result<Kept, AcquireFailure>, LeaseError> {
        let pursuit = self.pursuit(asker, span.wanted(), limit, once, None);
        let entry = self.partition();
        loop {
            let won = match engine::acquire(&self.engine, &entry, &pursuit).await {
                Ok(won) => won,
                Err(missed) => return Ok(Err(missed)),
            };
            let Some(kept) = won.kept else {
                return match self.keep(asker, won, span, &entry)? {
                    Ok(kept) => Ok(self.confirmed(kept, limit).await),
                    Err(missed) => Ok(Err(missed)),
                };
            };
            if let Some(guard) = self.take_over(won, kept, span, &entry)? {
                return Ok(Ok(Kept { guard, count: 1 }));
            }
            // It was lost during the hand-off.
        }
    }

    /// The lock entry to request through.
    fn partition(&self) -> Arc<LockEntry> {
        let lock = &self.entry.lock;
        if lock.kind.is_shared() { self.engine.own_entry(lock) } else { self.entry.clone() }
    }

    /// How long a hold requested now is to last.
    pub(crate) fn span(&self) -> Result<Span, LeaseError> {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.environment.system_time())?,
            None => self.engine.timings.watchdog,
        };
        if let Some(most) = self.engine.store.capabilities().max_lease.filter(|most| lease > *most) {
            return Err(LeaseError::TooLongForStore { lease, max: most });
        }
        let cap = self.max_hold.map(|cap| Lease::For(cap).check().map(|_| cap)).transpose()?;
        Ok(Span { lease, cap })
    }

    /// Passes an acquired hold to the keeper, with no await before that.
    pub(crate) fn keep(
        &self,
        asker: &Asker,
        won: AcquiredHold<'_>,
        span: Span,
        entry: &Arc<LockEntry>,
    ) -> Result<Result<Kept, AcquireFailure>, LeaseError> {
        let environment = &self.engine.environment;
        let (hold, grant) = (won.hold.clone(), &won.grant);
        let now = environment.now();
        let existing = self.existing(asker, &won, now);
        let count = grant.owner_holds.map_or(1, |entered| entered.count);
        let Planned { plan, caps, lease, left } = self.plan(span, existing, now);
        hold.plan(lease);
        let tenure = RenewalSchedule::with_limits(plan, caps, grant.valid_until, now);
        // The queue entry may have been made by a task that wanted the lock for longer.
        hold.cap(tenure.valid_until());
        let Some(keep) = self.engine.keeper.keep(hold.clone(), tenure) else {
            won.give_back(&self.engine);
            return Ok(Err(AcquireFailure::Closed));
        };
        drop(won);
        let guard = self.guard(hold, keep, entry).with_existing_leases(existing);
        // Until it is confirmed, the hold is not handed to another task of this process, even if the tasks
        // that await the confirmation are dropped.
        let guard = if self.engine.store.capabilities().confirmation {
            guard.release_policy(ReleasePolicy::TO_STORE)
        } else {
            guard
        };
        left.map(|()| Ok(Kept { guard, count }))
    }

    /// Waits until replicas confirm an acquired hold, if the store was configured to require that. A hold
    /// handed off within the process was confirmed before.
    pub(crate) async fn confirmed(&self, kept: Kept, limit: Option<Moment>) -> Result<Kept, AcquireFailure> {
        if !self.engine.store.capabilities().confirmation {
            return Ok(kept);
        }
        kept.guard.confirmed(limit).await?;
        Ok(Kept { guard: kept.guard.release_policy(self.parting), count: kept.count })
    }

    /// Takes over a hold that was handed off within the process; `None` if it was lost meanwhile.
    fn take_over(
        &self,
        won: AcquiredHold<'_>,
        keep: KeepId,
        span: Span,
        entry: &Arc<LockEntry>,
    ) -> Result<Option<Guard>, LeaseError> {
        let (hold, now) = (won.hold.clone(), self.engine.environment.now());
        let Planned { plan, caps, lease, left } = self.plan(span, ExistingLeases::default(), now);
        hold.plan(lease);
        let is_handed_on = self.engine.keeper.hand_on(keep, &hold, (plan, caps), now);
        if !is_handed_on {
            entry.vacate(&hold);
            return Ok(None);
        }
        drop(won);
        let guard = self.guard(hold, keep, entry);
        left.map(|()| Some(guard))
    }

    fn guard(&self, hold: Arc<Hold>, keep: KeepId, entry: &Arc<LockEntry>) -> Guard {
        Guard::new(self.engine.clone(), entry.clone(), hold, keep, self.lease, self.parting)
    }

    /// The renewal plan of a hold acquired now.
    fn plan(&self, span: Span, existing: ExistingLeases, now: Moment) -> Planned {
        let Span { lease, cap } = span;
        // The remaining lease, if it is to last until a given instant, which may have passed meanwhile.
        let left = self.lease.map(|asked| asked.remaining(self.engine.environment.system_time())).transpose();
        // The sum of leases may exceed the store's limit, though each lease alone was checked.
        let longest = self.engine.store.capabilities().max_lease;
        let too_long = |left: Duration| longest.filter(|most| existing.with(left) > *most);
        let left = left.and_then(|left| match left.and_then(|left| Some((left, too_long(left)?))) {
            Some((left, most)) => Err(LeaseError::TooLongForStore { lease: existing.with(left), max: most }),
            None => Ok(left),
        });
        let (plan, lease) = match &left {
            Ok(None) => (RenewalPlan::Renew { lease }, lease),
            Ok(Some(left)) => {
                let lease = existing.with(*left);
                (RenewalPlan::Until { end: now + lease }, lease)
            }
            Err(_) => (RenewalPlan::Until { end: now }, Duration::ZERO),
        };
        let caps = HoldLimits { end: cap.map(|cap| now + cap), max_renewals: self.max_renewals };
        Planned { plan, caps, lease, left: left.map(drop) }
    }

    /// Existing leases of this owner that the new hold must account for.
    fn existing(&self, asker: &Asker, won: &AcquiredHold<'_>, now: Moment) -> ExistingLeases {
        let Some(entered) = won.grant.owner_holds.filter(|entered| entered.count > 1) else {
            return ExistingLeases::default();
        };
        // Holds of this process may not have been extended to their full leases yet.
        let here = self.entry.longest_lease(won.hold.fence, now);
        ExistingLeases { longest: here.max(Duration::from_millis(entered.lease_ms)), sum: asker.sum }
    }

    async fn pursue_detached(
        &self,
        asker: &Asker,
        limit: Option<Moment>,
        once: bool,
    ) -> Result<(DetachedHold, Moment), NotDetached> {
        let environment = &self.engine.environment;
        let asked = self.lease.ok_or(NotDetached::NoLease)?;
        let lease = asked.remaining(environment.system_time()).map_err(NotDetached::Lease)?;
        let session = engine::own_session(&self.engine, &self.entry.lock);
        let pursuit = self.pursuit(asker, lease, limit, once, Some(session.clone()));
        let lock = &self.entry.lock;
        let detached = engine::acquire_detached(&self.engine, lock, session.id, pursuit, asked).await?;
        let (ends_by, valid_until) = (environment.system_time() + detached.lease, detached.valid_until);
        Ok((DetachedHold::new(lock.clone(), detached, ends_by), valid_until))
    }

    /// The parameters of an acquisition, under a session of its own or the client's.
    pub(crate) fn pursuit(
        &self,
        asker: &Asker,
        lease: Duration,
        limit: Option<Moment>,
        once: bool,
        own: Option<Arc<Session>>,
    ) -> AcquireParams {
        let life = own.as_ref().map_or(self.engine.sessions.life, |own| own.life);
        let queues = self.engine.store.capabilities().queue;
        let terms = Arc::new(AcquireTerms {
            lease,
            label: self.engine.label.clone(),
            value: asker.value.clone(),
            adopt: self.expire_foreign,
            liveness: if asker.by_lease { Liveness::Lease } else { life },
            queue: !once && self.retry.is_none() && queues,
            poll_often: self.parting.free_every.is_some()
                || !queues
                || !self.engine.store.capabilities().notifications,
            mode: asker.mode,
            fresh_hold: !queues,
        });
        AcquireParams { terms, session: own, limit, once, retry: self.retry }
    }

    fn not_detached(&self, not: NotDetached, waited: Duration) -> AcquireError {
        match not {
            NotDetached::NoLease => AcquireError::NoLease,
            NotDetached::AcquireFailure(missed) => self.error(missed, waited),
            NotDetached::Lease(error) => AcquireError::Lease(error),
            NotDetached::NotKept { fence, why } => {
                AcquireError::NotExtended(Box::new(ExtendError::of(why, self.name(), fence)))
            }
        }
    }

    pub(crate) fn error(&self, missed: AcquireFailure, waited: Duration) -> AcquireError {
        let lock = self.name().clone();
        match missed {
            AcquireFailure::TimedOut(standing) => {
                AcquireError::TimedOut { lock, waited, contention: Box::new((*standing).into()) }
            }
            AcquireFailure::Taken(standing) => {
                AcquireError::RetriesExhausted { lock, contention: Box::new((*standing).into()) }
            }
            AcquireFailure::Fault { fault: Fault { kind: FaultKind::Refused(refused), .. }, .. }
                if refused.is_permanent() =>
            {
                AcquireError::Impossible(refused)
            }
            AcquireFailure::Fault { fault, executed: Executed::No } => AcquireError::Store(fault),
            AcquireFailure::Fault { fault, executed: Executed::Unknown } => AcquireError::Unknown(fault),
            AcquireFailure::Closed => AcquireError::Closed,
            AcquireFailure::TooSlow => AcquireError::LeaseTooShort { lease: self.shortest_lease() },
        }
    }

    fn shortest_lease(&self) -> Duration {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.environment.system_time()).unwrap_or(Lease::MIN),
            None => self.engine.timings.watchdog,
        };
        self.max_hold.map_or(lease, |cap| cap.min(lease))
    }
}
