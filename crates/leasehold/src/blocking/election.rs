//! Blocking elections, and blocking jobs that run once per period.

use super::facade::IntoBlocking;
use super::{Error, call};
use crate::error::LostHold;
use crate::error::{AcquireError, InspectError, ProclaimError, ReleaseError};
use crate::inspect::{HoldEnd, Leader, Status};
use crate::lock::election::Campaigns;
use crate::{Attempt, DetachedHold};
use leasehold_core::{FencingToken, LockName, Moment};
use std::time::Duration;

facade! {
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
    pub struct Election;

    settings { lease max_hold max_renewals lock_delay history deadlock max_wait low_priority_for class }

    forward {
        /// Returns the election's name.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Campaigns until it leads: see [`leasehold::Election::campaign`](crate::Election::campaign). Only
        /// [`Client::shutdown`](super::Client::shutdown) interrupts a waiting thread.
        pub fn campaign(&self) -> Result<Leadership, Error<AcquireError>>;

        /// Campaigns, and leads by a detached hold: see
        /// [`leasehold::Election::campaign_detached`](crate::Election::campaign_detached).
        pub fn campaign_detached(&self) -> Result<DetachedHold, Error<AcquireError>>;

        /// Campaigns for at most `limit`: see
        /// [`leasehold::Election::campaign_timeout`](crate::Election::campaign_timeout).
        pub fn campaign_timeout(&self, limit: Duration) -> Result<Leadership, Error<AcquireError>>;

        /// Tries once to become the leader: see
        /// [`leasehold::Election::try_campaign`](crate::Election::try_campaign).
        pub fn try_campaign(&self) -> Result<Attempt<Leadership>, Error<AcquireError>>;

        /// Returns the current leader, if there is one: see
        /// [`leasehold::Election::leader`](crate::Election::leader).
        pub fn leader(&self) -> Result<Option<Leader>, Error<InspectError>>;
    }

    wait {
        #[doc = see!("Observes the ends of holds, by whichever client", Election::observe_ends)]
        pub fn observe_ends(&self) -> Result<HoldEnds, Error<InspectError>>;
    }

    operator { "Deposes the leader that was observed, dead or alive" }
}

impl Election {
    /// Leads again and again: campaigns, calls `work` while it leads, resigns, and campaigns anew, with the pauses of
    /// [`leasehold::Election::lead_forever`](crate::Election::lead_forever). A function cannot be stopped: `work`
    /// has to return when the leadership is lost, which [`check`](Leadership::check) tells it.
    ///
    /// Returns only if campaigning can never succeed: after a [shutdown](super::Client::shutdown), if the settings
    /// are invalid, if the store refuses the client permanently, and at once in an async context. If `work` panics,
    /// so does this call, and the leadership is resigned in the background.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::error::AcquireError;
    /// use leasehold::blocking::{Client, Error};
    /// use std::time::Duration;
    ///
    /// # fn assign_next_job(_fence: u64) -> bool { false }
    /// let client = Client::connect("memory:")?;
    /// let scheduler = client.election("scheduler")?;
    /// # client.shutdown(Duration::from_secs(1))?;
    /// let error = scheduler.lead_forever(|leadership| {
    ///     while leadership.check().is_ok() && assign_next_job(leadership.fencing_token().as_u64()) {}
    /// });
    /// assert!(matches!(error, Error::Failed(AcquireError::Closed))); // the client was shut down
    /// # Ok(()) }
    /// ```
    pub fn lead_forever(&self, mut work: impl FnMut(&Leadership)) -> Error<AcquireError> {
        let mut campaigns = Campaigns::default();
        loop {
            let leadership = match super::facade::wait(&self.thread, campaigns.next(&self.inner)) {
                Ok(leadership) => leadership,
                Err(error) => return error,
            };
            work(&leadership);
            if let Err(error) = leadership.resign() {
                tracing::info!(election = %self.name(), %error, "campaigning again");
            }
        }
    }

    /// Observes the leaders: see [`leasehold::Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Leaders {
        self.inner.observe().into_blocking(&self.thread)
    }
}

facade! {
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
    /// assert_eq!(leadership.lost_timeout(Duration::from_millis(5))?, None); // still the leader
    /// leadership.resign()?;
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping a leadership resigns it"]
    pub struct Leadership;

    guard { Guard }

    watch { }

    forward {
        /// Returns the election's name.
        pub fn name(&self) -> &LockName;

        /// Returns the fencing token of this leadership: a number greater than that of every earlier one.
        pub fn fencing_token(&self) -> FencingToken;
    }

    wait {
        /// Publishes another value: see [`leasehold::Leadership::proclaim`](crate::Leadership::proclaim).
        ///
        /// ```
        /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let client = leasehold::blocking::Client::connect("memory:")?;
        /// let scheduler = client.election("scheduler")?;
        /// let leadership = scheduler.campaign()?;
        /// leadership.proclaim("10.0.0.3:8080")?;
        /// assert_eq!(scheduler.leader()?.expect("there is a leader").label, "10.0.0.3:8080");
        /// # Ok(()) }
        /// ```
        pub fn proclaim(&self, value: impl AsRef<str>) -> Result<(), Error<ProclaimError>>;
    }

    end {
        /// Resigns: see [`leasehold::Leadership::resign`](crate::Leadership::resign). In an async context it
        /// resigns in the background, without waiting for the result.
        pub fn resign(self) -> Result<(), Error<ReleaseError>>;
    }
}

facade! {
    /// The successive leaders of an election: [`leasehold::inspect::Leaders`](crate::inspect::Leaders), for threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::blocking::Client::connect("memory:")?;
    /// let mut leaders = client.election("scheduler")?.observe();
    /// assert_eq!(leaders.next()?, None); // there is no leader yet
    /// # Ok(()) }
    /// ```
    pub struct Leaders: crate::inspect::Leaders;
}

impl Leaders {
    /// Returns the next leader, or `None` once there is none: see
    /// [`leasehold::inspect::Leaders::next`](crate::inspect::Leaders::next). Blocks until something changes.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and be called again after that")]
    pub fn next(&mut self) -> Result<Option<Leader>, Error<InspectError>> {
        call(&self.thread, self.inner.next())
    }

    /// Like [`next`](Self::next), but waits at most `limit`: `None` if nothing has changed by then.
    pub fn next_timeout(&mut self, limit: Duration) -> Result<Option<Option<Leader>>, Error<InspectError>> {
        let next = async { tokio::time::timeout(limit, self.inner.next()).await.ok().transpose() };
        call(&self.thread, next)
    }
}

facade! {
    /// The ends of a lock's holds: [`leasehold::inspect::HoldEnds`](crate::inspect::HoldEnds), for threads.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::inspect::HoldEnding;
    ///
    /// let nightly = leasehold::blocking::Client::connect("memory:")?.mutex("nightly")?;
    /// let guard = nightly.acquire()?;
    /// let mut ends = nightly.observe_ends()?;
    /// guard.release()?;
    /// assert_eq!(ends.next()?.ending, HoldEnding::Released);
    /// # Ok(()) }
    /// ```
    pub struct HoldEnds: crate::inspect::HoldEnds;
}

impl HoldEnds {
    /// Returns the next end of a hold: see [`leasehold::inspect::HoldEnds::next`](crate::inspect::HoldEnds::next). Blocks until there is one.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and be called again after that")]
    pub fn next(&mut self) -> Result<HoldEnd, Error<InspectError>> {
        call(&self.thread, self.inner.next())
    }

    /// Like [`next`](Self::next), but waits at most `limit`: `None` if no hold has ended by then.
    pub fn next_timeout(&mut self, limit: Duration) -> Result<Option<HoldEnd>, Error<InspectError>> {
        let next = async { tokio::time::timeout(limit, self.inner.next()).await.ok().transpose() };
        call(&self.thread, next)
    }
}

facade! {
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
    ///     Attempt::Granted(period) => {
    ///         send_the_digest();
    ///         period.finish()?;
    ///     }
    ///     Attempt::Taken(contention) => println!("not granted: {contention}"),
    /// }
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    pub struct OncePer;

    set {
        /// Sets how long the work may take, if that is longer than the period: see
        /// [`leasehold::OncePer::max_duration`](crate::OncePer::max_duration).
        pub fn max_duration(self, max_duration: Duration) -> Self;

        /// Sets the class under which this handle is reported: see [`leasehold::Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    forward {
        /// Returns the name of the lock.
        pub fn name(&self) -> &LockName;
    }

    wait {
        /// Tries once to start the job: see [`leasehold::OncePer::try_start`](crate::OncePer::try_start).
        pub fn try_start(&self) -> Result<Attempt<PeriodGuard>, Error<AcquireError>>;

        /// Returns the current state of the lock: see [`leasehold::OncePer::inspect`](crate::OncePer::inspect).
        pub fn inspect(&self) -> Result<Status, Error<InspectError>>;
    }
}

facade! {
    /// The right of one instance to run the job in this period: [`leasehold::PeriodGuard`](crate::PeriodGuard),
    /// for threads. See [`OncePer`] for an example.
    #[must_use = "if dropped, it lasts until its time is over"]
    pub struct PeriodGuard;

    forward {
        /// Returns the name of the lock.
        pub fn name(&self) -> &LockName;

        /// Returns the fencing token of this grant: a number greater than that of every earlier one.
        pub fn fencing_token(&self) -> FencingToken;

        /// Returns until when the grant is valid. It is never extended.
        pub fn valid_until(&self) -> Moment;

        /// Returns how long the grant is still valid.
        pub fn remaining(&self) -> Duration;

        /// Checks that the grant is still valid by the local clock. Needs no network, and never blocks.
        pub fn check(&self) -> Result<(), LostHold>;
    }

    wait {
        /// Reports that the work is done: see [`leasehold::PeriodGuard::finish`](crate::PeriodGuard::finish).
        pub fn finish(&self) -> Result<(), Error<ReleaseError>>;

        /// Reports that the work failed: see [`leasehold::PeriodGuard::fail`](crate::PeriodGuard::fail).
        pub fn fail(&self) -> Result<(), Error<ReleaseError>>;
    }

    lost_timeout { }
}
