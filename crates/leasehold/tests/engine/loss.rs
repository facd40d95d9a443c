//! Lost holds, and how they are reported.

use crate::environment::{SuspendableMachine, client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON};
use crate::fixture::{both, force_release, mutex};
use leasehold::store::Op;
use leasehold::{AcquireError, Client, ExtendError, LostReason, ProclaimError, ReturnPermitsError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn many_lost_holds_are_reported_at_once_without_a_reason() {
    let store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Extend(_) => Behavior::NotHeld,
        Op::Inspect(_) => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    let client = store.client(300 * MS).await;
    let mut guards = Vec::new();
    for n in 0..8 {
        guards.push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    let all = futures_util::future::join_all(guards.iter().map(leasehold::Guard::lost));
    timeout(SOON, all).await.expect("not one after the other");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_extend_that_found_the_hold_gone_signals_the_loss() {
    let store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Extend(_) => Behavior::NotHeld,
        Op::Inspect(_) => Behavior::LoseRequest,
        _ => Behavior::Execute,
    });
    let client = store.client(30_000 * MS).await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    assert!(timeout(50 * MS, guard.extend()).await.is_err(), "the extend waits for the reason of the loss");
    assert!(guard.check().is_err());
    timeout(SOON, guard.lost()).await.expect("waiters for the loss are notified");
}

/// The keeper learns that the hold is gone, and asks for the reason. Calls in the meantime report that reason too.
#[tokio::test(start_paused = true)]
async fn calls_on_a_lost_hold_wait_for_the_reason_that_is_being_queried() {
    let store = FaultyStore::with_sessions(|_, op| match op {
        Op::Inspect(_) => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let operator = store.healthy_client().await;
    let client = store.client_with_timeout(2000 * MS).await;
    let leadership = client.election("e").expect("a good name").campaign().await.expect("elected");
    let both = both(&client).acquire().await.expect("acquired");
    let election = operator.election("e").expect("a good name");
    let leader = election.inspect_full().await.expect("an answer").observed.expect("it leads");
    election.force_release(leader).await.expect("deposed");
    force_release(&mutex(&operator, "a")).await;
    while leadership.check().is_ok() || both.check().is_ok() {
        sleep(MS).await;
    }
    let unknown = leadership.check().expect_err("lost");
    assert_eq!(unknown.reason, LostReason::Expired, "the store has not answered yet");
    let (published, extended, warned, extended_both) = tokio::join!(
        leadership.proclaim("ready"),
        leadership.extend(),
        leadership.warn_before(MS),
        both.extend(),
    );
    assert!(matches!(published, Err(ProclaimError::Lost(lost)) if lost.reason == LostReason::ForceReleased));
    assert!(matches!(extended, Err(ExtendError::Lost(lost)) if lost.reason == LostReason::ForceReleased));
    assert!(matches!(warned, Err(lost) if lost.reason == LostReason::ForceReleased));
    assert!(
        matches!(extended_both, Err(ExtendError::Lost(lost)) if lost.reason == LostReason::ForceReleased)
    );
}

/// The same for permits that are given back.
#[tokio::test(start_paused = true)]
async fn a_return_of_permits_waits_for_the_reason_that_is_being_queried() {
    let store = FaultyStore::with_sessions(|_, op| match op {
        Op::Inspect(_) => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let operator = store.healthy_client().await.semaphore("s", 3).expect("a good name");
    let permits = store.client_with_timeout(2000 * MS).await.semaphore("s", 3).expect("a good name");
    let mut permit = permits.acquire_many(2).await.expect("acquired");
    let holder = operator.inspect_full().await.expect("an answer").observed.expect("it has a holder");
    operator.force_release(holder).await.expect("freed");
    while permit.check().is_ok() {
        sleep(MS).await;
    }
    let returned = permit.return_permits(1).await;
    assert!(
        matches!(returned, Err(ReturnPermitsError::Lost(lost)) if lost.reason == LostReason::ForceReleased)
    );
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_with_its_lease_though_the_queue_entry_asked_for_more() {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = client_in_paused_time(memory).connect().await.expect("it connects");
    let long = client.mutex("m").expect("a good name");
    let short = long.clone().lease(500 * MS);
    let first = tokio::spawn(async move { long.acquire().await.map(drop) });
    while others.inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    let second = tokio::spawn(async move { short.acquire().await.expect("acquired") });
    sleep(20 * MS).await;
    first.abort();
    sleep(20 * MS).await;
    let start = Instant::now();
    held.release().await.expect("released");
    let guard = second.await.expect("no panic");
    assert!(guard.remaining() <= 500 * MS, "{:?}", guard.remaining());
    guard.lost().await;
    assert!(start.elapsed() < 900 * MS, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_a_suspend_is_signaled_soon_after_it() {
    let machine = SuspendableMachine { booted: Instant::now(), suspended_us: Arc::default() };
    let client = Client::with_store(memory()).environment(machine.clone()).connect();
    let client = client.await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name").lease(Duration::from_secs(3600));
    let guard = mutex.acquire().await.expect("acquired");
    sleep(100 * MS).await;
    guard.check().expect("held");
    machine.suspended_us.fetch_add(7_200_000_000, Ordering::SeqCst);
    assert!(guard.check().is_err());
    timeout(SOON, guard.lost()).await.expect("not only when the timer has caught up");
}

/// In between the store may have ended the hold, and a late request of this client may have made it anew.
#[tokio::test(start_paused = true)]
async fn the_reply_to_an_extend_revives_no_hold_whose_deadline_has_passed() {
    for by_user in [false, true] {
        let is_sent = Arc::new(AtomicBool::new(false));
        let sent = is_sent.clone();
        let store = FaultyStore::new(&memory(), move |_, op| match op {
            Op::Extend(_) => {
                sent.store(true, Ordering::SeqCst);
                Behavior::ExecuteAfter(200 * MS)
            }
            _ => Behavior::Execute,
        });
        let machine = SuspendableMachine { booted: Instant::now(), suspended_us: Arc::default() };
        let client =
            Client::with_store(store).environment(machine.clone()).connect().await.expect("it connects");
        let mutex = client.mutex("m").expect("a good name");
        // The keeper extends the first lease to the whole one.
        let mutex = if by_user { mutex.lease(2000 * MS) } else { mutex };
        let guard = Arc::new(mutex.acquire().await.expect("acquired"));
        let extending = by_user.then(|| {
            let guard = guard.clone();
            tokio::spawn(async move { guard.extend_to(Duration::from_secs(3600)).await })
        });
        while !is_sent.load(Ordering::SeqCst) {
            sleep(MS).await;
        }
        sleep(195 * MS).await;
        guard.check().expect("held");
        machine.suspended_us.fetch_add(10_000_000, Ordering::SeqCst);
        guard.check().expect_err("its lease has ended");
        if let Some(extending) = extending {
            let extended = extending.await.expect("no panic");
            assert!(matches!(extended, Err(ExtendError::Lost(_))), "{extended:?}");
        }
        sleep(10 * MS).await;
        guard.check().expect_err("it stays lost");
        let lost = timeout(SOON, guard.lost()).await.expect("that is signaled");
        assert_eq!(lost.reason, LostReason::Expired);
    }
}

/// A promoted replica may lack the hold that it is asked to confirm.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_lost_while_replicas_confirm_it_is_not_acquired() {
    let mut store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Extend(_) => Behavior::NotHeld,
        _ => Behavior::Execute,
    });
    store.confirms_after = Some(1_800 * MS);
    let lock = store.client(30_000 * MS).await.mutex("m").expect("a good name");
    let error = lock.acquire().await.expect_err("the first renewal has found it gone");
    assert!(matches!(error, AcquireError::Lost(_)), "it waits no longer for the replicas: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_ends_when_its_read_is_lost() {
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let other = store.healthy_client().await;
    let others = other.rwlock("rw").expect("a good name");
    let reading = others.read().await.expect("acquired");
    let heartbeats_fail = Arc::clone(&store.heartbeats_fail);
    let client = store.client(30_000 * MS).await;
    let lock = client.rwlock("rw").expect("a good name").lease(Duration::from_secs(3600));
    let upgradable = lock.upgradable_read().await.expect("acquired");
    sleep(100 * MS).await;
    // The store keeps the read of the lapsed session, because no waiter watches the holds of its own owner.
    heartbeats_fail.store(true, Ordering::SeqCst);
    let upgrading = tokio::spawn(upgradable.upgrade());
    sleep(Duration::from_secs(12)).await;
    heartbeats_fail.store(false, Ordering::SeqCst);
    let failed = timeout(SOON, upgrading).await.expect("it does not wait for the other reader");
    let failed = failed.expect("no panic").expect_err("another writer may write in between");
    assert!(matches!(failed.error, AcquireError::Lost(_)), "{:?}", failed.error);
    drop(failed);
    let writing = tokio::spawn(async move { others.write().await });
    reading.release().await.expect("released");
    let written = timeout(SOON, writing).await.expect("the ended upgrade does not block it");
    drop(written.expect("no panic").expect("acquired"));
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_ends_when_its_write_is_lost() {
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let others = store.healthy_client().await.rwlock("rw").expect("a good name");
    let lock = store.client(30_000 * MS).await.rwlock("rw").expect("a good name");
    let writing = lock.write().await.expect("acquired");
    let seen = others.inspect_full().await.expect("an answer").observed.expect("it is held");
    others.force_release(seen).await.expect("released");
    let blocking = others.write().await.expect("acquired");
    // The read waits for the other writer until the keeper finds the write gone.
    let downgraded = timeout(Duration::from_secs(15), writing.downgrade()).await;
    let failed = downgraded.expect("it does not wait for the other writer").expect_err("that one may write");
    assert!(matches!(failed.error, AcquireError::Lost(_)), "{:?}", failed.error);
    drop(failed);
    blocking.release().await.expect("released");
    let written = timeout(SOON, others.write()).await.expect("the ended downgrade does not block it");
    drop(written.expect("acquired"));
}
