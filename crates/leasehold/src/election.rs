//! The Election: one leader at a time, and whoever wants to know who it is.

use crate::engine::{Engine, Watching};
use crate::error::{AcquireError, ExtendError, FreeError, InspectError, Lost, ReleaseError, RunError};
use crate::guard::Guard;
use crate::request::{Asker, Attempt, Request, settings};
use crate::status::{Details, Status};
use futures_util::Stream;
use leasehold_core::observe::News;
use leasehold_core::{FencingToken, Holder, Lease, Lock, LockName, Moment, Seen, SessionId};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

/// An election: of all that campaign, one leads at a time.
///
/// Whoever [campaigns](Self::campaign) waits in a queue until it is the leader. What it has then, a [`Leadership`], is kept
/// by a watchdog as a lock is, so a leader that dies, or is cut off from the store, is followed by the next in line; and one that
/// cannot renew steps down by its own clock before that. It means what a [`Mutex`](crate::Mutex) means, and everybody who
/// [observes](Self::observe) is told who leads.
///
/// A leader that was stopped, or was slow, can still have a write under way when the next one leads: where two would do
/// harm, give the [fencing token](Leadership::fencing_token) to what is written to.
///
/// An Election is a lock of its own kind: a Mutex, or a ReentrantMutex, of the same name is refused while anybody leads, and
/// says that the name is used for something else.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").label("scheduler on web-3").connect().await?;
/// # async fn assign_work(_fence: u64) {}
/// let scheduler = client.election("scheduler")?;
/// let leadership = scheduler.campaign().await?;
/// tokio::select! {
///     lost = leadership.lost() => eprintln!("not the leader any more: {lost}"),
///     () = assign_work(leadership.fencing_token().as_u64()) => leadership.resign().await?,
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Election {
    request: Request,
}

impl Election {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        Self { request: Request::new(engine, lock) }
    }

    settings! {
        /// How long a leadership lasts at most without being renewed, and that it is not renewed: a term. Without it a
        /// watchdog renews it for as long as it is kept: see [`Mutex::lease`](crate::Mutex::lease).
        pub fn lease(self, lease: impl Into<Lease>) -> Self;

        /// How long somebody leads at most, whatever renews it, so that another has a turn: see
        /// [`Mutex::max_hold`](crate::Mutex::max_hold).
        pub fn max_hold(self, cap: Duration) -> Self;

        /// How often a leadership is renewed at most: see [`Mutex::max_renewals`](crate::Mutex::max_renewals).
        pub fn max_renewals(self, most: u32) -> Self;

        /// How long [`campaign`](Self::campaign) waits at most; for ever, if nothing is set.
        pub fn wait(self, limit: Duration) -> Self;
    }

    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.request.name()
    }

    /// Campaigns until it leads, however long it takes, or for as long as [`wait`](Self::wait) says.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses, or does not answer for as long as the
    /// client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, the campaign is over: its place in the queue is given up, and a leadership
    /// that may have begun is ended in the background.
    pub async fn campaign(&self) -> Result<Leadership, AcquireError> {
        self.campaign_within(self.request.wait).await
    }

    /// Campaigns for `limit` at most. Otherwise as [`campaign`](Self::campaign), also as to cancel safety.
    pub async fn campaign_timeout(&self, limit: Duration) -> Result<Leadership, AcquireError> {
        self.campaign_within(Some(limit)).await
    }

    /// Tries once: leads if nobody does and nobody waits for it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses. That somebody leads is a value.
    ///
    /// Cancel safety: if the future is dropped, a leadership that may have begun is ended in the background.
    pub async fn try_campaign(&self) -> Result<Attempt<Leadership>, AcquireError> {
        let tried = self.request.try_acquire(&Asker::default()).await?;
        Ok(tried.map(|kept| Leadership { guard: kept.guard }))
    }

    /// Campaigns, runs a future while it leads, and drops that if it is not the leader any more. The closure is given the
    /// leadership.
    ///
    /// Fails if it is not elected, or is no more the leader before the future has ended. If resigning fails, that is not an
    /// error: the future has ended by then.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it, and it resigns in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn assign_work() -> u32 { 3 }
    /// let scheduler = leasehold::Client::connect("memory:").await?.election("scheduler")?;
    /// let assigned = scheduler.lead(async |_leadership| assign_work().await).await?;
    /// assert_eq!(assigned, 3);
    /// # Ok(()) }
    /// ```
    pub async fn lead<T>(&self, work: impl AsyncFnOnce(&Leadership) -> T) -> Result<T, RunError> {
        let leadership = self.campaign().await?;
        let result = leadership.guard.unless_lost(work(&leadership)).await?;
        if let Err(error) = leadership.resign().await {
            tracing::warn!(election = %self.name(), %error, "not resigned");
        }
        Ok(result)
    }

    /// Who leads now, if anybody does.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, InspectError> {
        let seen = self.request.look(false).await?;
        Ok(seen.holder.filter(|holder| !holder.rests).and_then(Leader::of))
    }

    /// Watches who leads: begins with who does now, and goes on with each new leader.
    ///
    /// Nothing is sent before it is first asked.
    pub fn observe(&self) -> Leaders {
        let Request { engine, seat, .. } = &self.request;
        Leaders { watching: Watching::new(engine.clone(), seat.lock.clone()) }
    }

    /// How the election stands. Changes nothing.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        self.request.inspect().await
    }

    /// How the election stands, who is behind the leader, and who took it from whom: as
    /// [`Mutex::inspect_in_full`](crate::Mutex::inspect_in_full), also as to errors and cancel safety.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        self.request.inspect_in_full().await
    }

    /// Deposes the leader that was [seen](Details::seen), dead or alive; the next in the queue leads: as
    /// [`Mutex::free_by_force`](crate::Mutex::free_by_force), also as to errors and cancel safety.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        self.request.free_by_force(seen).await
    }

    pub(crate) fn set(mut self, change: impl Fn(&mut Request)) -> Self {
        change(&mut self.request);
        self
    }

    async fn campaign_within(&self, limit: Option<Duration>) -> Result<Leadership, AcquireError> {
        let kept = self.request.acquire(&Asker::default(), limit).await?;
        Ok(Leadership { guard: kept.guard })
    }
}

/// What the leader has: it leads for as long as this may be believed.
///
/// [`resign`](Self::resign) gives it up and says whether that worked; one that is dropped is given up too, as soon as that
/// can be done. See [`Guard`] for what a lease means to work that must not be done by two.
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
#[must_use = "a leadership that is dropped is given up"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The election's name.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// The number of this leadership: greater than that of every earlier one.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Until when it may be believed as things stand: as [`Guard::valid_until`].
    pub fn valid_until(&self) -> Moment {
        self.guard.valid_until()
    }

    /// How long it may be believed as things stand: as [`Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Whether this is the leader still: as [`Guard::check`], by its own clock and without the network. Before another can
    /// be elected this fails.
    pub fn check(&self) -> Result<(), Lost> {
        self.guard.check()
    }

    /// Whether it ends by its cap as things stand: as [`Guard::is_capped`].
    pub fn is_capped(&self) -> bool {
        self.guard.is_capped()
    }

    /// Waits until this is not the leader any more, and says why: as [`Guard::lost`].
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn lost(&self) -> Lost {
        self.guard.lost().await
    }

    /// A token that is cancelled when this is not the leader any more: as [`Guard::lost_signal`].
    pub fn lost_signal(&self) -> CancellationToken {
        self.guard.lost_signal()
    }

    /// Lengthens the leadership now: as [`Guard::extend`], also as to errors and cancel safety.
    pub async fn extend(&self) -> Result<(), ExtendError> {
        self.guard.extend().await
    }

    /// Lengthens it to last `lease` from now, if it would end earlier: as [`Guard::extend_to`], also as to errors and cancel
    /// safety.
    pub async fn extend_to(&self, lease: impl Into<Lease>) -> Result<(), ExtendError> {
        self.guard.extend_to(lease).await
    }

    /// Gives the leadership up: the next in the queue leads.
    ///
    /// Fails if it was over before, which says why, and if the store does not answer within the call timeout: then it ends
    /// with its lease at the latest. Once this has returned, nothing more is sent about it.
    ///
    /// Cancel safety: if the future is dropped, it resigns in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.guard).finish()
    }
}

/// Who leads, as others may know: [`Election::leader`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::builder("memory:").label("web-3").connect().await?;
/// let scheduler = client.election("scheduler")?;
/// assert_eq!(scheduler.leader().await?, None);
/// let leadership = scheduler.campaign().await?;
/// let leader = scheduler.leader().await?.expect("somebody leads");
/// assert_eq!((leader.label.as_str(), leader.fence), ("web-3", leadership.fencing_token()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// How its client calls itself for others.
    pub label: String,
    /// Its fencing token: greater than that of every earlier leader.
    pub fence: FencingToken,
    /// Since when it leads, by the store's clock.
    pub since: SystemTime,
    /// The session with which it ends to lead; none, where its lease alone ends it.
    pub session: Option<SessionId>,
}

impl Leader {
    /// The leader that a holder is, where he is one of ours.
    fn of(holder: Holder) -> Option<Self> {
        let Holder { label, fence, since_ms, session, .. } = holder;
        Some(Self {
            label: label?.to_string(),
            fence: fence?,
            since: SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms?),
            session,
        })
    }
}

/// The leaders of an election, one after the other: [`Election::observe`].
///
/// Each leader is told once, in the order of the fencing tokens; whoever led so shortly that he was over before anybody looked
/// is left out. On Redis changes are told by message, which is a hint: each is followed by a look. It looks on its own as
/// well: when the leader's lease would end, and every 5 to 10 s. On other stores, and where messages cannot come, it
/// looks every 250 to 500 ms; in memory at once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::builder("memory:").label("web-3").connect().await?;
/// let scheduler = client.election("scheduler")?;
/// let mut leaders = scheduler.observe();
/// assert_eq!(leaders.next().await?, None); // nobody leads yet
///
/// let leadership = scheduler.campaign().await?;
/// let leader = leaders.next().await?.expect("somebody leads");
/// println!("{} leads since {:?}", leader.label, leader.since);
///
/// leadership.resign().await?;
/// assert_eq!(leaders.next().await?, None);
/// # Ok(()) }
/// ```
#[must_use = "nothing is observed until it is asked for the next leader"]
pub struct Leaders {
    watching: Watching,
}

impl Leaders {
    /// The next leader, or `None` where nobody leads any more; the first time at once, who leads now, or `None`. It waits
    /// for as long as nothing changes.
    ///
    /// Fails if a look is not answered within the call timeout, or is refused. It can be called again: the next look comes
    /// after a pause, so calling it in a loop is no busy one.
    ///
    /// Cancel safety: if the future is dropped nothing is lost: what it would have given is given by the next call.
    pub async fn next(&mut self) -> Result<Option<Leader>, InspectError> {
        Ok(match self.watching.news().await? {
            News::Leader(holder) => Leader::of(holder),
            News::Nobody => None,
        })
    }

    /// The same as a stream, which does not end. After an error it goes on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use futures_util::StreamExt;
    /// use std::pin::pin;
    ///
    /// # let client = leasehold::Client::connect("memory:").await?;
    /// let mut leaders = pin!(client.election("scheduler")?.observe().into_stream());
    /// assert_eq!(leaders.next().await.expect("it does not end")?, None);
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
