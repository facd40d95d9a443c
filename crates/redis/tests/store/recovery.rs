//! Broken connections, and their replacement.

use crate::fixture::{
    LONG, Mailbox, SHORT, acquire, acquire_of, claim, connect, connections, eventually, execute, execute_on,
    found, granted, in_time, job, refused, release, session, take, unknown,
};
use leasehold_core::{Acquired, HoldStatus, Inspect, Partition};
use leasehold_redis::RedisStore;
use leasehold_store::{Executed, FaultKind, Op, Outcome, Reply, Store};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, Stopwatch, command};
use std::time::Duration;

/// Failure row 40.
#[tokio::test]
async fn a_suspended_server_costs_a_call_its_timeout_and_no_more() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.stop().unwrap();
    let fault = unknown(in_time(execute(&store, &take(&claim(2), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    // The silent connection is abandoned, and no other can be opened.
    let fault = refused(in_time(execute(&store, &take(&claim(2), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    let outcomes = in_time(store.execute_all(&[(job(), take(&claim(2), None))], SHORT)).await;
    assert!(matches!(outcomes[..], [Outcome::Failed(Executed::No, _)]), "{outcomes:?}");
    let (_, mailbox) = Mailbox::open();
    let fault = in_time(store.open_mailbox(Partition::ONLY, session(1), mailbox, SHORT)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    server.resume().unwrap();
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
}

#[tokio::test]
async fn a_slow_call_does_not_cost_a_lively_connection() {
    let server = RedisServer::start().unwrap();
    for _ in 0..20 {
        let proxy = Proxy::to_server(&server).unwrap();
        let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
        proxy.delay_replies(Duration::from_millis(80));
        let watch = Stopwatch::start();
        let mut timed_out = 0;
        for _ in 0..3 {
            let slow = execute(&store, &take(&claim(1), None), Duration::from_millis(20)).await;
            timed_out += u32::from(
                matches!(slow, Outcome::Failed(Executed::Unknown, fault) if fault.kind == FaultKind::TimedOut),
            );
            granted(acquire(&store, &claim(1), None).await);
        }
        if (timed_out, proxy.accepted()) == (3, 1) {
            return;
        }
        // A call that is sent too late was not executed, and a silence of 100 ms costs the connection.
        let (delay, accepted) = (watch.longest_delay(), proxy.accepted());
        assert!(delay > Duration::from_millis(5), "{timed_out} timed out, {accepted} connections");
    }
    panic!("the machine ran a thread late in each round");
}

#[tokio::test]
async fn a_connection_that_died_after_the_answer_to_another_call_is_given_up() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    // The first call loads the script.
    granted(acquire_of(&store, "first", &claim(1)).await);
    proxy.delay_replies(Duration::from_millis(80));
    proxy.drop_requests(1, AfterDrop::Stall, |words| words.iter().any(|word| word == b"dead"));
    let claim = claim(1);
    let (lively, dead) = tokio::join!(
        acquire_of(&store, "lively", &claim),
        execute_on(&store, "dead", take(&claim, None), SHORT)
    );
    granted(lively);
    assert_eq!(unknown(dead).kind, FaultKind::TimedOut);
    // Over the connection that died there would be no reply.
    let watch = Stopwatch::start();
    granted(acquire_of(&store, "dead", &claim).await);
    watch.assert_below(SHORT, "over another connection");
}

/// Failure rows 1 and 3.
#[tokio::test]
async fn a_lost_reply_is_unknown_and_nothing_is_sent_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    // The first call loads the script.
    granted(acquire_of(&store, "first", &claim(1)).await);
    proxy.reset_counts();
    proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
    let fault = unknown(acquire(&store, &claim(1), None).await);
    assert_eq!(fault.kind, FaultKind::Disconnected, "{fault}");
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(1).token()));
    assert_eq!(proxy.count("EVALSHA"), 1);
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(proxy.count("EVALSHA"), 2);
}

#[tokio::test]
async fn it_connects_again_after_a_restart() {
    let mut server = RedisServer::builder().appendonly().start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.restart().unwrap();
    // Whether the break was noticed before the call was sent is open.
    let outcome =
        execute(&store, &Op::Inspect(Inspect { claim: Some(claim(1)), details: false }), LONG).await;
    assert!(matches!(outcome, Outcome::Done(_) | Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
}

/// Failure row 39.
#[tokio::test]
async fn attempts_to_connect_are_shared_and_paced() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    proxy.refuse_connections(true);
    proxy.disconnect();
    // This call discovers that the connection is broken.
    drop(acquire(&store, &claim(1), None).await);
    let before = proxy.accepted();
    let calls = (0..200).map(|_| execute_on(&store, "job", take(&claim(1), None), Duration::from_secs(2)));
    let outcomes = futures_util::future::join_all(calls).await;
    let attempts = proxy.accepted() - before;
    assert!((3..=12).contains(&attempts), "{attempts} attempts in two seconds, of 200 callers");
    assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Done(_))));
    proxy.refuse_connections(false);
    granted(acquire(&store, &claim(1), None).await);
}

#[test]
fn it_outlives_the_runtime_that_connected() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime().block_on(connect(&server));
    let (_, mailbox) = Mailbox::open();
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let mailbox = mailbox.clone();
        outcomes.push(runtime().block_on(async {
            // The first call discovers that the connection is dead.
            drop(execute(&store, &Op::Inspect(Inspect { claim: None, details: false }), LONG).await);
            store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
            acquire(&store, &claim(1), None).await
        }));
    }
    outcomes.into_iter().for_each(granted);
}

#[test]
fn a_fork_has_its_own_connection_and_runtime() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let here = runtime();
    let store = here.block_on(connect(&server));
    let fork = store.fork();
    let there = std::thread::spawn(move || {
        runtime().block_on(async move { fork.execute(&job(), &take(&claim(1), None), LONG).await })
    });
    granted(there.join().unwrap());
    let outcome = here.block_on(acquire(&store, &claim(2), None));
    assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{outcome:?}");
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_no_connection() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let other = store.clone();
    drop(store);
    granted(acquire(&other, &claim(1), None).await);
    drop(other);
    eventually(|| connections(&server) == 0).await;
}
