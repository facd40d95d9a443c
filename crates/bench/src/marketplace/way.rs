//! The ways in which a deal is guarded. Nothing else differs between them.

use super::deal::{Deal, ObservedHolder};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold::optimistic::{self, Change};
use leasehold::{AcquireError, Client, RetryPolicy};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use rslock::LockManager;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long any answer is waited for.
const ANSWER: Duration = Duration::from_secs(10);
/// For how long a lock of rslock is held at most.
const TTL: Duration = Duration::from_secs(10);

/// A way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
pub(super) enum Way {
    /// WATCH, MULTI and EXEC: on the market and the buyer to buy, on the seller's inventory to list.
    #[serde(rename = "watch")]
    Watch,
    /// One lock of Leasehold for the whole market.
    #[serde(rename = "one lock")]
    OneLock,
    /// A lock of Leasehold an item.
    #[serde(rename = "lock per item")]
    PerItem,
    /// A lock of rslock an item.
    #[serde(rename = "rslock per item")]
    Rslock,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Watch, Self::OneLock, Self::PerItem, Self::Rslock];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Watch => "WATCH",
            Self::OneLock => "one lock",
            Self::PerItem => "lock per item",
            Self::Rslock => "rslock per item",
        }
    }

    /// As an argument of a trader.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::OneLock => "one-lock",
            Self::PerItem => "per-item",
            Self::Rslock => "rslock",
        }
    }
}

/// What guards the deals of one process, connected.
pub(super) enum Guarded {
    Watch(optimistic::Connection),
    OneLock(Client),
    PerItem(Client),
    Rslock(LockManager),
}

/// What became of a deal.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) end: End,
    /// What a buyer saw by the way.
    pub(super) seen: Option<ObservedHolder>,
    /// How often it began anew, since another client was faster.
    pub(super) retries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum End {
    Done,
    /// It is no longer possible: another user has bought the item.
    Gone,
    /// Tried for as long as one wanted to.
    GaveUp,
    /// The measuring was over.
    Stopped,
}

/// A lock that is held.
enum Held {
    Ours(leasehold::Guard),
    Theirs(rslock::LockGuard),
}

/// Why a transaction was not wanted.
#[derive(Debug, thiserror::Error)]
enum NoDeal {
    #[error("it is gone")]
    Gone,
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// A connection for data.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER));
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

impl Guarded {
    pub(super) async fn connect(way: Way, url: &str) -> Result<Self> {
        Ok(match way {
            Way::Watch => Self::Watch(optimistic::Connection::dedicated(connect(url).await?)),
            Way::OneLock => Self::OneLock(Client::connect(url).await?),
            Way::PerItem => Self::PerItem(Client::connect(url).await?),
            Way::Rslock => Self::Rslock(LockManager::from_clients(vec![redis::Client::open(url)?])),
        })
    }

    /// Does a deal, if it can be done.
    pub(super) async fn settle(
        &mut self,
        data: &mut MultiplexedConnection,
        deal: Deal,
        stop: &AtomicBool,
    ) -> Result<Settled> {
        if let Self::Watch(connection) = self {
            return watched(connection, deal, stop).await;
        }
        let Some(held) = self.lock(deal).await? else {
            return Ok(Settled { end: End::GaveUp, seen: None, retries: 0 });
        };
        let (possible, seen) = deal.read(data).await?;
        if possible {
            deal.writes().atomic().query_async::<()>(data).await?;
        }
        held.release().await?;
        Ok(Settled { end: if possible { End::Done } else { End::Gone }, seen, retries: 0 })
    }

    /// `None` if it was not acquired in time.
    async fn lock(&self, deal: Deal) -> Result<Option<Held>> {
        let (item, limit) = (|| format!("item:{}", deal.offer().item), deal.patience());
        let mutex = match self {
            Self::OneLock(client) => client.mutex("market-lock")?,
            Self::PerItem(client) => client.mutex(item())?,
            Self::Rslock(locks) => {
                // It tries for ever.
                let acquired = tokio::time::timeout(limit, locks.acquire(item().as_str(), TTL)).await;
                return acquired.map_or(Ok(None), |held| Ok(Some(Held::Theirs(held?))));
            }
            Self::Watch(_) => bail!("WATCH has no locks"),
        };
        match mutex.acquire_timeout(limit).await {
            Ok(guard) => Ok(Some(Held::Ours(guard))),
            Err(AcquireError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error).context("acquiring a lock"),
        }
    }

    /// Says good-bye.
    pub(super) async fn close(self) {
        if let Self::OneLock(client) | Self::PerItem(client) = self {
            client.flush().await;
        }
    }
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Self::Ours(guard) => Ok(guard.release().await?),
            Self::Theirs(guard) => {
                guard.release().await;
                Ok(())
            }
        }
    }
}

/// Tries again at once, as the book does: a policy of pauses has at least a millisecond.
async fn watched(connection: &mut optimistic::Connection, deal: Deal, stop: &AtomicBool) -> Result<Settled> {
    let (begun, once) = (Instant::now(), RetryPolicy::constant(Duration::ZERO).tries(1));
    let (mut retries, mut seen) = (0, None);
    loop {
        let tried = connection.transact(deal.watched(), once, async |watched| {
            let possible;
            (possible, seen) = deal.read(watched).await?;
            if possible { Ok(Change::new(deal.writes(), ())) } else { Err(NoDeal::Gone) }
        });
        let end = match tried.await {
            Ok(_) => End::Done,
            Err(optimistic::Error::OutOfTries { .. }) if stop.load(Ordering::Relaxed) => End::Stopped,
            Err(optimistic::Error::OutOfTries { .. }) if begun.elapsed() >= deal.patience() => End::GaveUp,
            Err(optimistic::Error::OutOfTries { .. }) => {
                retries += 1;
                continue;
            }
            Err(optimistic::Error::Work { error: NoDeal::Gone, .. }) => End::Gone,
            Err(error) => return Err(error).context("a transaction"),
        };
        return Ok(Settled { end, seen, retries });
    }
}
