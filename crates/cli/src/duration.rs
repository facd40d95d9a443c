//! Durations on a command line, and in messages about it.

use leasehold::core::{DurationError, parse_duration};
use std::fmt;
use std::time::Duration;

pub(crate) use leasehold::core::parse_duration as parse;

/// [`parse`] for an option that has no meaning for zero.
pub(crate) fn parse_positive(text: &str) -> Result<Duration, PositiveError> {
    match parse_duration(text)? {
        Duration::ZERO => Err(PositiveError::Zero),
        duration => Ok(duration),
    }
}

/// The shortest pause between two reports.
const MIN_INTERVAL: Duration = Duration::from_millis(500);

/// [`parse`] for a pause between two reports.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, PositiveError> {
    match parse_duration(text)? {
        interval if interval < MIN_INTERVAL => Err(PositiveError::TooOften),
        interval => Ok(interval),
    }
}

/// Why a text is not a duration greater than zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PositiveError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("it must be longer than 0")]
    Zero,
    #[error("it must be 500ms at least, to spare the store")]
    TooOften,
}

/// A duration as a user writes it: not `0ns`.
pub(crate) struct Shown(pub(crate) Duration);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() { f.write_str("0s") } else { write!(f, "{:?}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_duration_and_not_a_positive_one() {
        assert_eq!(parse("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_positive("0s"), Err(PositiveError::Zero));
        assert_eq!(parse_positive("0"), Err(DurationError::NoUnit("0".to_owned()).into()));
        assert_eq!(parse_positive("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(Shown(Duration::ZERO).to_string(), "0s");
    }
}
