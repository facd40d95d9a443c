//! The store under test.

use futures_util::future::BoxFuture;
use leasehold_core::{KeyError, Lock, LockName};
use leasehold_store::Store;
use std::sync::Arc;
use std::time::Duration;

/// A store, and what a test can do to its data and clock.
///
/// Only [`store`](Self::store) is required. [`advance`](Self::advance) makes the suite faster, the others let it test
/// more. A case that needs a missing method reports that and passes.
pub trait StoreUnderTest: Send + Sync + 'static {
    /// A new handle to the store, as in another process: with its own connection, and no state shared with other handles
    /// except the locks.
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Moves the store's clock forward, if that can be done. Otherwise the suite waits in real time,
    /// with short leases.
    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        let _ = by;
        None
    }

    /// Deletes the lock's key, as an operator would.
    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        let _ = lock;
        None
    }

    /// Sets the lock's key as a client of another library would: for a Mutex to `value`; for a ReentrantMutex to a
    /// hash in which the owner `value` has one entry, as Redisson does. Without `expiry` the key does not expire.
    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let _ = (lock, value, expiry);
        None
    }

    /// Stores a value of another type at the lock's key. Returns the store's name of that type.
    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        let _ = lock;
        None
    }

    /// Names that the store refuses, with the error.
    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        Vec::new()
    }
}
