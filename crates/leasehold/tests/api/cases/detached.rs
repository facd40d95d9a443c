//! Detached holds.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, AttachError, ExtendError, Refused, ReleaseError};
use leasehold::{Attempt, Client, DetachedHold, Label, LostReason, Mutex};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime};

on_every_store! {
    asynchronous:
    a_detached_hold_has_its_whole_lease_when_it_is_returned,
    a_second_release_reports_another_holder,
    a_detached_hold_outlives_its_client_and_is_released_by_another,
    a_detached_hold_needs_a_lease,
    a_detached_acquire_queues_and_others_queue_behind_it,
    a_detached_try_reports_the_holder,
    a_detached_hold_ends_with_its_lease_and_its_release_reports_why,
    a_detached_hold_that_was_taken_over_is_left_alone,
    an_extend_of_a_detached_hold_lengthens_it,
    a_detached_hold_is_kept_once_it_is_attached,
    a_detached_hold_is_attached_once,
    an_attached_hold_is_lost_once_its_text_is_released,
    a_detached_hold_with_a_custom_value,
    a_detached_hold_is_unknown_in_another_store,
    detached_permits_outlive_their_client_and_are_given_back_by_another,
    detached_reads_and_a_detached_write_exclude_each_other,
    a_detached_leader_leads_for_its_term,
    an_owner_re_enters_beside_its_detached_hold,
    a_second_release_beside_another_hold_of_the_owner_is_no_loss,
    a_cooldown_of_another_kind_is_refused_and_changes_nothing,
    a_detached_acquire_cancelled_at_every_await,
    a_detached_try_cancelled_at_every_await,
    a_detached_wait_cancelled_at_every_await,
    a_detached_attach_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(60);
/// The least that is left of the lease when a slow machine checks it.
const NEARLY: Duration = Duration::from_secs(50);

fn mutex(client: &Client) -> Mutex {
    client.mutex("m").expect("a good name")
}

/// The same hold, parsed again from its text.
fn copy(hold: &DetachedHold) -> DetachedHold {
    hold.to_secret_text().parse().expect("it was written by us")
}

async fn detached_permits_outlive_their_client_and_are_given_back_by_another(store: &TestStore) {
    let b = store.client("b").await;
    let semaphore = |client: &Client| client.semaphore("s", 3).expect("a good name").lease(LONG);
    let (mut one, two) = {
        let a = store.client("a").await;
        let one = semaphore(&a).acquire_detached(1).await.expect("acquired");
        let two =
            semaphore(&a).try_acquire_detached(2).await.expect("an answer").granted().expect("they are free");
        assert!(matches!(semaphore(&a).try_acquire_detached(1).await.expect("an answer"), Attempt::Taken(_)));
        a.shutdown(LONG).await.expect("shut down");
        (copy(&one), copy(&two))
    };
    assert!(one.fencing_token() < two.fencing_token());
    assert_eq!(semaphore(&b).available_permits().await.expect("an answer"), 0);
    let waiting = tokio::spawn({
        let semaphore = semaphore(&b);
        async move { semaphore.acquire_detached(2).await.expect("acquired") }
    });
    until_waiting(&semaphore(&b), 1).await;
    one.extend(&b, 2 * LONG).await.expect("extended");
    two.release(&b).await.expect("released");
    let next = waiting.await.expect("no panic");
    // Another holder of permits has taken over nothing.
    two.release(&b).await.expect("released before");
    let guard = next.attach(&b).await.expect("attached");
    assert_eq!(semaphore(&b).available_permits().await.expect("an answer"), 0);
    guard.release().await.expect("released");
    let status = semaphore(&b).inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.fence), (1, Some(one.fencing_token())));
    semaphore(&b).force_release(status.shared_holders[0].observed().expect("a token")).await.expect("ended");
    let lost = one.extend(&b, LONG).await.expect_err("it was released by force");
    assert!(matches!(&lost, ExtendError::Lost(lost) if lost.reason == LostReason::ForceReleased), "{lost:?}");
}

async fn detached_reads_and_a_detached_write_exclude_each_other(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let rwlock = |client: &Client| client.rwlock("rw").expect("a good name").lease(LONG);
    let (read, other) = (
        rwlock(&a).read_detached().await.expect("reads"),
        rwlock(&a).read_detached().await.expect("reads beside it"),
    );
    assert!(rwlock(&b).try_write().await.expect("an answer").granted().is_none());
    let writing = tokio::spawn({
        let rwlock = rwlock(&b);
        async move { rwlock.write_detached().await.expect("writes") }
    });
    until_waiting(&rwlock(&a), 1).await;
    copy(&read).release(&b).await.expect("released");
    copy(&other).release(&b).await.expect("released");
    let write = writing.await.expect("no panic");
    assert!(write.fencing_token() > other.fencing_token());
    assert!(rwlock(&a).try_read().await.expect("an answer").granted().is_none());
    let guard = copy(&write).attach(&a).await.expect("attached");
    guard.extend().await.expect("extended");
    guard.release().await.expect("released");
    rwlock(&b)
        .try_read()
        .await
        .expect("an answer")
        .granted()
        .expect("it is free")
        .release()
        .await
        .expect("released");
}

async fn a_detached_leader_leads_for_its_term(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let election = |client: &Client| client.election("e").expect("a good name");
    let hold = election(&a).lease(LONG).campaign_detached().await.expect("elected");
    let leader = election(&b).leader().await.expect("an answer").expect("there is one");
    assert_eq!((leader.fence, leader.session), (hold.fencing_token(), None), "no process ends it");
    assert!(election(&b).try_campaign().await.expect("an answer").granted().is_none());
    copy(&hold).release(&b).await.expect("released");
    assert_eq!(election(&b).leader().await.expect("an answer"), None);
    let next = election(&b).campaign().await.expect("elected");
    let again = hold.release(&a).await.expect_err("another leads");
    assert!(matches!(again, ReleaseError::Lost(LostReason::TakenOver { .. })), "{again:?}");
    next.check().expect("it leads");
    next.resign().await.expect("resigned");
}

async fn an_owner_re_enters_beside_its_detached_hold(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let owner = a.new_owner();
    let own = a.reentrant_mutex("r").expect("a good name").lease(LONG).owned_by(&owner);
    let other = b.reentrant_mutex("r").expect("a good name");
    let hold = own.acquire_detached().await.expect("acquired");
    let guard = own.acquire().await.expect("it re-enters");
    assert_eq!(guard.count(), 2);
    assert!(other.try_acquire().await.expect("an answer").granted().is_none());
    copy(&hold).release(&b).await.expect("released");
    assert!(other.try_acquire().await.expect("an answer").granted().is_none(), "the owner has a hold left");
    guard.release().await.expect("released");
    other
        .try_acquire()
        .await
        .expect("an answer")
        .granted()
        .expect("it is free")
        .release()
        .await
        .expect("released");
}

async fn a_second_release_beside_another_hold_of_the_owner_is_no_loss(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let own = a.reentrant_mutex("r").expect("a good name").lease(LONG).owned_by(&a.new_owner());
    let (one, other) = (
        own.acquire_detached().await.expect("acquired"),
        own.acquire_detached().await.expect("it re-enters"),
    );
    one.release(&b).await.expect("released");
    one.release(&b).await.expect("released before, and its owner holds the lock");
    other.release(&b).await.expect("released");
    let next = b.reentrant_mutex("r").expect("a good name").acquire().await.expect("acquired");
    let again = other.release(&a).await.expect_err("another owner holds it");
    assert!(matches!(again, ReleaseError::Lost(LostReason::TakenOver { .. })), "{again:?}");
    next.release().await.expect("released");
}

async fn a_cooldown_of_another_kind_is_refused_and_changes_nothing(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let rwlock = a.rwlock("rw").expect("a good name").lease(LONG);
    let holds = [
        a.reentrant_mutex("r").expect("a good name").lease(LONG).acquire_detached().await,
        a.semaphore("s", 3).expect("a good name").lease(LONG).acquire_detached(2).await,
        rwlock.read_detached().await,
        a.rwlock("other").expect("a good name").lease(LONG).write_detached().await,
    ];
    for hold in holds {
        let hold = hold.expect("acquired");
        let is_refused = |refused: Result<(), ReleaseError>| {
            matches!(refused, Err(ReleaseError::Impossible(Refused::NoCooldown)))
        };
        assert!(is_refused(hold.release_not_before(&b, LONG).await), "{hold:?}");
        // It can still be attached, and then the guard is not lost.
        let guard = copy(&hold).attach(&b).await.expect("attached");
        assert!(is_refused(hold.release_not_before(&b, LONG).await), "{hold:?}");
        guard.check().expect("held");
        guard.extend().await.expect("held at the store as well");
        guard.release().await.expect("released");
    }
}

async fn a_detached_hold_has_its_whole_lease_when_it_is_returned(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let before = SystemTime::now();
    let hold = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired");
    let status = mutex(&b).inspect().await.expect("an answer");
    assert!(status.remaining.is_some_and(|left| left > NEARLY && left <= LONG), "{status:?}");
    assert_eq!(status.fence, Some(hold.fencing_token()));
    assert_eq!(status.holder.as_deref(), Some("a"));
    let latest = SystemTime::now() + LONG;
    assert!(hold.expires_at() >= before + LONG && hold.expires_at() <= latest, "{:?}", hold.expires_at());
    assert_eq!(hold.lease(), LONG);
    hold.release(&a).await.expect("released");
    hold.release(&a).await.expect("a release that is repeated was executed once");
    until_at_rest(&mutex(&b)).await;
}

async fn a_second_release_reports_another_holder(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let hold = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired");
    hold.release(&a).await.expect("released");
    let other = mutex(&b).acquire().await.expect("acquired");
    let released = hold.release(&a).await;
    let expected = LostReason::TakenOver { by: Some(Label::new("b").expect("a good label")) };
    assert!(matches!(&released, Err(ReleaseError::Lost(reason)) if *reason == expected), "{released:?}");
    other.check().expect("still held");
    other.release().await.expect("released");
    let own = mutex(&a).acquire().await.expect("acquired");
    hold.release(&a).await.expect("no other client holds it");
    own.check().expect("still held");
    own.release().await.expect("released");
    until_at_rest(&mutex(&a)).await;
}

async fn a_detached_hold_outlives_its_client_and_is_released_by_another(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let text = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired").to_secret_text();
    assert!(text.contains(r#""format":1"#) && !text.contains('\n'), "one line with its format");
    assert!(!text.contains(&a.session_id().to_string()), "it has a session of its own");
    drop(a);
    let hold: DetachedHold = text.parse().expect("it was written by us");
    tokio::time::sleep(300 * MS).await;
    assert!(matches!(mutex(&b).try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    let next = tokio::spawn({
        let b = mutex(&b);
        async move { b.acquire().await.expect("acquired") }
    });
    until_waiting(&mutex(&b), 1).await;
    let start = Stopwatch::start();
    hold.release(&b).await.expect("released");
    let next = next.await.expect("no panic");
    start.assert_below(700 * MS, "the waiter is notified");
    assert!(next.fencing_token() > hold.fencing_token());
    next.release().await.expect("released");
}

async fn a_detached_hold_needs_a_lease(store: &TestStore) {
    let client = store.client("a").await;
    let missed = mutex(&client).acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::NoLease)), "{missed:?}");
    let missed = mutex(&client).try_acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::NoLease)), "{missed:?}");
    let past = SystemTime::now() - LONG;
    let missed = mutex(&client).lease(past).acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::Lease(_))), "{missed:?}");
    assert!(!mutex(&client).inspect().await.expect("an answer").held);
}

async fn a_detached_acquire_queues_and_others_queue_behind_it(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    // To the detached hold, a task of the same client is like any other client.
    let guard = mutex(&a).acquire().await.expect("acquired");
    let waiter = tokio::spawn({
        let a = mutex(&a).lease(LONG);
        async move { a.acquire_detached().await.expect("acquired") }
    });
    until_waiting(&mutex(&b), 1).await;
    let start = Stopwatch::start();
    guard.release().await.expect("released");
    let hold = waiter.await.expect("no panic");
    start.assert_below(700 * MS, "woken by a message, not by polling");
    let status = mutex(&b).inspect().await.expect("an answer");
    assert!(status.remaining.is_some_and(|left| left > NEARLY), "{status:?}");
    let missed = mutex(&b).max_wait(400 * MS).lease(LONG).acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    let missed = mutex(&b).max_wait(Duration::ZERO).lease(LONG).acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    until_waiting(&mutex(&b), 0).await;
    hold.release(&b).await.expect("released");
    until_at_rest(&mutex(&a)).await;
}

async fn a_detached_try_reports_the_holder(store: &TestStore) {
    let client = store.client("a deploy").await;
    let lock = mutex(&client).lease(LONG);
    let hold = lock.try_acquire_detached().await.expect("an answer").granted().expect("it is free");
    let Attempt::Taken(contention) = lock.try_acquire_detached().await.expect("an answer") else {
        panic!("two hold it")
    };
    assert!(contention.to_string().starts_with("held by a deploy for "), "{contention}");
    hold.release(&client).await.expect("released");
}

async fn a_detached_hold_ends_with_its_lease_and_its_release_reports_why(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let start = Instant::now();
    let mut hold = mutex(&a).lease(1000 * MS).acquire_detached().await.expect("acquired");
    let guard = mutex(&b).acquire().await.expect("acquired");
    assert!(start.elapsed() >= 990 * MS, "{:?}", start.elapsed());
    guard.release().await.expect("released");
    let Err(ReleaseError::Lost(reason)) = hold.release(&a).await else { panic!("a lost hold was released") };
    assert!(matches!(reason, LostReason::TakenOver { .. }), "{reason:?}");
    let Err(ExtendError::Lost(lost)) = hold.extend(&a, LONG).await else {
        panic!("a lost hold was extended")
    };
    assert_eq!(lost.fence, hold.fencing_token());
    let hold = mutex(&a).lease(1000 * MS).acquire_detached().await.expect("acquired");
    until_at_rest(&mutex(&b)).await;
    let Err(ReleaseError::Lost(reason)) = hold.release(&a).await else { panic!("a lost hold was released") };
    assert_eq!(reason, LostReason::Expired);
}

async fn a_detached_hold_that_was_taken_over_is_left_alone(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let hold = mutex(&a).lease(1000 * MS).acquire_detached().await.expect("acquired");
    let guard = mutex(&b).acquire().await.expect("acquired");
    let Err(AttachError::NotExtended { hold, error: ExtendError::Lost(lost) }) = hold.attach(&a).await else {
        panic!("a lost hold was attached")
    };
    assert!(lost.to_string().ends_with("it was taken over by b"), "{lost}");
    hold.release(&a).await.expect_err("it is b's");
    guard.check().expect("held");
    guard.extend().await.expect("held at the store as well");
    guard.release().await.expect("released");
}

async fn an_extend_of_a_detached_hold_lengthens_it(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let hold = mutex(&a).lease(2000 * MS).acquire_detached().await.expect("acquired");
    let mut hold = copy(&hold);
    let before = hold.expires_at();
    hold.extend(&b, LONG).await.expect("extended");
    let left = mutex(&b).inspect().await.expect("an answer").remaining;
    assert!(left.is_some_and(|left| left > NEARLY && left <= LONG), "{left:?}");
    assert!(hold.expires_at() > before + NEARLY && hold.expires_at() <= SystemTime::now() + LONG);
    let until = hold.expires_at();
    hold.extend(&b, 10 * MS).await.expect("extended");
    assert_eq!(hold.expires_at(), until, "never shortened");
    assert!(matches!(hold.extend(&b, Duration::ZERO).await, Err(ExtendError::Lease(_))));
    hold.release(&a).await.expect("released");
}

async fn a_detached_hold_is_kept_once_it_is_attached(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client_with("b", 900 * MS).await);
    let hold = mutex(&a).lease(2000 * MS).acquire_detached().await.expect("acquired");
    let fence = hold.fencing_token();
    let start = Instant::now();
    let guard = hold.attach(&b).await.expect("attached");
    assert!(guard.remaining() <= 900 * MS, "it counts from the extend: {:?}", guard.remaining());
    assert_eq!(guard.fencing_token(), fence);
    assert!(mutex(&b).inspect().await.expect("an answer").held_by_this_client);
    while start.elapsed() < 2700 * MS {
        guard.check().expect("renewed beyond its former lease");
        assert!(matches!(mutex(&a).try_acquire().await.expect("an answer"), Attempt::Taken(_)));
        tokio::time::sleep(20 * MS).await;
    }
    let local = tokio::spawn({
        let b = mutex(&b);
        async move { b.acquire().await.expect("acquired") }
    });
    tokio::task::yield_now().await;
    guard.release().await.expect("released");
    local.await.expect("no panic").release().await.expect("released");
    // A dropped guard releases the hold, however long its lease was.
    let hold = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired");
    drop(hold.attach(&b).await.expect("attached"));
    until_at_rest(&mutex(&a)).await;
}

async fn a_detached_hold_is_attached_once(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let hold = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired");
    let (first, second, third) = (copy(&hold), copy(&hold), copy(&hold));
    let (one, other) = tokio::join!(first.attach(&b), second.attach(&b));
    let (guard, refused) = match (one, other) {
        (Ok(guard), Err(refused)) | (Err(refused), Ok(guard)) => (guard, refused),
        both => panic!("exactly one attach succeeds: {both:?}"),
    };
    assert!(matches!(refused, AttachError::AlreadyAttached { .. }), "{refused:?}");
    // The dropped guard is released in the background: until then no other attach may succeed.
    drop(guard);
    let refused = third.attach(&b).await.expect_err("it has ended");
    assert!(matches!(refused, AttachError::AlreadyAttached { .. }), "{refused:?}");
    until_at_rest(&mutex(&a)).await;
    let refused = hold.attach(&a).await.expect_err("it was released");
    let AttachError::NotExtended { error: ExtendError::Lost(lost), .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(lost.reason, LostReason::Released);
}

async fn an_attached_hold_is_lost_once_its_text_is_released(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let hold = mutex(&a).lease(LONG).acquire_detached().await.expect("acquired");
    let text = copy(&hold);
    let guard = hold.attach(&b).await.expect("attached");
    text.release(&b).await.expect("released");
    assert_eq!(guard.check().expect_err("it is gone").reason, LostReason::Released);
    let next = mutex(&a).acquire().await.expect("acquired");
    drop(guard);
    b.flush().await;
    next.extend().await.expect("the hold is unaffected");
    let refused = copy(&text).attach(&b).await.expect_err("it was released here");
    assert!(matches!(refused, AttachError::AlreadyAttached { .. }), "{refused:?}");
    next.release().await.expect("released");
}

async fn a_detached_hold_with_a_custom_value(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let lock = |client| mutex(client).value("request 4711").expect("a good value").lease(LONG);
    let hold = copy(&lock(&a).acquire_detached().await.expect("acquired"));
    assert!(!format!("{hold:?}").contains("request"), "{hold:?}");
    assert!(matches!(lock(&b).try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    let guard = hold.attach(&b).await.expect("attached");
    guard.release().await.expect("released");
    until_at_rest(&mutex(&a)).await;
}

async fn a_detached_hold_is_unknown_in_another_store(store: &TestStore) {
    let here = store.client("a").await;
    let elsewhere = Client::connect("memory:another store").await.expect("it connects");
    let hold = mutex(&here).lease(LONG).acquire_detached().await.expect("acquired");
    let Err(ReleaseError::Lost(reason)) = hold.release(&elsewhere).await else { panic!("it is not there") };
    assert_eq!(reason, LostReason::StoreLostData);
    assert!(mutex(&here).inspect().await.expect("an answer").held);
    hold.release(&here).await.expect("released");
}

/// Waits until the hold is undone, which must happen before its short first lease ends.
async fn until_undone(mutex: &Mutex) {
    let start = Stopwatch::start();
    until_at_rest(mutex).await;
    start.assert_below(2500 * MS, "the abandoned call is undone");
}

async fn a_detached_acquire_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, seen) = (mutex(&a).lease(LONG), mutex(&b));
    let got = RefCell::new(None);
    cancel_at_every_await(
        || async { *got.borrow_mut() = Some(lock.acquire_detached().await.expect("acquired")) },
        async |_| until_undone(&seen).await,
    )
    .await;
    let hold = got.take().expect("it was not dropped at last");
    hold.release(&b).await.expect("it is there, and lasts");
    until_at_rest(&seen).await;
}

async fn a_detached_try_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, seen) = (mutex(&a).lease(LONG), mutex(&b));
    let got = RefCell::new(None);
    cancel_at_every_await(
        || async { *got.borrow_mut() = lock.try_acquire_detached().await.expect("an answer").granted() },
        async |_| until_undone(&seen).await,
    )
    .await;
    let mut hold = got.take();
    if hold.is_none() {
        // The request of a dropped try arrived after the lock was seen at rest, and before the last try. No other is under
        // way after that one's reply.
        until_undone(&seen).await;
        hold = lock.try_acquire_detached().await.expect("an answer").granted();
    }
    let hold = hold.expect("it was free");
    hold.release(&b).await.expect("it is there, and lasts");
    until_at_rest(&seen).await;
}

async fn a_detached_wait_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (mutex(&a).lease(LONG).max_wait(600 * MS), mutex(&b));
    let points = cancel_at_every_await(
        || async {
            let guard = other.acquire().await.expect("acquired");
            let waited = lock.acquire_detached().await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
            drop(guard);
        },
        async |_| until_undone(&other).await,
    )
    .await;
    assert!(points > 1, "{points} points");
    until_undone(&other).await;
}

async fn a_detached_attach_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, seen) = (mutex(&a).lease(LONG), mutex(&b));
    let text = RefCell::new(None);
    cancel_at_every_await(
        || async {
            let hold = lock.acquire_detached().await.expect("acquired");
            *text.borrow_mut() = Some(copy(&hold));
            hold.attach(&b).await.expect("attached").release().await.expect("released");
        },
        async |_| {
            let taken = text.take();
            if let Some(hold) = taken {
                // A hold that became a guard was released with it; otherwise it is still held, for any process with
                // its text.
                let released = hold.release(&a).await;
                assert!(!matches!(released, Err(ReleaseError::Store { .. } | ReleaseError::Unknown { .. })));
            }
            until_undone(&seen).await;
        },
    )
    .await;
    until_undone(&seen).await;
}
