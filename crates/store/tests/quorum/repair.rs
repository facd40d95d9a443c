//! An extend puts the hold on nodes that lack it.

use crate::node::NodeFault;
use crate::{CALL, FiveNodes, acquire, claim};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FIRST_LEASE, FencingToken, ForceRelease, ForceReleased,
    HoldStatus, Inspect, Label, ObservedHolder, Op, OwnValue, Release, ReleaseAction, Reply, Votes,
    whole_millis,
};
use leasehold_store::{Lock, Outcome, Store};
use std::time::Duration;

fn voted(held: u32) -> Extended {
    Extended::Voted(Votes { held, nodes: 5 })
}

/// A hold on a bare majority, and all nodes back.
async fn with_a_bare_majority() -> (FiveNodes, Claim, FencingToken) {
    let five = FiveNodes::new();
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::Down);
    }
    let one = claim();
    let fence = five.granted(&one).await;
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    (five, one, fence)
}

/// Row 50: without its votes on the nodes that are back, the hold would be lost with the first node that forgets it.
#[tokio::test]
async fn row_50_nodes_that_are_back_get_the_hold_with_the_next_extend() {
    let (five, one, fence) = with_a_bare_majority().await;
    assert_eq!(five.extend(&one).await.unwrap(), voted(5));
    assert_eq!(five.statuses(&one).await, [HoldStatus::Held; 5]);
    assert_eq!(five.fences().await, [Some(fence); 5], "each stores the token");
    assert_eq!(five.inspect().await.votes, Some(Votes { held: 5, nodes: 5 }));
    for node in [0, 1] {
        five.nodes[node].flush();
    }
    let other = claim();
    five.taken(&other).await;
    five.until_gone(&other).await;
    // As documented, three nodes must forget it.
    five.nodes[2].flush();
    assert!(five.granted(&claim()).await > fence);
}

#[tokio::test]
async fn without_an_extend_one_node_that_forgets_lets_another_client_in() {
    let (five, _one, fence) = with_a_bare_majority().await;
    assert_eq!(five.inspect().await.votes, Some(Votes { held: 3, nodes: 5 }));
    five.nodes[0].flush();
    assert!(five.granted(&claim()).await > fence);
}

/// Another client may have held the lock where a majority has not had the hold without a break.
#[tokio::test]
async fn an_extend_by_a_minority_puts_the_hold_nowhere() {
    let (five, one, _) = with_a_bare_majority().await;
    five.nodes[0].flush();
    assert_eq!(five.extend(&one).await.unwrap(), Extended::NotHeld);
    let held = five.statuses(&one).await.into_iter().filter(|status| *status == HoldStatus::Held);
    assert_eq!(held.count(), 2);
}

/// The new hold is bounded until the node has all of it, and nothing is sent once the extend has returned.
#[tokio::test]
async fn the_hold_is_short_at_first_and_complete_when_the_extend_returns() {
    let (five, one, _) = with_a_bare_majority().await;
    let before = five.nodes[3].received().len();
    assert_eq!(five.extend(&one).await.unwrap(), voted(5));
    let received = five.nodes[3].received();
    let [Op::Extend(_), Op::Acquire(again), Op::RaiseFence(_), Op::Extend(extend)] = &received[before..]
    else {
        panic!("{received:?}")
    };
    let asked = acquire(&one);
    assert_eq!(*again, Acquire { lease_ms: whole_millis(FIRST_LEASE), ..asked });
    assert_eq!(extend.lease_ms, 60_000);
    let remaining = five.inspect().await.holder.and_then(|holder| holder.remaining_ms);
    assert!(remaining > Some(50_000), "{remaining:?}");
    five.release(&one).await.unwrap();
    five.quorum.flush().await;
    assert!(matches!(five.nodes[3].received().last(), Some(Op::Inspect(_) | Op::Release(_))));
    assert!(!five.statuses(&one).await.contains(&HoldStatus::Held));
    five.granted(&claim()).await;
}

#[tokio::test]
async fn a_node_that_has_seen_the_end_of_the_hold_does_not_get_it_again() {
    let (five, one, _) = with_a_bare_majority().await;
    assert_eq!(five.extend(&one).await.unwrap(), voted(5));
    let release = Release { claim: one.clone(), action: ReleaseAction::Free, next: None, history: 0 };
    five.nodes[4].execute_here(&five.lock, &Op::Release(release)).await;
    assert_eq!(five.extend(&one).await.unwrap(), voted(4));
    assert!(matches!(five.statuses(&one).await[4], HoldStatus::Ended(_)));
}

#[tokio::test]
async fn a_node_where_another_client_has_the_lock_keeps_that_client() {
    let (five, one, _) = with_a_bare_majority().await;
    let other = claim();
    let orphan = Op::Acquire(Acquire { lease_ms: 60_000, ..acquire(&other) });
    assert!(matches!(five.nodes[4].execute_here(&five.lock, &orphan).await, Reply::Acquire(_)));
    assert_eq!(five.extend(&one).await.unwrap(), voted(4));
    assert_eq!(five.statuses(&other).await[4], HoldStatus::Held);
}

/// With another token it would be another hold for a forced release.
#[tokio::test]
async fn a_node_that_does_not_store_the_token_does_not_count() {
    let (five, one, _) = with_a_bare_majority().await;
    five.nodes[4].set(NodeFault::RaisesLost);
    assert_eq!(five.extend(&one).await.unwrap(), voted(4));
    let Reply::Inspect(seen) =
        five.nodes[4].execute_here(&five.lock, &Op::Inspect(Inspect { claim: None, details: false })).await
    else {
        panic!("an inspection")
    };
    let remaining = seen.holder.and_then(|holder| holder.remaining_ms);
    assert!(remaining.is_none_or(|remaining| remaining <= whole_millis(FIRST_LEASE)), "{remaining:?}");
}

/// An operator frees the lock by the token that is reported, also at the nodes that got the hold later.
#[tokio::test]
async fn a_repaired_hold_can_be_released_by_force() {
    let (five, one, fence) = with_a_bare_majority().await;
    assert_eq!(five.extend(&one).await.unwrap(), voted(5));
    let holder = five.inspect().await.holder.unwrap();
    assert_eq!(holder.fence, Some(fence));
    let (observed, actor) = (ObservedHolder::Hold(fence), Label::new("operator").unwrap());
    let freed = five.execute(Op::ForceRelease(ForceRelease { observed, actor })).await;
    assert!(matches!(freed, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))), "{freed:?}");
    five.quorum.flush().await;
    assert!(!five.statuses(&one).await.contains(&HoldStatus::Held));
}

/// The release is sent while the nodes that lack the hold are asked to acquire it: they did not have it when the release
/// arrived, and get it afterwards.
#[tokio::test]
async fn a_release_that_crosses_with_a_repair_leaves_nothing() {
    for pause in [0, 5, 15, 25, 35, 45] {
        let (five, one, _) = with_a_bare_majority().await;
        five.nodes[3].set(NodeFault::Delayed(Duration::from_millis(10)));
        five.nodes[4].set(NodeFault::Delayed(Duration::from_millis(20)));
        let extend = async { five.extend(&one).await };
        let release = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            five.release(&one).await
        };
        let (_, released) = tokio::join!(extend, release);
        assert!(released.is_ok(), "{released:?}");
        five.quorum.flush().await;
        let statuses = five.statuses(&one).await;
        assert!(!statuses.contains(&HoldStatus::Held), "after {pause} ms: {statuses:?}");
    }
}

/// The same with a release that this process does not know of.
#[tokio::test]
async fn a_forced_release_that_crosses_with_a_repair_leaves_nothing() {
    for pause in [5, 15, 25] {
        let (five, one, _) = with_a_bare_majority().await;
        for node in [3, 4] {
            five.nodes[node].set(NodeFault::Delayed(Duration::from_millis(20)));
        }
        let extend = async { five.extend(&one).await };
        let release = async {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            for node in [0, 1, 2] {
                let release =
                    Release { claim: one.clone(), action: ReleaseAction::Free, next: None, history: 0 };
                five.nodes[node].execute_here(&five.lock, &Op::Release(release)).await;
            }
        };
        let (extended, ()) = tokio::join!(extend, release);
        assert!(extended.is_ok(), "{extended:?}");
        five.quorum.flush().await;
        let statuses = five.statuses(&one).await;
        assert!(!statuses.contains(&HoldStatus::Held), "after {pause} ms: {statuses:?}");
    }
}

/// Whether the hold has ended meanwhile is not known then. A release at the node would report it as released later on.
#[tokio::test]
async fn a_repair_that_cannot_be_checked_releases_nothing() {
    let (five, one, _) = with_a_bare_majority().await;
    five.nodes[4].set(NodeFault::Delayed(Duration::from_millis(20)));
    let extend = async { five.extend(&one).await };
    let fault = async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        five.nodes[0].set(NodeFault::RequestsLost);
    };
    let (extended, ()) = tokio::join!(extend, fault);
    assert!(matches!(extended, Ok(Extended::Voted(_))), "{extended:?}");
    let releases = five.nodes.iter().flat_map(crate::node::Node::received);
    assert!(!releases.into_iter().any(|op| matches!(op, Op::Release(_))));
}

/// Another extend of the same hold, by the user of its guard, may have counted their votes by then. Without them, two nodes of
/// five would have a hold of which four were counted.
#[tokio::test]
async fn a_repair_takes_no_vote_back_because_a_node_forgets() {
    let (five, one, _) = with_a_bare_majority().await;
    for node in [3, 4] {
        five.nodes[node].set(NodeFault::Delayed(Duration::from_millis(20)));
    }
    let extend = async { five.extend(&one).await };
    let forget = async {
        // The first was for the acquire, when these nodes were down; the second follows the first reading.
        let acquires = |node: usize| {
            let received = five.nodes[node].received();
            received.into_iter().filter(|op| matches!(op, Op::Acquire(_))).count()
        };
        while acquires(3) < 2 || acquires(4) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        five.nodes[0].flush();
    };
    let (extended, ()) = tokio::join!(extend, forget);
    assert!(matches!(extended, Ok(Extended::Voted(_))), "{extended:?}");
    let releases = five.nodes.iter().flat_map(crate::node::Node::received);
    assert!(!releases.into_iter().any(|op| matches!(op, Op::Release(_))));
    let held = five.statuses(&one).await.into_iter().filter(|status| *status == HoldStatus::Held);
    assert_eq!(held.count(), 4);
}

/// The node may have granted a second hold of the owner before, whose token is then remembered there alone.
#[tokio::test]
async fn a_repair_lowers_no_token_of_a_reentrant_mutex() {
    let five = FiveNodes::with_clocks_ahead([0, 0, 0, 2, 4].map(Duration::from_secs));
    let lock = Lock::reentrant("tree".parse().unwrap());
    let send = async |op: Op| five.quorum.execute(&lock, &op, CALL).await;
    let mut one = claim();
    one.value = OwnValue::new("owner").ok();
    five.nodes[3..].iter().for_each(|node| node.set(NodeFault::Down));
    let granted = send(Op::Acquire(acquire(&one))).await;
    let Outcome::Done(Reply::Acquire(Acquired::Granted { fence: first, .. })) = granted else {
        panic!("{granted:?}")
    };
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    let extend =
        Extend { claim: one.clone(), lease_ms: 60_000, keep_record: false, reserve: None, fence: None };
    let extended = send(Op::Extend(extend)).await;
    assert!(
        matches!(extended, Outcome::Done(Reply::Extend(extended)) if extended == voted(5)),
        "{extended:?}"
    );
    let mut tokens = Vec::new();
    for node in &five.nodes {
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        match node.execute_here(&lock, &inspect).await {
            Reply::Inspect(seen) => tokens.extend(seen.holder.and_then(|holder| holder.fence)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tokens[..3], [first; 3]);
    assert!(first < tokens[3] && tokens[3] < tokens[4], "what these nodes have granted: {tokens:?}");
    // A second hold of the owner has the token of the first, as long as a majority reports that.
    let mut second = claim();
    second.value = OwnValue::new("owner").ok();
    let granted = send(Op::Acquire(acquire(&second))).await;
    assert!(
        matches!(granted, Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) if fence == first)
    );
}

/// It costs the other nodes an inspection each time.
#[tokio::test]
async fn a_node_that_refuses_is_left_alone_for_a_moment() {
    let (five, one, _) = with_a_bare_majority().await;
    let refusing = five.nodes[4].clone();
    refusing.set(NodeFault::AcquiresRefused);
    for _ in 0..3 {
        assert_eq!(five.extend(&one).await.unwrap(), voted(4));
    }
    let acquires = refusing.received().iter().filter(|op| matches!(op, Op::Acquire(_))).count();
    assert_eq!(acquires, 2, "one to begin with, and one repair");
    refusing.set(NodeFault::None);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(five.extend(&one).await.unwrap(), voted(5));
}

/// Extends come in batches, and each hold has its own nodes that lack it.
#[tokio::test]
async fn each_hold_of_a_batch_is_put_where_it_is_missing() {
    let five = FiveNodes::new();
    let claims: Vec<_> = (0..5).map(|_| claim()).collect();
    let locks: Vec<_> = (0..5).map(|n| Lock::mutex(format!("job {n}").parse().unwrap())).collect();
    let mut ops = Vec::new();
    for (number, (lock, claim)) in locks.iter().zip(&claims).enumerate() {
        five.nodes[number].set(NodeFault::Down);
        let outcome = five.quorum.execute(lock, &Op::Acquire(acquire(claim)), CALL).await;
        assert!(matches!(outcome, Outcome::Done(Reply::Acquire(_))));
        five.nodes[number].set(NodeFault::None);
        let extend =
            Extend { claim: claim.clone(), lease_ms: 60_000, keep_record: false, reserve: None, fence: None };
        ops.push((lock.clone(), Op::Extend(extend)));
    }
    for _ in 0..2 {
        let outcomes = five.quorum.execute_all(&ops, CALL).await;
        let extended = outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Done(Reply::Extend(extended)) => extended,
            other => panic!("{other:?}"),
        });
        assert_eq!(extended.collect::<Vec<_>>(), [voted(5); 5]);
    }
}
