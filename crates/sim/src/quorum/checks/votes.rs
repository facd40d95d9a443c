//! A renewal puts a hold on all nodes.

use super::{Check, Limits};
use crate::checks::CheckResult;
use crate::event::{GuardId, LeasePolicy};
use crate::quorum::event::{Event, HoldNo, NEEDED, NODES};
use crate::world::time::Instant;
use leasehold_core::{Acquired, FIRST_LEASE, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For how long a repair leaves a node alone that has refused.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// The pause before an extend is repeated that failed, at most.
const BACKOFF: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(500);

/// Once all nodes have been reachable without a fault for as long as a renewal takes, a renewed hold is on all nodes, and
/// its guard says so. One that forgetful nodes have left to less than a majority is lost by then. A repair that finds the
/// vote of a node taken by an attempt of another client is left to the next renewal.
#[derive(Debug)]
pub(crate) struct Votes {
    limits: Limits,
    last_fault_at: Instant,
    renewed: BTreeMap<GuardId, Renewed>,
    /// When a node last refused to repair a hold, because another one has its vote.
    taken_at: BTreeMap<HoldNo, Instant>,
    /// Holds that less than a majority has, and that no message can give to a node any more.
    outvoted: BTreeSet<HoldNo>,
}

#[derive(Debug, Clone, Copy)]
struct Renewed {
    hold: HoldNo,
    acquired_at: Instant,
    interval: Duration,
}

impl Votes {
    pub(crate) fn new(limits: Limits) -> Self {
        let (renewed, taken_at, outvoted) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { limits, last_fault_at: Instant(0), renewed, taken_at, outvoted }
    }

    fn seen(
        &self,
        at: Instant,
        guard: GuardId,
        held_by: usize,
        votes: Option<leasehold_core::Votes>,
    ) -> CheckResult {
        let Some(&Renewed { hold, acquired_at, interval }) = self.renewed.get(&guard) else { return Ok(()) };
        let taken_at = self.taken_at.get(&hold).copied().unwrap_or_default();
        let since = self.last_fault_at.max(acquired_at).max(taken_at);
        let within = REFUSED_FOR + BACKOFF + interval + self.limits.call + MARGIN;
        if at.since(since) <= within {
            return Ok(());
        }
        if self.outvoted.contains(&hold) {
            return Err(format!(
                "{guard} ({hold}) is valid, {within:?} after nodes forgot it: {held_by} have it"
            ));
        }
        let is_complete = votes.is_some_and(|votes| votes.held as usize == NODES);
        if held_by < NODES || !is_complete {
            let said = votes.map_or_else(|| "nothing".to_owned(), |votes| votes.to_string());
            return Err(format!(
                "{guard} ({hold}) is on {held_by} nodes, and says {said}, {within:?} after {since}, when all were reachable"
            ));
        }
        Ok(())
    }
}

impl Check for Votes {
    fn name(&self) -> &'static str {
        "votes"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult {
        match *event {
            Event::Fault { .. } | Event::MessageLost { .. } => self.last_fault_at = at,
            Event::Forgot { holds, .. } => {
                self.last_fault_at = at;
                let outvoted = holds.iter().filter(|of| of.held_by < NEEDED && !of.is_in_flight);
                self.outvoted.extend(outvoted.map(|forgotten| forgotten.hold));
            }
            Event::Acquired { guard, new } => {
                if let LeasePolicy::Renewed(lease) = new.lease {
                    let interval = lease.max(FIRST_LEASE) / 3;
                    self.renewed.insert(guard, Renewed { hold: new.hold, acquired_at: at, interval });
                }
            }
            Event::Lost { guard, .. } | Event::Releasing { guard } => _ = self.renewed.remove(&guard),
            Event::Executed { hold: Some(hold), is_granted: true, op: Op::Acquire(_), reply, .. } => {
                if matches!(reply, Reply::Acquire(Acquired::Taken { .. })) {
                    self.taken_at.insert(hold, at);
                }
            }
            Event::Seen { guard, is_valid: true, held_by, votes } => {
                return self.seen(at, guard, held_by, votes);
            }
            _ => {}
        }
        Ok(())
    }
}
