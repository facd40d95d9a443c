//! Once per period: of all instances that try, one runs the job, and none runs it again before the period is
//! over.
//!
//! It is built on a detached hold. That the lock stays taken after a release is one atomic step of the store
//! (`ReleaseAction::Cooldown`).

use crate::client::{Client, parse_name};
use crate::error::{AcquireError, InspectError, LockError, LostHold, ReleaseError, RunError};
use crate::guard::detached::DetachedHold;
use crate::guard::lock_guard::lock_guard;
use crate::guard::status::Status;
use crate::lock::handle::{AcquireOptions, Attempt, LockHandle};
use crate::lock::run::run_under;
use crate::lost_reason::LostReason;
use leasehold_core::{FencingToken, LeaseError, Lock, LockName, Moment, NameError};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A job that runs at most once per period, on the first instance that starts it.
///
/// Every instance [tries](Self::try_start); one gets a [`PeriodGuard`], and the others continue at once, also
/// one that starts when the winner has long finished. The period counts from the grant, by the store's clock:
/// no other instance gets a grant before it is over, however short the work was, and even if the winner
/// crashes.
///
/// A grant belongs to no session and is not renewed: it ends with its lease, which is the period, or longer
/// with [`max_duration`](Self::max_duration). Choose the period slightly shorter than the interval between
/// tries, for example 55 minutes for a job that starts every hour: otherwise the next try may come a moment
/// too early and find the period not over.
///
/// It acquires the [`Mutex`](crate::Mutex) of that name. Any other use of that mutex conflicts with it, and
/// sees that it is [in cooldown](Status::in_cooldown).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn send_the_digest() -> u32 { 7 }
/// let hourly = client.once_per("digest", Duration::from_secs(55 * 60))?;
/// match hourly.run(async |_period| send_the_digest().await).await? {
///     Some(sent) => println!("{sent} sent"),
///     None => println!("another instance runs it, or already has"),
/// }
/// assert_eq!(hourly.run(async |_period| send_the_digest().await).await?, None);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct OncePer {
    client: Client,
    handle: LockHandle,
    period: Duration,
    /// How long a grant lasts, if that is longer than the period.
    max_duration: Duration,
}

impl Client {
    /// Creates a handle to a job that runs at most once per `period` across all processes: see [`OncePer`].
    /// Its lock is the [`mutex`](Self::mutex) of that name.
    ///
    /// Fails like [`mutex`](Self::mutex), and for a period longer than a
    /// [quorum](crate::store::QuorumConfig::min_uptime) keeps its records. Nothing is sent.
    pub fn once_per<N>(&self, name: N, period: Duration) -> Result<OncePer, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::mutex(parse_name(name)?))?;
        if let Some(most) = self.engine.store.capabilities().max_lease.filter(|most| period > *most) {
            return Err(LockError::Period(LeaseError::TooLongForStore { lease: period, max: most }));
        }
        Ok(OncePer::new(self.clone(), &lock, period))
    }
}

impl OncePer {
    pub(crate) fn new(client: Client, lock: &Lock, period: Duration) -> Self {
        let handle = LockHandle::new(client.engine.clone(), lock);
        Self { client, handle, period, max_duration: Duration::ZERO }
    }

    /// Sets how long the work may take, if that is longer than the period. No other instance starts the job
    /// during that time; but if the instance crashes, none starts it for that long either. At least the period,
    /// which is the default.
    #[must_use]
    pub fn max_duration(self, max_duration: Duration) -> Self {
        Self { max_duration, ..self }
    }

    /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        self.handle.class(class);
        self
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Tries once to start the job. There is no way to wait for a grant.
    ///
    /// When this returns a grant, the lock is held for the full period, or for
    /// [`max_duration`](Self::max_duration). That another instance runs the job, or ran it in this period, is
    /// not an error: it is [`Attempt::Taken`].
    ///
    /// Fails with [`AcquireError::Lease`] if the period is shorter than 1 ms or longer than the longest
    /// lease, with [`AcquireError::NotExtended`] if the job was granted but the hold could not be extended to
    /// its time, and if the store does not reply within the call timeout, or refuses the request. After an
    /// error no instance has the grant: it is released in the background, or ends by itself within 3 s,
    /// unless the error says that it may last longer.
    ///
    /// Cancel safety: if the future is dropped, a grant that may have been given is released in the
    /// background. If the process exits before that, the grant ends within 3 s, or with its full time if that
    /// extension was already sent.
    pub async fn try_start(&self) -> Result<Attempt<PeriodGuard>, AcquireError> {
        let mut handle = self.handle.clone();
        handle.lease(self.period.max(self.max_duration).into());
        let tried =
            handle.try_detached(&AcquireOptions { by_lease: true, ..AcquireOptions::default() }).await?;
        Ok(tried.map(|(hold, valid_until)| PeriodGuard {
            client: self.client.clone(),
            hold,
            period: self.period,
            valid_until,
        }))
    }

    /// Tries once to start the job, and runs a future if that succeeds. Returns its output, or `None` if
    /// another instance runs or ran the job in this period. When the future completes, the run is
    /// [finished](PeriodGuard::finish); the future is dropped if it takes longer than the grant lasts.
    ///
    /// Fails like [`try_start`](Self::try_start), with [`RunError::Lost`] if the future took too long, and with
    /// [`RunError::LostAtRelease`], which has the result, if the grant had ended when it was to be finished. If finishing
    /// fails otherwise, that is not an error: the work is done, and the grant ends with its time.
    ///
    /// Cancel safety: if the future is dropped, the inner future is dropped with it, and the grant lasts as
    /// long as if the instance had crashed.
    pub async fn run<F: Future>(
        &self,
        work: impl FnOnce(Arc<PeriodGuard>) -> F,
    ) -> Result<Option<F::Output>, RunError<F::Output>> {
        match self.try_start().await? {
            Attempt::Granted(period) => run_under(period, work).await.map(Some),
            Attempt::Taken(_) => Ok(None),
        }
    }

    /// Returns the current state of the lock. Changes nothing.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handle.inspect().await
    }
}

/// The right of one instance to run the job of a [`OncePer`] in this period.
///
/// [`finish`](Self::finish) reports that the work is done: the lock then stays taken until the period is
/// over. If this is dropped instead, it lasts as long as if the instance had crashed, since it is not known
/// how far the work got.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Attempt;
/// use std::time::Duration;
///
/// # fn send_the_digest() -> Result<(), std::io::Error> { Ok(()) }
/// let client = leasehold::Client::connect("memory:").await?;
/// let hourly = client.once_per("digest", Duration::from_secs(55 * 60))?;
/// match hourly.try_start().await? {
///     Attempt::Granted(period) => match send_the_digest() {
///         Ok(()) => period.finish().await?,
///         Err(_) => period.fail().await?, // another instance may try at once
///     },
///     Attempt::Taken(contention) => println!("not granted: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "if dropped, it lasts until its time is over"]
pub struct PeriodGuard {
    client: Client,
    hold: DetachedHold,
    period: Duration,
    valid_until: Moment,
}

impl PeriodGuard {
    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        self.hold.name()
    }

    /// Returns the fencing token of this grant: a number greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.fencing_token()
    }

    /// Returns until when the grant is valid, on the clock of [`Moment`]. It is never extended.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Returns how long the grant is still valid: zero if it no longer is.
    pub fn remaining(&self) -> Duration {
        self.valid_until.since(self.client.now())
    }

    /// Checks that the grant is still valid, by the local clock: fails once another instance may have a
    /// grant. Needs no network, and so does not detect a forced release.
    pub fn check(&self) -> Result<(), LostHold> {
        if self.client.now() < self.valid_until { Ok(()) } else { Err(self.loss()) }
    }

    /// Waits until the time of the grant is over. After the machine was suspended it may complete late, as
    /// timers do; [`check`](Self::check) does not.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> LostHold {
        self.client.engine.environment.sleep_until(self.valid_until).await;
        self.loss()
    }

    /// Reports that the work is done: no instance runs the job again before the period is over, counted from
    /// the grant. If the period is already over, the next instance may run it at once.
    ///
    /// Fails if the grant had already ended, with the reason (the work took too long, and another instance
    /// may have run the job as well), and if the store does not reply within the call timeout: then it can be called
    /// again, and the grant ends with its time at the latest.
    ///
    /// Cancel safety: if the future is dropped, the run may be finished, or the grant lasts until its time is
    /// over.
    pub async fn finish(&self) -> Result<(), ReleaseError> {
        self.hold.release_not_before(&self.client, self.period).await
    }

    /// Reports that the work failed: another instance may run the job at once, as if it had not been granted.
    ///
    /// Errors and cancel safety: as for [`finish`](Self::finish).
    pub async fn fail(&self) -> Result<(), ReleaseError> {
        self.hold.release(&self.client).await
    }

    fn loss(&self) -> LostHold {
        let (lock, fence) = (self.name().clone(), self.fencing_token());
        LostHold { lock, fence, reason: LostReason::Expired }
    }
}

lock_guard! { PeriodGuard as PeriodGuard by finish }

impl fmt::Debug for PeriodGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeriodGuard")
            .field("lock", self.name())
            .field("fence", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
