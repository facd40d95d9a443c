//! Times in RFC 3339, in UTC and with milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_S: u64 = 86_400;

/// `2026-03-01T12:30:00.250Z`. A time before 1970 is shown as 1970-01-01: no server reports such times.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (s, ms) = (since.as_secs(), since.subsec_millis());
    let (year, month, day) = date(s / DAY_S);
    let (hour, minute, second) = (s % DAY_S / 3600, s % 3600 / 60, s % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// The date that many days after 1970-01-01, in the Gregorian calendar.
///
/// Years start in March, so that a leap day is the last day of its year. This is Howard Hinnant's `civil_from_days`.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097;
    let days = days + 719_468;
    let (cycle, of_cycle) = (days / CYCLE, days % CYCLE);
    let year = (of_cycle - of_cycle / 1460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + cycle * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_instants() {
        let check = |ms, text| assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(ms)), text);
        check(0, "1970-01-01T00:00:00.000Z");
        check(951_782_400_000, "2000-02-29T00:00:00.000Z");
        check(1_709_251_199_999, "2024-02-29T23:59:59.999Z");
        check(1_709_251_200_000, "2024-03-01T00:00:00.000Z");
        check(1_762_000_000_123, "2025-11-01T12:26:40.123Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
    }
}
