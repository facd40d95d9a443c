//! Puts a hold on nodes that lack it, after a majority has extended it.
//!
//! A node lacks a hold if it was away when the lock was acquired, or has forgotten it since. A hold at a bare majority
//! ends with the first node that forgets it, and so this is done with each extend.
//!
//! 1. On such a node the same hold acquires the lock, where the node votes and no other client has it. As every acquire,
//!    it has the short first lease, so that one that arrives after the hold was released ends soon. A node that has
//!    seen the release grants nothing, since a hold ends once.
//! 2. The node then stores exactly the token of the hold. Its own grant had another one, which no client has seen. Of a
//!    ReentrantMutex the node may have granted a second hold of the owner meanwhile, with a greater token that counts: then it
//!    keeps the greater one, as a node that was late for the first hold does.
//! 3. If a majority still has the hold, and this process is not releasing it, the node extends it. A hold that has ended
//!    meanwhile is released at the node as well. If that is not known, because nodes do not reply or have forgotten it,
//!    nothing is sent, and the first lease ends it there.
//! 4. These votes do not count for the extend: it needs a majority where the hold never was away.
//! 5. The caller waits for it, so that nothing is sent any more once the extend has returned. A node that refuses to vote is
//!    left alone for a second.

use super::tally::Tally;
use crate::fault::{Fault, FaultKind, Phase};
use crate::outcome::Outcome;
use crate::store::Store;
use futures_util::future::join_all;
use leasehold_core::{
    Acquire, Acquired, Executed, Extend, Extended, FIRST_LEASE, FenceRaised, FencingToken, HoldId,
    HoldStatus, Holder, Inspect, Kind, Label, Liveness, Lock, LockMode, Op, RaiseFence, Release,
    ReleaseAction, Reply, whole_millis,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// For how long a node that refuses is left alone.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// What the repairs of a client and its forks share.
#[derive(Debug, Default, Clone)]
pub(super) struct Repairs(Arc<Mutex<RepairState>>);

#[derive(Debug, Default)]
struct RepairState {
    /// Holds under repair.
    running: BTreeMap<HoldId, UnderRepair>,
    /// Nodes that have refused, and until when they are left alone.
    refused: BTreeMap<usize, Instant>,
}

#[derive(Debug, Default)]
struct UnderRepair {
    /// By how many extends.
    count: u32,
    /// Whether this process releases it.
    is_released: bool,
}

impl Repairs {
    /// This process releases a hold.
    pub(super) fn releasing(&self, hold: HoldId) {
        if let Some(running) = self.state().running.get_mut(&hold) {
            running.is_released = true;
        }
    }

    fn state(&self) -> MutexGuard<'_, RepairState> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds that are under repair until this is dropped.
struct Running<'a> {
    of: &'a Repairs,
    holds: Vec<HoldId>,
}

impl<'a> Running<'a> {
    fn new(of: &'a Repairs, holds: Vec<HoldId>) -> Self {
        let mut state = of.state();
        for hold in &holds {
            state.running.entry(*hold).or_default().count += 1;
        }
        drop(state);
        Self { of, holds }
    }

    fn is_released(&self, hold: HoldId) -> bool {
        self.of.state().running.get(&hold).is_some_and(|running| running.is_released)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        for hold in &self.holds {
            if let Entry::Occupied(mut running) = state.running.entry(*hold) {
                running.get_mut().count -= 1;
                if running.get().count == 0 {
                    running.remove();
                }
            }
        }
    }
}

/// The repair of holds that were extended together.
pub(super) struct Repair<'a> {
    pub(super) nodes: &'a [Arc<dyn Store>],
    pub(super) needed: usize,
    /// The time limit for the reply of a node.
    pub(super) node_timeout: Duration,
    /// The time limit for all requests.
    pub(super) deadline: Instant,
    pub(super) repairs: &'a Repairs,
}

/// A hold that a majority has extended, and that other nodes lack.
struct Incomplete<'a> {
    /// Its place among the extends.
    at: usize,
    lock: &'a Lock,
    extend: &'a Extend,
    held_at: Vec<usize>,
    lacking_at: Vec<usize>,
}

/// What a node knows of a hold.
#[derive(Clone)]
struct Known {
    label: Label,
    fence: FencingToken,
}

/// What the nodes that had a hold say of it.
#[derive(Default)]
struct Reading {
    held: Vec<Known>,
    /// At how many it has ended. One that has forgotten it says nothing: another extend of this process may have counted
    /// the votes of the repaired nodes meanwhile, and would lose them.
    ended: usize,
}

impl Reading {
    fn note(&mut self, outcome: &Outcome) {
        let Outcome::Done(Reply::Inspect(seen)) = outcome else { return };
        match (seen.hold_status, &seen.holder) {
            (Some(HoldStatus::Ended(_)), _) => self.ended += 1,
            (Some(HoldStatus::Held), Some(Holder { label: Some(label), fence: Some(fence), .. })) => {
                self.held.push(Known { label: label.clone(), fence: *fence });
            }
            _ => {}
        }
    }

    /// Whether no majority can have the hold any more.
    fn is_over(&self, hold: &Incomplete<'_>, needed: usize) -> bool {
        hold.held_at.len() - self.ended < needed
    }

    /// What a majority says, with the token that a majority reports, or the greatest if they differ: a majority has stored
    /// that of the hold, and a node that was late for it has a smaller one of its own.
    fn agreed(&self, needed: usize) -> Option<Known> {
        let fences = || self.held.iter().map(|known| known.fence);
        let is_majority = |fence: &FencingToken| fences().filter(|other| other == fence).count() >= needed;
        let fence = fences().find(is_majority).or_else(|| fences().max())?;
        let known = self.held.first().filter(|_| self.held.len() >= needed)?;
        Some(Known { fence, ..known.clone() })
    }
}

impl Repair<'_> {
    /// Returns for each extend how many nodes have its hold now that lacked it before.
    pub(super) async fn run(&self, ops: &[(Lock, Op)], tallies: &[Tally]) -> Vec<u32> {
        let mut repaired = vec![0; ops.len()];
        let refusing = self.refusing();
        let extends = ops.iter().zip(tallies).enumerate();
        let incomplete = extends.filter_map(|(at, ((lock, op), tally))| {
            let Op::Extend(extend) = op else { return None };
            let (held_at, mut lacking_at) = tally.extended_at();
            lacking_at.retain(|node| !refusing.contains(node));
            let is_incomplete = held_at.len() >= self.needed && !lacking_at.is_empty();
            is_incomplete.then_some(Incomplete { at, lock, extend, held_at, lacking_at })
        });
        let incomplete: Vec<_> = incomplete.collect();
        if incomplete.is_empty() {
            return repaired;
        }
        let holds = incomplete.iter().map(|hold| hold.extend.claim.hold).collect();
        let running = Running::new(self.repairs, holds);
        let known = self.read(&incomplete).await;
        let lacking = (0..self.nodes.len()).map(|node| self.acquire(node, &incomplete, &known));
        let granted: Vec<_> = join_all(lacking).await.into_iter().flatten().collect();
        if granted.is_empty() {
            return repaired;
        }
        let now = self.read(&incomplete).await;
        let (mut extends, mut releases) = (Vec::new(), Vec::new());
        for (node, hold) in granted {
            let read = now.get(&hold.at);
            if running.is_released(hold.extend.claim.hold)
                || read.is_some_and(|read| read.is_over(hold, self.needed))
            {
                releases.push((node, hold));
            } else if read.is_some_and(|read| read.held.len() >= self.needed) {
                extends.push((node, hold));
            }
        }
        let extended = self.send_each(extends, |hold| Op::Extend(hold.extend.clone())).await;
        for (at, outcome) in extended {
            let is_extended =
                matches!(outcome, Outcome::Done(Reply::Extend(extended)) if extended != Extended::NotHeld);
            if let Some(count) = repaired.get_mut(at).filter(|_| is_extended) {
                *count += 1;
            }
        }
        self.send_each(releases, Incomplete::release).await;
        repaired
    }

    /// The nodes that have refused to vote, a moment ago.
    fn refusing(&self) -> Vec<usize> {
        let now = Instant::now();
        let mut state = self.repairs.state();
        state.refused.retain(|_, until| *until > now);
        state.refused.keys().copied().collect()
    }

    /// What the nodes that had these holds say of them now, by the places of the holds.
    async fn read(&self, holds: &[Incomplete<'_>]) -> BTreeMap<usize, Reading> {
        let asked = holds.iter().flat_map(|hold| hold.held_at.iter().map(move |node| (*node, hold)));
        let inspect = |hold: &Incomplete<'_>| {
            Op::Inspect(Inspect { claim: Some(hold.extend.claim.clone()), details: false })
        };
        let mut read: BTreeMap<usize, Reading> = BTreeMap::new();
        for (at, outcome) in self.send_each(asked.collect(), inspect).await {
            read.entry(at).or_default().note(&outcome);
        }
        read
    }

    /// Acquires the holds that one node lacks, and has it store their tokens. Returns those that it has now.
    async fn acquire<'h, 'a>(
        &self,
        node: usize,
        holds: &'h [Incomplete<'a>],
        read: &BTreeMap<usize, Reading>,
    ) -> Vec<(usize, &'h Incomplete<'a>)> {
        let lacking = holds.iter().filter(|hold| hold.lacking_at.contains(&node));
        let known = |hold: &'h Incomplete<'a>| Some((hold, read.get(&hold.at)?.agreed(self.needed)?));
        let lacking: Vec<_> = lacking.filter_map(known).collect();
        let acquires = lacking.iter().map(|(hold, known)| (hold.lock.clone(), hold.acquire(known)));
        let outcomes = self.send(node, acquires.collect()).await;
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(..))) {
            self.repairs.state().refused.insert(node, Instant::now() + REFUSED_FOR);
        }
        let granted = lacking.into_iter().zip(outcomes).filter_map(|(hold, outcome)| {
            matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))).then_some(hold)
        });
        let granted: Vec<_> = granted.collect();
        let stores = granted.iter().map(|(hold, known)| (hold.lock.clone(), hold.store_token(known)));
        let outcomes = self.send(node, stores.collect()).await;
        let stored = granted.into_iter().zip(outcomes).filter_map(|((hold, _), outcome)| {
            // Without it, the hold ends with its first lease.
            matches!(outcome, Outcome::Done(Reply::RaiseFence(FenceRaised::Raised))).then_some((node, hold))
        });
        stored.collect()
    }

    /// Sends an operation for each of these holds to its node, in one batch for a node. Returns the outcomes with the places of
    /// the holds.
    async fn send_each<'a>(
        &self,
        to: Vec<(usize, &Incomplete<'a>)>,
        op: impl Fn(&Incomplete<'a>) -> Op,
    ) -> Vec<(usize, Outcome)> {
        let nodes =
            (0..self.nodes.len()).map(|node| {
                let of: Vec<_> = to.iter().filter(|(at, _)| *at == node).map(|(_, hold)| *hold).collect();
                let ops = of.iter().map(|hold| (hold.lock.clone(), op(hold))).collect();
                async move {
                    of.into_iter().map(|hold| hold.at).zip(self.send(node, ops).await).collect::<Vec<_>>()
                }
            });
        join_all(nodes).await.into_iter().flatten().collect()
    }

    /// Sends operations to one node, as long as there is time.
    async fn send(&self, node: usize, ops: Vec<(Lock, Op)>) -> Vec<Outcome> {
        let within = self.node_timeout.min(self.deadline.saturating_duration_since(Instant::now()));
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
    fn acquire(&self, known: &Known) -> Op {
        Op::Acquire(Acquire {
            claim: self.extend.claim.clone(),
            lease_ms: self.extend.lease_ms.min(whole_millis(FIRST_LEASE)),
            label: known.label.clone(),
            queue: None,
            expire_foreign_ms: None,
            liveness: Liveness::Lease,
            predecessor: None,
            mode: LockMode::Exclusive,
        })
    }

    fn store_token(&self, known: &Known) -> Op {
        let exact = self.lock.kind != Kind::Reentrant;
        Op::RaiseFence(RaiseFence { claim: self.extend.claim.clone(), fence: known.fence, exact })
    }

    fn release(&self) -> Op {
        let (claim, action) = (self.extend.claim.clone(), ReleaseAction::Free);
        Op::Release(Release { claim, action, next: None, history: 0 })
    }
}
