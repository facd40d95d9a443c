//! What operators do with locks of clients of other libraries.

use crate::cases::store::TestStore;
use leasehold::inspect::ObservedHolder;

#[tokio::test]
async fn a_foreign_lock_is_freed_as_it_was_seen() {
    let store = TestStore::redis();
    let server = store.server().expect("it is there");
    let mutex = store.client_of_leases("ops").await.mutex("a").unwrap();
    server.cli(&["SET", "a", "first"]).expect("it answers");
    let seen = mutex.inspect_full().await.unwrap().observed.expect("it is held");
    assert!(matches!(seen, ObservedHolder::Foreign(_)), "{seen:?}");
    server.cli(&["SET", "a", "second"]).expect("it answers");
    let error = mutex.force_release(seen).await.expect_err("another client holds it");
    assert!(error.to_string().contains("a client of another library"), "{error}");
    let seen = mutex.inspect_full().await.unwrap().observed.expect("it is held");
    mutex.force_release(seen).await.expect("it is still held as it was seen");
    let details = mutex.inspect_full().await.unwrap();
    assert!(!details.status.held && details.audit.len() == 1 && details.observed.is_none(), "{details:?}");
}
