//! A Mutex.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, ExtendError, ReleaseError};
use leasehold::store::FaultKind;
use leasehold::{Attempt, LostReason, RetryPolicy};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

on_every_store! {
    asynchronous:
    a_lock_delay_follows_a_loss_and_no_release,
    one_at_a_time_over_tasks_and_clients,
    a_release_hands_the_lock_on_and_tokens_grow,
    a_try_reports_the_holder,
    a_try_does_not_overtake_waiters,
    waiting_ends_at_its_limit_and_reports_the_holder,
    a_dropped_guard_releases_the_lock,
    tasks_of_a_process_are_served_in_order,
    processes_are_served_in_order,
    a_process_has_one_queue_entry_per_lock,
    thousands_give_up_at_once,
    a_timeout_of_zero_tries_once,
    a_watchdog_keeps_the_lock,
    a_given_lease_ends_when_it_ends,
    a_lease_can_last_until_an_instant,
    a_late_release_leaves_the_successor_alone,
    an_extend_lengthens_and_never_shortens,
    a_retry_policy_gives_up_after_its_tries,
    a_try_waits_for_a_release_of_its_own_client,
    equal_custom_values_exclude_each_other,
    a_waiter_that_gives_up_leaves_the_queue,
    after_a_loss_local_waiters_queue_again,
    leases_from_a_millisecond_to_days,
    try_acquire_cancelled_at_every_await,
    acquire_cancelled_at_every_await,
    waiting_cancelled_at_every_await,
    release_cancelled_at_every_await,
    a_release_with_local_waiters_cancelled_at_every_await,
    extend_cancelled_at_every_await,
    two_tasks_share_a_handle_and_each_has_its_own_hold,
    a_watchdog_never_extends_after_the_release,
    status_of_a_lock,
    a_hold_that_has_reached_its_cap_is_lost_and_goes_to_the_next,
    a_watchdog_renews_as_often_as_it_may,
    an_extend_reaches_the_cap_and_not_beyond,
    a_holder_is_warned_before_its_hold_ends,
    a_holder_learns_that_another_client_or_task_waits,
    a_shutdown_releases_everything,
    a_dropped_shutdown_continues,
}

const MS: Duration = Duration::from_millis(1);

async fn a_holder_is_warned_before_its_hold_ends(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name").lease(2_000 * MS);
    let guard = mutex.acquire().await.expect("acquired");
    guard.warn_before(500 * MS).await.expect("it is held");
    assert!(guard.remaining() < 500 * MS, "{:?}", guard.remaining());
    guard.warn_before(3_000 * MS).await.expect("that little is left already");
    // An extend goes before the warning, and a loss ends the wait.
    let mut warned = Box::pin(guard.warn_before(400 * MS));
    assert!(futures_util::poll!(&mut warned).is_pending());
    guard.extend_to(60_000 * MS).await.expect("extended");
    tokio::time::sleep(500 * MS).await;
    assert!(futures_util::poll!(&mut warned).is_pending());
    let observed = mutex.inspect_full().await.expect("an answer").observed.expect("it is held");
    mutex.force_release(observed).await.expect("released");
    assert_eq!(warned.await.expect_err("it is lost").reason, LostReason::ForceReleased);
    assert!(guard.warn_before(MS).await.is_err() && guard.wanted().await.is_err());
}

async fn a_holder_learns_that_another_client_or_task_waits(store: &TestStore) {
    let (one, other) = (store.client("one").await, store.client("other").await);
    let (mine, theirs) = (one.mutex("m").expect("a good name"), other.mutex("m").expect("a good name"));
    for waiter in [theirs, mine.clone()] {
        let guard = mine.acquire().await.expect("acquired");
        let mut wanted = Box::pin(guard.wanted());
        assert!(tokio::time::timeout(300 * MS, &mut wanted).await.is_err(), "no client waits");
        let waiting = tokio::spawn(async move { waiter.acquire().await.expect("acquired").release().await });
        wanted.await.expect("it is held");
        guard.release().await.expect("released");
        waiting.await.expect("no panic").expect("released");
    }
}

async fn one_at_a_time_over_tasks_and_clients(store: &TestStore) {
    let inside = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for n in 0..4 {
        let client = store.client(&format!("client {n}")).await;
        for _ in 0..4 {
            let mutex = client.mutex("counter").expect("a good name");
            let (inside, count) = (inside.clone(), count.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..25 {
                    let guard = mutex.acquire().await.expect("acquired");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
                    tokio::task::yield_now().await;
                    count.fetch_add(1, Ordering::SeqCst);
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    assert_eq!(count.load(Ordering::SeqCst), 400);
    until_at_rest(&store.client("after").await.mutex("counter").expect("a good name")).await;
}

async fn a_release_hands_the_lock_on_and_tokens_grow(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let first = a.acquire().await.expect("acquired");
    let token = first.fencing_token();
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.acquire().await.expect("acquired") }
    });
    until_waiting(&a, 1).await;
    let start = Stopwatch::start();
    first.release().await.expect("released");
    let second = waiter.await.expect("no panic");
    start.assert_below(700 * MS, "woken by a message, not by polling");
    assert!(second.fencing_token() > token);
    second.check().expect("held");
    second.release().await.expect("released");
    until_at_rest(&a).await;
}

async fn a_try_reports_the_holder(store: &TestStore) {
    let (a, b) = (store.client("the holder").await, store.client("b").await);
    let guard = a.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let b = b.mutex("m").expect("a good name");
    let Attempt::Taken(contention) = b.try_acquire().await.expect("an answer") else { panic!("two hold it") };
    let holder = contention.holder.clone().expect("the lock has a holder");
    assert_eq!(holder.label.map(|label| label.to_string()).as_deref(), Some("the holder"));
    assert!(holder.remaining_ms.is_some_and(|ms| ms > 0 && ms <= 30_000), "{:?}", holder.remaining_ms);
    assert!(contention.to_string().starts_with("held by the holder for "), "{contention}");
    // A second task of the holder's own process gets the same result, without a request.
    let Attempt::Taken(own) = a.mutex("m").expect("a good name").try_acquire().await.expect("an answer")
    else {
        panic!("a Mutex does not re-enter")
    };
    assert!(own.to_string().starts_with("held by the holder for "), "{own}");
    guard.release().await.expect("released");
    let guard = b.try_acquire().await.expect("an answer").granted().expect("it is free");
    guard.release().await.expect("released");
}

async fn a_try_does_not_overtake_waiters(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let mutex = |client: &leasehold::Client| client.mutex("m").expect("a good name");
    let guard = mutex(&a).acquire().await.expect("acquired");
    let b = mutex(&b);
    let waiter = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    until_waiting(&mutex(&a), 1).await;
    guard.release().await.expect("released");
    for _ in 0..20 {
        let tried = mutex(&c).try_acquire().await.expect("an answer");
        assert!(matches!(tried, Attempt::Taken(_)), "barged in before the waiter");
    }
    waiter.await.expect("no panic").release().await.expect("released");
}

async fn waiting_ends_at_its_limit_and_reports_the_holder(store: &TestStore) {
    let (a, b) = (store.client("a long job").await, store.client("b").await);
    let _guard = a.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let b = b.mutex("m").expect("a good name");
    for by_setting in [false, true] {
        let start = Stopwatch::start();
        let missed = if by_setting {
            b.clone().max_wait(600 * MS).acquire().await
        } else {
            b.acquire_timeout(600 * MS).await
        };
        assert!(start.elapsed() >= 600 * MS, "{:?}", start.elapsed());
        start.assert_below(1480 * MS, "it gives up in time");
        let Err(AcquireError::TimedOut { contention, .. }) = missed else { panic!("{missed:?}") };
        assert!(contention.to_string().contains("a long job"), "{contention}");
    }
    let status = b.inspect().await.expect("an answer");
    until_waiting(&b, 0).await;
    assert!(status.held);
}

async fn a_dropped_guard_releases_the_lock(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a1, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    drop(a1.acquire().await.expect("acquired"));
    a.flush().await;
    let guard = b.try_acquire().await.expect("an answer").granted().expect("it is free");
    drop(guard);
    // A waiter is notified at once.
    let guard = a1.acquire().await.expect("acquired");
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.acquire().await.expect("acquired") }
    });
    until_waiting(&a1, 1).await;
    let start = Stopwatch::start();
    drop(guard);
    drop(waiter.await.expect("no panic"));
    start.assert_below(700 * MS, "released and woken by a message");
    until_at_rest(&a1).await;
}

async fn tasks_of_a_process_are_served_in_order(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..20 {
        let mut next = Box::pin({
            let (mutex, order) = (mutex.clone(), order.clone());
            async move {
                let guard = mutex.acquire().await.expect("acquired");
                order.lock().expect("no panic").push(n);
                guard.release().await.expect("released");
            }
        });
        // Polled once, so that it queues before the next one is created.
        let stands = std::future::poll_fn(|cx| std::task::Poll::Ready(next.as_mut().poll(cx).is_pending()));
        assert!(stands.await);
        tasks.push(tokio::spawn(next));
    }
    guard.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), (0..20).collect::<Vec<_>>());
}

async fn processes_are_served_in_order(store: &TestStore) {
    let holder = store.client("holder").await.mutex("m").expect("a good name");
    let guard = holder.acquire().await.expect("acquired");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..8 {
        let mutex = store.client(&format!("{n}")).await.mutex("m").expect("a good name");
        let order = order.clone();
        tasks.push(tokio::spawn(async move {
            let guard = mutex.acquire().await.expect("acquired");
            order.lock().expect("no panic").push(n);
            guard.release().await.expect("released");
        }));
        until_waiting(&holder, n + 1).await;
    }
    guard.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), (0..8).collect::<Vec<_>>());
}

async fn a_process_has_one_queue_entry_per_lock(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let guard = a.acquire().await.expect("acquired");
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let b = b.clone();
        tasks.push(tokio::spawn(async move { b.acquire().await.expect("acquired").release().await }));
    }
    until_waiting(&a, 1).await;
    tokio::time::sleep(20 * MS).await;
    assert_eq!(a.inspect().await.expect("an answer").waiting, 1);
    guard.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic").expect("released");
    }
    until_at_rest(&a).await;
}

async fn thousands_give_up_at_once(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let guard = a.acquire().await.expect("acquired");
    for mutex in [&a, &b] {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..5000 {
            let mutex = mutex.clone();
            tasks.spawn(async move { mutex.acquire_timeout(200 * MS).await });
        }
        while let Some(missed) = tasks.join_next().await {
            match missed.expect("no panic") {
                Err(AcquireError::TimedOut { .. }) => {}
                // The time ended while a request was on its way, or before the store could begin with it.
                Err(AcquireError::Unknown(fault) | AcquireError::Store(fault))
                    if fault.kind == FaultKind::TimedOut => {}
                other => panic!("{other:?}"),
            }
        }
    }
    until_waiting(&a, 0).await;
    guard.release().await.expect("released");
    until_at_rest(&b).await;
}

async fn a_timeout_of_zero_tries_once(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let guard = a.acquire_timeout(Duration::ZERO).await.expect("it is free");
    let missed = b.acquire_timeout(Duration::ZERO).await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    assert_eq!(a.inspect().await.expect("an answer").waiting, 0);
    guard.release().await.expect("released");
}

async fn a_watchdog_keeps_the_lock(store: &TestStore) {
    let client = store.client_with("a", 900 * MS).await;
    let other = store.client("b").await.mutex("m").expect("a good name");
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let start = Instant::now();
    while start.elapsed() < 2700 * MS {
        assert!(matches!(other.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
        guard.check().expect("held");
        tokio::time::sleep(20 * MS).await;
    }
    assert!(guard.remaining() <= 900 * MS);
    guard.release().await.expect("released");
}

async fn a_given_lease_ends_when_it_ends(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let guard = a.clone().lease(250 * MS).acquire().await.expect("acquired");
    let signal = guard.lost_signal();
    let start = Stopwatch::start();
    let next = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(signal.is_cancelled());
    start.assert_below(250 * MS + 200 * MS, "lost when the lease ends");
    assert_eq!(guard.check().expect_err("over").reason, LostReason::Expired);
    assert_eq!(guard.remaining(), Duration::ZERO);
    let next = next.await.expect("no panic");
    assert!(
        start.elapsed() >= 245 * MS,
        "the successor acquires after the lease ends: {:?}",
        start.elapsed()
    );
    let Err(ReleaseError::Lost(reason)) = guard.release().await else { panic!("a lost hold was released") };
    assert!(matches!(reason, LostReason::TakenOver { .. }), "{reason:?}");
    next.check().expect("held");
    next.release().await.expect("released");
}

async fn a_lease_can_last_until_an_instant(store: &TestStore) {
    let client = store.client_of_leases("a").await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.clone().lease(SystemTime::now() + 40 * Duration::from_secs(1)).acquire().await;
    let guard = guard.expect("acquired");
    // The short first lease is extended at once, in the background.
    let start = Stopwatch::start();
    while guard.remaining() < Duration::from_secs(35) {
        start.assert_below(2000 * MS, "extended to the whole lease");
        tokio::time::sleep(5 * MS).await;
    }
    assert!(guard.remaining() <= Duration::from_secs(40));
    guard.release().await.expect("released");
    let past = mutex.clone().lease(SystemTime::now() - MS).acquire().await;
    assert!(matches!(past, Err(AcquireError::Lease(_))), "{past:?}");
    // A deadline that passes while the task waits.
    let other = store.client("b").await.mutex("m").expect("a good name");
    let held = other.lease(1000 * MS).acquire().await.expect("acquired");
    let late = mutex.clone().lease(SystemTime::now() + 100 * MS).acquire().await;
    assert!(matches!(late, Err(AcquireError::Lease(_))), "{late:?}");
    let _ = held.release().await;
    until_at_rest(&mutex).await;
}

async fn a_late_release_leaves_the_successor_alone(store: &TestStore) {
    // Failure row 16.
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let late = a.clone().lease(60 * MS).acquire().await.expect("acquired");
    late.lost().await;
    let successor = b.acquire().await.expect("acquired");
    let Err(ReleaseError::Lost(reason)) = late.release().await else { panic!("released another's lock") };
    let by = reason.to_string();
    assert!(by.ends_with("taken over by b"), "{by}");
    successor.check().expect("held");
    assert!(matches!(a.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    successor.release().await.expect("released");
    // Without a successor the reason is that the lease expired.
    let late = a.lease(60 * MS).acquire().await.expect("acquired");
    late.lost().await;
    until_at_rest(&b).await;
    let Err(ReleaseError::Lost(reason)) = late.release().await else { panic!("a lost hold was released") };
    assert_eq!(reason, LostReason::Expired);
}

async fn an_extend_lengthens_and_never_shortens(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name").lease(400 * MS);
    let guard = mutex.acquire().await.expect("acquired");
    let before = guard.valid_until();
    guard.extend_to(5000 * MS).await.expect("extended");
    assert!(guard.valid_until() > before && guard.remaining() > 4000 * MS);
    let long = guard.valid_until();
    guard.extend_to(100 * MS).await.expect("extended");
    guard.extend().await.expect("extended");
    assert_eq!(guard.valid_until(), long);
    assert!(matches!(guard.extend_to(Duration::ZERO).await, Err(ExtendError::Lease(_))));
    guard.release().await.expect("released");
    let guard = mutex.clone().lease(50 * MS).acquire().await.expect("acquired");
    guard.lost().await;
    assert!(matches!(guard.extend().await, Err(ExtendError::Lost(_))));
}

async fn a_retry_policy_gives_up_after_its_tries(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let guard = a.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let polling = b.mutex("m").expect("a good name").retry(RetryPolicy::constant(20 * MS).tries(4));
    let start = Instant::now();
    let missed = polling.acquire().await;
    assert!(matches!(missed, Err(AcquireError::RetriesExhausted { .. })), "{missed:?}");
    assert!(start.elapsed() >= 30 * MS, "three pauses of 10 to 20 ms: {:?}", start.elapsed());
    assert_eq!(polling.inspect().await.expect("an answer").waiting, 0, "a caller that polls does not queue");
    let polling = polling.retry(RetryPolicy::exponential(5 * MS, 20 * MS));
    let waiter = tokio::spawn(async move { polling.acquire().await.expect("acquired") });
    guard.release().await.expect("released");
    waiter.await.expect("no panic").release().await.expect("released");
}

async fn a_try_waits_for_a_release_of_its_own_client(store: &TestStore) {
    let mutex_client = store.client("a").await;
    let mutex = mutex_client.mutex("m").expect("a good name");
    for _ in 0..50 {
        drop(mutex.acquire().await.expect("acquired"));
        let tried = mutex.try_acquire().await.expect("an answer");
        let Attempt::Granted(guard) = tried else { panic!("it found its own hold: {tried:?}") };
        drop(guard);
        drop(mutex.acquire_timeout(Duration::ZERO).await.expect("acquired"));
        let both = mutex_client.multi_mutex(["m", "n"]).expect("good names");
        let tried = both.try_acquire().await.expect("an answer");
        drop(tried.granted().expect("it found its own hold"));
        let detached = mutex.clone().lease(Duration::from_secs(60)).try_acquire_detached().await;
        let hold = detached.expect("an answer").granted().expect("it found its own hold");
        hold.release(&mutex_client).await.expect("released");
    }
}

async fn equal_custom_values_exclude_each_other(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let of = |client: &leasehold::Client| {
        client.mutex("m").expect("a good name").value("request 4711").expect("a good value")
    };
    let (a, b) = (of(&a), of(&b));
    let guard = a.clone().lease(1000 * MS).acquire().await.expect("acquired");
    assert!(matches!(b.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    guard.lost().await;
    let second = b.acquire().await.expect("acquired");
    assert!(
        matches!(guard.release().await, Err(ReleaseError::Lost(_))),
        "the value is the same, the hold is not"
    );
    second.check().expect("held");
    let waiter = tokio::spawn(async move { a.acquire().await.expect("acquired") });
    until_waiting(&b, 1).await;
    second.release().await.expect("released");
    waiter.await.expect("no panic").release().await.expect("released");
    until_at_rest(&b).await;
}

async fn a_waiter_that_gives_up_leaves_the_queue(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let mutex = |client: &leasehold::Client| client.mutex("m").expect("a good name");
    let guard = mutex(&a).acquire().await.expect("acquired");
    let (b1, c1) = (mutex(&b), mutex(&c));
    let gone = tokio::spawn(async move { b1.acquire().await.map(drop) });
    until_waiting(&mutex(&a), 1).await;
    let next = tokio::spawn(async move { c1.acquire().await.expect("acquired") });
    until_waiting(&mutex(&a), 2).await;
    gone.abort();
    until_waiting(&mutex(&a), 1).await;
    let start = Stopwatch::start();
    guard.release().await.expect("released");
    next.await.expect("no panic").release().await.expect("released");
    start.assert_below(700 * MS, "the next waiter is woken by a message");
    until_at_rest(&mutex(&a)).await;
}

async fn after_a_loss_local_waiters_queue_again(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.clone().lease(100 * MS).acquire().await.expect("acquired");
    let mutex2 = mutex.clone();
    let waiter = tokio::spawn(async move { mutex2.acquire().await.expect("acquired") });
    guard.lost().await;
    let next = tokio::time::timeout(2000 * MS, waiter).await.expect("in time").expect("no panic");
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.release().await.is_err());
    next.check().expect("held");
    next.release().await.expect("released");
}

async fn leases_from_a_millisecond_to_days(store: &TestStore) {
    // Failure row 15.
    let client = store.client_of_leases("a").await;
    let mutex = client.mutex("m").expect("a good name");
    match mutex.clone().lease(MS).acquire().await {
        Ok(guard) => assert!(guard.remaining() <= MS),
        Err(AcquireError::LeaseTooShort { lease }) => assert_eq!(lease, MS),
        Err(other) => panic!("{other}"),
    }
    for lease in [20 * MS, 999 * MS, Duration::from_secs(30 * 86_400)] {
        let guard = mutex.clone().lease(lease).acquire().await.expect("acquired");
        let start = Stopwatch::start();
        while lease > Duration::from_secs(3) && guard.remaining() < lease * 98 / 100 {
            start.assert_below(2000 * MS, &format!("{lease:?}: {:?}", guard.remaining()));
            tokio::time::sleep(5 * MS).await;
        }
        assert!(guard.remaining() <= lease);
        let _ = guard.release().await;
        until_at_rest(&mutex).await;
    }
    for bad in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        assert!(matches!(mutex.clone().lease(bad).acquire().await, Err(AcquireError::Lease(_))));
    }
}

async fn try_acquire_cancelled_at_every_await(store: &TestStore) {
    // Failure row 4.
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    cancel_at_every_await(|| a.try_acquire(), async |_| until_at_rest(&b).await).await;
    until_at_rest(&b).await;
}

async fn acquire_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    cancel_at_every_await(|| a.acquire(), async |_| until_at_rest(&b).await).await;
    until_at_rest(&b).await;
}

async fn waiting_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let points = cancel_at_every_await(
        || async {
            let guard = b.acquire().await.expect("acquired");
            let wait = a.acquire_timeout(600 * MS);
            let waited = wait.await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
            drop(guard);
        },
        async |_| until_at_rest(&b).await,
    )
    .await;
    assert!(points > 1, "{points} points");
    until_at_rest(&b).await;
}

async fn release_cancelled_at_every_await(store: &TestStore) {
    // Failure rows 5 and 6.
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    cancel_at_every_await(
        || async {
            let guard = a.acquire().await.expect("acquired");
            guard.release().await.expect("released");
        },
        async |_| until_at_rest(&b).await,
    )
    .await;
    until_at_rest(&b).await;
}

async fn a_release_with_local_waiters_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    cancel_at_every_await(
        || async {
            let guard = a.acquire().await.expect("acquired");
            let a = a.clone();
            let waiter = tokio::spawn(async move { a.acquire().await.expect("acquired").release().await });
            tokio::task::yield_now().await;
            guard.release().await.expect("released");
            waiter.await.expect("no panic").expect("released");
        },
        async |_| until_at_rest(&b).await,
    )
    .await;
    until_at_rest(&b).await;
}

async fn extend_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    cancel_at_every_await(
        || async {
            let guard = a.acquire().await.expect("acquired");
            guard.extend().await.expect("extended");
            guard.release().await.expect("released");
        },
        async |_| until_at_rest(&b).await,
    )
    .await;
    until_at_rest(&b).await;
}

async fn two_tasks_share_a_handle_and_each_has_its_own_hold(store: &TestStore) {
    // Failure row 17.
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name");
    let first = mutex.clone().lease(80 * MS).acquire().await.expect("acquired");
    first.lost().await;
    let second = mutex.acquire().await.expect("acquired");
    assert!(first.release().await.is_err(), "the first task's release is not the second's");
    second.check().expect("held");
    let other = store.client("b").await.mutex("m").expect("a good name");
    assert!(matches!(other.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    second.release().await.expect("released");
}

async fn a_watchdog_never_extends_after_the_release(store: &TestStore) {
    // Failure row 7.
    let (a, b) = (store.client_with("a", 90 * MS).await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    for n in 0..30_u32 {
        let guard = a.acquire().await.expect("acquired");
        tokio::time::sleep(25 * MS + n * Duration::from_micros(300)).await;
        // On a busy machine so short a lease may be over already; what matters is what happens next.
        let _ = guard.release().await;
        let next = b.clone().lease(40 * MS).acquire().await.expect("acquired");
        tokio::time::sleep(10 * MS).await;
        let left = b.inspect().await.expect("an answer").remaining;
        assert!(left.is_none_or(|left| left <= 40 * MS), "{left:?}");
        let _ = next.release().await;
    }
}

async fn status_of_a_lock(store: &TestStore) {
    let client = store.client("worker").await;
    let mutex = client.mutex("m").expect("a good name");
    let free = mutex.inspect().await.expect("an answer");
    assert!(
        !free.held_by_this_client
            && !free.held
            && free.holder.is_none()
            && free.waiting == 0
            && free.fence.is_none()
    );
    let guard = mutex.acquire().await.expect("acquired");
    let held = mutex.inspect().await.expect("an answer");
    assert!(held.held);
    assert!(held.held_by_this_client);
    let other = store.client("another").await.mutex("m").expect("a good name");
    assert!(!other.inspect().await.expect("an answer").held_by_this_client);
    assert_eq!(held.holder.as_deref(), Some("worker"));
    assert_eq!(held.fence, Some(guard.fencing_token()));
    assert!(held.remaining.is_some_and(|left| left <= Duration::from_secs(30)));
    let since = held.since.expect("known").duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    assert!(now.abs_diff(since) < Duration::from_secs(60), "{since:?}");
    guard.release().await.expect("released");
}

async fn a_hold_that_has_reached_its_cap_is_lost_and_goes_to_the_next(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let start = Stopwatch::start();
    let guard = a.clone().max_hold(500 * MS).acquire().await.expect("acquired");
    let next = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    until_waiting(&a, 1).await;
    let next = next.await.expect("no panic");
    assert!(guard.check().is_err(), "two hold it");
    let lost = guard.lost().await;
    assert_eq!(lost.reason, LostReason::Capped);
    assert!(start.elapsed() >= 500 * MS, "{:?}", start.elapsed());
    start.assert_below(2500 * MS, "before the lease ends");
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    next.check().expect("it is left alone");
    next.release().await.expect("released");
    until_at_rest(&a).await;
}

async fn a_watchdog_renews_as_often_as_it_may(store: &TestStore) {
    let client = store.client_with("a", 2000 * MS).await;
    let mutex = client.mutex("m").expect("a good name").max_renewals(2);
    let start = Instant::now();
    let guard = mutex.acquire().await.expect("acquired");
    while !guard.is_capped() {
        assert!(start.elapsed() < 20_000 * MS, "it is renewed without end");
        tokio::time::sleep(5 * MS).await;
    }
    let extended = guard.extend().await;
    assert!(
        matches!(extended, Err(ExtendError::Capped { remaining: left }) if left <= 2000 * MS),
        "{extended:?}"
    );
    assert_eq!(guard.lost().await.reason, LostReason::Capped);
    // Two renewals, each after a third of the lease, and then a whole lease.
    assert!(start.elapsed() >= 3200 * MS, "{:?}", start.elapsed());
    drop(guard);
    client.flush().await;
    mutex
        .try_acquire()
        .await
        .expect("an answer")
        .granted()
        .expect("the hold was released")
        .release()
        .await
        .ok();
}

async fn an_extend_reaches_the_cap_and_not_beyond(store: &TestStore) {
    let client = store.client_of_leases("a").await;
    let mutex = client.mutex("m").expect("a good name").max_hold(10_000 * MS);
    let before = client.now();
    let guard = mutex.acquire().await.expect("acquired");
    let cap = client.now() + 10_000 * MS;
    guard.extend_to(5_000 * MS).await.expect("it is before the cap");
    assert!(!guard.is_capped());
    let beyond = guard.extend_to(20_000 * MS).await;
    assert!(
        matches!(beyond, Err(ExtendError::Capped { remaining: left }) if left <= 10_000 * MS),
        "{beyond:?}"
    );
    guard.extend().await.expect("up to the cap");
    assert!(guard.is_capped());
    assert!(guard.valid_until() >= before + 10_000 * MS && guard.valid_until() <= cap);
    let again = guard.extend().await;
    assert!(matches!(again, Err(ExtendError::Capped { .. })), "{again:?}");
    guard.check().expect("held");
    guard.release().await.expect("released");
    let none = client.mutex("m").expect("a good name").max_hold(Duration::ZERO).acquire().await;
    assert!(matches!(none, Err(AcquireError::Lease(_))), "{none:?}");
}

async fn a_shutdown_releases_everything(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let name = |n: usize| format!("m{n}");
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(a.mutex(name(n)).expect("a good name").acquire().await.expect("acquired"));
    }
    let blocked = b.mutex("blocked").expect("a good name");
    let held = blocked.acquire().await.expect("acquired");
    let ours = a.mutex("blocked").expect("a good name");
    let waits = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire().await.map(drop) }
    });
    until_waiting(&blocked, 1).await;
    // A waiter that is not polled any more, with another waiter behind it.
    let behind = a.mutex(name(99)).expect("a good name");
    let theirs = b.mutex(name(99)).expect("a good name").acquire().await.expect("acquired");
    let mut unpolled = Box::pin(behind.acquire());
    for _ in 0..200 {
        let pending =
            std::future::poll_fn(|cx| std::task::Poll::Ready(unpolled.as_mut().poll(cx).is_pending()));
        assert!(pending.await, "two hold it");
        if behind.inspect().await.expect("an answer").waiting == 1 {
            break;
        }
        tokio::time::sleep(5 * MS).await;
    }
    until_waiting(&behind, 1).await;
    // A client that waits elsewhere for a lock held here acquires it at once.
    let next = b.mutex(name(0)).expect("a good name");
    let next = tokio::spawn(async move { next.acquire().await.expect("acquired") });
    until_waiting(&a.mutex(name(0)).expect("a good name"), 1).await;

    let (start, clone) = (Instant::now(), a.clone());
    let (first, second) = tokio::join!(a.shutdown(20_000 * MS), clone.shutdown(15_000 * MS));
    first.expect("the store answers");
    second.expect("the same as the first");
    assert!(start.elapsed() < 5_000 * MS, "{:?}", start.elapsed());
    let missed = waits.await.expect("no panic");
    assert!(matches!(missed, Err(AcquireError::Closed)), "{missed:?}");
    next.await.expect("no panic").check().expect("held");
    for (n, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.check().expect_err("the hold is released").reason, LostReason::ShutDown);
        if n % 2 == 0 {
            let released = guard.release().await;
            assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ShutDown))), "{released:?}");
        } else {
            drop(guard);
        }
        until_at_rest(&b.mutex(name(n)).expect("a good name")).await;
    }
    for mutex in [&blocked, &b.mutex(name(99)).expect("a good name")] {
        assert_eq!(mutex.inspect().await.expect("an answer").waiting, 0, "its queue entry is removed");
    }
    assert!(matches!(unpolled.await, Err(AcquireError::Closed)));
    assert!(matches!(ours.try_acquire().await, Err(AcquireError::Closed)));
    let fresh = a.mutex("fresh").expect("a good name");
    assert!(matches!(fresh.acquire().await, Err(AcquireError::Closed)));
    assert!(!fresh.inspect().await.expect("an answer").held);
    a.flush().await;
    a.shutdown(Duration::ZERO).await.expect("once more");
    held.release().await.expect("released");
    theirs.release().await.expect("released");
}

async fn a_dropped_shutdown_continues(store: &TestStore) {
    let (client, other) = (store.client("a").await, store.client("b").await);
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    {
        let mut shutdown = std::pin::pin!(client.shutdown(10_000 * MS));
        // Whether or not it is ready by then: on some stores it completes at once.
        std::future::poll_fn(|cx| std::task::Poll::Ready(shutdown.as_mut().poll(cx).is_ready())).await;
    }
    assert_eq!(guard.check().expect_err("it is lost at once").reason, LostReason::ShutDown);
    until_at_rest(&other.mutex("m").expect("a good name")).await;
    client.shutdown(10_000 * MS).await.expect("the store answers");
}

async fn a_lock_delay_follows_a_loss_and_no_release(store: &TestStore) {
    const DELAY: Duration = Duration::from_secs(2);
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (ours, theirs) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let released = ours.clone().lock_delay(Duration::from_secs(3_600)).acquire().await.expect("acquired");
    released.release().await.expect("released");
    theirs
        .try_acquire()
        .await
        .expect("an answer")
        .granted()
        .expect("free")
        .release()
        .await
        .expect("released");
    for is_extended in [false, true] {
        let guard = ours.clone().lock_delay(DELAY).lease(500 * MS).acquire().await.expect("acquired");
        if is_extended {
            guard.extend_to(1_500 * MS).await.expect("extended");
        }
        let deadline = guard.valid_until();
        let waits = tokio::spawn({
            let theirs = theirs.clone();
            async move { theirs.acquire().await.expect("acquired") }
        });
        assert_eq!(guard.lost().await.reason, LostReason::Expired);
        let late = guard.release().await;
        assert!(matches!(late, Err(ReleaseError::Lost(LostReason::Expired))), "{late:?}");
        let next = waits.await.expect("no panic");
        let after = b.now().since(deadline);
        assert!(after >= DELAY, "{after:?} after the deadline");
        next.release().await.expect("released");
    }
}
