//! Fencing tokens grow from holder to holder.

use super::Check;
use crate::checks::CheckResult;
use crate::event::{GuardId, LockId};
use crate::quorum::event::{Event, HoldNo, NEEDED, NODES, NewGuard, OwnerNo};
use crate::world::time::Instant;
use leasehold_core::{Acquired, FenceRaised, FencingToken, Op, Reply};
use std::collections::BTreeMap;

/// A majority has stored a token before a guard shows it, and so every later majority grants a greater one. Once forgetful
/// nodes have left a token to less than a majority, the next one is greater if all clocks have passed the last. The holds of
/// one owner share a token, or have any that are greater than those of the owners before.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// The greatest token of each lock that a node remembers.
    known: [BTreeMap<LockId, FencingToken>; NODES],
    /// The greatest token of each lock that a guard of each owner has shown.
    shown: BTreeMap<(LockId, Option<OwnerNo>), Shown>,
    has_forgotten: bool,
}

#[derive(Debug, Clone, Copy)]
struct Shown {
    guard: GuardId,
    hold: HoldNo,
    fence: FencingToken,
    /// Set if less than a majority remembers it.
    is_forgotten: bool,
}

/// How many nodes remember a token as great.
fn remembered_by(
    known: &[BTreeMap<LockId, FencingToken>; NODES],
    lock: LockId,
    fence: FencingToken,
) -> usize {
    known.iter().filter(|known| known.get(&lock).is_some_and(|known| *known >= fence)).count()
}

impl Tokens {
    /// Nodes remember less than before of these.
    fn note_forgotten(&mut self) {
        let Self { known, shown, .. } = self;
        for (key, shown) in shown.iter_mut() {
            shown.is_forgotten |= remembered_by(known, key.0, shown.fence) < NEEDED;
        }
    }

    fn acquired(&mut self, guard: GuardId, new: &NewGuard) -> CheckResult {
        let NewGuard { hold, lock, owner, fence, slowest_us, .. } = *new;
        let remembered_by = remembered_by(&self.known, lock, fence);
        if remembered_by < NEEDED && !self.has_forgotten {
            return Err(format!("{guard} ({hold}) shows {fence:?}, which {remembered_by} nodes have stored"));
        }
        // All holds of a Mutex are of no owner, and each must have a greater token.
        let others = self
            .shown
            .iter()
            .filter(|((its, other), _)| *its == lock && (*other != owner || owner.is_none()));
        if let Some((_, last)) = others.max_by_key(|(_, shown)| shown.fence) {
            let may_repeat = last.is_forgotten && slowest_us <= last.fence.as_u64();
            if fence <= last.fence && !may_repeat {
                let Shown { guard: other, hold: its, fence: before, .. } = last;
                return Err(format!(
                    "{guard} ({hold}) of {lock} has {fence:?} after {other} ({its}) had {before:?}"
                ));
            }
        }
        let key = (lock, owner);
        if self.shown.get(&key).is_none_or(|last| fence >= last.fence) {
            let is_forgotten = remembered_by < NEEDED;
            self.shown.insert(key, Shown { guard, hold, fence, is_forgotten });
        }
        Ok(())
    }
}

impl Check for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    fn observe(&mut self, _at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::Executed { node, lock, op, reply, .. } => {
                let known = self.known[node.0].entry(lock).or_insert(FencingToken::new(0));
                match (op, reply) {
                    (_, Reply::Acquire(Acquired::Granted { fence, .. })) => *known = (*known).max(*fence),
                    (Op::RaiseFence(raise), Reply::RaiseFence(FenceRaised::Raised)) => {
                        // A repair of a Mutex lowers the token that its own acquire got, which no client has seen.
                        *known = if raise.exact { raise.fence } else { (*known).max(raise.fence) };
                    }
                    _ => {}
                }
            }
            Event::Forgot { node, .. } => {
                self.known[node.0].clear();
                self.has_forgotten = true;
                self.note_forgotten();
            }
            Event::Acquired { guard, new } => return self.acquired(guard, new),
            _ => {}
        }
        Ok(())
    }
}
