//! Guards of different owners are not valid at the same time.

use super::Check;
use crate::checks::CheckResult;
use crate::event::{GuardId, LockId};
use crate::quorum::event::{Event, HoldNo, NEEDED, NewGuard, OwnerNo};
use crate::world::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// A guard is valid from its acquire until it ends, so two of them overlap if one is valid when the other is acquired. A
/// hold that forgetful nodes have left to less than a majority is no second holder.
#[derive(Debug, Default)]
pub(crate) struct Exclusion {
    guards: BTreeMap<GuardId, ValidGuard>,
    /// Holds that are outvoted.
    outvoted: BTreeSet<HoldNo>,
}

#[derive(Debug, Clone, Copy)]
struct ValidGuard {
    hold: HoldNo,
    lock: LockId,
    owner: Option<OwnerNo>,
    until: Instant,
}

impl Exclusion {
    fn acquired(&mut self, at: Instant, guard: GuardId, new: &NewGuard) -> CheckResult {
        let NewGuard { hold, lock, owner, until, .. } = *new;
        self.guards.retain(|_, other| other.until > at);
        let is_same = |other: &ValidGuard| owner.is_some() && other.owner == owner;
        let is_outvoted = |hold| self.outvoted.contains(&hold);
        let others = self.guards.iter().filter(|(_, other)| other.lock == lock && !is_same(other));
        let other = others.clone().find(|(_, other)| !is_outvoted(other.hold) && !is_outvoted(hold));
        if let Some((other, ValidGuard { hold: its, until, .. })) = other {
            return Err(format!(
                "{guard} ({hold}) of {lock} was acquired while {other} ({its}) is valid until {until}"
            ));
        }
        self.guards.insert(guard, ValidGuard { hold, lock, owner, until });
        Ok(())
    }
}

impl Check for Exclusion {
    fn name(&self) -> &'static str {
        "exclusion"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::Forgot { holds, .. } => {
                let outvoted = holds.iter().filter(|forgotten| forgotten.kept_by < NEEDED);
                self.outvoted.extend(outvoted.map(|forgotten| forgotten.hold));
            }
            Event::Acquired { guard, new } => return self.acquired(at, guard, new),
            Event::ValidUntil { guard, until } => {
                if let Some(known) = self.guards.get_mut(&guard) {
                    known.until = until;
                }
            }
            Event::Lost { guard, .. } | Event::Releasing { guard } => _ = self.guards.remove(&guard),
            _ => {}
        }
        Ok(())
    }
}
