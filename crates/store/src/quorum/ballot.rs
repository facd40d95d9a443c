//! An acquire: votes in a first round, the token in a second, and the undo of what was lost.
//!
//! 1. All nodes are asked at once, each in a task of its own, which goes on when the outcome is known or nobody waits for it
//!    any more: what it was given late has its token raised, if the hold was won, or is given back.
//! 2. The token of a hold is the greatest that a majority has given it, and the hold counts once a majority that still has
//!    it has stored that token. Each later majority has one of those in it, and gives a greater one. A client that dies between
//!    the rounds has told nobody of a token.
//! 3. What was lost is undone at each node that is not known to have refused, for as long as it could last there. The hold
//!    is nobody's afterwards: the next attempt has another, so that no undo of this one can hit it. An undo has its time from
//!    the node, and not from whoever asked: one who had a millisecond left would have it tried for a millisecond each time.
//! 4. How long it may be believed is counted from before the first question by whoever asked, who gives back what is over
//!    by then: the nodes say how long they had it yet when a majority gave it.

use super::Errands;
use super::tally::{Given, Votes, fence_of};
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::store::Store;
use leasehold_core::{
    Acquire, Acquired, Executed, FencingToken, Lock, Op, Pass, Raise, Raised, Release, Reply,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pauses between two tries to undo: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// How an attempt stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Votes are counted.
    Voting,
    /// A majority has given it, and its token is this.
    Raising(FencingToken),
    /// It was had.
    Won(FencingToken),
    /// It was not, or nobody waits for it any more.
    Lost,
}

/// What a node's task tells.
#[allow(clippy::large_enum_variant, reason = "it is sent a few times, and then taken apart")]
enum News {
    Voted(usize, Outcome),
    /// Whether its token is as great as that of the hold, or why nobody knows.
    Raised(Result<Raised, Fault>),
}

/// The election of one hold.
pub(super) struct Ballot<'a> {
    pub(super) nodes: &'a [Arc<dyn Store>],
    pub(super) needed: usize,
    pub(super) lock: &'a Lock,
    pub(super) ask: Acquire,
    /// How long both rounds may take.
    pub(super) within: Duration,
    /// How long one node may take to answer.
    pub(super) node_timeout: Duration,
    pub(super) errands: &'a Errands,
}

impl Ballot<'_> {
    pub(super) async fn hold(self) -> Outcome {
        // Dropping it, wherever that is, means that the attempt is lost (1).
        let (stage, seen) = watch::channel(Stage::Voting);
        let (tell, mut news) = mpsc::unbounded_channel();
        let Self { lock, within, node_timeout, .. } = self;
        let (begun, lease) = (Instant::now(), Duration::from_millis(self.ask.lease_ms));
        for (at, node) in self.nodes.iter().enumerate() {
            let (node, lock) = (node.clone(), lock.clone());
            let voter = Voter { at, node, lock, begun, within, node_timeout, lease };
            self.errands.begin(voter.vote(self.ask.clone(), seen.clone(), tell.clone())).await;
        }
        drop((seen, tell));

        let mut votes = Votes::new(self.nodes.len());
        let given = loop {
            if let Some(given) = votes.given() {
                break given;
            }
            if votes.is_lost() {
                return self.lost(&stage, votes.lost());
            }
            match news.recv().await {
                Some(News::Voted(at, vote)) => votes.note(at, vote),
                Some(News::Raised(_)) => {}
                None => return self.lost(&stage, votes.lost()),
            }
        };
        stage.send_replace(Stage::Raising(given.fence));
        if let Err(why) = self.raise(&votes, &mut news).await {
            return self.lost(&stage, why);
        }
        let Given { fence, remaining_ms, entered } = given;
        stage.send_replace(Stage::Won(fence));
        Outcome::Done(Reply::Acquire(Acquired::Granted { fence, remaining_ms, others_wait: false, entered }))
    }

    fn lost(&self, stage: &watch::Sender<Stage>, outcome: Outcome) -> Outcome {
        tracing::debug!(lock = %self.lock, "no majority");
        stage.send_replace(Stage::Lost);
        outcome
    }

    /// Waits until a majority has the token (2).
    async fn raise(&self, votes: &Votes, news: &mut mpsc::UnboundedReceiver<News>) -> Result<(), Outcome> {
        let (mut raised, mut failed, mut faults) = (0, 0, Vec::new());
        while raised < self.needed {
            match news.recv().await {
                Some(News::Raised(Ok(Raised::Raised))) => raised += 1,
                Some(News::Raised(Ok(Raised::NotHeld))) => failed += 1,
                Some(News::Raised(Err(fault))) => {
                    failed += 1;
                    faults.push(fault);
                }
                // It tells of its token next.
                Some(News::Voted(..)) => {}
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
    async fn vote(self, ask: Acquire, mut stage: watch::Receiver<Stage>, tell: mpsc::UnboundedSender<News>) {
        let claim = ask.claim.clone();
        let op = Op::Acquire(ask);
        let vote = self.ask(&op).await;
        let over_at = Instant::now() + self.lease + self.node_timeout;
        let fence = fence_of(&vote);
        let may_be_there = fence.is_some() || matches!(vote, Outcome::Failed(Executed::Unknown, _));
        // Nobody hears it if the outcome is known.
        let _ = tell.send(News::Voted(self.at, vote));

        let mut reached = until(&mut stage, |stage| stage != Stage::Voting).await;
        if let (Stage::Raising(greatest) | Stage::Won(greatest), Some(fence)) = (reached, fence) {
            let raised = self.raise(Raise { claim: claim.clone(), fence: greatest }, fence).await;
            let _ = tell.send(News::Raised(raised));
        } else {
            // Whoever did not give it has no token to raise.
            let _ = tell.send(News::Raised(Ok(Raised::NotHeld)));
        }
        if matches!(reached, Stage::Raising(_)) {
            reached = until(&mut stage, |stage| matches!(stage, Stage::Won(_) | Stage::Lost)).await;
        }
        if reached == Stage::Lost && may_be_there {
            self.undo(Release { claim, pass: Pass::Free, next: None }, over_at).await;
        }
    }

    /// One that has given the greatest token itself has stored it.
    async fn raise(&self, raise: Raise, own: FencingToken) -> Result<Raised, Fault> {
        if own >= raise.fence {
            return Ok(Raised::Raised);
        }
        match self.ask(&Op::Raise(raise)).await {
            Outcome::Done(Reply::Raise(raised)) => Ok(raised),
            Outcome::Done(reply) => Err(Fault::odd_reply(reply)),
            Outcome::Failed(_, fault) => Err(fault),
        }
    }

    /// Gives back what was lost, until that is known, or it is over by itself (3).
    async fn undo(&self, release: Release, over_at: Instant) {
        let op = Op::Release(release);
        let mut pause = PAUSE.0;
        let once = || self.node.execute(&self.lock, &op, self.node_timeout);
        while !matches!(once().await, Outcome::Done(_)) && Instant::now() + pause < over_at {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Asks the node, for no longer than it may take, and whoever waits.
    async fn ask(&self, op: &Op) -> Outcome {
        let left = self.within.saturating_sub(self.begun.elapsed());
        self.node.execute(&self.lock, op, self.node_timeout.min(left)).await
    }
}

/// Waits until an attempt is so far. Where nobody waits for it any more it is lost, unless it had been won.
async fn until(stage: &mut watch::Receiver<Stage>, is_so_far: impl Fn(Stage) -> bool) -> Stage {
    if let Ok(reached) = stage.wait_for(|stage| is_so_far(*stage)).await {
        return *reached;
    }
    match *stage.borrow() {
        won @ Stage::Won(_) => won,
        _ => Stage::Lost,
    }
}
