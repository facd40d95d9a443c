//! A future that runs under a lock.

use crate::cases::store::TestStore;
use crate::until::until_at_rest;
use leasehold::error::RunError;
use leasehold::{Attempt, LostReason, Owner};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

on_every_store! {
    asynchronous:
    a_scoped_future_is_dropped_on_loss,
    a_future_that_completed_after_a_loss_has_its_result_in_the_error,
    a_scoped_future_may_be_any_closure,
    a_scoped_guard_that_is_passed_on_keeps_the_lock,
    a_closure_runs_in_the_scope_of_the_owner,
}

const MS: Duration = Duration::from_millis(1);

/// Sets a flag when the future that owns it is dropped.
struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

async fn a_scoped_future_is_dropped_on_loss(store: &TestStore) {
    let client = store.client("a").await;
    let mutex = client.mutex("m").expect("a good name");
    assert!(mutex.run(async |guard| guard.check().is_ok()).await.expect("ran"));
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = SetOnDrop(dropped.clone());
    let short = mutex.clone().lease(60 * MS);
    let lost = short
        .run(async move |_| {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(lost, Err(RunError::Lost(_))), "{lost:?}");
    assert!(dropped.load(Ordering::SeqCst));
    until_at_rest(&mutex).await;
}

async fn a_future_that_completed_after_a_loss_has_its_result_in_the_error(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (mutex, other) = (a.mutex("m").expect("a good name"), b.mutex("m").expect("a good name"));
    let ran = mutex
        .run(|guard| async move {
            // A busy task does not see the loss: it completes without another await.
            let observed = other.inspect_full().await.expect("an answer").observed.expect("it is held");
            other.force_release(observed).await.expect("released by force");
            guard.fencing_token()
        })
        .await;
    // The notification of the forced release may overtake the end of the future.
    match ran {
        Err(RunError::LostAtRelease { result, lost }) => {
            assert_eq!((lost.fence, &lost.reason), (result, &LostReason::ForceReleased));
        }
        Err(RunError::Lost(lost)) => assert_eq!(lost.reason, LostReason::ForceReleased),
        ran => panic!("{ran:?}"),
    }
    until_at_rest(&mutex).await;
}

/// Each of these is a closure as users write them; what they prove is that they compile.
async fn a_scoped_future_may_be_any_closure(store: &TestStore) {
    async fn in_a_generic_function<F: Future<Output = u32>>(
        mutex: &leasehold::Mutex,
        work: impl FnOnce() -> F,
    ) -> Result<u32, leasehold::Error> {
        Ok(mutex.run(|_guard| work()).await?)
    }
    fn boxed(
        mutex: &leasehold::Mutex,
    ) -> Pin<Box<dyn Future<Output = Result<u32, leasehold::Error>> + Send + '_>> {
        // What `#[async_trait]` makes of a method.
        Box::pin(async move { Ok(mutex.run(|_guard| async move { 3 }).await?) })
    }
    let mutex = store.client("a").await.mutex("m").expect("a good name");
    let text = "borrowed".to_owned();
    assert_eq!(mutex.run(|_guard| async { text.len() }).await.expect("ran"), 8);
    assert!(mutex.run(async |guard| guard.check().is_ok()).await.expect("ran"));
    assert_eq!(in_a_generic_function(&mutex, || async { 2 }).await.expect("ran"), 2);
    assert_eq!(boxed(&mutex).await.expect("ran"), 3);
    let spawned = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.run(|guard| async move { guard.extend().await.is_ok() }).await.expect("ran") }
    });
    assert!(spawned.await.expect("no panic"));
    until_at_rest(&mutex).await;
}

async fn a_scoped_guard_that_is_passed_on_keeps_the_lock(store: &TestStore) {
    let mutex = store.client("a").await.mutex("m").expect("a good name");
    let (send, received) = tokio::sync::oneshot::channel();
    let passed_on = mutex.run(|guard| async move { send.send(guard).is_ok() }).await.expect("ran");
    assert!(passed_on);
    let guard = received.await.expect("it was sent");
    guard.check().expect("still held");
    assert!(matches!(mutex.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
    drop(guard);
    until_at_rest(&mutex).await;
}

/// Also what the closure does before it returns its future.
async fn a_closure_runs_in_the_scope_of_the_owner(store: &TestStore) {
    let client = store.client("a").await;
    let owner = Owner::new("trace-4711").expect("a plain text");
    let reentrant = client.reentrant_mutex("r").expect("a good name").owned_by(&owner);
    let inside = reentrant.run(|_guard| {
        let current = Owner::current();
        async move { current }
    });
    assert_eq!(inside.await.expect("ran").as_ref(), Some(&owner));
    let shared = client.rwlock("rw").expect("a good name").owned_by(&owner);
    let spawned = shared.run_writing(|_guard| Owner::spawn(async { Owner::current() }));
    assert_eq!(spawned.await.expect("ran").expect("no panic").as_ref(), Some(&owner));
}
