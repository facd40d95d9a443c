//! Calls of the blocking API where blocking is not allowed: in an async context.

use crate::cases::store::TestStore;
use leasehold::DetachedHold;
use leasehold::blocking::{AsyncContext, AttachError, Client, Error};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// Every call that could block, from an async context, where blocking is not allowed.
async fn refuses_everything() {
    let connect = |url: String| move || Client::connect(&url).unwrap();
    let store = TestStore::memory();
    let client = tokio::task::spawn_blocking(connect(store.url().to_owned())).await.unwrap();
    let mutex = client.mutex("m").unwrap().lease(20 * S);
    let (guard, hold) = {
        let (mutex, detached) = (mutex.clone(), client.mutex("detached").unwrap().lease(20 * S));
        let both = move || (mutex.acquire().unwrap(), detached.acquire_detached().unwrap());
        tokio::task::spawn_blocking(both).await.unwrap()
    };
    macro_rules! refused {
        ($($call:expr),* $(,)?) => {
            $(let result = $call;
            assert!(matches!(result, Err(Error::AsyncContext(_))), "{}: {result:?}", stringify!($call));)*
        };
    }
    let mut text: DetachedHold = hold.to_secret_text().parse().unwrap();
    let (account, both) = (client.reentrant_mutex("r").unwrap(), client.multi_mutex(["a", "b"]).unwrap());
    let (entry, set) = {
        let (account, both) = (account.clone(), both.clone());
        tokio::task::spawn_blocking(move || (account.acquire().unwrap(), both.acquire().unwrap()))
            .await
            .unwrap()
    };
    refused!(
        Client::connect(store.url()),
        mutex.try_acquire(),
        mutex.acquire(),
        mutex.acquire_timeout(2500 * MS),
        mutex.try_acquire_detached(),
        mutex.acquire_detached(),
        mutex.inspect(),
        mutex.inspect_full(),
        mutex.force_release(leasehold::inspect::ObservedHolder::Hold(guard.fencing_token())),
        client.sessions(),
        client.locks(),
        client.extend_detached(&mut text, S),
        client.release_detached(&hold),
        client.shutdown(S),
        guard.extend(),
        guard.extend_to(S),
        mutex.run(|_| panic!("it must not run")).map(|(): ()| ()),
        account.try_acquire(),
        account.acquire(),
        account.acquire_timeout(S),
        account.run(|_| panic!("it must not run")).map(|(): ()| ()),
        account.inspect(),
        account.inspect_full(),
        account.hold_count(),
        account.force_release(leasehold::inspect::ObservedHolder::Hold(entry.fencing_token())),
        entry.extend(),
        entry.extend_to(S),
        both.try_acquire(),
        both.acquire(),
        both.acquire_timeout(S),
        set.extend(),
        set.extend_to(S),
    );
    assert!(entry.lost_timeout(S).is_err() && set.lost_timeout(S).is_err());
    entry.check().unwrap();
    set.check().unwrap();
    let refusal: Result<(), AsyncContext> = client.flush();
    assert!(refusal.unwrap_err().to_string().contains("spawn_blocking"));
    assert!(guard.lost_timeout(S).is_err());
    assert!(client.block_on(async {}).is_err());
    guard.check().unwrap();
    // The argument is not lost: the error returns it.
    let Err(AttachError::AsyncContext { hold }) = client.attach(hold) else { panic!("it must be refused") };
    // Nothing was done, except that the guard was released as if dropped.
    let other = leasehold::Client::connect(store.url()).await.unwrap();
    assert!(other.mutex("m").unwrap().inspect().await.unwrap().held);
    refused!(guard.release(), entry.release(), set.release());
    drop((mutex, account, both, client));
    other.reentrant_mutex("r").unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    other.multi_mutex(["a", "b"]).unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    other.mutex("m").unwrap().acquire_timeout(2500 * MS).await.unwrap().release().await.unwrap();
    hold.release(&other).await.unwrap();
}

#[tokio::test]
async fn every_call_is_refused_in_a_runtime_of_one_thread() {
    refuses_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_refused_in_a_task_of_a_runtime_of_many() {
    tokio::spawn(refuses_everything()).await.unwrap();
}
