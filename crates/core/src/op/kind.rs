//! The kinds of locks.

use crate::{Claim, FencingToken};
use serde::{Deserialize, Serialize};

/// The kinds of locks.
///
/// See [`Lock`](crate::Lock) for an example.
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

    /// The name of this kind in keys and records.
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

    /// The value at the lock's key during the [cooldown](crate::ReleaseAction::Cooldown) after the hold with this fencing
    /// token.
    pub fn cooldown_token(self, fence: Option<FencingToken>) -> String {
        format!("{}cooldown\n{}", self.token_prefix(), fence.map_or(0, FencingToken::as_u64))
    }

    /// Whether a string at the key is a lock of this kind.
    pub fn matches_token(self, token: &str) -> bool {
        match self {
            Self::Mutex => !token.starts_with(Self::Election.token_prefix()),
            Self::Election => token.starts_with(self.token_prefix()),
            _ => false,
        }
    }

    /// Whether a process can hand a hold off from one of its tasks to another, each with its own fencing token: see
    /// [`cohort`](crate::machine::cohort).
    pub const fn supports_handoff(self) -> bool {
        matches!(self, Self::Mutex)
    }

    /// Whether a quorum of stores can provide this kind: a client holds the lock once a majority of the stores grants it.
    /// This requires that the reply depends on the client's own claim alone.
    pub const fn supports_quorum(self) -> bool {
        matches!(self, Self::Mutex | Self::Reentrant)
    }

    /// Whether a lock of this kind is a plain string with one holder at a time.
    pub const fn is_plain_string(self) -> bool {
        matches!(self, Self::Mutex | Self::Election)
    }

    /// The kind with this name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}
