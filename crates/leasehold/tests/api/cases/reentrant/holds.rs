//! Owners, counts, leases and losses.

use super::fixture::{MS, acquired, lock, owner, taken};
use crate::cases::store::TestStore;
use crate::until::{until, until_at_rest, until_waiting};
use leasehold::error::{AcquireError, ReleaseError};
use leasehold::{LostReason, Owner, ReentrantGuard, Released};
use leasehold_testkit::Stopwatch;
use std::time::{Duration, Instant};

on_every_store! {
    asynchronous:
    an_owner_enters_again_and_counts,
    guards_are_released_in_any_order,
    clients_that_share_an_owner_do_not_exclude_each_other,
    another_owner_is_excluded,
    without_a_scope_every_other_acquire_is_excluded,
    an_owner_enters_again_in_another_process,
    a_custom_owner_is_the_same_everywhere,
    a_short_lease_does_not_shorten_a_long_one,
    the_longest_lease_rules_in_every_process,
    leases_can_be_summed,
    an_entry_ends_by_itself_and_leaves_the_others,
    a_loss_reaches_all_guards_of_an_owner,
    a_cap_is_that_of_one_guard,
    a_dropped_guard_releases_its_reentry,
    a_run_enters_again,
    status_reports_the_owner_and_its_count,
    a_mutex_of_the_same_name_is_refused,
    a_shutdown_releases_all_entries,
}

const S: Duration = Duration::from_secs(1);

async fn an_owner_enters_again_and_counts(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (plain, other) = (a.reentrant_mutex("m").expect("a good name"), lock(&b, &owner("other")));
    let scope = a.new_owner();
    let token = scope
        .scope(async {
            let guards = [acquired(&plain).await, acquired(&plain).await, acquired(&plain).await];
            assert_eq!(guards.each_ref().map(ReentrantGuard::count), [1, 2, 3]);
            assert_eq!(plain.hold_count().await.expect("an answer"), 3);
            let token = guards[0].fencing_token();
            let mut left = 3;
            for guard in guards {
                assert_eq!(
                    (guard.fencing_token(), guard.owner()),
                    (token, &scope),
                    "one token for all entries of a hold"
                );
                guard.check().expect("held");
                let contention = taken(&other).await;
                assert_eq!(contention.owner().as_ref(), Some(&scope));
                assert_eq!(contention.holder.expect("a holder").count, left);
                left -= 1;
                let expected =
                    if left == 0 { Released::NoLongerHeld } else { Released::StillHeld { count: left } };
                assert_eq!(guard.release().await.expect("released"), expected);
            }
            token
        })
        .await;
    let next = acquired(&other).await;
    assert!(next.fencing_token() > token && next.count() == 1);
    next.release().await.expect("released");
    until_at_rest(&plain).await;
}

async fn guards_are_released_in_any_order(store: &TestStore) {
    let client = store.client("a").await;
    let lock = lock(&client, &client.new_owner());
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 0, 1]] {
        let mut guards = [(); 3].map(|()| None);
        for guard in &mut guards {
            *guard = Some(acquired(&lock).await);
        }
        for (n, which) in order.into_iter().enumerate() {
            let guard = guards[which].take().expect("each once");
            let released = guard.release().await.expect("released");
            let count = 2 - n as u64;
            assert_eq!(
                released,
                if count == 0 { Released::NoLongerHeld } else { Released::StillHeld { count } }
            );
            for guard in guards.iter().flatten() {
                guard.check().expect("the others are left alone");
            }
        }
        assert!(!lock.inspect().await.expect("an answer").held);
    }
}

async fn clients_that_share_an_owner_do_not_exclude_each_other(store: &TestStore) {
    let client = store.client("a").await;
    let plain = client.reentrant_mutex("m").expect("a good name");
    let both = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let work = || {
        let (plain, both) = (plain.clone(), both.clone());
        async move {
            let guard = acquired(&plain).await;
            // Each waits inside for the other.
            tokio::time::timeout(10 * S, both.wait()).await.expect("forks are inside at once");
            guard.release().await.expect("released")
        }
    };
    let forks = client.new_owner().sync_scope(|| [Owner::spawn(work()), Owner::spawn(work())]);
    let mut released = Vec::new();
    for fork in forks {
        released.push(fork.await.expect("no panic"));
    }
    released.sort_by_key(|released| *released == Released::NoLongerHeld);
    assert_eq!(released, [Released::StillHeld { count: 1 }, Released::NoLongerHeld]);
    until_at_rest(&plain).await;
}

async fn another_owner_is_excluded(store: &TestStore) {
    let (a, b) = (store.client("the holder").await, store.client("b").await);
    let guard = acquired(&lock(&a, &a.new_owner())).await;
    let again = acquired(&lock(&a, guard.owner())).await;
    for client in [&a, &b] {
        let contention = taken(&lock(client, &client.new_owner())).await;
        let text = contention.to_string();
        let expected = format!("held by the holder (owner {}, 2 times) for ", guard.owner());
        assert!(text.starts_with(&expected), "{text}");
        let missed = lock(client, &client.new_owner()).acquire_timeout(400 * MS).await;
        assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    }
    guard.release().await.expect("released");
    taken(&lock(&b, &b.new_owner())).await;
    again.release().await.expect("released");
    until_at_rest(&lock(&b, &b.new_owner())).await;
}

async fn without_a_scope_every_other_acquire_is_excluded(store: &TestStore) {
    let client = store.client("a").await;
    let plain = client.reentrant_mutex("m").expect("a good name");
    let guard = acquired(&plain).await;
    taken(&plain).await;
    assert_eq!(plain.hold_count().await.expect("an answer"), 0, "a caller without an owner does not hold it");
    // The owner of the guard can enter again.
    let again = guard.owner().scope(acquired(&plain)).await;
    assert_eq!(again.count(), 2);
    again.release().await.expect("released");
    guard.release().await.expect("released");
}

async fn an_owner_enters_again_in_another_process(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let here = lock(&a, &a.new_owner());
    let outer = acquired(&here).await;
    let session = here.inspect().await.expect("an answer").session;
    assert_eq!(session, Some(a.session_id()));
    let travelled = Owner::from_header(outer.owner().to_header()).expect("our own header");
    let there = b.reentrant_mutex("m").expect("a good name");
    let inner = travelled.scope(acquired(&there)).await;
    assert_eq!((inner.count(), inner.fencing_token()), (2, outer.fencing_token()));
    for lock in [&here, &there.clone().owned_by(&travelled)] {
        assert_eq!(lock.hold_count().await.expect("an answer"), 2);
    }
    // The outer entry is released first.
    assert_eq!(outer.release().await.expect("released"), Released::StillHeld { count: 1 });
    inner.check().expect("held");
    taken(&lock(&c, &c.new_owner())).await;
    let status = there.inspect().await.expect("an answer");
    assert_eq!((status.session, status.count), (None, 1), "it lives by its lease alone");
    assert_eq!(inner.release().await.expect("released"), Released::NoLongerHeld);
    until_at_rest(&here).await;
}

async fn a_custom_owner_is_the_same_everywhere(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (ours, theirs) = (lock(&a, &owner("trace 4711/ü")), lock(&b, &owner("trace 4711/ü")));
    let first = acquired(&ours).await;
    let second = acquired(&theirs).await;
    assert_eq!(second.count(), 2);
    let session = store.client("c").await;
    let named = lock(&session, &owner("trace 4711/v"));
    taken(&named).await;
    second.release().await.expect("released");
    first.release().await.expect("released");
}

async fn a_short_lease_does_not_shorten_a_long_one(store: &TestStore) {
    let client = store.client_of_leases("a").await;
    let plain = lock(&client, &client.new_owner());
    let long = acquired(&plain.clone().lease(60 * S)).await;
    until("it has its lease", async || long.remaining() > 55 * S).await;
    let short = acquired(&plain.clone().lease(400 * MS)).await;
    short.extend().await.expect("held");
    short.extend_to(10 * MS).await.expect("held");
    assert!(short.remaining() > 55 * S, "the longest rules for it, too");
    let left = plain.inspect().await.expect("an answer").remaining;
    assert!(left.is_some_and(|left| left > 55 * S), "{left:?}");
    assert!(long.remaining() > 55 * S);
    short.release().await.expect("released");
    let left = plain.inspect().await.expect("an answer").remaining;
    assert!(left.is_some_and(|left| left > 55 * S), "{left:?}");
    assert_eq!(long.release().await.expect("released"), Released::NoLongerHeld);
}

/// R10, with two processes: on re-entry the longest requested lease applies, in whichever process it was requested,
/// even where the own lease is shorter than any first lease. A cap applies to its own entry, and takes precedence.
async fn the_longest_lease_rules_in_every_process(store: &TestStore) {
    let (a, b) = (store.client_of_leases("a").await, store.client_of_leases("b").await);
    let owner = a.new_owner();
    let outer = acquired(&lock(&a, &owner).lease(40 * S)).await;
    until("it has its lease", async || outer.remaining() > 35 * S).await;
    let inner = acquired(&lock(&b, &owner).lease(2 * S)).await;
    until("it has the longest", async || inner.remaining() > 35 * S).await;
    assert!(inner.remaining() <= 40 * S && outer.remaining() <= 40 * S);
    let capped = acquired(&lock(&b, &owner).lease(2 * S).max_hold(10 * S)).await;
    until("it has its cap", async || capped.remaining() > 8 * S).await;
    assert!(capped.remaining() <= 10 * S);
    let longer = acquired(&lock(&b, &owner).lease(50 * S)).await;
    until("it has its own", async || longer.remaining() > 45 * S).await;
    assert!(inner.remaining() <= 40 * S && outer.remaining() <= 40 * S, "none lengthens another");
    for guard in [outer, longer, capped] {
        guard.release().await.expect("released");
    }
    inner.check().expect("held");
    let left = lock(&a, &owner).inspect().await.expect("an answer").remaining;
    assert!(
        left.is_some_and(|left| left > 30 * S && left <= 40 * S),
        "the lock ends with the longest lease: {left:?}"
    );
    assert_eq!(inner.release().await.expect("released"), Released::NoLongerHeld);
    let next = acquired(&lock(&b, &owner).lease(2 * S)).await;
    assert!(next.remaining() <= 2 * S, "earlier leases do not count any more");
    next.release().await.expect("released");
}

async fn leases_can_be_summed(store: &TestStore) {
    let (a, b) = (store.client_of_leases("a").await, store.client_of_leases("b").await);
    let owner = a.new_owner();
    let summed = |client| lock(client, &owner).sum_leases(true);
    let first = acquired(&summed(&a).lease(20 * S)).await;
    // Possibly before the first hold has been extended.
    let second = acquired(&summed(&a).lease(10 * S)).await;
    until("it has the sum", async || second.remaining() > 28 * S).await;
    assert!(second.remaining() <= 30 * S && first.remaining() <= 20 * S);
    let third = acquired(&summed(&b).lease(5 * S)).await;
    until("it has the sum of another process", async || third.remaining() > 33 * S).await;
    assert!(third.remaining() <= 35 * S);
    third.extend().await.expect("held");
    assert!(third.remaining() > 33 * S && third.remaining() <= 35 * S);
    // Without the policy only the longest lease counts.
    let fourth = acquired(&lock(&b, &owner).lease(4 * S)).await;
    until("it has the longest", async || fourth.remaining() > 33 * S).await;
    assert!(fourth.remaining() <= 35 * S);
    for guard in [first, second, third, fourth] {
        guard.release().await.expect("released");
    }
    let alone = acquired(&summed(&a).lease(2 * S)).await;
    assert!(alone.remaining() <= 2 * S, "there is nothing to add to");
    alone.release().await.expect("released");
}

async fn an_entry_ends_by_itself_and_leaves_the_others(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let plain = lock(&a, &a.new_owner());
    let start = Stopwatch::start();
    let brief = acquired(&plain.clone().lease(250 * MS)).await;
    let kept = acquired(&plain).await;
    assert_eq!(brief.lost().await.reason, LostReason::Expired);
    start.assert_below(1250 * MS, "lost when its own lease ends");
    kept.check().expect("held");
    let other = lock(&b, &b.new_owner());
    until("its count is gone", async || plain.hold_count().await.expect("an answer") == 1).await;
    taken(&other).await;
    // The owner still holds the lock, so no other owner has acquired it.
    let released = brief.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Expired))), "{released:?}");
    assert_eq!(kept.release().await.expect("released"), Released::NoLongerHeld);
    acquired(&other).await.release().await.expect("released");
}

async fn a_loss_reaches_all_guards_of_an_owner(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let owner = a.new_owner();
    let guards = [
        acquired(&lock(&a, &owner)).await,
        acquired(&lock(&a, &owner)).await,
        acquired(&lock(&b, &owner)).await,
    ];
    let other = lock(&c, &c.new_owner());
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { acquired(&other).await }
    });
    until_waiting(&other, 1).await;
    let seen = other.inspect_full().await.expect("an answer").observed.expect("the lock has a holder");
    let start = Instant::now();
    other.force_release(seen).await.expect("the holder is unchanged");
    for guard in guards {
        let lost = guard.lost().await;
        assert!(start.elapsed() < 5 * S, "not with its lease: {:?}", start.elapsed());
        assert!(matches!(lost.reason, LostReason::ForceReleased | LostReason::TakenOver { .. }), "{lost}");
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::Lost(_))), "{released:?}");
    }
    let next = waiter.await.expect("no panic");
    next.check().expect("it is left alone");
    next.release().await.expect("released");
}

async fn a_cap_is_that_of_one_guard(store: &TestStore) {
    let client = store.client("a").await;
    let plain = lock(&client, &client.new_owner());
    let kept = acquired(&plain).await;
    let capped = acquired(&plain.clone().max_hold(300 * MS)).await;
    assert_eq!(capped.lost().await.reason, LostReason::Capped);
    until("the entry was released", async || plain.hold_count().await.expect("an answer") == 1).await;
    kept.check().expect("held");
    let released = capped.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    assert_eq!(kept.release().await.expect("released"), Released::NoLongerHeld);
}

async fn a_dropped_guard_releases_its_reentry(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (ours, other) = (lock(&a, &a.new_owner()), lock(&b, &b.new_owner()));
    let (outer, inner) = (acquired(&ours).await, acquired(&ours).await);
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { acquired(&other).await }
    });
    until_waiting(&other, 1).await;
    drop(outer);
    a.flush().await;
    assert_eq!(ours.hold_count().await.expect("an answer"), 1);
    inner.check().expect("held");
    let start = Stopwatch::start();
    drop(inner);
    waiter.await.expect("no panic").release().await.expect("released");
    start.assert_below(700 * MS, "woken by a message, not by polling");
    until_at_rest(&other).await;
}

async fn a_run_enters_again(store: &TestStore) {
    let client = store.client("a").await;
    let plain = client.reentrant_mutex("m").expect("a good name");
    let counts = plain
        .run(async |outer| {
            let inner = plain.run(async |inner| (inner.count(), inner.owner() == outer.owner())).await;
            (outer.count(), inner.expect("entered again"))
        })
        .await;
    assert_eq!(counts.expect("held throughout"), (1, (2, true)));
    until_at_rest(&plain).await;
}

async fn status_reports_the_owner_and_its_count(store: &TestStore) {
    let (a, b) = (store.client("worker").await, store.client("b").await);
    let ours = lock(&a, &a.new_owner());
    let free = ours.inspect().await.expect("an answer");
    assert!(!free.held && !free.held_by_this_client && free.owner.is_none() && free.count == 0);
    let guards = [acquired(&ours).await, acquired(&ours).await];
    for (lock, here) in [(&ours, true), (&lock(&b, &b.new_owner()), false)] {
        let status = lock.inspect().await.expect("an answer");
        assert_eq!((status.held, status.held_by_this_client, status.count), (true, here, 2));
        assert_eq!(status.owner.as_ref(), Some(guards[0].owner()));
        assert_eq!(status.holder.as_deref(), Some("worker"));
        assert_eq!(status.fence, Some(guards[0].fencing_token()));
        assert_eq!(lock.hold_count().await.expect("an answer"), if here { 2 } else { 0 });
    }
    for guard in guards {
        guard.release().await.expect("released");
    }
}

async fn a_mutex_of_the_same_name_is_refused(store: &TestStore) {
    let client = store.client("a").await;
    let (mutex, plain) = (client.mutex("m").expect("a good name"), lock(&client, &client.new_owner()));
    let guard = acquired(&plain).await;
    let refused = mutex.try_acquire().await.expect_err("another kind");
    assert!(matches!(&refused, AcquireError::Store(fault) if !fault.is_transient()), "{refused:?}");
    assert!(refused.to_string().contains("hash"), "{refused}");
    guard.release().await.expect("released");
    let held = mutex.acquire().await.expect("it is free");
    let refused = plain.acquire().await.expect_err("another kind");
    assert!(refused.to_string().contains("string"), "{refused}");
    held.release().await.expect("released");
}

async fn a_shutdown_releases_all_entries(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let ours = lock(&a, &a.new_owner());
    let guards = [acquired(&ours).await, acquired(&ours).await, acquired(&ours).await];
    // One waiter in this process, and one in another.
    let waits = tokio::spawn({
        let lock = lock(&a, &a.new_owner());
        async move { lock.acquire().await.map(drop) }
    });
    let theirs = lock(&b, &b.new_owner());
    let next = tokio::spawn({
        let theirs = theirs.clone();
        async move { acquired(&theirs).await }
    });
    until_waiting(&theirs, 1).await;
    a.shutdown(10 * S).await.expect("the store answers");
    next.await.expect("no panic").release().await.expect("released");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    for guard in guards {
        assert_eq!(guard.check().expect_err("the hold is released").reason, LostReason::ShutDown);
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ShutDown))), "{released:?}");
    }
    assert!(matches!(ours.acquire().await, Err(AcquireError::Closed)));
    until_at_rest(&theirs).await;
}
