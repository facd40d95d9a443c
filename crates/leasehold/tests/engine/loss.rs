//! Lost holds, and how they are reported.

use crate::environment::{SuspendableMachine, client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS, SOON};
use crate::fixture::{both, force_release, mutex};
use leasehold::error::{AcquireError, ExtendError, ProclaimError, ReturnPermitsError, RunError};
use leasehold::inspect::HoldEnding;
use leasehold::store::{MemoryStore, Op};
use leasehold::{Client, LostReason, blocking};
use std::cell::{Cell, RefCell};
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

/// The same for a future that runs under the lock, and has completed in the meantime.
#[tokio::test(start_paused = true)]
async fn a_run_that_completes_after_a_loss_waits_for_the_reason_that_is_being_queried() {
    let store = FaultyStore::with_sessions(|_, op| match op {
        Op::Inspect(_) => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let operator = mutex(&store.healthy_client().await, "m");
    let ran = mutex(&store.client_with_timeout(2000 * MS).await, "m");
    let ran = ran.run(|guard| async move {
        force_release(&operator).await;
        while guard.check().is_ok() {
            sleep(MS).await;
        }
        7
    });
    match ran.await {
        Err(RunError::LostAtRelease { result: 7, lost }) => {
            assert_eq!(lost.reason, LostReason::ForceReleased);
        }
        ran => panic!("{ran:?}"),
    }
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

/// A store in which an operator's forced release overtakes every release.
fn forced_before_each_release(memory: &MemoryStore) -> FaultyStore {
    let rule = |_: &_, op: &Op| match op {
        Op::Release(_) => Behavior::ForceReleaseFirst,
        _ => Behavior::Execute,
    };
    FaultyStore { keeps_sessions: true, ..FaultyStore::new(memory, rule) }
}

/// The error of a `run` whose hold was ended after its last check and before its release.
fn assert_lost_at_release<T: PartialEq + std::fmt::Debug>(
    ran: Result<T, RunError<T>>,
    lock: &str,
    expected: T,
) {
    let Err(RunError::LostAtRelease { result, lost }) = ran else { panic!("{lock}: {ran:?}") };
    assert_eq!((result, lost.lock.as_str(), &lost.reason), (expected, lock, &LostReason::ForceReleased));
    assert!(lost.fence.as_u64() > 0, "{lost}");
}

/// The hold is there when the future completes, and the release does not find it: what was done may have overlapped, so
/// the result comes in the error.
#[tokio::test(start_paused = true)]
async fn a_loss_that_the_release_finds_is_reported_with_the_result() {
    let store = forced_before_each_release(&memory());
    let client = store.client_with_timeout(2000 * MS).await;
    let lock = client.mutex("m").expect("a good name");
    assert_lost_at_release(lock.run(async |guard| guard.check().is_ok()).await, "m", true);
    let lock = client.reentrant_mutex("r").expect("a good name");
    assert_lost_at_release(lock.run(async |guard| guard.check().is_ok()).await, "r", true);
    let lock = client.semaphore("s", 2).expect("a good name");
    assert_lost_at_release(lock.run(async |guard| guard.check().is_ok()).await, "s", true);
    let lock = client.rwlock("rw").expect("a good name");
    assert_lost_at_release(lock.run_reading(async |guard| guard.check().is_ok()).await, "rw", true);
    assert_lost_at_release(lock.run_writing(async |guard| guard.check().is_ok()).await, "rw", true);
    let lock = client.election("e").expect("a good name");
    assert_lost_at_release(lock.lead(async |guard| guard.check().is_ok()).await, "e", true);
    let job = client.once_per("o", Duration::from_secs(60)).expect("a good name");
    assert_lost_at_release(job.run(async |guard| guard.check().is_ok()).await.map(Option::unwrap), "o", true);
}

#[test]
fn a_loss_that_the_release_finds_is_reported_to_a_thread_with_the_result() {
    fn of<T: std::fmt::Debug>(ran: Result<T, blocking::Error<RunError<T>>>) -> Result<T, RunError<T>> {
        ran.map_err(|error| match error {
            blocking::Error::Failed(error) => error,
            error => panic!("not in an async context: {error}"),
        })
    }
    let store = forced_before_each_release(&MemoryStore::new());
    let client = Client::with_store(store).connect_blocking().expect("it connects");
    let lock = client.mutex("m").unwrap();
    assert_lost_at_release(of(lock.run(|guard| guard.check().is_ok())), "m", true);
    let lock = client.reentrant_mutex("r").unwrap();
    assert_lost_at_release(of(lock.run(|guard| guard.check().is_ok())), "r", true);
    let lock = client.semaphore("s", 2).unwrap();
    assert_lost_at_release(of(lock.run(|guard| guard.check().is_ok())), "s", true);
    let lock = client.rwlock("rw").unwrap();
    assert_lost_at_release(of(lock.run_reading(|guard| guard.check().is_ok())), "rw", true);
    assert_lost_at_release(of(lock.run_writing(|guard| guard.check().is_ok())), "rw", true);
}

/// An observer of the ends of holds that did not look, or had no answer, while a lease ended: the hold may have been
/// renewed and released meanwhile, so that it is not known whether it has expired.
#[tokio::test(start_paused = true)]
async fn an_end_that_no_poll_was_close_to_is_unknown() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = is_down.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Inspect(_) if down.load(Ordering::SeqCst) => Behavior::Fail,
        _ => Behavior::Execute,
    });
    let observer = store.client_with_timeout(200 * MS).await;
    let holder = store.healthy_client().await.mutex("m").expect("a good name").lease(2_000 * MS);
    for store_fails in [false, true] {
        let guard = holder.acquire().await.expect("acquired");
        let fence = guard.fencing_token();
        std::mem::forget(guard);
        let mut ends = observer.mutex("m").expect("a good name").observe_ends().await.expect("an answer");
        if store_fails {
            is_down.store(true, Ordering::SeqCst);
            let begun = Instant::now();
            while begun.elapsed() < 3_000 * MS {
                ends.next().await.expect_err("the store fails");
            }
            is_down.store(false, Ordering::SeqCst);
        } else {
            sleep(3_000 * MS).await;
        }
        let end = ends.next().await.expect("an answer");
        assert_eq!((end.fence, end.ending), (Some(fence), HoldEnding::Unknown), "{store_fails}");
    }
}

/// The list of the holds that other clients ended has 32 entries: of the 33rd, which was ended first, it is not known
/// whether it was among them.
#[tokio::test(start_paused = true)]
async fn an_end_of_which_the_audit_has_no_room_is_unknown() {
    const HOLDS: usize = leasehold::core::model::Audit::MAX_ENTRIES + 1;
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let (holder, observer) = (store.healthy_client().await, store.healthy_client().await);
    let semaphore = |client: &Client| client.semaphore("s", 64).expect("a good name");
    let mut permits = Vec::new();
    for _ in 0..HOLDS {
        permits.push(semaphore(&holder).acquire().await.expect("acquired"));
    }
    let mut ends = semaphore(&observer).observe_ends().await.expect("an answer");
    for permit in &permits {
        let holders = semaphore(&observer).inspect().await.expect("an answer").shared_holders;
        let seen = holders.iter().find(|holder| holder.fence == Some(permit.fencing_token()));
        let seen = seen.and_then(leasehold::inspect::SharedHolder::observed).expect("it holds a permit");
        semaphore(&observer).force_release(seen).await.expect("ended");
    }
    let mut endings = Vec::new();
    for _ in 0..HOLDS {
        let end = timeout(SOON, ends.next()).await.expect("in time").expect("an answer");
        endings.push((end.fence, end.ending));
    }
    let expected = permits.iter().enumerate().map(|(at, permit)| {
        let ending = if at == 0 { HoldEnding::Unknown } else { HoldEnding::ForceReleased };
        (Some(permit.fencing_token()), ending)
    });
    assert_eq!(endings, expected.collect::<Vec<_>>());
}

/// Leads again and again. The pauses grow from one short leadership to the next, and are short again after a long one.
#[tokio::test(start_paused = true)]
async fn the_pauses_between_campaigns_grow_until_a_leadership_lasts() {
    const FIRST: Duration = Duration::from_millis(100);
    const STEADY: Duration = Duration::from_secs(60);
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let (client, operator) = (store.healthy_client().await, store.healthy_client().await);
    let (election, operated) =
        (client.election("e").expect("a good name"), operator.election("e").expect("a good name"));
    let (ended, pauses) = (Cell::new(Instant::now()), RefCell::new(Vec::new()));
    let leading = election.lead_forever(|leadership| {
        let round = {
            let mut all = pauses.borrow_mut();
            all.push(ended.get().elapsed());
            all.len()
        };
        let (operated, ended) = (&operated, &ended);
        async move {
            match round {
                // Steady, if only just.
                7 => sleep(STEADY).await,
                // It ends by itself before that.
                4 => sleep(STEADY * 9 / 10).await,
                // Deposed: the future is dropped at its next await.
                _ => {
                    let details = operated.inspect_full().await.expect("an answer");
                    ended.set(Instant::now());
                    operated.force_release(details.observed.expect("it leads")).await.expect("deposed");
                    leadership.lost().await;
                }
            }
            ended.set(Instant::now());
        }
    });
    timeout(5 * STEADY, async {
        tokio::select! {
            error = leading => panic!("{error}"),
            () = async { while pauses.borrow().len() < 9 { sleep(MS).await; } } => {}
        }
    })
    .await
    .expect("it leads nine times");
    let pauses = pauses.into_inner();
    assert!(pauses[0] < 10 * MS, "the first campaign begins at once: {pauses:?}");
    // Half of a pause is chance.
    for (at, pause) in pauses.iter().enumerate().skip(1) {
        let doublings = u32::try_from(if at < 7 { at - 1 } else { at - 7 }).expect("a small number");
        let full = FIRST * 2_u32.pow(doublings);
        assert!(*pause >= full / 2 && *pause <= full + 10 * MS, "pause {at}: {pauses:?}");
    }
}

/// The same for conversions of a lock that was freed by an operator.
#[tokio::test(start_paused = true)]
async fn conversions_wait_for_the_reason_that_is_being_queried() {
    let store = FaultyStore::with_sessions(|_, op| match op {
        Op::Inspect(_) => Behavior::ExecuteAfter(200 * MS),
        _ => Behavior::Execute,
    });
    let operator = store.healthy_client().await.rwlock("a").expect("a good name");
    let rwlock = store.client_with_timeout(2000 * MS).await.rwlock("a").expect("a good name");
    let write = rwlock.write().await.expect("acquired");
    let holder = operator.inspect_full().await.expect("an answer").observed.expect("it has a holder");
    operator.force_release(holder).await.expect("freed");
    while write.check().is_ok() {
        sleep(MS).await;
    }
    let failed = write.downgrade().await.expect_err("lost");
    assert!(matches!(failed.error, AcquireError::Lost(lost) if lost.reason == LostReason::ForceReleased));
}
