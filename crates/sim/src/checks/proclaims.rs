//! Observers see what the leader of an Election has proclaimed.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, LockId, ProclaimedText, ServerEvent, TaskEvent};
use crate::world::time::Instant;
use leasehold_core::{FencingToken, Reply};
use std::collections::BTreeMap;

/// An inspection shows a leader with the label of its client, or with a text that the same leader has proclaimed: none of a
/// leader before it. Once a proclaim has returned, inspections show its text or a later one of the same leader. A fail-over
/// may restore an earlier one.
#[derive(Debug, Default)]
pub struct Proclaims {
    /// By the token of the leader.
    leaders: BTreeMap<(LockId, FencingToken), Texts>,
    /// When an update of the store may have been lost last.
    lost_at: Option<Instant>,
}

/// The texts of a leader.
#[derive(Debug, Default)]
struct Texts {
    /// In order, with the time when it began to proclaim each.
    begun: Vec<(Instant, ProclaimedText)>,
    /// How many of these must have been proclaimed. Zero if the label of the client may still be seen.
    done: usize,
}

impl Texts {
    /// The number of a text, from one.
    fn number(&self, text: ProclaimedText) -> Option<usize> {
        self.begun.iter().position(|(_, begun)| *begun == text).map(|at| at + 1)
    }
}

impl Proclaims {
    fn inspected(&self, done: &Execution<'_>) -> CheckResult {
        let Reply::Inspect(inspection) = done.reply else { return Ok(()) };
        let holder = inspection.holder.as_ref().filter(|holder| !holder.in_cooldown);
        let Some((label, fence)) = holder.and_then(|holder| Some((holder.label.as_ref()?, holder.fence?)))
        else {
            return Ok(());
        };
        let (text, texts) = (ProclaimedText::of(label.as_str()), self.leaders.get(&(done.lock, fence)));
        let seen = text.map_or(Some(0), |text| texts.and_then(|texts| texts.number(text)));
        if seen.is_some_and(|seen| texts.is_none_or(|texts| texts.done <= seen)) {
            return Ok(());
        }
        Err(format!(
            "leader {fence} of {} is seen with `{}`, and its texts are {texts:?}",
            done.lock,
            label.as_str()
        ))
    }

    fn task(&mut self, at: Instant, lock: LockId, what: TaskEvent, context: &CheckContext) {
        let (TaskEvent::Proclaiming(guard_id, text) | TaskEvent::Proclaimed(guard_id, text)) = what else {
            return;
        };
        let Some(known) = context.guards.get(guard_id) else { return };
        let texts = self.leaders.entry((lock, known.hold_token)).or_default();
        if let TaskEvent::Proclaiming(..) = what {
            texts.begun.push((at, text));
        } else if let Some(number) = texts.number(text)
            && texts.begun.get(number - 1).is_some_and(|(begun, _)| Some(*begun) > self.lost_at)
        {
            texts.done = number;
        }
    }
}

impl Check for Proclaims {
    fn name(&self) -> &'static str {
        "proclaims"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.inspected(done),
            Event::Task(_, lock, what) => self.task(at, lock, what, context),
            Event::Server(ServerEvent::FailedOver) => {
                self.lost_at = Some(at);
                self.leaders.values_mut().for_each(|texts| texts.done = 0);
            }
            _ => {}
        }
        Ok(())
    }
}
