//! What every kind of lock promises to its users, on the memory store: no test needs a server.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

/// Makes the tests on the memory store.
macro_rules! on_store {
    (memory $($cases:tt)*) => {
        tests_on_store! { memory $($cases)* }
    };
    ($other:ident $($cases:tt)*) => {};
}

mod admin;
mod async_context;
mod cases;
mod tower;
#[path = "../common/until.rs"]
mod until;

use cases::store::TestStore;
use std::sync::atomic::{AtomicU32, Ordering};

impl TestStore {
    fn memory() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self::new(format!("memory:case-{}", NEXT.fetch_add(1, Ordering::Relaxed)), ())
    }
}
