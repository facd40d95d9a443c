//! What is put to the test.

use futures_util::future::BoxFuture;
use leasehold_core::{KeyError, Lock, LockName};
use leasehold_store::Store;
use std::sync::Arc;
use std::time::Duration;

/// A kind of store, and what a test can do to it behind its back.
///
/// Only [`store`](Self::store) is needed. Each power that is there as well makes the suite faster
/// ([`advance`](Self::advance)) or lets it test more (the others); a case that needs a power that is
/// not there says so and passes.
pub trait StoreUnderTest: Send + Sync + 'static {
    /// A handle to the store, as another process would have: with a connection of its own, and with
    /// nothing in common with the other handles but the locks.
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// Moves the store's clock forward, if that can be done. Otherwise the suite waits in real time,
    /// with short leases.
    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        let _ = by;
        None
    }

    /// Deletes the lock's key as an operator would, if the store has such a thing.
    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        let _ = lock;
        None
    }

    /// Sets the lock's key as a client of another library would, if the store has such a thing: for a Mutex to that
    /// `value`, for a ReentrantMutex to a hash in which the owner `value` has it once, as Redisson does. Without
    /// an `expiry` it has none.
    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let _ = (lock, value, expiry);
        None
    }

    /// Puts something at the lock's key that is no lock of any kind, if the store has such a thing. Gives what the
    /// store calls it.
    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        let _ = lock;
        None
    }

    /// Names that a lock may not have in this store, and why.
    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        Vec::new()
    }
}
