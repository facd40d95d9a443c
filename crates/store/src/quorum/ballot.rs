//! An acquire on a quorum: votes in a first round, the token in a second, and the undo of a failed attempt.
//!
//! 1. The request goes to all nodes at once, each in its own task. A task continues when the outcome is known or the
//!    caller is gone: it raises the token of a late grant if the hold was won, and releases it otherwise.
//! 2. The token of a hold is the greatest granted by its majority. The hold counts once a majority that still has it
//!    has stored that token. Each later majority contains one of those nodes, and grants a greater token. A client
//!    that dies between the rounds has exposed no token.
//! 3. After a failed attempt, its hold is released at each node that granted it or may have granted it, until the node
//!    confirms that or the lease has expired there. The next attempt uses a new hold, so a late release cannot end it. A
//!    release is limited by the node's timeout, not by the caller's remaining time, which may be a millisecond.
//! 4. The nodes report how much longer they keep the hold. The caller counts the validity from before the first request,
//!    and releases a hold that is not valid any more when it is granted.

use super::BackgroundTasks;
use super::tally::{AcquireVotes, MajorityGrant, fence_of};
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::store::Store;
use leasehold_core::{
    Acquire, Acquired, Executed, FenceRaised, FencingToken, Lock, Op, RaiseFence, Release, ReleaseAction,
    Reply,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

/// The first pause between attempts to undo, which doubles up to the longest.
const FIRST_UNDO_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_UNDO_PAUSE: Duration = Duration::from_millis(500);

/// The state of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Votes are being counted.
    Voting,
    /// A majority has granted it; this is its token.
    Raising(FencingToken),
    /// The lock was acquired.
    Won(FencingToken),
    /// The lock was not acquired, or the caller is gone.
    Lost,
}

/// Results of a node's task.
#[allow(clippy::large_enum_variant, reason = "it is sent a few times, and then taken apart")]
enum NodeEvent {
    Voted(usize, Outcome),
    /// Whether the node has stored a token as great as the hold's, or the fault.
    FenceRaised(Result<FenceRaised, Fault>),
}

/// The acquire of one hold.
pub(super) struct Ballot<'a> {
    pub(super) nodes: &'a [Arc<dyn Store>],
    pub(super) needed: usize,
    pub(super) lock: &'a Lock,
    pub(super) request: Acquire,
    /// The time limit for both rounds.
    pub(super) within: Duration,
    /// The time limit for the reply of a node.
    pub(super) node_timeout: Duration,
    pub(super) background: &'a BackgroundTasks,
}

impl Ballot<'_> {
    pub(super) async fn run(self) -> Outcome {
        // Dropping it, wherever that happens, means that the attempt is lost (1).
        let (stage, seen) = watch::channel(Stage::Voting);
        let (sender, mut events) = mpsc::unbounded_channel();
        let Self { lock, within, node_timeout, .. } = self;
        let (begun, lease) = (Instant::now(), Duration::from_millis(self.request.lease_ms));
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, lock) = (node.clone(), lock.clone());
            let voter = Voter { at, node, lock, begun, within, node_timeout, lease };
            self.background.begin(voter.vote(self.request.clone(), seen.clone(), sender.clone())).await;
        }
        drop((seen, sender));

        // A re-entry may wait for the token, and leaves time for the second round.
        let token_by = begun + node_timeout.min(within) / 2;
        let mut votes = AcquireVotes::new(self.nodes.len());
        let granted = loop {
            let is_late = Instant::now() >= token_by;
            if let Some(granted) = votes.granted(is_late) {
                break granted;
            }
            if votes.is_lost() {
                return self.lost(&stage, votes.lost());
            }
            let event = if votes.granted(true).is_some() {
                timeout_at(token_by, events.recv()).await
            } else {
                Ok(events.recv().await)
            };
            match event {
                Ok(Some(NodeEvent::Voted(at, vote))) => votes.note(at, vote),
                Ok(Some(NodeEvent::FenceRaised(_))) | Err(_) => {}
                Ok(None) => return self.lost(&stage, votes.lost()),
            }
        };
        stage.send_replace(Stage::Raising(granted.fence));
        if let Err(why) = self.raise(&votes, &mut events).await {
            return self.lost(&stage, why);
        }
        let MajorityGrant { fence, remaining_ms, owner_holds } = granted;
        stage.send_replace(Stage::Won(fence));
        Outcome::Done(Reply::Acquire(Acquired::Granted {
            fence,
            remaining_ms,
            others_wait: false,
            owner_holds,
        }))
    }

    fn lost(&self, stage: &watch::Sender<Stage>, outcome: Outcome) -> Outcome {
        tracing::debug!(lock = %self.lock, "no majority");
        stage.send_replace(Stage::Lost);
        outcome
    }

    /// Waits until a majority has stored the token (2).
    async fn raise(
        &self,
        votes: &AcquireVotes,
        events: &mut mpsc::UnboundedReceiver<NodeEvent>,
    ) -> Result<(), Outcome> {
        let (mut raised, mut failed, mut faults) = (0, 0, Vec::new());
        while raised < self.needed {
            match events.recv().await {
                Some(NodeEvent::FenceRaised(Ok(FenceRaised::Raised))) => raised += 1,
                Some(NodeEvent::FenceRaised(Ok(FenceRaised::NotHeld))) => failed += 1,
                Some(NodeEvent::FenceRaised(Err(fault))) => {
                    failed += 1;
                    faults.push(fault);
                }
                // A late vote. The result of raising that node's token follows.
                Some(NodeEvent::Voted(..)) => {}
                None => failed = self.nodes.len(),
            }
            if failed > self.nodes.len() - self.needed {
                let fault = votes.fault_with(faults);
                return Err(Outcome::Failed(Executed::Unknown, fault));
            }
        }
        Ok(())
    }
}

/// The task of one node.
struct Voter {
    at: usize,
    node: Arc<dyn Store>,
    lock: Lock,
    begun: Instant,
    within: Duration,
    node_timeout: Duration,
    lease: Duration,
}

impl Voter {
    async fn vote(
        self,
        request: Acquire,
        mut stage: watch::Receiver<Stage>,
        sender: mpsc::UnboundedSender<NodeEvent>,
    ) {
        let claim = request.claim.clone();
        let op = Op::Acquire(request);
        let vote = self.send(&op).await;
        let over_at = Instant::now() + self.lease + self.node_timeout;
        let fence = fence_of(&vote);
        let may_be_there = fence.is_some() || matches!(vote, Outcome::Failed(Executed::Unknown, _));
        // The receiver is gone if the outcome is known.
        let _ = sender.send(NodeEvent::Voted(self.at, vote));

        let mut reached = until(&mut stage, |stage| stage != Stage::Voting).await;
        if let (Stage::Raising(greatest) | Stage::Won(greatest), Some(fence)) = (reached, fence) {
            let raised =
                self.raise(RaiseFence { claim: claim.clone(), fence: greatest, exact: false }, fence).await;
            let _ = sender.send(NodeEvent::FenceRaised(raised));
        } else {
            // Without a grant there is no token to raise.
            let _ = sender.send(NodeEvent::FenceRaised(Ok(FenceRaised::NotHeld)));
        }
        if matches!(reached, Stage::Raising(_)) {
            reached = until(&mut stage, |stage| matches!(stage, Stage::Won(_) | Stage::Lost)).await;
        }
        if reached == Stage::Lost && may_be_there {
            self.undo(Release { claim, action: ReleaseAction::Free, next: None, history: 0 }, over_at).await;
        }
    }

    /// A node that granted the greatest token itself has stored it.
    async fn raise(&self, raise: RaiseFence, own: FencingToken) -> Result<FenceRaised, Fault> {
        if own >= raise.fence {
            return Ok(FenceRaised::Raised);
        }
        match self.send(&Op::RaiseFence(raise)).await {
            Outcome::Done(Reply::RaiseFence(raised)) => Ok(raised),
            Outcome::Done(reply) => Err(Fault::unexpected_reply(reply)),
            Outcome::Failed(_, fault) => Err(fault),
        }
    }

    /// Releases the hold until that is known to have succeeded, or the hold has expired (3).
    async fn undo(&self, release: Release, over_at: Instant) {
        let op = Op::Release(release);
        let mut pause = FIRST_UNDO_PAUSE;
        let once = || self.node.execute(&self.lock, &op, self.node_timeout);
        while !matches!(once().await, Outcome::Done(_)) && Instant::now() + pause < over_at {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_UNDO_PAUSE);
        }
    }

    /// Sends an operation, limited by the node's timeout and the caller's remaining time.
    async fn send(&self, op: &Op) -> Outcome {
        let left = self.within.saturating_sub(self.begun.elapsed());
        self.node.execute(&self.lock, op, self.node_timeout.min(left)).await
    }
}

/// Waits until an attempt has reached a state. If the caller is gone it counts as lost, unless it was won.
async fn until(stage: &mut watch::Receiver<Stage>, is_so_far: impl Fn(Stage) -> bool) -> Stage {
    if let Ok(reached) = stage.wait_for(|stage| is_so_far(*stage)).await {
        return *reached;
    }
    match *stage.borrow() {
        won @ Stage::Won(_) => won,
        _ => Stage::Lost,
    }
}
