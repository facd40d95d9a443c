//! Durations as written on a command line or in a URL.

use std::time::Duration;

/// The units and their milliseconds, the longest first.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses a duration: numbers with units, such as `500ms`, `30s`, `1.5h`, `1h30m` or `2d`.
///
/// The unit is required: a bare `30` means seconds to one reader and milliseconds to another. Longer units precede
/// shorter ones, and only the last number may have a fraction. The result is a whole number of milliseconds.
///
/// ```
/// use leasehold_core::{DurationError, parse_duration};
/// use std::time::Duration;
///
/// assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
/// assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
/// assert_eq!(parse_duration("30"), Err(DurationError::NoUnit("30".into())));
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let (mut total, mut rest, mut units) = (0_u64, text, &UNITS[..]);
    loop {
        let (number, after) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
        let (unit, after) = split_where(after, |c| !c.is_ascii_alphabetic());
        if unit.is_empty() && after.is_empty() && is_number(number) {
            return Err(DurationError::NoUnit(number.to_owned()));
        }
        let at = units.iter().position(|(name, _)| *name == unit).ok_or(DurationError::Form)?;
        let (millis_each, shorter) = (units[at].1, &units[at + 1..]);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if !is_number(number) || number.contains('.') && !after.is_empty() {
            return Err(DurationError::Form);
        }
        let whole: u64 = whole.parse().map_err(|_| DurationError::TooLong)?;
        let millis = whole.checked_mul(millis_each).ok_or(DurationError::TooLong)?;
        let millis = millis.checked_add(part(fraction, millis_each)?).ok_or(DurationError::TooLong)?;
        total = total.checked_add(millis).ok_or(DurationError::TooLong)?;
        if after.is_empty() {
            return Ok(Duration::from_millis(total));
        }
        (rest, units) = (after, shorter);
    }
}

/// Why a text is not a duration.
///
/// ```
/// use leasehold_core::{DurationError, parse_duration};
///
/// let error = parse_duration("1 hour").unwrap_err();
/// assert_eq!(error, DurationError::Form);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// The text is not made of numbers with units, or these are not in order.
    #[error("write numbers with units, the longest first, as in 500ms, 30s, 1.5h, 1h30m or 2d")]
    Form,
    /// The last number has no unit.
    #[error("{0} has no unit: write {0}s for seconds, {0}ms for milliseconds, or m, h, d")]
    NoUnit(String),
    /// It is not a whole number of milliseconds.
    #[error("it is finer than a millisecond: write a whole number of ms")]
    TooFine,
    /// It is longer than can be represented.
    #[error("it is too long")]
    TooLong,
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// Whether it is digits, with a point between them at most.
fn is_number(text: &str) -> bool {
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('.').map_or_else(|| is_digits(text), |(whole, part)| is_digits(whole) && is_digits(part))
}

/// The milliseconds of a fraction of a unit, from the digits after the point.
fn part(digits: &str, millis_each: u64) -> Result<u64, DurationError> {
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    // No whole number of milliseconds in a unit has more decimals: a day has 2^10 of them as a factor.
    let scale = u32::try_from(digits.len()).ok().and_then(|places| 10_u64.checked_pow(places));
    let (Some(scale), Ok(digits)) = (scale, digits.parse::<u64>()) else {
        return Err(DurationError::TooFine);
    };
    let scaled = u128::from(digits) * u128::from(millis_each);
    if scaled % u128::from(scale) != 0 {
        return Err(DurationError::TooFine);
    }
    u64::try_from(scaled / u128::from(scale)).map_err(|_| DurationError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        let check =
            |text, millis| assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        check("500ms", 500);
        check("30s", 30_000);
        check("5m", 300_000);
        check("1h", 3_600_000);
        check("2d", 172_800_000);
        check("0s", 0);
        check("1h30m", 5_400_000);
        check("1d2h3m4s5ms", 93_784_005);
        check("1m500ms", 60_500);
        check("90m", 5_400_000);
        check("1.5h", 5_400_000);
        check("1h1.5m", 3_690_000);
        check("0.25s", 250);
        check("1.500s", 1_500);
        check("2.0ms", 2);
    }

    #[test]
    fn anything_else_is_refused_with_the_reason() {
        let check = |text, error| assert_eq!(parse_duration(text), Err(error), "{text}");
        for text in [
            "", "s", "-1s", "+1s", "1 s", "1h 30m", "3parsecs", "1S", "1M", "30m1h", "1h1h", "1.5h30m",
            ".5s", "1.s", "1..5s", "1.2.3s", "1h.", "s1", "1h30m!", "1e3s", "1,5s", "٣s",
        ] {
            check(text, DurationError::Form);
        }
        let no_unit = |number: &str| DurationError::NoUnit(number.to_owned());
        check("30", no_unit("30"));
        check("1.5", no_unit("1.5"));
        check("1h30", no_unit("30"));
        check("0.5ms", DurationError::TooFine);
        check("0.3333s", DurationError::TooFine);
        check("0.00000000000000000000000000001s", DurationError::TooFine);
        check("99999999999999999999s", DurationError::TooLong);
        check("18446744073709551615d", DurationError::TooLong);
        check("18446744073709551615ms1ms", DurationError::Form);
    }
}
