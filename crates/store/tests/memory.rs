//! The memory store passes the conformance suite, with a clock of the test and with that of the machine; and names that are
//! used once leave nothing in it.

use futures_util::future::{BoxFuture, ready};
use leasehold_core::{
    Acquire, Claim, HoldId, Label, Liveness, Lock, LockMode, Op, RELEASED_TTL, Release, ReleaseAction,
    SessionId,
};
use leasehold_store::{MemoryStore, Outcome, Store};
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

/// Names that are used once take a bounded amount of memory, however many there are and without any time passing; and none
/// once the endings are forgotten.
#[tokio::test]
async fn names_that_are_used_once_leave_nothing() {
    const NAMES: u32 = 100_000;
    let own = OwnClock::new();
    let session = SessionId::from_random([1; 12]);
    for n in 0..NAMES {
        let lock = Lock::mutex(format!("orders/{n}").parse().expect("a good name"));
        let claim = Claim::new(HoldId::from_random(session, [n.to_le_bytes()[0]; 16]));
        let request = Acquire {
            claim: claim.clone(),
            lease_ms: 3_000,
            label: Label::new("test").expect("a label"),
            queue: None,
            expire_foreign_ms: None,
            liveness: Liveness::Lease,
            predecessor: None,
            mode: LockMode::Exclusive,
        };
        let release = Release { claim, action: ReleaseAction::Grant, next: None, history: 0 };
        for op in [Op::Acquire(request), Op::Release(release)] {
            let outcome = own.store.execute(&lock, &op, Duration::from_secs(1)).await;
            assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
        }
    }
    assert!(own.store.locks() <= 40_000, "{} of {NAMES} are remembered at once", own.store.locks());
    own.now_us
        .fetch_add(u64::try_from(RELEASED_TTL.as_micros()).expect("a short time") + 1_000, Ordering::SeqCst);
    assert_eq!(own.store.locks(), 0);
}

mod by_a_clock_of_its_own {
    use super::{OwnClock, conformance};

    conformance::suite!(OwnClock::new());
}

mod by_the_clock_of_the_machine {
    use super::{MachineClock, MemoryStore, conformance};

    conformance::suite!(MachineClock(MemoryStore::new()));
}
