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

impl fmt::Display for GuardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
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

/// A text that a leader proclaims. No other is equal within a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProclaimedText(pub u32);

impl ProclaimedText {
    /// What a label shows: such a text, or `None` for the label of a client.
    pub fn of(label: &str) -> Option<Self> {
        label.strip_prefix("text ")?.parse().ok().map(Self)
    }
}

impl fmt::Display for ProclaimedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text {}", self.0)
    }
}

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
    /// A client sent an operation on its connection.
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
    /// A client received the outcome of an operation: `None` without a reply, or if it was refused.
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
    /// A client received the outcome of such an acquire: `None` without a reply, or if it was refused.
    MultiAnswered {
        /// The receiver.
        host: HostId,
        /// Which message.
        message: u64,
        /// The reply for each lock.
        replies: Option<&'a [MultiAcquired]>,
    },
    /// A client sent an operation on sessions on its connection.
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
    /// A client received the outcome of an operation on sessions: `None` without a reply.
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
    /// A client of another library holds the lock until at most then, or has released it.
    Foreign(LockId, Option<Instant>),
    /// An event of a task.
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
    /// It crashed.
    Crashed,
    /// It is suspended. Its clock keeps running.
    Stopped,
    /// It resumes.
    Resumed,
    /// One of its connections broke.
    LinkDown {
        /// Whether it is the keeper's connection.
        keeper: bool,
    },
    /// One of its connections is up again, with its mailboxes.
    LinkUp {
        /// Whether it is the keeper's connection.
        keeper: bool,
    },
    /// A message of this process is lost or delayed. Until then, checks do not expect the process to know its effect.
    Delayed(Instant),
    /// One of its operations failed, and it pauses before the next attempt.
    OperationFailed,
    /// It ended by itself.
    Ended,
}

/// An event of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerEvent {
    /// It is down.
    Down,
    /// It is up again.
    Up {
        /// Whether it kept its data.
        with_data: bool,
    },
    /// A replica took over. Updates that had not reached it are lost.
    FailedOver,
    /// It is isolated together with some of the processes.
    Isolated,
    /// Its replica takes over for the other processes.
    Promoted,
    /// The one that was cut off is no server any more.
    Rejoined,
    /// Its clock was set.
    Jumped(i64),
    /// An operator has deleted the key of a lock.
    Deleted(LockId),
}

impl ServerEvent {
    /// Whether the state of the store is unknown until the next operation: data was lost or restored, or which keys
    /// expire has changed.
    pub const fn makes_state_unknown(self) -> bool {
        matches!(self, Self::Up { with_data: false } | Self::FailedOver | Self::Jumped(_))
    }
}

/// A fault of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// The request is lost.
    RequestLost,
    /// The request arrives late, at that time.
    RequestDelayed(Instant),
    /// The request arrives a second time, at that time.
    RequestDuplicated(Instant),
    /// The connection broke, and the request arrives nevertheless, at that time.
    ArrivedAfterBreak(Instant),
    /// The reply is lost.
    ReplyLost,
    /// A notification is lost.
    NotificationLost,
    /// A notification arrives late, at that time.
    NotificationDelayed(Instant),
}

/// An operation that the store has executed.
#[derive(Debug, Clone, Copy)]
pub struct Execution<'a> {
    /// The process that sent it.
    pub host: HostId,
    /// Which message.
    pub message: u64,
    /// Which server: one that is promoted in a partition has the next number.
    pub server: u32,
    /// Set for a duplicate, to which there is no reply.
    pub is_copy: bool,
    /// Set if the request was late, a duplicate, or overtaken by a later one. Its sender does not rely on it.
    pub is_stale: bool,
    /// Set if it is part of an acquire of several locks, which grants nothing to other waiters.
    pub in_multi_acquire: bool,
    /// Which lock.
    pub lock: LockId,
    /// The operation.
    pub op: &'a Op,
    /// The reply.
    pub reply: &'a Reply,
    /// The notifications that it causes.
    pub notifications: &'a [Notification],
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
    /// Which server: one that is promoted in a partition has the next number.
    pub server: u32,
    /// Set for a duplicate, to which there is no reply.
    pub is_copy: bool,
    /// For each lock: the request, the reply, and the state afterwards.
    pub replies: &'a [(LockId, &'a Acquire, &'a MultiAcquired, &'a LockState)],
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
    /// Which server: one that is promoted in a partition has the next number.
    pub server: u32,
    /// Set for a duplicate, to which there is no reply.
    pub is_copy: bool,
    /// Set if the request was late, a duplicate, or overtaken by a later one.
    pub is_stale: bool,
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
    /// It begins to acquire the lock for this owner. `None` is the task itself, or a new owner.
    Acquiring(AcquireMethod, Option<OwnerId>),
    /// It acquired the lock.
    Acquired(GuardId, NewGuard),
    /// The time until which its guard is valid changed.
    ValidityChanged(GuardId, Validity),
    /// Its acquire failed.
    NotAcquired(AcquireFailure),
    /// It passed a Latch or a Barrier, or arrived there. It has no guard.
    Admitted,
    /// It begins to convert its guard, and observes no loss until the conversion ends.
    Converting(GuardId),
    /// It begins to extend its hold.
    Extending(GuardId),
    /// It extended its hold, at least until that time.
    Extended(GuardId, Instant),
    /// As a leader, it begins to proclaim a text.
    Proclaiming(GuardId, ProclaimedText),
    /// It proclaimed the text.
    Proclaimed(GuardId, ProclaimedText),
    /// It dropped the future of its acquire.
    Cancelled,
    /// It begins to release the lock, or drops its guard or the future of its release.
    Releasing(GuardId, ReleaseMethod),
    /// Its release returned: on success, with the remaining holds of its owner.
    Released(GuardId, Option<u64>),
    /// The loss of this lock was reported, or that of another lock of the same guard.
    LossReported(GuardId, LossScope),
}

/// An event of an observer of an Election.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObserverEvent {
    /// It begins to observe.
    Begins,
    /// A leader was reported, or that there is none.
    Reported(Option<SeenLeader>),
    /// It has asked for the leader, and received this reply.
    Asked(Option<SeenLeader>),
    /// It stops observing.
    Ends,
}

/// A leader, as an observer of its Election sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenLeader {
    /// The fencing token.
    pub fence: FencingToken,
    /// What it proclaimed last; `None` if the label of its client is seen.
    pub text: Option<ProclaimedText>,
}

/// An event of a task that uses `once_per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeriodEvent {
    /// It started the period.
    Started {
        /// The fencing token.
        fence: FencingToken,
        /// Until when its guard is valid, in true time.
        until: Instant,
        /// The period, within which no other task may start.
        period: Duration,
    },
    /// It begins to finish, give up or drop its guard.
    Releasing {
        /// The fencing token.
        fence: FencingToken,
        /// Set if the period is to last until its end: nothing gives it up.
        finishes: bool,
    },
}

/// What a task has acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewGuard {
    /// The fencing token.
    pub fence: FencingToken,
    /// Until when the guard is valid.
    pub validity: Validity,
    /// The requested lease.
    pub lease_policy: LeasePolicy,
    /// The owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnerId>,
    /// The lock mode.
    pub mode: LockMode,
    /// How many holds the owner has, including this one, as reported to the task.
    pub count: u64,
    /// Set if it is one of several locks under one guard.
    pub is_multi: bool,
    /// How long the process may cache the hold after its release.
    pub keep_for: Option<Duration>,
    /// For how long no other client is granted the lock after a loss.
    pub lock_delay: Duration,
}

/// Which lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScope {
    /// The lock of the event.
    This,
    /// Another lock of the same guard.
    Another,
}

/// How a lock is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcquireMethod {
    /// One attempt.
    Try,
    /// Wait in the queue, up to a limit.
    WaitTimeout(Duration),
    /// Wait in the queue without a limit.
    Wait,
    /// Poll without the queue, up to a limit.
    Poll(Duration),
    /// Several locks, one attempt.
    TryAll,
    /// Wait for several locks, up to a limit if there is one.
    All(Option<Duration>),
}

impl AcquireMethod {
    /// Whether it waits in the process's local queue.
    pub const fn is_queued(self) -> bool {
        matches!(self, Self::Try | Self::WaitTimeout(_) | Self::Wait)
    }

    /// Whether it acquires several locks.
    pub const fn is_multi_acquire(self) -> bool {
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
    /// Too few replicas had the hold in time.
    Unconfirmed,
    /// The lease ended before the reply arrived.
    LeaseTooShort,
    /// Of several locks, one was lost before all were acquired.
    Lost,
    /// It can never succeed.
    Impossible,
}

/// The lease of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePolicy {
    /// Renewed while its guard exists, by leases of this length.
    Renewed(Duration),
    /// This lease, counted from the request.
    Given(Duration),
    /// This lease, added to those of the same owner.
    Added(Duration),
}

/// Until when a guard is valid.
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

/// A hold of Leasehold's at the store.
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
    pub liveness: Liveness,
    /// Since when, in milliseconds of the store's clock.
    since_ms: u64,
}

impl Held {
    /// Until when the store does not evict it although it does not know its session, in the store's milliseconds. Its guard
    /// may be valid for so long.
    pub const fn session_spared_until_ms(&self) -> Option<u64> {
        match self.liveness {
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

    /// Whether a session's record has lapsed at that time, or does not exist.
    pub fn has_no_live_record(&self, session: SessionId, at: Instant) -> bool {
        let now_ms = self.clock.reading_us(at) / 1000;
        self.sessions.records.get(&session).is_none_or(|record| record.alive_until_ms < now_ms)
    }

    /// Whether a session has lapsed at that time by the store's clock: by its record, or without a record by its holds on the
    /// lock.
    pub fn is_dead(&self, session: SessionId, at: Instant) -> bool {
        let now_ms = self.clock.reading_us(at) / 1000;
        // The store has no record that has expired.
        if let Some(record) = self.sessions.records.get(&session).filter(|record| now_ms <= record.expires_ms)
        {
            return record.alive_until_ms < now_ms;
        }
        self.session_spared_until_ms(session, at).is_none_or(|until_ms| until_ms < now_ms)
    }

    /// Until when the store does not evict a session that it does not know, in its milliseconds: each of the session's
    /// holds spares all of them.
    pub fn session_spared_until_ms(&self, session: SessionId, at: Instant) -> Option<u64> {
        let holds = self.holds(at).into_iter().filter(|held| held.hold.session() == session);
        holds.filter_map(|held| held.session_spared_until_ms()).max()
    }

    /// The hold that the operation ended by force: its fencing token, or `None` for a foreign hold.
    pub fn force_released(&self) -> Option<Option<FencingToken>> {
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
            Op::Acquire(request) => request.predecessor,
            _ => None,
        }
    }

    /// The acquire in the operation, with its reply.
    pub fn acquires(&self) -> Option<(&Acquire, &Acquired)> {
        match (self.op, self.reply) {
            (Op::Acquire(request), Reply::Acquire(reply)) => Some((request, reply)),
            (Op::Release(release), Reply::Release(released)) => match (&release.next, &released.next) {
                (Some(next), Some(Ok(reply))) => Some((next, reply)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The holds of Leasehold's on a lock, with expired ones that are not removed yet.
pub(crate) fn holds(state: &LockState, clock: &Clock) -> Vec<Held> {
    let expiry = |at_ms: u64| clock.shows_at((at_ms + 1) * 1000);
    match &state.value {
        Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) => {
            let held = |entry: &leasehold_core::model::ReentrantHold| Held {
                hold: entry.hold,
                owner: Some(entries.owner.clone()),
                mode: LockMode::Exclusive,
                fence: entries.fence.unwrap_or(FencingToken::new(0)),
                // No entry outlasts its key.
                until: Some(expiry(expires_ms.map_or(entry.until_ms, |at_ms| at_ms.min(entry.until_ms)))),
                liveness: entry.liveness,
                since_ms: entry.since_ms,
            };
            entries.holds.iter().map(held).collect()
        }
        Some(Value { content: Content::SharedHolders(holders), expires_ms }) => {
            let held = |hold: &leasehold_core::model::SharedHold| Held {
                hold: hold.hold,
                owner: hold.owner.clone(),
                mode: hold.mode,
                fence: hold.fence,
                // No hold outlasts its key.
                until: Some(expiry(expires_ms.map_or(hold.until_ms, |at_ms| at_ms.min(hold.until_ms)))),
                liveness: hold.liveness,
                since_ms: hold.since_ms,
            };
            holders.holds.iter().map(held).collect()
        }
        Some(value) => single_hold(state, value, expiry).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The hold on a Mutex or an Election. `None` during a backoff after a release.
fn single_hold(state: &LockState, value: &Value, expiry: impl Fn(u64) -> Instant) -> Option<Held> {
    let record = state.record.as_ref()?;
    let last_holder = record.last_holder.as_ref()?;
    let hold = last_holder.claim.hold;
    let ended = record.ended.find(&hold).is_some();
    if value.content.token() != Some(&*state.kind.token(&last_holder.claim))
        || (last_holder.claim.value.is_some() && ended)
    {
        return None;
    }
    let (fence, until) = (record.last_fence?, value.expires_ms.map(expiry));
    Some(Held {
        hold,
        owner: None,
        mode: LockMode::Exclusive,
        fence,
        until,
        liveness: last_holder.liveness,
        since_ms: last_holder.since_ms,
    })
}

/// When sessions end without further heartbeats, in true time.
pub(crate) fn session_ends(sessions: &Sessions, clock: &Clock) -> BTreeMap<SessionId, Instant> {
    let end = |until_ms: u64| clock.shows_at((until_ms + 1) * 1000);
    sessions.records.iter().map(|(session, record)| (*session, end(record.alive_until_ms))).collect()
}

/// The claim that an operation is about.
pub(crate) fn claim_of(op: &Op) -> Option<&Claim> {
    match op {
        Op::Acquire(request) => Some(&request.claim),
        Op::Extend(extend) => Some(&extend.claim),
        Op::Release(release) => Some(&release.claim),
        Op::Inspect(inspect) => inspect.claim.as_ref(),
        _ => None,
    }
}

/// A short form of a hold's token for traces.
struct ShortToken<'a>(&'a HoldId);

impl fmt::Display for ShortToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A simulated token protects nothing, and a trace must distinguish two holds of one session.
        let token = self.0.token();
        f.write_str(&token[..4])?;
        f.write_str("…")?;
        f.write_str(&token[token.len() - 4..])
    }
}

fn show_op(op: &Op, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match op {
        Op::Acquire(request) => show_acquire(request, f),
        Op::Extend(extend) => {
            write!(f, "extend {} by {} ms", ShortToken(&extend.claim.hold), extend.lease_ms)?;
            extend.reserve.map_or(Ok(()), |reserve| write!(f, ", {reserve:?}"))
        }
        Op::Release(release) => {
            write!(f, "release {} ({:?})", ShortToken(&release.claim.hold), release.action)?;
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
        SessionOp::Heartbeat(heartbeat) => {
            let what = if heartbeat.begin.is_some() { "begin" } else { "heartbeat" };
            write!(f, "{what} {} for {} ms", heartbeat.session, heartbeat.alive_ms)
        }
        SessionOp::End(session) => write!(f, "end {session}"),
        _ => f.write_str("list the sessions"),
    }
}

fn show_session_reply(reply: &SessionReply, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        SessionReply::Heartbeat(heartbeat_reply) => write!(f, "{heartbeat_reply:?}"),
        SessionReply::List(list) => write!(f, "{} sessions", list.entries.len()),
        _ => f.write_str("ended"),
    }
}

fn show_acquire(request: &Acquire, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "acquire {} for {} ms", ShortToken(&request.claim.hold), request.lease_ms)?;
    if request.mode != LockMode::Exclusive {
        write!(f, " ({:?})", request.mode)?;
    }
    if let Some(value) = &request.claim.value {
        write!(f, " as {}", value.as_str())?;
    }
    match &request.queue {
        Some(queue) => write!(f, ", queue {} for {} ms", short_nonce(queue.nonce), queue.ttl_ms),
        None => Ok(()),
    }?;
    match &request.predecessor {
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
        Acquired::AlreadyEnded(how) => write!(f, "already ended: {how:?}"),
    }
}

fn show_multi_reply(reply: &MultiAcquired, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match reply {
        MultiAcquired::Acquired(acquired) => show_acquired(acquired, f),
        MultiAcquired::Blocked(Ok(acquired)) => {
            f.write_str("blocked: ")?;
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
        Reply::Inspect(seen) => write!(f, "{:?}, {} waiting", seen.hold_status, seen.waiters),
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
                for notification in done.notifications {
                    write!(f, "; {}", ShownNotification(notification))?;
                }
                for held in holds(done.state, done.clock) {
                    write!(f, "; held by {} until {:?}", ShortToken(&held.hold), held.until)?;
                    if held.mode != LockMode::Exclusive {
                        write!(f, " ({:?})", held.mode)?;
                    }
                }
                match &done.state.value {
                    None => f.write_str("; free")?,
                    Some(_) if holds(done.state, done.clock).is_empty() => {
                        f.write_str("; held by a foreign client, or in cooldown")?;
                    }
                    Some(_) => {}
                }
                let waiting = done.state.record.as_ref().map_or(0, |record| record.entries.len());
                write!(f, ", {waiting} waiting")
            }
            Self::Answered { host, message, reply } => {
                write!(f, "{host} receives {message}: ")?;
                match reply {
                    Some(reply) => show_reply(reply, f),
                    None => f.write_str("no reply"),
                }
            }
            Self::MultiExecuted(done) => {
                write!(f, "server executes {} of {}: all of", done.message, done.host)?;
                done.replies.iter().try_for_each(|(lock, ..)| write!(f, " {lock}"))
            }
            Self::MultiAnswered { host, message, replies } => {
                write!(f, "{host} receives {message}: ")?;
                match replies {
                    Some(replies) => replies.iter().try_for_each(|reply| show_multi_reply(reply, f)),
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
                write!(f, "{host} receives {message}: ")?;
                match reply {
                    Some(reply) => show_session_reply(reply, f),
                    None => f.write_str("no reply"),
                }
            }
            Self::Notified(host, notification) => {
                write!(f, "{host} receives {}", ShownNotification(notification))
            }
            Self::Foreign(lock, Some(until)) => write!(f, "a foreign client holds {lock} until {until}"),
            Self::Foreign(lock, None) => write!(f, "a foreign client releases {lock}"),
            Self::Task(task, lock, what) => write!(f, "{task} {lock}: {what:?}"),
            Self::Observer(task, lock, what) => write!(f, "{task} observes {lock}: {what:?}"),
            Self::Period(task, lock, what) => write!(f, "{task} in a period of {lock}: {what:?}"),
            Self::FaultsEnded => f.write_str("faults end"),
        }
    }
}

/// A notification without the random half of its nonce.
struct ShownNotification<'a>(&'a Notification);

impl fmt::Display for ShownNotification<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Notification::Grant { nonce, fence, .. } => {
                write!(f, "the grant of {fence} to {}", short_nonce(*nonce))
            }
            Notification::Wanted { fence, .. } => write!(f, "the request for {fence}"),
            other => write!(f, "the loss of {}", other.fence()),
        }
    }
}
