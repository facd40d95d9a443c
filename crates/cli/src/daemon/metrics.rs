//! The metrics of the monitor and of the fleet: their names, units and labels (docs/reference/metrics.md).
//!
//! 1. No label is the name of a lock, a label of a client, or a token. A class is one of 200 at most, or `other`.
//! 2. A figure of the fleet that is not current is left out: an old one would look like a quiet fleet.

use crate::daemon::exposition::{Exposition, Metric, MetricKind, float};
use crate::daemon::progress::{self, Progress};
use crate::fleet::{Fleet, LockView};
use leasehold::core::Kind;
use leasehold::telemetry::LockClasses;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, help }
}

const BUILD: Metric = gauge("leasehold_build_info", "1, with the version of the program.");
const UP: Metric = gauge("leasehold_monitor_up", "Whether the store has answered the last round.");
const INTERVAL: Metric = gauge("leasehold_monitor_interval_seconds", "Time between two rounds.");
const ROUNDS: Metric = counter("leasehold_monitor_rounds_total", "Rounds, by outcome.");
const ROUND: Metric = Metric {
    name: "leasehold_monitor_round_seconds",
    kind: MetricKind::Histogram,
    help: "Time that a round takes.",
};
const LAST_ROUND: Metric = gauge(
    "leasehold_monitor_last_round_timestamp_seconds",
    "When the last round ended that the store has answered; 0 before the first.",
);
const FREED: Metric = counter(
    "leasehold_monitor_freed_total",
    "Holds and queue entries of dead sessions that this monitor has removed.",
);
const EVICTED: Metric = counter(
    "leasehold_monitor_evicted_holds_total",
    "Holds of dead sessions that this monitor has ended, of all classes: from 0 on, so that the first ones are an increase.",
);
const REMAINING: Metric =
    gauge("leasehold_monitor_remaining", "Locks of dead sessions that the last round has left.");
const UNREADABLE: Metric =
    gauge("leasehold_monitor_unreadable", "Sessions and locks that the last round could not read.");
const SESSIONS: Metric = gauge("leasehold_fleet_sessions", "Sessions that the last round has found.");
const FLEET_UP: Metric =
    gauge("leasehold_fleet_up", "Whether the figures of the fleet are current; if not, they are left out.");
const FLEET_READ: Metric = gauge(
    "leasehold_fleet_read_timestamp_seconds",
    "When the list of the fleet's sessions was last read; 0 before the first time.",
);
const HELD: Metric = gauge("leasehold_fleet_held", "Locks that are held.");
const WAITING: Metric = gauge("leasehold_fleet_waiting", "Waits for locks.");
const LONGEST_WAIT: Metric =
    gauge("leasehold_fleet_longest_wait_seconds", "How long the longest wait has lasted that goes on now.");
const LONGEST_HOLD: Metric =
    gauge("leasehold_fleet_longest_hold_seconds", "How long the longest hold has lasted that goes on now.");
const NO_EXPIRY: Metric =
    gauge("leasehold_fleet_held_without_expiry", "Locks held without an expiry, which bar them for ever.");
const DEADLOCKS: Metric = gauge("leasehold_fleet_deadlocks", "Cycles of waits for each other.");

/// The metrics as text. The fleet is what is known of it at that time.
pub(crate) fn text(progress: &Progress, fleet: &Fleet, classes: &LockClasses, now: SystemTime) -> String {
    let mut text = Exposition::default();
    text.metric(&BUILD).add(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    add_progress(&mut text, progress);
    add_fleet(&mut text, fleet, is_current(fleet, progress.every, now), classes, now);
    text.into_text()
}

fn add_progress(text: &mut Exposition, progress: &Progress) {
    text.metric(&UP).add(&[], flag(progress.is_up()));
    text.metric(&INTERVAL).add(&[], progress.every.as_secs_f64());
    let mut rounds = text.metric(&ROUNDS);
    rounds.add(&[("outcome", "done")], float(progress.done));
    rounds.add(&[("outcome", "failed")], float(progress.failed));
    text.metric(&ROUND).add_histogram(&progress.took);
    text.metric(&LAST_ROUND).add(&[], timestamp(progress.last_done_at()));
    text.metric(&EVICTED).add(&[], float(progress.freed.values().map(|counts| counts.holds).sum()));
    let mut freed = text.metric(&FREED);
    for (class, counts) in &progress.freed {
        freed.add(&[("class", class), ("what", "hold")], float(counts.holds));
        freed.add(&[("class", class), ("what", "queue_entry")], float(counts.queue_entries));
    }
    // After a failed round nothing is known of the sessions (2).
    let last = progress.last.filter(|_| progress.is_up());
    text.metric(&REMAINING).add_if_known(last.map(|last| float(last.remaining as u64)));
    text.metric(&UNREADABLE).add_if_known(last.map(|last| float(last.unreadable)));
    let mut sessions = text.metric(&SESSIONS);
    if let Some(last) = last {
        sessions.add(&[("state", "alive")], float(last.alive as u64));
        sessions.add(&[("state", "dead")], float(last.dead as u64));
    }
}

/// Whether the fleet was read lately, and could be.
fn is_current(fleet: &Fleet, every: Duration, now: SystemTime) -> bool {
    let is_recent = |at: SystemTime| {
        // If the clock was set back, the next list corrects it.
        now.duration_since(at).unwrap_or_default() <= progress::limit(every)
    };
    fleet.trouble.is_none() && fleet.read_at.is_some_and(is_recent)
}

/// Figures of one kind and class.
#[derive(Debug, Default)]
struct OfClass {
    held: u64,
    waiting: u64,
    without_expiry: u64,
    longest_wait: Option<Duration>,
    longest_hold: Option<Duration>,
}

/// One of the figures, if it is known.
type Figure = fn(&OfClass) -> Option<f64>;

impl OfClass {
    fn add(&mut self, lock: &LockView, now: SystemTime) {
        // A clock that differs can make a time later than now.
        let age = |at: SystemTime| now.duration_since(at).unwrap_or_default();
        self.waiting += lock.waiting;
        self.longest_wait = self.longest_wait.max(lock.waiting_since.map(age));
        let status = lock.status.as_deref();
        let is_over = status.is_some_and(|status| status.in_cooldown);
        if lock.is_held() && !is_over {
            self.held += 1;
            self.longest_hold = self.longest_hold.max(status.and_then(|status| status.since).map(age));
            self.without_expiry += u64::from(status.is_some_and(|status| status.remaining.is_none()));
        }
    }
}

fn add_fleet(text: &mut Exposition, fleet: &Fleet, is_current: bool, classes: &LockClasses, now: SystemTime) {
    let mut all = BTreeMap::<(Kind, Arc<str>), OfClass>::new();
    for lock in fleet.locks.iter().filter(|_| is_current) {
        let class = classes.of_name(&lock.lock.name);
        all.entry((lock.lock.kind, class)).or_default().add(lock, now);
    }
    text.metric(&FLEET_UP).add(&[], flag(is_current));
    text.metric(&FLEET_READ).add(&[], timestamp(fleet.read_at));
    let figures: [(&Metric, Figure); 5] = [
        (&HELD, |figures| Some(float(figures.held))),
        (&WAITING, |figures| Some(float(figures.waiting))),
        (&LONGEST_WAIT, |figures| figures.longest_wait.map(|time| time.as_secs_f64())),
        (&LONGEST_HOLD, |figures| figures.longest_hold.map(|time| time.as_secs_f64())),
        (&NO_EXPIRY, |figures| Some(float(figures.without_expiry))),
    ];
    for (metric, figure) in figures {
        let mut samples = text.metric(metric);
        for ((kind, class), figures) in &all {
            if let Some(value) = figure(figures) {
                samples.add(&[("kind", kind.as_str()), ("class", class)], value);
            }
        }
    }
    text.metric(&DEADLOCKS).add_if_known(is_current.then_some(float(fleet.graph.cycles.len() as u64)));
}

const fn flag(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

fn timestamp(at: Option<SystemTime>) -> f64 {
    at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Totals;
    use leasehold::LockName;
    use leasehold::core::Lock;
    use std::time::Instant;

    fn waited_for(name: &str, waiting: u64, since: SystemTime) -> LockView {
        let name = LockName::new(name).expect("a name");
        LockView {
            lock: Lock { kind: Kind::Mutex, name },
            status: None,
            session: None,
            waiting,
            waiting_since: Some(since),
            changes_per_second: None,
        }
    }

    #[test]
    fn names_are_grouped_by_class_and_figures_that_are_not_current_are_left_out() {
        let now = SystemTime::now();
        let ago = |seconds: u64| now - Duration::from_secs(seconds);
        let mut fleet = Fleet {
            read_at: Some(ago(1)),
            locks: vec![
                waited_for("orders/7", 2, ago(5)),
                waited_for("orders/8", 1, ago(9)),
                waited_for("a\"b", 1, now + Duration::from_secs(5)),
            ],
            totals: Totals::default(),
            ..Fleet::default()
        };
        let progress = Progress::new(Duration::from_millis(2500), Instant::now());
        let of = |fleet: &Fleet| text(&progress, fleet, &LockClasses::default(), now);
        let all = of(&fleet);
        for line in [
            "leasehold_fleet_up 1",
            "leasehold_fleet_waiting{kind=\"mutex\",class=\"orders/*\"} 3",
            "leasehold_fleet_longest_wait_seconds{kind=\"mutex\",class=\"orders/*\"} 9",
            "leasehold_fleet_longest_wait_seconds{kind=\"mutex\",class=\"a\\\"b\"} 0",
            "leasehold_fleet_deadlocks 0",
            "leasehold_monitor_last_round_timestamp_seconds 0",
        ] {
            assert!(all.lines().any(|of_all| of_all == line), "{line}: {all}");
        }
        assert!(!all.contains("orders/7") && !all.contains("leasehold_fleet_sessions{"), "{all}");

        for (read_at, trouble) in
            [(Some(ago(11)), None), (Some(now), Some("refused".to_owned())), (None, None)]
        {
            (fleet.read_at, fleet.trouble) = (read_at, trouble);
            let none = of(&fleet);
            assert!(
                none.contains("leasehold_fleet_up 0\n") && !none.contains("leasehold_fleet_waiting{"),
                "{none}"
            );
            assert!(!none.contains("\nleasehold_fleet_deadlocks ") && !none.contains("refused"), "{none}");
        }
    }

    #[test]
    fn every_name_of_a_metric_is_in_the_reference() {
        let reference = include_str!("../../../../docs/reference/metrics.md");
        let progress = Progress::new(Duration::from_millis(2500), Instant::now());
        let all = text(&progress, &Fleet::default(), &LockClasses::default(), SystemTime::now());
        let served: Vec<_> =
            all.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        assert!(served.len() > 15, "{all}");
        for (name, kind) in &served {
            assert!(reference.contains(&format!("| `{name}` | {kind} |")), "{name} {kind}");
        }
        let documented = reference.lines().filter(|line| line.starts_with("| `leasehold_")).count();
        assert_eq!(documented, served.len());
    }
}
