//! What the rounds of the monitor have done so far, and whether they go on.

use crate::daemon::exposition::Histogram;
use crate::duration::Shown;
use leasehold::inspect::MonitorReport;
use leasehold::telemetry::LockClasses;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How many intervals may pass without a round that the store answers.
const INTERVALS: u32 = 4;
/// The least time for that: a round without an answer takes seconds, and so does the pause after it.
const MIN_LIMIT: Duration = Duration::from_secs(10);
/// The upper bounds of the histogram of rounds, in seconds.
const ROUND_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How long rounds may be apart before something is wrong.
pub(crate) fn limit(every: Duration) -> Duration {
    (every * INTERVALS).max(MIN_LIMIT)
}

/// What the rounds have done.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) every: Duration,
    started: Instant,
    /// When the last round ended.
    last_round: Option<Instant>,
    /// When the last round ended that was not cut short by a fault.
    last_done: Option<(Instant, SystemTime)>,
    /// What cut the last round short.
    fault: Option<String>,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) took: Histogram,
    /// What was freed, by class.
    pub(crate) freed: BTreeMap<Arc<str>, Freed>,
    /// Of the last round that was not cut short: sessions that live, dead ones, locks that are left, and what cannot be read.
    pub(crate) last: Option<LastRound>,
}

/// What was freed of a class.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Freed {
    pub(crate) holds: u64,
    pub(crate) queue_entries: u64,
}

/// What a round has found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastRound {
    pub(crate) alive: usize,
    pub(crate) dead: usize,
    pub(crate) remaining: usize,
    pub(crate) unreadable: u64,
}

/// Why the monitor does not do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unhealthy {
    /// There was no round yet.
    Starting,
    /// No round has ended for this time.
    NoRound(Duration),
    /// The store has not answered a whole round for this time.
    NoAnswer(Duration, Option<String>),
}

impl fmt::Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting: the store has not answered a round yet"),
            Self::NoRound(time) => write!(f, "no round has ended for {}", Shown(*time)),
            Self::NoAnswer(time, None) => write!(f, "the store has not answered for {}", Shown(*time)),
            Self::NoAnswer(time, Some(fault)) => {
                write!(f, "the store has not answered for {}: {fault}", Shown(*time))
            }
        }
    }
}

impl Progress {
    pub(crate) fn new(every: Duration, now: Instant) -> Self {
        Self {
            every,
            started: now,
            last_round: None,
            last_done: None,
            fault: None,
            done: 0,
            failed: 0,
            took: Histogram::new(ROUND_BOUNDS),
            freed: BTreeMap::new(),
            last: None,
        }
    }

    /// Counts a round that has just ended.
    pub(crate) fn add(&mut self, round: &MonitorReport, classes: &LockClasses, now: Instant) {
        self.last_round = Some(now);
        self.took.record(round.took.as_secs_f64());
        self.fault = round.fault.as_ref().map(ToString::to_string);
        if round.fault.is_some() {
            self.failed += 1;
        } else {
            self.done += 1;
            self.last_done = Some((now, SystemTime::now()));
            self.last = Some(LastRound {
                alive: round.alive,
                dead: round.dead,
                remaining: round.remaining,
                unreadable: round.skipped.count,
            });
        }
        for eviction in &round.evicted {
            let freed = self.freed.entry(classes.of_name(&eviction.name)).or_default();
            match eviction.fence {
                Some(_) => freed.holds += 1,
                None => freed.queue_entries += 1,
            }
        }
    }

    /// Whether the store has answered the last round.
    pub(crate) const fn is_up(&self) -> bool {
        self.last_done.is_some() && self.fault.is_none()
    }

    /// When the store has last answered a round.
    pub(crate) fn last_done_at(&self) -> Option<SystemTime> {
        self.last_done.map(|(_, at)| at)
    }

    /// Whether rounds go on, and the store answers them.
    pub(crate) fn check(&self, now: Instant) -> Result<(), Unhealthy> {
        let limit = limit(self.every);
        let since = |then: Instant| now.saturating_duration_since(then);
        let without_round = since(self.last_round.unwrap_or(self.started));
        if without_round > limit {
            return Err(Unhealthy::NoRound(whole_seconds(without_round)));
        }
        let Some((done, _)) = self.last_done else {
            return Err(match &self.fault {
                Some(fault) => Unhealthy::NoAnswer(whole_seconds(since(self.started)), Some(fault.clone())),
                None => Unhealthy::Starting,
            });
        };
        let without_answer = since(done);
        if without_answer > limit {
            return Err(Unhealthy::NoAnswer(whole_seconds(without_answer), self.fault.clone()));
        }
        Ok(())
    }
}

const fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    fn done() -> MonitorReport {
        MonitorReport::default()
    }

    #[test]
    fn it_is_healthy_from_the_first_round_on_and_until_four_intervals_after_the_last() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut progress = Progress::new(EVERY, start);
        assert_eq!(progress.check(at(1)), Err(Unhealthy::Starting));
        assert!(!progress.is_up());
        progress.add(&done(), &LockClasses::default(), at(2));
        assert!(progress.is_up());
        assert_eq!((progress.check(at(2)), progress.check(at(22))), (Ok(()), Ok(())));
        assert_eq!(progress.check(at(23)), Err(Unhealthy::NoRound(Duration::from_secs(21))));
        progress.add(&done(), &LockClasses::default(), at(24));
        assert_eq!(progress.check(at(25)), Ok(()));
        assert_eq!((progress.done, progress.failed), (2, 0));
    }

    #[test]
    fn a_loop_that_never_ends_a_round_is_not_starting_for_ever() {
        let start = Instant::now();
        let progress = Progress::new(Duration::from_millis(100), start);
        let late = start + Duration::from_secs(11);
        assert_eq!(progress.check(late), Err(Unhealthy::NoRound(Duration::from_secs(11))));
    }

    #[test]
    fn the_limit_is_ten_seconds_at_least() {
        let limits = [100, 2500, 60_000].map(|every| limit(Duration::from_millis(every)).as_secs());
        assert_eq!(limits, [10, 10, 240]);
    }
}
