//! The store of `examples/toy_store.rs` passes the conformance suite, and with a defect it does not.

#[path = "../examples/toy_store.rs"]
#[allow(dead_code, reason = "its `main` is the program's")]
mod toy_store;

use futures_util::future::{BoxFuture, ready};
use leasehold_store::core::{KeyError, Kind, LockName, Partition, SessionId};
use leasehold_store::{
    Capabilities, Fault, Lock, NotificationSink, Op, Outcome, SessionOp, SessionReply, Store,
};
use leasehold_testkit::conformance::{StoreUnderTest, all_cases};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use toy_store::ToyStore;

#[test]
fn passes_the_conformance_suite() {
    assert_eq!(toy_store::failures(), Vec::<String>::new());
}

/// What a store gets wrong easily.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    /// Each handle has locks of its own.
    SharesNothing,
    /// A release is sent twice, as by a connection that resends by itself.
    Resends,
    /// Names are trimmed, as a column of fixed length does.
    TrimsNames,
}

/// The toy store with a defect.
#[derive(Debug, Clone)]
struct BrokenStore {
    inner: ToyStore,
    defect: Defect,
}

impl BrokenStore {
    fn seen(&self, lock: &Lock) -> Lock {
        let trimmed = LockName::new(lock.name.as_str().trim_end());
        match trimmed {
            Ok(name) if self.defect == Defect::TrimsNames => Lock { kind: lock.kind, name },
            _ => lock.clone(),
        }
    }
}

impl Store for BrokenStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let lock = self.seen(lock);
            if self.defect == Defect::Resends && matches!(op, Op::Release(_)) {
                self.inner.execute(&lock, op, within).await;
            }
            self.inner.execute(&lock, op, within).await
        })
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        self.inner.execute_session(partition, op, within)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        mailbox: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.inner.open_mailbox(partition, session, mailbox, within)
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        self.inner.close_mailbox(partition, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

impl StoreUnderTest for BrokenStore {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        let inner =
            if self.defect == Defect::SharesNothing { ToyStore::default() } else { self.inner.clone() };
        Box::pin(ready(Arc::new(Self { inner, defect: self.defect }) as Arc<dyn Store>))
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.inner.advance(by)
    }
}

/// Whether a case of the suite notices a defect.
fn is_noticed(defect: Defect, case: &str) -> bool {
    let case = all_cases().into_iter().find(|known| known.name == case).expect("there is such a case");
    let subject = BrokenStore { inner: ToyStore::default(), defect };
    catch_unwind(AssertUnwindSafe(|| case.run(Kind::Mutex, subject))).is_err()
}

#[test]
fn with_a_defect_it_fails_the_suite() {
    for (defect, case) in [
        (Defect::SharesNothing, "two_holds_exclude_each_other"),
        (Defect::Resends, "a_release_frees"),
        (Defect::TrimsNames, "any_name_is_literal"),
    ] {
        assert!(is_noticed(defect, case), "{case} passes with {defect:?}");
    }
    // The wrapper is no defect by itself.
    assert!(!is_noticed(Defect::TrimsNames, "two_holds_exclude_each_other"));
}
