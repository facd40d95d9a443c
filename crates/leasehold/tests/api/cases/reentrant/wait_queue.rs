//! Waiters: their order, and the re-entries that bypass the queue.

use super::fixture::{MS, acquired, lock, owner, queued, taken};
use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::RetryPolicy;
use leasehold::error::AcquireError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

on_every_store! {
    asynchronous:
    an_owner_re_enters_past_waiters,
    tasks_are_served_in_order,
    a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next_task,
    a_waiter_is_granted_when_its_owner_acquires_the_lock_elsewhere,
    a_waiter_is_granted_when_its_owner_acquires_the_lock_here,
    a_polling_owner_re_enters_too,
    many_tasks_of_many_owners_exclude_each_other,
}

async fn an_owner_re_enters_past_waiters(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let ours = lock(&a, &a.new_owner());
    let outer = acquired(&ours).await;
    let mut waiting = Vec::new();
    for client in [&b, &a, &a] {
        let lock = lock(client, &client.new_owner());
        waiting.push(queued(async move { acquired(&lock).await.release().await }).await);
    }
    until_waiting(&ours, 1).await;
    let (start, mut inners) = (Instant::now(), Vec::new());
    for n in 2..12 {
        let inner = acquired(&ours).await;
        assert_eq!(inner.count(), n);
        let tried = ours.try_acquire().await.expect("an answer").granted().expect("its owner has it");
        tried.release().await.expect("released");
        inners.push(inner);
    }
    assert!(start.elapsed() < Duration::from_secs(2), "at once: {:?}", start.elapsed());
    let elsewhere = acquired(&lock(&b, outer.owner())).await;
    assert_eq!(elsewhere.count(), 12);
    assert!(waiting.iter().all(|task| !task.is_finished()));
    for guard in inners.into_iter().chain([elsewhere, outer]) {
        guard.release().await.expect("released");
    }
    for task in waiting {
        task.await.expect("no panic").expect("released");
    }
    until_at_rest(&lock(&b, &b.new_owner())).await;
}

async fn tasks_are_served_in_order(store: &TestStore) {
    let client = store.client("a").await;
    let guard = acquired(&lock(&client, &client.new_owner())).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..20 {
        let (lock, order) = (lock(&client, &client.new_owner()), order.clone());
        tasks.push(
            queued(async move {
                let guard = acquired(&lock).await;
                order.lock().expect("no panic").push(n);
                guard.release().await.expect("released");
            })
            .await,
        );
    }
    guard.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(*order.lock().expect("no panic"), (0..20).collect::<Vec<_>>());
    until_at_rest(&lock(&client, &client.new_owner())).await;
}

async fn a_waiter_that_gives_up_leaves_the_queue_entry_to_the_next_task(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let holder = lock(&a, &a.new_owner());
    let guard = acquired(&holder).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let enter = |client: &leasehold::Client, name: &'static str| {
        let (lock, order) = (lock(client, &client.new_owner()), order.clone());
        async move {
            let guard = acquired(&lock).await;
            order.lock().expect("no panic").push(name);
            guard.release().await.expect("released");
        }
    };
    // The first waiter of `b` queues at the store, and gives up once `c` has queued behind it.
    let gives_up = lock(&b, &b.new_owner());
    let gives_up = queued(async move { gives_up.acquire_timeout(600 * MS).await.map(drop) }).await;
    until_waiting(&holder, 1).await;
    let second = queued(enter(&b, "b")).await;
    let third = tokio::spawn(enter(&c, "c"));
    until_waiting(&holder, 2).await;
    let missed = gives_up.await.expect("no panic");
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    // The request of the first waiter is undone only after the second has its reply.
    b.flush().await;
    tokio::time::sleep(100 * MS).await;
    b.flush().await;
    assert_eq!(holder.inspect().await.expect("an answer").waiting, 2);
    guard.release().await.expect("released");
    second.await.expect("no panic");
    third.await.expect("no panic");
    assert_eq!(*order.lock().expect("no panic"), ["b", "c"]);
    until_at_rest(&holder).await;
}

async fn a_waiter_is_granted_when_its_owner_acquires_the_lock_elsewhere(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let (first, shared) = (lock(&a, &a.new_owner()), owner("a trace"));
    let guard = acquired(&first).await;
    // The shared owner waits in another process, ahead of this process's queue.
    let elsewhere = tokio::spawn({
        let lock = lock(&b, &shared);
        async move { acquired(&lock).await }
    });
    until_waiting(&first, 1).await;
    let other_owner = lock(&c, &c.new_owner());
    let front = queued(async move { acquired(&other_owner).await.release().await }).await;
    let ours = lock(&c, &shared);
    let behind = queued(async move { acquired(&ours).await }).await;
    until_waiting(&first, 2).await;
    guard.release().await.expect("released");
    let elsewhere = elsewhere.await.expect("no panic");
    let start = Instant::now();
    // It would deadlock if it waited behind the owner's request in the other process.
    let inner =
        tokio::time::timeout(Duration::from_secs(8), behind).await.expect("called").expect("no panic");
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "at the next poll of the first waiter: {:?}",
        start.elapsed()
    );
    assert_eq!(inner.count(), 2);
    assert!(!front.is_finished());
    elsewhere.release().await.expect("released");
    inner.release().await.expect("released");
    front.await.expect("no panic").expect("released");
    until_at_rest(&first).await;
}

async fn a_waiter_is_granted_when_its_owner_acquires_the_lock_here(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (first, shared) = (lock(&a, &a.new_owner()), b.new_owner());
    let guard = acquired(&first).await;
    let ours = lock(&b, &shared);
    let [front, third] = [ours.clone(), ours.clone()].map(|lock| async move { acquired(&lock).await });
    let front = queued(front).await;
    let between = lock(&b, &b.new_owner());
    let between = queued(async move { acquired(&between).await.release().await }).await;
    let third = queued(third).await;
    until_waiting(&first, 1).await;
    guard.release().await.expect("released");
    let front = front.await.expect("no panic");
    let third = tokio::time::timeout(Duration::from_secs(5), third).await.expect("called").expect("no panic");
    assert_eq!((front.count(), third.count()), (1, 2));
    assert!(!between.is_finished());
    front.release().await.expect("released");
    third.release().await.expect("released");
    between.await.expect("no panic").expect("released");
    until_at_rest(&first).await;
}

async fn a_polling_owner_re_enters_too(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let policy = RetryPolicy::constant(10 * MS);
    let shared = a.new_owner();
    let other = acquired(&lock(&b, &b.new_owner())).await;
    let polls = lock(&a, &shared).retry(policy);
    let polls = queued(async move { acquired(&polls).await }).await;
    let elsewhere = lock(&b, &shared);
    let elsewhere = queued(async move { acquired(&elsewhere).await }).await;
    other.release().await.expect("released");
    let (polls, elsewhere) = (polls.await.expect("no panic"), elsewhere.await.expect("no panic"));
    assert_eq!(polls.count().max(elsewhere.count()), 2);
    let free = taken(&lock(&b, &b.new_owner())).await;
    assert_eq!(free.owner(), Some(shared));
    polls.release().await.expect("released");
    elsewhere.release().await.expect("released");
}

async fn many_tasks_of_many_owners_exclude_each_other(store: &TestStore) {
    let inside = Arc::new(Mutex::new(None));
    let (count, lost) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    let owners: Vec<_> = (0..4).map(|n| owner(&format!("owner {n}"))).collect();
    for n in 0..3 {
        let client = store.client(&format!("client {n}")).await;
        for owner in owners.iter().cycle().take(8) {
            let (lock, owner) = (lock(&client, owner), owner.clone());
            let (inside, count, lost) = (inside.clone(), count.clone(), lost.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = acquired(&lock).await;
                    // One owner at a time, with any number of entries.
                    {
                        let mut inside = inside.lock().expect("no panic");
                        let (owner_inside, times) = inside.take().unwrap_or((owner.clone(), 0_u32));
                        lost.fetch_or(owner_inside != owner, Ordering::SeqCst);
                        *inside = Some((owner.clone(), times + 1));
                    }
                    tokio::task::yield_now().await;
                    count.fetch_add(1, Ordering::SeqCst);
                    {
                        let mut inside = inside.lock().expect("no panic");
                        let (owner_inside, times) = inside.take().expect("we are inside");
                        *inside = (times > 1).then_some((owner_inside, times - 1));
                    }
                    guard.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    assert!(!lost.load(Ordering::SeqCst), "two owners inside");
    assert_eq!(count.load(Ordering::SeqCst), 240);
    let after = store.client("after").await;
    until_at_rest(&lock(&after, &after.new_owner())).await;
}
