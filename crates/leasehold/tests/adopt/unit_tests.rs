//! An application that takes its locks as an interface, and its own tests: without a server, and with a lock that is lost.

use futures_util::future::BoxFuture;
use leasehold::{
    Attempt, Client, Error, FencingToken, LockGuard, LockName, LockOptions, Locks, LostHold, LostReason,
    ReleaseError,
};
use std::sync::Arc;
use std::time::Duration;

/// The application.
struct Importer {
    locks: Arc<dyn Locks>,
}

impl Importer {
    async fn import(&self, rows: &[u32]) -> Result<u32, Error> {
        let guard =
            self.locks.acquire("import", &LockOptions::new().max_wait(Duration::from_secs(1))).await?;
        let mut sum = 0;
        for row in rows {
            guard.check()?;
            sum += row;
        }
        guard.release().await?;
        Ok(sum)
    }
}

/// A guard that is lost from the beginning.
#[derive(Debug)]
struct LostGuard(LostHold);

impl LockGuard for LostGuard {
    fn name(&self) -> &LockName {
        &self.0.lock
    }
    fn fencing_token(&self) -> FencingToken {
        self.0.fence
    }
    fn remaining(&self) -> Duration {
        Duration::ZERO
    }
    fn check(&self) -> Result<(), LostHold> {
        Err(self.0.clone())
    }
    fn lost(&self) -> BoxFuture<'_, LostHold> {
        Box::pin(async { self.0.clone() })
    }
    fn release(self: Box<Self>) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move { Err(ReleaseError::Lost(self.0.reason)) })
    }
}

#[derive(Debug)]
struct LosingLocks;

impl Locks for LosingLocks {
    fn acquire<'a>(
        &'a self,
        name: &'a str,
        _: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Box<dyn LockGuard>, Error>> {
        Box::pin(async move {
            let lost = LostHold::new(LockName::new(name)?, FencingToken::new(1), LostReason::Evicted);
            Ok(Box::new(LostGuard(lost)) as Box<dyn LockGuard>)
        })
    }

    fn try_acquire<'a>(
        &'a self,
        name: &'a str,
        options: &'a LockOptions,
    ) -> BoxFuture<'a, Result<Attempt<Box<dyn LockGuard>>, Error>> {
        Box::pin(async move { self.acquire(name, options).await.map(Attempt::Granted) })
    }
}

#[tokio::test]
async fn an_import_adds_its_rows() {
    let locks = Client::connect("memory:adopt-unit").await.unwrap();
    assert_eq!(Importer { locks: Arc::new(locks) }.import(&[1, 2, 3]).await.unwrap(), 6);
}

#[tokio::test]
async fn an_import_that_loses_its_lock_stops() {
    let error = Importer { locks: Arc::new(LosingLocks) }.import(&[1, 2, 3]).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
}
