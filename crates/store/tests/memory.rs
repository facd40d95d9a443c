//! The memory store passes the conformance suite, with a clock of the test and with that of the machine.

use futures_util::future::{BoxFuture, ready};
use leasehold_store::{MemoryStore, Store};
use leasehold_testkit::conformance::{self, StoreUnderTest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A store whose clock stands still until the test advances it.
struct OwnClock {
    store: MemoryStore,
    now_us: Arc<AtomicU64>,
}

impl OwnClock {
    fn new() -> Self {
        let now_us = Arc::new(AtomicU64::new(1_762_000_000_000_000));
        let clock = now_us.clone();
        Self { store: MemoryStore::with_clock(move || clock.load(Ordering::SeqCst)), now_us }
    }
}

impl StoreUnderTest for OwnClock {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(Arc::new(self.store.clone()) as Arc<dyn Store>))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        let by_us = u64::try_from(by.as_micros()).expect("a test advances the clock by less than that");
        self.now_us.fetch_add(by_us, Ordering::SeqCst);
        Some(Box::pin(ready(())))
    }
}

/// A store with the clock of the machine: the suite has to wait.
struct MachineClock(MemoryStore);

impl StoreUnderTest for MachineClock {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(ready(Arc::new(self.0.clone()) as Arc<dyn Store>))
    }
}

mod by_a_clock_of_its_own {
    use super::{OwnClock, conformance};

    conformance::suite!(OwnClock::new());
}

mod by_the_clock_of_the_machine {
    use super::{MachineClock, MemoryStore, conformance};

    conformance::suite!(MachineClock(MemoryStore::new()));
}
