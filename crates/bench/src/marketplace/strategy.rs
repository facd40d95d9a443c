//! The locking strategies of a deal. Nothing else differs between them.

use super::deal::{Deal, QueryResult};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold::error::AcquireError;
use leasehold::optimistic::{self, Change};
use leasehold::{Client, RetryPolicy};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use rslock::LockManager;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// The lease of rslock's locks.
const RSLOCK_LEASE: Duration = Duration::from_secs(10);

/// A locking strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
pub(super) enum Strategy {
    /// WATCH, MULTI and EXEC: on the market and the buyer to buy, on the seller's inventory to list.
    #[serde(rename = "watch")]
    Watch,
    /// One lock of Leasehold's for the whole market.
    #[serde(rename = "one lock")]
    OneLock,
    /// A lock of Leasehold's for each item.
    #[serde(rename = "lock per item")]
    PerItem,
    /// A lock of rslock's for each item.
    #[serde(rename = "rslock per item")]
    Rslock,
}

impl Strategy {
    pub(super) const ALL: [Self; 4] = [Self::Watch, Self::OneLock, Self::PerItem, Self::Rslock];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Watch => "WATCH",
            Self::OneLock => "one lock",
            Self::PerItem => "lock per item",
            Self::Rslock => "rslock per item",
        }
    }

    /// The argument of a trader.
    pub(super) fn argument(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::OneLock => "one-lock",
            Self::PerItem => "per-item",
            Self::Rslock => "rslock",
        }
    }
}

/// The clients of one process's strategy.
pub(super) enum StrategyClient {
    Watch(optimistic::Connection),
    OneLock(Client),
    PerItem(Client),
    Rslock(LockManager),
}

/// The outcome of a deal.
#[derive(Debug)]
pub(super) struct Settlement {
    pub(super) end: DealEnd,
    /// The market as a buyer has read it for its next choice.
    pub(super) seen: Option<QueryResult>,
    /// How often it was retried, since another client was faster.
    pub(super) retries: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum DealEnd {
    Done,
    /// No longer possible: another user has bought the item.
    Gone,
    /// The time limit was reached.
    GaveUp,
    /// The measurement was over.
    Stopped,
}

/// A guard of either library.
enum AnyGuard {
    Leasehold(leasehold::Guard),
    Rslock(rslock::LockGuard),
}

/// Why a transaction was abandoned.
#[derive(Debug, thiserror::Error)]
enum Abandoned {
    #[error("it is gone")]
    Gone,
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// A connection for data.
pub(super) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(COMMAND_TIMEOUT));
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

impl StrategyClient {
    pub(super) async fn connect(strategy: Strategy, url: &str) -> Result<Self> {
        Ok(match strategy {
            Strategy::Watch => Self::Watch(optimistic::Connection::dedicated(connect(url).await?)),
            Strategy::OneLock => Self::OneLock(crate::client::connect(url).await?),
            Strategy::PerItem => Self::PerItem(crate::client::connect(url).await?),
            Strategy::Rslock => Self::Rslock(LockManager::from_clients(vec![redis::Client::open(url)?])),
        })
    }

    /// Executes a deal, if it is possible.
    pub(super) async fn settle(
        &mut self,
        data: &mut MultiplexedConnection,
        deal: Deal,
        stop: &AtomicBool,
    ) -> Result<Settlement> {
        if let Self::Watch(connection) = self {
            return settle_watched(connection, deal, stop).await;
        }
        let Some(held) = self.lock(deal).await? else {
            return Ok(Settlement { end: DealEnd::GaveUp, seen: None, retries: 0 });
        };
        let (possible, seen) = deal.read(data).await?;
        if possible {
            deal.writes().atomic().query_async::<()>(data).await?;
        }
        held.release().await?;
        Ok(Settlement { end: if possible { DealEnd::Done } else { DealEnd::Gone }, seen, retries: 0 })
    }

    /// `None` if it was not acquired in time.
    async fn lock(&self, deal: Deal) -> Result<Option<AnyGuard>> {
        let (item, limit) = (|| format!("item:{}", deal.offer().item), deal.time_limit());
        let mutex = match self {
            Self::OneLock(client) => client.mutex("market-lock")?,
            Self::PerItem(client) => client.mutex(item())?,
            Self::Rslock(locks) => {
                // The library has no time limit.
                let acquired =
                    tokio::time::timeout(limit, locks.acquire(item().as_str(), RSLOCK_LEASE)).await;
                return acquired.map_or(Ok(None), |held| Ok(Some(AnyGuard::Rslock(held?))));
            }
            Self::Watch(_) => bail!("WATCH needs no lock"),
        };
        match mutex.acquire_timeout(limit).await {
            Ok(guard) => Ok(Some(AnyGuard::Leasehold(guard))),
            Err(AcquireError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error).context("failed to acquire a lock"),
        }
    }

    /// Waits for background work of the clients.
    pub(super) async fn close(self) {
        if let Self::OneLock(client) | Self::PerItem(client) = self {
            client.flush().await;
        }
    }
}

impl AnyGuard {
    async fn release(self) -> Result<()> {
        match self {
            Self::Leasehold(guard) => Ok(guard.release().await?),
            Self::Rslock(guard) => {
                guard.release().await;
                Ok(())
            }
        }
    }
}

/// Retries at once, as the book does: a retry policy pauses for at least a millisecond.
async fn settle_watched(
    connection: &mut optimistic::Connection,
    deal: Deal,
    stop: &AtomicBool,
) -> Result<Settlement> {
    let (begun, once) = (Instant::now(), RetryPolicy::constant(Duration::ZERO).tries(1));
    let (mut retries, mut seen) = (0, None);
    loop {
        let tried = connection.transact(deal.watched(), once, async |watched| {
            let possible;
            (possible, seen) = deal.read(watched).await?;
            if possible { Ok(Change::new(deal.writes(), ())) } else { Err(Abandoned::Gone) }
        });
        let end = match tried.await {
            Ok(_) => DealEnd::Done,
            Err(optimistic::Error::OutOfTries { .. }) if stop.load(Ordering::Relaxed) => DealEnd::Stopped,
            Err(optimistic::Error::OutOfTries { .. }) if begun.elapsed() >= deal.time_limit() => {
                DealEnd::GaveUp
            }
            Err(optimistic::Error::OutOfTries { .. }) => {
                retries += 1;
                continue;
            }
            Err(optimistic::Error::Work { error: Abandoned::Gone, .. }) => DealEnd::Gone,
            Err(error) => return Err(error).context("a transaction failed"),
        };
        return Ok(Settlement { end, seen, retries });
    }
}

#[cfg(test)]
mod tests {
    use super::super::deal::Offer;
    use super::*;

    /// What makes one way coarse and the other fine.
    #[test]
    fn deals_of_two_items_wait_for_each_other_with_one_lock_only() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let connect = || Client::connect("memory:coarse-and-fine");
            let (one, other) = (connect().await.expect("connected"), connect().await.expect("connected"));
            let watched = one.mutex("market-lock").expect("a good name");
            for is_coarse in [true, false] {
                let way = if is_coarse { StrategyClient::OneLock } else { StrategyClient::PerItem };
                let (first, second) = (way(one.clone()), way(other.clone()));
                let deal = |item| Deal::List(Offer { item, seller: 1, price: 1 });
                let held = first.lock(deal(1)).await.expect("no fault").expect("it is free");
                let waits = async {
                    while watched.inspect().await.expect("an answer").waiting == 0 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let acquired = tokio::select! {
                    acquired = second.lock(deal(2)) => acquired.expect("no fault"),
                    () = waits => None,
                };
                assert_eq!(acquired.is_none(), is_coarse);
                held.release().await.expect("released");
            }
        });
    }
}
