//! The value at a lock's key.

use super::reentrant_holds::ReentrantHolds;
use super::shared_holders::SharedHolders;
use crate::Kind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The value at a lock's key.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The content, by its type.
    pub content: Content,
    /// When it expires, in milliseconds of the store's clock; `None` if it never does.
    pub expires_ms: Option<u64>,
}

impl Value {
    /// Whether it may expire before `until_ms`, in milliseconds of the store's clock.
    pub(super) fn ends_before(&self, until_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at_ms| at_ms < until_ms)
    }

    /// The value as locks of other kinds see it: its type and its expiry.
    #[must_use]
    pub fn type_only(&self) -> Self {
        Self { content: Content::Other(self.content.type_name().to_owned()), expires_ms: self.expires_ms }
    }
}

/// The content of the value at a lock's key, by its type.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// The token of a Mutex.
    Token(String),
    /// The holds of a ReentrantMutex.
    ReentrantHolds(ReentrantHolds),
    /// The holds of a shared lock.
    SharedHolders(SharedHolders),
    /// A value of another type.
    Other(String),
}

impl Content {
    /// Whether it can be the content of a lock of that kind, with numbers of which `is_small` holds.
    pub(super) fn is_plausible(&self, kind: Kind, is_small: impl Fn(u64) -> bool) -> bool {
        match self {
            Self::Token(_) => kind.is_plain_string(),
            Self::ReentrantHolds(reentrant) => {
                let numbers = [reentrant.count, reentrant.lease_ms];
                let of_holds = reentrant.holds.iter().flat_map(|held| [held.until_ms, held.since_ms]);
                kind == Kind::Reentrant && numbers.into_iter().chain(of_holds).all(is_small)
            }
            Self::SharedHolders(shared) => {
                let of_holds = shared.holds.iter().flat_map(|held| [held.until_ms, held.since_ms]);
                let have_modes = shared.holds.iter().all(|held| held.mode.applies_to(kind));
                kind.is_shared() && have_modes && of_holds.into_iter().all(is_small)
            }
            Self::Other(_) => true,
        }
    }

    /// The token of a Mutex.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Token(token) => Some(token),
            Self::ReentrantHolds(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a ReentrantMutex.
    pub fn reentrant_holds(&self) -> Option<&ReentrantHolds> {
        match self {
            Self::ReentrantHolds(holds) => Some(holds),
            Self::Token(_) | Self::SharedHolders(_) | Self::Other(_) => None,
        }
    }

    /// The holds of a shared lock.
    pub fn shared_holders(&self) -> Option<&SharedHolders> {
        match self {
            Self::SharedHolders(shared) => Some(shared),
            Self::Token(_) | Self::ReentrantHolds(_) | Self::Other(_) => None,
        }
    }

    /// The name of its type in Redis.
    pub fn type_name(&self) -> &str {
        match self {
            Self::Token(_) => "string",
            Self::ReentrantHolds(_) | Self::SharedHolders(_) => "hash",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Debug for Content {
    /// Does not show a token: a client that knows it can end the hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token(…)"),
            Self::ReentrantHolds(holds) => holds.fmt(f),
            Self::SharedHolders(shared) => shared.fmt(f),
            Self::Other(name) => f.debug_tuple("Other").field(name).finish(),
        }
    }
}
