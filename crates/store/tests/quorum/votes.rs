//! Quorum operations, one by one.

use crate::node::{Node, NodeFault};
use crate::{FiveNodes, acquire, claim};
use leasehold_core::{
    Acquired, Claim, Ended, Enqueue, Extended, ForceRelease, ForceReleased, HoldStatus, Kind, Label, Lock,
    Nonce, ObservedHolder, Op, OwnValue, Reply, Votes,
};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use std::collections::BTreeSet;
use std::time::Duration;

/// R5: a minority of nodes may be down.
#[tokio::test]
async fn a_majority_grants_and_releases() {
    let five = FiveNodes::new();
    five.nodes[0].set(NodeFault::Down);
    five.nodes[3].set(NodeFault::RequestsLost);
    let (one, other) = (claim(), claim());
    let first = five.granted(&one).await;
    five.taken(&other).await;
    assert_eq!(five.extend(&one).await.unwrap(), Extended::Voted(Votes { held: 3, nodes: 5 }));
    assert_eq!(five.inspect().await.holder.unwrap().fence, Some(first));
    assert_eq!(five.release(&one).await.unwrap().status, HoldStatus::Held);
    assert!(five.inspect().await.holder.is_none());
    assert!(five.granted(&claim()).await > first);
}

/// Row 41: the error names each node's reason, and does not claim that nothing was executed where something may have
/// been.
#[tokio::test]
async fn without_a_majority_the_fault_of_each_node_is_reported() {
    let five = FiveNodes::new();
    for node in [0, 2] {
        five.nodes[node].set(NodeFault::Down);
    }
    five.nodes[4].set(NodeFault::RequestsLost);
    let one = claim();
    let Outcome::Failed(Executed::Unknown, fault) = five.acquire(&one).await else {
        panic!("a node may have got it late")
    };
    let FaultKind::NoQuorum { needed: 3, total: 5, nodes } = &fault.kind else { panic!("{fault}") };
    let mut reported: Vec<_> = nodes.iter().map(|fault| (&*fault.node, fault.kind.clone())).collect();
    reported.sort_by_key(|(node, _)| *node);
    let expected = [("a", FaultKind::Unreachable), ("c", FaultKind::Unreachable), ("e", FaultKind::TimedOut)];
    assert_eq!(reported, expected);
    assert!(fault.is_transient());
    let text = fault.to_string();
    assert!(
        text.contains("reply from a: cannot be reached") && text.contains("e: no answer in time"),
        "{text}"
    );
    five.until_gone(&one).await;

    five.nodes[4].set(NodeFault::Down);
    let outcome = five.acquire(&claim()).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::No, _)), "three have refused it: {outcome:?}");
}

/// Holds of a minority are undone, even at a node that was slow, and when no caller waits any more.
#[tokio::test]
async fn what_was_lost_is_undone_at_every_node() {
    let five = FiveNodes::new();
    let holder = claim();
    five.granted(&holder).await;
    // Two nodes forget the hold, and grant the lock to the next client.
    five.nodes[1].flush();
    five.nodes[2].flush();
    five.nodes[2].set(NodeFault::Slow(Duration::from_millis(20)));
    let loser = claim();
    five.taken(&loser).await;
    five.until_gone(&loser).await;
    let start = tokio::time::Instant::now();
    while !five.nodes[2]
        .received()
        .iter()
        .any(|op| matches!(op, Op::Release(release) if release.claim == loser))
    {
        assert!(start.elapsed() < Duration::from_secs(20), "the slow node is not asked to undo the hold");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    five.until_gone(&loser).await;

    let (five, dropped) = (FiveNodes::new(), claim());
    five.nodes.iter().for_each(|node| node.set(NodeFault::Slow(Duration::from_millis(10))));
    let asked = tokio::time::timeout(Duration::from_millis(1), five.acquire(&dropped)).await;
    assert!(asked.is_err());
    let start = tokio::time::Instant::now();
    let undone = |op: &Op| matches!(op, Op::Release(release) if release.claim == dropped);
    while !five.nodes.iter().all(|node| node.received().iter().any(undone)) {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not undone everywhere");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    five.until_gone(&dropped).await;
}

/// The undo of an attempt with a very short timeout uses the node's own timeout.
#[tokio::test]
async fn an_undo_has_more_time_than_its_caller() {
    let mut five = FiveNodes::new();
    five.quorum = five.quorum.node_timeout(Duration::from_secs(20));
    five.nodes.iter().for_each(|node| node.set(NodeFault::Slow(Duration::from_millis(20))));
    for within in [Duration::ZERO, Duration::from_micros(50), Duration::from_millis(1)] {
        let hasty = claim();
        let outcome = five.quorum.execute(&five.lock, &Op::Acquire(acquire(&hasty)), within).await;
        assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
        five.quorum.flush().await;
        assert!(!five.statuses(&hasty).await.contains(&HoldStatus::Held), "it is undone");
        let undone = |op: &&Op| matches!(op, Op::Release(release) if release.claim == hasty);
        let times = five.nodes.iter().map(|node| node.received().iter().filter(undone).count());
        assert_eq!(times.collect::<Vec<_>>(), [1; 5], "each was waited for");
    }
}

/// A re-entry that waits for the votes of mute nodes leaves time for the second round.
#[tokio::test(start_paused = true)]
async fn a_re_entry_does_not_wait_for_mute_nodes_until_its_deadline() {
    let mut five = FiveNodes::with_clocks_ahead([0, 0, 0, 2, 4].map(Duration::from_secs));
    five.lock = Lock::reentrant("tree".parse().unwrap());
    let owned = || Claim { value: OwnValue::new("owner").ok(), ..claim() };
    let slow = NodeFault::Slow(Duration::from_millis(20));
    five.nodes[3..].iter().for_each(|node| node.set(slow));
    let first = five.granted(&owned()).await;
    five.quorum.flush().await;

    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    five.nodes[..2].iter().for_each(|node| node.set(NodeFault::RequestsLost));
    let within = Duration::from_millis(50);
    let again = Op::Acquire(acquire(&owned()));
    let start = tokio::time::Instant::now();
    let outcome = five.quorum.execute(&five.lock, &again, within).await;
    let Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) = outcome else {
        panic!("{outcome:?}")
    };
    assert!(start.elapsed() <= within / 2, "in virtual time: {:?}", start.elapsed());
    assert!(fence > first, "no majority reports the token of the first");
}

/// Row 40: the second round uses the time that the first leaves.
#[tokio::test(start_paused = true)]
async fn both_rounds_end_by_the_deadline() {
    // Two of the three nodes that vote must receive the token of the third.
    let five = FiveNodes::with_clocks_ahead([2, 1, 0, 0, 0].map(Duration::from_secs));
    for (at, node) in five.nodes.iter().enumerate() {
        node.set(if at < 3 { NodeFault::Slow(Duration::from_millis(40)) } else { NodeFault::Down });
    }
    let start = tokio::time::Instant::now();
    let acquire = Op::Acquire(acquire(&claim()));
    let outcome = five.quorum.execute(&five.lock, &acquire, Duration::from_millis(60)).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    assert_eq!(start.elapsed(), Duration::from_millis(60));
}

/// `flush` waits for the nodes that no call had to wait for.
#[tokio::test]
async fn flush_waits_for_requests_behind_a_reply() {
    let five = FiveNodes::new();
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::Delayed(Duration::from_millis(30)));
    }
    let (one, two) = (claim(), claim());
    five.granted(&one).await;
    five.quorum.flush().await;
    assert_eq!(five.statuses(&one).await, [HoldStatus::Held; 5]);
    five.taken(&two).await;
    five.release(&one).await.unwrap();
    five.quorum.fork().flush().await;
    assert!(
        !five.statuses(&one).await.contains(&HoldStatus::Held)
            && !five.statuses(&two).await.contains(&HoldStatus::Held)
    );
}

/// Work that begins later is not awaited; otherwise the wait might never end.
#[tokio::test]
async fn flush_does_not_wait_for_later_requests() {
    let five = FiveNodes::new();
    five.nodes[4].set(NodeFault::Delayed(Duration::from_millis(40)));
    let chatter = async {
        loop {
            five.inspect().await;
        }
    };
    let others = futures_util::future::join(chatter, async {
        loop {
            tokio::time::sleep(Duration::from_millis(7)).await;
            five.inspect().await;
        }
    });
    let settled = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        for _ in 0..5 {
            tokio::time::timeout(Duration::from_secs(5), five.quorum.flush()).await.expect("the flush ends");
        }
    };
    tokio::select! {
        _ = others => {}
        () = settled => {}
    }
}

/// A node whose reply was lost may have granted the hold, so it is undone there.
#[tokio::test]
async fn a_node_whose_reply_was_lost_is_sent_a_release() {
    let five = FiveNodes::new();
    five.nodes[0].set(NodeFault::RepliesLost);
    for node in [1, 2, 3] {
        five.nodes[node].set(NodeFault::Down);
    }
    let lost = claim();
    let outcome = five.acquire(&lost).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::No, _)), "three have refused it: {outcome:?}");
    five.until_gone(&lost).await;
}

/// N5: the token is the greatest of a majority, and afterwards every node that granted the lock has it, so that the
/// next token is greater whichever nodes vote.
#[tokio::test]
async fn tokens_grow_over_whatever_majority_votes() {
    let hours = |n: u64| Duration::from_secs(n * 3600);
    let five = FiveNodes::with_clocks_ahead([hours(0), hours(5), hours(2), hours(9), hours(1)]);
    let mut last = None;
    for down in [[3, 4], [0, 1], [1, 3], [0, 2], [3, 4], [2, 3], [0, 1]] {
        five.nodes.iter().for_each(|node| node.set(NodeFault::None));
        for node in down {
            five.nodes[node].set(NodeFault::Down);
        }
        let one = claim();
        let fence = five.granted(&one).await;
        assert!(last < Some(fence), "{last:?}, then {fence:?} without {down:?}");
        let stored = five.fences().await.into_iter().filter(|stored| *stored == Some(fence)).count();
        assert!(stored >= 3, "{stored} nodes have it");
        assert_eq!(five.release(&one).await.unwrap().status, HoldStatus::Held);
        last = Some(fence);
    }
}

/// N5: the second round counts only nodes that still have the hold.
#[tokio::test]
async fn a_hold_that_was_lost_between_the_rounds_is_not_given() {
    // The greatest token of the first round is that of a node that has no second round.
    let five = FiveNodes::with_clocks_ahead([3600, 0, 0, 0, 0].map(Duration::from_secs));
    for node in [1, 2] {
        five.nodes[node].set(NodeFault::RestartsBeforeRaise);
    }
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::Down);
    }
    let one = claim();
    let outcome = five.acquire(&one).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    five.until_gone(&one).await;
}

/// Row 12: a failed extend over a minority releases nothing, and acquires at no node; one over a majority does.
#[tokio::test]
async fn row_12_a_failed_extend_gives_nothing_back() {
    let five = FiveNodes::new();
    let one = claim();
    five.granted(&one).await;
    five.nodes[0].flush();
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::RequestsLost);
    }
    let fault = five.extend(&one).await.expect_err("two have it, two are silent");
    assert!(matches!(&fault.kind, FaultKind::NoQuorum { nodes, .. } if nodes.len() == 2), "{fault}");
    let held = five.statuses(&one).await.into_iter().filter(|fate| *fate == HoldStatus::Held).count();
    assert_eq!(held, 4, "an extend neither acquires nor releases");
    let releases = five.nodes.iter().flat_map(Node::received);
    assert!(!releases.into_iter().any(|op| matches!(op, Op::Release(_))));

    // The silent nodes are back, and extends succeed again.
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    assert_eq!(five.extend(&one).await.unwrap(), Extended::Voted(Votes { held: 5, nodes: 5 }));
    for node in [1, 2, 3] {
        five.nodes[node].flush();
    }
    assert_eq!(five.extend(&one).await.unwrap(), Extended::NotHeld, "a majority reports it");
}

#[tokio::test]
async fn the_result_of_a_release_is_not_guessed() {
    let five = FiveNodes::new();
    let one = claim();
    five.granted(&one).await;
    five.nodes[0].flush();
    five.nodes[1].flush();
    five.nodes[2].set(NodeFault::RequestsLost);
    assert!(five.release(&one).await.is_err(), "two nodes had the hold, and one is silent");
    five.nodes[2].set(NodeFault::None);
    let found = five.release(&one).await.unwrap().status;
    assert_eq!(found, HoldStatus::Ended(Ended::Released), "by the first sending at two, and now");

    let two = claim();
    five.granted(&two).await;
    five.nodes.iter().for_each(Node::flush);
    assert_eq!(five.release(&two).await.unwrap().status, HoldStatus::Forgotten);
}

#[tokio::test]
async fn the_holder_of_a_majority_is_reported_and_can_be_forced_to_release() {
    let five = FiveNodes::new();
    let one = claim();
    let fence = five.granted(&one).await;
    five.nodes[4].flush();
    let (observed, actor) = (ObservedHolder::Hold(fence), Label::new("the night shift").unwrap());
    let force_released = five.execute(Op::ForceRelease(ForceRelease { observed, actor })).await;
    assert!(
        matches!(force_released, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))),
        "{force_released:?}"
    );
    assert!(five.inspect().await.holder.is_none());
    assert_eq!(five.extend(&one).await.unwrap(), Extended::NotHeld);
}

/// A holder is found even if some nodes did not receive the raised token, and others report a greater one late.
#[tokio::test]
async fn the_holder_is_reported_whatever_tokens_the_nodes_have() {
    let five = FiveNodes::with_clocks_ahead([0, 0, 0, 3600, 7200].map(Duration::from_secs));
    for node in [0, 1, 2] {
        five.nodes[node].set(NodeFault::RaisesLost);
    }
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::Delayed(Duration::from_millis(20)));
    }
    let one = claim();
    let fence = five.granted(&one).await;
    five.quorum.flush().await;
    let stored: BTreeSet<_> = five.fences().await.into_iter().collect();
    assert_eq!(stored.len(), 5, "each has its own: {stored:?}");
    assert_eq!(five.inspect().await.holder.map(|holder| holder.fence), Some(Some(fence)));
    let error = five.acquire(&claim()).await;
    let Outcome::Done(Reply::Acquire(Acquired::Taken { holder: Some(_), .. })) = error else {
        panic!("{error:?}")
    };
}

/// Clients do not queue at nodes: a node could grant a queue entry to a client without a majority.
#[tokio::test]
async fn nodes_keep_no_queue() {
    let five = FiveNodes::new();
    five.granted(&claim()).await;
    let queue = Some(Enqueue { nonce: Nonce::new(0, 7), ttl_ms: 60_000 });
    let outcome = five.execute(Op::Acquire(leasehold_core::Acquire { queue, ..acquire(&claim()) })).await;
    let Outcome::Done(Reply::Acquire(Acquired::Taken { position: None, holder: Some(_), .. })) = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(five.inspect().await.waiters, 0);
}

#[tokio::test]
async fn kinds_that_votes_cannot_grant_are_refused() {
    let five = FiveNodes::new();
    for kind in Kind::ALL {
        let lock = Lock { kind, name: "job".parse().unwrap() };
        let served = matches!(kind, Kind::Mutex | Kind::Reentrant);
        assert_eq!(five.quorum.check(&lock).is_ok(), served, "{kind:?}");
    }
}

/// A node that came back votes again after a fixed time: a hold kept for longer could be granted twice.
#[tokio::test]
async fn nothing_is_kept_for_longer_than_a_node_may_forget() {
    let mut five = FiveNodes::new();
    five.quorum = five.quorum.max_lease(Some(Duration::from_secs(30)));
    let one = claim();
    five.granted(&one).await;
    let extend = leasehold_core::Extend {
        claim: one.clone(),
        lease_ms: 30_001,
        keep_record: false,
        reserve: None,
        fence: None,
    };
    let outcome = five.execute(Op::Extend(extend)).await;
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("min_uptime"), "{fault}");
}
