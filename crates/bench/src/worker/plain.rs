//! A plain lock as it is written by hand: SET NX PX, and a script that compares and deletes.

use anyhow::{Context, Result, ensure};
use leasehold::core::{HoldId, SessionId};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, cmd};
use std::sync::Arc;

/// Deletes a key if it has this value, as every hand-written lock does.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
/// The number of slots in a cluster.
const SLOTS: usize = 16_384;

/// Plain locks on one server, or on the nodes of a cluster.
#[derive(Clone)]
pub(super) struct PlainLock {
    /// One for each node. Each owns an equal part of the slots.
    conns: Vec<MultiplexedConnection>,
    /// The digest of the script.
    sha: Arc<str>,
    lease_ms: u64,
}

impl PlainLock {
    /// Connects to all nodes, and loads the script.
    pub(super) async fn connect(nodes: &[String], lease_ms: u64) -> Result<Self> {
        let (mut conns, mut sha) = (Vec::new(), String::new());
        for url in nodes {
            let mut conn = bare_connection(url).await?;
            sha = cmd("SCRIPT").arg("LOAD").arg(COMPARE_AND_DELETE).query_async(&mut conn).await?;
            conns.push(conn);
        }
        Ok(Self { conns, sha: sha.into(), lease_ms })
    }

    /// Acquires and releases the lock.
    pub(super) async fn pair(&mut self, key: &str) -> Result<()> {
        let node = node_of(key, self.conns.len());
        let conn = self.conns.get_mut(node).context("no node")?;
        let token = token();
        let mut set = Cmd::with_capacity(6, 128);
        set.arg("SET").arg(key).arg(&token).arg("NX").arg("PX").arg(self.lease_ms);
        let is_set: bool = set.query_async(conn).await?;
        ensure!(is_set, "{key} exists");
        let mut delete = Cmd::with_capacity(5, 128);
        delete.arg("EVALSHA").arg(&*self.sha).arg(1).arg(key).arg(&token);
        let deleted: u64 = delete.query_async(conn).await?;
        ensure!(deleted == 1, "{key} has another value");
        Ok(())
    }
}

/// A connection without a response timeout, which costs a timer for each request.
pub(super) async fn bare_connection(url: &str) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// A random token as long as the library's.
pub(super) fn token() -> String {
    HoldId::from_random(SessionId::from_random([7; 12]), rand::random()).token()
}

/// Which of so many nodes owns a key without braces, as the testkit distributes the slots.
fn node_of(key: &str, nodes: usize) -> usize {
    if nodes == 1 {
        return 0;
    }
    let slot = usize::from(crc16(key.as_bytes())) % SLOTS;
    (0..nodes).rfind(|at| SLOTS * at / nodes <= slot).unwrap_or(0)
}

/// CRC-16/XMODEM, with which Redis Cluster hashes keys.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_to_the_owner_of_its_slot() {
        // As the documentation of Redis says.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!([1, 2, 3].map(|nodes| node_of("123456789", nodes)), [0, 1, 2]);
    }
}
