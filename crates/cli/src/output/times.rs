//! Times as people say them: ages, and instants in the local time zone.

use crate::output::timestamp::rfc3339;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, SystemTime};

/// The present, and how instants are written.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    now: SystemTime,
    /// The zone of this machine or of the variable TZ; `None` for exact instants in UTC.
    zone: Option<TimeZone>,
}

impl Clock {
    /// The time now. With `utc`, each instant is written exactly, in UTC, and not as an age.
    pub(crate) fn new(utc: bool) -> Self {
        Self { now: SystemTime::now(), zone: (!utc).then(TimeZone::system) }
    }

    /// A given present. Instants are local.
    pub(crate) fn at(now: SystemTime) -> Self {
        Self { now, zone: Some(TimeZone::system()) }
    }

    /// `2026-03-01 13:30:00+01:00`, or `2026-03-01T12:30:00.250Z`.
    pub(crate) fn instant(&self, at: SystemTime) -> String {
        let local = self.zone.clone().and_then(|zone| Some(Timestamp::try_from(at).ok()?.to_zoned(zone)));
        local.map_or_else(|| rfc3339(at), |at| at.strftime("%Y-%m-%d %H:%M:%S%:z").to_string())
    }

    /// `3m12s ago`, or the exact instant.
    pub(crate) fn age(&self, at: SystemTime) -> String {
        if self.zone.is_none() {
            return rfc3339(at);
        }
        // The clock of the store may be ahead.
        match self.now.duration_since(at).unwrap_or_default() {
            age if age < Duration::from_secs(1) => "now".to_owned(),
            age => format!("{} ago", spoken(Duration::from_secs(age.as_secs()))),
        }
    }

    /// The instant, and how long ago it was.
    pub(crate) fn instant_and_age(&self, at: SystemTime) -> String {
        match self.zone {
            Some(_) => format!("{} ({})", self.instant(at), self.age(at)),
            None => rfc3339(at),
        }
    }

    /// The instant so far ahead.
    pub(crate) fn after(&self, time: Duration) -> Option<SystemTime> {
        self.now.checked_add(time)
    }
}

/// The two greatest units of a duration: `4.2s`, `42s`, `3m12s`, `5h07m`, `3d04h`.
pub(crate) fn spoken(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..10 if time.subsec_millis() < 100 => format!("{s}s"),
        0..10 => format!("{s}.{}s", time.subsec_millis() / 100),
        10..60 => format!("{s}s"),
        60..3_600 => format!("{}m{:02}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h{:02}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        let check = |ms, text| assert_eq!(spoken(Duration::from_millis(ms)), text);
        check(0, "0s");
        check(99, "0s");
        check(4_250, "4.2s");
        check(9_000, "9s");
        check(59_999, "59s");
        check(192_000, "3m12s");
        check(3_599_000, "59m59s");
        check(18_420_000, "5h07m");
        check(273_600_000, "3d04h");
    }

    #[test]
    fn instants_are_local_or_exact() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_762_000_000_123);
        let now = at + Duration::from_millis(192_400);
        let local = Clock { now, zone: Some(TimeZone::fixed(jiff::tz::offset(-5))) };
        assert_eq!(local.instant_and_age(at), "2025-11-01 07:26:40-05:00 (3m12s ago)");
        assert_eq!(local.age(now + Duration::from_secs(60)), "now", "the clocks of two machines differ");
        let exact = Clock { now, zone: None };
        assert_eq!(exact.instant_and_age(at), "2025-11-01T12:26:40.123Z");
        assert_eq!(exact.age(at), "2025-11-01T12:26:40.123Z");
    }
}
