//! A guard that is lost has a cause.

use super::{Check, Limits};
use crate::checks::CheckResult;
use crate::event::{GuardId, LeasePolicy};
use crate::quorum::event::{Event, HoldNo, NEEDED};
use crate::world::time::Instant;
use leasehold::LostReason;
use leasehold_core::FIRST_LEASE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const MARGIN: Duration = Duration::from_secs(2);

/// A given lease ends when it should. A renewed one ends only after faults that may have kept it from being renewed. The
/// quorum reports a hold as lost before its time only if forgetful nodes have left it to less than a majority.
#[derive(Debug)]
pub(crate) struct Losses {
    limits: Limits,
    last_fault_at: Instant,
    guards: BTreeMap<GuardId, Held>,
    outvoted: BTreeSet<HoldNo>,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    hold: HoldNo,
    acquired_at: Instant,
    lease: LeasePolicy,
}

impl Losses {
    pub(crate) fn new(limits: Limits) -> Self {
        let (guards, outvoted) = (BTreeMap::new(), BTreeSet::new());
        Self { limits, last_fault_at: Instant(0), guards, outvoted }
    }

    fn lost(&self, at: Instant, guard: GuardId, reason: &LostReason) -> CheckResult {
        let Some(Held { hold, acquired_at, lease }) = self.guards.get(&guard) else { return Ok(()) };
        let (LeasePolicy::Renewed(length) | LeasePolicy::Given(length) | LeasePolicy::Added(length)) = *lease;
        if self.outvoted.contains(hold) {
            return Ok(());
        }
        if *reason != LostReason::Expired {
            return Err(format!("{guard} ({hold}) is lost before its time, and no node forgot it: {reason}"));
        }
        // Some of the lease has passed when the quorum grants it.
        let is_over = at.since(*acquired_at) + self.limits.call + length / 50 >= length;
        if !matches!(lease, LeasePolicy::Renewed(_)) && is_over {
            return Ok(());
        }
        let window = length.max(FIRST_LEASE) + self.limits.call + MARGIN;
        if at.since(self.last_fault_at) > window {
            return Err(format!(
                "{guard} ({hold}) has expired, though the last fault was at {}",
                self.last_fault_at
            ));
        }
        Ok(())
    }
}

impl Check for Losses {
    fn name(&self) -> &'static str {
        "losses"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::Fault { .. } | Event::MessageLost { .. } => self.last_fault_at = at,
            Event::Forgot { holds, .. } => {
                self.last_fault_at = at;
                let outvoted = holds.iter().filter(|forgotten| forgotten.kept_by < NEEDED);
                self.outvoted.extend(outvoted.map(|forgotten| forgotten.hold));
            }
            Event::Acquired { guard, new } => {
                self.guards.insert(guard, Held { hold: new.hold, acquired_at: at, lease: new.lease });
            }
            Event::Lost { guard, reason } => {
                let checked = self.lost(at, guard, reason);
                self.guards.remove(&guard);
                return checked;
            }
            Event::Releasing { guard } => _ = self.guards.remove(&guard),
            _ => {}
        }
        Ok(())
    }
}
