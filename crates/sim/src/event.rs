//! The events of a run: the input of the checks, and the lines of a trace.

use crate::world::scheduler::HostId;
use crate::world::time::{Clock, Instant};
use leasehold_core::model::{Content, LockState, Sessions, Value};
use leasehold_core::{
    Acquire, Acquired, Claim, FencingToken, ForceReleased, HoldId, Liveness, LockMode, MultiAcquired,
    Notification, ObservedHolder, Op, OwnValue, Reply, SessionId, SessionOp, SessionReply,
};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Which lock: an index into the world's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u8);

impl fmt::Display for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A' + self.0))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A task that uses locks: its process, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    /// The process.
    pub host: HostId,
    /// The number.
    pub number: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.host, self.number)
    }
}

/// A guard that a task holds on one lock. Unique within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuardId(pub u32);

/// An owner of `ReentrantMutex`es and `RwLock`s, numbered by first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub u32);

/// Something that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// An owner is used for the first time. The text is its identifier.
    Owner(OwnerId, &'a str),
    /// A process has connected, with this session.
    Started(HostId, SessionId),
    /// Something happened to a process.
    Host(HostId, HostEvent),
    /// Something happened to the server.
    Server(ServerEvent),
    /// A client gave an operation to its connection.
    Sent {
        /// The sender.
        host: HostId,
        /// Which message.
        message: u64,
        /// About which lock.
        lock: LockId,
        /// The operation.
        op: &'a Op,
    },
    /// A message will be late, duplicated or lost.
    MessageFault {
        /// Which message.
        message: u64,
        /// The fault.
        what: MessageFault,
    },
    /// The store has executed an operation.
    Executed(&'a Execution<'a>),
    /// A client has the outcome of an operation; `None` if that is unknown, or that it was refused.
    Answered {
        /// The receiver.
        host: HostId,
        /// Which message.
        message: u64,
        /// The reply.
        reply: Option<&'a Reply>,
    },
    /// The store has executed an acquire of several locks in one step. An `Executed` event for each lock follows.
    MultiExecuted(&'a MultiExecution<'a>),
    /// A client has the outcome of such a question; `None` if that is unknown, or that it was refused.
    MultiAnswered {
        /// The receiver.
        host: HostId,
        /// Which message.
        message: u64,
        /// The reply for each lock.
        shares: Option<&'a [MultiAcquired]>,
    },
    /// A client gave an operation on sessions to its connection.
    SessionSent {
        /// The sender.
        host: HostId,
        /// Which message.
        message: u64,
        /// When the client issued it. It may have waited for the connection.
        asked_at: Instant,
        /// The operation.
        op: &'a SessionOp,
    },
    /// The store has executed an operation on sessions.
    SessionExecuted(&'a SessionExecution<'a>),
    /// A client has the outcome of an operation on sessions; `None` if that is unknown.
    SessionAnswered {
        /// The receiver.
        host: HostId,
        /// Which message.
        message: u64,
        /// The reply.
        reply: Option<&'a SessionReply>,
    },
    /// A message has reached the mailbox of a process.
    Notified(HostId, Notification),
    /// A client of another library holds the lock, at most until then; or has released it.
    Foreign(LockId, Option<Instant>),
    /// Something a task did.
    Task(TaskId, LockId, TaskEvent),
    /// An event of an observer of an Election.
    Observer(TaskId, LockId, ObserverEvent),
    /// An event of a task that uses `once_per`.
    Period(TaskId, LockId, PeriodEvent),
    /// No fault is injected from now on.
    FaultsEnded,
}

/// An event of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostEvent {
    /// It is gone, in the middle of whatever it did.
    Crashed,
    /// It is suspended. Its clock keeps running.
    Stopped,
    /// It resumes.
    WentOn,
    /// A connection of its broke: the keeper's, or the other.
    LinkDown {
        /// Which.
        keeper: bool,
    },
    /// A connection of its is there again, with its mailboxes.
    LinkUp {
        /// Which.
        keeper: bool,
    },
    /// A message of this process is lost or late. Until then, checks do not expect the process to know its effect.
    Delayed(Instant),
    /// An operation of its failed: it pauses before it tries again.
    OperationFailed,
    /// It has ended, with nothing left to do.
    Ended,
}

/// An event of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEvent {
    /// It is down.
    Down,
    /// It is up again.
    Up {
        /// Whether it has kept its data.
        with_data: bool,
    },
    /// A replica has taken over. Updates that had not reached it are lost.
    FailedOver,
    /// Its clock was set.
    Jumped(i64),
    /// An operator has deleted the key of a lock.
    Deleted(LockId),
}

/// A fault of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// The request is lost.
    RequestLost,
    /// The request arrives then.
    RequestLate(Instant),
    /// The request arrives a second time then.
    RequestTwice(Instant),
    /// The connection `broken_links`, and the request arrives all the same, then.
    Ghost(Instant),
    /// The reply is lost.
    ReplyLost,
    /// A message to a mailbox is lost.
    WakeLost,
    /// A message to a mailbox arrives then.
    WakeLate(Instant),
}

/// An operation that the store has executed.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a> {
    /// The process that sent it.
    pub host: HostId,
    /// Which message.
    pub message: u64,
    /// Set if the request was late, a duplicate, or overtaken by a later one. Its sender does not rely on it.
    pub out_of_time: bool,
    /// Set if it is part of an acquire of several locks, which grants nothing to other waiters.
    pub together: bool,
    /// Which lock.
    pub lock: LockId,
    /// The operation.
    pub op: &'a Op,
    /// The reply.
    pub reply: &'a Reply,
    /// The notifications that it causes.
    pub wakes: &'a [Notification],
    /// The lock afterwards.
    pub state: &'a LockState,
    /// The sessions that the store knows.
    pub sessions: &'a Sessions,
    /// The store's clock.
    pub clock: &'a Clock,
}

/// An acquire of several locks in one step that the store has executed.
#[derive(Debug, Clone, Copy)]
pub struct MultiExecution<'a> {
    /// The process that sent it.
    pub host: HostId,
    /// Which message.
    pub message: u64,
    /// For each lock: the request, the reply, and the state afterwards.
    pub shares: &'a [(LockId, &'a Acquire, &'a MultiAcquired, &'a LockState)],
    /// The store's clock.
    pub clock: &'a Clock,
}

/// An operation on sessions that the store has executed.
#[derive(Debug, Clone, Copy)]
pub struct SessionExecution<'a> {
    /// The process that sent it.
    pub host: HostId,
    /// Which message.
    pub message: u64,
    /// Set if the request was late, a duplicate, or overtaken by a later one.
    pub out_of_time: bool,
    /// The operation.
    pub op: &'a SessionOp,
    /// The reply.
    pub reply: &'a SessionReply,
    /// The sessions afterwards.
    pub sessions: &'a Sessions,
    /// The store's clock.
    pub clock: &'a Clock,
}

/// An event of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEvent {
    /// It begins to acquire the lock for this owner. `None` stands for the task itself, or a new owner.
    Acquiring(AcquireMethod, Option<OwnerId>),
    /// It has the lock, and should have it for so long.
    Acquired(GuardId, NewGuard),
    /// Its belief in its hold has changed.
    ValidityChanged(GuardId, Validity),
    /// It did not get the lock.
    NotAcquired(AcquireFailure),
    /// It was let in by a Latch or a Barrier, or has arrived: it has nothing to give back.
    Admitted,
    /// It begins to convert its guard, and does not observe a loss until that ends.
    Converting(GuardId),
    /// It begins to lengthen its hold.
    Extends(GuardId),
    /// It lengthened its hold, to last until then at least.
    Extended(GuardId, Instant),
    /// It stopped wanting the lock, by dropping the future.
    Cancelled,
    /// It begins to give the lock back, or drops its guard, or the release that it began.
    Releasing(GuardId, ReleaseMethod),
    /// Its release has returned; where that was a success, with how often its owner has the lock yet.
    Released(GuardId, Option<u64>),
    /// The loss of this lock was reported, or that of another lock of the same guard.
    LossReported(GuardId, LossScope),
}

/// An event of an observer of an Election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObserverEvent {
    /// It begins to observe.
    Begins,
    /// The leader with this token was reported, or that there is no leader.
    Reported(Option<FencingToken>),
    /// It observes no more.
    Ends,
}

/// An event of a task that uses `once_per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeriodEvent {
    /// It has the turn.
    Has {
        /// The fencing token.
        fence: FencingToken,
        /// Until when it believes in it, in true time.
        until: Instant,
        /// The period, within which no other task may start.
        period: Duration,
    },
    /// It begins to finish, give up or drop its guard, and relies on it no longer.
    Releasing(FencingToken),
}

/// What a task has acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewGuard {
    /// The fencing token.
    pub fence: FencingToken,
    /// Until when the guard is valid.
    pub belief: Validity,
    /// For how long the hold is to last.
    pub lease_policy: LeasePolicy,
    /// The owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnerId>,
    /// The lock mode.
    pub mode: LockMode,
    /// How many holds the owner has, including this one, as reported to the task.
    pub count: u64,
    /// Set if it is one of several locks under one guard.
    pub together: bool,
    /// How long the process may cache the hold after its release.
    pub keep_for: Option<Duration>,
}

/// Which lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScope {
    /// The lock of the event.
    This,
    /// Another that was held together with it.
    Another,
}

/// How a lock is sought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireMethod {
    /// One attempt.
    Try,
    /// Wait in the queue, up to a limit.
    Wait(Duration),
    /// Wait in the queue without a limit.
    WaitForEver,
    /// By trying again and again, for so long at the most.
    Poll(Duration),
    /// Several locks, one attempt.
    TryAll,
    /// Together with others, for so long at the most; for as long as it takes if there is no limit.
    All(Option<Duration>),
}

impl AcquireMethod {
    /// Whether it waits in the process's local queue.
    pub const fn is_in_line(self) -> bool {
        matches!(self, Self::Try | Self::Wait(_) | Self::WaitForEver)
    }

    /// Whether others are sought with it.
    pub const fn is_for_several(self) -> bool {
        matches!(self, Self::TryAll | Self::All(_))
    }
}

/// Why an acquire failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireFailure {
    /// Another owner holds the lock.
    Taken,
    /// The time limit passed.
    TimedOut,
    /// The store failed.
    Fault,
    /// The lease is shorter than the way to the store.
    TooSlow,
    /// Of several locks, one was lost before all were acquired.
    Lost,
    /// It can never succeed.
    Impossible,
}

/// How long a hold is to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePolicy {
    /// For as long as its guard lives, by leases of this length.
    Renewed(Duration),
    /// This lease, counted from the request.
    Given(Duration),
    /// This lease, added to those of the same owner.
    Added(Duration),
}

/// Until when a holder believes that it holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// In true time.
    pub until: Instant,
}

/// How a lock is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseMethod {
    /// By a release, which is awaited.
    Release,
    /// By dropping the guard, or the release.
    Drop,
}

/// A hold of ours at the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub hold: HoldId,
    /// The owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnValue>,
    /// The lock mode.
    pub mode: LockMode,
    /// Its token.
    pub fence: FencingToken,
    /// Until when, in true time; `None` if it never ends.
    pub until: Option<Instant>,
    /// What can end it before its lease.
    pub life: Liveness,
    /// Since when, in milliseconds of the store's clock.
    since_ms: u64,
}

impl Held {
    /// Until when, in the store's milliseconds, it is spared though the store does not know its session: its holder may
    /// believe in it for so long.
    pub const fn spared_until_ms(&self) -> Option<u64> {
        match self.life {
            Liveness::Session { alive_ms } => Some(self.since_ms + alive_ms),
            Liveness::Lease => None,
        }
    }

    /// Whether it lasts at that time.
    pub fn lasts(&self, at: Instant) -> bool {
        self.until.is_none_or(|until| at < until)
    }
}

impl Execution<'_> {
    /// The holds on the lock afterwards, oldest first. Foreign holds are not included.
    pub fn holds(&self, at: Instant) -> Vec<Held> {
        let mut holds = holds(self.state, self.clock);
        holds.retain(|held| held.lasts(at));
        holds
    }

    /// The claim that the operation is about.
    pub fn claim(&self) -> Option<&Claim> {
        claim_of(self.op)
    }

    /// Whether a session has not beaten for too long at that time, or is not known.
    pub fn is_without_beat(&self, session: SessionId, at: Instant) -> bool {
        let now_ms = self.clock.reading_us(at) / 1000;
        self.sessions.records.get(&session).is_none_or(|record| record.alive_until_ms < now_ms)
    }

    /// Whether a session has lapsed at that time, by its record and the store's clock. Without a record, by the holds
    /// that the operation left.
    pub fn is_dead(&self, session: SessionId, at: Instant) -> bool {
        let now_ms = self.clock.reading_us(at) / 1000;
        if !self.is_without_beat(session, at) || self.sessions.records.contains_key(&session) {
            return self.is_without_beat(session, at);
        }
        let holds = self.holds(at);
        let its = holds.iter().filter(|held| held.hold.session() == session);
        its.filter_map(Held::spared_until_ms).max().is_none_or(|until_ms| until_ms < now_ms)
    }

    /// The hold that the operation ended by force: its fencing token, or `None` for a foreign hold.
    pub fn freed(&self) -> Option<Option<FencingToken>> {
        match (self.op, self.reply) {
            (Op::ForceRelease(free), Reply::ForceRelease(ForceReleased::Released)) => match free.observed {
                ObservedHolder::Hold(fence) => Some(Some(fence)),
                ObservedHolder::Foreign(_) => Some(None),
            },
            _ => None,
        }
    }

    /// The session whose holds the operation ends, if it has lapsed.
    pub fn evicts(&self) -> Option<SessionId> {
        match self.op {
            Op::Evict(evict) => Some(evict.session),
            Op::Acquire(ask) => ask.predecessor,
            _ => None,
        }
    }

    /// The acquire in the operation, with its reply.
    pub fn acquires(&self) -> Option<(&Acquire, &Acquired)> {
        match (self.op, self.reply) {
            (Op::Acquire(ask), Reply::Acquire(reply)) => Some((ask, reply)),
            (Op::Release(release), Reply::Release(released)) => match (&release.next, &released.next) {
                (Some(next), Some(Ok(reply))) => Some((next, reply)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The holds of ours that a lock has, also those that are over and lie there yet.
pub(crate) fn holds(state: &LockState, clock: &Clock) -> Vec<Held> {
    let ends = |at_ms: u64| clock.shows_at((at_ms + 1) * 1000);
    match &state.value {
        Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) => {
            let held = |entry: &leasehold_core::model::ReentrantHold| Held {
                hold: entry.hold,
                owner: Some(entries.owner.clone()),
                mode: LockMode::Exclusive,
                fence: entries.fence.unwrap_or(FencingToken::new(0)),
                // No entry outlasts its key.
                until: Some(ends(expires_ms.map_or(entry.until_ms, |at_ms| at_ms.min(entry.until_ms)))),
                life: entry.liveness,
                since_ms: entry.since_ms,
            };
            entries.holds.iter().map(held).collect()
        }
        Some(Value { content: Content::SharedHolders(parts), expires_ms }) => {
            let held = |part: &leasehold_core::model::SharedHold| Held {
                hold: part.hold,
                owner: part.owner.clone(),
                mode: part.mode,
                fence: part.fence,
                // No part outlasts its key.
                until: Some(ends(expires_ms.map_or(part.until_ms, |at_ms| at_ms.min(part.until_ms)))),
                life: part.liveness,
                since_ms: part.since_ms,
            };
            parts.holds.iter().map(held).collect()
        }
        Some(value) => tenant(state, value, ends).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The hold on a Mutex or an Election. `None` during a backoff after a release.
fn tenant(state: &LockState, value: &Value, ends: impl Fn(u64) -> Instant) -> Option<Held> {
    let record = state.record.as_ref()?;
    let tenant = record.last_holder.as_ref()?;
    let hold = tenant.claim.hold;
    let ended = record.ended.find(&hold).is_some();
    if value.content.token() != Some(&*state.kind.token(&tenant.claim))
        || (tenant.claim.value.is_some() && ended)
    {
        return None;
    }
    let (fence, until) = (record.last_fence?, value.expires_ms.map(ends));
    Some(Held {
        hold,
        owner: None,
        mode: LockMode::Exclusive,
        fence,
        until,
        life: tenant.liveness,
        since_ms: tenant.since_ms,
    })
}

/// When sessions end, in true time, if they beat no more.
pub(crate) fn ends(sessions: &Sessions, clock: &Clock) -> BTreeMap<SessionId, Instant> {
    let end = |until_ms: u64| clock.shows_at((until_ms + 1) * 1000);
    sessions.records.iter().map(|(session, record)| (*session, end(record.alive_until_ms))).collect()
}

/// The claim that an operation is about.
pub(crate) fn claim_of(op: &Op) -> Option<&Claim> {
    match op {
        Op::Acquire(ask) => Some(&ask.claim),
        Op::Extend(extend) => Some(&extend.claim),
        Op::Release(release) => Some(&release.claim),
        Op::Inspect(inspect) => inspect.claim.as_ref(),
        _ => None,
    }
}

/// Shortens a hold's identifier for traces. The secret half is not shown.
struct Short<'a>(&'a HoldId);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A simulated secret protects nothing, and a trace must distinguish two holds of one session.
        let token = self.0.token();
        f.write_str(&token[..4])?;
        f.write_str("…")?;
        f.write_str(&token[token.len() - 4..])
    }
}

fn show_op(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        Op::Acquire(ask) => show_acquire(ask, f),
        Op::Extend(extend) => {
            write!(f, "extend {} by {} ms", Short(&extend.claim.hold), extend.lease_ms)?;
            extend.reserve.map_or(Ok(()), |reserve| write!(f, ", {reserve:?}"))
        }
        Op::Release(release) => {
            write!(f, "release {} ({:?})", Short(&release.claim.hold), release.action)?;
            match &release.next {
                Some(next) => {
                    f.write_str(" and ")?;
                    show_acquire(next, f)
                }
                None => Ok(()),
            }
        }
        Op::Inspect(_) => f.write_str("inspect"),
        Op::Evict(evict) => write!(f, "evict {}", evict.session),
        other => write!(f, "{other:?}"),
    }
}

fn show_session_op(op: &SessionOp, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        SessionOp::Heartbeat(beat) => {
            let what = if beat.begin.is_some() { "begin" } else { "beat" };
            write!(f, "{what} {} for {} ms", beat.session, beat.alive_ms)
        }
        SessionOp::End(session) => write!(f, "end {session}"),
        _ => f.write_str("list the sessions"),
    }
}

fn show_session_reply(reply: &SessionReply, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        SessionReply::Heartbeat(beaten) => write!(f, "{beaten:?}"),
        SessionReply::List(all) => write!(f, "{} sessions", all.len()),
        _ => f.write_str("ended"),
    }
}

fn show_acquire(ask: &Acquire, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "acquire {} for {} ms", Short(&ask.claim.hold), ask.lease_ms)?;
    if ask.mode != LockMode::Exclusive {
        write!(f, " ({:?})", ask.mode)?;
    }
    if let Some(value) = &ask.claim.value {
        write!(f, " as {}", value.as_str())?;
    }
    match &ask.queue {
        Some(queue) => write!(f, ", queue {} for {} ms", short_nonce(queue.nonce), queue.ttl_ms),
        None => Ok(()),
    }?;
    match &ask.predecessor {
        Some(ahead) => write!(f, ", behind {ahead}"),
        None => Ok(()),
    }
}

fn short_nonce(nonce: leasehold_core::Nonce) -> String {
    let text = nonce.to_string();
    format!("#{}", &text[text.len() - 4..])
}

fn show_acquired(reply: &Acquired, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        Acquired::Granted { fence, remaining_ms, owner_holds, .. } => {
            write!(f, "granted {fence} for {remaining_ms} ms")?;
            owner_holds.map_or(Ok(()), |owner_holds| write!(f, ", {} times", owner_holds.count))
        }
        Acquired::Taken { holder, position, predecessor, .. } => {
            let remaining = holder.as_ref().map(|holder| holder.remaining_ms);
            write!(f, "taken, position {position:?}, holder {remaining:?}, ahead {predecessor:?}")
        }
        Acquired::AlreadyEnded(how) => write!(f, "spent: {how:?}"),
    }
}

fn show_share(share: &MultiAcquired, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match share {
        MultiAcquired::Acquired(acquired) => show_acquired(acquired, f),
        MultiAcquired::Blocked(Ok(acquired)) => {
            f.write_str("in the way: ")?;
            show_acquired(acquired, f)
        }
        other => write!(f, "{other:?}"),
    }?;
    f.write_str("; ")
}

fn show_reply(reply: &Reply, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        Reply::Acquire(reply) => show_acquired(reply, f),
        Reply::Release(released) => {
            write!(f, "found {:?}, {} left", released.status, released.remaining_holds)?;
            if let Some(Ok(next)) = &released.next {
                f.write_str(", next ")?;
                show_acquired(next, f)?;
            }
            Ok(())
        }
        Reply::Inspect(seen) => write!(f, "{:?}, {} wait", seen.hold_status, seen.waiters),
        other => write!(f, "{other:?}"),
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(host, session) => write!(f, "{host} starts as session {session}"),
            Self::Host(host, what) => write!(f, "{host} {what:?}"),
            Self::Server(what) => write!(f, "server {what:?}"),
            Self::Sent { host, message, lock, op } => {
                write!(f, "{host} sends {message}: {lock} ")?;
                show_op(op, f)
            }
            Self::MessageFault { message, what } => write!(f, "message {message}: {what:?}"),
            Self::Executed(done) => {
                write!(f, "server executes {} of {}: {} ", done.message, done.host, done.lock)?;
                show_op(done.op, f)?;
                f.write_str(" -> ")?;
                show_reply(done.reply, f)?;
                for wake in done.wakes {
                    write!(f, "; {}", ShownWake(wake))?;
                }
                for held in holds(done.state, done.clock) {
                    write!(f, "; held by {} until {:?}", Short(&held.hold), held.until)?;
                    if held.mode != LockMode::Exclusive {
                        write!(f, " ({:?})", held.mode)?;
                    }
                }
                match &done.state.value {
                    None => f.write_str("; free")?,
                    Some(_) if holds(done.state, done.clock).is_empty() => {
                        f.write_str("; held by a stranger, or resting")?;
                    }
                    Some(_) => {}
                }
                let waiting = done.state.record.as_ref().map_or(0, |record| record.entries.len());
                write!(f, ", {waiting} places")
            }
            Self::Answered { host, message, reply } => {
                write!(f, "{host} has {message}: ")?;
                match reply {
                    Some(reply) => show_reply(reply, f),
                    None => f.write_str("no reply"),
                }
            }
            Self::MultiExecuted(done) => {
                write!(f, "server executes {} of {}: all of", done.message, done.host)?;
                done.shares.iter().try_for_each(|(lock, ..)| write!(f, " {lock}"))
            }
            Self::MultiAnswered { host, message, shares } => {
                write!(f, "{host} has {message}: ")?;
                match shares {
                    Some(shares) => shares.iter().try_for_each(|share| show_share(share, f)),
                    None => f.write_str("no reply"),
                }
            }
            Self::Owner(owner, text) => write!(f, "owner {} is {text}", owner.0),
            Self::SessionSent { host, message, op, .. } => {
                write!(f, "{host} sends {message}: ")?;
                show_session_op(op, f)
            }
            Self::SessionExecuted(done) => {
                write!(f, "server executes {} of {}: ", done.message, done.host)?;
                show_session_op(done.op, f)?;
                f.write_str(" -> ")?;
                show_session_reply(done.reply, f)
            }
            Self::SessionAnswered { host, message, reply } => {
                write!(f, "{host} has {message}: ")?;
                match reply {
                    Some(reply) => show_session_reply(reply, f),
                    None => f.write_str("no reply"),
                }
            }
            Self::Notified(host, wake) => {
                write!(f, "{host} has {}", ShownWake(wake))
            }
            Self::Foreign(lock, Some(until)) => write!(f, "a stranger has {lock} until {until}"),
            Self::Foreign(lock, None) => write!(f, "a stranger gives {lock} back"),
            Self::Task(task, lock, what) => write!(f, "{task} {lock}: {what:?}"),
            Self::Observer(task, lock, what) => write!(f, "{task} observes {lock}: {what:?}"),
            Self::Period(task, lock, what) => write!(f, "{task} in its turn of {lock}: {what:?}"),
            Self::FaultsEnded => f.write_str("healed"),
        }
    }
}

/// A message, without its nonce's random half.
struct ShownWake<'a>(&'a Notification);

impl fmt::Display for ShownWake<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Notification::Grant { nonce, fence, .. } => {
                write!(f, "the grant of {fence} to {}", short_nonce(*nonce))
            }
            Notification::Wanted { fence, .. } => write!(f, "that {fence} is wanted"),
            other => write!(f, "the loss of {}", other.fence()),
        }
    }
}
