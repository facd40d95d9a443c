//! `lock_delay`: another client is granted the lock so long after its holder has lost it, and at once after a release.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS};
use crate::fixture::mutex;
use crate::until::until_waiting;
use leasehold::error::ReleaseError;
use leasehold::store::{MemoryStore, Op, QuorumStore, Store};
use leasehold::{Client, LockGuard, LostReason, Mutex};
use leasehold_testkit::Random;
use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const DELAY: Duration = Duration::from_secs(10);
const WATCHDOG: Duration = Duration::from_secs(6);
/// Longer than any lease and delay.
const LONG: Duration = Duration::from_secs(120);
/// What a delay may be longer than asked for: its margin, the allowance for drift, and a poll.
const SLACK: Duration = Duration::from_millis(1_500);

/// A store that executes no request of a client while it `is_down`, and the clients: the one of the holder, and another.
async fn clients(is_down: &Arc<AtomicBool>) -> (Client, Client) {
    let down = is_down.clone();
    let store = FaultyStore::with_sessions(move |_, _| {
        if down.load(Ordering::SeqCst) { Behavior::LoseRequest } else { Behavior::Execute }
    });
    let client = client_in_paused_time(store.clone()).watchdog_lease(WATCHDOG).connect();
    (client.await.expect("it connects"), store.healthy_client().await)
}

/// How long after the loss the other client was granted the lock.
async fn gap(lost: impl Future, granted: impl Future) -> Duration {
    let at = async |event: std::pin::Pin<&mut dyn Future<Output = ()>>| {
        timeout(LONG, event).await.expect("in time");
        Instant::now()
    };
    let lost = std::pin::pin!(async { drop(lost.await) });
    let granted = std::pin::pin!(async { drop(granted.await) });
    let (lost, granted) = tokio::join!(at(lost), at(granted));
    assert!(lost <= granted, "granted {:?} before the loss", lost - granted);
    granted - lost
}

#[track_caller]
fn assert_kept(gap: Duration) {
    assert!((DELAY..DELAY + SLACK).contains(&gap), "granted {gap:?} after the loss");
}

/// A holder whose store stops to reply, whatever acquires and keeps its hold.
async fn lost_in_an_outage(configure: impl Fn(Mutex) -> Mutex) -> (Duration, LostReason) {
    let is_down = Arc::default();
    let (client, other) = clients(&is_down).await;
    let guard = configure(mutex(&client, "a")).acquire().await.expect("acquired");
    sleep(500 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    let next = mutex(&other, "a");
    let gap = gap(guard.lost(), next.acquire()).await;
    let reason = guard.check().expect_err("lost").reason;
    (gap, reason)
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_granted_a_delay_after_its_loss_in_an_outage() {
    assert_kept(lost_in_an_outage(|mutex| mutex.lock_delay(DELAY)).await.0);
    assert_kept(lost_in_an_outage(|mutex| mutex.lock_delay(DELAY).lease(20_000 * MS)).await.0);
    assert_kept(lost_in_an_outage(|mutex| mutex.lock_delay(DELAY).lease(600 * MS)).await.0);
    assert_kept(lost_in_an_outage(|mutex| mutex.lock_delay(DELAY).sticky(1_000 * MS)).await.0);
    let (without, _) = lost_in_an_outage(|mutex| mutex.lease(20_000 * MS)).await;
    assert!(without < SLACK, "{without:?}");
}

/// A holder that has reached its cap may still work: nothing releases its lock before the delay.
#[tokio::test(start_paused = true)]
async fn a_lock_at_its_cap_is_granted_a_delay_later() {
    for cap in [400 * MS, 4_000 * MS, 40_000 * MS] {
        let is_down = Arc::default();
        let (client, other) = clients(&is_down).await;
        let guard = mutex(&client, "a").lock_delay(DELAY).max_hold(cap).acquire().await.expect("acquired");
        let start = Instant::now();
        let next = mutex(&other, "a");
        let lost = async { (guard.lost().await.reason, drop(guard)) };
        // The last extend before the cap asks for no more than it.
        let gap = gap(lost, next.acquire()).await;
        assert!((DELAY..DELAY + WATCHDOG).contains(&gap), "{gap:?} after the cap");
        assert!(start.elapsed() >= cap + DELAY);
    }
}

/// The holder has noticed the loss, and gives up its guard; by then the store replies again.
#[tokio::test(start_paused = true)]
async fn no_release_after_the_loss_ends_the_delay() {
    for ends in ["drop", "release", "shutdown"] {
        let is_down: Arc<AtomicBool> = Arc::default();
        let (client, other) = clients(&is_down).await;
        let guard = mutex(&client, "a").lock_delay(DELAY).acquire().await.expect("acquired");
        sleep(2_500 * MS).await;
        is_down.store(true, Ordering::SeqCst);
        let (next, gone_after) = (mutex(&other, "a"), Cell::new(Duration::ZERO));
        let lost = async {
            guard.lost().await;
            let at = Instant::now();
            is_down.store(false, Ordering::SeqCst);
            match ends {
                "drop" => drop(guard),
                "release" => {
                    let released = guard.release().await;
                    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Expired))), "{released:?}");
                }
                _ => client.shutdown(1_000 * MS).await.expect("nothing is left to release"),
            }
            gone_after.set(at.elapsed());
        };
        let gap = Box::pin(gap(lost, next.acquire())).await;
        // Counted from when the guard was gone.
        let gap = gap + gone_after.get();
        assert!((DELAY..DELAY + SLACK).contains(&gap), "{ends}: granted {gap:?} after the loss");
        // The clients wait for one another by the queue as before.
        if ends != "shutdown" {
            let again = timeout(LONG, mutex(&client, "a").acquire()).await.expect("in time");
            again.expect("acquired").release().await.expect("released");
        }
    }
}

/// The same for a task of the same process, which waits in its local queue.
#[tokio::test(start_paused = true)]
async fn a_task_of_the_same_process_waits_for_the_delay_as_well() {
    let is_down = Arc::default();
    let (client, _) = clients(&is_down).await;
    let ours = mutex(&client, "a").lock_delay(DELAY);
    let guard = ours.clone().lease(2_000 * MS).acquire().await.expect("acquired");
    let next = async { ours.acquire().await.expect("acquired") };
    assert_kept(gap(guard.lost(), next).await);
}

#[tokio::test(start_paused = true)]
async fn an_orderly_release_frees_the_lock_at_once() {
    let is_down: Arc<AtomicBool> = Arc::default();
    let (client, other) = clients(&is_down).await;
    let ours = mutex(&client, "a").lock_delay(DELAY);
    let next = mutex(&other, "a");
    let free_soon = async || {
        let guard = timeout(SLACK, next.acquire()).await.expect("soon").expect("acquired");
        guard.release().await.expect("released");
    };
    ours.acquire().await.expect("acquired").release().await.expect("released");
    free_soon().await;
    drop(ours.acquire().await.expect("acquired"));
    free_soon().await;
    // Released in time; the reply is lost, and it is repeated after the hold's own deadline.
    let guard = ours.clone().lease(1_000 * MS).acquire().await.expect("acquired");
    sleep(500 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    let error = guard.release().await.expect_err("the store does not answer");
    is_down.store(false, Ordering::SeqCst);
    drop(error);
    free_soon().await;
    // By an operator.
    let _held = ours.acquire().await.expect("acquired");
    crate::fixture::force_release(&next).await;
    free_soon().await;
    // And by the shutdown of a client that holds it.
    let _held = ours.acquire().await.expect("acquired");
    client.shutdown(1_000 * MS).await.expect("everything is released");
    free_soon().await;
}

/// A grant by a message, from another client, counts from its request, as without a delay.
#[tokio::test(start_paused = true)]
async fn the_delay_holds_after_a_grant_by_a_message_and_after_a_hand_off() {
    let is_down = Arc::default();
    let (client, other) = clients(&is_down).await;
    let (ours, theirs) = (mutex(&client, "a").lock_delay(DELAY), mutex(&other, "a"));
    let held = theirs.acquire().await.expect("acquired");
    let (first, second, next) = tokio::join!(
        async {
            let first = ours.acquire().await.expect("acquired");
            sleep(1_000 * MS).await;
            first.release().await
        },
        async {
            sleep(100 * MS).await;
            let second = ours.acquire().await.expect("acquired");
            is_down.store(true, Ordering::SeqCst);
            second
        },
        async {
            until_waiting(&theirs, 1).await;
            held.release().await
        },
    );
    first.expect("released");
    next.expect("released");
    assert_kept(gap(second.lost(), theirs.acquire()).await);
}

/// Tasks of a process with different delays, or none, share a lock: none passes on a hold that is kept for too short.
#[tokio::test(start_paused = true)]
async fn a_hold_is_not_handed_off_to_a_task_with_another_delay() {
    for shorter in [Duration::ZERO, 1_000 * MS] {
        let is_down = Arc::default();
        let (client, other) = clients(&is_down).await;
        let ours = mutex(&client, "a");
        let first = ours.clone().lock_delay(shorter).acquire().await.expect("acquired");
        let waits = tokio::spawn({
            let delayed = ours.lock_delay(DELAY);
            async move { delayed.acquire().await.expect("acquired") }
        });
        sleep(100 * MS).await;
        first.release().await.expect("released");
        let second = waits.await.expect("no panic");
        is_down.store(true, Ordering::SeqCst);
        assert_kept(gap(second.lost(), mutex(&other, "a").acquire()).await);
    }
}

/// The replies to the first requests are lost: the hold is of an older request, and the store keeps it for the delay.
#[tokio::test(start_paused = true)]
async fn an_acquire_whose_replies_are_lost_is_not_stuck_for_the_delay() {
    for lost in [1, 4, 8] {
        let left = Arc::new(std::sync::atomic::AtomicU32::new(lost));
        let is_down: Arc<AtomicBool> = Arc::default();
        let (count, down) = (left.clone(), is_down.clone());
        let store = FaultyStore::with_sessions(move |_, op| match op {
            _ if down.load(Ordering::SeqCst) => Behavior::LoseRequest,
            Op::Acquire(_)
                if count
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                    .is_ok() =>
            {
                Behavior::LoseReply
            }
            _ => Behavior::Execute,
        });
        let client = client_in_paused_time(store.clone()).watchdog_lease(WATCHDOG).call_timeout(1_000 * MS);
        let (client, other) = (client.connect().await.expect("it connects"), store.healthy_client().await);
        let start = Instant::now();
        let guard = mutex(&client, "a").lock_delay(DELAY).acquire().await.expect("acquired");
        let most = Duration::from_secs(2) * lost + SLACK;
        assert!(start.elapsed() < most, "{lost} lost: acquired after {:?}", start.elapsed());
        sleep(500 * MS).await;
        guard.check().expect("held");
        is_down.store(true, Ordering::SeqCst);
        assert_kept(gap(guard.lost(), mutex(&other, "a").acquire()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_delay_holds_for_extends_and_for_detached_holds() {
    let is_down = Arc::default();
    let (client, other) = clients(&is_down).await;
    let (ours, theirs) = (mutex(&client, "a").lock_delay(DELAY), mutex(&other, "a"));
    let guard = ours.clone().lease(1_000 * MS).acquire().await.expect("acquired");
    guard.extend_to(5_000 * MS).await.expect("extended");
    assert!(guard.remaining() > 4_500 * MS, "{:?}", guard.remaining());
    assert_kept(gap(guard.lost(), async { theirs.acquire().await.expect("acquired").release().await }).await);
    drop(guard);

    let detached = ours.clone().lease(4_000 * MS).acquire_detached().await.expect("acquired");
    let ends = sleep(4_000 * MS);
    let free = async { theirs.acquire().await.expect("acquired").release().await };
    let after = gap(ends, free).await;
    assert!((DELAY..DELAY + SLACK).contains(&after), "{after:?} after the end of the lease");
    drop(detached);

    // A late release does not end the delay.
    let detached = ours.clone().lease(4_000 * MS).acquire_detached().await.expect("acquired");
    sleep(4_100 * MS).await;
    let late = detached.release(&client).await;
    assert!(matches!(late, Err(ReleaseError::Lost(LostReason::Expired))), "{late:?}");
    assert!(theirs.try_acquire().await.expect("an answer").granted().is_none());
    theirs.acquire().await.expect("acquired").release().await.expect("released");

    // Its text carries the delay to the process that attaches it.
    let detached = ours.lease(4_000 * MS).acquire_detached().await.expect("acquired");
    let mut detached: leasehold::DetachedHold = detached.to_secret_text().parse().expect("its own text");
    detached.extend(&client, 5_000 * MS).await.expect("extended");
    let guard = detached.attach(&client).await.expect("attached");
    sleep(1_000 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    assert_kept(gap(guard.lost(), theirs.acquire()).await);
}

#[tokio::test(start_paused = true)]
async fn every_kind_keeps_the_delay() {
    let kept = async |kind: &str| {
        let is_down: Arc<AtomicBool> = Arc::default();
        let (client, other) = clients(&is_down).await;
        let reentrant = |client: &Client| client.reentrant_mutex("a").expect("a good name");
        let election = |client: &Client| client.election("a").expect("a good name");
        let semaphore = |client: &Client| client.semaphore("a", 1).expect("a good name");
        let rwlock = |client: &Client| client.rwlock("a").expect("a good name");
        let guard: Box<dyn LockGuard> = match kind {
            "reentrant" => Box::new(reentrant(&client).lock_delay(DELAY).acquire().await.expect("acquired")),
            "election" => Box::new(election(&client).lock_delay(DELAY).campaign().await.expect("elected")),
            "semaphore" => Box::new(semaphore(&client).lock_delay(DELAY).acquire().await.expect("acquired")),
            "read" => Box::new(rwlock(&client).lock_delay(DELAY).read().await.expect("acquired")),
            _ => Box::new(rwlock(&client).lock_delay(DELAY).write().await.expect("acquired")),
        };
        sleep(2_500 * MS).await;
        is_down.store(true, Ordering::SeqCst);
        let next = async {
            match kind {
                "reentrant" => drop(reentrant(&other).acquire().await.expect("acquired")),
                "election" => drop(election(&other).campaign().await.expect("elected")),
                "semaphore" => drop(semaphore(&other).acquire().await.expect("acquired")),
                _ => drop(rwlock(&other).write().await.expect("acquired")),
            }
        };
        assert_kept(gap(guard.lost(), next).await);
    };
    for kind in ["reentrant", "election", "semaphore", "read", "write"] {
        kept(kind).await;
    }
}

/// The owner of a ReentrantMutex enters again and again: the delay is not added to itself.
#[tokio::test(start_paused = true)]
async fn entering_again_does_not_lengthen_the_delay() {
    let is_down: Arc<AtomicBool> = Arc::default();
    let (client, other) = clients(&is_down).await;
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&client.new_owner());
    let ours = ours.lock_delay(DELAY).lease(5_000 * MS);
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(ours.acquire().await.expect("acquired"));
        sleep(100 * MS).await;
    }
    let last = guards.pop().expect("five");
    assert!(last.remaining() <= 5_000 * MS, "{:?}", last.remaining());
    let theirs = other.reentrant_mutex("a").expect("a good name");
    assert_kept(gap(last.lost(), theirs.acquire()).await);
}

#[tokio::test(start_paused = true)]
async fn the_delay_holds_over_a_quorum() {
    let nodes: Vec<MemoryStore> = (0..3).map(|_| memory()).collect();
    let is_down: Arc<AtomicBool> = Arc::default();
    let faulty = nodes.iter().map(|node| {
        let down = is_down.clone();
        let rule = move |_: &_, _: &Op| {
            if down.load(Ordering::SeqCst) { Behavior::LoseRequest } else { Behavior::Execute }
        };
        Arc::new(FaultyStore::new(node, rule)) as Arc<dyn Store>
    });
    let of_holder = QuorumStore::new(faulty).expect("three nodes");
    let of_other = QuorumStore::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Store>));
    let client =
        client_in_paused_time(of_holder).watchdog_lease(WATCHDOG).connect().await.expect("it connects");
    let other = client_in_paused_time(of_other.expect("three nodes")).connect().await.expect("it connects");
    let guard = mutex(&client, "a").lock_delay(DELAY).acquire().await.expect("acquired");
    sleep(2_500 * MS).await;
    is_down.store(true, Ordering::SeqCst);
    assert_kept(gap(guard.lost(), mutex(&other, "a").acquire()).await);
}

/// What the tasks of a random run know of the lock.
#[derive(Default)]
struct Seen {
    /// When a holder last lost it.
    lost_at: Option<Instant>,
    losses: u32,
    releases: u32,
}

/// A task that acquires the lock again and again, for random times, under a lease, a cap or a watchdog.
async fn acquires_again_and_again(ours: Mutex, seen: Arc<std::sync::Mutex<Seen>>, random: Random) {
    for _ in 0..12 {
        let ours = match random.below(4) {
            0 => ours.clone().lease(Duration::from_millis(random.between(300, 8_000))),
            1 => ours.clone().max_hold(Duration::from_millis(random.between(300, 8_000))),
            _ => ours.clone(),
        };
        let Ok(guard) = ours.acquire_timeout(LONG).await else { continue };
        let since = seen.lock().unwrap().lost_at.map(|at| at.elapsed());
        assert!(since.is_none_or(|since| since >= DELAY), "granted {since:?} after a loss");
        let work = sleep(Duration::from_millis(random.below(6_000)));
        let is_lost = tokio::select! {
            biased;
            _ = guard.lost() => true,
            () = work => false,
        };
        if is_lost {
            let mut seen = seen.lock().unwrap();
            (seen.lost_at, seen.losses) = (Some(Instant::now()), seen.losses + 1);
        } else {
            seen.lock().unwrap().releases += 1;
        }
        match random.below(3) {
            0 => drop(guard),
            1 if is_lost => {
                sleep(Duration::from_millis(random.below(3_000))).await;
                drop(guard);
            }
            _ => drop(guard.release().await),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_client_is_granted_the_lock_within_the_delay_of_a_loss() {
    let (mut losses, mut releases) = (0, 0);
    for seed in 0..40 {
        let random = Random::from_seed(seed);
        let inner = memory();
        let seen = Arc::new(std::sync::Mutex::new(Seen::default()));
        let mut tasks = tokio::task::JoinSet::new();
        let mut outages = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let is_down: Arc<AtomicBool> = Arc::default();
            let down = is_down.clone();
            let store = FaultyStore {
                keeps_sessions: true,
                ..FaultyStore::new(&inner, move |_, _| {
                    if down.load(Ordering::SeqCst) { Behavior::LoseRequest } else { Behavior::Execute }
                })
            };
            let client =
                client_in_paused_time(store).watchdog_lease(WATCHDOG).connect().await.expect("it connects");
            for _ in 0..2 {
                let ours = mutex(&client, "a").lock_delay(DELAY);
                tasks.spawn(acquires_again_and_again(ours, seen.clone(), random.branch()));
            }
            let random = random.branch();
            outages.spawn(async move {
                loop {
                    sleep(Duration::from_millis(random.below(30_000))).await;
                    is_down.store(true, Ordering::SeqCst);
                    sleep(Duration::from_millis(random.below(12_000))).await;
                    is_down.store(false, Ordering::SeqCst);
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            assert!(task.is_ok(), "seed {seed}: {task:?}");
        }
        let seen = seen.lock().unwrap();
        (losses, releases) = (losses + seen.losses, releases + seen.releases);
    }
    assert!(losses > 200 && releases > 200, "{losses} losses, {releases} releases");
}
