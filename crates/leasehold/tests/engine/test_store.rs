//! The store that applications test with: its clocks, its faults, its counts.

use leasehold::error::{
    AcquireError, AttachError, ConnectError, ConversionError, ExtendError, ForceReleaseError, InspectError,
    LockError, LostHold, MultiReleaseError, NameError, ProclaimError, Refused, ReleaseError, ResizeError,
    ReturnPermitsError, RunError, ShutdownError, UnreleasedLock,
};
use leasehold::inspect::{Contention, SessionId, WaitCycle, WaitInfo};
use leasehold::store::FaultKind;
use leasehold::testing::{Data, TestClock, TestStore};
use leasehold::{
    Attempt, Client, Error, FencingToken, LockName, LostReason, Moment, blocking,
    store::{Fault, Phase},
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// How long a test may take in reality, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn client(store: &TestStore) -> Client {
    store.client().connect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn leases_waits_and_renewals_follow_the_paused_clock() {
    let real = Instant::now();
    let store = TestStore::new();
    let (one, two) = (client(&store).await, client(&store).await);
    let renewed = one.mutex("a").unwrap().acquire().await.unwrap();
    let leased = one.mutex("b").unwrap().lease(HOUR).acquire().await.unwrap();

    let missed = two.mutex("a").unwrap().acquire_timeout(3 * SECOND).await.unwrap_err();
    assert!(matches!(missed, AcquireError::TimedOut { waited, .. } if waited == 3 * SECOND), "{missed:?}");
    assert_eq!(store.clock().elapsed(), 3 * SECOND, "and no days");

    assert!(timeout(HOUR / 2, leased.lost()).await.is_err());
    let lost = timeout(HOUR, leased.lost()).await.expect("a loss");
    assert_eq!(lost.reason, LostReason::Expired);
    let elapsed = store.clock().elapsed();
    assert!(elapsed + HOUR / 50 > HOUR && elapsed <= HOUR, "{elapsed:?}");

    store.clock().advance(24 * HOUR).await;
    renewed.check().unwrap();
    let requests = store.requests();
    assert!(requests.extends > 1000 && requests.sessions > 10_000, "{requests:?}");
    renewed.release().await.unwrap();
    assert!(real.elapsed() < LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_handed_to_the_next_client() {
    let store = TestStore::new();
    let (one, two) = (client(&store).await, client(&store).await);
    let held = one.mutex("a").unwrap().acquire().await.unwrap();
    let mutex = two.mutex("a").unwrap();
    let next = tokio::spawn(async move { mutex.acquire().await });
    store.clock().advance(SECOND).await;
    held.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert_eq!(store.clock().elapsed(), SECOND);
    next.release().await.unwrap();
}

/// A runtime of several threads, whose clock tokio cannot pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_clock_moves_when_it_is_told() {
    let clock = TestClock::manual();
    let store = TestStore::with_clock(clock.clone());
    let (one, two) = (client(&store).await, client(&store).await);
    let renewed = one.mutex("a").unwrap().acquire().await.unwrap();
    let leased = one.mutex("b").unwrap().lease(20 * SECOND).acquire().await.unwrap();
    let mutex = two.mutex("a").unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire_timeout(45 * SECOND).await });

    clock.advance(10 * SECOND).await;
    leased.check().unwrap();
    clock.advance(11 * SECOND).await;
    assert_eq!(timeout(LIMIT, leased.lost()).await.expect("a loss").reason, LostReason::Expired);

    clock.advance(40 * SECOND).await;
    let missed = timeout(LIMIT, waiter).await.expect("the limit").unwrap().unwrap_err();
    assert!(matches!(missed, AcquireError::TimedOut { waited, .. } if waited >= 45 * SECOND), "{missed:?}");
    renewed.check().expect("its keeper has renewed it");
    assert_eq!(clock.elapsed(), 61 * SECOND);
    renewed.release().await.unwrap();
}

#[test]
fn threads_use_a_manual_clock() {
    let clock = TestClock::manual();
    let store = TestStore::with_clock(clock.clone());
    let connect = || store.client().connect_blocking().unwrap();
    let (one, two) = (connect(), connect());
    let held = one.mutex("a").unwrap().acquire().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let waiter = std::thread::spawn({
        let (mutex, is_over) = (two.mutex("a").unwrap(), is_over.clone());
        move || {
            let missed = mutex.acquire_timeout(50 * SECOND);
            is_over.store(true, Ordering::SeqCst);
            missed
        }
    });
    // Until it waits.
    while store.requests().acquires < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    clock.advance_blocking(40 * SECOND);
    assert!(!is_over.load(Ordering::SeqCst));
    clock.advance_blocking(11 * SECOND);
    assert!(matches!(waiter.join().unwrap(), Err(blocking::Error::Failed(AcquireError::TimedOut { .. }))));
    held.check().unwrap();

    clock.suspend_clients(11 * SECOND);
    assert!(held.check().is_err(), "the session lives for 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_client_loses_its_locks() {
    let store = TestStore::new();
    let (one, two) = (client(&store).await, client(&store).await);
    let held = one.mutex("a").unwrap().acquire().await.unwrap();
    store.clock().advance(SECOND).await; // its first lease is short
    store.clock().suspend_clients(5 * SECOND);
    store.clock().advance(SECOND).await;
    held.check().unwrap();
    store.clock().suspend_clients(11 * SECOND);
    assert!(held.check().is_err());
    assert_eq!(timeout(SECOND, held.lost()).await.expect("a loss").reason, LostReason::SessionLapsed);
    timeout(10 * SECOND, two.mutex("a").unwrap().acquire())
        .await
        .expect("it is free")
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_reached_again() {
    let store = TestStore::new();
    let client = client(&store).await;
    let held = client.mutex("a").unwrap().acquire().await.unwrap();
    store.clock().advance(SECOND).await; // its first lease is short
    store.down();
    let before = store.requests().acquires;
    let error = client.mutex("b").unwrap().try_acquire().await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Store(fault) if fault.kind == FaultKind::Unreachable),
        "not executed: {error:?}"
    );
    assert!(store.requests().acquires > before + 1, "tried again");
    let refused = store.client().connect().await.unwrap_err();
    assert!(refused.is_transient(), "{refused}");
    assert!(client.mutex("a").unwrap().inspect().await.is_err());
    store.clock().advance(SECOND).await;
    held.check().expect("a short outage");

    store.up();
    store.clock().advance(SECOND).await;
    held.check().unwrap();
    assert!(matches!(client.mutex("b").unwrap().try_acquire().await, Ok(Attempt::Granted(_))));

    store.down();
    let lost = timeout(30 * SECOND, held.lost()).await.expect("an outage longer than the session");
    assert_eq!(lost.reason, LostReason::SessionLapsed);
}

#[tokio::test(start_paused = true)]
async fn a_service_connects_once_the_store_is_up() {
    let store = TestStore::new();
    store.down();
    let connecting = tokio::spawn(store.client().connect_within(HOUR));
    store.clock().advance(60 * SECOND).await;
    assert!(!connecting.is_finished());
    store.up();
    connecting.await.unwrap().unwrap();
    assert!(store.clock().elapsed() < 70 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn requests_are_refused_for_a_reason() {
    let store = TestStore::new();
    let client = client(&store).await;
    let mutex = client.mutex("a").unwrap();
    store.refuse(FaultKind::Forbidden);
    for _ in 0..2 {
        let error = mutex.try_acquire().await.unwrap_err();
        assert!(
            matches!(&error, AcquireError::Store(fault) if fault.kind == FaultKind::Forbidden),
            "{error:?}"
        );
    }
    store.up();
    store.refuse_next(FaultKind::OutOfMemory);
    let error = mutex.try_acquire().await.unwrap_err();
    assert!(
        matches!(&error, AcquireError::Store(fault) if fault.kind == FaultKind::OutOfMemory),
        "{error:?}"
    );
    let held = mutex.acquire().await.unwrap();
    store.refuse_next(FaultKind::Busy);
    held.extend_to(60 * SECOND).await.expect("tried again");
    held.release().await.unwrap();
    assert!(!store.is_held("a"));
}

#[tokio::test(start_paused = true)]
async fn lost_replies_leave_the_outcome_unknown() {
    let store = TestStore::new();
    let client = client(&store).await;
    let mutex = client.mutex("a").unwrap();

    store.lose_next_reply();
    let error = mutex.try_acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::Unknown(fault) if fault.kind == FaultKind::TimedOut), "{error:?}");
    client.flush().await;
    assert!(!store.is_held("a"), "undone");

    let held = mutex.acquire().await.unwrap();
    store.lose_next_reply();
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    assert!(!store.is_held("a"), "executed");
    drop(error);

    let both = client.multi_mutex(["b", "c"]).unwrap();
    store.lose_replies();
    let error = both.try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Unknown(_)), "{error:?}");
    store.up();
    client.flush().await;
    store.clock().advance(4 * SECOND).await;
    assert!(!store.is_held("b") && !store.is_held("c"));
    both.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_takes_its_time() {
    let store = TestStore::new();
    let client = client(&store).await;
    let mutex = client.mutex("a").unwrap();
    store.slow(SECOND / 2);
    let before = store.clock().elapsed();
    let held = mutex.acquire().await.unwrap();
    assert_eq!(store.clock().elapsed(), before + SECOND / 2);
    store.slow(5 * SECOND);
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Unknown { .. }), "{error:?}");
    assert!(!store.is_held("a"), "executed when its caller gave up");
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_like_by_a_del() {
    let store = TestStore::new();
    let (one, two) = (client(&store).await, client(&store).await);
    assert!(!store.lose_lock("a") && !store.lose_lock(""));
    let held = one.mutex("a").unwrap().acquire().await.unwrap();
    assert!(store.lose_lock("a"));
    let lost = timeout(SECOND, held.lost()).await.expect("at once");
    assert_eq!(lost.reason, LostReason::Removed);
    let released = held.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Removed))), "{released:?}");

    // Of any kind, and with another client in line.
    let mutex = two.reentrant_mutex("b").unwrap();
    let held = one.reentrant_mutex("b").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    store.clock().advance(SECOND).await;
    assert!(store.lose_lock("b"));
    let next = timeout(60 * SECOND, waiter).await.expect("the next one").unwrap().unwrap();
    let lost = timeout(60 * SECOND, held.lost()).await.expect("by the next renewal");
    assert!(matches!(lost.reason, LostReason::TakenOver { .. }), "{lost}");
    assert!(next.fencing_token() > held.fencing_token());
    let reading = one.rwlock("c").unwrap().read().await.unwrap();
    assert!(store.lose_lock("c"));
    timeout(60 * SECOND, reading.lost()).await.expect("by the next renewal");
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_or_loses_the_data() {
    let store = TestStore::new();
    let (one, two) = (client(&store).await, client(&store).await);
    let held = one.mutex("a").unwrap().acquire().await.unwrap();
    store.restart(Data::Kept);
    store.clock().advance(20 * SECOND).await;
    held.check().unwrap();

    let mutex = two.mutex("a").unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    store.clock().advance(SECOND).await;
    store.down();
    store.restart(Data::Lost);
    store.clock().advance(SECOND).await;
    store.up();
    let lost = timeout(2 * SECOND, held.lost()).await.expect("a loss");
    assert!(matches!(lost.reason, LostReason::StoreLostData | LostReason::TakenOver { .. }), "{lost}");
    let next = timeout(20 * SECOND, waiter).await.expect("the next one").unwrap().unwrap();
    assert!(next.fencing_token() > held.fencing_token());
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_what_they_ask() {
    let store = TestStore::new();
    let client = client(&store).await;
    let before = store.requests();
    let mutex = client.mutex("a").unwrap();
    let held = mutex.acquire().await.unwrap();
    held.extend_to(60 * SECOND).await.unwrap();
    mutex.inspect().await.unwrap();
    held.release().await.unwrap();
    let both = client.multi_mutex(["b", "c"]).unwrap().acquire().await.unwrap();
    both.release().await.unwrap();
    let requests = store.requests();
    assert_eq!(requests.acquires - before.acquires, 3);
    assert_eq!(requests.releases - before.releases, 3);
    assert!(requests.extends > before.extends && requests.others > before.others, "{requests:?}");
    assert!(requests.sessions >= 1);
}

/// What an application matches on, it can make in its tests.
#[tokio::test(start_paused = true)]
async fn every_error_can_be_made() {
    let name = || LockName::new("a").unwrap();
    let fault = || Fault::new(FaultKind::Busy, Phase::Reply, "here");
    let lost = || LostHold::new(name(), FencingToken::new(7), LostReason::Evicted);
    let contention = || Box::new(Contention::new(None, Some(2)));
    let lease = || leasehold::error::LeaseError::TooShort(Duration::ZERO);
    let label = || leasehold::Label::new("x".repeat(1000)).unwrap_err();
    let wait = WaitInfo::new(name(), "shop/t1", SessionId::from_random([7; 12]));
    let hold =
        client(&TestStore::new()).await.mutex("a").unwrap().lease(HOUR).acquire_detached().await.unwrap();
    let io = || Arc::new(std::io::Error::other("no thread"));
    let lock_errors: Vec<LockError> = vec![
        NameError::Empty.into(),
        leasehold::error::KeyError::Brace.into(),
        LockError::Period(lease()),
        LockError::Count { what: "permits", given: 0, max: 9 },
        LockError::NoName,
        LockError::TooManyNames { given: 65, max: 64 },
    ];
    let connect_errors = [
        ConnectError::Url("bad".into()),
        ConnectError::Store(fault()),
        ConnectError::Keeper(io()),
        ConnectError::Thread(io()),
        ConnectError::Setting("bad".into()),
        ConnectError::PausedClock,
    ];
    let acquire_errors = [
        AcquireError::TimedOut { lock: name(), waited: SECOND, contention: contention() },
        AcquireError::RetriesExhausted { lock: name(), contention: contention() },
        AcquireError::Deadlock(Box::new(WaitCycle::new(vec![wait]))),
        AcquireError::Store(fault()),
        AcquireError::Unknown(fault()),
        AcquireError::Unconfirmed(fault()),
        AcquireError::Impossible(Refused::Unsupported),
        AcquireError::Closed,
        AcquireError::PausedClock,
        AcquireError::Lease(lease()),
        AcquireError::NoLease,
        AcquireError::NotExtended(Box::new(ExtendError::Store(fault()))),
        AcquireError::Lost(lost()),
        AcquireError::LeaseTooShort { lease: SECOND },
    ];
    let mut errors: Vec<Error> = vec![
        ExtendError::Lost(lost()).into(),
        ExtendError::Lease(lease()).into(),
        ExtendError::Capped { remaining: SECOND }.into(),
        ExtendError::Store(fault()).into(),
        ProclaimError::Lost(lost()).into(),
        ProclaimError::Value(label()).into(),
        ProclaimError::Store(fault()).into(),
        ReleaseError::Lost(LostReason::Expired).into(),
        ReleaseError::Store { fault: fault(), unreleased: None }.into(),
        ReleaseError::Unknown { fault: fault(), unreleased: None }.into(),
        ReleaseError::Impossible(Refused::NoCooldown).into(),
        MultiReleaseError::new(vec![(name(), ReleaseError::Lost(LostReason::Expired))]).into(),
        InspectError::from(fault()).into(),
        ForceReleaseError::Changed { contention: contention() }.into(),
        ForceReleaseError::Store(fault()).into(),
        ForceReleaseError::Unknown(fault()).into(),
        ResizeError::Impossible(Refused::Unsupported).into(),
        ResizeError::Contended { limit: Some(3) }.into(),
        ResizeError::Store(fault()).into(),
        ResizeError::Unknown(fault()).into(),
        ReturnPermitsError::Lost(lost()).into(),
        ReturnPermitsError::TooMany { returned: 3, held: 2 }.into(),
        ReturnPermitsError::Store(fault()).into(),
        ReturnPermitsError::Unknown(fault()).into(),
        AttachError::AlreadyAttached { lock: name() }.into(),
        AttachError::NotExtended { hold: Box::new(hold), error: ExtendError::Store(fault()) }.into(),
        leasehold::error::DetachedTextError::Malformed.into(),
        leasehold::error::OwnerError::Reserved.into(),
        ShutdownError::new(vec![UnreleasedLock::new(name(), Moment::ZERO)], Moment::ZERO).into(),
        leasehold::error::StopError::Signals(io()).into(),
        blocking::AsyncContext::new().into(),
        ConversionError { guard: (), error: AcquireError::Closed }.into(),
        blocking::Error::Failed(AcquireError::Closed).into(),
        RunError::<()>::Lost(lost()).into(),
        RunError::LostAtRelease { result: 3, lost: lost() }.into(),
    ];
    errors.extend(lock_errors.into_iter().map(Error::from));
    errors.extend(connect_errors.into_iter().map(Error::from));
    errors.extend(acquire_errors.into_iter().map(Error::from));
    for error in errors {
        assert!(!error.to_string().is_empty(), "{error:?}");
    }
}
