//! Where a case is tried: a server of its own, one client of theirs, one of ours, and a view of the key from outside.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leasehold::{AcquireError, Client, Guard, Mutex};
use leasehold_testkit::{RedisServer, RespConnection};
use tokio::task::JoinHandle;

use crate::driver::Driver;
use crate::neighbour::Neighbour;

/// The lock. Its name is its key with all libraries; the braces are there for those that read them.
pub(crate) const NAME: &str = "shop:{orders}:42";
/// How soon a free lock is taken by one who polls for it. Every library looks at least each 300 ms; the rest is for
/// busy machines. It is far below the leases that would free the lock, too.
pub(crate) const SOON: Duration = Duration::from_secs(1);

/// One case's own server and clients.
pub(crate) struct Ground {
    pub(crate) server: RedisServer,
    pub(crate) theirs: Driver,
    pub(crate) ours: Client,
    outside: RespConnection,
}

/// The value at the lock's key, without a way to show it.
#[derive(PartialEq, Eq)]
pub(crate) struct Token(Vec<u8>);

/// A task of ours that waits for the lock.
pub(crate) struct Waiter(JoinHandle<(Result<Guard, AcquireError>, Instant)>);

impl Ground {
    /// A fresh server with both clients connected. `watchdog` is the lease of our locks that are given none.
    pub(crate) async fn new(neighbour: &Neighbour, watchdog: Duration) -> Result<Self> {
        let server = RedisServer::start()?;
        let theirs = Driver::start(neighbour, &server.url())?;
        let ours = Client::builder(server.url()).watchdog_lease(watchdog).connect().await?;
        let outside = server.connect()?;
        Ok(Self { server, theirs, ours, outside })
    }

    /// Our lock.
    pub(crate) fn mutex(&self) -> Result<Mutex> {
        Ok(self.ours.mutex(NAME)?)
    }

    /// What stands at the key.
    pub(crate) fn token(&mut self) -> Result<Token> {
        let value = self.outside.call(&["GET", NAME])?.ok()?;
        let bytes =
            value.bytes().ok_or_else(|| anyhow!("nothing is at the key `{NAME}`, but it should be held"))?;
        Ok(Token(bytes.to_vec()))
    }

    /// Fails if the key is not held by the same hold any more.
    pub(crate) fn is_still(&mut self, token: &Token, whose: &str) -> Result<()> {
        let still = self.token().with_context(|| format!("the hold of {whose} was ended"))? == *token;
        ensure!(still, "the hold of {whose} was taken over");
        Ok(())
    }

    /// Fails if the lock is not free.
    pub(crate) fn is_free(&mut self) -> Result<()> {
        ensure!(self.outside.call(&["GET", NAME])?.ok()?.is_nil(), "the key `{NAME}` was not removed");
        Ok(())
    }

    /// How long the key lasts as things stand; `None` without an expiry.
    pub(crate) fn remaining(&mut self) -> Result<Option<Duration>> {
        let pttl = self.outside.call(&["PTTL", NAME])?.ok()?.integer();
        match pttl {
            Some(-1) => Ok(None),
            Some(ms @ 0..) => Ok(Some(Duration::from_millis(ms.unsigned_abs()))),
            _ => Err(anyhow!("nothing is at the key `{NAME}`, but it should be held")),
        }
    }

    /// Has one of ours wait for the lock; returns when it stands in the queue.
    pub(crate) async fn waiter(&self, mutex: Mutex) -> Result<Waiter> {
        let status = mutex.clone();
        let waiter = tokio::spawn(async move {
            let acquired = mutex.acquire().await;
            (acquired, Instant::now())
        });
        let start = Instant::now();
        while status.inspect().await?.waiting == 0 {
            ensure!(!waiter.is_finished(), "we got the lock although they hold it");
            ensure!(start.elapsed() < SOON, "our waiter does not queue");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(Waiter(waiter))
    }
}

impl Waiter {
    /// Fails if it does not wait any more.
    pub(crate) fn waits(&self) -> Result<()> {
        ensure!(!self.0.is_finished(), "we got the lock although they hold it");
        Ok(())
    }

    /// The guard, and when it was got: within that time from now.
    pub(crate) async fn gets_it(self, within: Duration) -> Result<(Guard, Instant)> {
        let acquired = tokio::time::timeout(within, self.0).await;
        let (guard, at) =
            acquired.map_err(|_| anyhow!("we did not get the free lock within {within:?}"))??;
        Ok((guard.context("we failed to acquire the lock")?, at))
    }
}
