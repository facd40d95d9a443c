//! Nothing is released or extended but by its own hold, and what was released does not come back.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, Execution, LockId, ServerEvent};
use crate::sim::time::Instant;
use leasehold_core::{Extended, Fate, HoldId, Op, Reply};
use std::collections::BTreeMap;

/// Nothing is released or extended except by comparing the hold in the same step; and the hold that was released last
/// does not take the lock again, however late or often its acquire arrives.
#[derive(Debug, Default)]
pub struct Comparison {
    locks: BTreeMap<LockId, Before>,
}

/// A lock before an operation.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    /// Set once an operation has told how the lock stands.
    is_known: bool,
    holder: Option<(HoldId, Option<Instant>)>,
    released: Option<HoldId>,
}

impl Comparison {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> Verdict {
        let before = self.locks.entry(done.lock).or_default();
        let after = done.holder().map(|(claim, _, until)| (claim.hold, until));
        let held = before.holder.filter(|(_, until)| until.is_none_or(|until| at < until));
        let claimed = done.claim().map(|claim| claim.hold);
        let is_own = claimed.is_some() && held.map(|(hold, _)| hold) == claimed;
        let lock = done.lock;
        match (done.op, done.reply) {
            _ if !before.is_known => before.is_known = true,
            (Op::Extend(_), Reply::Extend(Extended::Extended)) if !is_own => {
                return Err(format!("{claimed:?} extended {lock}, which {held:?} has"));
            }
            (Op::Release(_), Reply::Release(released)) if released.found == Fate::Held && !is_own => {
                return Err(format!("{claimed:?} released {lock}, which {held:?} has"));
            }
            (Op::Extend(_) | Op::Release(_), _) if held.is_some() && !is_own && after != held => {
                return Err(format!("{claimed:?} changed {lock} from {held:?} to {after:?}"));
            }
            _ => {}
        }
        // A release is remembered until the next one, which may come with an acquire.
        let is_back = |released: &HoldId| {
            matches!(done.op, Op::Acquire(_)) && after.is_some_and(|(hold, _)| hold == *released)
        };
        if let Some(back) = before.released.filter(is_back) {
            return Err(format!("{back:?} has {lock} again after its release"));
        }
        if matches!(done.reply, Reply::Release(released) if released.found == Fate::Held) {
            before.released = claimed;
        }
        before.holder = after;
        Ok(())
    }
}

impl Check for Comparison {
    fn name(&self) -> &'static str {
        "comparison"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => return self.executed(at, done),
            // A stranger has it from here on, or nobody.
            Event::Stranger(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.locks.entry(lock).or_default().holder = None;
            }
            // What is known of the store is void; the next operation tells.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.locks.clear(),
            _ => {}
        }
        Ok(())
    }
}
