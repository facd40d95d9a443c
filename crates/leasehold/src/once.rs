//! Once per period: of all instances that try, one does it, and nobody does it again before the period is over.
//!
//! It owns what is asked of a detached hold. What makes the lock rest is the store's one step (`Pass::Rest`).

use crate::client::{Client, named};
use crate::detached::DetachedHold;
use crate::engine::LostReason;
use crate::error::{AcquireError, InspectError, LockError, Lost, ReleaseError, RunError};
use crate::request::{Asker, Attempt, Request};
use crate::status::Status;
use leasehold_core::{FencingToken, LeaseError, Lock, LockName, Moment, NameError};
use std::fmt;
use std::time::Duration;

/// Something that is done once in a period, by whichever instance comes first.
///
/// Every instance [tries](Self::try_start), one gets a [`Turn`], and the others go on at once; also one that starts when the
/// winner has finished long ago. From the moment in which the turn was given, by the store's clock, nobody else gets one before
/// the period is over, however short the work was, and also if the winner crashes.
///
/// A turn belongs to no session and nobody renews it: it ends with its lease, which is the period, or longer if
/// [`at_most`](Self::at_most) says so. So choose the period a little shorter than the interval in which it is tried: 55 minutes
/// for what starts every hour, since otherwise the next try may come a moment too early and be refused.
///
/// It is the [`Mutex`](crate::Mutex) of that name that is taken. What else takes it is in the way, and is told that it
/// [rests](Status::rests).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let client = leasehold::Client::connect("memory:").await?;
/// # async fn send_the_digest() -> u32 { 7 }
/// let hourly = client.once_per("digest", Duration::from_secs(55 * 60))?;
/// match hourly.run(async |_turn| send_the_digest().await).await? {
///     Some(sent) => println!("{sent} sent"),
///     None => println!("another instance does it, or has done it"),
/// }
/// assert_eq!(hourly.run(async |_turn| send_the_digest().await).await?, None);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct OncePer {
    client: Client,
    request: Request,
    period: Duration,
    /// How long a turn lasts at most, where that is longer.
    at_most: Duration,
}

impl Client {
    /// What is done once in a `period`, whoever comes first: see [`OncePer`]. Its lock is the [`mutex`](Self::mutex) of that
    /// name.
    ///
    /// Fails as that does, and for a period that is longer than a [quorum](crate::store::QuorumConfig::min_uptime) keeps
    /// anything. Nothing is sent.
    pub fn once_per<N>(&self, name: N, period: Duration) -> Result<OncePer, LockError>
    where
        N: TryInto<LockName>,
        N::Error: Into<NameError>,
    {
        let lock = self.checked(Lock::mutex(named(name)?))?;
        if let Some(most) = self.engine.store.capabilities().longest_lease.filter(|most| period > *most) {
            return Err(LockError::Period(LeaseError::LongerThanKept { lease: period, most }));
        }
        Ok(OncePer::new(self.clone(), &lock, period))
    }
}

impl OncePer {
    pub(crate) fn new(client: Client, lock: &Lock, period: Duration) -> Self {
        let request = Request::new(client.engine.clone(), lock);
        Self { client, request, period, at_most: Duration::ZERO }
    }

    /// How long a turn lasts at most: work that may take longer than the period is done by nobody else meanwhile, but if its
    /// instance crashes, nobody does it for as long. Never less than the period, which it is if nothing is set.
    #[must_use]
    pub fn at_most(self, at_most: Duration) -> Self {
        Self { at_most, ..self }
    }

    /// The name of its lock.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Tries once to have the turn: nobody waits for one.
    ///
    /// When this returns a turn, the lock is held for as long as a turn lasts. That somebody else has it, or had it in this
    /// period, is a value.
    ///
    /// Fails with [`AcquireError::Lease`] if a period is shorter than 1 ms or longer than a lease can be, with
    /// [`AcquireError::NotKept`] if the turn was given and could not be lengthened to its time, and if the store does not
    /// answer within the call timeout, or refuses. After an error nobody has the turn: it is given back in the background,
    /// or ends by itself within 3 s, unless the error says that it may last.
    ///
    /// Cancel safety: if the future is dropped, a turn that may have been given is given back in the background. Should the
    /// process end before that, it ends within 3 s, or with its time if that was on its way.
    pub async fn try_start(&self) -> Result<Attempt<Turn>, AcquireError> {
        let mut request = self.request.clone();
        request.lease(self.period.max(self.at_most).into());
        let tried = request.try_detached(&Asker { by_lease: true, ..Asker::default() }).await?;
        Ok(tried.map(|(hold, valid_until)| Turn {
            client: self.client.clone(),
            hold,
            period: self.period,
            valid_until,
        }))
    }

    /// Tries once, and runs a future if it has the turn: gives what that gave, or nothing where it is not its turn. When the
    /// future has ended the turn is [finished](Turn::finish); it is dropped where it lasts for longer than a turn may.
    ///
    /// Fails as [`try_start`](Self::try_start), and with [`RunError::Lost`] where the future took too long. If finishing
    /// fails, that is not an error: the work was done, and the turn ends with its time.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it, and the turn lasts for as long as if its
    /// instance had crashed.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Turn) -> T) -> Result<Option<T>, RunError> {
        let Attempt::Granted(turn) = self.try_start().await? else { return Ok(None) };
        let result = tokio::select! {
            biased;
            result = work(&turn) => result,
            lost = turn.lost() => return Err(lost.into()),
        };
        if let Err(error) = turn.finish().await {
            tracing::warn!(lock = %self.name(), %error, "its turn was not finished, and ends with its time");
        }
        Ok(Some(result))
    }

    /// How its lock stands. Changes nothing.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.request.inspect().await
    }
}

/// The turn of an instance: the right to do what is done once per period.
///
/// [`finish`](Self::finish) says that it is done: the turn then rests until the period is over. One that is dropped in place of
/// that lasts as long as if its instance had crashed, since nobody knows how far the work came.
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
///     Attempt::Granted(turn) => match send_the_digest() {
///         Ok(()) => turn.finish().await?,
///         Err(_) => turn.give_up().await?, // another instance may try, at once
///     },
///     Attempt::Taken(contention) => println!("not our turn: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "a turn that is dropped lasts until its time is over"]
pub struct Turn {
    client: Client,
    hold: DetachedHold,
    period: Duration,
    valid_until: Moment,
}

impl Turn {
    /// The name of its lock.
    pub fn name(&self) -> &LockName {
        self.hold.name()
    }

    /// The number of this turn: greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.fencing_token()
    }

    /// Until when the turn may be believed, on the clock of [`Moment`]: nobody lengthens it.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// How long the turn may be believed yet: zero if it may not any more.
    pub fn remaining(&self) -> Duration {
        self.valid_until.since(self.client.now())
    }

    /// Whether it is this instance's turn still, as far as time tells: fails once another may have it. Needs no network, and
    /// so does not know whether somebody has taken the lock by force.
    pub fn check(&self) -> Result<(), Lost> {
        if self.client.now() < self.valid_until { Ok(()) } else { Err(self.loss()) }
    }

    /// Waits until the turn has lasted for as long as it may. After a suspend of the machine it may end late, as timers do;
    /// [`check`](Self::check) does not.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> Lost {
        self.client.engine.world.sleep_until(self.valid_until).await;
        self.loss()
    }

    /// The work is done: nobody does it again before the period is over, which counts from when the turn was given. Where it is
    /// over already, the next may.
    ///
    /// Fails if the turn had ended before, which says why (then the work took too long, and another instance may have done it
    /// as well), and if the store does not answer within the call timeout: then the turn ends with its time at the
    /// latest.
    ///
    /// Cancel safety: if the future is dropped, the turn may be finished, or lasts until its time is over.
    pub async fn finish(self) -> Result<(), ReleaseError> {
        self.hold.release_not_before(&self.client, self.period).await
    }

    /// The work came to nothing: another instance may do it at once, as if nobody had had the turn.
    ///
    /// Fails as [`finish`](Self::finish), also as to cancel safety.
    pub async fn give_up(self) -> Result<(), ReleaseError> {
        self.hold.release(&self.client).await
    }

    fn loss(&self) -> Lost {
        let (lock, fence) = (self.name().clone(), self.fencing_token());
        Lost { lock, fence, reason: LostReason::Expired }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("lock", self.name())
            .field("fence", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
