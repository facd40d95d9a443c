//! The statistics that a store keeps.
//!
//! 1. They begin with the first merge, and end a while after that, however much is merged: what a program did last month
//!    says nothing about today, and names of classes that are no longer used make room.
//! 2. There is a limit of classes, and one more for all others.

use crate::{ClassStatistics, MAX_CLASSES, MergeStatistics, OTHER_CLASS, STATISTICS_TTL, whole_millis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The statistics of a store.
///
/// See [`MergeStatistics`] for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatisticsTable {
    /// When all of them end (1), in milliseconds of the store's clock.
    pub expires_ms: u64,
    /// Each class.
    pub classes: BTreeMap<String, ClassStatistics>,
}

impl StatisticsTable {
    /// Removes what has ended by `now_ms` (1).
    pub fn expire(&mut self, now_ms: u64) {
        // As in Redis, a key still exists in the millisecond in which it expires.
        if now_ms > self.expires_ms {
            self.classes.clear();
        }
    }

    /// Merges what a client has counted, at `now_ms` milliseconds of the store's clock.
    pub fn merge(&mut self, now_ms: u64, merge: &MergeStatistics) {
        self.expire(now_ms);
        if self.classes.is_empty() {
            self.expires_ms = now_ms.saturating_add(whole_millis(STATISTICS_TTL));
        }
        for (class, age_ms, counted) in &merge.classes {
            let kept = self.classes.len() - usize::from(self.classes.contains_key(OTHER_CLASS));
            let is_known = self.classes.contains_key(class);
            let class = if is_known || kept < MAX_CLASSES { class } else { OTHER_CLASS };
            let from_ms = now_ms.saturating_sub(*age_ms);
            let new = || ClassStatistics { from_ms, ..ClassStatistics::default() };
            let statistics = self.classes.entry(class.to_owned()).or_insert_with(new);
            statistics.from_ms = statistics.from_ms.min(from_ms);
            statistics.to_ms = statistics.to_ms.max(now_ms);
            statistics.merge(counted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_762_000_000_000;

    fn merge(table: &mut StatisticsTable, at_ms: u64, class: &str, losses: u64) {
        let counted = ClassStatistics { losses, longest_hold_us: losses, ..ClassStatistics::default() };
        let merge = MergeStatistics { classes: vec![(class.to_owned(), 10, counted)] };
        table.merge(NOW_MS + at_ms, &merge);
    }

    #[test]
    fn what_clients_count_is_added() {
        let mut table = StatisticsTable::default();
        for (at_ms, losses) in [(0, 2), (5, 7), (1, 1)] {
            merge(&mut table, at_ms, "jobs", losses);
        }
        let jobs = &table.classes["jobs"];
        assert_eq!((jobs.losses, jobs.longest_hold_us), (10, 7));
        assert_eq!((jobs.from_ms, jobs.to_ms), (NOW_MS - 10, NOW_MS + 5));
    }

    #[test]
    fn all_begins_anew_a_while_after_the_first_merge() {
        let (mut table, ttl_ms) = (StatisticsTable::default(), whole_millis(STATISTICS_TTL));
        for at_ms in [0, ttl_ms / 2, ttl_ms] {
            merge(&mut table, at_ms, "jobs", 1);
        }
        assert_eq!(table.classes["jobs"].losses, 3, "a merge does not lengthen it");
        merge(&mut table, ttl_ms + 1, "jobs", 1);
        assert_eq!(table.classes["jobs"].losses, 1);
        assert_eq!(table.expires_ms, NOW_MS + ttl_ms + 1 + ttl_ms);
    }

    #[test]
    fn there_are_two_hundred_classes_and_then_other() {
        let mut table = StatisticsTable::default();
        for n in 0..250 {
            merge(&mut table, n, &format!("class {n}"), 1);
        }
        merge(&mut table, 250, "class 7", 1);
        assert_eq!(table.classes.len(), MAX_CLASSES + 1);
        assert_eq!((table.classes[OTHER_CLASS].losses, table.classes["class 7"].losses), (50, 2));
    }
}
