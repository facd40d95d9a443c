//! Leader election: one leader at a time, which other clients can observe.

use crate::engine::{Engine, LeaderWatch};
use crate::error::{AcquireError, ForceReleaseError, InspectError, ProclaimError, ReleaseError, RunError};
use crate::guard::Guard;
use crate::guard::detached::DetachedHold;
use crate::guard::lock_guard::lock_guard;
use crate::guard::status::{FullStatus, Status};
use crate::lock::deadlock::Deadlock;
use crate::lock::handle::{AcquireOptions, Attempt, LockHandle, settings};
use crate::lock::observe_ends::HoldEnds;
use crate::lock::run::run_under;
use futures_util::Stream;
use leasehold_core::machine::observe::LeaderChange;
use leasehold_core::{
    FencingToken, Holder, Label, Lease, Lock, LockName, Moment, ObservedHolder, RetryPolicy, SessionId,
};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// The pauses between campaigns.
const CAMPAIGN_AGAIN: RetryPolicy =
    RetryPolicy::exponential(Duration::from_millis(100), Duration::from_secs(30));

/// After a leadership of this duration the pauses start again with the shortest.
const STEADY_LEADERSHIP: Duration = Duration::from_secs(60);

/// A leader election: of all candidates, one leads at a time.
///
/// A candidate [campaigns](Self::campaign): it waits in a queue until it leads. The resulting [`Leadership`]
/// is renewed by a watchdog, as a lock is. If the leader dies, or is cut off from the store, the next
/// candidate follows; a leader that cannot renew steps down by its own clock before that. An election
/// guarantees what a [`Mutex`](crate::Mutex) guarantees, and every client that [observes](Self::observe) it
/// is notified of the current leader.
///
/// A leader that was suspended or slow can still have a write in flight when the next one leads. Where two
/// concurrent writers would do harm, pass the [fencing token](Guard::fencing_token) to the resource that
/// is written to.
///
/// An Election is a lock kind of its own: while a leader exists, a Mutex or ReentrantMutex of the same name
/// is refused, with an error that says that the name is used for something else.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").label("scheduler on web-3").connect().await?;
/// # async fn assign_work(_fence: u64) {}
/// let scheduler = client.election("scheduler")?;
/// let leadership = scheduler.campaign().await?;
/// tokio::select! {
///     lost = leadership.lost() => eprintln!("no longer the leader: {lost}"),
///     () = assign_work(leadership.fencing_token().as_u64()) => leadership.resign().await?,
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Election {
    handle: LockHandle,
}

impl Election {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        Self { handle: LockHandle::new(engine, lock) }
    }

    settings! {
        /// Sets a term: a leadership ends with this lease and is not renewed. Without this setting, a
        /// watchdog renews it for as long as it is acquired: see [`Mutex::lease`](crate::Mutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// Caps how long one leadership lasts, however it is renewed, so that another candidate can lead: see
        /// [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// Caps how often a leadership is renewed: see [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// Lets no other candidate lead for at least `delay` after a loss of a leadership: like
        /// [`Mutex::lock_delay`](crate::Mutex::lock_delay). Until then, observers see the old leader.
        pub fn lock_delay(self, delay: Duration) -> Self;

        /// Has the store keep the last `entries` holds that were released: like
        /// [`Mutex::history`](crate::Mutex::history).
        pub fn history(self, entries: u16) -> Self;

        /// Limits how long [`campaign`](Self::campaign) waits. Without this setting, it waits forever.
        pub fn max_wait(self, limit: Duration) -> Self;

        /// Lets other candidates go first for so long, as for a host that is to lead only if no better one campaigns: like
        /// [`Mutex::low_priority_for`](crate::Mutex::low_priority_for).
        pub fn low_priority_for(self, duration: Duration) -> Self;

        /// Sets what a campaign does that waits in a cycle: like [`Mutex::deadlock`](crate::Mutex::deadlock).
        pub fn deadlock(self, policy: Deadlock) -> Self;

        /// Sets the class under which this handle is reported: like [`Mutex::class`](crate::Mutex::class).
        pub fn class(self, class: &str) -> Self;
    }

    /// Returns the election's name.
    pub fn name(&self) -> &LockName {
        self.handle.name()
    }

    /// Campaigns until it leads, for as long as [`max_wait`](Self::max_wait) allows, or without a limit.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses the request or does not
    /// reply for the client's [outage limit](crate::ClientBuilder::outage_limit).
    ///
    /// Cancel safety: if the future is dropped, the campaign ends: its queue entry is given up, and a
    /// leadership that may have begun is ended in the background.
    pub async fn campaign(&self) -> Result<Leadership, AcquireError> {
        self.campaign_within(self.handle.max_wait).await
    }

    /// Campaigns for at most `limit`. Otherwise like [`campaign`](Self::campaign), including cancel safety.
    pub async fn campaign_timeout(&self, limit: Duration) -> Result<Leadership, AcquireError> {
        self.campaign_within(Some(limit)).await
    }

    /// Campaigns, and leads by a detached hold, which no process renews: like
    /// [`Mutex::acquire_detached`](crate::Mutex::acquire_detached), including errors and cancel safety. The
    /// [`lease`](Self::lease) is the term. Other clients see a leader as any other.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let scheduler = client.election("scheduler")?.lease(Duration::from_secs(600));
    /// let hold = scheduler.campaign_detached().await?;
    /// let leader = scheduler.leader().await?.expect("there is one");
    /// assert_eq!(leader.fence, hold.fencing_token());
    /// hold.release(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn campaign_detached(&self) -> Result<DetachedHold, AcquireError> {
        self.handle.acquire_detached(&AcquireOptions::default()).await
    }

    /// Tries once: leads if there is no leader and no other candidate waits.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request. An existing leader
    /// is not an error: it is [`Attempt::Taken`].
    ///
    /// Cancel safety: if the future is dropped, a leadership that may have begun is ended in the background.
    pub async fn try_campaign(&self) -> Result<Attempt<Leadership>, AcquireError> {
        let tried = self.handle.try_acquire(&AcquireOptions::default()).await?;
        Ok(tried.map(|acquired| self.leadership(acquired.guard)))
    }

    /// Campaigns, runs a future while it leads, and drops the future if it no longer leads. The closure
    /// receives the leadership.
    ///
    /// Fails if it is not elected, or no longer leads before the future completes. Errors and cancel safety: as for
    /// [`Mutex::run`](crate::Mutex::run).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn assign_work() -> u32 { 3 }
    /// let scheduler = leasehold::Client::connect("memory:").await?.election("scheduler")?;
    /// let assigned = scheduler.lead(async |_leadership| assign_work().await).await?;
    /// assert_eq!(assigned, 3);
    /// # Ok(()) }
    /// ```
    pub async fn lead<F: Future>(
        &self,
        work: impl FnOnce(Arc<Leadership>) -> F,
    ) -> Result<F::Output, RunError<F::Output>> {
        run_under(self.campaign().await?, work).await
    }

    /// Leads again and again: campaigns, runs a future while it leads, and campaigns anew once the future has completed or
    /// the leadership is lost. Before each campaign but the first it pauses: 100 ms, and twice as long each time, up to
    /// 30 s, until a leadership has lasted for a minute. It also campaigns on while the store cannot be reached.
    /// [`max_wait`](Self::max_wait) does not apply.
    ///
    /// Returns only if campaigning can never succeed: after a [shutdown](crate::Client::shutdown), if the settings are
    /// invalid, or if the store refuses the client permanently.
    ///
    /// Cancel safety: as for [`lead`](Self::lead).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::error::AcquireError;
    /// use std::time::Duration;
    ///
    /// # async fn assign_work(_fence: u64) {}
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let scheduler = client.election("scheduler")?;
    /// # client.shutdown(Duration::from_secs(1)).await?;
    /// let error = scheduler
    ///     .lead_forever(|leadership| async move { assign_work(leadership.fencing_token().as_u64()).await })
    ///     .await;
    /// assert!(matches!(error, AcquireError::Closed)); // the client was shut down
    /// # Ok(()) }
    /// ```
    pub async fn lead_forever<F: Future<Output = ()>>(
        &self,
        mut work: impl FnMut(Arc<Leadership>) -> F,
    ) -> AcquireError {
        let mut campaigns = Campaigns::default();
        loop {
            match campaigns.next(self).await {
                Ok(leadership) => {
                    if let Err(error) = run_under(leadership, &mut work).await {
                        tracing::info!(election = %self.name(), %error, "campaigning again");
                    }
                }
                Err(error) => return error,
            }
        }
    }

    /// Returns the current leader; `None` if there is none.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, InspectError> {
        let inspection = self.handle.inspect_store(false).await?;
        Ok(inspection.holder.filter(|holder| !holder.in_cooldown).and_then(Leader::from_holder))
    }

    /// Observes the leaders: starts with the current leader, and continues with each new one.
    ///
    /// Nothing is sent before the first call of [`next`](Leaders::next).
    pub fn observe(&self) -> Leaders {
        let LockHandle { engine, entry, .. } = &self.handle;
        Leaders { watching: LeaderWatch::new(engine.clone(), entry.lock.clone()) }
    }

    /// Observes the ends of holds, by whichever client: like [`Mutex::observe_ends`](crate::Mutex::observe_ends), including
    /// errors and cancel safety.
    pub async fn observe_ends(&self) -> Result<HoldEnds, InspectError> {
        HoldEnds::begin(&self.handle).await
    }

    /// Returns the current state of the election. Changes nothing.
    ///
    /// Fails if the store does not reply within the call timeout, or refuses the request.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.handle.inspect().await
    }

    /// Returns the current state of the election, the leader's session, and the audit of leaderships that
    /// other clients ended: like
    /// [`Mutex::inspect_full`](crate::Mutex::inspect_full), including errors and cancel safety.
    pub async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        self.handle.inspect_full().await
    }

    /// Deposes the leader that was [observed](FullStatus::observed), dead or alive; the next candidate in the
    /// queue leads: like [`Mutex::force_release`](crate::Mutex::force_release), including errors and cancel
    /// safety.
    pub async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        self.handle.force_release(observed).await
    }

    fn set(mut self, change: impl Fn(&mut LockHandle)) -> Self {
        change(&mut self.handle);
        self
    }

    async fn campaign_within(&self, limit: Option<Duration>) -> Result<Leadership, AcquireError> {
        let acquired = self.handle.acquire(&AcquireOptions::default(), limit).await?;
        Ok(self.leadership(acquired.guard))
    }

    fn leadership(&self, guard: Guard) -> Leadership {
        Leadership { guard, published: Mutex::new(self.handle.engine.label.clone()) }
    }
}

/// Repeated campaigns, with the pauses between them.
#[derive(Debug, Default)]
pub(crate) struct Campaigns {
    /// How many campaigns have ended since the last steady leadership.
    ended: u32,
    /// When the present leadership began.
    leads_since: Option<Moment>,
}

impl Campaigns {
    /// Campaigns until it leads again. Fails if that can never succeed.
    pub(crate) async fn next(&mut self, election: &Election) -> Result<Leadership, AcquireError> {
        let engine = &election.handle.engine;
        let environment = &engine.environment;
        if let Some(since) = self.leads_since.take() {
            let is_steady = environment.now().since(since) >= STEADY_LEADERSHIP;
            self.ended = if is_steady { 1 } else { self.ended + 1 };
        }
        loop {
            if self.ended > 0 {
                let pause = CAMPAIGN_AGAIN.backoff_after(self.ended, environment.random());
                let until = environment.now() + pause.unwrap_or_default();
                if engine.unless_shut(environment.sleep_until(until)).await.is_none() {
                    return Err(AcquireError::Closed);
                }
            }
            // With a limit it would leave the queue again and again.
            match election.campaign_within(None).await {
                Err(error) if !error.may_succeed_later() => return Err(error),
                Err(error) => {
                    tracing::info!(election = %election.name(), %error, "campaigning again");
                    self.ended += 1;
                }
                Ok(leadership) => {
                    self.leads_since = Some(environment.now());
                    return Ok(leadership);
                }
            }
        }
    }
}

/// The guard of a leader: it leads for as long as this is valid. The methods of [`Guard`] check that.
///
/// [`resign`](Self::resign) ends the leadership and returns whether that succeeded. Dropping it resigns too,
/// in the background, as soon as possible. See [`Guard`] for what a lease means for work that must have only
/// one worker.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// # fn assign(_: u32) {}
/// let leadership = client.election("scheduler")?.campaign().await?;
/// for job in 0..3 {
///     leadership.check()?; // still the leader? no network needed
///     assign(job);
/// }
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping a leadership resigns it"]
pub struct Leadership {
    guard: Guard,
    /// What observers see, as far as is known. Locked during a change: one after the other.
    published: Mutex<Label>,
}

impl Leadership {
    /// Publishes another value: observers see it as the leader's [label](Leader::label) in place of what they saw before,
    /// which is at first the [label](crate::ClientBuilder::label) of the client. The leadership goes on, with the same
    /// fencing token, and [`Leaders`] returns the leader once more. A new leadership begins with the client's label again.
    ///
    /// A value is a text of at most 256 bytes without control characters: an address, or the name of a key with more. If two
    /// tasks publish at the same time, one value follows the other.
    ///
    /// Fails with [`ProclaimError::Lost`] if it no longer leads: then the values of later leaders are unchanged. Fails with
    /// [`ProclaimError::Store`] if the store does not reply within the call timeout, or refuses the request: then
    /// observers may see the value or not, and calling again with the same or another value is safe.
    ///
    /// Cancel safety: if the future is dropped, the value may have been published, or may still be. A request that arrives
    /// after a later call has succeeded changes nothing, unless the value before it was published again by then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn load() -> &'static str { "10.0.0.3:8080" }
    /// let client = leasehold::Client::builder("memory:").label("web-3").connect().await?;
    /// let scheduler = client.election("scheduler")?;
    /// let leadership = scheduler.campaign().await?;
    /// let address = load().await;
    /// leadership.proclaim(address).await?; // ready for requests
    /// let leader = scheduler.leader().await?.expect("there is a leader");
    /// assert_eq!((leader.label.as_str(), leader.fence), (address, leadership.fencing_token()));
    /// # Ok(()) }
    /// ```
    pub async fn proclaim(&self, value: impl AsRef<str>) -> Result<(), ProclaimError> {
        let value = Label::new(value)?;
        let mut published = self.published.lock().await;
        self.guard.proclaim(&mut published, &value).await
    }

    /// Resigns: the next candidate in the queue leads.
    ///
    /// Fails if the leadership had already ended, with the reason, and if the store does not reply within the
    /// call timeout: then the error has the hold, to try again, as for
    /// [`Guard::release`](crate::Guard::release).
    ///
    /// Cancel safety: if the future is dropped, the leadership is resigned in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.guard
    }
}

lock_guard! { Leadership as Guard by resign }

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

/// The current leader, as seen by other clients: [`Election::leader`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").label("web-3").connect().await?;
/// let scheduler = client.election("scheduler")?;
/// assert_eq!(scheduler.leader().await?, None);
/// let leadership = scheduler.campaign().await?;
/// let leader = scheduler.leader().await?.expect("there is a leader");
/// assert_eq!((leader.label.as_str(), leader.fence), ("web-3", leadership.fencing_token()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The label of its client, or the value that it [proclaimed](Leadership::proclaim) last.
    pub label: String,
    /// Its fencing token: greater than that of every earlier leader.
    pub fence: FencingToken,
    /// When it was elected, by the store's clock.
    pub since: SystemTime,
    /// The session that its leadership depends on; `None` if it ends with its lease alone.
    pub session: Option<SessionId>,
}

impl Leader {
    /// The leader that this holder is, if it is a client of this library.
    fn from_holder(holder: Holder) -> Option<Self> {
        let Holder { label, fence, since_ms, session, .. } = holder;
        Some(Self {
            label: label?.to_string(),
            fence: fence?,
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms?),
            session,
        })
    }
}

/// The successive leaders of an election: [`Election::observe`].
///
/// Each leader is reported once, in order of the fencing tokens, and again with each value that it
/// [proclaims](Leadership::proclaim). What began and ended between two polls is left out. On Redis, changes are announced by message; what a message says does not
/// count, and a poll follows each. Observers also poll without a message: when the leader's lease would end,
/// and every 5 to 10 s. On other stores, and where no messages can arrive, they poll every 250 to 500 ms; the
/// memory store notifies at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::builder("memory:").label("web-3").connect().await?;
/// let scheduler = client.election("scheduler")?;
/// let mut leaders = scheduler.observe();
/// assert_eq!(leaders.next().await?, None); // there is no leader yet
///
/// let leadership = scheduler.campaign().await?;
/// let leader = leaders.next().await?.expect("there is a leader");
/// println!("{} leads since {:?}", leader.label, leader.since);
///
/// leadership.resign().await?;
/// assert_eq!(leaders.next().await?, None);
/// # Ok(()) }
/// ```
#[must_use = "nothing is observed until `next` is called"]
pub struct Leaders {
    watching: LeaderWatch,
}

impl Leaders {
    /// Returns the next leader, or `None` once there is none. The first call returns the current state at
    /// once; later calls wait until it changes.
    ///
    /// Fails if a poll gets no reply within the call timeout, or is refused. It can be called again: the next
    /// poll follows after a pause, so that a loop of calls does not spin.
    ///
    /// Cancel safety: if the future is dropped nothing is lost: the next call returns what this one would
    /// have.
    pub async fn next(&mut self) -> Result<Option<Leader>, InspectError> {
        Ok(match self.watching.next_change().await? {
            LeaderChange::Leader(holder) => Leader::from_holder(holder),
            LeaderChange::NoLeader => None,
        })
    }

    /// Converts this into a stream, which does not end. It continues after an error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use futures_util::StreamExt;
    /// use std::pin::pin;
    ///
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let mut leaders = pin!(client.election("scheduler")?.observe().into_stream());
    /// assert_eq!(leaders.next().await.expect("the stream does not end")?, None);
    /// # Ok(()) }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = Result<Option<Leader>, InspectError>> + Send {
        futures_util::stream::unfold(self, async |mut leaders| {
            let next = leaders.next().await;
            Some((next, leaders))
        })
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}
