//! Connects to independent servers as [`Shards`].

use crate::config::RedisConfig;
use crate::store::RedisStore;
use futures_util::future::join_all;
use leasehold_store::{Fault, FaultKind, Phase, Shards, Store};
use std::sync::Arc;

impl RedisStore {
    /// Connects to servers. The [address](RedisConfig::address) of a server is its name, so all clients must write the
    /// addresses in the same way.
    ///
    /// A server that does not respond is connected to when its locks are used, provided that another server responds. Fails
    /// if no server responds, or if a server refuses the client permanently, for example because of a wrong password.
    ///
    /// ```no_run
    /// use leasehold::store::{RedisConfig, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let servers = RedisConfig::shards_from_url("redis+shard://a.example,b.example?prefix=app:")?;
    /// let shards = RedisStore::connect_shards(servers).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect_shards(servers: impl IntoIterator<Item = RedisConfig>) -> Result<Shards, Fault> {
        let (stores, shards) = Self::shards_of(servers)?;
        let attempts = join_all(stores.iter().map(|(_, store)| store.first_attempt())).await;
        let down: Vec<_> = attempts.into_iter().filter_map(Result::err).collect();
        let all_are_down = down.len() == stores.len();
        if let Some(fault) = down.iter().find(|fault| all_are_down || !fault.is_transient()) {
            return Err(fault.clone());
        }
        for fault in &down {
            tracing::warn!(%fault, "a shard does not respond: its locks cannot be acquired");
        }
        Ok(shards)
    }

    /// Creates shards that connect at their first use.
    ///
    /// Fails if two servers have the same address, or there is none.
    pub fn lazy_shards(servers: impl IntoIterator<Item = RedisConfig>) -> Result<Shards, Fault> {
        Ok(Self::shards_of(servers)?.1)
    }

    /// The stores of the servers, and the shards of them.
    fn shards_of(
        servers: impl IntoIterator<Item = RedisConfig>,
    ) -> Result<(Vec<(String, Self)>, Shards), Fault> {
        let shard = |config: RedisConfig| (config.address().to_lowercase(), Self::lazy(config));
        let stores: Vec<_> = servers.into_iter().map(shard).collect();
        let shards =
            stores.iter().map(|(name, store)| (name.clone(), Arc::new(store.clone()) as Arc<dyn Store>));
        let shards = Shards::new(shards).map_err(|error| {
            Fault::new(FaultKind::Unusable(error.to_string()), Phase::Connect, "redis+shard")
        })?;
        Ok((stores, shards))
    }
}
