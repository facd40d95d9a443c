//! Puts a hold on nodes that lack it, after a majority has extended it.
//!
//! A node lacks a hold if it was away when the lock was acquired, or has forgotten it since. A hold at a bare majority
//! ends with the first node that forgets it, and so this is done with each extend.
//!
//! 1. On such a node the same hold acquires the lock, where the node votes and no other client has it. As every acquire,
//!    it has the short first lease, so that one that arrives after the hold was released ends soon. A node that has
//!    seen the release grants nothing, since a hold ends once.
//! 2. The node then stores the token of the hold, as in the second round of an acquire, and extends it. A node that
//!    does not is not counted.
//! 3. These votes do not count for the extend: it needs a majority where the hold never was away.
//! 4. The caller waits for it, so that nothing is sent any more once the extend has returned.

use super::tally::Tally;
use crate::fault::{Fault, FaultKind, Phase};
use crate::outcome::Outcome;
use crate::store::Store;
use futures_util::future::join_all;
use leasehold_core::{
    Acquire, Acquired, Executed, Extend, Extended, FIRST_LEASE, FenceRaised, FencingToken, HoldStatus,
    Inspect, Label, Liveness, Lock, LockMode, Op, RaiseFence, Release, ReleaseAction, Reply, whole_millis,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The repair of holds that were extended together.
pub(super) struct Repair<'a> {
    pub(super) nodes: &'a [Arc<dyn Store>],
    pub(super) needed: usize,
    /// The time limit for the reply of a node.
    pub(super) node_timeout: Duration,
    /// The time limit for all requests.
    pub(super) deadline: Instant,
}

/// A hold that a majority has extended, and that other nodes lack.
struct Incomplete<'a> {
    /// Its place among the extends.
    at: usize,
    lock: &'a Lock,
    extend: &'a Extend,
    held_at: Vec<usize>,
    lacking_at: Vec<usize>,
    /// What the nodes that have it say.
    known: Vec<Known>,
}

/// What a node knows of a hold.
struct Known {
    label: Label,
    fence: FencingToken,
}

impl Repair<'_> {
    /// Returns for each extend how many nodes have its hold now that lacked it before.
    pub(super) async fn run(&self, ops: &[(Lock, Op)], tallies: &[Tally]) -> Vec<u32> {
        let mut repaired = vec![0; ops.len()];
        let extends = ops.iter().zip(tallies).enumerate();
        let incomplete = extends.filter_map(|(at, ((lock, op), tally))| {
            let Op::Extend(extend) = op else { return None };
            let (held_at, lacking_at) = tally.extended_at();
            let is_incomplete = held_at.len() >= self.needed && !lacking_at.is_empty();
            is_incomplete.then(|| Incomplete { at, lock, extend, held_at, lacking_at, known: Vec::new() })
        });
        let mut incomplete: Vec<_> = incomplete.collect();
        if incomplete.is_empty() {
            return repaired;
        }
        self.inspect(&mut incomplete).await;
        incomplete.retain(|hold| hold.known.len() >= self.needed);
        let repairs = (0..self.nodes.len()).map(|node| self.repair_at(node, &incomplete));
        for at in join_all(repairs).await.into_iter().flatten() {
            if let Some(count) = repaired.get_mut(at) {
                *count += 1;
            }
        }
        repaired
    }

    /// Reads label and token of these holds at the nodes that have them.
    async fn inspect(&self, holds: &mut [Incomplete<'_>]) {
        let nodes = (0..self.nodes.len()).map(async |node| {
            let held: Vec<_> =
                holds.iter().enumerate().filter(|(_, hold)| hold.held_at.contains(&node)).collect();
            let inspect = |hold: &Incomplete<'_>| {
                Op::Inspect(Inspect { claim: Some(hold.extend.claim.clone()), details: false })
            };
            let ops = held.iter().map(|(_, hold)| (hold.lock.clone(), inspect(hold))).collect();
            let outcomes = self.send(node, ops).await;
            let known = held.iter().map(|(index, _)| *index).zip(outcomes.iter().map(known));
            known.collect::<Vec<_>>()
        });
        let replies: Vec<_> = join_all(nodes).await.into_iter().flatten().collect();
        for (index, known) in replies {
            if let (Some(hold), Some(known)) = (holds.get_mut(index), known) {
                hold.known.push(known);
            }
        }
    }

    /// Puts the holds that one node lacks there. Returns the places of those that it has now.
    async fn repair_at(&self, node: usize, holds: &[Incomplete<'_>]) -> Vec<usize> {
        let lacking: Vec<_> = holds.iter().filter(|hold| hold.lacking_at.contains(&node)).collect();
        let acquires = lacking.iter().filter_map(|hold| Some((hold.lock.clone(), hold.acquire()?)));
        let outcomes = self.send(node, acquires.collect()).await;
        let granted = lacking.into_iter().zip(outcomes).filter_map(|(hold, outcome)| match outcome {
            Outcome::Done(Reply::Acquire(Acquired::Granted { .. })) => Some(hold),
            _ => None,
        });
        let granted: Vec<_> = granted.collect();
        let raises = granted.iter().filter_map(|hold| Some((hold.lock.clone(), hold.raise()?)));
        let outcomes = self.send(node, raises.collect()).await;
        let is_raised =
            |outcome: &Outcome| matches!(outcome, Outcome::Done(Reply::RaiseFence(FenceRaised::Raised)));
        let (raised, failed): (Vec<_>, Vec<_>) =
            granted.into_iter().zip(outcomes).partition(|(_, outcome)| is_raised(outcome));
        // A vote with a smaller token is none. What this does not reach ends with the first lease.
        let undo = failed.iter().map(|(hold, _)| (hold.lock.clone(), hold.release()));
        self.send_within(node, undo.collect(), self.node_timeout).await;
        let extends = raised.iter().map(|(hold, _)| (hold.lock.clone(), Op::Extend(hold.extend.clone())));
        let outcomes = self.send(node, extends.collect()).await;
        let extended = raised.into_iter().zip(outcomes).filter_map(|((hold, _), outcome)| {
            let is_extended =
                matches!(outcome, Outcome::Done(Reply::Extend(extended)) if extended != Extended::NotHeld);
            is_extended.then_some(hold.at)
        });
        extended.collect()
    }

    /// Sends operations to one node, as long as there is time.
    async fn send(&self, node: usize, ops: Vec<(Lock, Op)>) -> Vec<Outcome> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.send_within(node, ops, self.node_timeout.min(left)).await
    }

    async fn send_within(&self, node: usize, ops: Vec<(Lock, Op)>, within: Duration) -> Vec<Outcome> {
        match self.nodes.get(node) {
            Some(node) if !ops.is_empty() && !within.is_zero() => node.execute_all(&ops, within).await,
            _ => {
                let fault = Fault::new(FaultKind::TimedOut, Phase::Send, "the quorum");
                vec![Outcome::Failed(Executed::No, fault); ops.len()]
            }
        }
    }
}

impl Incomplete<'_> {
    fn acquire(&self) -> Option<Op> {
        Some(Op::Acquire(Acquire {
            claim: self.extend.claim.clone(),
            lease_ms: self.extend.lease_ms.min(whole_millis(FIRST_LEASE)),
            label: self.known.first()?.label.clone(),
            queue: None,
            expire_foreign_ms: None,
            liveness: Liveness::Lease,
            predecessor: None,
            mode: LockMode::Exclusive,
        }))
    }

    /// The greatest token is at least that of the hold: a majority has stored it.
    fn raise(&self) -> Option<Op> {
        let fence = self.known.iter().map(|known| known.fence).max()?;
        Some(Op::RaiseFence(RaiseFence { claim: self.extend.claim.clone(), fence }))
    }

    fn release(&self) -> Op {
        let (claim, action) = (self.extend.claim.clone(), ReleaseAction::Free);
        Op::Release(Release { claim, action, next: None })
    }
}

fn known(outcome: &Outcome) -> Option<Known> {
    let Outcome::Done(Reply::Inspect(seen)) = outcome else { return None };
    let holder = seen.holder.as_ref().filter(|_| seen.hold_status == Some(HoldStatus::Held))?;
    Some(Known { label: holder.label.clone()?, fence: holder.fence? })
}
