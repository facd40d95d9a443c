//! The fixture of a case: a server of its own, a client of the library, a client of Leasehold's, and a view of the key
//! from outside.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leasehold::error::{AcquireError, InspectError};
use leasehold::inspect::Status;
use leasehold::{Client, Guard, Mutex, ReentrantGuard, ReentrantMutex};
use leasehold_testkit::RedisServer;
use tokio::task::JoinHandle;

use crate::driver::Driver;
use crate::key::Key;
use crate::library::Library;
use crate::mutant_proxy::MutantProxy;
use crate::report::setup;

/// The lock. Its name is its key in all libraries; the braces are for those that interpret them.
pub(crate) const LOCK: &str = "shop:{orders}:42";
/// How soon a client that polls acquires a free lock. Every library polls at least each 300 ms; the rest is for
/// busy machines. It is far below the leases that would free the lock, too.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// One case's own server and clients.
pub(crate) struct Fixture {
    pub(crate) server: RedisServer,
    /// A client of the library.
    pub(crate) driver: Driver,
    /// A client of Leasehold's.
    pub(crate) client: Client,
    /// The key of [`LOCK`].
    pub(crate) key: Key,
}

/// A task of Leasehold's client that waits for the lock.
pub(crate) struct Waiter<G>(JoinHandle<(Result<G, AcquireError>, Instant)>);

impl Fixture {
    /// A fresh server with both clients connected. `watchdog` is the lease of locks that are requested without one.
    pub(crate) async fn new(library: &Library, watchdog: Duration) -> Result<Self> {
        setup(Self::start(library, watchdog).await)
    }

    async fn start(library: &Library, watchdog: Duration) -> Result<Self> {
        let server = RedisServer::start()?;
        let driver = Driver::start(library, &server.url(), watchdog)?;
        let proxy = library.mutant.map(|mutant| MutantProxy::start(&server, mutant)).transpose()?;
        let url = proxy.map_or_else(|| server.url(), |proxy| proxy.url());
        let client = Client::builder(url).watchdog_lease(watchdog).connect().await?;
        let key = Key::connect(&server, LOCK)?;
        Ok(Self { server, driver, client, key })
    }

    /// Leasehold's lock.
    pub(crate) fn mutex(&self) -> Result<Mutex> {
        Ok(self.client.mutex(LOCK)?)
    }

    /// Leasehold's re-entrant lock.
    pub(crate) fn reentrant_mutex(&self) -> Result<ReentrantMutex> {
        Ok(self.client.reentrant_mutex(LOCK)?)
    }

    /// Starts a task that acquires the lock; returns when it is queued.
    pub(crate) async fn start_waiter(&self, mutex: Mutex) -> Result<Waiter<Guard>> {
        let queue = mutex.clone();
        start_waiter(async move { mutex.acquire().await }, async || queue.inspect().await).await
    }

    /// The same for the re-entrant lock.
    pub(crate) async fn start_reentrant_waiter(
        &self,
        mutex: ReentrantMutex,
    ) -> Result<Waiter<ReentrantGuard>> {
        let queue = mutex.clone();
        start_waiter(async move { mutex.acquire().await }, async || queue.inspect().await).await
    }
}

async fn start_waiter<G: Send + 'static>(
    acquire: impl Future<Output = Result<G, AcquireError>> + Send + 'static,
    inspect: impl AsyncFn() -> Result<Status, InspectError>,
) -> Result<Waiter<G>> {
    let waiter = tokio::spawn(async move { (acquire.await, Instant::now()) });
    let start = Instant::now();
    while inspect().await?.waiting == 0 {
        ensure!(!waiter.is_finished(), "Leasehold acquired the lock while the library held it");
        ensure!(start.elapsed() < SOON, "Leasehold's waiter does not queue");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(Waiter(waiter))
}

impl<G> Waiter<G> {
    /// Fails if it has stopped waiting.
    pub(crate) fn expect_waiting(&self) -> Result<()> {
        ensure!(!self.0.is_finished(), "Leasehold acquired the lock while the library held it");
        Ok(())
    }

    /// The guard, and when it was acquired: within that time from now.
    pub(crate) async fn acquired(self, within: Duration) -> Result<(G, Instant)> {
        let acquired = tokio::time::timeout(within, self.0).await;
        let (guard, at) =
            acquired.map_err(|_| anyhow!("Leasehold did not acquire the free lock within {within:?}"))??;
        Ok((guard.context("Leasehold failed to acquire the lock")?, at))
    }
}
