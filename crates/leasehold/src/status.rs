//! How a lock stands, of whatever kind, and what a person does about it.

use crate::error::{Contention, FreeError, InspectError, ResizeError};
use crate::owner::Owner;
use crate::request::Request;
use crate::session_info::{self, SessionInfo};
use crate::store::{Fault, Outcome};
use leasehold_core::Executed;
use leasehold_core::{
    AuditEntry, Ended, FencingToken, Free, Freed, Holder, Inspect, Inspection, Op, Portion, Reply, Resize,
    Resized, Seen, SessionId,
};
use std::collections::HashSet;
use std::time::{Duration, SystemTime};

/// How often the number of permits is tried to be changed while others change it.
const RESIZES: u32 = 16;

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
    /// Whether the one who had it is done with it, and has left it taken until its time is over:
    /// [`OncePer`](crate::OncePer), [`DetachedHold::release_not_before`](crate::DetachedHold::release_not_before). It is
    /// [held](Self::held) then, and nobody works under it.
    pub rests: bool,
    /// Since when, by the store's clock.
    pub since: Option<SystemTime>,
    /// How long still, unless it is extended; `None` if it is free, or held without an expiry.
    pub remaining: Option<Duration>,
    /// Who has a ReentrantMutex, whichever library's client he is; `None` for a Mutex.
    pub owner: Option<Owner>,
    /// How often he has it; of a Mutex, 1 if it is held.
    pub count: u64,
    /// The holder's fencing token.
    pub fence: Option<FencingToken>,
    /// The session whose death would end the hold; none, where its lease alone ends it.
    pub session: Option<SessionId>,
    /// How many wait: sessions, or holds where each has a place of its own.
    pub waiting: u64,
    /// All who have it, of a lock that several can have side by side, the oldest first; no more than 4096 of them. The
    /// holder above is the first.
    pub sharers: Vec<Sharer>,
    /// How many permits, arrivals or parties there are in all, where that is known.
    pub limit: Option<u32>,
    /// Whether a task of this client holds the lock, as far as the client knows by itself.
    pub ours: bool,
}

/// One of those who have a lock that several can have side by side.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Portion;
///
/// let index = leasehold::Client::connect("memory:").await?.rwlock("index")?;
/// let guard = index.read().await?;
/// let status = index.inspect().await?;
/// assert_eq!((status.sharers.len(), status.sharers[0].portion), (1, Portion::Read));
/// index.free_by_force(status.sharers[0].seen().expect("it has a fencing token")).await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sharer {
    /// Its name for others.
    pub holder: Option<String>,
    /// What part of the lock it has.
    pub portion: Portion,
    /// Who has it, of an RwLock.
    pub owner: Option<Owner>,
    /// Since when, by the store's clock.
    pub since: Option<SystemTime>,
    /// How long still, unless it is extended.
    pub remaining: Option<Duration>,
    /// Its fencing token.
    pub fence: Option<FencingToken>,
    /// The session whose death would end the hold; none, where its lease alone ends it.
    pub session: Option<SessionId>,
}

impl Sharer {
    /// The hold, for `free_by_force`.
    pub fn seen(&self) -> Option<Seen> {
        self.fence.map(Seen::Hold)
    }

    fn of(holder: &Holder) -> Self {
        Self {
            holder: holder.label.as_ref().map(ToString::to_string),
            portion: holder.portion,
            owner: holder.owner.clone().map(Owner::told),
            since: holder.since_ms.map(instant),
            remaining: holder.remaining_ms.map(Duration::from_millis),
            fence: holder.fence,
            session: holder.session,
        }
    }
}

fn instant(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

impl Status {
    /// How many permits are taken, or how many have arrived, as far as those are [told](Self::sharers) who have them.
    pub fn taken(&self) -> u64 {
        self.sharers.iter().map(|sharer| u64::from(sharer.portion.count())).sum()
    }

    pub(crate) fn of(seen: &Inspection, ours: bool) -> Self {
        let holder = seen.holder.as_ref();
        Self {
            held: holder.is_some(),
            rests: holder.is_some_and(|h| h.rests),
            holder: holder.and_then(|h| h.label.as_ref()).map(ToString::to_string),
            since: holder.and_then(|h| h.since_ms).map(instant),
            remaining: holder.and_then(|h| h.remaining_ms).map(Duration::from_millis),
            owner: holder.and_then(|h| h.owner.clone()).map(Owner::told),
            count: holder.map_or(0, |h| h.count),
            fence: holder.and_then(|h| h.fence),
            session: holder.and_then(|h| h.session),
            waiting: seen.waiting,
            sharers: seen.sharers.iter().map(Sharer::of).collect(),
            limit: seen.limit,
            ours,
        }
    }
}

/// How a lock stands, and what people want to know beside that:
/// [`Mutex::inspect_in_full`](crate::Mutex::inspect_in_full).
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
    /// The holder as it was seen, to [free the lock by force](crate::Mutex::free_by_force); nothing if nobody holds it.
    pub seen: Option<Seen>,
    /// The sessions of all who have it, of a lock that several can have side by side, as far as the store knows them.
    pub sessions: Vec<SessionInfo>,
    /// Who took this lock from whom, the last first: the last 32 times, for a week.
    pub audit: Vec<AuditEntry>,
}

impl Details {
    /// Who is behind one of those who have it: [`Status::sharers`] says who they are.
    pub fn behind_sharer(&self, sharer: &Sharer) -> Option<&SessionInfo> {
        self.sessions.iter().find(|session| Some(session.session) == sharer.session)
    }
}

impl Request {
    /// How the lock stands.
    pub(crate) async fn inspect(&self) -> Result<Status, InspectError> {
        let seen = self.look(false).await?;
        Ok(Status::of(&seen, self.is_ours(&seen)))
    }

    /// The same, with what people want to know beside that.
    pub(crate) async fn inspect_in_full(&self) -> Result<Details, InspectError> {
        let seen = self.look(true).await?;
        let status = Status::of(&seen, self.is_ours(&seen));
        let of_sharers = status.sharers.iter().filter_map(|sharer| sharer.session);
        let concerned: HashSet<_> = status.session.into_iter().chain(of_sharers).collect();
        let mut sessions = Vec::new();
        if !concerned.is_empty() {
            sessions = session_info::sessions(&self.engine).await?;
            sessions.retain(|session| concerned.contains(&session.session));
        }
        let behind = sessions.iter().find(|session| Some(session.session) == status.session).cloned();
        if status.sharers.is_empty() {
            sessions.clear();
        }
        let holder = status.fence.map(Seen::Hold).or(seen.stranger.map(Seen::Stranger));
        Ok(Details { seen: holder, status, behind, sessions, audit: seen.audit })
    }

    /// Whether a task of this client has the lock.
    fn is_ours(&self, seen: &Inspection) -> bool {
        let own = Some(self.engine.sessions.id_at(self.seat.place));
        if self.seat.lock.kind.is_shared() {
            seen.sharers.iter().any(|sharer| sharer.session == own)
        } else {
            self.seat.is_occupied(self.engine.world.now())
        }
    }

    /// Says how many permits there are.
    pub(crate) async fn resize(&self, limit: u32) -> Result<(), ResizeError> {
        let mut seen = None;
        for _ in 0..RESIZES {
            let op = Op::Resize(Resize { seen, limit });
            let reply = self.engine.call(&self.seat.lock, &op, self.engine.timings.call).await;
            let reply = reply.map_err(|failed| match failed.executed {
                Executed::No => ResizeError::Store(failed.fault),
                Executed::Unknown => ResizeError::Unknown(failed.fault),
            })?;
            match reply {
                Reply::Resize(Resized::Done) => return Ok(()),
                Reply::Resize(Resized::Changed { limit: known }) => seen = known,
                Reply::Refused(refused) if refused.is_of_the_asked() => {
                    return Err(ResizeError::Impossible(refused));
                }
                odd => return Err(ResizeError::Store(Fault::odd_reply(odd))),
            }
        }
        Err(ResizeError::Contended { limit: seen })
    }

    /// Takes the lock from the holder that was seen.
    pub(crate) async fn free_by_force(&self, seen: Seen) -> Result<(), FreeError> {
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
            Seen::Hold(_) => {
                self.engine.call(lock, op, within).await.map_err(|failed| match failed.executed {
                    Executed::No => FreeError::Store(failed.fault),
                    Executed::Unknown => FreeError::Unknown(failed.fault),
                })
            }
            // A second sending could not tell what the first one did from what others did.
            Seen::Stranger(_) => match self.engine.store.execute(lock, op, within).await {
                Outcome::Done(reply) => Ok(reply),
                Outcome::Failed(Executed::No, fault) => Err(FreeError::Store(fault)),
                Outcome::Failed(Executed::Unknown, fault) => Err(FreeError::Unknown(fault)),
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

    pub(crate) async fn look(&self, in_full: bool) -> Result<Inspection, InspectError> {
        let op = Op::Inspect(Inspect { claim: None, in_full });
        let reply = self.engine.call(&self.seat.lock, &op, self.engine.timings.call).await;
        match reply.map_err(|failed| failed.fault)? {
            Reply::Inspect(seen) => Ok(seen),
            odd => Err(Fault::odd_reply(odd).into()),
        }
    }
}
