//! The fixture of a case: a server of its own, one client of theirs, one of ours, and a view of the key from outside.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leasehold::{AcquireError, Client, Guard, InspectError, Mutex, ReentrantGuard, ReentrantMutex, Status};
use leasehold_testkit::RedisServer;
use tokio::task::JoinHandle;

use crate::driver::Driver;
use crate::key::Key;
use crate::neighbour::Neighbour;
use crate::wire::Wire;

/// The lock. Its name is its key with all libraries; the braces are there for those that read them.
pub(crate) const NAME: &str = "shop:{orders}:42";
/// How soon a client that polls acquires a free lock. Every library polls at least each 300 ms; the rest is for
/// busy machines. It is far below the leases that would free the lock, too.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// One case's own server and clients.
pub(crate) struct Ground {
    pub(crate) server: RedisServer,
    pub(crate) theirs: Driver,
    pub(crate) ours: Client,
    /// The key of [`NAME`].
    pub(crate) key: Key,
}

/// A task of ours that waits for the lock.
pub(crate) struct Waiter<G>(JoinHandle<(Result<G, AcquireError>, Instant)>);

impl Ground {
    /// A fresh server with both clients connected. `watchdog` is the lease of locks that are given none.
    pub(crate) async fn new(neighbour: &Neighbour, watchdog: Duration) -> Result<Self> {
        let server = RedisServer::start()?;
        let theirs = Driver::start(neighbour, &server.url(), watchdog)?;
        let wire = neighbour.ours.map(|fault| Wire::to(&server, fault)).transpose()?;
        let url = wire.map_or_else(|| server.url(), |wire| wire.url());
        let ours = Client::builder(url).watchdog_lease(watchdog).connect().await?;
        let key = Key::of(&server, NAME)?;
        Ok(Self { server, theirs, ours, key })
    }

    /// Our lock.
    pub(crate) fn mutex(&self) -> Result<Mutex> {
        Ok(self.ours.mutex(NAME)?)
    }

    /// Our lock that can be entered again.
    pub(crate) fn reentrant(&self) -> Result<ReentrantMutex> {
        Ok(self.ours.reentrant_mutex(NAME)?)
    }

    /// Has one of ours wait for the lock; returns when it stands in the queue.
    pub(crate) async fn waiter(&self, mutex: Mutex) -> Result<Waiter<Guard>> {
        let status = mutex.clone();
        waiting(async move { mutex.acquire().await }, async || status.inspect().await).await
    }

    /// The same for the one that can be entered again.
    pub(crate) async fn reentrant_waiter(&self, mutex: ReentrantMutex) -> Result<Waiter<ReentrantGuard>> {
        let status = mutex.clone();
        waiting(async move { mutex.acquire().await }, async || status.inspect().await).await
    }
}

async fn waiting<G: Send + 'static>(
    acquire: impl Future<Output = Result<G, AcquireError>> + Send + 'static,
    inspect: impl AsyncFn() -> Result<Status, InspectError>,
) -> Result<Waiter<G>> {
    let waiter = tokio::spawn(async move { (acquire.await, Instant::now()) });
    let start = Instant::now();
    while inspect().await?.waiting == 0 {
        ensure!(!waiter.is_finished(), "we got the lock although they hold it");
        ensure!(start.elapsed() < SOON, "our waiter does not queue");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(Waiter(waiter))
}

impl<G> Waiter<G> {
    /// Fails if it does not wait any more.
    pub(crate) fn waits(&self) -> Result<()> {
        ensure!(!self.0.is_finished(), "we got the lock although they hold it");
        Ok(())
    }

    /// The guard, and when it was got: within that time from now.
    pub(crate) async fn gets_it(self, within: Duration) -> Result<(G, Instant)> {
        let acquired = tokio::time::timeout(within, self.0).await;
        let (guard, at) =
            acquired.map_err(|_| anyhow!("we did not get the free lock within {within:?}"))??;
        Ok((guard.context("we failed to acquire the lock")?, at))
    }
}
