//! Statistics of holds and waits by class of lock: what clients merge into a store, and what it keeps. Plain data.
//!
//! A class stands for locks of one purpose: its name is given, or made from a lock's name without what looks like an id.
//! [`model::StatisticsTable`](crate::model::StatisticsTable) defines what a merge means.

use crate::Skipped;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// By how much a bucket is longer than the one before.
const GROWTH: f64 = 1.1;
/// The greatest count and time that is kept: the greatest integer that is exact in a Lua number, and in JSON.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// How often a time was of each length: counts in buckets that grow by a tenth, so that a quantile is at most 5 % off.
///
/// The first bucket has all times below 1 ms, the last one all from nine days on.
///
/// ```
/// use leasehold_core::TimeHistogram;
/// use std::time::Duration;
///
/// let mut holds = TimeHistogram::default();
/// for ms in 101..=200 {
///     holds.add(TimeHistogram::bucket_of(Duration::from_millis(ms)), 1);
/// }
/// assert_eq!(holds.count(), 100);
/// let p99 = holds.quantile(0.99).expect("it is not empty").as_secs_f64();
/// assert!((0.189..0.209).contains(&p99), "{p99}");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct TimeHistogram {
    buckets: BTreeMap<u16, u64>,
}

/// What is damaged, or of a version with more buckets, is left out.
impl<'de> Deserialize<'de> for TimeHistogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut histogram = Self::default();
        for (bucket, count) in BTreeMap::deserialize(deserializer)? {
            histogram.add(bucket, count);
        }
        Ok(histogram)
    }
}

impl TimeHistogram {
    /// The number of buckets.
    pub const BUCKETS: u16 = 217;

    /// Returns the number of the bucket of a time.
    pub fn bucket_of(time: Duration) -> u16 {
        let ms = time.as_secs_f64() * 1e3;
        if ms < 1.0 {
            return 0;
        }
        let bucket = (ms.ln() / GROWTH.ln()).floor() + 1.0;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is cut to the buckets"
        )]
        let bucket = bucket.min(f64::from(Self::BUCKETS - 1)) as u16;
        bucket
    }

    /// Counts more times in a bucket, by its number. Ignores a number that no bucket has.
    pub fn add(&mut self, bucket: u16, count: u64) {
        if bucket < Self::BUCKETS && count > 0 {
            let kept = self.buckets.entry(bucket).or_default();
            *kept = kept.saturating_add(count).min(MAX_COUNT);
        }
    }

    /// Counts the times of another histogram as well.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.buckets {
            self.add(*bucket, *count);
        }
    }

    /// Returns the counts that are not zero, by the number of their bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        self.buckets.iter().map(|(bucket, count)| (*bucket, *count))
    }

    /// Returns how many times were counted.
    pub fn count(&self) -> u64 {
        self.buckets.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the time that this part of all times is not longer than, at most 5 % off: 0.5 is the median. `None` if nothing was
    /// counted.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a count of this size need not be exact"
        )]
        let rank = ((part * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut sum = 0_u64;
        for (bucket, count) in &self.buckets {
            sum = sum.saturating_add(*count);
            if sum >= rank {
                return Some(middle_of(*bucket));
            }
        }
        None
    }

    /// Returns the sum of all times, at most 5 % off if they are not below 1 ms.
    pub fn total(&self) -> Duration {
        let add = |sum: Duration, (bucket, count): (&u16, &u64)| {
            #[allow(clippy::cast_precision_loss, reason = "a count of this size need not be exact")]
            let seconds = middle_of(*bucket).as_secs_f64() * *count as f64;
            sum.saturating_add(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        };
        self.buckets.iter().fold(Duration::ZERO, add)
    }
}

/// The geometric middle of a bucket.
fn middle_of(bucket: u16) -> Duration {
    if bucket == 0 {
        return Duration::from_micros(500);
    }
    Duration::from_secs_f64(GROWTH.powf(f64::from(bucket) - 0.5) / 1e3)
}

/// The statistics of a class of locks.
///
/// ```
/// use leasehold_core::{ClassStatistics, TimeHistogram};
/// use std::time::Duration;
///
/// let mut statistics = ClassStatistics { longest_hold_us: 250_000, losses: 1, ..ClassStatistics::default() };
/// statistics.holds.add(TimeHistogram::bucket_of(Duration::from_millis(250)), 1);
/// assert_eq!(statistics.to_text(), "h58=1 losses=1 Hold=250000");
/// assert_eq!(ClassStatistics::from_text("h58=1 losses=1 Hold=250000"), statistics);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassStatistics {
    /// How long guards held a lock: of the holds that have ended.
    pub holds: TimeHistogram,
    /// How long acquires took that acquired a lock, or waited until their time limit.
    pub waits: TimeHistogram,
    /// How many of these acquires found the lock taken.
    pub taken: u64,
    /// How many acquires made a single attempt, and found the lock taken.
    pub refused: u64,
    /// How many holds were lost.
    pub losses: u64,
    /// The longest hold that was released, in microseconds.
    pub longest_hold_us: u64,
    /// The longest of the waits, in microseconds.
    pub longest_wait_us: u64,
    /// Since when this was counted, in milliseconds of the store's clock; zero in what a client merges.
    pub from_ms: u64,
    /// When something was merged last, in milliseconds of the store's clock; zero in what a client merges.
    pub to_ms: u64,
}

impl ClassStatistics {
    /// Adds what was counted beside it. `from_ms` and `to_ms` are not changed.
    pub fn merge(&mut self, other: &Self) {
        self.holds.merge(&other.holds);
        self.waits.merge(&other.waits);
        let add = |sum: u64, more: u64| sum.saturating_add(more).min(MAX_COUNT);
        self.taken = add(self.taken, other.taken);
        self.refused = add(self.refused, other.refused);
        self.losses = add(self.losses, other.losses);
        self.longest_hold_us = add(self.longest_hold_us.max(other.longest_hold_us), 0);
        self.longest_wait_us = add(self.longest_wait_us.max(other.longest_wait_us), 0);
    }

    /// The text that a store keeps: pairs of a name and a number, without `from_ms` and `to_ms`. To merge, numbers are added, but
    /// the greater one is kept if the name begins with a capital.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut push = |name: std::fmt::Arguments<'_>, number: u64| {
            if number > 0 {
                let space = if text.is_empty() { "" } else { " " };
                // Writing to a text cannot fail.
                let _ = write!(text, "{space}{name}={}", number.min(MAX_COUNT));
            }
        };
        for (letter, histogram) in [('h', &self.holds), ('w', &self.waits)] {
            for (bucket, count) in histogram.buckets() {
                push(format_args!("{letter}{bucket}"), count);
            }
        }
        push(format_args!("taken"), self.taken);
        push(format_args!("refused"), self.refused);
        push(format_args!("losses"), self.losses);
        push(format_args!("Hold"), self.longest_hold_us);
        push(format_args!("Wait"), self.longest_wait_us);
        text
    }

    /// Parses such a text, of this or another version: pairs that it does not know are left out.
    pub fn from_text(text: &str) -> Self {
        let mut statistics = Self::default();
        for pair in text.split(' ') {
            let Some((name, number)) = pair.split_once('=') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            let number = number.min(MAX_COUNT);
            match name {
                "taken" => statistics.taken = number,
                "refused" => statistics.refused = number,
                "losses" => statistics.losses = number,
                "Hold" => statistics.longest_hold_us = number,
                "Wait" => statistics.longest_wait_us = number,
                _ => {
                    let of = |letter: char| name.strip_prefix(letter).and_then(|bucket| bucket.parse().ok());
                    if let Some(bucket) = of('h') {
                        statistics.holds.add(bucket, number);
                    } else if let Some(bucket) = of('w') {
                        statistics.waits.add(bucket, number);
                    }
                }
            }
        }
        statistics
    }
}

/// Merge what a client has counted since its last merge.
///
/// A merge that is executed twice counts twice, so one without an answer is not sent again.
///
/// ```
/// use leasehold_core::model::Sessions;
/// use leasehold_core::{ClassStatistics, MergeStatistics, SessionOp, SessionReply};
///
/// let counted = ClassStatistics { losses: 1, ..ClassStatistics::default() };
/// let merge = SessionOp::MergeStatistics(MergeStatistics { classes: vec![("orders/*".into(), 4_000, counted)] });
/// let mut sessions = Sessions::default();
/// assert_eq!(sessions.apply(10_000, &merge), SessionReply::MergeStatistics);
/// let SessionReply::Statistics(list) = sessions.apply(10_000, &SessionOp::ListStatistics) else { panic!("another reply") };
/// let (class, statistics) = &list.classes[0];
/// assert_eq!((class.as_str(), statistics.from_ms, statistics.to_ms), ("orders/*", 6_000, 10_000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeStatistics {
    /// For each class its name, since how many milliseconds this was counted, and what was counted.
    pub classes: Vec<(String, u64, ClassStatistics)>,
}

/// What a store keeps: part of a [`SessionReply`](crate::SessionReply).
///
/// See [`MergeStatistics`] for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatisticsList {
    /// Each class, by its name.
    pub classes: Vec<(String, ClassStatistics)>,
    /// What is in the place of statistics and cannot be read.
    pub skipped: Skipped,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_ms(times: impl IntoIterator<Item = u64>) -> TimeHistogram {
        let mut histogram = TimeHistogram::default();
        for ms in times {
            histogram.add(TimeHistogram::bucket_of(Duration::from_millis(ms)), 1);
        }
        histogram
    }

    #[test]
    fn a_quantile_is_at_most_five_percent_off() {
        let histogram = of_ms(1..=100_000);
        for part in [0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let found = histogram.quantile(part).expect("it is not empty").as_secs_f64();
            let exact = part * 100.0;
            assert!((found / exact - 1.0).abs() < 0.05, "{part}: {found} in place of {exact}");
        }
        let total = histogram.total().as_secs_f64();
        assert!((total / 5_000_050.0 - 1.0).abs() < 0.05, "{total}");
    }

    #[test]
    fn buckets_that_there_are_not_are_left_out() {
        let read: TimeHistogram = serde_json::from_str(r#"{"3":2,"217":9,"60000":1}"#).expect("it is read");
        assert_eq!(read.buckets().collect::<Vec<_>>(), [(3, 2)]);
        assert!(read.total() < Duration::from_secs(1), "{read:?}");
    }

    #[test]
    fn every_time_has_a_bucket_and_they_are_in_order() {
        let mut last = 0;
        for exponent in 0..44 {
            for us in [1_u64 << exponent, (1 << exponent) + (1 << exponent) / 2] {
                let bucket = TimeHistogram::bucket_of(Duration::from_micros(us));
                assert!(bucket >= last && bucket < TimeHistogram::BUCKETS, "{us} us: {bucket}");
                last = bucket;
            }
        }
        assert_eq!(last, TimeHistogram::BUCKETS - 1);
        assert_eq!(TimeHistogram::bucket_of(Duration::MAX), TimeHistogram::BUCKETS - 1);
        assert_eq!(TimeHistogram::bucket_of(Duration::ZERO), 0);
        assert_eq!(TimeHistogram::bucket_of(Duration::from_millis(1)), 1);
    }

    #[test]
    fn an_empty_histogram_has_no_quantile() {
        assert_eq!(TimeHistogram::default().quantile(0.5), None);
        assert_eq!(of_ms([7]).quantile(0.0), of_ms([7]).quantile(1.0), "one time is each of them");
    }

    #[test]
    fn what_is_unknown_in_a_text_is_left_out() {
        let text = "h58=2 x=1 h217=5 h=3 w=1 w3=x taken=1 taken Wait=9 =4 h58=1";
        let known = ClassStatistics::from_text(text);
        assert_eq!(known.to_text(), "h58=3 taken=1 Wait=9");
        assert_eq!(ClassStatistics::from_text(""), ClassStatistics::default());
    }

    #[test]
    fn counts_stay_exact_for_programs_that_know_only_floats() {
        let mut one = ClassStatistics { losses: u64::MAX, taken: MAX_COUNT, ..ClassStatistics::default() };
        one.merge(&ClassStatistics {
            losses: 1,
            taken: 5,
            longest_wait_us: u64::MAX,
            ..ClassStatistics::default()
        });
        let numbers = [one.losses, one.taken, one.longest_wait_us];
        assert_eq!(numbers, [MAX_COUNT; 3]);
    }
}
