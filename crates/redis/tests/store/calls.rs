//! The commands that the store sends, and the assignment of replies to operations.

use crate::fixture::{
    LONG, acquire, acquire_of, ask, claim, connect, execute, execute_on, found, granted, nonce, release, take,
};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, FenceRaised, FencingToken, HoldStatus, Inspect, Inspection,
    Kind, OwnValue, RaiseFence, Refused, Release, ReleaseAction,
};
use leasehold_redis::RedisStore;
use leasehold_store::{Executed, Fault, FaultKind, Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::RedisServer;

#[tokio::test]
async fn a_batch_has_an_outcome_for_each() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["LPUSH", "list", "x"]).unwrap();
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    let lock = |name: &str| Lock::mutex(name.parse().unwrap());
    let ops = [
        (lock("a"), take(&claim(1), None)),
        (lock("list"), take(&claim(2), None)),
        (lock("b}"), take(&claim(3), None)),
        (lock("a"), take(&claim(4), None)),
        (lock("a"), Op::Inspect(Inspect { claim: Some(claim(1)), details: false })),
    ];
    for _ in 0..2 {
        let outcomes = store.execute_all(&ops, LONG).await;
        let [first, second, third, fourth, fifth] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(matches!(first, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{first:?}");
        assert!(matches!(second, Outcome::Done(Reply::Refused(Refused::WrongKind { .. }))), "{second:?}");
        assert!(
            matches!(third, Outcome::Failed(Executed::No, Fault { kind: FaultKind::Unusable(_), .. })),
            "{third:?}"
        );
        assert!(matches!(fourth, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{fourth:?}");
        assert!(
            matches!(fifth, Outcome::Done(Reply::Inspect(seen)) if seen.hold_status == Some(HoldStatus::Held))
        );
    }
    assert!(store.execute_all(&[], LONG).await.is_empty());
}

/// Holds identified by their tokens are extended together, all others separately.
#[tokio::test]
async fn extends_that_follow_one_another_are_one_call() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let lock = |n: u8| Lock::mutex(format!("job/{n}").parse().unwrap());
    let extend =
        |n: u8| Extend { claim: claim(n), lease_ms: 90_000, keep_record: false, reserve: None, fence: None };
    for n in 0..100 {
        if n % 10 != 3 {
            let taken = store.execute(&lock(n), &take(&claim(n), None), LONG).await;
            assert!(matches!(taken, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{taken:?}");
        }
    }
    server.cli(&["DEL", "job/7"]).unwrap().ok().unwrap();
    server.cli(&["LPUSH", "job/7", "x"]).unwrap().ok().unwrap();
    let mut ops: Vec<_> = (0..100).map(|n| (lock(n), Op::Extend(extend(n)))).collect();
    let kept = Extend { keep_record: true, ..extend(80) };
    ops[80].1 = Op::Extend(kept);
    ops[90].0 = Lock::mutex("b}".parse().unwrap());
    // The first calls load the scripts.
    drop(store.execute_all(&ops, LONG).await);
    for (flushed, requests) in [(false, 4), (true, 4)] {
        if flushed {
            server.cli(&["SCRIPT", "FLUSH"]).unwrap();
        }
        server.reset_counts().unwrap();
        let outcomes = store.execute_all(&ops, LONG).await;
        assert_eq!(outcomes.len(), ops.len());
        for (n, outcome) in outcomes.iter().enumerate() {
            let expected = match n {
                7 => Extended::NotHeld,
                90 => {
                    assert!(matches!(
                        outcome,
                        Outcome::Failed(Executed::No, Fault { kind: FaultKind::Unusable(_), .. })
                    ));
                    continue;
                }
                n if n % 10 == 3 => Extended::NotHeld,
                _ => Extended::Extended,
            };
            let right = matches!(outcome, Outcome::Done(Reply::Extend(extended)) if *extended == expected);
            assert!(right, "{n}: {outcome:?}");
        }
        // 64, then those up to the hold that keeps its record, that one, and those after it; the last of these once
        // more after a name that is refused.
        let counts = server.command_counts().unwrap();
        let calls = counts["evalsha"];
        assert!(if flushed { calls > requests + 1 } else { calls == requests + 1 }, "{calls}");
    }
    let left_ms = server.cli(&["PTTL", "job/99"]).unwrap().integer().unwrap();
    assert!((30_001..=90_000).contains(&left_ms), "{left_ms}");
}

/// Locks of one kind are inspected together, up to 32 in a call. Each has the reply that it has alone.
#[tokio::test]
async fn inspections_that_follow_one_another_are_one_call() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for n in 0..40_u8 {
        if n % 2 == 0 {
            granted(acquire_of(&store, &format!("job/{n}"), &claim(n)).await);
        }
    }
    // A queue, a lock of another library, a key that is no lock, a record of another version, and a name that no lock can have.
    drop(execute_on(&store, "job/2", take(&claim(50), Some(nonce(1))), LONG).await);
    server.cli(&["SET", "job/3", "theirs"]).unwrap().ok().unwrap();
    server.cli(&["LPUSH", "job/5", "x"]).unwrap().integer().unwrap();
    server.cli(&["SET", "leasehold:{job/7}:record:mutex:job/7", "9\nx"]).unwrap().ok().unwrap();
    // A damaged record, of which the call for several says nothing.
    server
        .cli(&["SET", "leasehold:{job/9}:record:mutex:job/9", "1\n7\n\n\nno holder"])
        .unwrap()
        .ok()
        .unwrap();
    server.cli(&["SET", "job/9", "someone"]).unwrap().ok().unwrap();
    for kind in [Kind::Reentrant, Kind::Election] {
        let value = kind.has_owners().then(|| OwnValue::new("owner").unwrap());
        let request =
            Acquire { lease_ms: 40_000, claim: Claim { value, ..claim(60) }, ..ask(&claim(60), None) };
        granted(store.execute(&named(kind), &Op::Acquire(request), LONG).await);
    }
    let mut ops: Vec<_> = (0..40).map(|n| (job_of(n, Kind::Mutex), look(false))).collect();
    ops[33].0 = Lock::mutex("b}".parse().unwrap());
    for kind in [Kind::Reentrant, Kind::Election] {
        ops.extend((0..4).map(|n| (job_of(n, kind), look(false))));
        ops.push((named(kind), look(false)));
    }
    ops.extend((0..2).map(|n| (job_of(n, Kind::Semaphore), look(false))));
    ops.extend((0..2).map(|n| (job_of(n, Kind::Mutex), look(true))));
    let mut alone = Vec::new();
    for (lock, op) in &ops {
        alone.push(in_round_time(store.execute(lock, op, LONG).await));
    }
    assert!(alone[2].contains("waiters: 1") && alone[3].contains("label: None"), "{} {}", alone[2], alone[3]);
    for is_known in [true, false] {
        if !is_known {
            server.cli(&["SCRIPT", "FLUSH"]).unwrap();
        }
        server.reset_counts().unwrap();
        let together = store.execute_all(&ops, LONG).await;
        let together: Vec<_> = together.into_iter().map(in_round_time).collect();
        for ((of, one), other) in ops.iter().zip(&together).zip(&alone) {
            assert_eq!(one, other, "{of:?}");
        }
        if is_known {
            // 32 Mutexes, the one before the name that is refused, those after it, the other kinds, each of the last four, and
            // that with the damaged record.
            assert_eq!(server.command_counts().unwrap()["evalsha"], 1 + 1 + 1 + 2 + 2 + 2 + 1);
        }
    }
}

/// A lock that the server's user may not read fails none of the others.
#[tokio::test]
async fn a_lock_that_is_denied_fails_no_other_inspection() {
    let server = RedisServer::start().unwrap();
    let rules = ["ACL", "SETUSER", "reader", "on", ">word", "~*job/1*", "~*job/2*", "+@all"];
    server.cli(&rules).unwrap().ok().unwrap();
    let url = server.url().replace("redis://", "redis://reader:word@");
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
    let ops: Vec<_> = [1, 3, 2].map(|n| (job_of(n, Kind::Mutex), look(false))).into();
    let outcomes = store.execute_all(&ops, LONG).await;
    let [Outcome::Done(_), Outcome::Failed(Executed::No, fault), Outcome::Done(_)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(fault.kind, FaultKind::Forbidden);
}

fn job_of(n: u8, kind: Kind) -> Lock {
    Lock { name: format!("job/{n}").parse().unwrap(), kind }
}

/// A lock that is held for longer than the others.
fn named(kind: Kind) -> Lock {
    Lock { name: format!("long/{}", kind.as_str()).parse().unwrap(), kind }
}

/// The outcome of an inspection, as a text, with its times in units of 20 s.
fn in_round_time(mut outcome: Outcome) -> String {
    if let Outcome::Done(Reply::Inspect(Inspection { holder: Some(holder), .. })) = &mut outcome {
        holder.remaining_ms = holder.remaining_ms.map(|ms| ms.div_ceil(20_000));
    }
    format!("{outcome:?}")
}

fn look(details: bool) -> Op {
    Op::Inspect(Inspect { claim: None, details })
}

/// An uncontended lock is cheap: this many commands inside the scripts, and no more.
#[tokio::test]
async fn the_commands_of_an_uncontended_lock_are_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let extend = |n| {
        Op::Extend(Extend {
            claim: claim(n),
            lease_ms: 30_000,
            keep_record: false,
            reserve: None,
            fence: None,
        })
    };
    drop(execute(&store, &extend(1), LONG).await);
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    let mut counted = Vec::new();
    for what in ["acquire", "extend", "release"] {
        server.reset_counts().unwrap();
        match what {
            "acquire" => granted(acquire(&store, &claim(2), Some(nonce(1))).await),
            "extend" => drop(execute(&store, &extend(2), LONG).await),
            _ => assert_eq!(found(release(&store, &claim(2)).await), HoldStatus::Held),
        }
        let mut counts = server.command_counts().unwrap();
        assert_eq!(counts.remove("evalsha"), Some(1), "one request");
        counts.retain(|name, _| !name.starts_with("config") && name != "info");
        counted.push(format!("{what}: {}", counts.values().sum::<u64>()));
    }
    assert_eq!(counted, ["acquire: 4", "extend: 2", "release: 4"]);
}

/// A quorum gives a hold to a node later than to the others, and the token with it. Later tokens are greater all the same.
#[tokio::test]
async fn an_exact_token_replaces_that_of_the_grant() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for kind in [Kind::Mutex, Kind::Reentrant] {
        let lock = Lock { kind, name: kind.as_str().parse().unwrap() };
        let execute = async |op: Op| match store.execute(&lock, &op, LONG).await {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{other:?}"),
        };
        let owned = |n: u8| {
            let value = kind.has_owners().then(|| OwnValue::new(format!("owner:{n}")).unwrap());
            Claim { value, ..claim(n) }
        };
        let granted = async |n: u8| {
            let Op::Acquire(acquire) = take(&owned(n), None) else { panic!("an acquire") };
            match execute(Op::Acquire(Acquire { claim: owned(n), ..acquire })).await {
                Reply::Acquire(Acquired::Granted { fence, .. }) => fence,
                other => panic!("{kind:?}: {other:?}"),
            }
        };
        let own = granted(1).await;
        let seen = async || match execute(Op::Inspect(Inspect { claim: None, details: false })).await {
            Reply::Inspect(seen) => seen.holder.and_then(|holder| holder.fence).unwrap(),
            other => panic!("{kind:?}: {other:?}"),
        };
        for (fence, exact, expected) in [
            (own.as_u64() - 5_000, true, own.as_u64() - 5_000),
            (own.as_u64() - 9_000, false, own.as_u64() - 5_000),
            (own.as_u64() + 9_000_000, true, own.as_u64() + 9_000_000),
            (own.as_u64() - 5_000, true, own.as_u64() - 5_000),
        ] {
            let raise = RaiseFence { claim: owned(1), fence: FencingToken::new(fence), exact };
            assert_eq!(execute(Op::RaiseFence(raise.clone())).await, Reply::RaiseFence(FenceRaised::Raised));
            assert_eq!(seen().await, FencingToken::new(expected), "{kind:?}: {raise:?}");
        }
        let other = RaiseFence { claim: owned(2), fence: FencingToken::new(1), exact: true };
        assert_eq!(execute(Op::RaiseFence(other)).await, Reply::RaiseFence(FenceRaised::NotHeld));
        execute(Op::Release(Release {
            claim: owned(1),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        }))
        .await;
        assert!(granted(3).await > own, "{kind:?}");
    }
}
