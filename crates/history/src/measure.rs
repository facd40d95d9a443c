//! What was measured in a run.

use crate::event::{FaultKind, Mode, What};
use crate::history::History;
use crate::timeline::{Call, Lock, Spans, Timeline};
use crate::verdict::{ClockStep, Measured, NodeClock, Percentiles};
use std::collections::BTreeMap;

/// How much two clocks may part in a second without a step, in microseconds: 500 ppm, as NTP allows itself.
const DRIFT_US: u64 = 500;

/// The smallest step that is reported besides, in microseconds.
const STEP_US: u64 = 5_000;

pub(crate) fn measure(history: &History, timeline: &Timeline<'_>) -> Measured {
    let mut measured = Measured {
        length_us: timeline.end_us,
        calls: timeline.calls.len() as u64,
        holds: timeline.calls.iter().filter(|call| is_hold(call)).count() as u64,
        failed_calls: timeline.calls.iter().filter(|call| has_failed(call)).count() as u64,
        wait: Percentiles::of(waits(timeline)),
        hand_off: Percentiles::of(timeline.locks.iter().flat_map(|lock| hand_offs(timeline, lock)).collect()),
        take_over: Percentiles::of(take_overs(timeline)),
        share_in_faults: share_in_faults(timeline),
        ..Measured::default()
    };
    for lock in &timeline.locks {
        measured.writes += lock.writes.len() as u64;
        for write in lock.writes.iter().filter(|write| !timeline.calls[write.call].believes_at(write.at_us)) {
            if write.fenced {
                measured.late_writes_accepted += 1;
            } else {
                measured.late_writes_refused += 1;
            }
        }
    }
    for fault in &timeline.faults {
        *measured.faults.entry(fault.kind).or_default() += 1;
    }
    (measured.round_trip, measured.clocks) = clocks(history);
    measured
}

fn is_hold(call: &Call<'_>) -> bool {
    call.granted_us().is_some() && !matches!(call.mode, Mode::CountDown | Mode::Wait)
}

fn has_failed(call: &Call<'_>) -> bool {
    matches!(call.answers.first(), Some((_, crate::event::Answer::Failed { .. })))
}

fn waits(timeline: &Timeline<'_>) -> Vec<u64> {
    let wait = |call: &Call<'_>| {
        let granted_us = call.granted_us().filter(|_| is_hold(call))?;
        let is_quiet = !timeline.locks[call.lock].disturbed.overlaps(call.asked_us, granted_us);
        is_quiet.then(|| granted_us - call.asked_us)
    };
    timeline.calls.iter().filter_map(wait).collect()
}

/// From the beginning of each release until the next grant to a call that waited then.
fn hand_offs(timeline: &Timeline<'_>, lock: &Lock<'_>) -> Vec<u64> {
    if !lock.is_held_and_waited_for() {
        return Vec::new();
    }
    let mut grants: Vec<(u64, u64)> = lock
        .calls
        .iter()
        .map(|&call| &timeline.calls[call])
        .filter_map(|call| call.granted_us().map(|granted| (granted, call.asked_us)))
        .collect();
    grants.sort_unstable();
    let mut releases: Vec<u64> =
        lock.calls.iter().filter_map(|&call| timeline.calls[call].release_asked_us).collect();
    releases.sort_unstable();
    let next = |(index, &release_us): (usize, &u64)| {
        let (granted_us, asked_us) = *grants.get(grants.partition_point(|(at, _)| *at <= release_us))?;
        // Of two releases before one grant, the later one made room for it.
        let is_last = releases.get(index + 1).is_none_or(|&later| later >= granted_us);
        let is_quiet = !lock.disturbed.overlaps(release_us, granted_us);
        (is_last && is_quiet && asked_us < release_us).then(|| granted_us - release_us)
    };
    releases.iter().enumerate().filter_map(next).collect()
}

/// From each kill of a holder until the next grant of its lock to a call of another process, or from when that was asked.
fn take_overs(timeline: &Timeline<'_>) -> Vec<u64> {
    let mut taken = Vec::new();
    for fault in timeline.faults.iter().filter(|fault| fault.kind == FaultKind::Kill) {
        let killed = timeline.calls.iter().filter(|call| {
            Some(call.process) == fault.worker
                && is_hold(call)
                && call.granted_us().is_some_and(|granted| granted <= fault.from_us)
                && call.release_asked_us.is_none()
                && call.lost.is_none()
        });
        for holder in killed {
            let lock = &timeline.locks[holder.lock];
            let next = lock
                .calls
                .iter()
                .map(|&call| &timeline.calls[call])
                .filter(|call| call.process != holder.process)
                .filter_map(|call| call.granted_us().map(|granted| (granted, call.asked_us)))
                .filter(|(granted, _)| *granted > fault.from_us)
                .min();
            taken.extend(next.map(|(granted, asked)| granted - asked.max(fault.from_us)));
        }
    }
    taken
}

#[expect(clippy::cast_precision_loss, reason = "a run is shorter than 2^52 microseconds")]
fn share_in_faults(timeline: &Timeline<'_>) -> f64 {
    let mut spans = Spans::default();
    for fault in &timeline.faults {
        spans.add(fault.from_us, fault.to_us);
    }
    spans.merge();
    spans.length_us() as f64 / timeline.end_us.max(1) as f64
}

/// The round trips of the questions for the store's clock, and the steps of each node's clock.
fn clocks(history: &History) -> (Option<Percentiles>, Vec<NodeClock>) {
    let (mut round_trips, mut nodes) = (Vec::new(), BTreeMap::<u32, (NodeClock, Option<Sample>)>::new());
    for event in history.events() {
        let What::Clock { node, sent_us, store_us } = event.what else { continue };
        let round_trip_us = event.at_us.saturating_sub(sent_us);
        round_trips.push(round_trip_us);
        let (clock, last) =
            nodes.entry(node).or_insert_with(|| (NodeClock { node, samples: 0, steps: Vec::new() }, None));
        clock.samples += 1;
        let sample = Sample { at_us: sent_us + round_trip_us / 2, store_us, round_trip_us };
        if let Some(by_us) = last.as_ref().and_then(|last| sample.step_since(last)) {
            clock.steps.push(ClockStep { at_us: event.at_us, by_us });
        }
        *last = Some(sample);
    }
    (Percentiles::of(round_trips), nodes.into_values().map(|(clock, _)| clock).collect())
}

#[expect(clippy::struct_field_names, reason = "as everywhere here, a time says its unit")]
struct Sample {
    at_us: u64,
    store_us: u64,
    round_trip_us: u64,
}

impl Sample {
    /// By how much the clock was set since the last sample, if neither the round trips nor an ordinary drift explain it.
    fn step_since(&self, last: &Self) -> Option<i64> {
        let passed_us = self.at_us.saturating_sub(last.at_us);
        let by_us =
            i64::try_from(i128::from(self.store_us) - i128::from(last.store_us) - i128::from(passed_us))
                .ok()?;
        let allowed_us = self.round_trip_us.div_ceil(2)
            + last.round_trip_us.div_ceil(2)
            + passed_us / 1_000_000 * DRIFT_US
            + STEP_US;
        (by_us.unsigned_abs() > allowed_us).then_some(by_us)
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::judge;
    use crate::sample;
    use crate::{ClockStep, Event, FaultKind, History, What};

    #[test]
    fn a_hand_off_faults_and_late_writes_are_measured() {
        let history = History::read(sample::TWO_HOLDERS.as_bytes()).expect("a history");
        let measured = judge(&history).measured;
        assert_eq!((measured.calls, measured.holds, measured.writes), (4, 4, 5));
        assert_eq!(measured.hand_off.map(|it| (it.count, it.max_us)), Some((1, 1_400)));
        assert_eq!(measured.round_trip.map(|it| (it.count, it.max_us)), Some((2, 600)));
        assert_eq!(measured.faults[&FaultKind::Failover], 1);
        assert!((measured.share_in_faults - 0.4 / 1.5).abs() < 1e-9);
        assert!(measured.clocks[0].steps.is_empty(), "{:?}", measured.clocks);
    }

    #[test]
    fn a_clock_that_is_set_is_a_step_and_a_slow_answer_is_none() {
        let began = sample::TWO_HOLDERS.lines().next().expect("a line");
        let began: Event = serde_json::from_str(began).expect("an event");
        let clock = |sent_us: u64, at_us: u64, store_us: u64| Event {
            at_us,
            process: 0,
            what: What::Clock { node: 0, sent_us, store_us },
        };
        let events = vec![
            began,
            clock(1_000_000, 1_000_200, 9_000_100),
            clock(2_000_000, 2_400_000, 10_390_000),
            clock(3_000_000, 3_000_200, 14_000_100),
            clock(4_000_000, 4_000_200, 12_000_100),
        ];
        let history = History::from_events(events).expect("a history");
        let clocks = judge(&history).measured.clocks;
        let steps: Vec<(u64, i64)> =
            clocks[0].steps.iter().map(|ClockStep { at_us, by_us }| (*at_us, *by_us)).collect();
        assert_eq!(steps.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [3_000_200, 4_000_200]);
        assert!(steps[0].1 > 2_500_000 && steps[1].1 == -3_000_000, "{steps:?}");
    }
}
