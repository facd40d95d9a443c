//! The state of a lock of any kind, and the operations of an operator on it.

use crate::client::session_info::{self, SessionInfo};
use crate::error::{ForceReleaseError, InspectError, ResizeError};
use crate::guard::owner::Owner;
use crate::lock::contention::Contention;
use crate::lock::handle::LockHandle;
use crate::store::{Fault, Outcome};
use crate::telemetry::Operation;
use leasehold_core::Executed;
use leasehold_core::{
    AuditEntry, Ended, Evict, Evicted, FencingToken, ForceRelease, ForceReleased, HistoryEntry, Holder,
    Inspect, Inspection, LockMode, MAX_SHARED_HOLDERS, Moment, ObservedHolder, Op, Reply, Resize, Resized,
    SessionId, Skipped, Votes,
};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

/// How often a resize is retried while other clients change the number too.
const MAX_RESIZE_ATTEMPTS: u32 = 16;
/// How many sessions a client inspects before it reports that the holders use another number of permits.
const MAX_INSPECTED_SESSIONS: usize = 16;
/// How many full lists of holders a forced release of all goes through: others may acquire the lock as fast as it releases.
const MAX_FORCED_LISTS: u32 = 64;

/// The state of a lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// let guard = nightly.acquire().await?;
/// let status = nightly.inspect().await?;
/// if let (Some(holder), Some(remaining)) = (&status.holder, status.remaining) {
///     println!("held by {holder} for {remaining:?} unless it is renewed, {} waiting", status.waiting);
/// }
/// assert!(status.held_by_this_client && status.fence == Some(guard.fencing_token()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The holder's label, if the lock is held by a client of this library.
    pub holder: Option<String>,
    /// Whether the lock is held.
    pub held: bool,
    /// Whether the last holder is done, and the lock stays taken until a later time:
    /// [`OncePer`](crate::OncePer),
    /// [`DetachedHold::release_not_before`](crate::DetachedHold::release_not_before). The lock counts as
    /// [held](Self::held) then, though no client works under it.
    pub in_cooldown: bool,
    /// When it was acquired, by the store's clock.
    pub since: Option<SystemTime>,
    /// How much longer it is held, unless it is extended; `None` if it is free, or held without an expiry.
    pub remaining: Option<Duration>,
    /// The owner that holds a ReentrantMutex, whichever library its client uses; `None` for a Mutex.
    pub owner: Option<Owner>,
    /// How many holds the owner has; for a Mutex, 1 if it is held.
    pub count: u64,
    /// The holder's fencing token.
    pub fence: Option<FencingToken>,
    /// The session whose death would end the hold; `None` if it ends with its lease alone.
    pub session: Option<SessionId>,
    /// The number of waiters: sessions, or single holds where each has its own queue entry.
    pub waiting: u64,
    /// All holders of a lock that can be shared, oldest first; at most 4096. The holder above is the first.
    pub shared_holders: Vec<SharedHolder>,
    /// The total number of permits, arrivals or parties, if known. For a Semaphore that the store does not know, the number
    /// given to the handle.
    pub limit: Option<u32>,
    /// The number with which the clients of a Semaphore acquire, if a resize has set another limit: 0 until one of them does.
    pub(crate) agreed: Option<u32>,
    /// How many nodes of a quorum report this holder; `None` for any other store, and if the lock is free.
    pub votes: Option<Votes>,
    /// Set over a quorum if the lock is not held and yet no client can acquire it for so long: too few nodes are free, or vote.
    /// A node does not vote for a while after its start.
    pub blocked: Option<Duration>,
    /// Whether a task of this client holds the lock, of whatever kind, as far as the client itself knows: the answer to
    /// "is it mine?" without a guard. Labels, sessions and tokens need not be compared for it, and do not give the answer
    /// for every kind and store. A task that has the guard asks [`Guard::check`](crate::Guard::check), which needs no
    /// request, and how often an owner holds a lock says [`ReentrantMutex::hold_count`](crate::ReentrantMutex::hold_count).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::Client;
    ///
    /// let (here, elsewhere) = (Client::connect("memory:app").await?, Client::connect("memory:app").await?);
    /// let guard = here.mutex("nightly")?.acquire().await?;
    /// assert!(here.mutex("nightly")?.inspect().await?.held_by_this_client);
    /// assert!(!elsewhere.mutex("nightly")?.inspect().await?.held_by_this_client);
    /// guard.check()?; // the same for the task that has the guard
    /// # Ok(()) }
    /// ```
    pub held_by_this_client: bool,
}

/// One holder of a lock that can be shared.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::inspect::LockMode;
///
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let guard = index.read().await?;
/// let status = index.inspect().await?;
/// assert_eq!((status.shared_holders.len(), status.shared_holders[0].mode), (1, LockMode::Read));
/// index.force_release(status.shared_holders[0].observed().expect("it has a fencing token")).await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedHolder {
    /// The holder's label.
    pub label: Option<String>,
    /// The mode in which it holds the lock.
    pub mode: LockMode,
    /// The owner, for an RwLock.
    pub owner: Option<Owner>,
    /// When it was acquired, by the store's clock.
    pub since: Option<SystemTime>,
    /// How much longer it is held, unless it is extended.
    pub remaining: Option<Duration>,
    /// The holder's fencing token.
    pub fence: Option<FencingToken>,
    /// The session whose death would end the hold; `None` if it ends with its lease alone.
    pub session: Option<SessionId>,
}

impl SharedHolder {
    /// Returns this hold as an argument of `force_release`.
    pub fn observed(&self) -> Option<ObservedHolder> {
        self.fence.map(ObservedHolder::Hold)
    }

    fn new(holder: &Holder) -> Self {
        Self {
            label: holder.label.as_ref().map(ToString::to_string),
            mode: holder.mode,
            owner: holder.owner.clone().map(Owner::from_store),
            since: holder.since_ms.map(system_time),
            remaining: holder.remaining_ms.map(Duration::from_millis),
            fence: holder.fence,
            session: holder.session,
        }
    }
}

/// A waiter in the queue of a lock: [`FullStatus::queue`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
///
/// let (here, elsewhere) = (Client::connect("memory:app").await?, Client::connect("memory:app").await?);
/// let guard = here.mutex("nightly")?.acquire().await?;
/// let theirs = elsewhere.mutex("nightly")?;
/// let waiting = tokio::spawn(async move { theirs.acquire().await });
/// # while here.mutex("nightly")?.inspect().await?.waiting == 0 { tokio::task::yield_now().await }
/// let details = here.mutex("nightly")?.inspect_full().await?;
/// for (at, waiter) in details.queue.iter().enumerate() {
///     let host = details.waiter_session(waiter).and_then(|session| session.metadata.as_ref()).map(|of| &of.host);
///     println!("{}. {:?} on {host:?}", at + 1, waiter.label);
/// }
/// assert_eq!(details.queue.len(), 1);
/// # guard.release().await?;
/// # waiting.await??;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuedWaiter {
    /// The session that waits.
    pub session: SessionId,
    /// The waiter's label; `None` over a quorum, whose nodes know the session alone.
    pub label: Option<String>,
    /// The mode for which it waits.
    pub mode: LockMode,
    /// Since when it waits, by the wall clock of its machine, or over a quorum by the store's clock. Known once it has waited for
    /// about half a second. If several tasks of a process wait for a lock that is exclusive, it is the first of them.
    pub since: Option<SystemTime>,
}

impl QueuedWaiter {
    fn new(waiter: &leasehold_core::QueuedWaiter) -> Self {
        Self {
            session: waiter.session,
            label: waiter.label.as_ref().map(ToString::to_string),
            mode: waiter.mode,
            since: waiter.since_ms.map(system_time),
        }
    }
}

fn system_time(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

impl Status {
    /// Returns how many permits are held, or how many arrivals have been counted, as far as their
    /// [holders](Self::shared_holders) are listed.
    pub fn taken(&self) -> u64 {
        self.shared_holders.iter().map(|holder| u64::from(holder.mode.count())).sum()
    }

    pub(crate) fn new(inspection: &Inspection, held_by_this_client: bool) -> Self {
        let holder = inspection.holder.as_ref();
        Self {
            held: holder.is_some(),
            in_cooldown: holder.is_some_and(|h| h.in_cooldown),
            holder: holder.and_then(|h| h.label.as_ref()).map(ToString::to_string),
            since: holder.and_then(|h| h.since_ms).map(system_time),
            remaining: holder.and_then(|h| h.remaining_ms).map(Duration::from_millis),
            owner: holder.and_then(|h| h.owner.clone()).map(Owner::from_store),
            count: holder.map_or(0, |h| h.count),
            fence: holder.and_then(|h| h.fence),
            session: holder.and_then(|h| h.session),
            waiting: inspection.waiters,
            shared_holders: inspection.shared_holders.iter().map(SharedHolder::new).collect(),
            limit: inspection.limit,
            agreed: inspection.agreed,
            votes: inspection.votes,
            blocked: inspection.blocked_ms.map(Duration::from_millis),
            held_by_this_client,
        }
    }
}

/// The state of a lock with the details an operator needs:
/// [`Mutex::inspect_full`](crate::Mutex::inspect_full).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let nightly = leasehold::Client::connect("memory:").await?.mutex("nightly")?;
/// let guard = nightly.acquire().await?;
/// let details = nightly.inspect_full().await?;
/// if let Some(metadata) = details.holder_session.as_ref().and_then(|session| session.metadata.as_ref()) {
///     println!("held by {} on {}, process {}", metadata.program, metadata.host, metadata.pid);
/// }
/// for entry in &details.audit {
///     println!("{:?} by {}", entry.ended, entry.actor);
/// }
/// assert_eq!(details.observed, Some(leasehold::inspect::ObservedHolder::Hold(guard.fencing_token())));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FullStatus {
    /// The state of the lock.
    pub status: Status,
    /// The holder's session; `None` if the holder has none, or the store has forgotten it.
    pub holder_session: Option<SessionInfo>,
    /// The holder as observed now, for a [forced release](crate::Mutex::force_release); `None` if the lock is
    /// not held.
    pub observed: Option<ObservedHolder>,
    /// The sessions of all holders of a lock that can be shared, as far as the store knows them.
    pub sessions: Vec<SessionInfo>,
    /// The waiters, in the order in which they will be served: the first 256. Over a quorum, an order that is only a hint.
    pub queue: Vec<QueuedWaiter>,
    /// The sessions of these waiters, as far as the store knows them.
    pub waiter_sessions: Vec<SessionInfo>,
    /// What this leaves out because it cannot be read, as another program has written it: the session of a holder, a
    /// holder, or a line of the audit or the history.
    pub skipped: Skipped,
    /// The audit of holds that another client ended, by eviction of a dead holder or by force: the last 32,
    /// kept for a week, latest first.
    pub audit: Vec<AuditEntry>,
    /// The last holds that were released, latest first, if their clients [wanted that](crate::Mutex::history).
    pub history: Vec<HistoryEntry>,
}

impl FullStatus {
    /// Returns the session of one of the holders in [`Status::shared_holders`].
    pub fn shared_holder_session(&self, holder: &SharedHolder) -> Option<&SessionInfo> {
        self.sessions.iter().find(|session| Some(session.id) == holder.session)
    }

    /// Returns the session of one of the waiters in [`queue`](Self::queue).
    pub fn waiter_session(&self, waiter: &QueuedWaiter) -> Option<&SessionInfo> {
        self.waiter_sessions.iter().find(|session| session.id == waiter.session)
    }
}

impl LockHandle {
    /// Returns the state of the lock.
    pub(crate) async fn inspect(&self) -> Result<Status, InspectError> {
        let inspection = self.inspect_store(false).await?;
        Ok(Status::new(&inspection, self.is_held_by_this_client()))
    }

    /// Returns the state of the lock with the details an operator needs.
    pub(crate) async fn inspect_full(&self) -> Result<FullStatus, InspectError> {
        let inspection = self.inspect_store(true).await?;
        let status = Status::new(&inspection, self.is_held_by_this_client());
        let mut queue: Vec<_> = inspection.queue.iter().map(QueuedWaiter::new).collect();
        let holders: HashSet<_> =
            status.shared_holders.iter().filter_map(|holder| holder.session).chain(status.session).collect();
        // A quorum, whose waiters have no labels, keeps no sessions.
        let waiters: HashSet<_> =
            queue.iter().filter(|waiter| waiter.label.is_some()).map(|waiter| waiter.session).collect();
        let (mut sessions, mut skipped) = (Vec::new(), inspection.skipped);
        if !holders.is_empty() || !waiters.is_empty() {
            let named = holders.union(&waiters).copied().collect();
            // The lock is described without them as well.
            match session_info::find(&self.engine, self.entry.partition, named).await {
                Ok(found) => {
                    skipped.merge(found.skipped);
                    sessions = found.items;
                }
                Err(fault) => skipped.add(|| format!("the sessions of the holders and waiters: {fault}")),
            }
        }
        let holder_session = sessions.iter().find(|session| Some(session.id) == status.session).cloned();
        let mut told: HashMap<_, usize> = HashMap::new();
        for waiter in queue.iter_mut().filter(|waiter| waiter.since.is_none()) {
            let session = sessions.iter().find(|session| session.id == waiter.session);
            let waits = session.map(|session| session.waits_since(&self.entry.lock, waiter.mode));
            // Each hold of a shared lock for which it waits has an entry of its own.
            let before = told.entry((waiter.session, waiter.mode.encode())).or_default();
            waiter.since = waits.and_then(|waits| waits.get(*before).copied());
            *before += 1;
        }
        let waiter_sessions =
            sessions.iter().filter(|session| waiters.contains(&session.id)).cloned().collect();
        let is_shared = !status.shared_holders.is_empty();
        sessions.retain(|session| is_shared && holders.contains(&session.id));
        let observed = status
            .fence
            .map(ObservedHolder::Hold)
            .or(inspection.foreign_fingerprint.map(ObservedHolder::Foreign));
        let (audit, history) = (inspection.audit, inspection.history);
        Ok(FullStatus {
            status,
            holder_session,
            observed,
            sessions,
            queue,
            waiter_sessions,
            skipped,
            audit,
            history,
        })
    }

    /// Whether a task of this client holds the lock.
    fn is_held_by_this_client(&self) -> bool {
        let now = self.engine.environment.now();
        if self.entry.lock.kind.is_shared() {
            // Each hold has an entry of its own.
            self.engine.keeper.holds(&self.entry.lock, now)
        } else {
            self.entry.is_held(now)
        }
    }

    /// Removes from the lock the dead sessions among those that hold it, at most for the call timeout and until the limit.
    /// Returns whether any hold is known to have ended.
    pub(crate) async fn evict_dead(&self, limit: Option<Moment>) -> bool {
        let mut ended = false;
        let evicts = async { ended = self.evict_each_dead().await.unwrap_or(false) };
        self.unless_reached(limit, evicts).await && ended
    }

    async fn evict_each_dead(&self) -> Result<bool, Fault> {
        let status = self.inspect().await.map_err(|InspectError(fault)| fault)?;
        let mut sessions: Vec<_> = status.shared_holders.iter().filter_map(|holder| holder.session).collect();
        sessions.sort_unstable();
        sessions.dedup();
        let mut ended = false;
        for session in sessions.into_iter().take(MAX_INSPECTED_SESSIONS) {
            let op = Op::Evict(Evict { session, actor: self.engine.label.clone() });
            let reply = self.engine.call(&self.entry.lock, &op, self.engine.timings.call).await;
            let reply = reply.map_err(|failed| failed.fault)?;
            ended |= matches!(reply, Reply::Evict(Evicted::Removed { fence: Some(_), .. }));
        }
        Ok(ended)
    }

    /// Changes the number of permits.
    pub(crate) async fn resize(&self, limit: u32) -> Result<(), ResizeError> {
        let mut observed = None;
        for _ in 0..MAX_RESIZE_ATTEMPTS {
            match self.resize_once(Resize { observed, limit, agreed: false }).await? {
                Resized::Done => return Ok(()),
                Resized::Changed { limit } => observed = limit,
            }
        }
        Err(ResizeError::Contended { limit: observed })
    }

    /// Changes the number of permits if it is as observed, within a call.
    async fn resize_once(&self, resize: Resize) -> Result<Resized, ResizeError> {
        self.resize_within(resize, self.engine.timings.call).await
    }

    /// The same for an acquire: until its limit, or, without one, for as long as it tolerates a store that does not answer.
    pub(crate) async fn resize_until(
        &self,
        resize: Resize,
        limit: Option<Moment>,
    ) -> Result<Resized, ResizeError> {
        let within = limit.map_or(self.engine.timings.outage, |limit| limit.since(self.now()));
        self.resize_within(resize, within).await
    }

    async fn resize_within(&self, resize: Resize, within: Duration) -> Result<Resized, ResizeError> {
        let (op, each) = (Op::Resize(resize), self.engine.timings.call);
        let reply = self.engine.call_in_parts(&self.entry.lock, &op, within, each).await;
        let reply = reply.map_err(|failed| match failed.executed {
            Executed::No => ResizeError::Store(failed.fault),
            Executed::Unknown => ResizeError::Unknown(failed.fault),
        })?;
        match reply {
            Reply::Resize(resized) => Ok(resized),
            Reply::Refused(refused) if refused.is_permanent() => Err(ResizeError::Impossible(refused)),
            other => Err(ResizeError::Store(Fault::unexpected_reply(other))),
        }
    }

    /// Releases by force all holds of a shared lock in these modes that exist when the call begins; returns how many. The
    /// store lists the oldest [`MAX_SHARED_HOLDERS`]: it ends when none of them has such a mode, and after
    /// [`MAX_FORCED_LISTS`] such lists.
    pub(crate) async fn force_release_all(
        &self,
        ends: impl Fn(LockMode) -> bool,
    ) -> Result<u64, ForceReleaseError> {
        let mut ended = 0;
        for _ in 0..MAX_FORCED_LISTS {
            let status =
                self.inspect().await.map_err(|InspectError(fault)| ForceReleaseError::Store(fault))?;
            let mut is_last = true;
            for observed in
                status.shared_holders.iter().filter(|held| ends(held.mode)).filter_map(SharedHolder::observed)
            {
                is_last = status.shared_holders.len() < MAX_SHARED_HOLDERS;
                match self.force_release(observed).await {
                    Ok(()) => ended += 1,
                    // It has ended by itself.
                    Err(ForceReleaseError::Changed { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if is_last {
                break;
            }
        }
        Ok(ended)
    }

    /// Releases by force the hold that was observed.
    pub(crate) async fn force_release(&self, observed: ObservedHolder) -> Result<(), ForceReleaseError> {
        let op = Op::ForceRelease(ForceRelease { observed, actor: self.engine.label.clone() });
        match self.send_force_release(observed, &op).await? {
            Reply::ForceRelease(ForceReleased::Released) => Ok(()),
            Reply::ForceRelease(ForceReleased::Changed { holder }) => {
                if self.was_force_released_by_us(observed).await? {
                    return Ok(());
                }
                Err(ForceReleaseError::Changed { contention: Box::new(Contention { holder, ahead: None }) })
            }
            other => Err(ForceReleaseError::Store(Fault::unexpected_reply(other))),
        }
    }

    async fn send_force_release(
        &self,
        observed: ObservedHolder,
        op: &Op,
    ) -> Result<Reply, ForceReleaseError> {
        let (lock, within) = (&self.entry.lock, self.engine.timings.call);
        match observed {
            ObservedHolder::Hold(_) => {
                self.engine.call(lock, op, within).await.map_err(|failed| match failed.executed {
                    Executed::No => ForceReleaseError::Store(failed.fault),
                    Executed::Unknown => ForceReleaseError::Unknown(failed.fault),
                })
            }
            // Not resent: a second request could not tell its own effect from another client's.
            ObservedHolder::Foreign(_) => {
                let request = self.engine.telemetry.request();
                let outcome = self.engine.store.execute(lock, op, within).await;
                request.answered(op.operation(), &outcome);
                match outcome {
                    Outcome::Done(reply) => Ok(reply),
                    Outcome::Failed(Executed::No, fault) => Err(ForceReleaseError::Store(fault)),
                    Outcome::Failed(Executed::Unknown, fault) => Err(ForceReleaseError::Unknown(fault)),
                }
            }
        }
    }

    /// Whether this client's own request released a hold that no longer exists: the reply to the first
    /// attempt may have been lost.
    async fn was_force_released_by_us(&self, observed: ObservedHolder) -> Result<bool, ForceReleaseError> {
        let ObservedHolder::Hold(fence) = observed else { return Ok(false) };
        let inspection = self
            .inspect_store(true)
            .await
            .map_err(|InspectError(fault)| ForceReleaseError::Unknown(fault))?;
        let ours = |entry: &AuditEntry| {
            entry.ended == Ended::ForceReleased
                && entry.fence == Some(fence)
                && entry.actor == self.engine.label
        };
        Ok(inspection.audit.iter().any(ours))
    }

    pub(crate) async fn inspect_store(&self, details: bool) -> Result<Inspection, InspectError> {
        let op = Op::Inspect(Inspect { claim: None, details });
        let reply = self.engine.call(&self.entry.lock, &op, self.engine.timings.call).await;
        match reply.map_err(|failed| failed.fault)? {
            Reply::Inspect(inspection) => Ok(inspection),
            other => Err(Fault::unexpected_reply(other).into()),
        }
    }
}
