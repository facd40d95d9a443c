//! What a store can be asked, and what it answers: plain data.
//!
//! The meaning of every operation is [`model`](crate::model); a store may do nothing else.

use crate::cohort::{Block, Reserve};
use crate::{
    AuditEntry, Ended, FencingToken, Fingerprint, HoldId, Label, LockName, Nonce, OwnValue, SessionId,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of locks.
///
/// [`Lock`] shows it in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// One holder, who does not re-enter: the `SET key token NX PX` lock that other libraries share.
    #[default]
    Mutex,
    /// One owner, who may enter again and again: Redisson's `RLock`, a hash of the owner and how often he has it.
    Reentrant,
    /// So many permits, which are held by whoever takes them: a hash of the holds.
    Semaphore,
    /// Readers share it, a writer is alone: a hash of the holds.
    RwLock,
    /// It opens when so many have arrived: a hash of the arrivals.
    Latch,
    /// So many wait for one another, and go on together: a hash of those who go.
    Barrier,
    /// One leader, as one holder of a Mutex; and whoever wants to know who leads is told of a new one.
    Election,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Mutex,
        Self::Reentrant,
        Self::Election,
        Self::Semaphore,
        Self::RwLock,
        Self::Latch,
        Self::Barrier,
    ];
    /// Those that one has at a time.
    pub const ALONE: [Self; 3] = [Self::Mutex, Self::Reentrant, Self::Election];
    /// Those that several can have [side by side](Self::is_shared).
    pub const SHARED: [Self; 4] = [Self::Semaphore, Self::RwLock, Self::Latch, Self::Barrier];

    /// The word for it in keys and records.
    pub const fn word(self) -> &'static str {
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

    /// Whether several may have it side by side, each with a hold, an end and a fencing token of his own.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Semaphore | Self::RwLock | Self::Latch | Self::Barrier)
    }

    /// Whether each claim has to say whose it is.
    pub const fn has_owners(self) -> bool {
        matches!(self, Self::Reentrant | Self::RwLock)
    }

    /// What stands before the token at the key of an Election, and of no other lock: a Mutex of the same name is a string, too,
    /// and neither is to take the other for a client of another library. No value of a user's own has a control character.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Election => "election\n",
            _ => "",
        }
    }

    /// What stands at the lock's key while a claim has it: a secret. Of a ReentrantMutex, its owner.
    pub fn token(self, claim: &Claim) -> String {
        [self.mark(), &claim.token()].concat()
    }

    /// What stands at the lock's key while it [rests](Pass::Rest) after the hold of that fencing token.
    pub fn rest(self, fence: Option<FencingToken>) -> String {
        format!("{}rest\n{}", self.mark(), fence.map_or(0, FencingToken::as_u64))
    }

    /// Whether a string at the key is a lock of this kind.
    pub fn owns(self, token: &str) -> bool {
        match self {
            Self::Mutex => !token.starts_with(Self::Election.mark()),
            Self::Election => token.starts_with(self.mark()),
            _ => false,
        }
    }

    /// Whether tasks of one process have a hold of it one after the other, each by a fencing token of its own:
    /// [`cohort`](crate::cohort).
    pub const fn is_handed_on(self) -> bool {
        matches!(self, Self::Mutex)
    }

    /// Whether several stores can have a lock of this kind together, whose holder is whoever a majority of them has: nobody
    /// has to be told more of it than what his own claim has come to.
    pub const fn goes_by_majority(self) -> bool {
        matches!(self, Self::Mutex | Self::Reentrant)
    }

    /// Whether a lock of this kind is a string, which one holder at a time has.
    pub const fn is_one_string(self) -> bool {
        matches!(self, Self::Mutex | Self::Election)
    }

    /// The kind that a word is for.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// One lock: a name, and what kind of lock it is.
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
    /// What kind of lock it is.
    pub kind: Kind,
    /// What it is called.
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

/// What part of a lock is asked for, or held.
///
/// ```
/// use leasehold_core::{Kind, Portion};
///
/// let two = Portion::Permits { count: 2, of: 5 };
/// assert_eq!((two.word().as_str(), Portion::of_word("p2:5")), ("p2:5", Some(two)));
/// assert!(two.suits(Kind::Semaphore) && !two.suits(Kind::RwLock));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Portion {
    /// All of it: a Mutex, or a ReentrantMutex.
    #[default]
    Whole,
    /// So many permits of a Semaphore.
    Permits {
        /// How many.
        count: u32,
        /// How many there are, where the store has not been told another number.
        of: u32,
    },
    /// A reader of an RwLock, beside other readers.
    Read,
    /// A reader who may become the writer: beside readers, but not beside another one of his like.
    Upgradable,
    /// The writer of an RwLock, alone.
    Write,
    /// The same, beside the upgradable read of the same owner, and before all who wait.
    Upgrade,
    /// So many arrivals at a Latch.
    Arrive {
        /// How many.
        count: u32,
        /// How many open it.
        of: u32,
    },
    /// One who waits until a Latch is open.
    Await {
        /// How many arrivals open it.
        of: u32,
    },
    /// One who waits at a Barrier for the others.
    Meet {
        /// How many go on together.
        of: u32,
    },
}

impl Portion {
    /// Whether a lock of that kind has such parts.
    pub const fn suits(self, kind: Kind) -> bool {
        match self {
            Self::Whole => !kind.is_shared(),
            Self::Permits { .. } => matches!(kind, Kind::Semaphore),
            Self::Read | Self::Upgradable | Self::Write | Self::Upgrade => matches!(kind, Kind::RwLock),
            Self::Arrive { .. } | Self::Await { .. } => matches!(kind, Kind::Latch),
            Self::Meet { .. } => matches!(kind, Kind::Barrier),
        }
    }

    /// How many there are in all, as far as whoever asks knows.
    pub const fn of(self) -> Option<u32> {
        match self {
            Self::Permits { of, .. } | Self::Arrive { of, .. } | Self::Await { of } | Self::Meet { of } => {
                Some(of)
            }
            _ => None,
        }
    }

    /// How many of those it takes.
    pub const fn count(self) -> u32 {
        match self {
            Self::Permits { count, .. } | Self::Arrive { count, .. } => count,
            Self::Await { .. } => 0,
            _ => 1,
        }
    }

    /// The word for it in keys and messages.
    pub fn word(self) -> String {
        match self {
            Self::Whole => "-".to_owned(),
            Self::Permits { count, of } => format!("p{count}:{of}"),
            Self::Read => "r".to_owned(),
            Self::Upgradable => "u".to_owned(),
            Self::Write => "w".to_owned(),
            Self::Upgrade => "x".to_owned(),
            Self::Arrive { count, of } => format!("a{count}:{of}"),
            Self::Await { of } => format!("t0:{of}"),
            Self::Meet { of } => format!("m1:{of}"),
        }
    }

    /// What a word is for.
    pub fn of_word(word: &str) -> Option<Self> {
        let numbers = || {
            let (count, of) = word.get(1..)?.split_once(':')?;
            Some((count.parse().ok()?, of.parse().ok()?))
        };
        let found = match word.get(..1)? {
            "-" => Self::Whole,
            "r" => Self::Read,
            "u" => Self::Upgradable,
            "w" => Self::Write,
            "x" => Self::Upgrade,
            "p" => numbers().map(|(count, of)| Self::Permits { count, of })?,
            "a" => numbers().map(|(count, of)| Self::Arrive { count, of })?,
            "t" => numbers().map(|(_, of)| Self::Await { of })?,
            "m" => numbers().map(|(_, of)| Self::Meet { of })?,
            _ => return None,
        };
        (found.word() == word).then_some(found)
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)
    }
}

/// The right to end a hold, and what stands at the lock's key while it lasts.
///
/// ```
/// use leasehold_core::{Claim, HoldId, OwnValue, SessionId};
///
/// let hold = HoldId::from_random(SessionId::from_random([7; 12]), [9; 16]);
/// assert_eq!(Claim::new(hold).token(), hold.token());
///
/// let own = Claim { hold, value: Some(OwnValue::new("worker-7")?) };
/// assert_eq!(own.token(), "worker-7"); // other libraries see this; the hold stands in the record
/// # Ok::<(), leasehold_core::OwnValueError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The hold. Every acquisition has its own.
    pub hold: HoldId,
    /// Of a Mutex, set if the user wants a value of his own at the lock's key; the hold is then compared beside it. Of a
    /// ReentrantMutex or an RwLock its owner, who has to be there. It means nothing to other kinds.
    pub value: Option<OwnValue>,
}

impl Claim {
    /// A claim of a hold, without a value of the user's own.
    pub const fn new(hold: HoldId) -> Self {
        Self { hold, value: None }
    }

    /// What stands at the lock's key, behind the [mark](Kind::mark) of its kind: a secret.
    pub fn token(&self) -> String {
        self.value.as_ref().map_or_else(|| self.hold.token(), |value| value.as_str().to_owned())
    }
}

/// One operation on one lock.
///
/// One takes the lock, another queues for it, and is told when it is released; here by the model, and so
/// in any store:
///
/// ```
/// use leasehold_core::{
///     Acquire, Acquired, Claim, Enqueue, Extend, Extended, Fate, HoldId, Inspect, Label, Life, Nonce, Op,
///     Pass, Portion, Release, Reply, SessionId, Wake, model::{LockState, everybody},
/// };
///
/// let claim = |who: u8| Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
/// let acquire = |who: u8| Acquire {
///     claim: claim(who),
///     lease_ms: 3_000,
///     label: Label::new(format!("worker {who}")).expect("a short text is a label"),
///     queue: Some(Enqueue { nonce: Nonce::new(0, who.into()), kept_ms: 3_000 }),
///     adopt_ms: None,
///     life: Life::Session { alive_ms: 10_000 },
///     ahead: None,
///     portion: Portion::Whole,
/// };
/// let mut lock = LockState::default();
/// let mut now_us = 1_000_000;
/// let mut execute = |op: Op| {
///     now_us += 1_000;
///     lock.apply(now_us, &op, &everybody)
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
/// // The release hands the lock to the one who waits, and says so to its mailbox.
/// let (reply, wakes) = execute(Op::Release(Release { claim: claim(1), pass: Pass::Grant, next: None }));
/// assert!(matches!(reply, Reply::Release(released) if released.found == Fate::Held));
/// assert!(matches!(wakes[0], Wake::Grant { to, nonce, .. }
///     if to == SessionId::from_random([2; 12]) && nonce == Nonce::new(0, 2)));
///
/// let (reply, _) = execute(Op::Inspect(Inspect { claim: Some(claim(2)), in_full: false }));
/// assert!(matches!(reply, Reply::Inspect(seen) if seen.fate == Some(Fate::Held) && seen.waiting == 0));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Take the lock, or queue for it, or look whether it has been granted.
    Acquire(Acquire),
    /// Lengthen a hold.
    Extend(Extend),
    /// Give a hold up, whether it is held, queued or neither.
    Release(Release),
    /// Take from a dead session what it has of the lock.
    Evict(Evict),
    /// Take the lock from its holder by force.
    Free(Free),
    /// See how the lock stands. Changes nothing.
    Inspect(Inspect),
    /// Say how many permits a Semaphore has.
    Resize(Resize),
    /// Raise the fencing token of a hold to what a quorum of stores has agreed on.
    Raise(Raise),
}

/// What no owner of a ReentrantMutex is called: the field beside the owner's is.
pub const RESERVED_OWNER: &str = "leasehold";

impl Op {
    /// Whether it has no meaning for a lock of that kind, whatever its state.
    pub fn misfit(&self, kind: Kind) -> Option<Refused> {
        match self {
            _ if !self.suits(kind) => Some(Refused::NoSuchPart),
            _ if kind.has_owners() && !self.names_owners() => Some(Refused::NoOwner),
            Self::Release(Release { pass: Pass::Rest { .. }, .. }) if !kind.is_one_string() => {
                Some(Refused::NoRest)
            }
            Self::Release(Release { pass: Pass::Tell, .. }) if !kind.goes_by_majority() => {
                Some(Refused::NoSuchPart)
            }
            _ => None,
        }
    }

    /// Whether each claim says whose it is, as one of a ReentrantMutex or an RwLock has to.
    pub fn names_owners(&self) -> bool {
        let named =
            |claim: &Claim| claim.value.as_ref().is_some_and(|owner| owner.as_str() != RESERVED_OWNER);
        match self {
            Self::Acquire(ask) => named(&ask.claim),
            Self::Release(release) => {
                named(&release.claim) && release.next.as_ref().is_none_or(|next| named(&next.claim))
            }
            Self::Extend(extend) => named(&extend.claim),
            Self::Raise(raise) => named(&raise.claim),
            Self::Inspect(inspect) => inspect.claim.as_ref().is_none_or(named),
            Self::Evict(_) | Self::Free(_) | Self::Resize(_) => true,
        }
    }

    /// Whether what it asks for is a part that locks of that kind have.
    pub fn suits(&self, kind: Kind) -> bool {
        match self {
            Self::Acquire(ask) => ask.portion.suits(kind),
            Self::Release(release) => release.next.as_ref().is_none_or(|next| next.portion.suits(kind)),
            Self::Resize(_) => kind == Kind::Semaphore,
            Self::Raise(_) => kind.goes_by_majority(),
            Self::Extend(Extend { reserve: Some(_), .. }) => kind.is_handed_on(),
            Self::Extend(_) | Self::Inspect(_) | Self::Evict(_) | Self::Free(_) => true,
        }
    }
}

/// Take the lock if it is free and nobody waits before; else queue, if asked so.
///
/// Sending it twice equals sending it once, so it is also the *look* of one who waits already.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The hold that is asked for.
    pub claim: Claim,
    /// How long the hold lasts from the moment it is given, in milliseconds.
    pub lease_ms: u64,
    /// Who asks, for others to read.
    pub label: Label,
    /// Set if the session wants to wait for the lock.
    pub queue: Option<Enqueue>,
    /// Set if a foreign lock that has no expiry should be given this one, in milliseconds.
    pub adopt_ms: Option<u64>,
    /// What ends the hold, or the place, before its time.
    pub life: Life,
    /// Set to the session that the last reply named as standing [ahead](Ahead): if it is dead by now, what it has of
    /// the lock is taken from it before anything else. Not heeded in the acquire that goes with a release.
    pub ahead: Option<SessionId>,
    /// What part of the lock is asked for.
    pub portion: Portion,
}

/// What ends a hold, or a place in the queue, before its own time has run out.
///
/// ```
/// use leasehold_core::Life;
///
/// // A process that keeps its locks alive by a heartbeat, and a hold that travels from one to another.
/// assert!(Life::Session { alive_ms: 10_000 }.ends_with_session() && !Life::Lease.ends_with_session());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// The death of its session: when the session has not beaten for too long, anybody may have it ended.
    ///
    /// A session that the store does not know may have been forgotten, with all else that the store knew, and live. Its
    /// client finds out with its next beat, and believes no longer than its last one carries. So a hold of such a session
    /// may be ended only once it is older than that.
    Session {
        /// How long the session lives without a beat, in milliseconds.
        alive_ms: u64,
    },
    /// Nothing: its session is kept nowhere, and its absence means nothing.
    Lease,
}

impl Life {
    /// Whether the death of its session ends it.
    pub const fn ends_with_session(self) -> bool {
        matches!(self, Self::Session { .. })
    }
}

/// A place in the queue: one a session and lock.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueue {
    /// Fresh with every enqueue and look; the grant repeats it.
    pub nonce: Nonce,
    /// How long the place is kept without another look, in milliseconds.
    pub kept_ms: u64,
}

/// Lengthen a hold: its end is never brought nearer.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extend {
    /// The hold.
    pub claim: Claim,
    /// How long it lasts from now at least, in milliseconds.
    pub lease_ms: u64,
    /// Set from time to time, so that the record beside a long hold does not expire before it.
    pub keep_record: bool,
    /// Set to have fencing tokens reserved for those to whom the hold is handed on, of a Mutex.
    pub reserve: Option<Reserve>,
}

/// Give a hold up: free the lock if it is held by it, leave the queue if it waits there.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The hold.
    pub claim: Claim,
    /// What becomes of a lock that was freed.
    pub pass: Pass,
    /// Set if tasks of the same process still wait: acquire again in the same step, behind the others.
    pub next: Option<Acquire>,
}

/// What becomes of a lock that is freed.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The first live waiter gets it.
    Grant,
    /// It lies free, so that clients of other libraries, who do not queue, have their chance.
    Free,
    /// It lies free, and whoever [listens](Kind::goes_by_majority) to it is told: where no store has a queue, since each of
    /// several has but a vote. Of a Mutex or a ReentrantMutex only.
    Tell,
    /// It stays taken, by nobody, until so long after it was given to this hold, and only then comes to whoever looks first:
    /// for what is to be done once in that time. Where that time is over, as [`Grant`](Self::Grant). Of a lock
    /// that is [one string](Kind::is_one_string) only.
    Rest {
        /// How long from when the lock was given to this hold, in milliseconds.
        for_ms: u64,
    },
}

/// Raise the fencing token of a hold: the second round of an acquire over several stores, each of which has given the hold a
/// token of its own. The greatest of them is the hold's, and it counts once a majority that still has the hold has stored it.
/// So whoever is given the lock next is given a greater one by each majority.
///
/// It compares the hold, so that one that comes late changes nothing; and it never lowers a token.
///
/// ```
/// use leasehold_core::model::{LockState, everybody};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, FencingToken, HoldId, Label, Life, Op, Portion, Raise, Raised, Reply, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 3_000, label: Label::new("billing")?, queue: None, adopt_ms: None,
///     life: Life::Lease, ahead: None, portion: Portion::Whole,
/// };
/// let mut lock = LockState::default();
/// lock.apply(1_000_000, &Op::Acquire(ask), &everybody);
///
/// let raise = Op::Raise(Raise { claim, fence: FencingToken::new(4_000_000) });
/// let (reply, _) = lock.apply(1_001_000, &raise, &everybody);
/// assert_eq!(reply, Reply::Raise(Raised::Raised));
/// let (reply, _) = lock.apply(9_000_000, &raise, &everybody);
/// assert_eq!(reply, Reply::Raise(Raised::NotHeld)); // its lease has ended
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raise {
    /// The hold.
    pub claim: Claim,
    /// What its fencing token is at least from now on.
    pub fence: FencingToken,
}

/// What became of a [`Raise`].
///
/// [`Raise`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raised {
    /// The hold is there, and its token is as great as was asked, or greater.
    Raised,
    /// The hold is not there any more, or nothing is known of its token: nothing was changed.
    NotHeld,
}

/// See how the lock stands.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspect {
    /// Set to learn what became of a hold.
    pub claim: Option<Claim>,
    /// Set to get what only people want to know: [`Inspection::stranger`] and [`Inspection::audit`].
    pub in_full: bool,
}

/// Take from a session what it has of a lock, if it is dead: its hold, its place, or both. A lock that is found free is
/// granted to the next.
///
/// Whether the session is dead is looked at in the same step, so a session that is back in time keeps what it has.
///
/// ```
/// use leasehold_core::model::{LockState, Vital};
/// use leasehold_core::{
///     Acquire, Claim, Ended, Evict, Evicted, Fate, HoldId, Inspect, Label, Life, Op, Portion, Reply,
///     SessionId,
/// };
///
/// let dead = SessionId::from_random([1; 12]);
/// let claim = Claim::new(HoldId::from_random(dead, [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim: claim.clone(), lease_ms: 60_000, label: label.clone(), queue: None, adopt_ms: None,
///     life: Life::Session { alive_ms: 10_000 }, ahead: None, portion: Portion::Whole,
/// };
/// let (mut lock, nobody) = (LockState::default(), &|_| Vital::Lapsed);
/// lock.apply(1_000_000, &Op::Acquire(ask), nobody);
/// let (reply, _) = lock.apply(2_000_000, &Op::Evict(Evict { dead, by: label }), nobody);
/// assert!(matches!(reply, Reply::Evict(Evicted::Gone { hold: Some(_), place: false })));
///
/// let inspect = Inspect { claim: Some(claim), in_full: true };
/// let (reply, _) = lock.apply(3_000_000, &Op::Inspect(inspect), nobody);
/// assert!(matches!(reply, Reply::Inspect(seen)
///     if seen.fate == Some(Fate::Ended(Ended::Evicted)) && seen.audit.len() == 1));
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// Whose hold and place.
    pub dead: SessionId,
    /// Who does it, for the audit.
    pub by: Label,
}

/// Take a lock from whoever has it, by the will of a person: the holder is told, and the next gets it.
///
/// It compares what the person has [seen](Seen), so that nobody loses a lock that has come to him meanwhile.
///
/// ```
/// use leasehold_core::model::{LockState, everybody};
/// use leasehold_core::{
///     Acquire, Acquired, Claim, Free, Freed, HoldId, Label, Life, Op, Portion, Reply, Seen, SessionId,
/// };
///
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [9; 16]));
/// let label = Label::new("billing")?;
/// let ask = Acquire {
///     claim, lease_ms: 60_000, label: label.clone(), queue: None, adopt_ms: None,
///     life: Life::Session { alive_ms: 10_000 }, ahead: None, portion: Portion::Whole,
/// };
/// let mut lock = LockState::default();
/// let (reply, _) = lock.apply(1_000_000, &Op::Acquire(ask), &everybody);
/// let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("nobody had it") };
///
/// let mut free = Free { seen: Seen::Hold(fence), by: Label::new("the night shift")? };
/// let (reply, _) = lock.apply(2_000_000, &Op::Free(free.clone()), &everybody);
/// assert_eq!(reply, Reply::Free(Freed::Freed));
/// let (reply, _) = lock.apply(3_000_000, &Op::Free(free), &everybody);
/// assert_eq!(reply, Reply::Free(Freed::Changed { holder: None })); // it is another's by now, or nobody's
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Free {
    /// The hold that is meant.
    pub seen: Seen,
    /// Who does it, for the audit.
    pub by: Label,
}

/// A holder as an [`Inspection`] has shown it.
///
/// [`Free`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A hold of ours, by its fencing token.
    Hold(FencingToken),
    /// A client of another library, by the fingerprint of its value.
    Stranger(Fingerprint),
}

/// Say how many permits a Semaphore has from now on, whoever holds how many of them.
///
/// It compares the number that was seen before, so that one that comes late undoes nobody's later word. Who holds more than
/// there are goes on; nobody is let in until there is room again.
///
/// ```
/// use leasehold_core::model::{LockState, everybody};
/// use leasehold_core::{Kind, Op, Reply, Resize, Resized};
///
/// let mut lock = LockState::new(Kind::Semaphore);
/// let (reply, _) = lock.apply(1_000_000, &Op::Resize(Resize { seen: None, limit: 5 }), &everybody);
/// assert_eq!(reply, Reply::Resize(Resized::Done));
/// let (reply, _) = lock.apply(2_000_000, &Op::Resize(Resize { seen: Some(3), limit: 4 }), &everybody);
/// assert_eq!(reply, Reply::Resize(Resized::Changed { limit: Some(5) }));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// How many there were when it was looked at; nothing, where the store knew no number.
    pub seen: Option<u32>,
    /// How many there are to be.
    pub limit: u32,
}

/// What became of a [`Resize`].
///
/// [`Resize`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// There are so many permits now.
    Done,
    /// There are neither as many as were seen, nor as many as there are to be: nothing was changed.
    Changed {
        /// How many there are.
        limit: Option<u32>,
    },
}

/// What a store answers.
///
/// [`Op`] shows it in use.
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
    /// To an [`Op::Free`].
    Free(Freed),
    /// To an [`Op::Resize`].
    Resize(Resized),
    /// To an [`Op::Raise`].
    Raise(Raised),
    /// The operation has no meaning here, and nothing was changed for it. Whoever is refused a part of a lock that several
    /// can have does not wait for it any more, and others may be let in.
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
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The hold is there.
    Granted {
        /// Its fencing token.
        fence: FencingToken,
        /// How long it still lasts, in milliseconds.
        remaining_ms: u64,
        /// Set if others wait in the queue.
        others_wait: bool,
        /// What its owner has of the lock, of a ReentrantMutex.
        entered: Option<Entered>,
    },
    /// Somebody else has the lock, or waits before.
    Taken {
        /// Who holds it. Nobody does where the lock was left free, or its queue is long dead.
        holder: Option<Holder>,
        /// How many places are before the asker's, if it has queued.
        position: Option<u64>,
        /// Whose death would bring the asker nearer to the lock: whoever holds it, or has the place right before the
        /// asker's. Nothing, where that one has no session that could die. Where several hold the lock and none waits
        /// before: the session that was asked about, if it is one of theirs, or else the first of them.
        ahead: Option<Ahead>,
        /// The others of those sessions, of a lock that several hold: each may be what the asker waits for. They come in the
        /// order of their holds, from `ahead` on and round, and not more than a few of them.
        others: Vec<SessionId>,
    },
    /// This very hold has ended before: the operation came late, or twice.
    Spent(Ended),
}

/// What became of one of several locks that were asked for together: all of them, or none.
///
/// ```
/// use leasehold_core::model::LockState;
/// use leasehold_core::{Acquire, Claim, HoldId, Label, Life, Lock, Portion, SessionId, Share};
///
/// let ask = |who: u8| {
///     let claim = Claim::new(HoldId::from_random(SessionId::from_random([who; 12]), [who; 16]));
///     let (life, label) = (Life::Session { alive_ms: 10_000 }, Label::new("a worker").expect("it is short"));
///     Acquire { claim, lease_ms: 3_000, label, queue: None, adopt_ms: None, life, ahead: None, portion: Portion::Whole }
/// };
/// let (mut till, mut stock) = (LockState::default(), LockState::default());
/// let both = LockState::take_all(&mut [(&mut till, &ask(1)), (&mut stock, &ask(2))], 1_000_000);
/// assert!(both.iter().all(|share| matches!(share, Share::Had(_))));
///
/// let mut shelf = LockState::default();
/// let shares = LockState::take_all(&mut [(&mut till, &ask(3)), (&mut shelf, &ask(4))], 2_000_000);
/// assert!(matches!(shares[0], Share::InTheWay(_)) && shares[1] == Share::Open && shelf.value.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// All were taken, and this is one of them: [`Acquired::Granted`].
    Had(Acquired),
    /// This one cannot be taken, and says why, as an acquire that does not queue would; none was taken.
    InTheWay(Result<Acquired, Refused>),
    /// This one could have been taken; none was.
    Open,
    /// This very hold is there already, from an earlier sending; nothing was changed.
    Held,
}

/// What the owner of a ReentrantMutex has of it.
///
/// ```
/// use leasehold_core::Entered;
///
/// let entered = Entered { count: 2, lease_ms: 30_000 };
/// assert!(entered.count > 1, "entered again");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    /// How often he has it, with this hold.
    pub count: u64,
    /// The longest lease that was asked for since he has it, in milliseconds.
    pub lease_ms: u64,
}

/// The session that stands ahead of one who waits.
///
/// Each waiter watches the one ahead of it, so that whoever dies is noticed by somebody, however long the queue, and
/// every look needs to know of one session only. (Leader elections over ZooKeeper avoid a herd in this way.)
///
/// ```
/// use leasehold_core::{Ahead, SessionId};
///
/// let ahead = Ahead { session: SessionId::from_random([7; 12]), alive_ms: Some(2_400) };
/// println!("look again in {} ms", ahead.alive_ms.unwrap_or(250));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ahead {
    /// Which session.
    pub session: SessionId,
    /// How long it is alive if it beats no more, in milliseconds; `u64::MAX` where nobody has to beat. Only told of the
    /// session that was [asked](Acquire::ahead) about.
    pub alive_ms: Option<u64>,
}

/// What a stranger may know of a holder.
///
/// ```
/// use leasehold_core::{FencingToken, Holder, Label, Portion};
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
///     label, owner: None, count: 1, remaining_ms: Some(2_900), fence, since_ms: None, session: None, rests: false,
///     portion: Portion::Whole,
/// };
/// assert!(!ours.is_stranger() && shown(&ours) == "billing on web-3");
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Who it is. Not known of a client of another library.
    pub label: Option<Label>,
    /// The owner that has a ReentrantMutex, also of a client of another library; `None` for a Mutex.
    pub owner: Option<OwnValue>,
    /// How often it has the lock: once, but for a ReentrantMutex.
    pub count: u64,
    /// How long it still holds the lock, in milliseconds, if nobody extends it; `None` if its key has
    /// no expiry.
    pub remaining_ms: Option<u64>,
    /// Its fencing token, if it has one.
    pub fence: Option<FencingToken>,
    /// Since when, in milliseconds of the store's clock, if that is known.
    pub since_ms: Option<u64>,
    /// The session whose death would end the hold, if there is one.
    pub session: Option<SessionId>,
    /// What part of the lock it has.
    pub portion: Portion,
    /// Set where it is done with the lock, and has left it taken until its time is over: see [`Pass::Rest`].
    pub rests: bool,
}

impl Holder {
    /// Whether it is a client of another library, which does not grant the lock when it releases it.
    pub const fn is_stranger(&self) -> bool {
        self.label.is_none()
    }
}

/// What became of an [`Extend`].
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// The hold is there, and lasts at least as long as asked. Nothing is reserved, also where that was asked for: nothing is
    /// known of the hold but its key.
    Extended,
    /// The same, and these tokens are reserved for it.
    Reserved {
        /// The tokens.
        block: Block,
        /// Set if others are in the queue, dead or alive.
        others_wait: bool,
    },
    /// The hold is not there any more.
    NotHeld,
}

/// What became of a [`Release`].
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// What was found of the hold before it was given up; [`Fate::Held`] means that this released it.
    pub found: Fate,
    /// How often its owner has the lock yet, whatever was found: 0 where it is free by now, as it always is after a Mutex.
    pub left: u64,
    /// Who holds the lock, where it was found that somebody else does.
    pub holder: Option<Holder>,
    /// What became of the acquire that came with it.
    pub next: Option<Result<Acquired, Refused>>,
}

/// What became of an [`Evict`].
///
/// [`Evict`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evicted {
    /// The session lives: nothing was changed.
    Alive,
    /// The session is dead, and has nothing of the lock any more.
    Gone {
        /// The fencing token of the hold that was taken from it.
        hold: Option<FencingToken>,
        /// Set if a place in the queue was taken from it.
        place: bool,
    },
}

/// What became of a [`Free`].
///
/// [`Free`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Freed {
    /// The lock was taken from its holder.
    Freed,
    /// The lock is not held as it was seen: nothing was taken from anybody.
    Changed {
        /// Who holds it now.
        holder: Option<Holder>,
    },
}

/// Where a hold stands.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It holds the lock.
    Held,
    /// It waits in the queue.
    Queued,
    /// It was ended, in this way.
    Ended(Ended),
    /// It was the last to hold the lock, and its key is gone: its lease expired, or somebody deleted
    /// the key. Of a ReentrantMutex also where its owner has the lock by other holds, and this one is not among them.
    Vanished,
    /// Somebody else has held the lock since, or holds it.
    Superseded,
    /// The store has no record of the lock: it never was, is long over, or the store lost its data.
    Forgotten,
}

/// How a lock stands.
///
/// [`Op`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Who holds it.
    pub holder: Option<Holder>,
    /// How many sessions wait for it.
    pub waiting: u64,
    /// What became of the hold that was asked about.
    pub fate: Option<Fate>,
    /// The fingerprint of what stands at the key, where that is a client's of another library. Only
    /// [in full](Inspect::in_full).
    pub stranger: Option<Fingerprint>,
    /// Who took this lock from whom, the last first. Only [in full](Inspect::in_full).
    pub audit: Vec<AuditEntry>,
    /// All who have a lock that several can have, the oldest first; no more than [`SHARERS_TOLD`]. Empty, of a Mutex or a
    /// ReentrantMutex.
    pub sharers: Vec<Holder>,
    /// How many permits, arrivals or parties there are in all, of a lock that counts them and that is known.
    pub limit: Option<u32>,
}

/// How many of those who share a lock an inspection tells at most, so that no answer is endless.
pub const SHARERS_TOLD: usize = 4096;

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
    /// Something else stands at the key.
    #[error(
        "its key holds a {found}, which is no lock of this kind (a Mutex is a string, an Election a string of its own form, a ReentrantMutex a hash of its owner, each other kind a hash of its own): the name is used for something else"
    )]
    WrongKind {
        /// What stands there, as the store's TYPE command calls it.
        found: String,
    },
    /// A claim of a ReentrantMutex or an RwLock does not say whose it is.
    #[error(
        "a claim of a ReentrantMutex or an RwLock has to name its owner, by another text than `{RESERVED_OWNER}`: a field of Leasehold's own has that name"
    )]
    NoOwner,
    /// Locks of this kind have no such part, or no parts to say anything about.
    #[error("a lock of this kind has no such part")]
    NoSuchPart,
    /// More is asked for than there is, so that waiting would be for ever; or nothing at all.
    #[error("{count} of {limit} are asked for: that can never be had")]
    OutOfRange {
        /// How many are asked for.
        count: u32,
        /// How many there are.
        limit: u32,
    },
    /// The others who use this Latch or Barrier now count on another number.
    #[error(
        "it counts to {asked} for the one who asks, and to {known} for those who use it now: use one number everywhere"
    )]
    Disagreement {
        /// The number of the one who asks.
        asked: u32,
        /// The number of the others.
        known: u32,
    },
    /// The owner would wait for himself.
    #[error(
        "its owner has the lock already, and would wait for himself: begin with an upgradable read to write after reading, and write once"
    )]
    WouldDeadlock,
    /// An upgrade is asked for, and its owner has no upgradable read any more.
    #[error("its owner has no upgradable read that could become a write")]
    NothingToUpgrade,
    /// A lock of this kind cannot be left taken by nobody.
    #[error("only a Mutex and an Election can be left taken until a time is over: release it")]
    NoRest,
    /// The lock's record was written in another format.
    #[error("its record has format {found}, and this version knows format {known}: use a version of Leasehold that knows both", known = crate::FORMAT)]
    Format {
        /// The format that was found.
        found: String,
    },
}

impl Refused {
    /// Whether it is what was asked for that can never be, whatever becomes of the lock's keys.
    pub const fn is_of_the_asked(&self) -> bool {
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
/// use leasehold_core::{FencingToken, Nonce, SessionId, Wake};
///
/// let to = SessionId::from_random([7; 12]);
/// let wake = Wake::Grant { to, nonce: Nonce::new(2, 0x4d), fence: FencingToken::new(4711) };
/// assert_eq!(wake.message(), "grant 00000002000000000000004d 4711");
/// assert_eq!(Wake::parse(to, b"grant 00000002000000000000004d 4711"), Ok(wake));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Wake {
    /// A lock has been granted.
    Grant {
        /// Whose mailbox it goes to.
        to: SessionId,
        /// The nonce of the look that it answers.
        nonce: Nonce,
        /// The fencing token of the hold.
        fence: FencingToken,
    },
    /// A lock was taken by force.
    Freed {
        /// Whose mailbox it goes to.
        to: SessionId,
        /// The fencing token of the hold that was ended.
        fence: FencingToken,
    },
    /// Another session asks for a lock, whose holder wanted to be told.
    Wanted {
        /// Whose mailbox it goes to.
        to: SessionId,
        /// The fencing token that the store has given with the hold.
        fence: FencingToken,
    },
}

impl Wake {
    /// Whose mailbox it goes to.
    pub const fn to(&self) -> SessionId {
        match self {
            Self::Grant { to, .. } | Self::Freed { to, .. } | Self::Wanted { to, .. } => *to,
        }
    }

    /// The fencing token of the hold that it is about.
    pub const fn fence(&self) -> FencingToken {
        match self {
            Self::Grant { fence, .. } | Self::Freed { fence, .. } | Self::Wanted { fence, .. } => *fence,
        }
    }

    /// The nonce of the look that it answers, if it is a grant.
    pub const fn nonce(&self) -> Option<Nonce> {
        match self {
            Self::Grant { nonce, .. } => Some(*nonce),
            Self::Freed { .. } | Self::Wanted { .. } => None,
        }
    }

    /// The message as it is published in the mailbox.
    pub fn message(&self) -> String {
        match self {
            Self::Grant { nonce, fence, .. } => format!("grant {nonce} {fence}"),
            Self::Freed { fence, .. } => format!("freed {fence}"),
            Self::Wanted { fence, .. } => format!("wanted {fence}"),
        }
    }

    /// Reads a message that came to `to`'s mailbox.
    pub fn parse(to: SessionId, message: &[u8]) -> Result<Self, WakeError> {
        let text = std::str::from_utf8(message).map_err(|_| WakeError)?;
        let words: Vec<_> = text.split(' ').collect();
        match words.as_slice() {
            ["grant", nonce, fence] => {
                let nonce = nonce.parse().map_err(|_| WakeError)?;
                let fence = fence.parse().map_err(|_| WakeError)?;
                Ok(Self::Grant { to, nonce, fence })
            }
            ["freed", fence] => Ok(Self::Freed { to, fence: fence.parse().map_err(|_| WakeError)? }),
            ["wanted", fence] => Ok(Self::Wanted { to, fence: fence.parse().map_err(|_| WakeError)? }),
            _ => Err(WakeError),
        }
    }
}

/// A message that is none of ours. It does not show the message.
///
/// ```
/// use leasehold_core::{SessionId, Wake, WakeError};
///
/// let to = SessionId::from_random([7; 12]);
/// assert_eq!(Wake::parse(to, b"hello"), Err(WakeError)); // anybody may publish there
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message in the mailbox is none of ours")]
pub struct WakeError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back() {
        let to = SessionId::from_random([3; 12]);
        let fence = FencingToken::new(1_762_000_000_123_456);
        let wake = Wake::Grant { to, nonce: Nonce::new(2, 77), fence };
        assert_eq!(wake.message(), "grant 00000002000000000000004d 1762000000123456");
        assert_eq!(Wake::parse(to, wake.message().as_bytes()), Ok(wake));
        let wake = Wake::Freed { to, fence };
        assert_eq!(wake.message(), "freed 1762000000123456");
        assert_eq!(Wake::parse(to, wake.message().as_bytes()), Ok(wake));
        let wake = Wake::Wanted { to, fence };
        assert_eq!(wake.message(), "wanted 1762000000123456");
        assert_eq!(Wake::parse(to, wake.message().as_bytes()), Ok(wake));
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
            assert_eq!(Wake::parse(to, forged.as_bytes()), Err(WakeError), "{forged}");
        }
        assert_eq!(Wake::parse(to, &[0xff, 0xfe]), Err(WakeError));
    }
}
