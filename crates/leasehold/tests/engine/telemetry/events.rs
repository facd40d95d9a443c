//! Each event, at the moment when it happens, and the figures after it.

use super::fixture::Log;
use crate::environment::{SuspendableMachine, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS};
use crate::fixture::{force_release, mutex};
use leasehold::store::{MemoryStore, Op};
use leasehold::{Attempt, Client, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const S: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_acquired_and_released() {
    let log = Log::default();
    let client = log.client_alone().await;
    let guard = mutex(&client, "orders/42").acquire().await.unwrap();
    assert_eq!((client.stats().held, client.stats().acquired), (1, 1));
    sleep(20 * MS).await;
    guard.release().await.unwrap();
    let other = mutex(&client, "orders/42").class("given").try_acquire().await.unwrap().granted().unwrap();
    drop(other);
    let expected = [
        "acquired orders/42 mutex orders/* after 0",
        "released orders/42 held 20",
        "acquired orders/42 mutex given after 0",
        "background orders/42 held 0",
    ];
    assert_eq!(log.take(), expected);
    let stats = client.stats();
    assert_eq!((stats.held, stats.acquired, stats.released, stats.waiting), (0, 2, 2, 0));
    assert_eq!((stats.handed_off_locally, stats.handed_off_remotely), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_and_the_lock_is_handed_off_inside_the_process() {
    let log = Log::default();
    let client = log.client_alone().await;
    let first = mutex(&client, "m").acquire().await.unwrap();
    let next = tokio::spawn({
        let mutex = mutex(&client, "m");
        async move { mutex.acquire().await.unwrap() }
    });
    sleep(30 * MS).await;
    assert_eq!((client.stats().waiting, client.stats().held), (1, 1));
    first.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!((client.stats().waiting, client.stats().handed_off_locally), (0, 1));
    next.release().await.unwrap();
    let mut events = log.take();
    // The next task may be quicker than the one that hands on.
    events[2..5].sort();
    let expected = [
        "acquired m mutex m after 0",
        "waiting m ahead None holder its label",
        "acquired m mutex m after 30",
        "handed off m local",
        "released m held 30",
        "released m held 0",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn another_client_waits_and_the_lock_is_handed_off_by_the_store() {
    let (store, log) = (memory(), Log::default());
    let (one, other) = (Log::default().client(store.clone()).await, log.client(store).await);
    let first = mutex(&one, "m").acquire().await.unwrap();
    let next = tokio::spawn({
        let mutex = mutex(&other, "m");
        async move { mutex.acquire().await.unwrap() }
    });
    sleep(30 * MS).await;
    first.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!((other.stats().handed_off_remotely, one.stats().handed_off_remotely), (1, 0));
    next.release().await.unwrap();
    let expected = [
        "waiting m ahead Some(0) holder its label",
        "acquired m mutex m after 30",
        "handed off m remote",
        "released m held 0",
    ];
    assert_eq!(log.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_ends_without_the_lock() {
    let (store, log) = (memory(), Log::default());
    let (one, other) = (Log::default().client(store.clone()).await, log.client(store).await);
    let held = mutex(&one, "m").acquire().await.unwrap();
    let mutex = mutex(&other, "m");
    assert!(matches!(mutex.try_acquire().await, Ok(Attempt::Taken(_))));
    mutex.acquire_timeout(300 * MS).await.unwrap_err();
    assert!(timeout(200 * MS, mutex.acquire()).await.is_err());
    let stats = other.stats();
    assert_eq!((stats.taken, stats.timed_out, stats.cancelled, stats.waiting), (1, 1, 1, 0));
    let waits = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await }
    });
    sleep(100 * MS).await;
    other.shutdown(S).await.unwrap();
    waits.await.unwrap().unwrap_err();
    held.release().await.unwrap();
    assert_eq!((other.stats().closed, other.stats().waiting, other.stats().acquired), (1, 0, 0));
    let waiting = "waiting m ahead Some(0) holder its label";
    let expected = [
        "taken m after 0",
        waiting,
        "timed_out m after 300",
        waiting,
        "cancelled m after 200",
        waiting,
        "closed m after 100",
    ];
    assert_eq!(log.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_fails_an_acquire() {
    let log = Log::with_requests();
    let store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Acquire(_) => Behavior::LoseReply,
        _ => Behavior::Execute,
    });
    let client = log.client(store).await;
    mutex(&client, "m").acquire_timeout(500 * MS).await.unwrap_err();
    client.flush().await;
    let events = log.take();
    assert_eq!(events[..2], ["acquire unknown took 500", "failed m after 500"]);
    assert!(events[2..].iter().all(|line| line == "release done took 0"), "undone: {events:?}");
    let stats = client.stats();
    assert_eq!((stats.failed, stats.requests_unknown, stats.waiting), (1, 1, 0));
    assert!(stats.requests_done > 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_of_low_priority_is_one_acquire() {
    let (store, log) = (memory(), Log::default());
    let (one, other) = (Log::default().client(store.clone()).await, log.client(store).await);
    let held = mutex(&one, "m").acquire().await.unwrap();
    let waits = tokio::spawn({
        let mutex = mutex(&other, "m").low_priority_for(3 * S);
        async move { mutex.acquire().await.unwrap() }
    });
    sleep(4 * S).await;
    held.release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
    let expected = [
        "waiting m ahead None holder its label",
        "acquired m mutex m after 4000",
        "handed off m remote",
        "released m held 0",
    ];
    assert_eq!(log.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_and_its_slack_is_told() {
    let log = Log::default();
    let client = log.client_alone().await;
    let guard = mutex(&client, "m").acquire().await.unwrap();
    sleep(11 * S).await;
    guard.extend().await.unwrap();
    guard.release().await.unwrap();
    let events = log.take_all();
    let renewed: Vec<_> = events.iter().filter(|line| line.starts_with("renewed m slack ")).collect();
    assert_eq!(renewed.len(), 3, "after 0.1 s, a third of 30 s, and by the user: {events:?}");
    // The end of the session comes before that of the lease: 10 s without a heartbeat, of which four are sent.
    let slack: Vec<u64> =
        renewed.iter().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!((2_800..3_000).contains(&slack[0]) && slack[1..].iter().all(|slack| *slack > 7_000), "{slack:?}");
    assert_eq!(client.stats().renewals, 3);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_told_until_the_hold_is_lost() {
    let (log, fails) = (Log::default(), Arc::new(AtomicBool::new(false)));
    let store = FaultyStore::new(&memory(), {
        let fails = fails.clone();
        move |_, op| match op {
            Op::Extend(_) if fails.load(Ordering::SeqCst) => Behavior::Fail,
            _ => Behavior::Execute,
        }
    });
    let client = log.client(store).await;
    let guard = mutex(&client, "m").lease(600 * S).acquire().await.unwrap();
    drop(guard);
    client.flush().await;
    log.take();
    fails.store(true, Ordering::SeqCst);
    let guard = mutex(&client, "m").acquire().await.unwrap();
    guard.lost().await;
    // The store may keep it a little longer.
    let _ = guard.release().await;
    let events = log.take();
    let last = events.len() - 1;
    assert_eq!(events[0], "acquired m mutex m after 0");
    assert!(events[1..last].iter().all(|line| line.starts_with("renewal failed m remaining ")), "{events:?}");
    assert!(
        last > 2 && events[last].starts_with("lost m held 2") && events[last].ends_with(": expired"),
        "{events:?}"
    );
    let stats = client.stats();
    assert_eq!((stats.lost.expired, stats.lost.total(), stats.held), (1, 1, 0));
    assert_eq!(stats.failed_renewals, last as u64 - 1);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_told_once_with_its_reason() {
    let (store, log) = (memory(), Log::default());
    let (one, other) = (Log::default().client(store.clone()).await, log.client(store).await);
    let guard = mutex(&other, "m").acquire().await.unwrap();
    sleep(50 * MS).await;
    force_release(&mutex(&one, "m")).await;
    guard.lost().await;
    guard.release().await.unwrap_err();
    let events = log.take();
    assert_eq!(events.last().unwrap(), "lost m held 50: force_released");
    assert_eq!(events.iter().filter(|line| line.starts_with("lost")).count(), 1, "{events:?}");
    assert_eq!((other.stats().lost.force_released, other.stats().released), (1, 0));
    let capped = mutex(&other, "capped").max_hold(200 * MS).acquire().await.unwrap();
    capped.lost().await;
    drop(capped);
    let short = mutex(&other, "short").lease(100 * MS).acquire().await.unwrap();
    short.lost().await;
    drop(short);
    let lost = log.take().into_iter().filter(|line| !line.starts_with("acquired"));
    let lost: Vec<_> = lost
        .map(|line| {
            line.split(' ')
                .enumerate()
                .filter(|(at, _)| *at != 3)
                .map(|(_, word)| word.to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert_eq!(lost, ["lost capped held capped", "lost short held expired"]);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_holds() {
    let log = Log::default();
    let client = log.client_alone().await;
    let guard = mutex(&client, "m").acquire().await.unwrap();
    client.shutdown(S).await.unwrap();
    drop(guard);
    assert_eq!(log.take(), ["acquired m mutex m after 0", "lost m held 0: shut_down"]);
    assert_eq!((client.stats().lost.shut_down, client.stats().lost.total(), client.stats().held), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_release_is_unanswered_or_goes_on_in_the_background() {
    let log = Log::default();
    let store = FaultyStore::new(&memory(), |lock, op| match op {
        Op::Release(_) if lock.name.as_str() == "lost" => Behavior::LoseRequest,
        Op::Release(_) if lock.name.as_str() == "slow" => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let client = log.client(store).await;
    let lost = mutex(&client, "lost").acquire().await.unwrap();
    let unreleased = lost.release().await.unwrap_err();
    let slow = mutex(&client, "slow").acquire().await.unwrap();
    assert!(timeout(100 * MS, slow.release()).await.is_err());
    drop(unreleased);
    let events: Vec<_> = log.take().into_iter().filter(|line| !line.starts_with("renew")).collect();
    let expected = [
        "acquired lost mutex lost after 0",
        "unanswered lost held 2000",
        "acquired slow mutex slow after 0",
        "background slow held 100",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn a_detached_hold_is_acquired_and_not_held() {
    let log = Log::default();
    let client = log.client_alone().await;
    let hold = mutex(&client, "m").lease(60 * S).acquire_detached().await.unwrap();
    assert_eq!((client.stats().acquired, client.stats().held), (1, 0));
    let guard = hold.attach(&client).await.unwrap();
    assert_eq!(client.stats().held, 1);
    guard.release().await.unwrap();
    let expected = ["acquired m mutex m after 0 detached", "acquired m mutex m after 0", "released m held 0"];
    assert_eq!(log.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn each_lock_of_a_set_is_reported() {
    let (store, log) = (memory(), Log::default());
    let (one, other) = (Log::default().client(store.clone()).await, log.client(store).await);
    let held = mutex(&one, "b").acquire().await.unwrap();
    let waits = tokio::spawn({
        let both = other.multi_mutex(["a", "b"]).unwrap().class("pair");
        async move { both.acquire().await.unwrap() }
    });
    sleep(30 * MS).await;
    held.release().await.unwrap();
    waits.await.unwrap().release().await.unwrap();
    let expected = [
        "waiting b ahead Some(0) holder its label",
        "acquired b mutex pair after 30",
        "handed off b remote",
        "acquired a mutex pair after 0",
        "released a held 0",
        "released b held 0",
    ];
    assert_eq!(log.take(), expected);
    assert_eq!(other.stats().held, 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_semaphore_has_the_class_of_the_whole() {
    let log = Log::default();
    let client = log.client_alone().await;
    let calls = client.keyed_semaphore("calls", 8, 2).unwrap();
    calls.acquire("tenant-of-letters").await.unwrap().release().await.unwrap();
    let events = log.take();
    assert!(
        events
            .iter()
            .filter(|line| line.starts_with("acquired"))
            .all(|line| line.contains(" semaphore calls after")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn heartbeats_tell_the_margin_of_the_session_and_a_lapse_is_told() {
    let (log, store) = (Log::default(), FaultyStore::with_sessions(|_, _| Behavior::Execute));
    let fails = store.heartbeats_fail.clone();
    let client = log.client(store).await;
    let margin = client.stats().session_margin.unwrap();
    assert!(margin > 9 * S && margin <= 10 * S, "{margin:?}");
    let guard = mutex(&client, "m").acquire().await.unwrap();
    sleep(6 * S).await;
    let renewed = log.take_all().into_iter().filter(|line| line.starts_with("session"));
    let margins: Vec<u64> = renewed.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(
        margins.len() >= 2 && margins.iter().all(|margin| (7_000..10_000).contains(margin)),
        "{margins:?}"
    );
    fails.store(true, Ordering::SeqCst);
    guard.lost().await;
    let events = log.take_all();
    assert!(events.contains(&"session lapsed".to_owned()), "{events:?}");
    assert!(
        events.iter().any(|line| line.starts_with("lost m") && line.ends_with("session_lapsed")),
        "{events:?}"
    );
    assert_eq!((client.stats().sessions_lapsed, client.stats().lost.session_lapsed), (1, 1));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_suspend_is_a_stall() {
    let (log, suspended_us) = (Log::default(), Arc::new(AtomicU64::new(0)));
    let machine = SuspendableMachine { booted: Instant::now(), suspended_us: suspended_us.clone() };
    let client = Client::with_store(MemoryStore::new()).environment(machine).observer(log.clone());
    let client = client.connect().await.unwrap();
    let guard = mutex(&client, "m").acquire().await.unwrap();
    sleep(3 * S).await;
    assert!(!log.take().iter().any(|line| line.starts_with("stalled")));
    suspended_us.store(4_000_000, Ordering::SeqCst);
    sleep(3 * S).await;
    let stalls: Vec<_> = log.take().into_iter().filter(|line| line.starts_with("stalled")).collect();
    assert_eq!(stalls.len(), 1, "{stalls:?}");
    let late: u64 = stalls[0].rsplit(' ').next().unwrap().parse().unwrap();
    assert!((3_000..=4_000).contains(&late), "{late}");
    assert!(client.now() > Moment::ZERO);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_sticky_hold_that_is_taken_again_is_handed_off() {
    let log = Log::default();
    let client = log.client_alone().await;
    let sticky = mutex(&client, "m").sticky(60 * S);
    for _ in 0..3 {
        sticky.acquire().await.unwrap().release().await.unwrap();
        // The store is asked whether another client waits.
        sleep(MS).await;
    }
    assert_eq!((client.stats().acquired, client.stats().handed_off_locally, client.stats().held), (3, 2, 0));
    let events = log.take();
    assert_eq!(events.iter().filter(|line| *line == "handed off m local").count(), 2, "{events:?}");
}
