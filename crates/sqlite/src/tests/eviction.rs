//! Dead sessions: what is taken from them, and what is recorded of it.

use super::{
    HOUR_US, SECOND_US, TestHost, WALL_US, acquire, ask, audit, claim, done, evict, granted, lock, release,
    session,
};
use leasehold_core::{Acquire, Acquired, Ended, Evicted, HoldStatus, Inspect, Op, Predecessor, Reply};

#[tokio::test]
async fn what_is_taken_from_the_dead_is_recorded_with_its_finder() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    for (finder, op) in [
        ("test 2", Op::Acquire(acquire(2, 1, false))),
        ("the watch", evict(1)),
        ("test 4", release(4, 1)),
        ("an inspection", Op::Inspect(Inspect { claim: None, details: false })),
    ] {
        let lock = lock(finder);
        // A session is used once.
        let of = 10 + u8::try_from(finder.len()).expect("a short text");
        let file = host.sessions().create(session(of)).expect("a fresh session");
        let fence = granted(&store, &lock, of, 1).await;
        ask(&store, &lock, acquire(4, 1, true)).await;
        drop(file);
        let op = if let Op::Evict(_) = op { evict(of) } else { op };
        let reply = done(&store, &lock, op).await;
        if let Reply::Evict(evicted) = reply {
            assert_eq!(
                evicted,
                Evicted::Removed { fence: Some(fence), was_queued: false },
                "the reply reports what was taken"
            );
        }
        let expected = (Ended::Evicted, format!("test {of}"), finder.to_owned());
        assert_eq!(audit(&store, &lock).await, [expected]);
        let claim = Some(claim(of, 1));
        let asked = done(&store, &lock, Op::Inspect(Inspect { claim, details: false })).await;
        assert!(
            matches!(asked, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Ended(Ended::Evicted)))
        );
    }
}

#[tokio::test]
async fn an_evict_takes_from_the_dead_alone_and_grants_to_the_living() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let files = [1, 2, 3].map(|n| host.sessions().create(session(n)).expect("a fresh session"));
    granted(&store, &lock("a"), 1, 1).await;
    for n in [2, 3] {
        ask(&store, &lock("a"), acquire(n, 1, true)).await;
    }
    for n in [1, 2, 3, 9] {
        assert_eq!(
            done(&store, &lock("a"), evict(n)).await,
            Reply::Evict(Evicted::Alive),
            "also a session without a file"
        );
    }
    let [holder, first, _live] = files;
    drop((holder, first));
    assert!(matches!(
        done(&store, &lock("a"), evict(1)).await,
        Reply::Evict(Evicted::Removed { fence: Some(_), .. })
    ));
    granted(&store, &lock("a"), 3, 1).await;
    assert_eq!(
        done(&store, &lock("a"), evict(2)).await,
        Reply::Evict(Evicted::Removed { fence: None, was_queued: false })
    );
}

#[tokio::test]
async fn a_predecessor_is_alive_by_its_file_or_loses_its_queue_entry() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let file = host.sessions().create(session(2)).expect("a fresh session");
    ask(&store, &lock("a"), acquire(2, 1, true)).await;
    let look = Acquire { predecessor: Some(session(2)), ..acquire(3, 1, true) };
    let Acquired::Taken { predecessor, .. } = ask(&store, &lock("a"), look.clone()).await else {
        panic!("taken")
    };
    assert_eq!(predecessor, Some(Predecessor { session: session(2), alive_ms: Some(u64::MAX) }));
    drop(file);
    let Acquired::Taken { predecessor, position, .. } = ask(&store, &lock("a"), look).await else {
        panic!("taken")
    };
    assert_eq!((predecessor, position), (Some(Predecessor { session: session(1), alive_ms: None }), Some(0)));
}

#[tokio::test]
async fn the_dead_are_buried_in_every_lock_though_their_file_goes_with_the_first() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let file = host.sessions().create(session(1)).expect("a fresh session");
    for name in ["a", "b"] {
        granted(&store, &lock(name), 1, 1).await;
        assert!(matches!(ask(&store, &lock(name), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    }
    drop(file);
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(host.sessions().find_dead(9), [], "its file is gone");
    granted(&store, &lock("b"), 2, 1).await;
    assert_eq!(host.query::<i64>("SELECT count(*) FROM dead"), 1);
    host.advance(2 * HOUR_US);
    for n in 0..64_u8 {
        granted(&store, &lock("c"), 3, n).await;
        done(&store, &lock("c"), release(3, n)).await;
    }
    assert_eq!(host.query::<i64>("SELECT count(*) FROM dead"), 0, "no row can contain it any more");
}

#[tokio::test]
async fn dead_waiters_are_skipped_and_their_leases_cost_no_time() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let files: Vec<_> =
        (10..60).map(|n| host.sessions().create(session(n)).expect("a fresh session")).collect();
    for n in 10..60 {
        ask(&store, &lock("a"), acquire(n, 1, true)).await;
    }
    ask(&store, &lock("a"), acquire(2, 1, true)).await;
    drop(files);
    done(&store, &lock("a"), release(1, 1)).await;
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(host.sessions().find_dead(99), [], "they left nothing behind");
}

#[tokio::test]
async fn a_session_whose_file_is_missing_is_not_dead() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let file = host.sessions().create(session(1)).expect("a fresh session");
    granted(&store, &lock("a"), 1, 1).await;
    host.sessions().remove(session(1));
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    drop(file);
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    host.advance(4 * SECOND_US);
    granted(&store, &lock("a"), 2, 1).await;
}
