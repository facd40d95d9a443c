//! Waiting, giving up, and the cleanup afterwards.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON};
use futures_util::future::BoxFuture;
use leasehold::error::AcquireError;
use leasehold::inspect::SessionId;
use leasehold::store::{
    Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase, Store,
};
use leasehold::{Client, Owner};
use leasehold_core::KeyError;
use leasehold_core::Partition;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_single_try_queues_at_once() {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = FaultyStore::new(&memory, |_, _| Behavior::ExecuteAfter(50 * MS)).client(30_000 * MS).await;
    let ours = client.mutex("m").expect("a good name");
    let single = tokio::spawn({
        let ours = ours.clone();
        async move { ours.try_acquire().await.expect("an answer").granted().is_none() }
    });
    sleep(20 * MS).await;
    let waiter = tokio::spawn(async move { ours.acquire().await.expect("acquired").release().await });
    assert!(single.await.expect("no panic"), "it is taken");
    sleep(200 * MS).await;
    assert_eq!(others.inspect().await.expect("an answer").waiting, 1, "it did not sleep first");
    held.release().await.expect("released");
    waiter.await.expect("no panic").expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_retry_gives_up_though_the_holder_is_of_the_same_process() {
    let client = client_in_paused_time(memory()).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let polling = mutex.clone().retry(leasehold::RetryPolicy::constant(20 * MS).tries(4));
    let start = Instant::now();
    let missed = timeout(SOON, polling.acquire()).await.expect("the wait ends");
    assert!(matches!(missed, Err(leasehold::error::AcquireError::RetriesExhausted { .. })), "{missed:?}");
    assert!(start.elapsed() >= 30 * MS, "three pauses of 10 to 20 ms: {:?}", start.elapsed());
    let polling = polling.retry(leasehold::RetryPolicy::constant(20 * MS));
    let waiter = tokio::spawn(async move { polling.acquire().await.map(drop) });
    sleep(50 * MS).await;
    guard.release().await.expect("released");
    waiter.await.expect("no panic").expect("acquired");
}

/// Otherwise a lock that others hold until the deadline would end the wait with an unknown result.
#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_no_time_for_its_reply_is_not_sent() {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let held = other.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let requests = Arc::new(AtomicU32::new(0));
    let counted = requests.clone();
    let store = FaultyStore::new(&memory, move |_, op| {
        counted.fetch_add(u32::from(matches!(op, Op::Acquire(_))), Ordering::SeqCst);
        Behavior::ExecuteAfter(40 * MS)
    });
    let client = client_in_paused_time(store).connect().await.expect("it connects");
    let retry = leasehold::RetryPolicy::constant(200 * MS).jitter(0.0);
    let polling = client.mutex("m").expect("a good name").retry(retry);
    let begun = Instant::now();
    // It asks after 0, 240 and 480 ms, and has 10 ms after 720.
    let limit = 730 * MS;
    let missed = polling.acquire_timeout(limit).await.expect_err("others hold it");
    assert!(matches!(missed, AcquireError::TimedOut { .. }), "{missed:?}");
    assert_eq!(begun.elapsed(), limit);
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    // The first one is sent, however little time there is.
    polling.acquire_timeout(10 * MS).await.expect_err("others hold it");
    assert_eq!(requests.load(Ordering::SeqCst), 4);
    held.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_not_waited_for_leaves_no_mailbox() {
    let store = FaultyStore { mailboxes_hang: true, ..FaultyStore::new(&memory(), |_, _| Behavior::Execute) };
    let closed = store.mailboxes_closed.clone();
    assert!(timeout(20 * MS, client_in_paused_time(store).connect()).await.is_err());
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_from_its_beginning_and_not_from_the_last_request() {
    let memory = memory();
    let requests = AtomicU32::new(0);
    let store = FaultyStore::new(&memory, move |_, op| match op {
        Op::Acquire(_) if requests.fetch_add(1, Ordering::SeqCst) == 1 => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let client = client_in_paused_time(store).outage_limit(200 * MS).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let waiter = tokio::spawn(async move { mutex.acquire().await.map(drop) });
    sleep(400 * MS).await;
    drop(guard);
    waiter.await.expect("no panic").expect("a single fault does not end the wait");
}

/// Each task waits for the store for as long as the limit says, however long others have waited.
#[tokio::test(start_paused = true)]
async fn an_outage_counts_for_each_task_from_its_own_beginning() {
    const LIMIT: Duration = Duration::from_secs(20);
    let store = FaultyStore::new(&memory(), |_, op| match op {
        Op::Acquire(_) => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let client = client_in_paused_time(store).outage_limit(LIMIT).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let waits = async |after: Duration| {
        sleep(after).await;
        let begun = tokio::time::Instant::now();
        mutex.acquire().await.expect_err("the store does not answer");
        begun.elapsed()
    };
    let (first, second) = tokio::join!(waits(Duration::ZERO), waits(LIMIT * 3 / 4));
    for waited in [first, second] {
        assert!((LIMIT..LIMIT * 11 / 10).contains(&waited), "{first:?}, {second:?}");
    }
}

/// The session lapses in the outage, and the client begins others, which get no answer either.
#[tokio::test(start_paused = true)]
async fn an_outage_ends_a_wait_in_the_queue_although_sessions_begin_anew() {
    const LIMIT: Duration = Duration::from_secs(20);
    let is_down = Arc::new(AtomicBool::new(false));
    let behavior = |is_down: &AtomicBool| {
        if is_down.load(Ordering::SeqCst) { Behavior::Fail } else { Behavior::Execute }
    };
    let (locks_down, sessions_down) = (is_down.clone(), is_down.clone());
    let store = FaultyStore {
        session_rule: Arc::new(move |_| behavior(&sessions_down)),
        ..FaultyStore::with_sessions(move |_, _| behavior(&locks_down))
    };
    let others = store.healthy_client().await.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = client_in_paused_time(store).outage_limit(LIMIT).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let waiter = tokio::spawn(async move { mutex.acquire().await.map(drop) });
    sleep(500 * MS).await;
    assert_eq!(others.inspect().await.expect("an answer").waiting, 1);
    is_down.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    let ended = timeout(LIMIT * 10, waiter).await.expect("the wait ends").expect("no panic");
    assert!(matches!(ended, Err(AcquireError::Store(_) | AcquireError::Unknown { .. })), "{ended:?}");
    // The session lapses first, after 10 s at most.
    assert!((LIMIT..LIMIT * 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    held.release().await.expect("released");
}

/// A store without sessions, and the switch by which it is down.
fn with_outages() -> (FaultyStore, Arc<AtomicBool>) {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let store = FaultyStore::new(&memory(), move |_, _| {
        if down.load(Ordering::SeqCst) { Behavior::Fail } else { Behavior::Execute }
    });
    (store, is_down)
}

/// A pass has no short first lease, so its undo must be tried for longer, too.
#[tokio::test(start_paused = true)]
async fn a_pass_of_a_waiter_that_is_gone_is_undone_after_an_outage() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let store = FaultyStore::with_sessions(move |_, _| {
        if down.load(Ordering::SeqCst) { Behavior::Fail } else { Behavior::Execute }
    });
    let theirs = store.healthy_client().await.barrier("b", 2).expect("a good name");
    let client = client_in_paused_time(store).connect().await.expect("it connects");
    let ours = client.barrier("b", 2).expect("a good name");
    let waiter = tokio::spawn(async move { ours.wait().await });
    sleep(500 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    waiter.abort();
    assert!(waiter.await.is_err(), "it still waited");
    theirs.wait().await.expect("both had arrived");
    sleep(20_000 * MS).await;
    assert_eq!(theirs.inspect().await.expect("an answer").shared_holders.len(), 1, "the pass that is left");
    is_down.store(false, Ordering::SeqCst);
    sleep(3_000 * MS).await;
    let left = theirs.inspect().await.expect("an answer").shared_holders;
    assert!(left.is_empty(), "{left:?}");
}

/// The entry that an aborted wait leaves in the queue is granted if the others arrive before it expires; the pass lasts from then.
#[tokio::test(start_paused = true)]
async fn a_pass_that_was_granted_late_in_an_outage_is_undone_after_it() {
    let (store, is_down) = with_outages();
    // A waiter that has many before it polls rarely, and so its entry is kept for longer.
    let theirs = store.healthy_client().await.barrier("b", 42).expect("a good name");
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let other = store.healthy_client().await.barrier("b", 42).expect("a good name");
        others.spawn(async move { other.wait().await });
    }
    sleep(500 * MS).await;
    let ours = store.client_with_timeout(1_000 * MS).await.barrier("b", 42).expect("a good name");
    let waiter = tokio::spawn(async move { ours.wait().await });
    sleep(12_000 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    waiter.abort();
    assert!(waiter.await.is_err(), "it still waited");
    sleep(14_000 * MS).await;
    theirs.wait().await.expect("all had arrived");
    while let Some(other) = others.join_next().await {
        other.expect("no panic").expect("all had arrived");
    }
    // For longer than a pass could have lasted that was granted when the wait was given up.
    sleep(52_000 * MS).await;
    assert_eq!(theirs.inspect().await.expect("an answer").shared_holders.len(), 1, "the pass that is left");
    is_down.store(false, Ordering::SeqCst);
    sleep(3_000 * MS).await;
    let left = theirs.inspect().await.expect("an answer").shared_holders;
    assert!(left.is_empty(), "{left:?}");
}

/// A lock can be granted late in an outage, too: to the entry of a wait that was aborted, once all others before it are gone.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_granted_late_in_an_outage_is_released_after_it() {
    let (store, is_down) = with_outages();
    let theirs = store.healthy_client().await.mutex("m").expect("a good name");
    let held = theirs.acquire().await.expect("it is free");
    // A waiter that has many before it polls rarely, and so its entry is kept for longer.
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let other = store.healthy_client().await.mutex("m").expect("a good name");
        others.spawn(async move { other.acquire().await.map(drop) });
    }
    sleep(500 * MS).await;
    let ours = store.client_with_timeout(1_000 * MS).await.mutex("m").expect("a good name");
    let waiter = tokio::spawn(async move { ours.acquire().await.map(drop) });
    sleep(12_000 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    waiter.abort();
    assert!(waiter.await.is_err(), "it still waited");
    others.shutdown().await;
    sleep(14_000 * MS).await;
    assert_eq!(theirs.inspect().await.expect("an answer").waiting, 1, "the entry that is left");
    held.release().await.expect("released");
    let granted = theirs.inspect().await.expect("an answer");
    assert!(granted.holder.is_some(), "granted to it: {granted:?}");
    is_down.store(false, Ordering::SeqCst);
    // Less than a first lease.
    sleep(2_000 * MS).await;
    let left = theirs.inspect().await.expect("an answer");
    assert!(left.holder.is_none(), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_polling_task_keeps_no_other_task_from_the_queue() {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = client_in_paused_time(memory).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let polling = mutex.clone().retry(leasehold::RetryPolicy::constant(Duration::from_secs(3)).jitter(0.0));
    let poller = tokio::spawn(async move { polling.acquire().await.map(drop) });
    sleep(50 * MS).await;
    let waiter = tokio::spawn(async move { mutex.acquire().await.map(drop) });
    sleep(200 * MS).await;
    assert_eq!(others.inspect().await.expect("an answer").waiting, 1, "it has a queue entry");
    held.release().await.expect("released");
    timeout(500 * MS, waiter).await.expect("woken by a message").expect("no panic").expect("acquired");
    poller.await.expect("no panic").expect("acquired at a later try");
}

/// A store whose own connection has a backlog: its requests arrive in order and late, whether or not a caller still
/// awaits the reply. The keeper's connection has none.
#[derive(Debug, Clone)]
struct Backlog {
    inner: MemoryStore,
    queue: tokio::sync::mpsc::UnboundedSender<(Lock, Op)>,
}

impl Backlog {
    fn new(inner: &MemoryStore, each: Duration) -> Self {
        let (queue, mut sent) = tokio::sync::mpsc::unbounded_channel::<(Lock, Op)>();
        let server = inner.clone();
        tokio::spawn(async move {
            while let Some((lock, op)) = sent.recv().await {
                sleep(each).await;
                server.execute(&lock, &op, SOON).await;
            }
        });
        Self { inner: inner.clone(), queue }
    }
}

impl Store for Backlog {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.queue.send((lock.clone(), op.clone())).expect("the server runs");
            sleep(within).await;
            Outcome::Failed(Executed::Unknown, Fault::new(FaultKind::TimedOut, Phase::Reply, "a slow store"))
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.inner.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// The store refuses a wait for the owner itself; the cause may be an acquire that is being undone, so it is tried again.
#[tokio::test(start_paused = true)]
async fn a_refused_write_is_tried_again_within_its_limit() {
    let memory = memory();
    let healthy = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    // The undo of the refused request takes a while.
    let undo_begun = Arc::new(Notify::new());
    let seen = Arc::clone(&undo_begun);
    let store = FaultyStore::new(&memory, move |_, op| match op {
        Op::Release(_) => {
            seen.notify_one();
            Behavior::ExecuteAfter(300 * MS)
        }
        _ => Behavior::Execute,
    });
    let client = store.client(30_000 * MS).await;
    let lock = |client: &Client| client.rwlock("rw").expect("a good name");
    let (owner, other) = (client.new_owner(), healthy.new_owner());
    let others = lock(&healthy).owned_by(&other);
    let blocking = others.write().await.expect("acquired");
    let same_owner = lock(&healthy).owned_by(&Owner::from_header(owner.to_header()).expect("a header"));
    let reading = tokio::spawn(async move { same_owner.read().await.expect("acquired") });
    sleep(20 * MS).await;
    let start = Instant::now();
    let ours = lock(&client).owned_by(&owner);
    let writing = tokio::spawn(async move { ours.write_timeout(1500 * MS).await });
    sleep(20 * MS).await;
    blocking.release().await.expect("released");
    let reading = reading.await.expect("no panic");
    // The next poll is refused, and is tried again once that is undone.
    undo_begun.notified().await;
    reading.release().await.expect("released");
    let blocking = others.write().await.expect("acquired before the second try");
    let missed = writing.await.expect("no panic").expect_err("it is held");
    assert!(matches!(missed, AcquireError::TimedOut { .. }), "{missed}");
    assert!(start.elapsed() < 1600 * MS, "{:?}", start.elapsed());
    drop(blocking);
}

/// The undo of an acquire is also sent after it on the same connection: sent by the keeper's connection alone it
/// would overtake the acquire, which would then hold the lock without an owner until its first lease ends.
#[tokio::test(start_paused = true)]
async fn an_undo_does_not_only_overtake_what_it_undoes() {
    let inner = memory();
    let slow = client_in_paused_time(Backlog::new(&inner, 30 * MS)).call_timeout(500 * MS).connect().await;
    let slow = slow.expect("it connects").mutex("m").expect("a good name");
    let other =
        client_in_paused_time(inner).connect().await.expect("it connects").mutex("m").expect("a good name");
    for _ in 0..5 {
        assert!(slow.acquire_timeout(10 * MS).await.is_err());
        sleep(40 * MS).await;
        let start = Instant::now();
        let guard = other.acquire_timeout(Duration::from_secs(10)).await.expect("acquired");
        assert!(start.elapsed() < Duration::from_secs(2), "held without an owner for {:?}", start.elapsed());
        guard.release().await.expect("released");
    }
}

/// A semaphore with 3 permits, one of which is held, and a client of it whose resizes the store does not receive while the
/// flag is set.
async fn resizable() -> (leasehold::Permit, Client, Arc<AtomicBool>) {
    let memory = memory();
    let other = client_in_paused_time(memory.clone()).connect().await.expect("it connects");
    let held = other.semaphore("s", 3).expect("a good name").acquire().await.expect("acquired");
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let store = FaultyStore::new(&memory, move |_, op| match op {
        Op::Resize(_) if down.load(Ordering::SeqCst) => Behavior::LoseRequest,
        Op::Acquire(_) => Behavior::ExecuteAfter(400 * MS),
        _ => Behavior::Execute,
    });
    (held, store.client(30_000 * MS).await, is_down)
}

#[tokio::test(start_paused = true)]
async fn a_resize_on_mismatch_is_part_of_the_wait() {
    let (_held, client, is_down) = resizable().await;
    let semaphore = client.semaphore("s", 1).expect("a good name").resize_on_mismatch();
    let semaphore = semaphore.lease(60_000 * MS).max_wait(1_000 * MS);
    // A request that is sent in time may take 400 ms longer.
    for is_now_down in [true, false] {
        is_down.store(is_now_down, Ordering::SeqCst);
        let start = Instant::now();
        let missed = semaphore.acquire().await.expect_err("its only permit is held");
        assert_eq!(is_now_down, matches!(missed, AcquireError::Store(_)), "{missed:?}");
        assert!(start.elapsed() < 1_400 * MS, "{:?}", start.elapsed());
        let start = Instant::now();
        semaphore.acquire_detached(1).await.expect_err("its only permit is held");
        assert!(start.elapsed() < 1_400 * MS, "{:?}", start.elapsed());
    }
    // The wait of a detached acquire begins once, however often it is repeated.
    let semaphore = client.semaphore("s", 2).expect("a good name").resize_on_mismatch();
    let start = Instant::now();
    let missed = semaphore.lease(60_000 * MS).max_wait(1_000 * MS).acquire_detached(2).await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    assert!(start.elapsed() < 1_400 * MS, "{:?}", start.elapsed());
}

/// An acquire without a limit tolerates an outage for as long as the client does.
#[tokio::test(start_paused = true)]
async fn a_resize_on_mismatch_lasts_through_an_outage() {
    let (_held, client, is_down) = resizable().await;
    let semaphore = client.semaphore("s", 4).expect("a good name").resize_on_mismatch();
    let start = Instant::now();
    let missed = semaphore.acquire().await.expect_err("the store does not answer");
    assert!(matches!(missed, AcquireError::Store(_)), "{missed:?}");
    let outage = start.elapsed();
    assert!(outage >= 10_000 * MS && outage < 60_000 * MS, "{outage:?}");
    let acquiring = tokio::spawn(async move { semaphore.acquire().await.expect("acquired").release().await });
    sleep(outage.saturating_sub(6_000 * MS)).await;
    is_down.store(false, Ordering::SeqCst);
    acquiring.await.expect("no panic").expect("released");
}
