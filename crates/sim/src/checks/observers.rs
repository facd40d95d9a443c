//! Observers of an Election report its leaders.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, Execution, HostEvent, LockId, ObserverEvent, ServerEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{FencingToken, Inspect, Kind, Op};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a healthy observer may take: it polls every 250 to 500 ms, by a clock that may drift, and then waits for
/// the reply.
const TOLD_WITHIN: Duration = Duration::from_millis(700);

/// Each observer reports leaders in the order of their tokens, none twice, and only states that the store had at the
/// observer's last poll. With a healthy process, it reports within a bound a leader that stays, and that there is
/// none.
#[derive(Debug, Default)]
pub struct Observers {
    waiting: BTreeMap<(TaskId, LockId), Observer>,
    leads: BTreeMap<LockId, Leads>,
    /// The states that the store had at the last poll of a process.
    looks: BTreeMap<(HostId, LockId), Vec<Option<FencingToken>>>,
}

/// The leader at the store, or none.
#[derive(Debug, Clone, Copy)]
struct Leads {
    fence: Option<FencingToken>,
    since: Instant,
    /// When the leadership ends unless renewed; `None` if never.
    until: Option<Instant>,
}

/// The state of an observer.
#[derive(Debug)]
struct Observer {
    since: Instant,
    /// The last report.
    told: Option<ObserverEvent>,
    greatest: Option<FencingToken>,
}

impl Observers {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) {
        let first = done.holds(at).into_iter().next();
        let (fence, until) = (first.as_ref().map(|held| held.fence), first.and_then(|held| held.until));
        if matches!(done.op, Op::Inspect(Inspect { claim: None, .. })) {
            self.looks.entry((done.host, done.lock)).or_default().push(fence);
        }
        let old = self.leads.get(&done.lock).map(|old| old.at(at)).filter(|old| old.fence == fence);
        let since = old.map_or(at, |old| old.since);
        self.leads.insert(done.lock, Leads { fence, since, until });
    }

    fn told(&mut self, task: TaskId, lock: LockId, leader: Option<FencingToken>) -> CheckResult {
        let Some(observer) = self.waiting.get_mut(&(task, lock)) else { return Ok(()) };
        let seen = self.looks.get(&(task.host, lock)).map(Vec::as_slice).unwrap_or_default();
        if observer.told == Some(ObserverEvent::Reported(leader)) {
            return Err(format!("{task} was told twice that {leader:?} leads {lock}"));
        }
        observer.told = Some(ObserverEvent::Reported(leader));
        let Some(fence) = leader else {
            // After data loss, a leader may have a smaller token than one reported before.
            let has_no_leader =
                |seen: &Option<FencingToken>| seen.is_none_or(|fence| observer.greatest > Some(fence));
            return if seen.iter().any(has_no_leader) {
                Ok(())
            } else {
                Err(format!("{task} was told that {lock} has no leader, and the store had {seen:?}"))
            };
        };
        if let Some(greater) = observer.greatest.filter(|greatest| *greatest >= fence) {
            return Err(format!("{task} was told that {fence} leads {lock}, and {greater} before"));
        }
        observer.greatest = Some(fence);
        if seen.contains(&leader) {
            return Ok(());
        }
        Err(format!(
            "{task} was told that {fence} leads {lock}, and the store had {seen:?} when it was asked"
        ))
    }
}

impl Leads {
    /// The same, as it is at a time.
    fn at(self, at: Instant) -> Self {
        match self.until.filter(|until| *until <= at) {
            Some(until) => Self { fence: None, since: until, until: None },
            None => self,
        }
    }
}

impl Check for Observers {
    fn name(&self) -> &'static str {
        "observers"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _scene: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if done.state.kind == Kind::Election => self.executed(at, done),
            Event::Sent { host, lock, op: Op::Inspect(Inspect { claim: None, .. }), .. } => {
                self.looks.remove(&(host, lock));
            }
            Event::Observer(task, lock, ObserverEvent::Begins) => {
                let new = Observer { since: at, told: None, greatest: None };
                self.waiting.insert((task, lock), new);
            }
            Event::Observer(task, lock, ObserverEvent::Reported(leader)) => {
                return self.told(task, lock, leader);
            }
            Event::Observer(task, lock, ObserverEvent::Ends) => drop(self.waiting.remove(&(task, lock))),
            Event::Host(host, HostEvent::Crashed) => self.waiting.retain(|(task, _), _| task.host != host),
            // The state of the store is unknown until the next operation.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.leads.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.leads.remove(&lock)),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for ((task, lock), observer) in &self.waiting {
            let Some(Leads { fence, since, .. }) = self.leads.get(lock).map(|leads| leads.at(at)) else {
                continue;
            };
            // A leader with a smaller token than one reported before is reported as none; so is one reported as over,
            // which a failover may bring back.
            let is_told = |fence| observer.told == Some(ObserverEvent::Reported(Some(fence)));
            let due = fence.filter(|fence| {
                observer.greatest.is_none_or(|greatest| *fence > greatest || is_told(*fence))
            });
            let Some(well) = context.health(task.host).and_then(Health::stirs_since) else { continue };
            if observer.told != Some(ObserverEvent::Reported(due))
                && at > since.max(observer.since).max(well) + TOLD_WITHIN
            {
                return Err(format!(
                    "{task} was told {:?}, and {due:?} leads {lock} since {since}",
                    observer.told
                ));
            }
        }
        Ok(())
    }
}
