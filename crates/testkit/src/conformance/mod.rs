//! The conformance suite: what every store must do.
//!
//! A [`StoreUnderTest`] makes handles to the store, and may move its clock and change its keys. [`suite!`] makes a test of
//! every case. [`all_cases`] lists the cases for a program that runs them itself.
//!
//! ```
//! use futures_util::future::{BoxFuture, ready};
//! use leasehold_store::{MemoryStore, Store};
//! use leasehold_testkit::conformance::{self, StoreUnderTest};
//! use std::sync::Arc;
//!
//! struct Memory(MemoryStore);
//!
//! impl StoreUnderTest for Memory {
//!     fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
//!         Box::pin(ready(Arc::new(self.0.clone()) as Arc<dyn Store>))
//!     }
//! }
//!
//! conformance::suite!(Memory(MemoryStore::new()));
//! ```
//!
//! Principles of the suite:
//!
//! 1. Every case uses a fresh lock, so cases share a server and run concurrently.
//! 2. No case relies on the length of a sleep. It polls, within a time limit, for an expiry or a notification. It proves
//!    the absence of a notification by a later one.
//! 3. All random numbers come from one seed. A failure prints it, and `LEASEHOLD_SEED` sets it.
//! 4. A case ends where it first needs a feature that the store lacks (a queue, a mailbox, sessions), and reports that.
//!
//! The suite injects no faults: each store has its own tests of outages.

pub mod cases;
mod client;
mod fixture;
mod inbox;
mod leader_announcement;
mod registry;
mod rlock;
mod shared_holders;
mod store_under_test;
mod unsupported;
mod with_others;
mod workload;

#[doc(inline)]
pub use crate::conformance_suite as suite;
pub use crate::random::Random;
pub use client::{CALL_TIMEOUT, Granted, LONG, Taken, TestClient};
pub use fixture::{Fixture, Subject, run_case, subject};
pub use inbox::{GrantMessage, Inbox};
pub use leader_announcement::leader_announcement;
#[doc(hidden)]
pub use leasehold_core::Kind;
pub use registry::{Case, all_cases, run_named};
pub use rlock::parse_rlock;
pub use shared_holders::parse_shared_holders;
pub use store_under_test::StoreUnderTest;
pub use with_others::{execute_with_others, is_sent_with_others};
pub use workload::{ForeignWrite, Workload, WorkloadStep};

/// Makes a `#[test]` of every case of the [conformance suite](crate::conformance), in a module for each kind of lock.
///
/// The expression makes the [`StoreUnderTest`]. It is evaluated once for each case, may `await`, and sees the names
/// in scope where the macro is called. A prefix selects kinds: `mutex:`, `reentrant:`, `election:`, `semaphore:`,
/// `rwlock:`, `latch:` and `barrier:` select one kind, `exclusive:` the first three, `shared:` the other four.
#[macro_export]
macro_rules! conformance_suite {
    (@of $module:ident $kind:ident $subject:expr) => {
        mod $module {
            use super::*;
            #[cfg(test)]
            fn boxed_subject() -> $crate::conformance::Subject {
                $crate::conformance::subject(async { $subject })
            }
            $crate::conformance_cases! { $kind (boxed_subject) }
        }
    };
    (mutex: $subject:expr) => {
        $crate::conformance_suite! { @of mutex Mutex $subject }
    };
    (reentrant: $subject:expr) => {
        $crate::conformance_suite! { @of reentrant Reentrant $subject }
    };
    (election: $subject:expr) => {
        $crate::conformance_suite! { @of election Election $subject }
    };
    (semaphore: $subject:expr) => {
        $crate::conformance_suite! { @of semaphore Semaphore $subject }
    };
    (rwlock: $subject:expr) => {
        $crate::conformance_suite! { @of rwlock RwLock $subject }
    };
    (latch: $subject:expr) => {
        $crate::conformance_suite! { @of latch Latch $subject }
    };
    (barrier: $subject:expr) => {
        $crate::conformance_suite! { @of barrier Barrier $subject }
    };
    (exclusive: $subject:expr) => {
        $crate::conformance_suite! { mutex: $subject }
        $crate::conformance_suite! { reentrant: $subject }
        $crate::conformance_suite! { election: $subject }
    };
    (shared: $subject:expr) => {
        $crate::conformance_suite! { semaphore: $subject }
        $crate::conformance_suite! { rwlock: $subject }
        $crate::conformance_suite! { latch: $subject }
        $crate::conformance_suite! { barrier: $subject }
    };
    ($subject:expr) => {
        $crate::conformance_suite! { exclusive: $subject }
        $crate::conformance_suite! { shared: $subject }
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::{fs, io};

    /// A case that is not registered would never run.
    #[test]
    fn every_case_is_registered_once() {
        let registry = include_str!("registry.rs");
        let list = registry.split("@each $kind $subject").nth(1).and_then(|rest| rest.split('}').next());
        let lines = list.expect("the list").lines().filter(|line| line.ends_with(';'));
        let registered: Vec<_> = lines.filter_map(|line| line.trim().split(':').next()).collect();
        let listed: BTreeSet<_> = registered.iter().copied().collect();
        assert_eq!(listed.len(), registered.len(), "a case is registered once");
        let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance/cases");
        let files = fs::read_dir(cases).expect("the directory of the cases");
        let read = |file: io::Result<fs::DirEntry>| fs::read_to_string(file?.path());
        let sources: Vec<_> = files.map(|file| read(file).expect("a source file")).collect();
        let written = sources.iter().flat_map(|source| source.split("pub async fn ").skip(1));
        let written: BTreeSet<_> = written.filter_map(|text| text.split('(').next()).collect();
        assert_eq!(listed, written);
    }
}
