//! Fencing tokens.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::num::ParseIntError;

/// A number that grows with every hold of a name. A resource that rejects tokens smaller than the greatest
/// one it has seen is safe from a holder that has lost the lock without noticing yet.
///
/// `max(last + 1, server time in microseconds)`: it keeps growing even if the store lost `last` (a flush, a
/// restart without persistence, a fail-over), as long as the clock did not fall back by more than the outage.
/// At most 53 bits, so that JSON, Lua and JavaScript represent it exactly.
///
/// The idea is Martin Kleppmann's, ["How to do distributed
/// locking"](https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html).
///
/// ```
/// use leasehold_core::FencingToken;
///
/// let first = FencingToken::after(None, 1_000);
/// let second = FencingToken::after(Some(first), 900); // the clock went back
/// assert!(second > first);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The greatest token: 2^53 - 1, which the microseconds reach in the year 2255.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A token from the store. A value greater than [`FencingToken::MAX`] becomes `MAX`.
    pub const fn new(token: u64) -> Self {
        if token > Self::MAX.0 { Self::MAX } else { Self(token) }
    }

    /// The next token after `last`, at `now_us` microseconds of the server's clock.
    pub fn after(last: Option<Self>, now_us: u64) -> Self {
        Self::new(last.map_or(now_us, |last| now_us.max(last.0 + 1)))
    }

    /// The token as a number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

/// As by [`FencingToken::new`]: a file may contain any number.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::new)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

impl std::str::FromStr for FencingToken {
    type Err = ParseFencingTokenError;

    fn from_str(text: &str) -> Result<Self, ParseFencingTokenError> {
        match text.parse::<u64>() {
            Ok(token) if token <= Self::MAX.0 => Ok(Self(token)),
            Ok(_) => Err(ParseFencingTokenError(None)),
            Err(source) => Err(ParseFencingTokenError(Some(source))),
        }
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// A text that is not a fencing token.
///
/// ```
/// use leasehold_core::FencingToken;
///
/// let fence = std::env::var("LEASEHOLD_FENCE").unwrap_or_else(|_| "none".into());
/// match fence.parse::<FencingToken>() {
///     Ok(fence) => println!("guarded by {fence}"),
///     Err(error) => println!("to be run under a lock: {error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a whole number of at most 53 bits")]
pub struct ParseFencingTokenError(#[source] Option<ParseIntError>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_grow_whatever_the_clock_does() {
        let mut last = None;
        for now_us in [5, 5, 4, 0, 1_000, 2, 1 << 60, 3] {
            let next = FencingToken::after(last, now_us);
            assert!(last.is_none_or(|last| next > last || next == FencingToken::MAX));
            last = Some(next);
        }
        assert_eq!(last, Some(FencingToken::MAX));
        assert!("9007199254740992".parse::<FencingToken>().is_err());
        assert!("-1".parse::<FencingToken>().is_err());
    }

    #[test]
    fn a_token_of_a_file_has_53_bits_at_most() {
        let read = |text: &str| serde_json::from_str::<FencingToken>(text);
        assert!(read("4711").is_ok_and(|token| token.as_u64() == 4711));
        let greatest = read("18446744073709551615").expect("a number");
        assert_eq!(greatest, FencingToken::MAX);
        assert_eq!(FencingToken::after(Some(greatest), 1), FencingToken::MAX);
        assert!(read("-1").is_err());
    }
}
