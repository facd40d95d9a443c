//! Durations as written on a command line: `500ms`, `30s`, `5m`, `1h`.

use std::time::Duration;

/// Parses a whole number and its unit. The unit is required: a bare `30` means seconds to one reader and milliseconds
/// to another.
pub(crate) fn parse(text: &str) -> Result<Duration, DurationError> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(DurationError::Form);
    }
    let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
    let millis_each = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        "" => return Err(DurationError::NoUnit(number)),
        _ => return Err(DurationError::Form),
    };
    number.checked_mul(millis_each).map(Duration::from_millis).ok_or(DurationError::TooLong)
}

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    #[error("write a whole number and its unit, as in 500ms, 30s, 5m, 1h or 2d")]
    Form,
    #[error("it has no unit: write {0}s for seconds, {0}ms for milliseconds, or m, h, d")]
    NoUnit(u64),
    #[error("it is too long")]
    TooLong,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_with_a_unit() {
        let check = |text, millis| assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        check("500ms", 500);
        check("30s", 30_000);
        check("5m", 300_000);
        check("1h", 3_600_000);
        check("2d", 172_800_000);
        check("0s", 0);
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let check = |text, error| assert_eq!(parse(text), Err(error), "{text}");
        check("", DurationError::Form);
        check("s", DurationError::Form);
        check("-1s", DurationError::Form);
        check("1.5s", DurationError::Form);
        check("1 s", DurationError::Form);
        check("3parsecs", DurationError::Form);
        check("30", DurationError::NoUnit(30));
        check("99999999999999999999s", DurationError::TooLong);
        check("18446744073709551615d", DurationError::TooLong);
    }
}
