//! Observers of an Election report its leaders.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{
    Event, Execution, HostEvent, LockId, ObserverEvent, ProclaimedText, SeenLeader, ServerEvent, TaskId,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{FencingToken, Inspect, Kind, Op};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a healthy observer may take: it polls every 250 to 500 ms, by a clock that may drift, and then waits for
/// the reply.
const REPORTED_WITHIN: Duration = Duration::from_millis(700);

/// Each observer reports leaders in the order of their tokens, none twice but with another text, and only states that the
/// store had at the observer's last poll. So does a client that asks for the leader. In a healthy process, an observer reports
/// within a bound a leader that stays, with its text, or the lack of one.
#[derive(Debug, Default)]
pub struct Observers {
    active: BTreeMap<(TaskId, LockId), Observer>,
    leaders: BTreeMap<LockId, Leadership>,
    /// The states that the store had at the last poll of a process.
    polled_states: BTreeMap<(HostId, LockId), Vec<Option<SeenLeader>>>,
}

/// The leader at the store, or none.
#[derive(Debug, Clone, Copy)]
struct Leadership {
    leader: Option<SeenLeader>,
    since: Instant,
    /// When the leadership ends unless renewed; `None` if never.
    until: Option<Instant>,
}

/// The state of an observer.
#[derive(Debug)]
struct Observer {
    since: Instant,
    /// The last report.
    last_report: Option<ObserverEvent>,
    greatest: Option<FencingToken>,
}

impl Observers {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        let first = done.holds(at).into_iter().next();
        let last_holder = done.state.record.as_ref().and_then(|record| record.last_holder.as_ref());
        let text = last_holder.and_then(|holder| ProclaimedText::of(holder.label.as_str()));
        let leader = first.as_ref().map(|held| SeenLeader { fence: held.fence, text });
        let until = first.and_then(|held| held.until);
        if matches!(done.op, Op::Inspect(Inspect { claim: None, .. })) {
            self.polled_states.entry((done.host, done.lock)).or_default().push(leader);
        }
        let old = self.leaders.get(&done.lock).map(|old| old.at(at)).filter(|old| old.leader == leader);
        let since = old.map_or(at, |old| old.since);
        self.leaders.insert(done.lock, Leadership { leader, since, until });
    }

    fn reported(&mut self, task: TaskId, lock: LockId, leader: Option<SeenLeader>) -> CheckResult {
        let Some(observer) = self.active.get_mut(&(task, lock)) else { return Ok(()) };
        let seen = self.polled_states.get(&(task.host, lock)).map(Vec::as_slice).unwrap_or_default();
        if observer.last_report == Some(ObserverEvent::Reported(leader)) {
            return Err(format!("{task} reported leader {leader:?} of {lock} twice"));
        }
        let last_report = observer.last_report.replace(ObserverEvent::Reported(leader));
        let Some(SeenLeader { fence, .. }) = leader else {
            // After data loss, a leader may have a smaller token than one reported before.
            let has_no_leader =
                |seen: &Option<SeenLeader>| seen.is_none_or(|seen| observer.greatest > Some(seen.fence));
            return if seen.iter().any(has_no_leader) {
                Ok(())
            } else {
                Err(format!("{task} reported that {lock} has no leader, and the store had {seen:?}"))
            };
        };
        // The same leader again has proclaimed another text.
        let is_same = matches!(last_report, Some(ObserverEvent::Reported(Some(last))) if last.fence == fence);
        if let Some(greater) = observer.greatest.filter(|greatest| *greatest >= fence && !is_same) {
            return Err(format!("{task} reported leader {fence} of {lock} after {greater}"));
        }
        observer.greatest = Some(fence);
        if seen.contains(&leader) {
            return Ok(());
        }
        Err(format!("{task} reported {leader:?} of {lock}, and the store had {seen:?} when it was polled"))
    }

    fn asked(&self, task: TaskId, lock: LockId, leader: Option<SeenLeader>) -> CheckResult {
        let seen = self.polled_states.get(&(task.host, lock)).map(Vec::as_slice).unwrap_or_default();
        if seen.contains(&leader) {
            return Ok(());
        }
        Err(format!("{task} asked who leads {lock}, received {leader:?}, and the store had {seen:?}"))
    }
}

impl Leadership {
    /// The same, as it is at a time.
    fn at(self, at: Instant) -> Self {
        match self.until.filter(|until| *until <= at) {
            Some(until) => Self { leader: None, since: until, until: None },
            None => self,
        }
    }
}

impl Check for Observers {
    fn name(&self) -> &'static str {
        "observers"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if done.state.kind == Kind::Election => self.executed(at, done),
            Event::Sent { host, lock, op: Op::Inspect(Inspect { claim: None, .. }), .. } => {
                self.polled_states.remove(&(host, lock));
            }
            Event::Observer(task, lock, ObserverEvent::Begins) => {
                let new = Observer { since: at, last_report: None, greatest: None };
                self.active.insert((task, lock), new);
            }
            Event::Observer(task, lock, ObserverEvent::Reported(leader)) => {
                return self.reported(task, lock, leader);
            }
            Event::Observer(task, lock, ObserverEvent::Asked(leader)) => {
                return self.asked(task, lock, leader);
            }
            Event::Observer(task, lock, ObserverEvent::Ends) => drop(self.active.remove(&(task, lock))),
            Event::Host(host, HostEvent::Crashed) => self.active.retain(|(task, _), _| task.host != host),
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() => self.leaders.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.leaders.remove(&lock)),
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for ((task, lock), observer) in &self.active {
            let Some(Leadership { leader, since, .. }) = self.leaders.get(lock).map(|leaders| leaders.at(at))
            else {
                continue;
            };
            // A leader with a smaller token than one reported before is reported as no leader. So is one whose end was
            // reported and which a failover has restored.
            let is_reported = |fence| matches!(observer.last_report, Some(ObserverEvent::Reported(Some(last))) if last.fence == fence);
            let due = leader.filter(|SeenLeader { fence, .. }| {
                observer.greatest.is_none_or(|greatest| *fence > greatest || is_reported(*fence))
            });
            let Some(healthy) = context.health(task.host).and_then(Health::background_healthy_since) else {
                continue;
            };
            if observer.last_report != Some(ObserverEvent::Reported(due))
                && at > since.max(observer.since).max(healthy) + REPORTED_WITHIN
            {
                return Err(format!(
                    "{task} last reported {:?}, and {due:?} leads {lock} since {since}",
                    observer.last_report
                ));
            }
        }
        Ok(())
    }
}
