//! Combines the replies of all nodes to one operation.
//!
//! A pure function of the replies so far. [`QuorumStore`](super::QuorumStore) decides when to send and how long to
//! wait; [`ballot`](super::ballot) wins an acquire.
//!
//! 1. A statement is true if a majority reports it. It is false if so many nodes contradict it that no majority can
//!    report it any more. Otherwise it is unknown.
//! 2. A node that did not answer counts for neither side.

use crate::fault::{Fault, FaultKind, Phase};
use crate::outcome::Outcome;
use leasehold_core::{
    Acquired, Ended, Evicted, Executed, Extended, FencingToken, ForceReleased, HoldStatus, Holder,
    Inspection, Op, OwnerHolds, Refused, Released, Reply, Skipped, Votes,
};

/// The replies so far.
#[derive(Debug)]
pub(super) struct Tally {
    answers: Vec<Option<Outcome>>,
    needed: usize,
}

/// The result of the replies so far.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one, which is taken apart at once")]
pub(super) enum TallyResult {
    /// Further replies would not change it.
    Known(Reply),
    /// More replies are needed.
    Open,
}

impl Tally {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: vec![None; nodes], needed: majority(nodes) }
    }

    pub(super) fn note(&mut self, node: usize, answer: Outcome) {
        if let Some(noted) = self.answers.get_mut(node) {
            *noted = Some(answer);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.answers.iter().all(Option::is_some)
    }

    /// The result so far.
    pub(super) fn result(&self, op: &Op) -> TallyResult {
        let refused: Vec<_> = self.replies().filter_map(refused_of).collect();
        if let Some(refused) = most_frequent(refused).filter(|(_, count)| self.is_blocking_minority(*count)) {
            return TallyResult::Known(Reply::Refused(refused.0));
        }
        let known = match op {
            Op::Extend(_) => self.extend().map(Reply::Extend),
            Op::Release(_) => self.release().map(Reply::Release),
            Op::Inspect(inspect) => self.inspect(inspect.claim.is_some()).map(Reply::Inspect),
            Op::ForceRelease(_) => self.force_release().map(Reply::ForceRelease),
            Op::Evict(_) => self.evict().map(Reply::Evict),
            _ => None,
        };
        known.map_or(TallyResult::Open, TallyResult::Known)
    }

    /// The outcome if all replies are in and give no result: the nodes that failed, and whether the operation may
    /// have been executed.
    pub(super) fn failure(&self) -> Outcome {
        let executed = self.answers.iter().map(|answer| match answer {
            Some(Outcome::Failed(executed, _)) => *executed,
            Some(Outcome::Done(_)) | None => Executed::Unknown,
        });
        Outcome::Failed(executed.fold(Executed::No, Executed::or), self.fault())
    }

    /// The nodes that failed, and why.
    pub(super) fn fault(&self) -> Fault {
        let failed = self.answers.iter().filter_map(|answer| match answer {
            Some(Outcome::Failed(_, fault)) => Some(fault.clone()),
            Some(Outcome::Done(reply @ Reply::Refused(_))) => Some(Fault::unexpected_reply(reply.clone())),
            Some(Outcome::Done(_)) | None => None,
        });
        no_quorum(self.needed, self.answers.len(), failed.collect())
    }

    fn replies(&self) -> impl Iterator<Item = &Reply> {
        self.answers.iter().filter_map(|answer| match answer {
            Some(Outcome::Done(reply)) => Some(reply),
            _ => None,
        })
    }

    /// Whether so many nodes are left over that the others are no majority: a blocking minority.
    fn is_blocking_minority(&self, count: usize) -> bool {
        count > self.answers.len() - self.needed
    }

    /// The number of nodes whose reply is missing or unusable: each may still support any statement.
    fn undecided(&self) -> usize {
        self.answers.len() - self.replies().filter(|reply| refused_of(reply).is_none()).count()
    }

    /// The nodes that extended a hold, and those that lack it.
    pub(super) fn extended_at(&self) -> (Vec<usize>, Vec<usize>) {
        let replied = self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Some(Outcome::Done(Reply::Extend(extended))) => Some((node, *extended != Extended::NotHeld)),
            _ => None,
        });
        let (held, lacking): (Vec<_>, Vec<_>) = replied.partition(|(_, held)| *held);
        let nodes = |of: Vec<(usize, bool)>| of.into_iter().map(|(node, _)| node).collect();
        (nodes(held), nodes(lacking))
    }

    fn votes(&self, held: usize) -> Votes {
        let count = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        Votes { held: count(held), nodes: count(self.answers.len()) }
    }

    fn extend(&self) -> Option<Extended> {
        let count = |held: bool| {
            let is = |reply: &&Reply| matches!(reply, Reply::Extend(extended) if (*extended != Extended::NotHeld) == held);
            self.replies().filter(is).count()
        };
        match () {
            // The other votes say how many stand, and which nodes lack the hold.
            () if count(true) >= self.needed && self.is_complete() => {
                Some(Extended::Voted(self.votes(count(true))))
            }
            () if self.is_blocking_minority(count(false)) => Some(Extended::NotHeld),
            () => None,
        }
    }

    fn release(&self) -> Option<Released> {
        let replies = || {
            self.replies().filter_map(|reply| match reply {
                Reply::Release(released) => Some(released),
                _ => None,
            })
        };
        let status = self.hold_status(replies().map(|released| released.status))?;
        // A node that lacks some of the owner's holds reports fewer.
        let remaining_holds = replies().map(|released| released.remaining_holds).max().unwrap_or(0);
        let holder = replies().filter_map(|released| released.holder.clone());
        let holder = if status == HoldStatus::Superseded {
            most_held(holder, is_same_hold).map(|(holder, _)| holder)
        } else {
            None
        };
        let next_waiter = replies().find_map(|released| released.next_waiter);
        Some(Released { status, remaining_holds, holder, next_waiter, next: None })
    }

    /// Combines the states of a hold reported by the nodes (1).
    ///
    /// A node that never granted it reports that it does not know the hold, or that another client holds the lock. So
    /// a hold without a majority has the state that most nodes report, and its end is the one that any node reports.
    fn hold_status(&self, statuses: impl Iterator<Item = HoldStatus>) -> Option<HoldStatus> {
        let statuses: Vec<_> = statuses.collect();
        let count = |hold_status| statuses.iter().filter(|found| **found == hold_status).count();
        let (held, released) = (count(HoldStatus::Held), count(HoldStatus::Ended(Ended::Released)));
        if held >= self.needed {
            return Some(HoldStatus::Held);
        }
        if released > 0 && held + released >= self.needed {
            // By this release, or by an earlier attempt.
            return Some(HoldStatus::Ended(Ended::Released));
        }
        if held + self.undecided() >= self.needed {
            return None;
        }
        let most = |of: &[HoldStatus]| {
            of.iter()
                .copied()
                .max_by_key(|hold_status| count(*hold_status))
                .filter(|hold_status| count(*hold_status) > 0)
        };
        let ended = [Ended::Released, Ended::Evicted, Ended::ForceReleased].map(HoldStatus::Ended);
        most(&ended)
            .or_else(|| most(&[HoldStatus::Forgotten, HoldStatus::Vanished, HoldStatus::Superseded]))
            .or(Some(HoldStatus::Forgotten))
    }

    fn inspect(&self, requested: bool) -> Option<Inspection> {
        let seen: Vec<_> = self
            .replies()
            .filter_map(|reply| match reply {
                Reply::Inspect(seen) => Some(seen),
                _ => None,
            })
            .collect();
        let hold_status = if requested {
            Some(self.hold_status(seen.iter().filter_map(|seen| seen.hold_status))?)
        } else {
            None
        };
        let holders: Vec<_> = seen.iter().filter_map(|seen| seen.holder.clone()).collect();
        let (holder, votes) = most_held(holders.iter().cloned(), is_same).unzip();
        let votes = votes.unwrap_or(0);
        // An inspection waits for all replies: three of five do not determine until when a majority keeps it.
        if seen.len() < self.needed || !self.is_complete() {
            return None;
        }
        // A holder that may have a majority is reported; the lock is reported free only if that is certain.
        let may_hold = votes + self.undecided() >= self.needed;
        let holder = holder.filter(|_| may_hold).map(|holder| self.with_majority_expiry(holder, &holders));
        let votes = holder.as_ref().map(|_| self.votes(votes));
        let blocked_ms = if holder.is_none() { self.blocked_ms(&seen) } else { None };
        let foreign_fingerprint =
            most_frequent(seen.iter().filter_map(|seen| seen.foreign_fingerprint).collect());
        let mut skipped = Skipped::default();
        for inspection in &seen {
            skipped.merge(inspection.skipped.clone());
        }
        // Each node has a line of its own, which is a hint: the longest has missed the fewest waiters.
        let queue =
            seen.iter().map(|seen| &seen.queue).max_by_key(|queue| queue.len()).cloned().unwrap_or_default();
        Some(Inspection {
            holder,
            waiters: queue.len() as u64,
            queue,
            hold_status,
            foreign_fingerprint: foreign_fingerprint
                .filter(|(_, count)| *count >= self.needed)
                .map(|(foreign_fingerprint, _)| foreign_fingerprint),
            audit: seen.iter().map(|seen| seen.audit.clone()).max_by_key(Vec::len).unwrap_or_default(),
            // Each node has a hold of its own for each attempt, so they keep no history.
            history: Vec::new(),
            shared_holders: Vec::new(),
            limit: None,
            agreed: None,
            votes,
            blocked_ms,
            skipped,
        })
    }

    /// How long it takes until a majority can grant a lock without a holder, if it cannot now.
    fn blocked_ms(&self, seen: &[&Inspection]) -> Option<u64> {
        let blocked = seen.iter().map(|seen| {
            let held = seen.holder.as_ref().map(|holder| holder.remaining_ms.unwrap_or(u64::MAX));
            held.unwrap_or(0).max(seen.blocked_ms.unwrap_or(0))
        });
        let mut blocked: Vec<_> = blocked.collect();
        blocked.sort_unstable();
        blocked.get(self.needed - 1).copied().filter(|blocked| *blocked > 0)
    }

    /// The holder, with the time left until it loses its majority.
    fn with_majority_expiry(&self, holder: Holder, all: &[Holder]) -> Holder {
        let own = all.iter().filter(|other| is_same(other, &holder));
        let left = own.clone().map(|other| other.remaining_ms.unwrap_or(u64::MAX));
        let left = self.majority_value(left.collect()).filter(|left| *left != u64::MAX);
        let fence = self.fence_of(own.clone().filter_map(|other| other.fence).collect());
        let count = own.clone().map(|other| other.count).max().unwrap_or(1);
        let since_ms = own.filter_map(|other| other.since_ms).min();
        Holder { remaining_ms: left, fence, count, since_ms, ..holder }
    }

    /// The token of a holder: a node that did not receive it reports a smaller one, and one that granted late a
    /// greater one. If not all nodes report the holder, it is the token that most report.
    fn fence_of(&self, reported: Vec<FencingToken>) -> Option<FencingToken> {
        if reported.len() == self.answers.len() {
            return self.majority_value(reported);
        }
        let count = |fence: FencingToken| reported.iter().filter(|other| **other == fence).count();
        reported.iter().copied().max_by_key(|fence| (count(*fence), *fence))
    }

    /// The greatest value that a majority reaches, or the smallest if there is no majority.
    fn majority_value<T: Ord + Copy>(&self, mut all: Vec<T>) -> Option<T> {
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(self.needed - 1).or(all.last()).copied()
    }

    fn force_release(&self) -> Option<ForceReleased> {
        let force_released = self
            .replies()
            .filter(|reply| matches!(reply, Reply::ForceRelease(ForceReleased::Released)))
            .count();
        let changed: Vec<_> = self
            .replies()
            .filter_map(|reply| match reply {
                Reply::ForceRelease(ForceReleased::Changed { holder }) => Some(holder.clone()),
                _ => None,
            })
            .collect();
        match () {
            () if force_released >= self.needed => Some(ForceReleased::Released),
            () if self.is_blocking_minority(changed.len()) => {
                let holder = most_held(changed.into_iter().flatten(), is_same_hold).map(|(holder, _)| holder);
                Some(ForceReleased::Changed { holder })
            }
            () => None,
        }
    }

    fn evict(&self) -> Option<Evicted> {
        let alive = self.replies().filter(|reply| matches!(reply, Reply::Evict(Evicted::Alive))).count();
        let gone: Vec<_> = self
            .replies()
            .filter_map(|reply| match reply {
                Reply::Evict(Evicted::Removed { fence, was_queued }) => Some((*fence, *was_queued)),
                _ => None,
            })
            .collect();
        match () {
            () if gone.len() >= self.needed => {
                let fence = gone.iter().filter_map(|(fence, _)| *fence).max();
                Some(Evicted::Removed { fence, was_queued: gone.iter().any(|(_, was_queued)| *was_queued) })
            }
            () if self.is_blocking_minority(alive) => Some(Evicted::Alive),
            () => None,
        }
    }
}

/// The votes on an acquire.
#[derive(Debug)]
pub(super) struct AcquireVotes {
    tally: Tally,
}

/// What a majority has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MajorityGrant {
    /// The greatest token granted.
    pub(super) fence: FencingToken,
    /// How much longer a majority keeps the hold.
    pub(super) remaining_ms: u64,
    pub(super) owner_holds: Option<OwnerHolds>,
}

impl AcquireVotes {
    pub(super) fn new(nodes: usize) -> Self {
        Self { tally: Tally::new(nodes) }
    }

    pub(super) fn note(&mut self, node: usize, vote: Outcome) {
        self.tally.note(node, vote);
    }

    /// The grant of a majority, as soon as there is one and its token is known. With `is_late` the token need not wait for
    /// further votes.
    pub(super) fn granted(&self, is_late: bool) -> Option<MajorityGrant> {
        let grants: Vec<_> = self.acquired().filter_map(granted).collect();
        let mut left: Vec<_> = grants.iter().map(|granted| granted.remaining_ms).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let remaining_ms = *left.get(self.tally.needed - 1)?;
        let owner_holds = grants.iter().filter_map(|granted| granted.owner_holds);
        let owner_holds = owner_holds
            .reduce(|a, b| OwnerHolds { count: a.count.max(b.count), lease_ms: a.lease_ms.max(b.lease_ms) });
        Some(MajorityGrant { remaining_ms, fence: self.fence_of(&grants, is_late)?, owner_holds })
    }

    /// The token of these grants: the greatest, but that of the holds the owner has already if a majority reports it. A
    /// node that granted the first hold late has a greater one. So a re-entry waits for the other votes while the tokens
    /// differ.
    ///
    /// A majority with the same token has held the lock for this owner since that token was granted: another client would
    /// have needed one of these nodes, and left a greater token there. With fewer, only the greatest token is certain
    /// to exceed those of other clients.
    fn fence_of(&self, grants: &[MajorityGrant], is_late: bool) -> Option<FencingToken> {
        let reentered =
            grants.iter().filter(|granted| granted.owner_holds.is_some_and(|holds| holds.count > 1));
        let tokens: Vec<_> = reentered.map(|granted| granted.fence).collect();
        let is_reentry = !tokens.is_empty();
        match most_frequent(tokens) {
            Some((fence, count)) if count >= self.tally.needed => Some(fence),
            _ if is_reentry && !is_late && !self.tally.is_complete() => None,
            _ => grants.iter().map(|granted| granted.fence).max(),
        }
    }

    /// Whether no majority can grant it any more.
    pub(super) fn is_lost(&self) -> bool {
        let against = self
            .tally
            .answers
            .iter()
            .flatten()
            .filter(|answer| !matches!(answer, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))));
        self.tally.is_blocking_minority(against.count())
    }

    /// The outcome of a lost acquire.
    ///
    /// It reports that the lock is held, unless the failures alone would have lost it: then the nodes that failed,
    /// and why. It reports the operation as not executed only if no majority can have granted it, late or early;
    /// grants by a minority are undone.
    pub(super) fn lost(&self) -> Outcome {
        let refused: Vec<_> = self.tally.replies().filter_map(refused_of).collect();
        if let Some((refused, count)) = most_frequent(refused)
            && self.tally.is_blocking_minority(count)
        {
            return Outcome::Done(Reply::Refused(refused));
        }
        let already_ended = self.acquired().filter_map(|acquired| match acquired {
            Acquired::AlreadyEnded(how) => Some(*how),
            _ => None,
        });
        if let Some((how, count)) = most_frequent(already_ended.collect())
            && self.tally.is_blocking_minority(count)
        {
            return Outcome::Done(Reply::Acquire(Acquired::AlreadyEnded(how)));
        }
        let failed = |unknown: bool| {
            let is = |answer: &&Outcome| match answer {
                Outcome::Failed(Executed::No, _) | Outcome::Done(Reply::Refused(_)) => true,
                Outcome::Failed(Executed::Unknown, _) => unknown,
                Outcome::Done(_) => false,
            };
            self.tally.answers.iter().flatten().filter(is).count()
        };
        if !self.tally.is_blocking_minority(failed(true)) {
            return Outcome::Done(Reply::Acquire(self.taken()));
        }
        let certain = self.acquired().filter(|acquired| granted(acquired).is_none()).count() + failed(false);
        let fault = self.tally.fault();
        let executed =
            if self.tally.is_blocking_minority(certain) { Executed::No } else { Executed::Unknown };
        Outcome::Failed(executed, fault)
    }

    /// Reports the present holder, or none if the votes were split.
    pub(super) fn taken(&self) -> Acquired {
        let holders = || {
            self.acquired().filter_map(|acquired| match acquired {
                Acquired::Taken { holder, .. } => holder.clone(),
                _ => None,
            })
        };
        let undecided = self.tally.undecided();
        // Split votes have different tokens.
        let most =
            most_held(holders(), is_same_hold).filter(|(_, votes)| votes + undecided >= self.tally.needed);
        let holder = most.map(|(holder, _)| {
            // It can be acquired once so many nodes are free that they are a majority.
            let mut left: Vec<_> = holders().map(|holder| holder.remaining_ms.unwrap_or(u64::MAX)).collect();
            left.resize(self.tally.answers.len() - undecided, 0);
            left.sort_unstable();
            let left = left.get(self.tally.needed - 1).or(left.last()).copied();
            Holder { remaining_ms: left.filter(|left| *left != u64::MAX), ..holder }
        });
        Acquired::Taken { holder, position: None, predecessor: None, other_holders: Vec::new() }
    }

    /// The fault of a failed second round, with the faults of both rounds.
    pub(super) fn fault_with(&self, second: Vec<Fault>) -> Fault {
        let Fault { kind, .. } = self.tally.fault();
        let first = if let FaultKind::NoQuorum { nodes, .. } = kind { nodes } else { Vec::new() };
        no_quorum(self.tally.needed, self.tally.answers.len(), first.into_iter().chain(second).collect())
    }

    fn acquired(&self) -> impl Iterator<Item = &Acquired> {
        self.tally.replies().filter_map(|reply| match reply {
            Reply::Acquire(acquired) => Some(acquired),
            _ => None,
        })
    }
}

/// The smallest number that is more than half.
pub(super) const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

fn granted(acquired: &Acquired) -> Option<MajorityGrant> {
    match acquired {
        Acquired::Granted { fence, remaining_ms, owner_holds, .. } => {
            Some(MajorityGrant { fence: *fence, remaining_ms: *remaining_ms, owner_holds: *owner_holds })
        }
        _ => None,
    }
}

/// The token that a reply grants, if any.
pub(super) fn fence_of(vote: &Outcome) -> Option<FencingToken> {
    match vote {
        Outcome::Done(Reply::Acquire(acquired)) => granted(acquired).map(|granted| granted.fence),
        _ => None,
    }
}

pub(super) fn no_quorum(needed: usize, total: usize, nodes: Vec<Fault>) -> Fault {
    Fault::new(FaultKind::NoQuorum { needed, total, nodes }, Phase::Reply, "the quorum")
}

fn refused_of(reply: &Reply) -> Option<Refused> {
    match reply {
        Reply::Refused(refused) => Some(refused.clone()),
        _ => None,
    }
}

/// Whether two nodes report the same holder. Ignores times and tokens, which may differ between nodes.
fn is_same(one: &Holder, other: &Holder) -> bool {
    let known = |holder: &Holder| (holder.label.clone(), holder.owner.clone(), holder.in_cooldown);
    known(one) == known(other)
}

/// Whether it is the same hold as well, as far as all nodes know its token.
fn is_same_hold(one: &Holder, other: &Holder) -> bool {
    one.fence == other.fence && is_same(one, other)
}

/// The holder that most nodes report, and how many do.
fn most_held(
    holders: impl Iterator<Item = Holder>,
    is_same: fn(&Holder, &Holder) -> bool,
) -> Option<(Holder, usize)> {
    let holders: Vec<_> = holders.collect();
    let count = |holder: &Holder| holders.iter().filter(|other| is_same(other, holder)).count();
    let most = holders.iter().max_by_key(|holder| (count(holder), holder.fence))?;
    Some((most.clone(), count(most)))
}

fn most_frequent<T: PartialEq>(all: Vec<T>) -> Option<(T, usize)> {
    let count = |one: &T| all.iter().filter(|other| *other == one).count();
    let most = all.iter().map(count).max()?;
    let at = all.iter().position(|one| count(one) == most)?;
    all.into_iter().nth(at).map(|one| (one, most))
}

#[cfg(test)]
mod tests;
