//! Figures of the last hour, a point every ten seconds.

use crate::fleet::Fleet;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// The time between two points.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// The points of an hour.
const MAX_POINTS: usize = 360;

/// A ring of points. It is empty at the start: nothing is kept elsewhere.
pub(super) struct Charts {
    points: VecDeque<Point>,
    /// The time of the last point, by a clock that does not jump.
    last: Option<Instant>,
    /// How many points were ever recorded.
    recorded: u64,
}

/// The time in milliseconds, locks held, waits, longest wait in milliseconds, and changes of a holder a second; `None` where the store did not
/// answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Point(u64, Option<u64>, Option<u64>, Option<u64>, Option<f64>);

impl Charts {
    pub(super) const fn new() -> Self {
        Self { points: VecDeque::new(), last: None, recorded: 0 }
    }

    /// Records a point if the last one is old enough.
    pub(super) fn record(&mut self, fleet: &Fleet) {
        self.record_at(fleet, SystemTime::now(), Instant::now());
    }

    fn record_at(&mut self, fleet: &Fleet, at: SystemTime, now: Instant) {
        if fleet.read_at.is_none() || self.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            return;
        }
        self.last = Some(now);
        self.recorded += 1;
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(Point::of(fleet, at));
    }

    pub(super) const fn recorded(&self) -> u64 {
        self.recorded
    }

    pub(super) fn points(&self) -> Vec<Point> {
        self.points.iter().copied().collect()
    }
}

impl Point {
    /// The figures of now.
    pub(super) fn of(fleet: &Fleet, at: SystemTime) -> Self {
        let at_ms = unix_ms(at);
        if fleet.trouble.is_some() {
            return Self(at_ms, None, None, None, None);
        }
        let totals = &fleet.totals;
        Self(
            at_ms,
            Some(totals.held as u64),
            Some(totals.waiting),
            Some(longest_wait(fleet, at)),
            Some((totals.changes_per_second * 100.0).round() / 100.0),
        )
    }
}

/// The longest wait in milliseconds; 0 if nothing waits.
fn longest_wait(fleet: &Fleet, now: SystemTime) -> u64 {
    let first = fleet.locks.iter().filter_map(|lock| lock.waiting_since).min();
    first.map_or(0, |first| ms(now.duration_since(first).unwrap_or_default()))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970.
pub(super) fn unix_ms(at: SystemTime) -> u64 {
    ms(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_points_and_no_more_is_kept() {
        let (mut charts, now) = (Charts::new(), Instant::now());
        let at = SystemTime::UNIX_EPOCH;
        let unread = Fleet::default();
        charts.record_at(&unread, at, now);
        assert_eq!(charts.points(), [], "nothing was read yet");
        for s in 0..10_000_u64 {
            let time = Duration::from_secs(s);
            let mut fleet = Fleet { read_at: Some(at), ..Fleet::default() };
            fleet.totals.held = usize::try_from(s).expect("small");
            fleet.trouble = (s == 9_990).then(|| "no answer".to_owned());
            charts.record_at(&fleet, at + time, now + time);
        }
        let points = charts.points();
        assert_eq!((points.len(), charts.recorded()), (MAX_POINTS, 1_000));
        assert_eq!(points.last(), Some(&Point(9_990_000, None, None, None, None)), "a gap, not a zero");
        assert_eq!(points[MAX_POINTS - 2].1, Some(9_980));
        assert_eq!(points[0].0, 6_400_000);
    }
}
