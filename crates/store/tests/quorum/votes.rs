//! Quorum operations, one by one.

use crate::node::{Mood, Node};
use crate::{Five, acquire, claim};
use leasehold_core::{
    Acquired, Ended, Enqueue, Extended, ForceRelease, ForceReleased, HoldStatus, Kind, Label, Lock, Nonce,
    ObservedHolder, Op, Reply,
};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use std::collections::BTreeSet;
use std::time::Duration;

/// R5: a minority of nodes may be down.
#[tokio::test]
async fn a_majority_gives_and_takes() {
    let five = Five::new();
    five.nodes[0].set(Mood::Down);
    five.nodes[3].set(Mood::Cut);
    let (one, other) = (claim(), claim());
    let first = five.granted(&one).await;
    five.taken(&other).await;
    assert_eq!(five.extend(&one).await.unwrap(), Extended::Extended);
    assert_eq!(five.inspect().await.holder.unwrap().fence, Some(first));
    assert_eq!(five.release(&one).await.unwrap().status, HoldStatus::Held);
    assert!(five.inspect().await.holder.is_none());
    assert!(five.granted(&claim()).await > first);
}

/// Row 41: the error names each node's reason, and does not claim that nothing was executed where something may have
/// been.
#[tokio::test]
async fn without_a_majority_each_node_says_why() {
    let five = Five::new();
    for node in [0, 2] {
        five.nodes[node].set(Mood::Down);
    }
    five.nodes[4].set(Mood::Cut);
    let one = claim();
    let Outcome::Failed(Executed::Unknown, fault) = five.acquire(&one).await else {
        panic!("a node may have got it late")
    };
    let FaultKind::NoQuorum { needed: 3, total: 5, nodes } = &fault.kind else { panic!("{fault}") };
    let mut told: Vec<_> = nodes.iter().map(|fault| (&*fault.node, fault.kind.clone())).collect();
    told.sort_by_key(|(node, _)| *node);
    let expected = [("a", FaultKind::Unreachable), ("c", FaultKind::Unreachable), ("e", FaultKind::TimedOut)];
    assert_eq!(told, expected);
    assert!(fault.is_transient());
    let text = fault.to_string();
    assert!(
        text.contains("reply from a: cannot be reached") && text.contains("e: no answer in time"),
        "{text}"
    );
    five.until_nowhere(&one).await;

    five.nodes[4].set(Mood::Down);
    let outcome = five.acquire(&claim()).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::No, _)), "three have refused it: {outcome:?}");
}

/// Holds of a minority are undone, even at a node that was slow, and when no caller waits any more.
#[tokio::test]
async fn what_was_lost_is_undone_at_every_node() {
    let five = Five::new();
    let holder = claim();
    five.granted(&holder).await;
    // Two nodes forget the hold, and grant the lock to the next client.
    five.nodes[1].flush();
    five.nodes[2].flush();
    five.nodes[2].set(Mood::Slow(Duration::from_millis(20)));
    let loser = claim();
    five.taken(&loser).await;
    five.until_nowhere(&loser).await;
    let start = tokio::time::Instant::now();
    while !five.nodes[2].sent().iter().any(|op| matches!(op, Op::Release(release) if release.claim == loser))
    {
        assert!(start.elapsed() < Duration::from_secs(20), "the slow node is not asked to undo the hold");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    five.until_nowhere(&loser).await;

    let (five, dropped) = (Five::new(), claim());
    five.nodes.iter().for_each(|node| node.set(Mood::Slow(Duration::from_millis(10))));
    let asked = tokio::time::timeout(Duration::from_millis(1), five.acquire(&dropped)).await;
    assert!(asked.is_err());
    let start = tokio::time::Instant::now();
    let undone = |op: &Op| matches!(op, Op::Release(release) if release.claim == dropped);
    while !five.nodes.iter().all(|node| node.sent().iter().any(undone)) {
        assert!(start.elapsed() < Duration::from_secs(20), "it is not undone everywhere");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    five.until_nowhere(&dropped).await;
}

/// The undo of an attempt with a very short timeout uses the node's own timeout.
#[tokio::test]
async fn an_undo_has_more_time_than_its_caller() {
    let mut five = Five::new();
    five.quorum = five.quorum.node_timeout(Duration::from_secs(20));
    five.nodes.iter().for_each(|node| node.set(Mood::Slow(Duration::from_millis(20))));
    for within in [Duration::ZERO, Duration::from_micros(50), Duration::from_millis(1)] {
        let hasty = claim();
        let outcome = five.quorum.execute(&five.lock, &Op::Acquire(acquire(&hasty)), within).await;
        assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
        five.quorum.flush().await;
        assert!(!five.fates(&hasty).await.contains(&HoldStatus::Held), "it is undone");
        let undone = |op: &&Op| matches!(op, Op::Release(release) if release.claim == hasty);
        let times = five.nodes.iter().map(|node| node.sent().iter().filter(undone).count());
        assert_eq!(times.collect::<Vec<_>>(), [1; 5], "each was waited for");
    }
}

/// Row 40: the second round uses the time that the first leaves.
#[tokio::test(start_paused = true)]
async fn both_rounds_end_by_the_deadline() {
    // Two of the three nodes that vote must receive the token of the third.
    let five = Five::ahead([2, 1, 0, 0, 0].map(Duration::from_secs));
    for (at, node) in five.nodes.iter().enumerate() {
        node.set(if at < 3 { Mood::Slow(Duration::from_millis(40)) } else { Mood::Down });
    }
    let start = tokio::time::Instant::now();
    let acquire = Op::Acquire(acquire(&claim()));
    let outcome = five.quorum.execute(&five.lock, &acquire, Duration::from_millis(60)).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    assert_eq!(start.elapsed(), Duration::from_millis(60));
}

/// `settle` waits for the nodes that no call had to wait for.
#[tokio::test]
async fn what_goes_on_behind_an_answer_is_settled() {
    let five = Five::new();
    for node in [3, 4] {
        five.nodes[node].set(Mood::Late(Duration::from_millis(30)));
    }
    let (one, two) = (claim(), claim());
    five.granted(&one).await;
    five.quorum.flush().await;
    assert_eq!(five.fates(&one).await, [HoldStatus::Held; 5]);
    five.taken(&two).await;
    five.release(&one).await.unwrap();
    five.quorum.fork().flush().await;
    assert!(
        !five.fates(&one).await.contains(&HoldStatus::Held)
            && !five.fates(&two).await.contains(&HoldStatus::Held)
    );
}

/// Work that begins later is not awaited; otherwise the wait might never end.
#[tokio::test]
async fn what_begins_later_is_not_settled() {
    let five = Five::new();
    five.nodes[4].set(Mood::Late(Duration::from_millis(40)));
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
            tokio::time::timeout(Duration::from_secs(5), five.quorum.flush()).await.expect("settling ends");
        }
    };
    tokio::select! {
        _ = others => {}
        () = settled => {}
    }
}

/// A node whose reply was lost may have granted the hold, so it is undone there.
#[tokio::test]
async fn a_node_whose_answer_was_lost_is_told_to_give_it_back() {
    let five = Five::new();
    five.nodes[0].set(Mood::Mute);
    for node in [1, 2, 3] {
        five.nodes[node].set(Mood::Down);
    }
    let lost = claim();
    let outcome = five.acquire(&lost).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::No, _)), "three have refused it: {outcome:?}");
    five.until_nowhere(&lost).await;
}

/// N5: the token is the greatest of a majority, and afterwards every node that granted the lock has it, so that the
/// next token is greater whichever nodes vote.
#[tokio::test]
async fn tokens_grow_over_whatever_majority_votes() {
    let hours = |n: u64| Duration::from_secs(n * 3600);
    let five = Five::ahead([hours(0), hours(5), hours(2), hours(9), hours(1)]);
    let mut last = None;
    for down in [[3, 4], [0, 1], [1, 3], [0, 2], [3, 4], [2, 3], [0, 1]] {
        five.nodes.iter().for_each(|node| node.set(Mood::Well));
        for node in down {
            five.nodes[node].set(Mood::Down);
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
    let five = Five::ahead([3600, 0, 0, 0, 0].map(Duration::from_secs));
    for node in [1, 2] {
        five.nodes[node].set(Mood::ForgetsInBetween);
    }
    for node in [3, 4] {
        five.nodes[node].set(Mood::Down);
    }
    let one = claim();
    let outcome = five.acquire(&one).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    five.until_nowhere(&one).await;
}

/// Row 12: a failed extend over a minority releases nothing, and acquires at no node.
#[tokio::test]
async fn row_12_a_failed_extend_gives_nothing_back() {
    let five = Five::new();
    let one = claim();
    five.granted(&one).await;
    five.nodes[0].flush();
    for node in [3, 4] {
        five.nodes[node].set(Mood::Cut);
    }
    let fault = five.extend(&one).await.expect_err("two have it, two are silent");
    assert!(matches!(&fault.kind, FaultKind::NoQuorum { nodes, .. } if nodes.len() == 2), "{fault}");
    let held = five.fates(&one).await.into_iter().filter(|fate| *fate == HoldStatus::Held).count();
    assert_eq!(held, 4, "an extend neither acquires nor releases");
    let releases = five.nodes.iter().flat_map(Node::sent);
    assert!(!releases.into_iter().any(|op| matches!(op, Op::Release(_))));

    // The silent nodes are back, and extends succeed again.
    five.nodes.iter().for_each(|node| node.set(Mood::Well));
    assert_eq!(five.extend(&one).await.unwrap(), Extended::Extended);
    for node in [1, 2] {
        five.nodes[node].flush();
    }
    assert_eq!(five.extend(&one).await.unwrap(), Extended::NotHeld, "a majority reports it");
}

#[tokio::test]
async fn what_a_release_has_found_is_not_guessed() {
    let five = Five::new();
    let one = claim();
    five.granted(&one).await;
    five.nodes[0].flush();
    five.nodes[1].flush();
    five.nodes[2].set(Mood::Cut);
    assert!(five.release(&one).await.is_err(), "two nodes had the hold, and one is silent");
    five.nodes[2].set(Mood::Well);
    let found = five.release(&one).await.unwrap().status;
    assert_eq!(found, HoldStatus::Ended(Ended::Released), "by the first sending at two, and now");

    let two = claim();
    five.granted(&two).await;
    five.nodes.iter().for_each(Node::flush);
    assert_eq!(five.release(&two).await.unwrap().status, HoldStatus::Forgotten);
}

#[tokio::test]
async fn who_has_it_by_a_majority_is_told_and_taken_by_force() {
    let five = Five::new();
    let one = claim();
    let fence = five.granted(&one).await;
    five.nodes[4].flush();
    let (observed, actor) = (ObservedHolder::Hold(fence), Label::new("the night shift").unwrap());
    let freed = five.ask(Op::ForceRelease(ForceRelease { observed, actor })).await;
    assert!(matches!(freed, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))), "{freed:?}");
    assert!(five.inspect().await.holder.is_none());
    assert_eq!(five.extend(&one).await.unwrap(), Extended::NotHeld);
}

/// A holder is found even if some nodes did not receive the raised token, and others report a greater one late.
#[tokio::test]
async fn a_holder_is_told_whatever_tokens_the_nodes_have() {
    let five = Five::ahead([0, 0, 0, 3600, 7200].map(Duration::from_secs));
    for node in [0, 1, 2] {
        five.nodes[node].set(Mood::RaisesNothing);
    }
    for node in [3, 4] {
        five.nodes[node].set(Mood::Late(Duration::from_millis(20)));
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
async fn a_node_is_asked_for_no_more_than_a_vote() {
    let five = Five::new();
    five.granted(&claim()).await;
    let queue = Some(Enqueue { nonce: Nonce::new(0, 7), ttl_ms: 60_000 });
    let outcome = five.ask(Op::Acquire(leasehold_core::Acquire { queue, ..acquire(&claim()) })).await;
    let Outcome::Done(Reply::Acquire(Acquired::Taken { position: None, holder: Some(_), .. })) = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(five.inspect().await.waiters, 0);
}

#[tokio::test]
async fn kinds_that_votes_cannot_give_are_refused() {
    let five = Five::new();
    for kind in Kind::ALL {
        let lock = Lock { kind, name: "job".parse().unwrap() };
        let served = matches!(kind, Kind::Mutex | Kind::Reentrant);
        assert_eq!(five.quorum.check(&lock).is_ok(), served, "{kind:?}");
    }
}

/// A node that came back votes again after a fixed time: a hold kept for longer could be granted twice.
#[tokio::test]
async fn nothing_is_kept_for_longer_than_a_node_may_forget() {
    let mut five = Five::new();
    five.quorum = five.quorum.max_lease(Some(Duration::from_secs(30)));
    let one = claim();
    five.granted(&one).await;
    let extend =
        leasehold_core::Extend { claim: one.clone(), lease_ms: 30_001, keep_record: false, reserve: None };
    let outcome = five.ask(Op::Extend(extend)).await;
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("min_uptime"), "{fault}");
}
