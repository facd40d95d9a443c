//! Elections of threads, and turns.

use super::guard::face;
use super::host::Host;
use super::{Error, call};
use crate::error::{AcquireError, FreeError, InspectError, ReleaseError};
use crate::request::{Request, settings};
use crate::{Attempt, Details, Leader, Lost, Status};
use leasehold_core::{FencingToken, Lease, LockName, Moment, Seen};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An election, of all that campaign one leads at a time: [`leasehold::Election`](crate::Election), for threads.
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
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

/// The settings are those of the async election.
impl Election {
    pub(super) fn new(inner: crate::Election, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    settings! {
        /// How long a leadership lasts at most, without being renewed: see
        /// [`leasehold::Election::lease`](crate::Election::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long somebody leads at most, whatever renews it: see
        /// [`leasehold::Election::max_hold`](crate::Election::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a leadership is renewed at most: see
        /// [`leasehold::Election::max_renewals`](crate::Election::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`campaign`](Self::campaign) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;
    }

    fn set(self, change: impl Fn(&mut Request)) -> Self {
        Self { inner: self.inner.set(change), ..self }
    }

    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }
}

/// Each call waits for the one of the same name.
impl Election {
    /// Campaigns until it leads: see [`leasehold::Election::campaign`](crate::Election::campaign). A thread that waits can
    /// be stopped by [`Client::shutdown`](super::Client::shutdown) only.
    pub fn campaign(&self) -> Result<Leadership, Error<AcquireError>> {
        call(&self.host, self.inner.campaign()).map(|inner| Leadership::new(inner, self.host.clone()))
    }

    /// Campaigns for `limit` at most: see [`leasehold::Election::campaign_timeout`](crate::Election::campaign_timeout).
    pub fn campaign_timeout(&self, limit: Duration) -> Result<Leadership, Error<AcquireError>> {
        let elected = call(&self.host, self.inner.campaign_timeout(limit));
        elected.map(|inner| Leadership::new(inner, self.host.clone()))
    }

    /// Tries once: see [`leasehold::Election::try_campaign`](crate::Election::try_campaign).
    pub fn try_campaign(&self) -> Result<Attempt<Leadership>, Error<AcquireError>> {
        let tried = call(&self.host, self.inner.try_campaign())?;
        Ok(tried.map(|inner| Leadership::new(inner, self.host.clone())))
    }

    /// Who leads now, if anybody does: see [`leasehold::Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>, Error<InspectError>> {
        call(&self.host, self.inner.leader())
    }

    /// Watches who leads: see [`leasehold::Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Leaders {
        Leaders { inner: self.inner.observe(), host: self.host.clone() }
    }

    /// How the election stands: see [`leasehold::Election::inspect`](crate::Election::inspect).
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }

    /// How the election stands, and who is behind the leader: see
    /// [`leasehold::Election::inspect_in_full`](crate::Election::inspect_in_full).
    pub fn inspect_in_full(&self) -> Result<Details, Error<InspectError>> {
        call(&self.host, self.inner.inspect_in_full())
    }

    /// Deposes the leader that was seen: see
    /// [`leasehold::Election::free_by_force`](crate::Election::free_by_force).
    pub fn free_by_force(&self, seen: Seen) -> Result<(), Error<FreeError>> {
        call(&self.host, self.inner.free_by_force(seen))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Election").field(&self.inner).finish()
    }
}

/// What the leader has: [`leasehold::Leadership`](crate::Leadership), for threads.
///
/// It is renewed while its thread does something else. One that is dropped is given up in the background.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let leadership = client.election("scheduler")?.campaign()?;
/// assert_eq!(leadership.lost(Duration::from_millis(5))?, None); // it leads still
/// leadership.resign()?;
/// # Ok(()) }
/// ```
#[must_use = "a leadership that is dropped is given up"]
pub struct Leadership {
    inner: crate::Leadership,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

face!(Leadership);

impl Leadership {
    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// The number of this leadership: greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Gives the leadership up: see [`leasehold::Leadership::resign`](crate::Leadership::resign). In an async context it is
    /// given up all the same, in the background.
    pub fn resign(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.resign())
    }
}

/// The leaders of an election, one after the other: [`leasehold::Leaders`](crate::Leaders), for threads.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::blocking::Client::connect("memory:")?;
/// let mut leaders = client.election("scheduler")?.observe();
/// assert_eq!(leaders.next()?, None); // nobody leads yet
/// # Ok(()) }
/// ```
pub struct Leaders {
    inner: crate::Leaders,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl Leaders {
    /// The next leader, or `None` where nobody leads any more: see [`leasehold::Leaders::next`](crate::Leaders::next). It
    /// waits for as long as nothing changes.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and be called again after that")]
    pub fn next(&mut self) -> Result<Option<Leader>, Error<InspectError>> {
        call(&self.host, self.inner.next())
    }

    /// The same, for `limit` at most: nothing, if nothing has changed by then.
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

/// Something that is done once in a period: [`leasehold::OncePer`](crate::OncePer), for threads.
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
///     Attempt::Taken(contention) => println!("not our turn: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct OncePer {
    inner: crate::OncePer,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl OncePer {
    pub(super) fn new(inner: crate::OncePer, host: Arc<Host>) -> Self {
        Self { inner, host }
    }

    /// How long a turn lasts at most: see [`leasehold::OncePer::at_most`](crate::OncePer::at_most).
    #[must_use]
    pub fn at_most(self, at_most: Duration) -> Self {
        Self { inner: self.inner.at_most(at_most), ..self }
    }

    /// The name of its lock.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// Tries once to have the turn: see [`leasehold::OncePer::try_start`](crate::OncePer::try_start).
    pub fn try_start(&self) -> Result<Attempt<Turn>, Error<AcquireError>> {
        let tried = call(&self.host, self.inner.try_start())?;
        Ok(tried.map(|inner| Turn { inner, host: self.host.clone() }))
    }

    /// How its lock stands: see [`leasehold::OncePer::inspect`](crate::OncePer::inspect).
    pub fn inspect(&self) -> Result<Status, Error<InspectError>> {
        call(&self.host, self.inner.inspect())
    }
}

impl fmt::Debug for OncePer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::OncePer").field(&self.inner).finish()
    }
}

/// The turn of an instance: [`leasehold::Turn`](crate::Turn), for threads. [`OncePer`] shows it in use.
#[must_use = "a turn that is dropped lasts until its time is over"]
pub struct Turn {
    inner: crate::Turn,
    /// After what needs it, so that it is dropped last.
    host: Arc<Host>,
}

impl Turn {
    /// The name of its lock.
    pub fn name(&self) -> &LockName {
        self.inner.name()
    }

    /// The number of this turn: greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    /// Until when the turn may be believed: nobody lengthens it.
    pub fn valid_until(&self) -> Moment {
        self.inner.valid_until()
    }

    /// How long the turn may be believed yet.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// Whether it is this instance's turn still, as far as time tells. Needs no network, and never waits.
    pub fn check(&self) -> Result<(), Lost> {
        self.inner.check()
    }

    /// The work is done: see [`leasehold::Turn::finish`](crate::Turn::finish).
    pub fn finish(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.finish())
    }

    /// The work came to nothing: see [`leasehold::Turn::give_up`](crate::Turn::give_up).
    pub fn give_up(self) -> Result<(), Error<ReleaseError>> {
        let Self { inner, host } = self;
        call(&host, inner.give_up())
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Turn").field(&self.inner).finish()
    }
}
