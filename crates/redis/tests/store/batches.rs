//! Operations that share a call: their replies, and what becomes of them when the call fails.

use crate::fixture::{LONG, SHORT, claim, connect, eventually, execute_on, found, granted, nonce, take};
use leasehold_core::{Acquired, Claim, HoldId, HoldStatus, Refused, Release, ReleaseAction, SessionId};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{Executed, FaultKind, Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, command};
use std::time::Duration;

/// The claim of the `n`th of many.
fn claim_of(n: usize) -> Claim {
    let mut bits = [1; 16];
    bits[..8].copy_from_slice(&n.to_le_bytes());
    Claim::new(HoldId::from_random(SessionId::from_random([7; 12]), bits))
}

fn give_up(claim: &Claim) -> Op {
    Op::Release(Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 })
}

/// Sends an operation on each of these locks at once.
async fn execute_each(store: &RedisStore, ops: &[(String, Op)]) -> Vec<Outcome> {
    let each = ops.iter().map(|(name, op)| execute_on(store, name, op.clone(), LONG));
    futures_util::future::join_all(each).await
}

fn on_each(count: usize, op: impl Fn(usize) -> Op) -> Vec<(String, Op)> {
    (0..count).map(|n| (format!("job/{n}"), op(n))).collect()
}

/// The commands of clients since the last reset.
fn calls(server: &RedisServer) -> u64 {
    server.command_counts().unwrap().get("evalsha").copied().unwrap_or_default()
}

#[tokio::test]
async fn operations_that_begin_together_share_calls() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for (flushed, first) in [(true, 0), (false, 100)] {
        let claim_of = |n| claim_of(first + n);
        if flushed {
            server.cli(&["SCRIPT", "FLUSH"]).unwrap().ok().unwrap();
        }
        server.reset_counts().unwrap();
        let acquired = execute_each(&store, &on_each(100, |n| take(&claim_of(n), None))).await;
        acquired.into_iter().for_each(granted);
        let released = execute_each(&store, &on_each(100, |n| give_up(&claim_of(n)))).await;
        assert!(released.into_iter().all(|outcome| found(outcome) == HoldStatus::Held));
        // One of each goes alone, and the others in calls of up to 32.
        assert!(flushed || (10..30).contains(&calls(&server)), "{}", calls(&server));
    }
    assert_eq!(server.cli(&["EXISTS", "job/1", "job/99"]).unwrap().integer(), Some(0));
}

/// What operations share, they cost once.
#[tokio::test]
async fn the_commands_of_operations_in_one_call_are_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for first in [0, 9, 18] {
        let mut counted = Vec::new();
        for is_release in [false, true] {
            let op =
                |n| if is_release { give_up(&claim_of(first + n)) } else { take(&claim_of(first + n), None) };
            server.reset_counts().unwrap();
            drop(execute_each(&store, &on_each(9, op)).await);
            let counts = server.command_counts().unwrap();
            let of = |name: &str| counts.get(name).copied().unwrap_or_default();
            counted.push(["mget", "time", "set", "del"].map(of));
        }
        // The first goes alone.
        if first > 0 {
            assert_eq!(counted, [[2, 2, 18, 0], [2, 0, 11, 2]]);
        }
    }
}

#[tokio::test]
async fn each_operation_of_a_call_has_its_own_reply() {
    let server = RedisServer::start().unwrap();
    each_has_its_own_reply(&server, &connect(&server).await).await;
}

#[tokio::test]
async fn each_operation_of_a_call_has_its_own_reply_by_resp2() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().resp2();
    each_has_its_own_reply(&server, &RedisStore::connect(config).await.unwrap()).await;
}

#[tokio::test]
async fn each_operation_of_a_call_has_its_own_reply_on_a_users_connection() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let store = RedisStore::from_connection(connection, "", None).unwrap();
    each_has_its_own_reply(&server, &store).await;
}

/// Each gets its own reply, also if the quick paths cannot give it.
async fn each_has_its_own_reply(server: &RedisServer, store: &RedisStore) {
    server.cli(&["HSET", "hash", "a", "b"]).unwrap().ok().unwrap();
    server.cli(&["SET", "foreign", "other"]).unwrap().ok().unwrap();
    server.cli(&["SET", "{broken}", "other"]).unwrap().ok().unwrap();
    granted(execute_on(store, "held", take(&claim(9), None), LONG).await);
    granted(execute_on(store, "mine", take(&claim(8), None), LONG).await);
    let ops = [
        ("first", take(&claim(1), None)),
        ("hash", take(&claim(2), Some(nonce(2)))),
        ("foreign", take(&claim(3), None)),
        ("held", take(&claim(4), Some(nonce(4)))),
        ("mine", give_up(&claim(8))),
        ("free", take(&claim(5), Some(nonce(5)))),
        ("nothing", give_up(&claim(6))),
    ];
    let ops = ops.map(|(name, op)| (name.to_owned(), op));
    server.reset_counts().unwrap();
    let outcomes = execute_each(store, &ops).await;
    assert_eq!(calls(server), 3, "one alone, and one call whose script is loaded first");
    let [first, hash, foreign, held, mine, free, nothing] = outcomes.try_into().unwrap();
    granted(first);
    assert!(
        matches!(&hash, Outcome::Done(Reply::Refused(Refused::WrongKind { found })) if found == "hash"),
        "{hash:?}"
    );
    assert!(
        matches!(&foreign, Outcome::Done(Reply::Acquire(Acquired::Taken { holder: Some(holder), position: None, .. })) if holder.fence.is_none()),
        "{foreign:?}"
    );
    assert!(
        matches!(&held, Outcome::Done(Reply::Acquire(Acquired::Taken { position: Some(0), .. }))),
        "{held:?}"
    );
    assert_eq!(found(mine), HoldStatus::Held);
    granted(free);
    assert_eq!(found(nothing), HoldStatus::Forgotten);
    // A release of a batch grants the lock to its waiter.
    let ops = [("first", give_up(&claim(1))), ("held", give_up(&claim(9))), ("free", give_up(&claim(5)))];
    let released = execute_each(store, &ops.map(|(name, op)| (name.to_owned(), op))).await;
    assert!(released.into_iter().all(|outcome| found(outcome) == HoldStatus::Held));
    let polled = execute_on(store, "held", take(&claim(4), Some(nonce(5))), LONG).await;
    granted(polled);
}

#[tokio::test]
async fn operations_on_one_lock_never_share_a_call() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let ops: Vec<_> = (0..8).map(|n| (format!("job/{}", n / 4), take(&claim_of(n), None))).collect();
    let outcomes = execute_each(&store, &ops).await;
    let is_granted =
        |outcome: &&Outcome| matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. })));
    assert_eq!(outcomes.iter().filter(is_granted).count(), 2, "{outcomes:?}");
}

#[tokio::test]
async fn an_operation_that_is_dropped_before_its_call_is_not_sent() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let [first, dropped, third] = [1, 2, 3].map(|n| Lock::mutex(format!("job/{n}").parse().unwrap()));
    let [one, two, three] = [1, 2, 3].map(|n| take(&claim(n), None));
    let first = store.execute(&first, &one, LONG);
    let third = store.execute(&third, &three, LONG);
    let mut dropped = store.execute(&dropped, &two, LONG);
    let both = async {
        // Polled once, so it waits for the task that sends.
        assert!(futures_util::poll!(&mut dropped).is_pending());
        drop(dropped);
        third.await
    };
    let (first, third) = tokio::join!(first, both);
    granted(first);
    granted(third);
    assert_eq!(server.cli(&["EXISTS", "job/1", "job/2", "job/3"]).unwrap().integer(), Some(2));
}

/// The server does not know the script of the call, so it is sent again: without what was dropped meanwhile.
#[tokio::test]
async fn an_operation_that_is_dropped_while_its_script_is_unknown_is_not_sent_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    granted(execute_on(&store, "before", take(&claim(9), None), LONG).await);
    // A call of several operations has more words than one of a single acquire.
    proxy.pause_requests(1, |words| words.len() > 20);
    let [first, dropped, third, fourth] = [1, 2, 3, 4].map(|n| {
        let store = store.clone();
        tokio::spawn(
            async move { execute_on(&store, &format!("job/{n}"), take(&claim(n), None), LONG).await },
        )
    });
    eventually(|| proxy.paused_requests() == 1).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    proxy.resume_requests().answered(LONG).await.unwrap();
    for acquired in [first, third, fourth] {
        granted(acquired.await.unwrap());
    }
    assert_eq!(server.cli(&["EXISTS", "job/2"]).unwrap().integer(), Some(0));
}

/// Full memory refuses the acquires, each with its own error, and no release.
#[tokio::test]
async fn a_call_under_full_memory_releases() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let acquired = execute_each(&store, &on_each(6, |n| take(&claim_of(n), None))).await;
    acquired.into_iter().for_each(granted);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    let acquired = execute_each(&store, &on_each(12, |n| take(&claim_of(20 + n), None))).await;
    for outcome in &acquired[6..] {
        let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
    }
    // Acquires and releases in the same call. The first, an acquire, goes alone.
    let mixed: Vec<_> = (0..12)
        .map(|n| match n % 2 {
            0 => (format!("other/{n}"), take(&claim_of(40 + n), None)),
            _ => (format!("job/{}", n / 2), give_up(&claim_of(n / 2))),
        })
        .collect();
    for (n, outcome) in execute_each(&store, &mixed).await.into_iter().enumerate() {
        if n % 2 == 1 {
            assert_eq!(found(outcome), HoldStatus::Held);
        } else {
            let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
            assert_eq!(fault.kind, FaultKind::OutOfMemory);
        }
    }
}

/// A user without the right to one of the keys gets an error for that lock only.
#[tokio::test]
async fn a_forbidden_lock_does_not_fail_the_others() {
    let server = RedisServer::start().unwrap();
    let rights = ["~job*", "~{job*", "~leasehold:*", "&*", "+@all"];
    let user = ["ACL", "SETUSER", "limited", "on", ">word"];
    server.cli(&[&user[..], &rights[..]].concat()).unwrap().ok().unwrap();
    let url = server.url().replace("redis://", "redis://limited:word@");
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
    let mut ops = on_each(5, |n| take(&claim_of(n), None));
    ops[3].0 = "other".to_owned();
    let outcomes = execute_each(&store, &ops).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        if n == 3 {
            let Outcome::Failed(_, fault) = outcome else { panic!("{outcome:?}") };
            assert_eq!(fault.kind, FaultKind::Forbidden);
        } else {
            granted(outcome);
        }
    }
}

/// A connection that falls silent: each operation ends, at the latest at its own deadline.
#[tokio::test]
async fn a_silent_connection_keeps_no_operation_longer_than_its_time() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    for op in [take, |claim: &Claim, _| give_up(claim)] {
        drop(execute_each(&store, &on_each(3, |n| op(&claim_of(n), None))).await);
    }
    proxy.drop_replies(1, AfterDrop::Stall, command("EVALSHA"));
    let ops = on_each(80, |n| take(&claim_of(100 + n), None));
    // The first is sent alone, and runs out of time first.
    let each = ops.iter().enumerate().map(|(n, (name, op))| {
        let within = if n == 0 { SHORT } else { Duration::from_secs(4) };
        execute_on(&store, name, op.clone(), within)
    });
    let outcomes = futures_util::future::join_all(each).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        let is_late =
            matches!(outcome, Outcome::Failed(Executed::Unknown, fault) if fault.kind == FaultKind::TimedOut);
        let is_granted = matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. })));
        assert!(is_late || n > 0 && is_granted, "{n}: {outcome:?}");
    }
    eventually_works(&store).await;
}

/// The same while operations keep arriving one by one: what the client decides by itself is no sign of the server.
#[tokio::test]
async fn a_silent_connection_is_given_up_while_operations_arrive() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    drop(execute_each(&store, &on_each(1, |n| take(&claim_of(n), None))).await);
    proxy.drop_replies(1, AfterDrop::Stall, command("EVALSHA"));
    let mut each = Vec::new();
    for n in 0..20 {
        let store = store.clone();
        // Those of the first half run out of time while the others arrive.
        let within = if n < 15 { SHORT } else { LONG };
        each.push(tokio::spawn(async move {
            execute_on(&store, &format!("lock/{n}"), take(&claim_of(100 + n), None), within).await
        }));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    for last in each.split_off(15) {
        granted(last.await.unwrap());
    }
    assert_eq!(proxy.accepted(), 2, "the first operation gave the connection up");
}

async fn eventually_works(store: &RedisStore) {
    let mut n = 1_000;
    loop {
        n += 1;
        let outcome = execute_on(store, "after", take(&claim_of(n), None), Duration::from_secs(2)).await;
        if let Outcome::Done(Reply::Acquire(_)) = outcome {
            return;
        }
        assert!(n < 1_020, "{outcome:?}");
    }
}

/// A partition whose connection breaks loses no operation without a word.
#[tokio::test]
async fn a_broken_connection_ends_the_operations_of_a_call() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for round in 0..5 {
        let ops = on_each(80, |n| take(&claim_of(1_000 * round + n), None));
        let killing = async {
            server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap().ok().unwrap();
        };
        let (outcomes, ()) = tokio::join!(execute_each(&store, &ops), killing);
        for outcome in outcomes {
            let is_known = match &outcome {
                Outcome::Done(_) => true,
                Outcome::Failed(_, fault) => fault.kind == FaultKind::Disconnected,
            };
            assert!(is_known, "{outcome:?}");
        }
    }
    eventually(|| server.cli(&["PING"]).is_ok()).await;
    eventually_works(&store).await;
}
