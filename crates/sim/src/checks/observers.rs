//! Whoever observes an Election is told who leads.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{Event, Execution, HostEvent, LockId, ObserverEvent, ServerEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{FencingToken, Inspect, Kind, Op};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an observer who is well may go without knowing who leads: he looks each 250 to 500 ms, by a clock that may be
/// wrong, and asks then.
const TOLD_WITHIN: Duration = Duration::from_millis(700);

/// Each observer is told leaders in the order of their tokens, none of them twice, and only who led, or that nobody did,
/// when the store was last asked for him. Where his process is well, he is told within a bound of whoever leads for longer
/// than that, and that nobody does.
#[derive(Debug, Default)]
pub struct Observers {
    observers: BTreeMap<(TaskId, LockId), Observer>,
    leads: BTreeMap<LockId, Leads>,
    /// What the store had when it was asked by the last look of a process.
    looks: BTreeMap<(HostId, LockId), Vec<Option<FencingToken>>>,
}

/// Who leads at the store, or that nobody does.
#[derive(Debug, Clone, Copy)]
struct Leads {
    fence: Option<FencingToken>,
    since: Instant,
    /// When he is over, unless he goes on; `None` if that is never.
    until: Option<Instant>,
}

/// What an observer has been told.
#[derive(Debug)]
struct Observer {
    since: Instant,
    /// What he was told last, if anything.
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
        let Some(observer) = self.observers.get_mut(&(task, lock)) else { return Ok(()) };
        let seen = self.looks.get(&(task.host, lock)).map(Vec::as_slice).unwrap_or_default();
        if observer.told == Some(ObserverEvent::Reported(leader)) {
            return Err(format!("{task} was told twice that {leader:?} leads {lock}"));
        }
        observer.told = Some(ObserverEvent::Reported(leader));
        let Some(fence) = leader else {
            // Of a server that has lost what it knew: who leads has a smaller token than one who was told.
            let is_nobody =
                |seen: &Option<FencingToken>| seen.is_none_or(|fence| observer.greatest > Some(fence));
            return if seen.iter().any(is_nobody) {
                Ok(())
            } else {
                Err(format!("{task} was told that nobody leads {lock}, and the store had {seen:?}"))
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
                self.observers.insert((task, lock), new);
            }
            Event::Observer(task, lock, ObserverEvent::Reported(leader)) => {
                return self.told(task, lock, leader);
            }
            Event::Observer(task, lock, ObserverEvent::Ends) => drop(self.observers.remove(&(task, lock))),
            Event::Host(host, HostEvent::Crashed) => self.observers.retain(|(task, _), _| task.host != host),
            // What is known of the store is void; the next operation tells.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.leads.clear(),
            Event::Server(ServerEvent::Deleted(lock)) => drop(self.leads.remove(&lock)),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for ((task, lock), observer) in &self.observers {
            let Some(Leads { fence, since, .. }) = self.leads.get(lock).map(|leads| leads.at(at)) else {
                continue;
            };
            // Who has a smaller token than one who was told is told as nobody, and so is one who was told to be over: a
            // replica may bring him back.
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
