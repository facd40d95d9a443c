//! The store of one case.

use leasehold::{
    Barrier, Client, ClientBuilder, InspectError, Latch, Mutex, ReentrantMutex, RwLock, Semaphore, Status,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) struct Site {
    url: String,
    /// Keeps the server or the folder alive.
    keep: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl Site {
    pub(crate) fn memory() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self { url: format!("memory:case-{}", NEXT.fetch_add(1, Ordering::Relaxed)), keep: None }
    }

    pub(crate) fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", dir.path().join("locks.db").display());
        Self { url, keep: Some(Box::new(dir)) }
    }

    pub(crate) fn redis() -> Self {
        let server = leasehold_testkit::RedisServer::start().expect("redis-server boots");
        Self { url: server.url(), keep: Some(Box::new(server)) }
    }

    /// The server, if the store uses one.
    #[allow(dead_code, reason = "few cases do more to a server than connect to it")]
    pub(crate) fn server(&self) -> Option<&leasehold_testkit::RedisServer> {
        self.keep.as_ref()?.downcast_ref()
    }

    /// A builder for a client with settings of its own.
    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url)
    }

    pub(crate) async fn client(&self, label: &str) -> Client {
        self.client_with(label, Duration::from_secs(30)).await
    }

    /// A client without a session: its leases alone limit its holds.
    #[allow(dead_code, reason = "not all cases are about leases")]
    pub(crate) async fn client_of_leases(&self, label: &str) -> Client {
        let client = self.builder().label(label).without_session().connect().await;
        client.expect("the store of a case can be reached")
    }

    pub(crate) async fn client_with(&self, label: &str, watchdog: Duration) -> Client {
        let client = self.builder().label(label).watchdog_lease(watchdog).connect().await;
        client.expect("the store of a case can be reached")
    }
}

/// A lock of any kind that can be inspected.
pub(crate) trait ObservedHolder {
    async fn status(&self) -> Result<Status, InspectError>;
}

macro_rules! seen {
    ($($kind:ident)+) => { $(
        impl ObservedHolder for $kind {
            async fn status(&self) -> Result<Status, InspectError> {
                self.inspect().await
            }
        }
    )+ };
}

seen! { Mutex ReentrantMutex Semaphore RwLock Latch Barrier }

/// Waits until another client reports the lock as free and without waiters.
pub(crate) async fn until_at_rest(lock: &impl ObservedHolder) {
    for _ in 0..600 {
        let status = lock.status().await.expect("the store answers");
        if !status.held && status.waiting == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not at rest: {:?}", lock.status().await);
}

/// Waits until that many sessions wait for the lock.
pub(crate) async fn until_waiting(lock: &impl ObservedHolder, sessions: u64) {
    for _ in 0..1000 {
        if lock.status().await.expect("the store answers").waiting == sessions {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not {sessions} waiting: {:?}", lock.status().await);
}
