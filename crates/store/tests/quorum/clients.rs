//! Clients, guards and waiters over a quorum.

use crate::node::NodeFault;
use crate::{FiveNodes, acquire, claim};
use leasehold::error::{AcquireError, LockError};
use leasehold::{Client, Released};
use leasehold_core::{Claim, FIRST_LEASE, Op, OwnValue};
use leasehold_store::{FaultKind, Lock, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

async fn client(five: &FiveNodes) -> Client {
    Client::with_store(five.quorum.clone()).call_timeout(Duration::from_secs(2)).connect().await.unwrap()
}

/// The claims requested at each node, in order.
fn requested(five: &FiveNodes) -> Vec<Vec<Claim>> {
    let claims = |ops: Vec<Op>| {
        ops.into_iter().filter_map(|op| match op {
            Op::Acquire(ask) => Some(ask.claim),
            _ => None,
        })
    };
    five.nodes.iter().map(|node| claims(node.received()).collect()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_exclude_one_another_and_their_tokens_grow() {
    let five = FiveNodes::new();
    let (inside, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = client(&five).await;
        for _ in 0..2 {
            let (client, inside, last) = (client.clone(), inside.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                let mutex = client.mutex("job").unwrap();
                for _ in 0..5 {
                    let guard = mutex.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let fence = guard.fencing_token().as_u64();
                    assert!(last.swap(fence, Ordering::SeqCst) < fence, "a token went back");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    for claims_there in requested(&five) {
        let different: BTreeSet<_> = claims_there.iter().map(|claim| claim.hold.token()).collect();
        assert_eq!(different.len(), claims_there.len(), "each request is for a hold of its own");
    }
}

/// The undo of one attempt never affects the next, which is for another hold.
#[tokio::test]
async fn an_attempt_without_an_answer_is_followed_by_another_hold() {
    let five = FiveNodes::new();
    five.nodes.iter().take(3).for_each(|node| node.set(NodeFault::RepliesLost));
    let client = client(&five).await;
    let mutex = client.mutex("job").unwrap();
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    let guard = waiting.await.unwrap().unwrap();
    for claims_there in requested(&five) {
        let different: BTreeSet<_> = claims_there.iter().map(|claim| claim.hold.token()).collect();
        assert_eq!(different.len(), claims_there.len());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_message_of_any_node_wakes_a_waiter() {
    let five = FiveNodes::new();
    let (holder, waiter) = (client(&five).await, client(&five).await);
    let guard = holder.mutex("job").unwrap().acquire().await.unwrap();
    let mutex = waiter.mutex("job").unwrap();
    let waiting = tokio::spawn(async move { mutex.acquire().await });
    let polls = || requested(&five)[0].len();
    while polls() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Each message causes at least one poll, however fast they follow; regular polls are 50 ms apart.
    let before = polls();
    for _ in 0..5 {
        five.nodes[3].publish();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(polls() - before >= 4, "only {} polls", polls() - before);
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A client that shuts down leaves nothing at any node, not even where a release did not wait for the node's reply.
#[tokio::test]
async fn a_client_that_ends_leaves_nothing_at_any_node() {
    for ends in ["shutdown", "flush", "drop"] {
        let five = FiveNodes::new();
        let client = client(&five).await;
        let guard = client.mutex("job").unwrap().acquire().await.unwrap();
        client.flush().await;
        assert_eq!(five.fences().await.into_iter().flatten().count(), 5);
        for node in [1, 3] {
            five.nodes[node].set(NodeFault::Delayed(Duration::from_millis(40)));
        }
        match ends {
            "shutdown" => client.shutdown(Duration::from_secs(5)).await.unwrap(),
            "flush" => {
                drop(guard);
                client.flush().await;
            }
            _ => {
                drop((guard, client));
                let start = Instant::now();
                while five.fences().await.iter().any(Option::is_some) && start.elapsed() < FIRST_LEASE / 2 {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        assert_eq!(five.fences().await, [None; 5], "{ends}");
    }
}

#[tokio::test]
async fn without_a_majority_an_acquire_ends_by_its_deadline_and_names_the_nodes() {
    let five = FiveNodes::new();
    let client = client(&five).await;
    for node in [0, 1, 4] {
        five.nodes[node].set(NodeFault::Down);
    }
    let mutex = client.mutex("job").unwrap().max_wait(Duration::from_millis(300));
    let error = mutex.acquire().await.unwrap_err();
    let (AcquireError::Store(fault) | AcquireError::Unknown(fault)) = &error else { panic!("{error:?}") };
    let FaultKind::NoQuorum { nodes, .. } = &fault.kind else { panic!("{fault}") };
    let named: BTreeSet<_> = nodes.iter().map(|fault| &*fault.node).collect();
    assert_eq!(named, ["a", "b", "e"].into());
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    client.mutex("job").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn leases_and_kinds_that_a_quorum_cannot_keep_are_refused() {
    let five = FiveNodes::new();
    let store = five.quorum.clone().max_lease(Some(Duration::from_secs(60)));
    let client = Client::with_store(store.clone()).connect().await.unwrap();
    let long = client.mutex("job").unwrap().lease(Duration::from_secs(61));
    let error = long.acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Lease(_)) && error.to_string().contains("min_uptime"), "{error}");
    assert!(requested(&five)[0].is_empty(), "nothing was sent");
    client
        .mutex("job")
        .unwrap()
        .lease(Duration::from_secs(60))
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    // Nor a sum that only the second lease makes too long: the second hold is released, and the first stays.
    let owner = client.new_owner();
    let summed = client.reentrant_mutex("tree").unwrap().owned_by(&owner).sum_leases(true);
    let summed = summed.lease(Duration::from_secs(40));
    let first = summed.acquire().await.unwrap();
    let error = summed.acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Lease(_)) && error.to_string().contains("80s"), "{error}");
    first.check().unwrap();
    let start = Instant::now();
    while summed.hold_count().await.unwrap() != 1 {
        assert!(start.elapsed() < Duration::from_secs(20), "the second entry is there still");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(first.release().await.unwrap(), Released::NoLongerHeld);

    let watchdog = Client::with_store(store.clone()).watchdog_lease(Duration::from_secs(90)).connect().await;
    assert!(watchdog.unwrap_err().to_string().contains("min_uptime"));
    let refused = client.semaphore("seats", 3).unwrap_err();
    assert!(matches!(refused, LockError::Key(_)) && refused.to_string().contains("quorum"), "{refused}");
    assert!(client.election("boss").is_err() && client.rwlock("book").is_err());
    assert!(client.latch("start", 2).is_err() && client.barrier("meet", 2).is_err());
    assert!(store.fork().check(&leasehold_store::Lock::election("boss".parse().unwrap())).is_err());
}

#[tokio::test]
async fn an_owner_re_enters_and_several_locks_are_acquired_in_turn() {
    let five = FiveNodes::new();
    let client = client(&five).await;
    let owner = client.new_owner();
    let reentrant = client.reentrant_mutex("tree").unwrap().owned_by(&owner);
    let first = reentrant.acquire().await.unwrap();
    let second = reentrant.acquire().await.unwrap();
    assert!(second.fencing_token() >= first.fencing_token());
    second.release().await.unwrap();
    first.release().await.unwrap();

    let set = client.multi_mutex(["one", "two", "three"]).unwrap();
    let guard = set.acquire().await.unwrap();
    assert!(client.mutex("two").unwrap().try_acquire().await.unwrap().granted().is_none());
    guard.release().await.unwrap();
}

/// One node has voted for another client, and two do not reply: the votes are split. The task would wait for itself if the
/// re-entry were not sent again, and its hold is renewed as long as it waits.
#[tokio::test]
async fn a_reentry_is_sent_again_after_split_votes() {
    let five = FiveNodes::new();
    let client = client(&five).await;
    let reentrant = client.reentrant_mutex("tree").unwrap().owned_by(&client.new_owner());
    let first = reentrant.acquire().await.unwrap();
    client.flush().await;
    five.nodes[4].flush();
    let lock = Lock::reentrant("tree".parse().unwrap());
    let mut other = claim();
    other.value = OwnValue::new("another").ok();
    five.nodes[4].execute_here(&lock, &Op::Acquire(acquire(&other))).await;
    five.nodes[..2].iter().for_each(|node| node.set(NodeFault::RequestsLost));
    let before = requested(&five)[2].len();
    let again = tokio::spawn(async move { reentrant.acquire().await });
    while requested(&five)[2].len() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The nodes reply again after its first attempt.
    tokio::time::sleep(Duration::from_millis(60)).await;
    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    let second = tokio::time::timeout(Duration::from_secs(20), again).await.expect("it waits for itself");
    second.unwrap().unwrap().release().await.unwrap();
    first.release().await.unwrap();
}

/// Nodes that granted the first hold after it had its majority have greater tokens for it.
#[tokio::test]
async fn a_second_hold_has_the_token_of_the_first_although_a_node_was_late() {
    let mut five = FiveNodes::with_clocks_ahead([0, 0, 0, 2, 4].map(Duration::from_secs));
    let slow = NodeFault::Slow(Duration::from_millis(20));
    // A re-entry waits half of this for the token: long enough for the slow nodes on a busy machine.
    five.quorum = five.quorum.clone().node_timeout(Duration::from_secs(2));
    let [one, other] = [client(&five).await, client(&five).await];
    let owner = one.new_owner();
    let owned_by = |client: &Client| client.reentrant_mutex("tree").unwrap().owned_by(&owner);
    five.nodes[3..].iter().for_each(|node| node.set(slow));
    let first = owned_by(&one).acquire().await.unwrap();
    one.flush().await;

    five.nodes.iter().for_each(|node| node.set(NodeFault::None));
    five.nodes[..2].iter().for_each(|node| node.set(slow));
    let second = owned_by(&other).acquire().await.unwrap();
    assert_eq!(second.fencing_token(), first.fencing_token());

    // One node reports that token, the others two different ones: only the greatest certainly exceeds those of others.
    five.nodes[..2].iter().for_each(|node| node.set(NodeFault::Down));
    let third = owned_by(&other).acquire().await.unwrap();
    assert!(third.fencing_token() > first.fencing_token());
}

#[tokio::test]
async fn a_detached_hold_is_granted_by_a_majority_too() {
    let five = FiveNodes::new();
    let (one, other) = (client(&five).await, client(&five).await);
    let hold = one.mutex("job").unwrap().lease(Duration::from_secs(20)).acquire_detached().await.unwrap();
    assert!(other.mutex("job").unwrap().try_acquire().await.unwrap().granted().is_none());
    let guard = hold.attach(&other).await.unwrap();
    guard.release().await.unwrap();
    other.mutex("job").unwrap().acquire().await.unwrap().release().await.unwrap();
}
