//! The operations that a store executes and their replies: plain data.
//!
//! [`model`](crate::model) defines the meaning of every operation. A store does nothing else.

pub(crate) mod session;

use crate::machine::cohort::{Reserve, TokenBlock};
use crate::{
    AuditEntry, Ended, FencingToken, Fingerprint, HoldId, Label, LockName, Nonce, OwnValue, SessionId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of locks.
///
/// See [`Lock`] for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// One holder, not re-entrant: the `SET key token NX PX` lock that other libraries share.
    #[default]
    Mutex,
    /// One owner, re-entrant: Redisson's `RLock`, a hash of the owner and its hold count.
    Reentrant,
    /// Counting semaphore with a limited number of permits: a hash of the holds.
    Semaphore,
    /// Readers share it, a writer excludes all others: a hash of the holds.
    RwLock,
    /// Countdown latch that opens after a number of arrivals: a hash of the arrivals.
    Latch,
    /// Barrier that releases its parties together once enough have arrived: a hash of the parties that
    /// proceed.
    Barrier,
    /// Leader election. The leader is the one holder, as of a Mutex; observers are notified when the leader
    /// changes.
    Election,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Mutex,
        Self::Reentrant,
        Self::Election,
        Self::Semaphore,
        Self::RwLock,
        Self::Latch,
        Self::Barrier,
    ];
    /// The kinds that have at most one holder at a time.
    pub const EXCLUSIVE: [Self; 3] = [Self::Mutex, Self::Reentrant, Self::Election];
    /// The kinds that several clients can hold [side by side](Self::is_shared).
    pub const SHARED: [Self; 4] = [Self::Semaphore, Self::RwLock, Self::Latch, Self::Barrier];

    /// The word for this kind in keys and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Reentrant => "reentrant",
            Self::Semaphore => "semaphore",
            Self::RwLock => "rwlock",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
            Self::Election => "election",
        }
    }

    /// Whether several holds can exist side by side, each with its own expiry and fencing token.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Semaphore | Self::RwLock | Self::Latch | Self::Barrier)
    }

    /// Whether each claim must name its owner.
    pub const fn has_owners(self) -> bool {
        matches!(self, Self::Reentrant | Self::RwLock)
    }

    /// The prefix of the token at the key of an Election; empty for every other kind. A Mutex of the same
    /// name is a string as well, and the prefix keeps either kind from treating the other as a lock of
    /// another library. A user-defined value contains no control character, so it cannot start with this
    /// prefix.
    pub const fn token_prefix(self) -> &'static str {
        match self {
            Self::Election => "election\n",
            _ => "",
        }
    }

    /// The value at the lock's key while this claim holds it: a secret. For a ReentrantMutex, the owner.
    pub fn token(self, claim: &Claim) -> String {
        [self.token_prefix(), &claim.token()].concat()
    }

    /// The value at the lock's key while it [rests](ReleaseAction::Rest) after the hold with this fencing token.
    pub fn cooldown_token(self, fence: Option<FencingToken>) -> String {
        format!("{}rest\n{}", self.token_prefix(), fence.map_or(0, FencingToken::as_u64))
    }

    /// Whether a string at the key is a lock of this kind.
    pub fn matches_token(self, token: &str) -> bool {
        match self {
            Self::Mutex => !token.starts_with(Self::Election.token_prefix()),
            Self::Election => token.starts_with(self.token_prefix()),
            _ => false,
        }
    }

    /// Whether tasks of one process can pass a hold on among themselves, each with its own fencing token: see
    /// [`cohort`](crate::machine::cohort).
    pub const fn supports_handoff(self) -> bool {
        matches!(self, Self::Mutex)
    }

    /// Whether a quorum of stores can provide this kind: a client holds it once a majority grants it. This
    /// works where a client needs no reply but the result of its own claim.
    pub const fn supports_quorum(self) -> bool {
        matches!(self, Self::Mutex | Self::Reentrant)
    }

    /// Whether a lock of this kind is a plain string with one holder at a time.
    pub const fn is_plain_string(self) -> bool {
        matches!(self, Self::Mutex | Self::Election)
    }

    /// The kind that this word stands for.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// One lock: its name and its kind.
///
/// ```
/// use leasehold_core::{Kind, Lock};
///
/// let lock = Lock::mutex("orders/42".parse()?);
/// assert_eq!((lock.kind, lock.to_string().as_str()), (Kind::Mutex, "`orders/42`"));
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    /// The kind of the lock.
    pub kind: Kind,
    /// The name of the lock.
    pub name: LockName,
}

impl Lock {
    /// The Mutex of that name.
    pub const fn mutex(name: LockName) -> Self {
        Self { kind: Kind::Mutex, name }
    }

    /// The ReentrantMutex of that name.
    pub const fn reentrant(name: LockName) -> Self {
        Self { kind: Kind::Reentrant, name }
    }

    /// The Election of that name.
    pub const fn election(name: LockName) -> Self {
        Self { kind: Kind::Election, name }
    }

    /// The Semaphore of that name.
    pub const fn semaphore(name: LockName) -> Self {
        Self { kind: Kind::Semaphore, name }
    }

    /// The RwLock of that name.
    pub const fn rwlock(name: LockName) -> Self {
        Self { kind: Kind::RwLock, name }
    }

    /// The Latch of that name.
    pub const fn latch(name: LockName) -> Self {
        Self { kind: Kind::Latch, name }
    }

    /// The Barrier of that name.
    pub const fn barrier(name: LockName) -> Self {
        Self { kind: Kind::Barrier, name }
    }
}

/// The mode in which a lock is requested or held.
///
/// ```
/// use leasehold_core::{Kind, LockMode};
///
/// let two = LockMode::Permits { count: 2, total: 5 };
/// assert_eq!((two.encode().as_str(), LockMode::parse("p2:5")), ("p2:5", Some(two)));
/// assert!(two.applies_to(Kind::Semaphore) && !two.applies_to(Kind::RwLock));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LockMode {
    /// The whole lock: a Mutex, a ReentrantMutex or an Election.
    #[default]
    #[serde(rename = "whole")]
    Exclusive,
    /// A number of permits of a Semaphore.
    Permits {
        /// How many permits.
        count: u32,
        /// How many permits exist in total, unless the store knows another number.
        #[serde(rename = "of")]
        total: u32,
    },
    /// A reader of an RwLock, beside other readers.
    Read,
    /// A reader that can become the writer: beside readers, but not beside another upgradable reader.
    Upgradable,
    /// The writer of an RwLock, alone.
    Write,
    /// The writer, beside the upgradable read of the same owner, and ahead of all waiters.
    Upgrade,
    /// A number of arrivals at a Latch.
    #[serde(rename = "arrive")]
    CountDown {
        /// How many arrivals.
        count: u32,
        /// How many arrivals open the latch.
        #[serde(rename = "of")]
        total: u32,
    },
    /// A waiter at a Latch, until it opens.
    #[serde(rename = "await")]
    LatchWait {
        /// How many arrivals open the latch.
        #[serde(rename = "of")]
        total: u32,
    },
    /// A party that waits at a Barrier for the others.
    #[serde(rename = "meet")]
    BarrierWait {
        /// How many parties proceed together.
        #[serde(rename = "of")]
        total: u32,
    },
}

impl LockMode {
    /// Whether a lock of that kind has this mode.
    pub const fn applies_to(self, kind: Kind) -> bool {
        match self {
            Self::Exclusive => !kind.is_shared(),
            Self::Permits { .. } => matches!(kind, Kind::Semaphore),
            Self::Read | Self::Upgradable | Self::Write | Self::Upgrade => matches!(kind, Kind::RwLock),
            Self::CountDown { .. } | Self::LatchWait { .. } => matches!(kind, Kind::Latch),
            Self::BarrierWait { .. } => matches!(kind, Kind::Barrier),
        }
    }

    /// How many permits, arrivals or parties there are in total, as far as the client that sends the request
    /// knows.
    pub const fn total(self) -> Option<u32> {
        match self {
            Self::Permits { total, .. }
            | Self::CountDown { total, .. }
            | Self::LatchWait { total }
            | Self::BarrierWait { total } => Some(total),
            _ => None,
        }
    }

    /// How many of those this mode takes.
    pub const fn count(self) -> u32 {
        match self {
            Self::Permits { count, .. } | Self::CountDown { count, .. } => count,
            Self::LatchWait { .. } => 0,
            _ => 1,
        }
    }

    /// The word for this mode in keys and messages.
    pub fn encode(self) -> String {
        match self {
            Self::Exclusive => "-".to_owned(),
            Self::Permits { count, total } => format!("p{count}:{total}"),
            Self::Read => "r".to_owned(),
            Self::Upgradable => "u".to_owned(),
            Self::Write => "w".to_owned(),
            Self::Upgrade => "x".to_owned(),
            Self::CountDown { count, total } => format!("a{count}:{total}"),
            Self::LatchWait { total } => format!("t0:{total}"),
            Self::BarrierWait { total } => format!("m1:{total}"),
        }
    }

    /// The mode that this word stands for.
    pub fn parse(word: &str) -> Option<Self> {
        let numbers = || {
            let (count, total) = word.get(1..)?.split_once(':')?;
            Some((count.parse().ok()?, total.parse().ok()?))
        };
        let found = match word.get(..1)? {
            "-" => Self::Exclusive,
            "r" => Self::Read,
            "u" => Self::Upgradable,
            "w" => Self::Write,
            "x" => Self::Upgrade,
            "p" => numbers().map(|(count, total)| Self::Permits { count, total })?,
            "a" => numbers().map(|(count, total)| Self::CountDown { count, total })?,
            "t" => numbers().map(|(_, total)| Self::LatchWait { total })?,
            "m" => numbers().map(|(_, total)| Self::BarrierWait { total })?,
            _ => return None,
        };
        (found.encode() == word).then_some(found)
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)
    }
}

/// The right to end a hold, and the value at the lock's key while the hold lasts.
///
/// ```
/// use leasehold_core::{Claim, HoldId, OwnValue, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(Claim::new(hold).token(), hold.token());
///
/// let own = Claim { hold, value: Some(OwnValue::new("worker-7")?) };
/// assert_eq!(own.token(), "worker-7"); // other libraries see this value; the record has the hold
/// # Ok::<(), leasehold_core::OwnValueError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The hold. Every acquisition has its own.
    pub hold: HoldId,
    /// For a Mutex, set if the user wants a value of their own at the lock's key; the record beside the key
    /// then identifies the hold. For a ReentrantMutex or an RwLock, the owner, which is required. Other kinds
    /// ignore it.
    pub value: Option<OwnValue>,
}

impl Claim {
    /// A claim of a hold, without a user-defined value.
    pub const fn new(hold: HoldId) -> Self {
        Self { hold, value: None }
    }

    /// The value at the lock's key, after the [mark](Kind::mark) of its kind: a secret.
    pub fn token(&self) -> String {
        self.value.as_ref().map_or_else(|| self.hold.token(), |value| value.as_str().to_owned())
    }
}

/// One operation on one lock.
///
/// Here one client takes the lock, and another one queues and receives the lock on release. The example runs
/// on the model; every store behaves the same:
///
/// ```
/// use leasehold_core::{
///     Acquire, Acquired, Claim, Enqueue, Extend, Extended, HoldStatus, HoldId, Inspect, Label, Liveness, Nonce, Op,
///     ReleaseAction, LockMode, Release, Reply, SessionId, Notification, model::{LockState, all_alive},
/// };
///
/// let claim = |who: u8| Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
/// let acquire = |who: u8| Acquire {
///     claim: claim(who),
///     lease_ms: 3_000,
///     label: Label::new(format!("worker {who}")).expect("a short text is a label"),
///     queue: Some(Enqueue { nonce: Nonce::new(0, who.into()), ttl_ms: 3_000 }),
///     adopt_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 },
///     predecessor: None,
///     mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// let mut now_us = 1_000_000;
/// let mut execute = |op: Op| {
///     now_us += 1_000;
///     lock.apply(now_us, &op, &all_alive)
/// };
///
/// let (reply, _) = execute(Op::Acquire(acquire(1)));
/// assert!(matches!(reply, Reply::Acquire(Acquired::Granted { others_wait: false, .. })));
///
/// let (reply, _) = execute(Op::Acquire(acquire(2)));
/// assert!(matches!(reply, Reply::Acquire(Acquired::Taken { position: Some(0), .. })));
///
/// let (reply, _) = execute(Op::Extend(Extend { claim: claim(1), lease_ms: 30_000, keep_record: false, reserve: None }));
/// assert_eq!(reply, Reply::Extend(Extended::Extended));
///
/// // The release grants the lock to the waiter and notifies its mailbox.
/// let (reply, notifications) = execute(Op::Release(Release { claim: claim(1), action: ReleaseAction::Grant, next: None }));
/// assert!(matches!(reply, Reply::Release(released) if released.status == HoldStatus::Held));
/// assert!(matches!(notifications[0], Notification::Grant { to, nonce, .. }
///     if to == SessionId::from_random([2; 12]) && nonce == Nonce::new(0, 2)));
///
/// let (reply, _) = execute(Op::Inspect(Inspect { claim: Some(claim(2)), details: false }));
/// assert!(matches!(reply, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Held) && seen.waiters == 0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Take the lock, or queue for it, or check whether it has been granted.
    Acquire(Acquire),
    /// Extend a hold.
    Extend(Extend),
    /// Give up a hold, whether it is held, queued or neither.
    Release(Release),
    /// Remove the hold and the queue entry of a dead session.
    Evict(Evict),
    /// Take the lock from its holder by force.
    ForceRelease(ForceRelease),
    /// Read the state of the lock. Changes nothing.
    Inspect(Inspect),
    /// Set the number of permits of a Semaphore.
    Resize(Resize),
    /// Raise the fencing token of a hold to the value that a quorum of stores agreed on.
    RaiseFence(RaiseFence),
}

/// The name that no owner of a ReentrantMutex may have: Leasehold's own field beside the owner's has it.
pub const RESERVED_OWNER: &str = "leasehold";

impl Op {
    /// Why the operation has no meaning for a lock of that kind in any state; `None` if it has one.
    pub fn refusal_for(&self, kind: Kind) -> Option<Refused> {
        match self {
            _ if !self.is_supported_by(kind) => Some(Refused::Unsupported),
            _ if kind.has_owners() && !self.names_owners() => Some(Refused::NoOwner),
            Self::Release(Release { action: ReleaseAction::Cooldown { .. }, .. })
                if !kind.is_plain_string() =>
            {
                Some(Refused::NoCooldown)
            }
            Self::Release(Release { action: ReleaseAction::FreeAndPublish, .. })
                if !kind.supports_quorum() =>
            {
                Some(Refused::Unsupported)
            }
            _ => None,
        }
    }

    /// Whether each claim names its owner, as the claims of a ReentrantMutex or an RwLock must.
    pub fn names_owners(&self) -> bool {
        let named =
            |claim: &Claim| claim.value.as_ref().is_some_and(|owner| owner.as_str() != RESERVED_OWNER);
        match self {
            Self::Acquire(ask) => named(&ask.claim),
            Self::Release(release) => {
                named(&release.claim) && release.next.as_ref().is_none_or(|next| named(&next.claim))
            }
            Self::Extend(extend) => named(&extend.claim),
            Self::RaiseFence(raise) => named(&raise.claim),
            Self::Inspect(inspect) => inspect.claim.as_ref().is_none_or(named),
            Self::Evict(_) | Self::ForceRelease(_) | Self::Resize(_) => true,
        }
    }

    /// Whether locks of that kind have what the operation requests.
    pub fn is_supported_by(&self, kind: Kind) -> bool {
        match self {
            Self::Acquire(ask) => ask.mode.applies_to(kind),
            Self::Release(release) => release.next.as_ref().is_none_or(|next| next.mode.applies_to(kind)),
            Self::Resize(_) => kind == Kind::Semaphore,
            Self::RaiseFence(_) => kind.supports_quorum(),
            Self::Extend(Extend { reserve: Some(_), .. }) => kind.supports_handoff(),
            Self::Extend(_) | Self::Inspect(_) | Self::Evict(_) | Self::ForceRelease(_) => true,
        }
    }
}

/// Take the lock if it is free and no other client waits before; otherwise queue, if requested.
///
/// Sending it twice has the same effect as sending it once, so a queued client also sends it as a *look*: to
/// check whether the lock has been granted.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The requested hold.
    pub claim: Claim,
    /// How long the hold lasts from the moment it is granted, in milliseconds.
    pub lease_ms: u64,
    /// A description of the client, for people to read.
    pub label: Label,
    /// Set if the session wants to wait for the lock.
    pub queue: Option<Enqueue>,
    /// Set to give a foreign lock without an expiry this one, in milliseconds.
    pub adopt_ms: Option<u64>,
    /// What ends the hold, or the queue entry, before its time.
    pub liveness: Liveness,
    /// Set to the session that the last reply named as the [predecessor](Predecessor). If that session is dead by
    /// now, the store first removes its hold and queue entry. Ignored in an acquire that accompanies a
    /// release.
    pub predecessor: Option<SessionId>,
    /// The requested mode.
    pub mode: LockMode,
}

/// What ends a hold, or a queue entry, before its own time has run out.
///
/// ```
/// use leasehold_core::Liveness;
///
/// // One hold ends with the heartbeat of its process; the other one can move between processes.
/// assert!(Liveness::Session { alive_ms: 10_000 }.ends_with_session() && !Liveness::Lease.ends_with_session());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// The death of its session: once the session has sent no heartbeat for too long, any client may have the
    /// hold ended.
    ///
    /// A session that the store does not know may still be alive: the store may have lost it together with
    /// all its other data. Its client learns this with its next heartbeat, and relies on the session only for
    /// as long as the last heartbeat carries. A hold of an unknown session may therefore be ended only once
    /// it is older than that.
    Session {
        /// How long the session lives without a heartbeat, in milliseconds.
        alive_ms: u64,
    },
    /// Nothing: the session is not recorded in any store, and its absence means nothing.
    Lease,
}

impl Liveness {
    /// Whether the death of its session ends it.
    pub const fn ends_with_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}

/// An entry in the queue: one per session and lock.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueue {
    /// Fresh with every enqueue and look; the grant repeats it.
    pub nonce: Nonce,
    /// How long the entry is kept without another look, in milliseconds.
    pub ttl_ms: u64,
}

/// Extend a hold: its expiry never moves closer.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    /// The hold.
    pub claim: Claim,
    /// How long the hold lasts from now at least, in milliseconds.
    pub lease_ms: u64,
    /// Set from time to time, so that the record beside a long hold does not expire before it.
    pub keep_record: bool,
    /// Set to reserve fencing tokens for the tasks to which a Mutex is handed on.
    pub reserve: Option<Reserve>,
}

/// Give up a hold: free the lock if this claim holds it, leave the queue if it waits there.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The hold.
    pub claim: Claim,
    /// What happens to the lock once it is free.
    pub action: ReleaseAction,
    /// Set if tasks of the same process still wait: the same step acquires again, behind the other waiters.
    pub next: Option<Acquire>,
}

/// What happens to a lock that is freed.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAction {
    /// The store grants it to the first live waiter.
    Grant,
    /// The lock stays free, so that clients of other libraries, which do not queue, can take it.
    Free,
    /// The lock stays free, and the store notifies the clients that [subscribe](Kind::goes_by_majority) to
    /// it. A quorum uses this, where no store has a queue because each store is only one vote. For a Mutex or
    /// a ReentrantMutex only.
    FreeAndPublish,
    /// The lock stays taken without a holder until a time after it was granted to this hold, and then goes to
    /// the first client that looks. Used for work that is done once per period. If that time has already
    /// passed, same as [`Grant`](Self::Grant). Only for a lock that is [one string](Kind::is_one_string).
    Cooldown {
        /// How long the lock stays taken, from when it was granted to this hold, in milliseconds.
        for_ms: u64,
    },
}

/// Raise the fencing token of a hold: the second round of an acquire over several stores, each of which has
/// granted the hold with its own token. The greatest of these becomes the token of the hold. It counts once a
/// majority that still has the hold has stored it, so every majority grants the next holder a greater one.
///
/// The operation compares the hold, so one that arrives late changes nothing. It never lowers a token.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, FencingToken, HoldId, Label, Liveness, Op, LockMode, RaiseFence, FenceRaised, Reply, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 3_000, label: Label::new("billing")?, queue: None, adopt_ms: None,
///     liveness: Liveness::Lease, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// lock.apply(1_000_000, &Op::Acquire(ask), &all_alive);
///
/// let raise = Op::RaiseFence(RaiseFence { claim, fence: FencingToken::new(4_000_000) });
/// let (reply, _) = lock.apply(1_001_000, &raise, &all_alive);
/// assert_eq!(reply, Reply::RaiseFence(FenceRaised::Raised));
/// let (reply, _) = lock.apply(9_000_000, &raise, &all_alive);
/// assert_eq!(reply, Reply::RaiseFence(FenceRaised::NotHeld)); // its lease has ended
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaiseFence {
    /// The hold.
    pub claim: Claim,
    /// The token of the hold is at least this from now on.
    pub fence: FencingToken,
}

/// The result of a [`RaiseFence`].
///
/// See [`RaiseFence`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceRaised {
    /// The hold exists, and its token is at least the requested one.
    Raised,
    /// The hold does not exist any more, or its token is not known. Nothing was changed.
    NotHeld,
}

/// Read the state of the lock.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// Set to learn the status of a hold.
    pub claim: Option<Claim>,
    /// Set to also get what only people need: [`Inspection::stranger`] and [`Inspection::audit`].
    pub details: bool,
}

/// Remove a dead session from a lock: its hold, its queue entry, or both. A lock that becomes free is granted
/// to the next waiter.
///
/// The same step checks that the session is dead, so a session that returns in time keeps its hold and its
/// queue entry.
///
/// ```
/// use leasehold_core::model::{LockState, SessionStatus};
/// use leasehold_core::{
///     Acquire, Claim, Ended, Evict, Evicted, HoldStatus, HoldId, Inspect, Label, Liveness, Op, LockMode, Reply,
///     SessionId,
/// };
///
/// let dead = SessionId::from_random([1; 12]);
/// let claim = Claim::new(HoldId::from_random(dead, [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 60_000, label: label.clone(), queue: None, adopt_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 }, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let (mut lock, nobody) = (LockState::default(), &|_| SessionStatus::Lapsed);
/// lock.apply(1_000_000, &Op::Acquire(ask), nobody);
/// let (reply, _) = lock.apply(2_000_000, &Op::Evict(Evict { session: dead, actor: label }), nobody);
/// assert!(matches!(reply, Reply::Evict(Evicted::Removed { fence: Some(_), was_queued: false })));
///
/// let inspect = Inspect { claim: Some(claim), details: true };
/// let (reply, _) = lock.apply(3_000_000, &Op::Inspect(inspect), nobody);
/// assert!(matches!(reply, Reply::Inspect(seen)
///     if seen.hold_status == Some(HoldStatus::Ended(Ended::Evicted)) && seen.audit.len() == 1));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// The session to remove.
    pub session: SessionId,
    /// The client that does it, for the audit.
    pub actor: Label,
}

/// Take a lock from its holder at an operator's request. The holder is notified, and the next waiter gets the
/// lock.
///
/// The operation compares the holder that the operator has [observed](ObservedHolder), so a client that has acquired
/// the lock since then keeps it.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, ForceRelease, ForceReleased, HoldId, Label, Liveness, Op, LockMode, Reply, ObservedHolder, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim, lease_ms: 60_000, label: label.clone(), queue: None, adopt_ms: None,
///     liveness: Liveness::Session { alive_ms: 10_000 }, predecessor: None, mode: LockMode::Exclusive,
/// };
/// let mut lock = LockState::default();
/// let (reply, _) = lock.apply(1_000_000, &Op::Acquire(ask), &all_alive);
/// let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("the lock was free") };
///
/// let mut free = ForceRelease { observed: ObservedHolder::Hold(fence), actor: Label::new("the night shift")? };
/// let (reply, _) = lock.apply(2_000_000, &Op::ForceRelease(free.clone()), &all_alive);
/// assert_eq!(reply, Reply::ForceRelease(ForceReleased::Released));
/// let (reply, _) = lock.apply(3_000_000, &Op::ForceRelease(free), &all_alive);
/// assert_eq!(reply, Reply::ForceRelease(ForceReleased::Changed { holder: None })); // the holder has changed since
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForceRelease {
    /// The observed hold.
    pub observed: ObservedHolder,
    /// The operator that does it, for the audit.
    pub actor: Label,
}

/// A holder as an [`Inspection`] showed it.
///
/// See [`ForceRelease`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedHolder {
    /// A hold of Leasehold, by its fencing token.
    Hold(FencingToken),
    /// A client of another library, by the fingerprint of its value.
    Foreign(Fingerprint),
}

/// Set the number of permits of a Semaphore, whatever number is held now.
///
/// The operation compares the number that the caller has seen, so a late one does not undo a later resize.
/// Holders keep their permits even if there are now more than the limit; no other client is admitted until
/// enough permits are free.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{Kind, Op, Reply, Resize, Resized};
///
/// let mut lock = LockState::new(Kind::Semaphore);
/// let (reply, _) = lock.apply(1_000_000, &Op::Resize(Resize { observed: None, limit: 5 }), &all_alive);
/// assert_eq!(reply, Reply::Resize(Resized::Done));
/// let (reply, _) = lock.apply(2_000_000, &Op::Resize(Resize { observed: Some(3), limit: 4 }), &all_alive);
/// assert_eq!(reply, Reply::Resize(Resized::Changed { limit: Some(5) }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The number of permits that the caller has seen; `None` if the store knew no number.
    pub observed: Option<u32>,
    /// The new number of permits.
    pub limit: u32,
}

/// The result of a [`Resize`].
///
/// See [`Resize`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// The Semaphore now has the requested number of permits.
    Done,
    /// The number of permits is neither the one that the caller has seen nor the requested one. Nothing was
    /// changed.
    Changed {
        /// The number of permits.
        limit: Option<u32>,
    },
}

/// The reply of a store.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply {
    /// To an [`Op::Acquire`].
    Acquire(Acquired),
    /// To an [`Op::Extend`].
    Extend(Extended),
    /// To an [`Op::Release`].
    Release(Released),
    /// To an [`Op::Inspect`].
    Inspect(Inspection),
    /// To an [`Op::Evict`].
    Evict(Evicted),
    /// To an [`Op::ForceRelease`].
    ForceRelease(ForceReleased),
    /// To an [`Op::Resize`].
    Resize(Resized),
    /// To an [`Op::RaiseFence`].
    RaiseFence(FenceRaised),
    /// The operation has no meaning here and had no effect. A client whose request for a shared lock is
    /// refused stops waiting for it, which can admit other waiters.
    Refused(Refused),
}

/// Whether an operation that has no reply was executed.
///
/// It is the one answer to that question: a store gives it beside the fault that it reports, the state machines of this
/// crate decide by it, and it selects the variant of the error that the caller receives.
///
/// It has no `Yes`: only a reply proves that an operation was executed, and with a reply the question does not arise. It is
/// not a `bool`, so that each place that decides by it names [`Unknown`](Self::Unknown), which means neither "no" nor "yes":
/// an operation that is still under way can take effect later.
///
/// ```
/// use leasehold_core::Executed;
///
/// // Sent twice: the first reply was lost, and the second sending was refused.
/// assert_eq!(Executed::No.or(Executed::Unknown), Executed::Unknown);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executed {
    /// It was not executed, and will not be.
    No,
    /// It may have been executed, or may still be: the reply was lost or late, or the call was cut short.
    Unknown,
}

impl Executed {
    /// The answer for an operation that was sent more than once, or to more than one server: `No` only if every sending
    /// says so.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::No, Self::No) => Self::No,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
        }
    }
}

/// What became of an [`Acquire`].
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The hold exists.
    Granted {
        /// Its fencing token.
        fence: FencingToken,
        /// How long it still lasts, in milliseconds.
        remaining_ms: u64,
        /// Set if others wait in the queue.
        others_wait: bool,
        /// What the owner of a ReentrantMutex holds now.
        owner_holds: Option<OwnerHolds>,
    },
    /// Another client holds the lock, or waits for it before this one.
    Taken {
        /// The holder. `None` where the lock was left free, or where its queue contains only dead sessions.
        holder: Option<Holder>,
        /// How many entries precede this client's, if it has queued.
        position: Option<u64>,
        /// The session whose death would bring this client closer to the lock: the holder, or the waiter
        /// right before it. `None` where that one has no session that could die. Where several clients hold
        /// the lock and none waits before: the session that the request named, if it is one of the holders,
        /// or else the first of them.
        predecessor: Option<Predecessor>,
        /// The other sessions that hold a shared lock: this client may wait for any of them. They come in the
        /// order of their holds, from `predecessor` on and around, and are limited to a few.
        other_holders: Vec<SessionId>,
    },
    /// This very hold has already ended: the operation arrived late, or twice.
    AlreadyEnded(Ended),
}

/// The result for one of several locks that were requested together: all are acquired, or none.
///
/// ```
/// use leasehold_core::model::LockState;
/// use leasehold_core::{Acquire, Claim, HoldId, Label, Liveness, Lock, LockMode, SessionId, MultiAcquired};
///
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let (liveness, label) = (Liveness::Session { alive_ms: 10_000 }, Label::new("a worker").expect("it is short"));
///     Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, liveness, predecessor: None, mode: LockMode::Exclusive }
/// };
/// let (mut till, mut stock) = (LockState::default(), LockState::default());
/// let both = LockState::acquire_all(&mut [(&mut till, &ask(1)), (&mut stock, &ask(2))], 1_000_000);
/// assert!(both.iter().all(|share| matches!(share, MultiAcquired::Acquired(_))));
///
/// let mut shelf = LockState::default();
/// let shares = LockState::acquire_all(&mut [(&mut till, &ask(3)), (&mut shelf, &ask(4))], 2_000_000);
/// assert!(matches!(shares[0], MultiAcquired::Blocked(_)) && shares[1] == MultiAcquired::Available && shelf.value.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MultiAcquired {
    /// All were acquired, and this is one of them: [`Acquired::Granted`].
    Acquired(Acquired),
    /// This one could not be acquired, and the reply says why, as for an acquire that does not queue. None
    /// was acquired.
    Blocked(Result<Acquired, Refused>),
    /// This one could have been acquired. None was.
    Available,
    /// This very hold already exists, from an earlier sending. Nothing was changed.
    Held,
}

/// What the owner of a ReentrantMutex holds.
///
/// ```
/// use leasehold_core::OwnerHolds;
///
/// let owner_holds = OwnerHolds { count: 2, lease_ms: 30_000 };
/// assert!(owner_holds.count > 1, "owner_holds again");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerHolds {
    /// How many holds the owner has, this one included.
    pub count: u64,
    /// The longest lease requested since the owner acquired the lock, in milliseconds.
    pub lease_ms: u64,
}

/// The session directly ahead of a waiter.
///
/// Each waiter watches its predecessor, so another client notices every death, however long the queue, and
/// every look needs to check only one session. (Leader election over ZooKeeper avoids a herd effect in the
/// same way.)
///
/// ```
/// use leasehold_core::{Predecessor, SessionId};
///
/// let predecessor = Predecessor { session: SessionId::from_random([7; 12]), alive_ms: Some(2_400) };
/// println!("look again in {} ms", predecessor.alive_ms.unwrap_or(250));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predecessor {
    /// The session.
    pub session: SessionId,
    /// How long the session remains alive without another heartbeat, in milliseconds; `u64::MAX` if it needs
    /// no heartbeats. Only given for the session that the request [named](Acquire::predecessor).
    pub alive_ms: Option<u64>,
}

/// What other clients may know about a holder.
///
/// ```
/// use leasehold_core::{FencingToken, Holder, Label, LockMode};
///
/// fn shown(holder: &Holder) -> String {
///     match (&holder.label, holder.remaining_ms) {
///         (Some(label), _) => label.to_string(),
///         (None, Some(_)) => "a client of another library".into(),
///         (None, None) => "a client of another library, for ever".into(),
///     }
/// }
///
/// let fence = Some(FencingToken::new(4711));
/// let label = Some(Label::new("billing on web-3")?);
/// let ours = Holder {
///     label, owner: None, count: 1, remaining_ms: Some(2_900), fence, since_ms: None, session: None, in_cooldown: false,
///     mode: LockMode::Exclusive,
/// };
/// assert!(!ours.is_foreign() && shown(&ours) == "billing on web-3");
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its description. Not known for a client of another library.
    pub label: Option<Label>,
    /// The owner of a ReentrantMutex, also for a client of another library; `None` for a Mutex.
    pub owner: Option<OwnValue>,
    /// How many holds it has: one, except for a ReentrantMutex.
    pub count: u64,
    /// How long it still holds the lock without an extend, in milliseconds; `None` if its key has no expiry.
    pub remaining_ms: Option<u64>,
    /// Its fencing token, if it has one.
    pub fence: Option<FencingToken>,
    /// When it acquired the lock, in milliseconds of the store's clock, if known.
    pub since_ms: Option<u64>,
    /// The session whose death would end the hold, if there is one.
    pub session: Option<SessionId>,
    /// The mode in which it holds the lock.
    pub mode: LockMode,
    /// Set if the holder has finished and left the lock taken until its time is over: see [`ReleaseAction::Rest`].
    pub in_cooldown: bool,
}

impl Holder {
    /// Whether it is a client of another library, which does not grant the lock to a waiter on release.
    pub const fn is_foreign(&self) -> bool {
        self.label.is_none()
    }
}

/// What became of an [`Extend`].
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// The hold exists, and lasts at least as long as requested. Nothing is reserved, even if requested: the
    /// store knows nothing of the hold but its key.
    Extended,
    /// The same, and these tokens are reserved for the hold.
    Reserved {
        /// The tokens.
        block: TokenBlock,
        /// Set if others are in the queue, dead or alive.
        others_wait: bool,
    },
    /// The hold does not exist any more.
    NotHeld,
}

/// The result of a [`Release`].
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The status of the hold before the release; [`HoldStatus::Held`] means that this operation released it.
    pub status: HoldStatus,
    /// How many holds the owner still has, whatever was found: 0 if the lock is now free, as it always is
    /// after the release of a Mutex.
    pub remaining_holds: u64,
    /// The holder, where another client holds the lock.
    pub holder: Option<Holder>,
    /// The result of the acquire that came with the release.
    pub next: Option<Result<Acquired, Refused>>,
}

/// The result of an [`Evict`].
///
/// See [`Evict`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// The session is alive. Nothing was changed.
    Alive,
    /// The session is dead, and no longer holds the lock or waits for it.
    Removed {
        /// The fencing token of the hold that was removed.
        fence: Option<FencingToken>,
        /// Set if a queue entry was removed.
        was_queued: bool,
    },
}

/// The result of a [`ForceRelease`].
///
/// See [`ForceRelease`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForceReleased {
    /// The lock was taken from its holder.
    Released,
    /// The lock is not held by the holder that was observed. Nothing was changed.
    Changed {
        /// The holder now.
        holder: Option<Holder>,
    },
}

/// The status of a hold.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldStatus {
    /// It holds the lock.
    Held,
    /// It waits in the queue.
    Queued,
    /// It was ended, in this way.
    Ended(Ended),
    /// It was the last hold of the lock, and its key is gone: its lease expired, or the key was deleted. For
    /// a ReentrantMutex also where its owner has other holds of the lock, and this one is not among them.
    Vanished,
    /// Another client has held the lock since, or holds it now.
    Superseded,
    /// The store has no record of the lock: it never existed, ended long ago, or the store lost its data.
    Forgotten,
}

/// The state of a lock.
///
/// See [`Op`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The holder.
    pub holder: Option<Holder>,
    /// How many sessions wait for the lock.
    pub waiters: u64,
    /// The status of the hold that the request named.
    pub hold_status: Option<HoldStatus>,
    /// The fingerprint of the value at the key, where a client of another library holds the lock. Only [in
    /// full](Inspect::details).
    pub foreign_fingerprint: Option<Fingerprint>,
    /// The evictions and forced releases of this lock, most recent first. Only [in full](Inspect::details).
    pub audit: Vec<AuditEntry>,
    /// All holders of a shared lock, oldest first; no more than [`MAX_SHARED_HOLDERS`]. Empty for a Mutex or a
    /// ReentrantMutex.
    pub shared_holders: Vec<Holder>,
    /// The total number of permits, arrivals or parties, for a lock that counts them and where it is known.
    pub limit: Option<u32>,
}

/// How many holders of a shared lock an inspection returns at most, so that every reply is bounded.
pub const MAX_SHARED_HOLDERS: usize = 4096;

/// Why an operation has no meaning.
///
/// ```
/// use leasehold_core::Refused;
///
/// let refused = Refused::WrongKind { found: "hash".into() };
/// assert!(refused.to_string().ends_with("the name is used for something else"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Something else is stored at the key.
    #[error(
        "its key holds a {found}, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"
    )]
    WrongKind {
        /// The type of the value, as the store's TYPE command calls it.
        found: String,
    },
    /// A claim of a ReentrantMutex or an RwLock does not name its owner.
    #[error(
        "a claim of a ReentrantMutex or an RwLock has to name its owner, by another text than `{RESERVED_OWNER}`: a field of Leasehold's own has that name"
    )]
    NoOwner,
    /// Locks of this kind do not have this mode or this operation.
    #[error("locks of this kind do not support this mode or operation")]
    Unsupported,
    /// The request exceeds the total, so it would wait forever; or it requests nothing.
    #[error("{count} of {limit} requested: this can never succeed")]
    OutOfRange {
        /// The requested number.
        count: u32,
        /// The total number.
        limit: u32,
    },
    /// The other clients that use this Latch or Barrier now use another number.
    #[error(
        "it counts to {requested} in this request, and to {known} for the clients that use it now: use one number everywhere"
    )]
    Disagreement {
        /// The number in the request.
        requested: u32,
        /// The number that the others use.
        known: u32,
    },
    /// The owner would wait for itself.
    #[error(
        "its owner already holds the lock, and would wait for itself: to write after reading, begin with an upgradable read, and write once"
    )]
    WouldDeadlock,
    /// The request is an upgrade, and its owner has no upgradable read any more.
    #[error("its owner has no upgradable read that could become a write")]
    NothingToUpgrade,
    /// A lock of this kind cannot stay taken without a holder.
    #[error("only a Mutex and an Election can be left taken until a time is over: release it")]
    NoCooldown,
    /// The lock's record was written in another format.
    #[error("its record has format {found}, and this version knows format {known}: use a version of Leasehold that knows both", known = crate::FORMAT)]
    Format {
        /// The format that was found.
        found: String,
    },
}

impl Refused {
    /// Whether the request itself can never succeed, whatever happens to the lock's keys.
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::OutOfRange { .. }
                | Self::Disagreement { .. }
                | Self::WouldDeadlock
                | Self::NothingToUpgrade
        )
    }
}

/// A message to a session's mailbox: a hint, which can be lost, late or forged.
///
/// ```
/// use leasehold_core::{FencingToken, Nonce, SessionId, Notification};
///
/// let to = SessionId::from_random([7; 12]);
/// let notification = Notification::Grant { to, nonce: Nonce::new(2, 0x4d), fence: FencingToken::new(4711) };
/// assert_eq!(notification.message(), "grant 00000002000000000000004d 4711");
/// assert_eq!(Notification::parse(to, b"grant 00000002000000000000004d 4711"), Ok(notification));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Notification {
    /// A lock has been granted.
    Grant {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The nonce of the look that it answers.
        nonce: Nonce,
        /// The fencing token of the hold.
        fence: FencingToken,
    },
    /// A lock was taken by force.
    ForceReleased {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The fencing token of the hold that was ended.
        fence: FencingToken,
    },
    /// Another session requests a lock whose holder subscribed to that.
    Wanted {
        /// The session whose mailbox receives it.
        to: SessionId,
        /// The fencing token that the store has granted with the hold.
        fence: FencingToken,
    },
}

impl Notification {
    /// The session whose mailbox receives it.
    pub const fn to(&self) -> SessionId {
        match self {
            Self::Grant { to, .. } | Self::ForceReleased { to, .. } | Self::Wanted { to, .. } => *to,
        }
    }

    /// The fencing token of the hold that it is about.
    pub const fn fence(&self) -> FencingToken {
        match self {
            Self::Grant { fence, .. } | Self::ForceReleased { fence, .. } | Self::Wanted { fence, .. } => {
                *fence
            }
        }
    }

    /// The nonce of the look that it answers, if it is a grant.
    pub const fn nonce(&self) -> Option<Nonce> {
        match self {
            Self::Grant { nonce, .. } => Some(*nonce),
            Self::ForceReleased { .. } | Self::Wanted { .. } => None,
        }
    }

    /// The message as it is published to the mailbox.
    pub fn message(&self) -> String {
        match self {
            Self::Grant { nonce, fence, .. } => format!("grant {nonce} {fence}"),
            Self::ForceReleased { fence, .. } => format!("freed {fence}"),
            Self::Wanted { fence, .. } => format!("wanted {fence}"),
        }
    }

    /// Parses a message from `to`'s mailbox.
    pub fn parse(to: SessionId, message: &[u8]) -> Result<Self, NotificationError> {
        let text = std::str::from_utf8(message).map_err(|_| NotificationError)?;
        let words: Vec<_> = text.split(' ').collect();
        match words.as_slice() {
            ["grant", nonce, fence] => {
                let nonce = nonce.parse().map_err(|_| NotificationError)?;
                let fence = fence.parse().map_err(|_| NotificationError)?;
                Ok(Self::Grant { to, nonce, fence })
            }
            ["freed", fence] => {
                Ok(Self::ForceReleased { to, fence: fence.parse().map_err(|_| NotificationError)? })
            }
            ["wanted", fence] => {
                Ok(Self::Wanted { to, fence: fence.parse().map_err(|_| NotificationError)? })
            }
            _ => Err(NotificationError),
        }
    }
}

/// A message that does not come from Leasehold. The error does not show the message.
///
/// ```
/// use leasehold_core::{SessionId, Notification, NotificationError};
///
/// let to = SessionId::from_random([7; 12]);
/// assert_eq!(Notification::parse(to, b"hello"), Err(NotificationError)); // any client may publish there
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message in the mailbox is not from Leasehold")]
pub struct NotificationError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back() {
        let to = SessionId::from_random([3; 12]);
        let fence = FencingToken::new(1_762_000_000_123_456);
        let notification = Notification::Grant { to, nonce: Nonce::new(2, 77), fence };
        assert_eq!(notification.message(), "grant 00000002000000000000004d 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        let notification = Notification::ForceReleased { to, fence };
        assert_eq!(notification.message(), "freed 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        let notification = Notification::Wanted { to, fence };
        assert_eq!(notification.message(), "wanted 1762000000123456");
        assert_eq!(Notification::parse(to, notification.message().as_bytes()), Ok(notification));
        for forged in [
            "",
            "grant",
            "grant x 1",
            "grant 00000002000000000000004d",
            "free 00000002000000000000004d 1",
            "freed",
            "freed x",
            "freed 1 2",
            "wanted",
            "wanted 1 2",
            "\u{0}",
        ] {
            assert_eq!(Notification::parse(to, forged.as_bytes()), Err(NotificationError), "{forged}");
        }
        assert_eq!(Notification::parse(to, &[0xff, 0xfe]), Err(NotificationError));
    }
}
