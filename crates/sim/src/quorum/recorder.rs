//! Runs the checks of a quorum, keeps the trace and counts the coverage.

use crate::checks::recorder::{Counts, Violation};
use crate::quorum::checks::{Check, Limits, all};
use crate::quorum::event::{Event, NEEDED, RequestOutcome};
use crate::timeline::{QuorumCollector, Timeline};
use crate::world::time::Instant;
use leasehold_core::{Acquired, Op, Reply};

/// Records one run.
pub(crate) struct Recorder {
    checks: Vec<Box<dyn Check + Send>>,
    pub(crate) violation: Option<Violation>,
    pub(crate) counts: Counts,
    /// What happened, if a trace was requested.
    trace: Option<QuorumCollector>,
}

impl Recorder {
    pub(crate) fn new(limits: Limits, with_trace: bool) -> Self {
        Self {
            checks: all(limits),
            violation: None,
            counts: Counts::default(),
            trace: with_trace.then(QuorumCollector::default),
        }
    }

    /// Returns whether a check has failed.
    pub(crate) fn record(&mut self, at: Instant, event: &Event<'_>) -> bool {
        if self.violation.is_some() {
            return true;
        }
        // What is seen now and then is long and says nothing new.
        let is_shown = !matches!(event, Event::Seen { .. } | Event::SeenAtNode { .. } | Event::Tick);
        if let Some(trace) = self.trace.as_mut().filter(|_| is_shown) {
            trace.observe(at, event);
        }
        count(&mut self.counts, event);
        for check in &mut self.checks {
            if let Err(what) = check.observe(at, event) {
                self.violation = Some(Violation { check: check.name(), at, what });
                return true;
            }
        }
        false
    }

    /// The trace; empty unless one was requested.
    pub(crate) fn timeline(&mut self) -> Timeline {
        self.trace.take().map_or_else(Timeline::default, QuorumCollector::finish)
    }

    pub(crate) fn fail(&mut self, check: &'static str, at: Instant, what: String) {
        self.violation.get_or_insert(Violation { check, at, what });
    }
}

fn count(counts: &mut Counts, event: &Event<'_>) {
    match event {
        Event::Executed { op, reply, is_granted, .. } => {
            counts.executed += 1;
            let is_granted_anew = matches!(reply, Reply::Acquire(Acquired::Granted { .. }));
            counts.repaired += u64::from(*is_granted && matches!(op, Op::Acquire(_)) && is_granted_anew);
        }
        Event::Fault { .. } | Event::MessageLost { .. } => counts.message_faults += 1,
        Event::Answered { outcome: RequestOutcome::Granted(_), .. } => counts.granted += 1,
        Event::Acquired { .. } => counts.acquired += 1,
        Event::Lost { .. } => counts.lost += 1,
        Event::Forgot { holds, .. } => {
            counts.forgotten += 1;
            counts.outvoted += holds.iter().filter(|forgotten| forgotten.kept_by < NEEDED).count() as u64;
        }
        _ => {}
    }
}
