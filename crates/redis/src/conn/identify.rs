//! Queries the version of a server, on a connection of its own.

use super::open::{broken, open};
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::config::credentials::AttemptTime;
use crate::config::version::ServerVersion;
use crate::diagnose;
use crate::error_map::{classify, unconnected};
use crate::location::ServerLocation;
use leasehold_store::{Fault, FaultKind, Phase};
use redis::{Value, cmd};
use std::sync::Arc;

impl ServerVersion {
    /// Queries a server, on a connection of its own. Fails if the server cannot be reached, or does not report its
    /// version.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn query(config: &RedisConfig) -> Result<Self, Fault> {
        query(config, &config.node()).await
    }
}

/// The address of one server of this location.
pub(super) async fn find_address(
    config: &RedisConfig,
    node: &Arc<str>,
    time: &mut AttemptTime,
) -> Result<Address, Fault> {
    Ok(match config.location() {
        ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => address.clone(),
        ServerLocation::Sentinel(group) => time.limit(node, group.find(config, None)).await?.address,
        // Each request to a node has a limit of its own, and may need credentials.
        ServerLocation::Cluster(seeds) => seeds.find(config, node).await?,
    })
}

/// Queries the version, within the time of one connection attempt.
async fn query(config: &RedisConfig, node: &Arc<str>) -> Result<ServerVersion, Fault> {
    let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(node));
    let mut time = AttemptTime::of(config);
    let address = find_address(config, node, &mut time).await?;
    let info = config.connection_info(&address, node).await?;
    let within = time.left();
    let reply = async {
        let opened = open(config, &address, &info, within).await;
        let mut opened = opened.map_err(|error| unconnected(error, &address, node))?;
        let reply = opened.conn.send_packed_command(cmd("INFO").arg("server")).await;
        let reply = reply.map_err(|error| broken(error, node))?;
        if let Value::ServerError(error) = &reply {
            return Err(fault(classify(error).kind));
        }
        let version = ServerVersion::from_info(&diagnose::info_text(&reply).map_err(fault)?);
        version.ok_or_else(|| fault(FaultKind::Failed("it does not report its version".to_owned())))
    };
    time.limit(node, reply).await.map_err(|fault| config.with_provider(fault))
}
