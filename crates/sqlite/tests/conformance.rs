//! The SQLite store passes the conformance suite.

#![cfg(target_os = "linux")]

use futures_util::future::BoxFuture;
use leasehold_sqlite::SqliteStore;
use leasehold_store::Store;
use leasehold_testkit::conformance::{self, StoreUnderTest};
use std::sync::Arc;

struct Sqlite(tempfile::TempDir);

impl StoreUnderTest for Sqlite {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let path = self.0.path().join("locks");
            Arc::new(SqliteStore::open(path).await.expect("a file")) as Arc<dyn Store>
        })
    }
}

conformance::suite!(Sqlite(tempfile::tempdir().expect("a folder")));
