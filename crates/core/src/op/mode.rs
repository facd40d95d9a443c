//! The mode in which a lock is requested or held.

use crate::Kind;
use serde::{Deserialize, Serialize};

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
    /// The only mode of a Mutex, a ReentrantMutex or an Election.
    #[default]
    Exclusive,
    /// A number of permits of a Semaphore.
    Permits {
        /// How many permits.
        count: u32,
        /// How many permits exist in total, unless the store knows another number.
        total: u32,
    },
    /// A reader of an RwLock, beside other readers.
    Read,
    /// A reader that can become the writer: beside readers, but not beside another upgradable reader.
    Upgradable,
    /// The writer of an RwLock, alone.
    Write,
    /// The writer, beside the upgradable read of the same owner, and before all waiters.
    Upgrade,
    /// A number of arrivals at a Latch.
    CountDown {
        /// How many arrivals.
        count: u32,
        /// How many arrivals open the latch.
        total: u32,
    },
    /// A waiter at a Latch, until it opens.
    LatchWait {
        /// How many arrivals open the latch.
        total: u32,
    },
    /// A party that waits at a Barrier for the others.
    BarrierWait {
        /// How many parties proceed together.
        total: u32,
    },
}

impl LockMode {
    /// Whether locks of that kind have this mode.
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

    /// How many of them a hold in this mode counts for.
    pub const fn count(self) -> u32 {
        match self {
            Self::Permits { count, .. } | Self::CountDown { count, .. } => count,
            Self::LatchWait { .. } => 0,
            _ => 1,
        }
    }

    /// Whether a hold in this mode can keep another client from acquiring the lock.
    pub(crate) const fn excludes(self) -> bool {
        !matches!(self, Self::LatchWait { .. } | Self::BarrierWait { .. })
    }

    /// The text of this mode in records.
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

    /// Parses the output of [`encode`](Self::encode).
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
