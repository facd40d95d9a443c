//! What a client counts by class of lock, until the keeper merges it into the statistics of the store.
//!
//! 1. An acquire and its release change a few atomics, and allocate nothing once a lock of their class was acquired before.
//! 2. What is taken is gone from here: it is [given back](Counted::give_back) if the store did certainly not get it.
//! 3. Elections, latches and barriers are not counted: how long a leader leads says nothing about a lease.

use super::class::{Class, MAX_CLASSES};
use leasehold_core::{ClassStatistics, Kind, MergeStatistics, Moment, TimeHistogram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets.
const BUCKETS: usize = TimeHistogram::BUCKETS as usize;

/// What a client has counted since the last merge.
pub(crate) struct Counted {
    /// By the number of the class.
    classes: Box<[OnceLock<Box<CountedClass>>]>,
    /// When the first of it was counted, in microseconds; zero if there is nothing.
    since_us: AtomicU64,
    /// Called when there is something after there was nothing.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

struct CountedClass {
    name: Box<str>,
    /// Set once there is something, after it was counted.
    is_changed: AtomicBool,
    /// When the first of it began, in microseconds.
    from_us: AtomicU64,
    holds: Times,
    waits: Times,
    taken: AtomicU32,
    refused: AtomicU32,
    losses: AtomicU32,
}

/// Times, as a histogram with the longest.
struct Times {
    buckets: [AtomicU32; BUCKETS],
    longest_us: AtomicU64,
}

/// What is known of an acquire that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AcquireCount {
    /// It acquired the lock, or waited until its time limit. Tells whether the lock was taken.
    Waited { taken: bool },
    /// It made a single attempt, and the lock was taken.
    Refused,
}

impl Times {
    const fn new() -> Self {
        Self { buckets: [const { AtomicU32::new(0) }; BUCKETS], longest_us: AtomicU64::new(0) }
    }

    fn add(&self, time: Duration) {
        self.count(time);
        self.lengthen(time);
    }

    fn count(&self, time: Duration) {
        if let Some(bucket) = self.buckets.get(usize::from(TimeHistogram::bucket_of(time))) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It may be the longest.
    fn lengthen(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // Mostly it is not the longest, and then nothing is written.
        if us > self.longest_us.load(Ordering::Relaxed) {
            self.longest_us.fetch_max(us, Ordering::Relaxed);
        }
    }

    fn take(&self) -> (TimeHistogram, u64) {
        let mut histogram = TimeHistogram::default();
        for (number, bucket) in (0..).zip(&self.buckets) {
            if bucket.load(Ordering::Relaxed) > 0 {
                histogram.add(number, bucket.swap(0, Ordering::Relaxed).into());
            }
        }
        (histogram, self.longest_us.swap(0, Ordering::Relaxed))
    }

    fn give_back(&self, histogram: &TimeHistogram, longest_us: u64) {
        for (number, count) in histogram.buckets() {
            if let Some(bucket) = self.buckets.get(usize::from(number)) {
                bucket.fetch_add(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
            }
        }
        self.longest_us.fetch_max(longest_us, Ordering::Relaxed);
    }
}

impl CountedClass {
    fn new(name: &str) -> Box<Self> {
        Box::new(Self {
            name: name.into(),
            is_changed: AtomicBool::new(false),
            from_us: AtomicU64::new(u64::MAX),
            holds: Times::new(),
            waits: Times::new(),
            taken: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            losses: AtomicU32::new(0),
        })
    }

    fn take(&self) -> ClassStatistics {
        let ((holds, longest_hold_us), (waits, longest_wait_us)) = (self.holds.take(), self.waits.take());
        let take = |count: &AtomicU32| count.swap(0, Ordering::Relaxed).into();
        ClassStatistics {
            holds,
            waits,
            taken: take(&self.taken),
            refused: take(&self.refused),
            losses: take(&self.losses),
            longest_hold_us,
            longest_wait_us,
            ..ClassStatistics::default()
        }
    }

    fn give_back(&self, from_us: u64, statistics: &ClassStatistics) {
        self.holds.give_back(&statistics.holds, statistics.longest_hold_us);
        self.waits.give_back(&statistics.waits, statistics.longest_wait_us);
        let add = |count: &AtomicU32, more| {
            count.fetch_add(u32::try_from(more).unwrap_or(u32::MAX), Ordering::Relaxed);
        };
        add(&self.taken, statistics.taken);
        add(&self.refused, statistics.refused);
        add(&self.losses, statistics.losses);
        self.from_us.fetch_min(from_us, Ordering::Relaxed);
    }
}

impl Counted {
    pub(super) fn new() -> Self {
        Self {
            classes: (0..=MAX_CLASSES).map(|_| OnceLock::new()).collect(),
            since_us: AtomicU64::new(0),
            wake: OnceLock::new(),
        }
    }

    /// Sets what is called when there is something to merge after there was nothing. The call must be short.
    pub(crate) fn on_first(&self, wake: impl Fn() + Send + Sync + 'static) {
        // Set once, by the keeper of the client.
        let _ = self.wake.set(Box::new(wake));
    }

    /// Since when there is something to merge.
    pub(crate) fn since(&self) -> Option<Moment> {
        let since_us = self.since_us.load(Ordering::Relaxed);
        (since_us > 0).then(|| Moment::from_micros(since_us))
    }

    /// An acquire has ended that took so long.
    pub(super) fn acquire(
        &self,
        kind: Kind,
        class: &Class,
        count: AcquireCount,
        took: Duration,
        now: Moment,
    ) {
        self.change(kind, class, took, now, |counted| match count {
            AcquireCount::Waited { taken } => {
                counted.waits.add(took);
                if taken {
                    counted.taken.fetch_add(1, Ordering::Relaxed);
                }
            }
            AcquireCount::Refused => {
                counted.refused.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// A hold has ended that lasted so long, and was lost or not.
    pub(super) fn hold(&self, kind: Kind, class: &Class, held: Duration, is_lost: bool, now: Moment) {
        self.change(kind, class, held, now, |counted| {
            counted.holds.count(held);
            if is_lost {
                counted.losses.fetch_add(1, Ordering::Relaxed);
            } else {
                // How long a lost one lasted says when it was cut short: a cap would follow from the cap.
                counted.holds.lengthen(held);
            }
        });
    }

    fn change(
        &self,
        kind: Kind,
        class: &Class,
        took: Duration,
        now: Moment,
        change: impl FnOnce(&CountedClass),
    ) {
        let is_counted = matches!(kind, Kind::Mutex | Kind::Reentrant | Kind::RwLock | Kind::Semaphore);
        let Some(counted) = self.classes.get(class.index()).filter(|_| is_counted) else { return };
        let counted = counted.get_or_init(|| CountedClass::new(class.as_str()));
        change(counted);
        let now_us = now.as_micros();
        let from_us = now_us.saturating_sub(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        if from_us < counted.from_us.load(Ordering::Relaxed) {
            counted.from_us.fetch_min(from_us, Ordering::Relaxed);
        }
        // After the change, so that a thread that takes this finds it now or at its next look.
        if !counted.is_changed.load(Ordering::Acquire) {
            counted.is_changed.store(true, Ordering::Release);
        }
        self.begin(now_us);
    }

    /// There is something to merge.
    fn begin(&self, now_us: u64) {
        let (none, relaxed) = (0, Ordering::Relaxed);
        if self.since_us.load(relaxed) == none
            && self.since_us.compare_exchange(none, now_us.max(1), Ordering::AcqRel, relaxed).is_ok()
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }

    /// Takes what there is to merge (2).
    pub(crate) fn take(&self, now: Moment) -> MergeStatistics {
        self.since_us.store(0, Ordering::Release);
        let mut classes = Vec::new();
        for counted in self.classes.iter().filter_map(OnceLock::get) {
            if counted.is_changed.swap(false, Ordering::AcqRel) {
                let from_us = counted.from_us.swap(u64::MAX, Ordering::Relaxed);
                let statistics = counted.take();
                if statistics != ClassStatistics::default() {
                    let age_ms = now.as_micros().saturating_sub(from_us) / 1000;
                    classes.push((counted.name.to_string(), age_ms, statistics));
                }
            }
        }
        MergeStatistics { classes }
    }

    /// The store did certainly not get what was taken at that moment: it is merged later.
    pub(crate) fn give_back(&self, merge: &MergeStatistics, taken_at: Moment) {
        for (class, age_ms, statistics) in &merge.classes {
            let mut known = self.classes.iter().filter_map(OnceLock::get);
            if let Some(counted) = known.find(|counted| *counted.name == **class) {
                counted.give_back(taken_at.as_micros().saturating_sub(age_ms * 1000), statistics);
                counted.is_changed.store(true, Ordering::Release);
                self.begin(taken_at.as_micros());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::class::Classes;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    #[test]
    fn what_was_counted_is_taken_once_and_may_be_given_back() {
        let (counted, class) = (Counted::new(), Classes::default().named("orders/*"));
        let woken = Arc::new(AtomicUsize::new(0));
        let calls = woken.clone();
        counted.on_first(move || {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        let ms = Duration::from_millis;
        assert_eq!((counted.since(), counted.take(at(1)).classes), (None, vec![]));
        counted.acquire(Kind::Mutex, &class, AcquireCount::Waited { taken: true }, ms(40), at(1_040));
        counted.acquire(Kind::Mutex, &class, AcquireCount::Refused, ms(1), at(1_050));
        counted.hold(Kind::Mutex, &class, ms(200), false, at(1_240));
        counted.hold(Kind::Mutex, &class, ms(300), true, at(1_900));
        counted.hold(Kind::Election, &class, ms(9_000), true, at(1_900));
        assert_eq!((counted.since(), woken.load(Ordering::Relaxed)), (Some(at(1_040)), 1));
        let merge = counted.take(at(2_000));
        let [(name, age_ms, statistics)] = &merge.classes[..] else { panic!("one class: {merge:?}") };
        assert_eq!((name.as_str(), *age_ms), ("orders/*", 1_000));
        assert_eq!((statistics.holds.count(), statistics.waits.count()), (2, 1));
        assert_eq!((statistics.taken, statistics.refused, statistics.losses), (1, 1, 1));
        assert_eq!((statistics.longest_hold_us, statistics.longest_wait_us), (200_000, 40_000));
        assert_eq!((counted.since(), counted.take(at(2_001)).classes), (None, vec![]));
        counted.give_back(&merge, at(2_000));
        assert_eq!((counted.since(), woken.load(Ordering::Relaxed)), (Some(at(2_000)), 2));
        let again = counted.take(at(3_000));
        assert_eq!(again.classes, [(name.clone(), 2_000, statistics.clone())]);
    }
}
