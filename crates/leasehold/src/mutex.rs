//! The Mutex: one holder at a time.

use crate::census::{self, SessionInfo};
use crate::detached::DetachedHold;
use crate::engine::{self, Engine, Missed, NotDetached, Pursuit, Seat, Session, Won};
use crate::error::{AcquireError, Contention, ExtendError, FreeError, InspectError, LockError, RunError};
use crate::guard::Guard;
use crate::store::{Fault, Outcome};
use leasehold_core::contend::Terms;
use leasehold_core::tenure::{Caps, Plan, Tenure};
use leasehold_core::{
    AuditEntry, Ended, FencingToken, Free, Freed, Inspect, Inspection, Lease, LeaseError, Lock, LockName,
    Moment, Op, OwnValue, Reply, RetryPolicy, Seen, SessionId,
};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A lock with one holder at a time, over tasks, processes and hosts.
///
/// In Redis it is the key that other libraries share: `SET name token NX PX`. It does not re-enter: a
/// task that acquires it twice waits for itself.
///
/// Waiting is fair: the tasks of a process in the order in which they came, and processes likewise. A
/// release hands the lock to the next one and tells it so; nobody polls.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Attempt, Client};
/// use std::time::Duration;
///
/// let client = Client::connect("memory:").await?;
/// let nightly = client.mutex("nightly")?.lease(Duration::from_secs(60));
/// match nightly.try_acquire().await? {
///     Attempt::Granted(guard) => {
///         guard.check()?; // still ours? no network needed
///         guard.release().await?;
///     }
///     Attempt::Taken(contention) => println!("somebody else does it: {contention}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Mutex {
    engine: Arc<Engine>,
    seat: Arc<Seat>,
    lease: Option<Lease>,
    wait: Option<Duration>,
    retry: Option<RetryPolicy>,
    value: Option<OwnValue>,
    adopt: Option<Duration>,
    free_every: Option<u32>,
    max_hold: Option<Duration>,
    max_renewals: Option<u32>,
}

/// What came of a single try.
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
#[must_use = "a guard that is dropped gives the lock back"]
pub enum Attempt<H = Guard> {
    /// The lock is held.
    Granted(H),
    /// Somebody else holds it, or waits before.
    Taken(Contention),
}

impl<H> Attempt<H> {
    /// The guard, or the detached hold, if the lock is held.
    pub fn granted(self) -> Option<H> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Taken(_) => None,
        }
    }
}

/// How a lock stands.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// let guard = nightly.acquire().await?;
/// let status = nightly.inspect().await?;
/// if let (Some(holder), Some(remaining)) = (&status.holder, status.remaining) {
///     println!("{holder} has it for {remaining:?} unless it is renewed, and {} wait", status.waiting);
/// }
/// assert!(status.ours && status.fence == Some(guard.fencing_token()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The holder's name for others, if the lock is held by a client of ours.
    pub holder: Option<String>,
    /// Whether the lock is held.
    pub held: bool,
    /// Since when, by the store's clock.
    pub since: Option<SystemTime>,
    /// How long still, unless it is extended; `None` if it is free, or held without an expiry.
    pub remaining: Option<Duration>,
    /// The holder's fencing token.
    pub fence: Option<FencingToken>,
    /// The session whose death would end the hold; none, where its lease alone ends it.
    pub session: Option<SessionId>,
    /// How many sessions wait.
    pub waiting: u64,
    /// Whether a task of this client holds the lock, as far as the client knows by itself.
    pub ours: bool,
}

impl Status {
    pub(crate) fn of(seen: &Inspection, ours: bool) -> Self {
        let holder = seen.holder.as_ref();
        let instant = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        Self {
            held: holder.is_some(),
            holder: holder.and_then(|h| h.label.as_ref()).map(ToString::to_string),
            since: holder.and_then(|h| h.since_ms).map(instant),
            remaining: holder.and_then(|h| h.remaining_ms).map(Duration::from_millis),
            fence: holder.and_then(|h| h.fence),
            session: holder.and_then(|h| h.session),
            waiting: seen.waiting,
            ours,
        }
    }
}

/// How a lock stands, and what people want to know beside that: [`Mutex::inspect_in_full`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// let guard = nightly.acquire().await?;
/// let details = nightly.inspect_in_full().await?;
/// if let Some(about) = details.behind.as_ref().and_then(|session| session.about.as_ref()) {
///     println!("held by {} on {}, process {}", about.program, about.host, about.pid);
/// }
/// for entry in &details.audit {
///     println!("{:?} by {}", entry.how, entry.by);
/// }
/// assert_eq!(details.seen, Some(leasehold::Seen::Hold(guard.fencing_token())));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// How the lock stands.
    pub status: Status,
    /// The session of its holder; none where the holder has none, or the store has forgotten it.
    pub behind: Option<SessionInfo>,
    /// The holder as it was seen, to [free the lock by force](Mutex::free_by_force); nothing if nobody holds it.
    pub seen: Option<Seen>,
    /// Who took this lock from whom, the last first: the last 32 times, for a week.
    pub audit: Vec<AuditEntry>,
}

/// How long a hold is to last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    lease: Duration,
    cap: Option<Duration>,
}

impl Span {
    /// The lease to ask for.
    pub(crate) fn wanted(self) -> Duration {
        self.cap.map_or(self.lease, |cap| cap.min(self.lease))
    }
}

impl Mutex {
    pub(crate) fn new(engine: Arc<Engine>, lock: &Lock) -> Self {
        let seat = engine.seat(lock);
        Self {
            engine,
            seat,
            lease: None,
            wait: None,
            retry: None,
            value: None,
            adopt: None,
            free_every: None,
            max_hold: None,
            max_renewals: None,
        }
    }

    /// How long a hold lasts: it ends when the lease ends. Without a lease a watchdog renews the hold for
    /// as long as its guard lives.
    ///
    /// Every hold starts with a short lease of 3 s (or this one, if it is shorter) and is lengthened to this
    /// one in the background, at once.
    #[must_use]
    pub fn lease(mut self, lease: impl Into<Lease>) -> Self {
        self.lease = Some(lease.into());
        self
    }

    /// How long a hold lasts at most, whatever renews it: a cap for tasks that hang, which a watchdog would renew for
    /// ever. It counts from the moment in which the lock was acquired, as its caller sees it.
    ///
    /// At the cap the hold is lost, with [`LostReason::Capped`](crate::LostReason::Capped), and is then released at
    /// the store, so that the next waiter need not wait for the rest of the lease. An
    /// [`extend`](Guard::extend) reaches up to the cap; an [`extend_to`](Guard::extend_to) beyond it fails. A cap
    /// shorter than 1 ms makes acquiring fail with [`AcquireError::Lease`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, LostReason};
    /// use std::time::Duration;
    ///
    /// let index = Client::connect("memory:").await?.mutex("index")?.max_hold(Duration::from_millis(50));
    /// let guard = index.acquire().await?;
    /// let hangs = std::future::pending::<()>();
    /// tokio::select! {
    ///     () = hangs => guard.release().await?,
    ///     lost = guard.lost() => assert_eq!(lost.reason, LostReason::Capped),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn max_hold(mut self, cap: Duration) -> Self {
        self.max_hold = Some(cap);
        self
    }

    /// How often a hold is renewed at most; that it reaches its lease for the first time, after the first 3 s, is not
    /// counted. With 0 it lasts one lease of the watchdog's, with `n` as much longer as `n` renewals make it.
    ///
    /// Extends by the user count, too, if they lengthen the hold. Once the last one is used up,
    /// [`Guard::extend`] fails with [`ExtendError::Capped`](crate::ExtendError::Capped). When a hold that the
    /// watchdog renews then ends it is given up, as by [`max_hold`](Self::max_hold); one with a lease ends with it.
    #[must_use]
    pub fn max_renewals(mut self, most: u32) -> Self {
        self.max_renewals = Some(most);
        self
    }

    /// How long [`acquire`](Self::acquire) waits at most; for ever, if nothing is set.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Polls for the lock by this policy in place of queueing for it. It is then not fair, and costs a
    /// request a try. While it pauses between two tries, tasks of the same client that queue go first.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// The value at the lock's key, in place of a random token. It need not be unique: two holds with the
    /// same value exclude each other all the same. It is as good as a password for the lock.
    pub fn value(mut self, value: impl AsRef<str>) -> Result<Self, LockError> {
        self.value = Some(OwnValue::new(value)?);
        Ok(self)
    }

    /// Gives the key an expiry if a client of another library has locked it without one.
    #[must_use]
    pub fn adopt(mut self, expiry: Duration) -> Self {
        self.adopt = Some(expiry);
        self
    }

    /// Lets the lock lie free at every `every`th release of this process in place of handing it to the
    /// next waiter, for clients of other libraries that share it: they do not queue, and would starve.
    /// It also makes the first in the queue look more often. All clients of the lock should set it.
    #[must_use]
    pub fn share(mut self, every: u32) -> Self {
        self.free_every = Some(every.max(1));
        self
    }

    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.seat.lock.name
    }

    /// Tries once: takes the lock if it is free and nobody waits for it.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, an acquisition that may have happened is undone in the
    /// background.
    pub async fn try_acquire(&self) -> Result<Attempt, AcquireError> {
        let limit = self.engine.world.now() + self.engine.timings.call;
        match self.pursue(Some(limit), true).await? {
            Ok(guard) => Ok(Attempt::Granted(guard)),
            Err(Missed::Taken(standing)) => Ok(Attempt::Taken((*standing).into())),
            Err(missed) => Err(self.error(missed, self.engine.timings.call)),
        }
    }

    /// Acquires the lock, however long it takes, or for as long as [`wait`](Self::wait) says.
    ///
    /// Fails with [`AcquireError::TimedOut`] at the limit, and if the store refuses, or does not answer
    /// for as long as the client's outage limit.
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition
    /// that may have happened is undone in the background. Whoever waits in the same process keeps the
    /// process's place.
    pub async fn acquire(&self) -> Result<Guard, AcquireError> {
        self.acquire_within(self.wait).await
    }

    /// Acquires the lock within `limit`. Otherwise as [`acquire`](Self::acquire), also as to cancel
    /// safety.
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<Guard, AcquireError> {
        self.acquire_within(Some(limit)).await
    }

    /// Tries once, for a hold that no process keeps: see [`acquire_detached`](Self::acquire_detached).
    ///
    /// Fails as that does; that the lock is taken is a value.
    ///
    /// Cancel safety: as [`acquire_detached`](Self::acquire_detached).
    pub async fn try_acquire_detached(&self) -> Result<Attempt<DetachedHold>, AcquireError> {
        let call = self.engine.timings.call;
        let limit = self.engine.world.now() + call;
        match self.pursue_detached(Some(limit), true).await {
            Ok(hold) => Ok(Attempt::Granted(hold)),
            Err(NotDetached::Missed(Missed::Taken(standing))) => Ok(Attempt::Taken((*standing).into())),
            Err(not) => Err(self.not_detached(not, call)),
        }
    }

    /// Acquires the lock for a hold that no process keeps, however long it takes, or for as long as
    /// [`wait`](Self::wait) says. Nobody renews the hold: it ends with its [`lease`](Self::lease), which has to be
    /// given, or by [`DetachedHold::release`], by whoever has its text.
    ///
    /// When this returns, the hold has been lengthened from the short first lease to the one that was asked for,
    /// which counts from then. It belongs to no session of this client, and waits as one more: tasks of this client
    /// that want the lock are strangers to it.
    ///
    /// Fails with [`AcquireError::NoLease`] where no lease was set, with [`AcquireError::NotKept`] if the lock was
    /// granted and could not be lengthened, and otherwise as [`acquire`](Self::acquire).
    ///
    /// Cancel safety: if the future is dropped, its place in the queue is given up, and an acquisition that may have
    /// happened is undone in the background. Should the process end before that, the hold ends with the short first
    /// lease, or with its whole lease if that was on its way.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::{Client, DetachedHold};
    /// use std::time::Duration;
    ///
    /// let client = Client::connect("memory:").await?;
    /// let migration = client.mutex("migration")?.lease(Duration::from_secs(600));
    /// let secret = migration.acquire_detached().await?.to_secret_text();
    ///
    /// // Later, perhaps in another process that was handed the text:
    /// let hold: DetachedHold = secret.parse()?;
    /// hold.release(&client).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire_detached(&self) -> Result<DetachedHold, AcquireError> {
        let start = self.engine.world.now();
        let once = self.wait == Some(Duration::ZERO);
        let limit = if once { Some(self.engine.timings.call) } else { self.wait };
        match self.pursue_detached(limit.map(|limit| start + limit), once).await {
            Ok(hold) => Ok(hold),
            // Who waits for no time at all still tries once.
            Err(NotDetached::Missed(Missed::Taken(standing))) if once => {
                Err(self.error(Missed::TimedOut(standing), Duration::ZERO))
            }
            Err(not) => Err(self.not_detached(not, self.engine.world.now().since(start))),
        }
    }

    /// Runs a future under the lock, and drops it if the lock is lost. The closure is given the fencing
    /// token and the means to check the hold.
    ///
    /// Fails if the lock is not acquired, or lost before the future has ended. If giving it back fails,
    /// that is not an error: the future has ended by then.
    ///
    /// Cancel safety: if the future is dropped, the inner one is dropped with it, and the lock is given
    /// back in the background.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// let sum = client.mutex("sums")?.run(async |_guard| 1 + 1).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&Guard) -> T) -> Result<T, RunError> {
        let guard = self.acquire().await?;
        let lost = guard.lost_signal();
        let result = tokio::select! {
            biased;
            () = lost.cancelled() => Err(guard.loss()),
            result = work(&guard) => Ok(result),
        };
        match result {
            Err(lost) => Err(lost.into()),
            Ok(result) => {
                if let Err(error) = guard.release().await {
                    tracing::warn!(lock = %self.seat.lock, %error, "not released");
                }
                Ok(result)
            }
        }
    }

    /// How the lock stands. Changes nothing.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Status, InspectError> {
        let seen = self.look(false).await?;
        Ok(Status::of(&seen, self.seat.is_occupied(self.engine.world.now())))
    }

    /// How the lock stands, who is behind its holder, and who took it from whom. Changes nothing. A second question goes
    /// to the store's sessions, if the holder has one: for people, and not for every second.
    ///
    /// Fails if the store does not answer within the call timeout, or refuses.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        let seen = self.look(true).await?;
        let status = Status::of(&seen, self.seat.is_occupied(self.engine.world.now()));
        let behind = match status.session {
            Some(id) => {
                let sessions = census::sessions(&self.engine).await?;
                sessions.into_iter().find(|session| session.session == id)
            }
            None => None,
        };
        let holder = status.fence.map(Seen::Hold).or(seen.stranger.map(Seen::Stranger));
        Ok(Details { seen: holder, status, behind, audit: seen.audit })
    }

    /// Takes the lock from the holder that was [seen](Details::seen), dead or alive; the next in the queue gets it. Who
    /// lost it is told at once, with [`LostReason::Freed`](crate::LostReason::Freed), and believes in it until that
    /// message, its next renewal or the end of its lease: stop it first, if you can. What was done stands in the lock's
    /// audit, with this client's label.
    ///
    /// Nobody loses a lock that has come to him meanwhile: then it fails with [`FreeError::Changed`]. That this client,
    /// or another one of its label, has freed the same hold before is no error. It fails as well if the store does not
    /// answer within the call timeout, or refuses.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been freed, or may be yet.
    pub async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
        let op = Op::Free(Free { seen, by: self.engine.label.clone() });
        match self.send_free(seen, &op).await? {
            Reply::Free(Freed::Freed) => Ok(()),
            Reply::Free(Freed::Changed { holder }) => {
                if self.was_freed_by_us(seen).await? {
                    return Ok(());
                }
                Err(FreeError::Changed { now: Box::new(Contention { holder, ahead: None }) })
            }
            odd => Err(FreeError::Store(Fault::odd_reply(odd))),
        }
    }

    async fn send_free(&self, seen: Seen, op: &Op) -> Result<Reply, FreeError> {
        let (lock, within) = (&self.seat.lock, self.engine.timings.call);
        match seen {
            Seen::Hold(_) => self.engine.call(lock, op, within).await.map_err(|failed| {
                let wrap = if failed.maybe_done { FreeError::Unknown } else { FreeError::Store };
                wrap(failed.fault)
            }),
            // A second sending could not tell what the first one did from what others did.
            Seen::Stranger(_) => match self.engine.store.execute(lock, op, within).await {
                Outcome::Done(reply) => Ok(reply),
                Outcome::Refused(fault) => Err(FreeError::Store(fault)),
                Outcome::Unknown(fault) => Err(FreeError::Unknown(fault)),
            },
        }
    }

    /// Whether a hold that is not there any more was freed by what we sent: the reply to the first sending may have been
    /// lost.
    async fn was_freed_by_us(&self, seen: Seen) -> Result<bool, FreeError> {
        let Seen::Hold(fence) = seen else { return Ok(false) };
        let looked = self.look(true).await.map_err(|InspectError(fault)| FreeError::Unknown(fault))?;
        let ours = |entry: &AuditEntry| {
            entry.how == Ended::Freed && entry.fence == Some(fence) && entry.by == self.engine.label
        };
        Ok(looked.audit.iter().any(ours))
    }

    async fn look(&self, in_full: bool) -> Result<Inspection, InspectError> {
        let op = Op::Inspect(Inspect { claim: None, in_full });
        let reply = self.engine.call(&self.seat.lock, &op, self.engine.timings.call).await;
        match reply.map_err(|failed| failed.fault)? {
            Reply::Inspect(seen) => Ok(seen),
            odd => Err(Fault::odd_reply(odd).into()),
        }
    }

    async fn acquire_within(&self, limit: Option<Duration>) -> Result<Guard, AcquireError> {
        let start = self.engine.world.now();
        if limit == Some(Duration::ZERO) {
            return self.acquire_now(start).await;
        }
        match self.pursue(limit.map(|limit| start + limit), false).await? {
            Ok(guard) => Ok(guard),
            Err(missed) => Err(self.error(missed, self.engine.world.now().since(start))),
        }
    }

    /// Who waits for no time at all still tries once.
    async fn acquire_now(&self, start: Moment) -> Result<Guard, AcquireError> {
        let call = self.engine.timings.call;
        match self.pursue(Some(start + call), true).await? {
            Ok(guard) => Ok(guard),
            Err(Missed::Taken(standing)) => Err(self.error(Missed::TimedOut(standing), Duration::ZERO)),
            Err(missed) => Err(self.error(missed, call)),
        }
    }

    pub(crate) async fn pursue(
        &self,
        limit: Option<Moment>,
        once: bool,
    ) -> Result<Result<Guard, Missed>, LeaseError> {
        let span = self.span()?;
        let pursuit = self.pursuit(span.wanted(), limit, once, None);
        match engine::acquire(&self.engine, &self.seat, &pursuit).await {
            Ok(won) => self.keep(won, span),
            Err(missed) => Ok(Err(missed)),
        }
    }

    /// How long a hold is to last, as things are now.
    pub(crate) fn span(&self) -> Result<Span, LeaseError> {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.world.wall())?,
            None => self.engine.timings.watchdog,
        };
        let cap = self.max_hold.map(|cap| Lease::For(cap).check().map(|_| cap)).transpose()?;
        Ok(Span { lease, cap })
    }

    /// Has the keeper keep what was won, and gives the guard.
    pub(crate) fn keep(&self, won: Won<'_>, span: Span) -> Result<Result<Guard, Missed>, LeaseError> {
        let world = &self.engine.world;
        let Span { lease, cap } = span;
        let (hold, grant) = (won.hold.clone(), &won.grant);
        let now = world.now();
        // What the lease is now, where it should last until an instant; which may have passed meanwhile.
        let left = self.lease.map(|asked| asked.remaining(world.wall())).transpose();
        let plan = match &left {
            Ok(None) => Plan::Renew { lease },
            Ok(Some(left)) => Plan::Until { end: now + *left },
            Err(_) => Plan::Until { end: now },
        };
        let caps = Caps { end: cap.map(|cap| now + cap), renewals: self.max_renewals };
        let tenure = Tenure::capped(plan, caps, grant.valid_until, now);
        // The place may have been asked for by a task that wanted the lock for longer.
        hold.cap(tenure.valid_until());
        let Some(keep) = self.engine.keeper.keep(hold.clone(), tenure) else {
            won.give_back(&self.engine);
            return Ok(Err(Missed::Closed));
        };
        drop(won);
        let guard =
            Guard::new(self.engine.clone(), self.seat.clone(), hold, keep, self.lease, self.free_every);
        left.map(|_| Ok(guard))
    }

    async fn pursue_detached(&self, limit: Option<Moment>, once: bool) -> Result<DetachedHold, NotDetached> {
        let world = &self.engine.world;
        let asked = self.lease.ok_or(NotDetached::NoLease)?;
        let lease = asked.remaining(world.wall()).map_err(NotDetached::Lease)?;
        let session = engine::own_session(&self.engine);
        let pursuit = self.pursuit(lease, limit, once, Some(session.clone()));
        let lock = &self.seat.lock;
        let detached = engine::acquire_detached(&self.engine, lock, session.id, pursuit, asked).await?;
        let ends_by = world.wall() + detached.lease;
        Ok(DetachedHold::new(lock.clone(), detached, ends_by))
    }

    /// How it is sought, in the name of a session of its own or of the client's.
    pub(crate) fn pursuit(
        &self,
        lease: Duration,
        limit: Option<Moment>,
        once: bool,
        own: Option<Arc<Session>>,
    ) -> Pursuit {
        let session = own.clone().unwrap_or_else(|| self.engine.sessions.present());
        let terms = Arc::new(Terms {
            lease,
            label: self.engine.label.clone(),
            value: self.value.clone(),
            adopt: self.adopt,
            life: session.life,
            queue: !once && self.retry.is_none(),
            look_often: self.free_every.is_some() || !self.engine.store.has_mailboxes(),
        });
        Pursuit { terms, session: own, limit, once, retry: self.retry }
    }

    fn not_detached(&self, not: NotDetached, waited: Duration) -> AcquireError {
        match not {
            NotDetached::NoLease => AcquireError::NoLease,
            NotDetached::Missed(missed) => self.error(missed, waited),
            NotDetached::Lease(error) => AcquireError::Lease(error),
            NotDetached::NotKept { fence, why } => {
                AcquireError::NotKept(Box::new(ExtendError::of(why, self.name(), fence)))
            }
        }
    }

    pub(crate) fn error(&self, missed: Missed, waited: Duration) -> AcquireError {
        let lock = self.name().clone();
        match missed {
            Missed::TimedOut(standing) => {
                AcquireError::TimedOut { lock, waited, contention: Box::new((*standing).into()) }
            }
            Missed::Taken(standing) => {
                AcquireError::OutOfTries { lock, contention: Box::new((*standing).into()) }
            }
            Missed::Fault { fault, maybe_there: false } => AcquireError::Store(fault),
            Missed::Fault { fault, maybe_there: true } => AcquireError::Unknown(fault),
            Missed::Closed => AcquireError::Closed,
            Missed::TooSlow => AcquireError::LeaseTooShort { lease: self.shortest_lease() },
        }
    }

    fn shortest_lease(&self) -> Duration {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.world.wall()).unwrap_or(Lease::MIN),
            None => self.engine.timings.watchdog,
        };
        self.max_hold.map_or(lease, |cap| cap.min(lease))
    }
}
