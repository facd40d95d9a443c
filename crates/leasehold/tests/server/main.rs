//! The cases of `tests/api` on SQLite and Redis, and the failures that only real servers and processes have.

#![allow(clippy::unwrap_used, reason = "a test reports failures by panicking")]

/// Makes the tests on stores outside of the process.
macro_rules! on_store {
    (memory $($cases:tt)*) => {};
    ($store:ident $($cases:tt)*) => {
        tests_on_store! { $store $($cases)* }
    };
}

mod admin;
mod blocking;
#[path = "../api/cases/mod.rs"]
mod cases;
mod durable;
mod ending;
mod failures;
mod starting;
mod suspended_leader;
#[path = "../common/until.rs"]
mod until;
mod valkey_9;

use cases::store::TestStore;
use leasehold_testkit::RedisServer;

impl TestStore {
    fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self::new(format!("sqlite:{}", directory.path().join("locks.db").display()), directory)
    }

    fn redis() -> Self {
        let server = RedisServer::start().expect("redis-server boots");
        Self::new(server.url(), server)
    }
}
