//! What no task needs is on no node.

use super::Check;
use crate::checks::CheckResult;
use crate::event::GuardId;
use crate::quorum::event::{Event, HoldNo, RequestOutcome};
use crate::world::time::Instant;
use leasehold_core::{Acquired, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the undo of a request takes, with its pauses between attempts.
const UNDONE_WITHIN: Duration = Duration::from_millis(1_500);

/// What was not granted is undone at every node, and a release reaches every node that is reachable. A node that was not
/// keeps a released hold until its lease ends. When all clients have ended and all leases are over, no node has a holder.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    last_fault_at: Instant,
    /// Holds that no task needs, and since when.
    ended: BTreeMap<HoldNo, Ended>,
    holds: BTreeMap<GuardId, HoldNo>,
    /// Which holds are being released, and since when.
    releasing: BTreeMap<GuardId, Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Ended {
    /// It was not granted.
    NotGranted(Instant),
    /// It was released, by a request that was sent then.
    Released(Instant),
}

impl Leftovers {
    fn seen(&self, at: Instant, hold: HoldNo) -> Result<(), String> {
        match self.ended.get(&hold) {
            Some(Ended::NotGranted(since)) if at.since((*since).max(self.last_fault_at)) > UNDONE_WITHIN => {
                Err(format!("{hold}, which was not granted since {since}"))
            }
            Some(Ended::Released(since))
                if self.last_fault_at < *since && at.since(*since) > UNDONE_WITHIN =>
            {
                Err(format!("{hold}, which was released at {since}"))
            }
            _ => Ok(()),
        }
    }
}

impl Check for Leftovers {
    fn name(&self) -> &'static str {
        "leftovers"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::Fault { .. } | Event::MessageLost { .. } | Event::Forgot { .. } => self.last_fault_at = at,
            Event::Requested { hold, .. } => _ = self.ended.remove(&hold),
            Event::Answered { hold, outcome: RequestOutcome::NotGranted } => {
                self.ended.insert(hold, Ended::NotGranted(at));
            }
            Event::Executed { hold: Some(hold), reply: Reply::Acquire(Acquired::Granted { .. }), .. }
                if matches!(self.ended.get(&hold), Some(Ended::NotGranted(_))) =>
            {
                // It was on another connection than its undo, and ends by its first lease.
                self.ended.remove(&hold);
            }
            Event::Acquired { guard, new } => _ = self.holds.insert(guard, new.hold),
            Event::Releasing { guard } => _ = self.releasing.insert(guard, at),
            Event::Released { guard } => {
                if let (Some(hold), Some(since)) = (self.holds.remove(&guard), self.releasing.remove(&guard))
                {
                    self.ended.insert(hold, Ended::Released(since));
                }
            }
            Event::SeenAtNode { node, lock, hold } => {
                return self.seen(at, hold).map_err(|hold| format!("{node} keeps {lock} for {hold}"));
            }
            Event::Remains { node, lock } => {
                return Err(format!("{node} has a holder of {lock} after all leases have ended"));
            }
            _ => {}
        }
        Ok(())
    }
}
