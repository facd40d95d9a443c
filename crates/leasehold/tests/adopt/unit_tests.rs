//! An application that takes its locks as an interface, and its own tests: without a server, and with a lock that is lost.

use futures_util::future::BoxFuture;
use leasehold::error::{LostHold, ReleaseError};
use leasehold::{Attempt, Client, Error, FencingToken, LockGuard, LockName, LockOptions, Locks, LostReason};
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

/// The client as a provider applies all options, and says what keeps it from a lock that is taken.
#[tokio::test]
async fn a_client_is_a_provider_of_locks() {
    const SHORT: Duration = Duration::from_millis(80);
    const LIMIT: Duration = Duration::from_secs(60);
    let locks: Arc<dyn Locks> = Arc::new(Client::connect("memory:adopt-provider").await.unwrap());
    // The store keeps a hold a moment longer than its client.
    let free = async |options: &LockOptions| {
        let granted = async {
            loop {
                if let Attempt::Granted(guard) = locks.try_acquire("import", options).await.unwrap() {
                    break guard;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, granted).await.unwrap()
    };

    let held = free(&LockOptions::new()).await;
    assert_eq!(held.name().as_str(), "import");
    held.check().unwrap();
    let Attempt::Taken(contention) = locks.try_acquire("import", &LockOptions::new()).await.unwrap() else {
        panic!("it is taken")
    };
    assert!(contention.to_string().starts_with("held by"), "{contention}");
    let missed = locks.acquire("import", &LockOptions::new().max_wait(SHORT)).await;
    assert!(missed.unwrap_err().is_contended());
    held.release().await.unwrap();

    for (options, reason) in [
        (LockOptions::new().lease(SHORT), LostReason::Expired),
        (LockOptions::new().max_hold(SHORT), LostReason::Capped),
    ] {
        let held = locks.acquire("import", &options).await.unwrap();
        assert_eq!(tokio::time::timeout(LIMIT, held.lost()).await.unwrap().reason, reason);
        drop(held);
        let held = free(&options).await;
        assert_eq!(tokio::time::timeout(LIMIT, held.lost()).await.unwrap().reason, reason);
    }

    let options = LockOptions::new();
    assert!(matches!(locks.acquire("", &options).await, Err(Error::Lock(_))), "no such name");
    assert!(matches!(locks.try_acquire("", &options).await, Err(Error::Lock(_))), "no such name");
}
