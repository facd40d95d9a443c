//! A history by calls, locks, processes and faults, as the checks need it.
//!
//! Owns what a call became, when a hold was believed, and which time is disturbed by faults. Judges nothing.
//!
//! 1. A hold is *believed* from the answer that granted it until the `since_us` of its last valid check: a check that answers that
//!    the hold is valid proves it for that instant, and so for all time before. What a stopped process believed while it was stopped
//!    does not matter: it did nothing.
//! 2. A fault disturbs what it hits from its beginning until it has ended and the longer of lease and session, and a time to recover,
//!    have passed. For a process that is killed, this counts from its end. A lock is disturbed while calls of such a process may
//!    have something at the store.

use crate::event::{Answer, FaultKind, LockKind, LockSpec, Mode, ReleaseAnswer, What};
use crate::history::{Beginning, History};
use crate::margins::Margins;
use crate::verdict::{CallRecord, FaultRecord};
use std::collections::BTreeMap;

/// A history, by what took part in it.
#[derive(Debug)]
pub(crate) struct Timeline<'h> {
    pub(crate) begin: Beginning<'h>,
    /// All calls, in the order in which they were asked.
    pub(crate) calls: Vec<Call<'h>>,
    pub(crate) locks: Vec<Lock<'h>>,
    pub(crate) processes: BTreeMap<u32, Process>,
    pub(crate) faults: Vec<Fault<'h>>,
    /// The keys that are left, each time that this was looked at.
    pub(crate) left: Vec<(u64, &'h [String])>,
    /// The time of the last event.
    pub(crate) end_us: u64,
    pub(crate) has_ended: bool,
    /// How long after its end a fault disturbs.
    pub(crate) settle_us: u64,
    /// When faults hit everything, and each process.
    everywhere: Spans,
    at_process: BTreeMap<u32, Spans>,
}

/// A lock, and its calls.
#[derive(Debug)]
pub(crate) struct Lock<'h> {
    pub(crate) spec: &'h LockSpec,
    /// Its calls, in the order in which they were asked.
    pub(crate) calls: Vec<usize>,
    /// Writes to its counter, in the order in which they arrived.
    pub(crate) writes: Vec<Write>,
    /// When faults, or calls that ended without a clear answer, may leave something at the store or keep a waiter from it.
    pub(crate) disturbed: Spans,
}

/// A process of the workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) exited_us: Option<u64>,
}

/// A fault, until the end of the history if no end was reported.
#[derive(Debug)]
pub(crate) struct Fault<'h> {
    pub(crate) id: u64,
    pub(crate) kind: FaultKind,
    pub(crate) worker: Option<u32>,
    pub(crate) detail: &'h str,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
}

/// A write to a guarded counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    pub(crate) at_us: u64,
    /// The index of the call under whose hold it was.
    pub(crate) call: usize,
    pub(crate) fence: u64,
    pub(crate) read: u64,
    pub(crate) found: u64,
    pub(crate) fenced: bool,
}

/// A question whether a hold is valid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) since_us: u64,
    pub(crate) at_us: u64,
    pub(crate) valid: bool,
}

/// A call of acquire, and the hold that it acquired.
#[derive(Debug)]
pub(crate) struct Call<'h> {
    pub(crate) id: u64,
    pub(crate) process: u32,
    pub(crate) lock: usize,
    pub(crate) mode: Mode,
    pub(crate) limit_us: Option<u64>,
    pub(crate) owner: Option<u64>,
    pub(crate) asked_us: u64,
    pub(crate) answers: Vec<(u64, &'h Answer)>,
    pub(crate) checks: Vec<Validity>,
    pub(crate) lost: Option<(u64, &'h str)>,
    pub(crate) release_asked_us: Option<u64>,
    pub(crate) releases: Vec<(u64, &'h ReleaseAnswer)>,
}

impl Call<'_> {
    /// When acquire returned.
    pub(crate) fn answered_us(&self) -> Option<u64> {
        self.answers.first().map(|(at, _)| *at)
    }

    /// When it was granted.
    pub(crate) fn granted_us(&self) -> Option<u64> {
        self.answers.first().and_then(|(at, answer)| matches!(answer, Answer::Granted { .. }).then_some(*at))
    }

    /// The fencing token of the hold.
    pub(crate) fn fence(&self) -> Option<u64> {
        match self.answers.first() {
            Some((_, Answer::Granted { fence })) => *fence,
            _ => None,
        }
    }

    /// The last instant of the belief, not before the grant. None if it was not granted.
    pub(crate) fn believed_until_us(&self) -> Option<u64> {
        let granted = self.granted_us()?;
        let valid = self.checks.iter().filter(|check| check.valid).map(|check| check.since_us).max();
        let until = valid.unwrap_or(granted).max(granted);
        Some(self.release_asked_us.map_or(until, |release| until.min(release).max(granted)))
    }

    /// From when to when the holder believed to have the lock. None if no check after the grant found it valid.
    pub(crate) fn belief(&self) -> Option<(u64, u64)> {
        let (from, to) = (self.granted_us()?, self.believed_until_us()?);
        (from < to).then_some((from, to))
    }

    /// Whether the holder believed to have the lock at this time.
    pub(crate) fn believes_at(&self, at_us: u64) -> bool {
        self.belief().is_some_and(|(from, to)| from <= at_us && at_us <= to)
    }

    /// When the hold had ended for its holder: its release was asked, or its belief was over.
    pub(crate) fn ended_us(&self) -> Option<u64> {
        let believed = self.believed_until_us()?;
        Some(self.release_asked_us.map_or(believed, |release| release.max(believed)))
    }

    /// Whether two holds are of one owner, whose holds do not exclude each other.
    pub(crate) fn has_owner_of(&self, other: &Self) -> bool {
        self.owner.is_some() && self.owner == other.owner
    }

    /// Whether it was ready to wait, and so may stand in a queue.
    pub(crate) fn waits(&self) -> bool {
        self.limit_us != Some(0) && self.mode != Mode::CountDown
    }
}

impl Lock<'_> {
    /// Whether the lock is a queue of holders: neither a latch, a barrier nor a period.
    pub(crate) fn is_held_and_waited_for(&self) -> bool {
        use LockKind::{Election, Mutex, Reentrant, RwLock, Semaphore};
        matches!(self.spec.kind, Mutex | Reentrant | RwLock | Semaphore | Election)
    }
}

impl<'h> Timeline<'h> {
    /// Sorts the events of a history.
    pub(crate) fn of(history: &'h History, margins: &Margins) -> Self {
        let begin = history.beginning();
        let locks: Vec<Lock<'h>> = begin
            .locks
            .iter()
            .map(|spec| Lock { spec, calls: Vec::new(), writes: Vec::new(), disturbed: Spans::default() })
            .collect();
        let mut timeline = Self {
            begin,
            calls: Vec::new(),
            locks,
            processes: BTreeMap::new(),
            faults: Vec::new(),
            left: Vec::new(),
            end_us: history.last_us(),
            has_ended: history.has_ended(),
            settle_us: begin.lease_us.max(begin.session_us).saturating_add(margins.recovery_us),
            everywhere: Spans::default(),
            at_process: BTreeMap::new(),
        };
        timeline.add_calls(history);
        timeline.add_events(history);
        timeline.add_disturbances();
        timeline
    }

    fn add_calls(&mut self, history: &'h History) {
        let by_name: BTreeMap<&str, usize> =
            self.begin.locks.iter().enumerate().map(|(index, spec)| (spec.name.as_str(), index)).collect();
        for event in history.events() {
            let What::Asked { call, lock, mode, limit_ms, owner } = &event.what else { continue };
            // A history has no event of a lock that it does not name.
            let Some(&lock) = by_name.get(lock.as_str()) else { continue };
            self.locks[lock].calls.push(self.calls.len());
            self.calls.push(Call {
                id: *call,
                process: event.process,
                lock,
                mode: *mode,
                limit_us: limit_ms.map(|ms| ms.saturating_mul(1000)),
                owner: *owner,
                asked_us: event.at_us,
                answers: Vec::new(),
                checks: Vec::new(),
                lost: None,
                release_asked_us: None,
                releases: Vec::new(),
            });
        }
    }

    fn add_events(&mut self, history: &'h History) {
        let by_id: BTreeMap<u64, usize> =
            self.calls.iter().enumerate().map(|(index, call)| (call.id, index)).collect();
        let mut open: BTreeMap<u64, usize> = BTreeMap::new();
        for event in history.events() {
            let at_us = event.at_us;
            match &event.what {
                What::Answered { call, answer } => self.calls[by_id[call]].answers.push((at_us, answer)),
                What::Checked { call, since_us, valid } => {
                    let check = Validity { since_us: *since_us, at_us, valid: *valid };
                    self.calls[by_id[call]].checks.push(check);
                }
                What::Lost { call, reason } => {
                    self.calls[by_id[call]].lost.get_or_insert((at_us, reason));
                }
                What::ReleaseAsked { call } => {
                    self.calls[by_id[call]].release_asked_us.get_or_insert(at_us);
                }
                What::Released { call, answer } => self.calls[by_id[call]].releases.push((at_us, answer)),
                What::Wrote { call, fence, read, found, fenced, .. } => {
                    let call = by_id[call];
                    let write =
                        Write { at_us, call, fence: *fence, read: *read, found: *found, fenced: *fenced };
                    self.locks[self.calls[call].lock].writes.push(write);
                }
                What::Started { pid } => {
                    self.processes.insert(event.process, Process { pid: *pid, exited_us: None });
                }
                What::Exited { worker, .. } => {
                    self.processes.entry(*worker).and_modify(|it| it.exited_us = Some(at_us));
                }
                What::FaultBegan { fault, kind, worker, detail } => {
                    open.insert(*fault, self.faults.len());
                    let (worker, to_us) = (*worker, self.end_us);
                    self.faults.push(Fault {
                        id: *fault,
                        kind: *kind,
                        worker,
                        detail,
                        from_us: at_us,
                        to_us,
                    });
                }
                What::FaultEnded { fault } => {
                    if let Some(fault) = open.remove(fault) {
                        self.faults[fault].to_us = at_us;
                    }
                }
                What::Left { keys } => self.left.push((at_us, keys)),
                What::Began { .. } | What::Asked { .. } | What::Clock { .. } | What::Ended => {}
            }
        }
    }

    fn add_disturbances(&mut self) {
        for fault in &self.faults {
            let spans = match fault.worker {
                // What is left of a process that was killed counts from its end, which is noted below.
                Some(worker) if fault.kind == FaultKind::Kill => {
                    self.at_process.entry(worker).or_default().add(fault.from_us, fault.from_us);
                    continue;
                }
                Some(worker) => self.at_process.entry(worker).or_default(),
                None => &mut self.everywhere,
            };
            spans.add(fault.from_us, fault.to_us.saturating_add(self.settle_us));
        }
        // A process that ends without a fault leaves as much behind as one that is killed.
        for (number, process) in &self.processes {
            if let Some(exited) = process.exited_us {
                self.at_process
                    .entry(*number)
                    .or_default()
                    .add(exited, exited.saturating_add(self.settle_us));
            }
        }
        self.everywhere.merge();
        self.at_process.values_mut().for_each(Spans::merge);
        for lock in &mut self.locks {
            lock.disturbed = self.everywhere.clone();
            for &index in &lock.calls {
                let call = &self.calls[index];
                let exited = self.processes.get(&call.process).and_then(|process| process.exited_us);
                let until = call_ends_us(call, exited).unwrap_or(self.end_us);
                if let Some(spans) = self.at_process.get(&call.process) {
                    // A call has nothing at the store before it is asked, and nothing after it ended with a clear answer.
                    let ended = clear_end_us(call).unwrap_or(u64::MAX);
                    for (from, to) in spans.overlapping(call.asked_us, until) {
                        lock.disturbed.add((*from).max(call.asked_us), (*to).min(ended));
                    }
                }
                if let Some((from, at)) = unclear(call) {
                    lock.disturbed.add(from, at.saturating_add(self.settle_us));
                }
            }
            lock.disturbed.merge();
        }
    }

    /// Whether a fault that hits this process, or everything, disturbs any of this time.
    pub(crate) fn is_disturbed(&self, process: u32, from_us: u64, to_us: u64) -> bool {
        self.everywhere.overlaps(from_us, to_us)
            || self.at_process.get(&process).is_some_and(|spans| spans.overlaps(from_us, to_us))
    }

    /// From when a fault disturbs the process of a call while that waits.
    pub(crate) fn wait_is_disturbed_from_us(&self, call: &Call<'_>) -> Option<u64> {
        let until_us = self.waits_until_us(call);
        let spans = [Some(&self.everywhere), self.at_process.get(&call.process)].into_iter().flatten();
        let begins =
            spans.flat_map(|spans| spans.overlapping(call.asked_us, until_us).map(|(from, _)| *from));
        begins.min().map(|from| from.max(call.asked_us))
    }

    /// Until when a fault that hits this process, or everything, disturbs what happens at this time. The time itself if none does.
    pub(crate) fn disturbed_until_us(&self, process: u32, at_us: u64) -> u64 {
        let spans = [Some(&self.everywhere), self.at_process.get(&process)].into_iter().flatten();
        let ends = spans.flat_map(|spans| spans.overlapping(at_us, at_us).map(|(_, to)| *to));
        ends.max().unwrap_or(at_us)
    }

    /// Whether a fault goes on at any of this time that hits this process or everything.
    pub(crate) fn faults_at(
        &self,
        process: u32,
        from_us: u64,
        to_us: u64,
    ) -> impl Iterator<Item = &Fault<'h>> {
        let hits = move |fault: &&Fault<'h>| fault.worker.is_none_or(|worker| worker == process);
        self.faults.iter().filter(hits).filter(move |fault| fault.from_us <= to_us && from_us <= fault.to_us)
    }

    /// When the process of a call ended.
    pub(crate) fn exited_us(&self, call: &Call<'_>) -> Option<u64> {
        self.processes.get(&call.process).and_then(|process| process.exited_us)
    }

    /// Until when a call waits: its answer, the end of its process, or the end of the history.
    pub(crate) fn waits_until_us(&self, call: &Call<'_>) -> u64 {
        call.answered_us().or(self.exited_us(call)).unwrap_or(self.end_us)
    }

    /// The record of a call, for a verdict.
    pub(crate) fn record(&self, call: &Call<'_>) -> CallRecord {
        CallRecord {
            call: call.id,
            process: call.process,
            pid: self.processes.get(&call.process).map(|process| process.pid),
            lock: self.locks[call.lock].spec.name.clone(),
            mode: call.mode,
            owner: call.owner,
            asked_us: call.asked_us,
            answered_us: call.answered_us(),
            granted: call.granted_us().is_some(),
            fence: call.fence(),
            believed_until_us: call.believed_until_us(),
            lost_us: call.lost.map(|(at, _)| at),
            release_asked_us: call.release_asked_us,
            released_us: call.releases.first().map(|(at, _)| *at),
            exited_us: self.exited_us(call),
        }
    }

    /// The process of a call, for a sentence.
    pub(crate) fn process_name(&self, call: &Call<'_>) -> String {
        match self.processes.get(&call.process) {
            Some(process) => format!("process {} (pid {})", call.process, process.pid),
            None => format!("process {}", call.process),
        }
    }

    /// The faults that went on in this time or not long before.
    pub(crate) fn faults_around(&self, from_us: u64, to_us: u64) -> Vec<FaultRecord> {
        let is_near = |fault: &&Fault<'_>| {
            fault.from_us <= to_us && from_us <= fault.to_us.saturating_add(self.settle_us)
        };
        let record = |fault: &Fault<'_>| FaultRecord {
            fault: fault.id,
            kind: fault.kind,
            worker: fault.worker,
            detail: fault.detail.to_owned(),
            from_us: fault.from_us,
            to_us: fault.to_us,
        };
        self.faults.iter().filter(is_near).map(record).collect()
    }
}

/// When nothing of a call is left at the store: its release found its hold, or it was granted what is no hold.
fn clear_end_us(call: &Call<'_>) -> Option<u64> {
    if matches!(call.mode, Mode::CountDown | Mode::Wait) {
        return call.granted_us();
    }
    call.releases.first().filter(|(_, answer)| matches!(answer, ReleaseAnswer::Released)).map(|(at, _)| *at)
}

/// When nothing of a call is left in its process. None: not before the end.
fn call_ends_us(call: &Call<'_>, exited_us: Option<u64>) -> Option<u64> {
    let over = match call.answers.first() {
        None => None,
        Some((_, Answer::Granted { .. })) => call.releases.last().map(|(at, _)| *at),
        Some((at, _)) => Some(*at),
    };
    over.or(exited_us)
}

/// When a call may have left something at the store, although no fault was going on: it failed, its hold was lost, or its release had
/// no clear answer.
fn unclear(call: &Call<'_>) -> Option<(u64, u64)> {
    if let Some((at, Answer::Failed { .. })) = call.answers.first() {
        return Some((call.asked_us, *at));
    }
    if let Some((at, ReleaseAnswer::Failed { .. })) = call.releases.first() {
        return Some((call.release_asked_us.unwrap_or(*at), *at));
    }
    if let Some((at, _)) = call.lost {
        return Some((at, call.releases.last().map_or(at, |(released, _)| *released)));
    }
    let invalid = call.checks.iter().find(|check| !check.valid).map(|check| check.at_us);
    let is_late = matches!(call.releases.first(), Some((_, ReleaseAnswer::NotHeld)));
    let since = invalid.or_else(|| is_late.then(|| call.believed_until_us()).flatten())?;
    Some((since, call.releases.last().map_or(since, |(released, _)| *released)))
}

/// Stretches of time, with both ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans {
    spans: Vec<(u64, u64)>,
}

impl Spans {
    /// Adds one; [`Spans::merge`] must follow before the others are used.
    pub(crate) fn add(&mut self, from_us: u64, to_us: u64) {
        self.spans.push((from_us, to_us.max(from_us)));
    }

    /// Puts them in order, and joins those that touch.
    pub(crate) fn merge(&mut self) {
        self.spans.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.spans.len());
        for (from, to) in self.spans.drain(..) {
            match merged.last_mut() {
                Some((_, last)) if from <= *last => *last = to.max(*last),
                _ => merged.push((from, to)),
            }
        }
        self.spans = merged;
    }

    /// Those that have a part of this time.
    fn overlapping(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = &(u64, u64)> {
        let first = self.spans.partition_point(|(_, to)| *to < from_us);
        self.spans[first..].iter().take_while(move |(from, _)| *from <= to_us)
    }

    /// Whether one has a part of this time.
    pub(crate) fn overlaps(&self, from_us: u64, to_us: u64) -> bool {
        self.overlapping(from_us, to_us).next().is_some()
    }

    /// What lies between them, from this time to that.
    pub(crate) fn gaps(&self, from_us: u64, to_us: u64) -> Vec<(u64, u64)> {
        let (mut gaps, mut at) = (Vec::new(), from_us);
        for &(from, to) in self.overlapping(from_us, to_us) {
            if at < from {
                gaps.push((at, from));
            }
            at = at.max(to);
        }
        if at < to_us {
            gaps.push((at, to_us));
        }
        gaps
    }

    /// How long they are in all.
    pub(crate) fn length_us(&self) -> u64 {
        self.spans.iter().map(|(from, to)| to - from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_touch_are_joined_and_the_gaps_lie_between() {
        let mut spans = Spans::default();
        for (from, to) in [(30, 40), (10, 20), (15, 25), (25, 26)] {
            spans.add(from, to);
        }
        spans.merge();
        assert_eq!(spans.gaps(0, 50), [(0, 10), (26, 30), (40, 50)]);
        assert_eq!(spans.gaps(12, 28), [(26, 28)]);
        assert_eq!(spans.length_us(), 26);
        assert!(spans.overlaps(26, 26) && spans.overlaps(0, 10) && !spans.overlaps(27, 29));
    }
}
