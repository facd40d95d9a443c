//! Releases whose first reply is lost: what they return.

use crate::faulty_store::{Behavior, Counter, FaultyStore, MS};
use crate::fixture::{force_release, mutex};
use crate::until::until_waiting;
use leasehold::error::{MultiReleaseError, ReleaseError, Unreleased};
use leasehold::store::{Lock, MemoryStore, Op};
use leasehold::{Client, LockGuard, LostReason, Released, blocking};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const SOON: Duration = Duration::from_secs(10);
const CALL: Duration = Duration::from_secs(2);

/// A waiter for the lock that then acquires it so often that the store forgets the earlier holds.
async fn waited_for(other: &Client) -> tokio::task::JoinHandle<()> {
    let theirs = mutex(other, "a");
    let visit = tokio::spawn({
        let theirs = theirs.clone();
        async move {
            for _ in 0..leasehold::core::model::EndedHolds::MAX_LEN {
                theirs.acquire().await.expect("acquired").release().await.expect("released");
            }
        }
    });
    until_waiting(&theirs, 1).await;
    visit
}

/// The release was executed and its reply lost. By the time it is repeated, so many other holds have ended that the
/// store no longer remembers: it cannot report whether the release or a loss ended the hold.
#[tokio::test(start_paused = true)]
async fn a_release_that_may_have_worked_is_not_reported_as_a_loss() {
    let releases = Counter::default();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if releases.next() == 0 => Behavior::ExecuteAndDisconnect,
        Op::Release(_) => Behavior::ExecuteAfter(300 * MS),
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    let lost = guard.lost_signal();
    let visit = waited_for(&other).await;
    let released = guard.release().await;
    visit.await.expect("no panic");
    assert!(matches!(released, Err(ReleaseError::Unknown { .. })), "{released:?}");
    assert!(!lost.is_cancelled(), "no loss is known");
}

/// Two holds of one owner are released at the same time over a connection that breaks: the store remembers both.
#[tokio::test(start_paused = true)]
async fn two_repeated_releases_of_one_owner_report_no_loss() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() < 2 => Behavior::ExecuteAndDisconnect,
        _ => Behavior::Execute,
    });
    let client = store.client_with_timeout(CALL).await;
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&client.new_owner());
    let one = ours.acquire().await.expect("acquired");
    let other = ours.acquire().await.expect("entered again");
    let (one, other) = tokio::join!(one.release(), other.release());
    assert_eq!(
        (one.expect("released"), other.expect("released")),
        (Released::NoLongerHeld, Released::NoLongerHeld)
    );
    assert_eq!(releases.next(), 4, "both were sent again");
}

/// A store that loses releases while `is_down`, and a guard whose release fails.
async fn failed_release(
    behavior: Behavior,
    is_down: &Arc<AtomicBool>,
) -> (Client, Client, Counter, ReleaseError) {
    let (sent, down) = (Counter::default(), is_down.clone());
    let count = sent.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) => {
            count.next();
            if down.load(Ordering::SeqCst) { behavior } else { Behavior::Execute }
        }
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    is_down.store(true, Ordering::SeqCst);
    let error = guard.release().await.expect_err("the store does not answer");
    (client, other, sent, error)
}

/// The caller has the hold, and nothing is sent until it decides. If it drops the error, the keeper goes on as for a
/// dropped guard.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_goes_on_when_its_error_is_dropped() {
    for behavior in [Behavior::LoseRequest, Behavior::Fail] {
        let is_down = Arc::new(AtomicBool::new(false));
        let (_client, other, sent, error) = failed_release(behavior, &is_down).await;
        is_down.store(false, Ordering::SeqCst);
        let before = sent.next();
        sleep(5 * CALL).await;
        assert_eq!(sent.next(), before + 1, "nothing was sent while the error is kept");
        assert!(mutex(&other, "a").inspect().await.expect("an answer").held);
        drop(error);
        let guard = timeout(2 * CALL, mutex(&other, "a").acquire())
            .await
            .expect("freed long before the lease is over");
        guard.expect("granted").release().await.expect("released");
    }
}

/// The caller tries again, for as long as a call may take each time. It learns the result, and then nothing more is sent.
#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_can_be_tried_again() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (_client, other, sent, error) = failed_release(Behavior::LoseRequest, &is_down).await;
    let unreleased = error.into_unreleased().expect("it is not released");
    assert_eq!(unreleased.name().as_str(), "a");
    let again = unreleased.release().await.expect_err("the store is still silent");
    assert!(matches!(again, ReleaseError::Unknown { unreleased: Some(_), .. }), "{again:?}");
    is_down.store(false, Ordering::SeqCst);
    again.into_unreleased().expect("it is not released").release().await.expect("released");
    let before = sent.next();
    assert!(!mutex(&other, "a").inspect().await.expect("an answer").held);
    sleep(5 * CALL).await;
    assert_eq!(sent.next(), before + 1, "nothing more is sent");
}

/// An attempt without a reply has released the lock, and another client has held it since: a later attempt finds nothing,
/// and must not report a loss.
#[tokio::test(start_paused = true)]
async fn another_attempt_does_not_report_a_loss_for_what_an_earlier_one_may_have_released() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (_client, other, _sent, error) = failed_release(Behavior::LoseReply, &is_down).await;
    is_down.store(false, Ordering::SeqCst);
    for _ in 0..leasehold::core::model::EndedHolds::MAX_LEN {
        mutex(&other, "a").acquire().await.expect("acquired").release().await.expect("released");
    }
    let again = error.into_unreleased().expect("not known to be released").release().await;
    let error = again.expect_err("not known");
    assert!(matches!(error, ReleaseError::Unknown { unreleased: None, .. }), "{error:?}");
}

/// If the future of another attempt is dropped, nothing is left either.
#[tokio::test(start_paused = true)]
async fn another_attempt_that_is_dropped_goes_on_in_the_background() {
    let is_down = Arc::new(AtomicBool::new(false));
    let (_client, other, _sent, error) = failed_release(Behavior::LoseRequest, &is_down).await;
    let unreleased = error.into_unreleased().expect("it is not released");
    timeout(CALL / 2, unreleased.release()).await.expect_err("the store is silent");
    is_down.store(false, Ordering::SeqCst);
    let guard =
        timeout(2 * CALL, mutex(&other, "a").acquire()).await.expect("freed long before the lease is over");
    guard.expect("granted").release().await.expect("released");
}

/// A shutdown releases what a caller has with an error. After it nothing more is sent, and another attempt reports the result.
#[tokio::test(start_paused = true)]
async fn a_shutdown_releases_what_is_kept_with_an_error() {
    for tries_again in [false, true] {
        let is_down = Arc::new(AtomicBool::new(false));
        let (client, other, sent, error) = failed_release(Behavior::LoseRequest, &is_down).await;
        is_down.store(false, Ordering::SeqCst);
        let before = sent.next();
        client.shutdown(SOON).await.expect("all is released");
        assert!(!mutex(&other, "a").inspect().await.expect("an answer").held);
        assert_eq!(sent.next(), before + 2, "it is released once");
        if tries_again {
            error.into_unreleased().expect("it was not released").release().await.expect("released");
        } else {
            drop(error);
        }
        sleep(5 * CALL).await;
        assert_eq!(sent.next(), before + 3, "a client that was shut down sends nothing");
    }
}

/// What a shutdown cannot release is named, whether the error is kept or its hold is being released again.
#[tokio::test(start_paused = true)]
async fn a_shutdown_names_what_is_kept_with_an_error() {
    for tries_again in [false, true] {
        let is_down = Arc::new(AtomicBool::new(false));
        let (client, _other, _sent, error) = failed_release(Behavior::LoseRequest, &is_down).await;
        let unreleased = error.into_unreleased().expect("it is not released");
        let again = async {
            if !tries_again {
                return unreleased;
            }
            let error = unreleased.release().await.expect_err("the client is shut down");
            assert!(matches!(error, ReleaseError::Unknown { unreleased: None, .. }), "{error:?}");
            std::future::pending().await
        };
        let shutdown = async {
            sleep(MS).await;
            client.shutdown(SOON).await.expect_err("it cannot be released")
        };
        let error = tokio::select! {
            error = shutdown => error,
            unreleased = async { let kept = again.await; sleep(100 * SOON).await; kept } => panic!("{unreleased:?}"),
        };
        let names: Vec<_> = error.unreleased.iter().map(|left| left.lock.as_str()).collect();
        assert_eq!(names, ["a"]);
    }
}

/// A loss that the store reports for certain is reported, even if the release may have been executed before.
#[tokio::test(start_paused = true)]
async fn a_forced_release_is_reported_by_whichever_request_finds_it() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Behavior::Disconnect,
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    force_release(&mutex(&other, "a")).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ForceReleased))), "{released:?}");
    assert_eq!(releases.next(), 2, "it was sent again");
}

/// A shutdown during a release learns its result by a second release request, sent after the first.
#[tokio::test(start_paused = true)]
async fn a_release_taken_over_by_a_shutdown_reports_its_outcome() {
    for visited in [false, true] {
        let releases = Counter::default();
        let count = releases.clone();
        let store = FaultyStore::with_sessions(move |_, op| match op {
            Op::Release(_) if count.next() == 0 => Behavior::LoseReply,
            _ => Behavior::Execute,
        });
        let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
        let guard = mutex(&client, "a").acquire().await.expect("acquired");
        let visit = if visited { Some(waited_for(&other).await) } else { None };
        let release = tokio::spawn(guard.release());
        releases.until(1).await;
        if let Some(visit) = visit {
            visit.await.expect("no panic");
        }
        client.shutdown(SOON).await.expect("the store answers");
        let released = release.await.expect("no panic");
        if visited {
            assert!(matches!(released, Err(ReleaseError::Unknown { .. })), "{released:?}");
        } else {
            released.expect("it was executed");
        }
        assert_eq!(releases.next(), 2, "the user's release, and one after it");
    }
}

/// The result includes the owner's remaining hold count, whichever client released.
#[tokio::test(start_paused = true)]
async fn a_release_taken_over_by_a_shutdown_reports_the_remaining_count() {
    let releases = Counter::default();
    let count = releases.clone();
    let store = FaultyStore::with_sessions(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Behavior::LoseReply,
        _ => Behavior::Execute,
    });
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let owner = client.new_owner();
    let elsewhere = other.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let elsewhere = elsewhere.acquire().await.expect("acquired");
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let guard = ours.acquire().await.expect("entered");
    let release = tokio::spawn(guard.release());
    releases.until(1).await;
    client.shutdown(SOON).await.expect("the store answers");
    let released = release.await.expect("no panic").expect("it was executed");
    assert_eq!(released, Released::StillHeld { count: 1 });
    elsewhere.release().await.expect("released");
}

/// A permit by key is two holds. What of them was not released is handed back, and that of the key is not released before
/// that of all.
#[tokio::test(start_paused = true)]
async fn the_permits_by_key_that_were_not_released_are_handed_back() {
    for silent in ["s", "s#key:x"] {
        let released = Arc::new(Mutex::new(Vec::new()));
        let is_down = Arc::new(AtomicBool::new(true));
        let (names, down) = (released.clone(), is_down.clone());
        let store = FaultyStore::with_sessions(move |lock, op| {
            if !matches!(op, Op::Release(_)) {
                return Behavior::Execute;
            }
            names.lock().expect("no panic").push(lock.name.to_string());
            let is_lost = lock.name.as_str() == silent && down.load(Ordering::SeqCst);
            if is_lost { Behavior::LoseRequest } else { Behavior::Execute }
        });
        let client = store.client_with_timeout(CALL).await;
        let keyed = client.keyed_semaphore("s", 2, 1).expect("good numbers");
        let permit = keyed.acquire("x").await.expect("acquired");
        let mut error = permit.release().await.expect_err("the store does not answer");
        let mut order = released.lock().expect("no panic").clone();
        order.dedup();
        assert_eq!(order, ["s", "s#key:x"]);
        let (name, error) = error.failed.pop().filter(|_| error.failed.is_empty()).expect("one of them");
        assert_eq!(name.as_str(), silent);
        let taken = [keyed.all().clone(), keyed.of_key("x")]
            .map(async |semaphore| semaphore.inspect().await.expect("an answer").taken());
        let [all, of_key] = taken;
        assert_eq!((all.await, of_key.await), (u64::from(silent == "s"), u64::from(silent != "s")));
        is_down.store(false, Ordering::SeqCst);
        error.into_unreleased().expect("it is not released").release().await.expect("released");
        assert_eq!(keyed.available_permits("x").await.expect("an answer"), 1);
    }
}

/// The hold of the key is lost while it waits for all: it begins again, and no other client has more than its permits.
#[tokio::test(start_paused = true)]
async fn a_key_whose_permits_are_lost_while_it_waits_acquires_them_again() {
    let store = FaultyStore::with_sessions(|_, _| Behavior::Execute);
    let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
    let keyed = |client: &Client| client.keyed_semaphore("s", 1, 1).expect("good numbers");
    let held = keyed(&other).acquire("y").await.expect("acquired");
    let waits = tokio::spawn({
        let keyed = keyed(&client);
        async move { keyed.acquire("x").await.expect("acquired") }
    });
    until_waiting(keyed(&other).all(), 1).await;
    let of_key = keyed(&other).of_key("x");
    let before = of_key.inspect().await.expect("an answer").shared_holders;
    let seen = before[0].observed().expect("it can be released");
    of_key.force_release(seen).await.expect("freed");
    sleep(SOON / 2).await;
    let after = of_key.inspect().await.expect("an answer").shared_holders;
    assert!(after[0].fence > before[0].fence, "{before:?} {after:?}");
    until_waiting(keyed(&other).all(), 1).await;
    held.release().await.expect("released");
    let permit = timeout(SOON, waits).await.expect("in time").expect("no panic");
    permit.check().expect("both are held");
    permit.release().await.expect("released");
}

/// A rule by which releases of these locks fail while the flag is set.
fn releases_fail(
    of: &'static [&'static str],
    behavior: Behavior,
    is_down: &Arc<AtomicBool>,
) -> impl Fn(&Lock, &Op) -> Behavior + Send + Sync + 'static {
    let down = is_down.clone();
    move |lock, op| {
        let fails = matches!(op, Op::Release(_)) && of.contains(&lock.name.as_str());
        if fails && down.load(Ordering::SeqCst) { behavior } else { Behavior::Execute }
    }
}

/// The guard of a lock that excludes the other kinds' guards of the same name.
async fn guard_of(client: &Client, kind: &str) -> Box<dyn LockGuard> {
    const GOOD: &str = "a good name";
    const ACQUIRED: &str = "acquired";
    match kind {
        "mutex" => Box::new(client.mutex("a").expect(GOOD).acquire().await.expect(ACQUIRED)),
        "reentrant" => Box::new(client.reentrant_mutex("a").expect(GOOD).acquire().await.expect(ACQUIRED)),
        "permit" => Box::new(client.semaphore("a", 1).expect(GOOD).acquire().await.expect(ACQUIRED)),
        "read" => Box::new(client.rwlock("a").expect(GOOD).read().await.expect(ACQUIRED)),
        "upgradable" => Box::new(client.rwlock("a").expect(GOOD).upgradable_read().await.expect(ACQUIRED)),
        "write" => Box::new(client.rwlock("a").expect(GOOD).write().await.expect(ACQUIRED)),
        "leadership" => Box::new(client.election("a").expect(GOOD).campaign().await.expect(ACQUIRED)),
        kind => panic!("no such kind: {kind}"),
    }
}

/// Whatever the kind of guard: the error has the hold, a second failure has it again, and then it is released.
#[tokio::test(start_paused = true)]
async fn every_kind_of_guard_can_be_released_again() {
    for kind in ["mutex", "reentrant", "permit", "read", "upgradable", "write", "leadership"] {
        let is_down = Arc::new(AtomicBool::new(true));
        let rule = releases_fail(&["a"], Behavior::LoseRequest, &is_down);
        let store = FaultyStore::with_sessions(rule);
        let (client, other) = (store.client_with_timeout(SHORT_CALL).await, store.healthy_client().await);
        let guard = guard_of(&client, kind).await;
        let fence = guard.fencing_token();
        let error = guard.release().await.expect_err("the store is silent");
        assert!(matches!(error, ReleaseError::Unknown { unreleased: Some(_), .. }), "{kind}: {error:?}");
        let unreleased = error.into_unreleased().expect("it is not released");
        assert_eq!((unreleased.name().as_str(), unreleased.fencing_token()), ("a", fence), "{kind}");
        let error = unreleased.release().await.expect_err("the store is still silent");
        is_down.store(false, Ordering::SeqCst);
        error.into_unreleased().expect("it is not released").release().await.expect("released");
        // Its own kind excludes it, but for a reader.
        let exclusive = if kind == "read" { "write" } else { kind };
        let next = timeout(CALL, guard_of(&other, exclusive)).await.expect(kind);
        assert!(next.fencing_token() > fence, "{kind}");
        next.release().await.expect("released");
    }
}

/// A call timeout of which several fit into a first lease.
const SHORT_CALL: Duration = Duration::from_millis(300);

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Acquires all three, and releases them.
async fn released_together(client: &Client, are_reentrant: bool) -> Result<(), MultiReleaseError> {
    if are_reentrant {
        let all = client.multi_reentrant_mutex(NAMES).expect("good names");
        all.acquire().await.expect("acquired").release().await
    } else {
        let all = client.multi_mutex(NAMES).expect("good names");
        all.acquire().await.expect("acquired").release().await
    }
}

/// Which of the three another client sees as held.
async fn held(other: &Client, are_reentrant: bool) -> Vec<&'static str> {
    let mut held = Vec::new();
    for name in NAMES {
        let status = if are_reentrant {
            other.reentrant_mutex(name).expect("a good name").inspect().await
        } else {
            mutex(other, name).inspect().await
        };
        if status.expect("an answer").held {
            held.push(name);
        }
    }
    held
}

/// What was not released of the locks held together, by their names.
fn unreleased_of(error: MultiReleaseError) -> Vec<(String, Unreleased)> {
    let each = error.failed.into_iter().map(|(name, error)| {
        let unreleased = error.into_unreleased().expect("it is not released");
        assert_eq!(unreleased.name(), &name);
        (name.to_string(), unreleased)
    });
    each.collect()
}

/// The error names the locks that were not released, the others are free, and each is tried again for itself.
#[tokio::test(start_paused = true)]
async fn locks_held_together_are_released_again_one_by_one() {
    for are_reentrant in [false, true] {
        for behavior in [Behavior::LoseRequest, Behavior::Fail] {
            let is_down = Arc::new(AtomicBool::new(true));
            let rule = releases_fail(&["a", "c"], behavior, &is_down);
            let store = FaultyStore::with_sessions(rule);
            let (client, other) = (store.client_with_timeout(SHORT_CALL).await, store.healthy_client().await);
            let error = released_together(&client, are_reentrant).await.expect_err("two are not released");
            assert!(error.to_string().starts_with("`a`: "), "{error}");
            let mut left = unreleased_of(error);
            let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["a", "c"]);
            assert_eq!(held(&other, are_reentrant).await, ["a", "c"], "the other one is free");
            let (_, of_c) = left.pop().expect("two");
            let error = of_c.release().await.expect_err("the store still fails");
            is_down.store(false, Ordering::SeqCst);
            error.into_unreleased().expect("it is not released").release().await.expect("released");
            assert_eq!(held(&other, are_reentrant).await, ["a"], "one is still kept by the caller");
            let (_, of_a) = left.pop().expect("one");
            of_a.release().await.expect("released");
            assert!(held(&other, are_reentrant).await.is_empty());
        }
    }
}

/// A run of a job is finished again after an error, whether or not the first request was executed: the period is not over,
/// and no other instance runs before it is.
#[tokio::test(start_paused = true)]
async fn a_run_is_finished_again_after_an_error() {
    const PERIOD: Duration = Duration::from_secs(60);
    for behavior in [Behavior::LoseRequest, Behavior::LoseReply, Behavior::Fail] {
        let is_down = Arc::new(AtomicBool::new(true));
        let rule = releases_fail(&["a"], behavior, &is_down);
        let store = FaultyStore::with_sessions(rule);
        let (client, other) = (store.client_with_timeout(CALL).await, store.healthy_client().await);
        let job =
            |client: &Client| client.once_per("a", PERIOD).expect("a good name").max_duration(2 * PERIOD);
        let run = job(&client).try_start().await.expect("an answer").granted().expect("none runs");
        for _ in 0..2 {
            let error = run.finish().await.expect_err("no reply");
            assert!(matches!(error, ReleaseError::Unknown { unreleased: None, .. }), "{error:?}");
        }
        is_down.store(false, Ordering::SeqCst);
        run.finish().await.expect("finished");
        assert!(job(&other).inspect().await.expect("an answer").in_cooldown);
        assert!(job(&other).try_start().await.expect("an answer").granted().is_none());
        // Long before the run would have ended by itself.
        sleep(PERIOD).await;
        let next = job(&other).try_start().await.expect("an answer").granted().expect("the period is over");
        next.fail().await.expect("given up");
    }
}

/// The same from a thread: a client tries again what a release of any of its guards has left.
#[test]
fn a_thread_tries_again_what_was_not_released() {
    type Released = Result<(), blocking::Error<ReleaseError>>;
    fn of(error: blocking::Error<ReleaseError>) -> ReleaseError {
        match error {
            blocking::Error::Failed(error) => error,
            error => panic!("not in an async context: {error}"),
        }
    }
    let is_down = Arc::new(AtomicBool::new(false));
    let rule = releases_fail(&["a", "b", "c", "r", "s", "e"], Behavior::Fail, &is_down);
    let store = FaultyStore { keeps_sessions: true, ..FaultyStore::new(&MemoryStore::new(), rule) };
    let builder = Client::with_store(store.clone()).call_timeout(20 * MS);
    let client = builder.connect_blocking().expect("it connects");
    let other = Client::with_store(store.inner).connect_blocking().expect("it connects");
    let releases: [fn(&blocking::Client) -> Released; 6] = [
        |client| client.mutex("a").unwrap().acquire().unwrap().release(),
        |client| client.reentrant_mutex("b").unwrap().acquire().unwrap().release().map(drop),
        |client| client.semaphore("s", 1).unwrap().acquire().unwrap().release(),
        |client| client.rwlock("r").unwrap().read().unwrap().release(),
        |client| client.rwlock("r").unwrap().write().unwrap().release(),
        |client| client.election("e").unwrap().campaign().unwrap().resign(),
    ];
    for release in releases {
        is_down.store(true, Ordering::SeqCst);
        let unreleased = of(release(&client).unwrap_err()).into_unreleased().expect("it is not released");
        let again = of(client.release_again(unreleased).unwrap_err());
        is_down.store(false, Ordering::SeqCst);
        client.release_again(again.into_unreleased().expect("it is not released")).unwrap();
        // Another client acquires the same at once.
        release(&other).unwrap();
    }
    is_down.store(true, Ordering::SeqCst);
    let all = client.multi_mutex(["a", "b", "x"]).unwrap().acquire().unwrap();
    let blocking::Error::Failed(error) = all.release().unwrap_err() else { panic!("no async context") };
    let left = unreleased_of(error);
    is_down.store(false, Ordering::SeqCst);
    let names: Vec<_> = left.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, ["a", "b"]);
    for (name, unreleased) in left {
        client.release_again(unreleased).unwrap();
        assert!(!other.mutex(name).unwrap().inspect().unwrap().held);
    }
}
