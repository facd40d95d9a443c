//! Reboots: holds end, and tokens grow.

use super::{
    HOUR_US, SECOND_US, TestHost, WALL_US, WITHIN, acquire, ask, audit, claim, done, granted, inspect, label,
    lock, release,
};
use leasehold_core::{
    Acquired, Ended, Extend, Extended, ForceRelease, HoldStatus, Inspect, ObservedHolder, Op, Reply, Reserve,
    TokenBlock,
};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use std::sync::atomic::Ordering;

#[tokio::test]
async fn a_reboot_is_written_down_with_its_time() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("held"), 1, 1).await;
    granted(&store, &lock("expired"), 2, 1).await;
    done(
        &store,
        &lock("held"),
        Op::Extend(Extend {
            claim: claim(1, 1),
            lease_ms: 7_200_000,
            keep_record: true,
            reserve: None,
            fence: None,
        }),
    )
    .await;
    drop(store);
    let store = host.open("boot-2", WALL_US + HOUR_US / 2).await;
    let audit_of_held = inspect(&store, &lock("held")).await.audit;
    assert_eq!(audit_of_held.len(), 1);
    assert_eq!(audit_of_held[0].at_ms, (WALL_US + HOUR_US / 2) / 1000);
    assert_eq!(audit_of_held[0].actor, label("a new boot"));
    assert_eq!(audit(&store, &lock("expired")).await, [], "it had expired and was not taken");
}

#[tokio::test]
async fn a_reboot_ends_all_holds_and_tokens_grow_though_the_wall_clock_fell_back() {
    let host = TestHost::new();
    let first = host.open("boot-1", WALL_US).await;
    let fence = granted(&first, &lock("a"), 1, 1).await;
    assert_eq!(fence.as_u64(), WALL_US, "tokens look like the wall clock's microseconds");
    assert!(matches!(
        ask(&first, &lock("a"), acquire(2, 1, true)).await,
        Acquired::Taken { position: Some(0), .. }
    ));
    drop(first);
    for (boot, wall_us) in [("boot-2", 0), ("boot-3", WALL_US / 2), ("boot-4", WALL_US + HOUR_US)] {
        host.clock.store(7, Ordering::Relaxed);
        let store = host.open(boot, wall_us).await;
        let Reply::Inspect(seen) =
            done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, details: false })).await
        else {
            panic!("not an inspection")
        };
        assert_eq!((seen.holder, seen.waiters), (None, 0), "{boot}");
    }
    let store = host.open("boot-4", 5).await;
    let asked = Op::Inspect(Inspect { claim: Some(claim(1, 1)), details: false });
    let Reply::Inspect(seen) = done(&store, &lock("a"), asked).await else { panic!("not an inspection") };
    assert_eq!(seen.hold_status, Some(HoldStatus::Ended(Ended::Evicted)));
    let later = granted(&store, &lock("a"), 3, 1).await;
    assert_eq!(later.as_u64(), WALL_US + HOUR_US, "the wall clock is believed where it can be");
}

/// Tokens reserved for a hold may be hours later than the one that it was granted.
#[tokio::test]
async fn a_new_boot_is_later_than_what_was_reserved_before() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    let extend = |lease_ms, reserve| {
        Op::Extend(Extend { claim: claim(1, 1), lease_ms, keep_record: true, reserve, fence: None })
    };
    done(&store, &lock("a"), extend(7_200_000, None)).await;
    host.advance(HOUR_US);
    let reply = done(
        &store,
        &lock("a"),
        extend(1, Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: false })),
    )
    .await;
    let Reply::Extend(Extended::Reserved { mut block, .. }) = reply else { panic!("{reply:?}") };
    let last = std::iter::from_fn(|| block.pop_first()).last().expect("a block has one token at least");
    assert!(last.as_u64() >= fence.as_u64() + HOUR_US);
    drop(store);
    host.clock.store(7, Ordering::Relaxed);
    let store = host.open("boot-2", 0).await;
    let audit = inspect(&store, &lock("a")).await.audit;
    assert!(audit[0].at_ms >= last.as_u64() / 1000, "{audit:?}");
    assert!(granted(&store, &lock("a"), 2, 1).await > last);
}

#[tokio::test]
async fn tokens_of_forgotten_locks_grow_over_a_reboot_too() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    host.advance(2 * HOUR_US);
    done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, details: false })).await;
    assert_eq!(host.query::<i64>("SELECT count(*) FROM locks"), 0, "nothing is left to remember");
    drop(store);
    let store = host.open("boot-2", 0).await;
    assert!(granted(&store, &lock("a"), 1, 2).await > fence);
}

#[tokio::test]
async fn tokens_grow_over_a_reboot_if_only_the_audit_remains() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor: label("the watch") });
    done(&store, &lock("a"), free).await;
    host.advance(2 * HOUR_US);
    let later = granted(&store, &lock("a"), 2, 1).await;
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(later), actor: label("the watch") });
    done(&store, &lock("a"), free).await;
    host.advance(2 * HOUR_US);
    assert_eq!(inspect(&store, &lock("a")).await.audit.len(), 2);
    drop(store);
    host.clock.store(7, Ordering::Relaxed);
    let store = host.open("boot-2", 0).await;
    assert!(granted(&store, &lock("a"), 3, 2).await > later);
}

#[tokio::test]
async fn a_store_that_has_gone_to_another_boot_is_refused() {
    let host = TestHost::new();
    let ours = host.open("boot-1", WALL_US).await;
    granted(&ours, &lock("a"), 1, 1).await;
    let theirs = host.open("boot-2", WALL_US).await;
    granted(&theirs, &lock("a"), 2, 1).await;
    let outcome = ours.execute(&lock("a"), &Op::Acquire(acquire(1, 1, false)), WITHIN).await;
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
}

#[tokio::test]
async fn an_open_again_in_the_same_boot_keeps_all_as_it_was() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    drop(store);
    host.advance(SECOND_US);
    let store = host.open("boot-1", 0).await;
    assert_eq!(granted(&store, &lock("a"), 1, 1).await, fence, "it holds it still");
    done(&store, &lock("a"), release(1, 1)).await;
    assert!(granted(&store, &lock("a"), 2, 1).await > fence);
}
