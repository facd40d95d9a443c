//! Histories for the tests of the checks, written down call by call.

use crate::event::{Answer, Event, FaultKind, LockKind, LockSpec, Mode, ReleaseAnswer, What};
use crate::history::History;
use crate::judge::judge;
use crate::verdict::Violation;
use std::collections::BTreeMap;
use std::ops::Range;

const LOCK: &str = "lock";

/// A history of one lock and four processes, whose leases and sessions are 3 s. Calls have a limit of 10 s.
pub(super) struct Script {
    pub(super) events: Vec<Event>,
    calls: u64,
    processes: BTreeMap<u64, u32>,
}

impl Script {
    pub(super) fn of(kind: LockKind) -> Self {
        Self::with(kind, None, None)
    }

    pub(super) fn with(kind: LockKind, permits: Option<u32>, period_ms: Option<u64>) -> Self {
        let began = What::Began {
            format: 1,
            seed: 1,
            store: "redis".to_owned(),
            started_at: "2026-01-02T03:04:05Z".to_owned(),
            locks: vec![LockSpec { name: LOCK.to_owned(), kind, permits, period_ms }],
            lease_ms: 3000,
            session_ms: 3000,
            settings: BTreeMap::new(),
        };
        let mut script = Self { events: Vec::new(), calls: 0, processes: BTreeMap::new() };
        script.push(0, 0, began);
        for process in 1..=5 {
            script.push(0, process, What::Started { pid: 1000 + process });
        }
        script
    }

    pub(super) fn push(&mut self, at_us: u64, process: u32, what: What) {
        self.events.push(Event { at_us, process, what });
    }

    fn ask(
        &mut self,
        process: u32,
        mode: Mode,
        owner: Option<u64>,
        at_us: u64,
        limit_ms: Option<u64>,
    ) -> u64 {
        self.calls += 1;
        let call = self.calls;
        self.processes.insert(call, process);
        self.push(at_us, process, What::Asked { call, lock: LOCK.to_owned(), mode, limit_ms, owner });
        call
    }

    pub(super) fn asked(&mut self, process: u32, mode: Mode, at_us: u64) -> u64 {
        self.ask(process, mode, None, at_us, Some(10_000))
    }

    pub(super) fn asked_without_limit(&mut self, process: u32, at_us: u64) -> u64 {
        self.ask(process, Mode::Exclusive, None, at_us, None)
    }

    pub(super) fn answer(&mut self, at_us: u64, call: u64, fence: Option<u64>) {
        self.push(at_us, self.processes[&call], What::Answered { call, answer: Answer::Granted { fence } });
    }

    /// A call that is granted at once.
    pub(super) fn granted(&mut self, process: u32, mode: Mode, fence: u64, at_us: u64) -> u64 {
        let call = self.asked(process, mode, at_us);
        self.answer(at_us, call, Some(fence));
        call
    }

    pub(super) fn check(&mut self, at_us: u64, call: u64, valid: bool) {
        self.push(at_us, self.processes[&call], What::Checked { call, since_us: at_us, valid });
    }

    pub(super) fn release(&mut self, at_us: u64, call: u64, held: bool) {
        let answer = if held { ReleaseAnswer::Released } else { ReleaseAnswer::NotHeld };
        self.push(at_us, self.processes[&call], What::ReleaseAsked { call });
        self.push(at_us, self.processes[&call], What::Released { call, answer });
    }

    /// A last valid check, and a release.
    pub(super) fn finish(&mut self, call: u64, at_us: u64) {
        self.check(at_us - 1, call, true);
        self.release(at_us, call, true);
    }

    /// A hold that is granted at once, valid until just before the end, and released then.
    pub(super) fn hold(&mut self, process: u32, mode: Mode, fence: u64, times: Range<u64>) -> u64 {
        let call = self.granted(process, mode, fence, times.start);
        self.finish(call, times.end);
        call
    }

    pub(super) fn hold_as(&mut self, process: u32, owner: Option<u64>, fence: u64, times: Range<u64>) -> u64 {
        let call = self.ask(process, Mode::Exclusive, owner, times.start, Some(10_000));
        self.answer(times.start, call, Some(fence));
        self.finish(call, times.end);
        call
    }

    pub(super) fn write(
        &mut self,
        at_us: u64,
        call: u64,
        fence: u64,
        (read, found): (u64, u64),
        fenced: bool,
    ) {
        self.push(at_us, 0, What::Wrote { call, lock: LOCK.to_owned(), fence, read, found, fenced });
    }

    pub(super) fn fault(&mut self, kind: FaultKind, worker: Option<u32>, times: Range<u64>) {
        let fault = self.events.len() as u64;
        let detail = "planted".to_owned();
        self.push(times.start, 0, What::FaultBegan { fault, kind, worker, detail });
        self.push(times.end, 0, What::FaultEnded { fault });
    }

    pub(super) fn history(&self) -> History {
        History::from_events(self.events.clone()).expect("a history")
    }

    /// How much a check judged, and how many violations it found.
    pub(super) fn outcome(&self, check: &str) -> (u64, u64) {
        let verdict = judge(&self.history());
        let outcome =
            verdict.checks.iter().find(|outcome| outcome.name == check).expect("a check of this name");
        (outcome.judged, outcome.violations)
    }
}

/// What a check finds.
pub(super) fn found(history: &History, check: &str) -> Vec<Violation> {
    judge(history).violations.into_iter().filter(|violation| violation.check == check).collect()
}
