//! Blocking elections, and blocking jobs that run once per period.

use super::guard::face;
use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, ForceReleaseError, InspectError, ReleaseError};
use crate::request::{Request, settings};
use crate::{Attempt, FullStatus, Leader, Lost, Status};
use leasehold_core::{FencingToken, Lease, LockName, Moment, ObservedHolder};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A leader election: of all candidates, one leads at a time: [`leasehold::Election`](crate::Election), for
/// threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// # fn assign_work(_fence: u64) {}
/// let scheduler = client.election("scheduler")?;
/// let leadership = scheduler.campaign()?;
/// while leadership.check().is_ok() {
///     assign_work(leadership.fencing_token().as_u64());
/// #   break;
/// }
/// leadership.resign()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Election {
    inner: crate::Election,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

/// Settings, as of the async election.
impl Election {
    pub(super) fn new(inner: crate::Election, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// Sets a term: a leadership ends with this lease and is not renewed: see
        /// [`leasehold::Election::lease`](crate::Election::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long one leadership lasts, however it is renewed: see
        /// [`leasehold::Election::max_hold`](crate::Election::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a leadership is renewed: see
        /// [`leasehold::Election::max_renewals`](crate::Election::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Limits how long [`campaign`](Self::campaign) waits. Without this setting, it waits forever.
        pub fn wait(self, limit: Duration) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// Returns the election's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call blocks until the async method of the same name completes.
impl Election {
    /// Campaigns until it leads: see [`leasehold::Election::campaign`](crate::Election::campaign). Only
    /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
    pub fn campaign(&self) -> Result<Leadership, Error<AcquireError>> {
        call(&self.host, self.inner.campaign()).map(|inner| Leadership::new(inner, self.host.clone()))
    }

    /// Campaigns for at most `limit`: see
    /// [`leasehold::Election::campaign_timeout`](crate::Election::campaign_timeout).
    pub fn campaign_timeout(&self, limit: Duration) -> Result<Leadership, Error<AcquireError>> {
        let elected = call(&self.host, self.inner.campaign_timeout(limit));
        elected.map(|inner| Leadership::new(inner, self.host.clone()))
    }

    /// Tries once to become the leader: see
    /// [`leasehold::Election::try_campaign`](crate::Election::try_campaign).
    pub fn try_campaign(&self) -> Result<Attempt<Leadership>, Error<AcquireError>> {
        let tried = call(&self.host, self.inner.try_campaign())?;
        Ok(tried.map(|inner| Leadership::new(inner, self.host.clone())))
    }

    /// Returns the current leader, if there is one: see
    /// [`leasehold::Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>, Error<InspectError>> {
        call(&self.host, self.inner.leader())
    }

    /// Observes the leaders: see [`leasehold::Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Leaders {
        Leaders { inner: self.inner.observe(), host: self.host.clone() }
    }

    /// Returns the current state of the election: see
    /// [`leasehold::Election::inspect`](crate::Election::inspect).
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// Returns the current state of the election with the leader's session: see
    /// [`leasehold::Election::inspect_full`](crate::Election::inspect_full).
    pub fn inspect_full(&self) -> Result<FullStatus, Error<InspectError>> {
        call(&self.host, self.inner.inspect_full())
    }

    /// Deposes the leader that was seen: see
    /// [`leasehold::Election::force_release`](crate::Election::force_release).
    pub fn force_release(&self, seen: ObservedHolder) -> Result<(), Error<ForceReleaseError>> {
        call(&self.host, self.inner.force_release(seen))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Election").field(&self.inner).finish()
    }
}

/// The guard of a leader: [`leasehold::Leadership`](crate::Leadership), for threads.
///
/// It is renewed whatever its thread does meanwhile. Dropping it resigns in the background.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let leadership = client.election("scheduler")?.campaign()?;
/// assert_eq!(leadership.lost(Duration::from_millis(5))?, None); // still the leader
/// leadership.resign()?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a leadership resigns it"]
pub struct Leadership {
    inner: crate::Leadership,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

face!(Leadership);

impl Leadership {
    /// Returns the election's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Returns the fencing token of this leadership: a number greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Resigns: see [`leasehold::Leadership::resign`](crate::Leadership::resign). In an async context it
    /// resigns in the background, without waiting for the result.
    pub fn resign(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.resign())
    }
}

/// The successive leaders of an election: [`leasehold::Leaders`](crate::Leaders), for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let mut leaders = client.election("scheduler")?.observe();
/// assert_eq!(leaders.next()?, None); // there is no leader yet
/// # Ok(()) }
/// ```
pub struct Leaders {
    inner: crate::Leaders,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

impl Leaders {
    /// Returns the next leader, or `None` once there is none: see
    /// [`leasehold::Leaders::next`](crate::Leaders::next). Blocks until something changes.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and be called again after that")]
    pub fn next(&mut self) -> Result<Option<Leader>, Error<InspectError>> {
        call(&self.host, self.inner.next())
    }

    /// Like [`next`](Self::next), but waits at most `limit`: `None` if nothing has changed by then.
    pub fn next_within(&mut self, limit: Duration) -> Result<Option<Option<Leader>>, Error<InspectError>> {
        let next = async { tokio::time::timeout(limit, self.inner.next()).await.ok().transpose() };
        call(&self.host, next)
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Leaders").field(&self.inner).finish()
    }
}

/// A job that runs at most once per period: [`leasehold::OncePer`](crate::OncePer), for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, blocking::Client};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:")?;
/// # fn send_the_digest() {}
/// match client.once_per("digest", Duration::from_secs(55 * 60))?.try_start()? {
///     Attempt::Granted(turn) => {
///         send_the_digest();
///         turn.finish()?;
///     }
///     Attempt::Taken(contention) => println!("not granted: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct OncePer {
    inner: crate::OncePer,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

impl OncePer {
    pub(super) fn new(inner: crate::OncePer, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// Sets how long the work may take, if that is longer than the period: see
    /// [`leasehold::OncePer::at_most`](crate::OncePer::at_most).
    #[must_use]
    pub fn at_most(self, at_most: Duration) -> Self {
        Self { inner: self.inner.at_most(at_most), ..self }
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Tries once to start the job: see [`leasehold::OncePer::try_start`](crate::OncePer::try_start).
    pub fn try_start(&self) -> Result<Attempt<PeriodGuard>, Error<AcquireError>> {
        let tried = call(&self.host, self.inner.try_start())?;
        Ok(tried.map(|inner| PeriodGuard { inner, host: self.host.clone() }))
    }

    /// Returns the current state of the lock: see [`leasehold::OncePer::inspect`](crate::OncePer::inspect).
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::OncePer").field(&self.inner).finish()
    }
}

/// The right of one instance to run the job in this period: [`leasehold::PeriodGuard`](crate::PeriodGuard), for threads.
/// See [`OncePer`] for an example.
#[must_use = "if dropped, it lasts until its time is over"]
pub struct PeriodGuard {
    inner: crate::PeriodGuard,
    /// Declared last, so that it is dropped last.
    host: Arc<Host>,
}

impl PeriodGuard {
    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Returns the fencing token of this grant: a number greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Returns until when the grant is valid. It is never extended.
    pub fn valid_until(&self) -> Moment {
        self.inner.valid_until()
    }

    /// Returns how long the grant is still valid.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Checks that the grant is still valid, as far as time tells. Needs no network, and never blocks.
    pub fn check(&self) -> Result<(), Lost> {
        self.inner.check()
    }

    /// Reports that the work is done: see [`leasehold::PeriodGuard::finish`](crate::PeriodGuard::finish).
    pub fn finish(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.finish())
    }

    /// Reports that the work failed: see [`leasehold::PeriodGuard::give_up`](crate::PeriodGuard::give_up).
    pub fn give_up(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.give_up())
    }
}

impl fmt::Debug for PeriodGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::PeriodGuard").field(&self.inner).finish()
    }
}
