//! A minimal fair queue by hand, whose release grants directly: the least that such a hand-off takes.
//!
//! A waiter appends its process's channel to a list. A release makes the first channel of the list the holder and publishes
//! to it. There is no session, no check of a token and no record: a process that dies, or a message that is lost, ends the
//! hand-offs.

use super::handoff::subscribing_connection;
use crate::critical_section::now_ns;
use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, cmd};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// KEYS: the lock, its queue. ARGV: the channel of the process, the lease. Replies 1 if acquired.
const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 0";
/// KEYS and ARGV as above.
const RELEASE: &str = "\
local next = redis.call('LPOP', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
  redis.call('PUBLISH', next, '')
else
  redis.call('DEL', KEYS[1])
end
return 1";
const LEASE_MS: &str = "30000";

/// A lock, as one process uses it.
#[derive(Clone)]
pub(super) struct BareQueue {
    conn: MultiplexedConnection,
    name: &'static str,
    /// Of this process. Its tasks need no channels of their own: it queues once for each that waits.
    channel: Arc<str>,
    /// The received grants. A task that waits takes one.
    grants: Arc<Semaphore>,
    acquire_sha: Arc<str>,
    release_sha: Arc<str>,
}

impl BareQueue {
    /// Connects and subscribes.
    pub(super) async fn connect(url: &str, name: &'static str, process: u32) -> Result<Self> {
        let (sender, mut messages) = mpsc::unbounded_channel();
        let mut conn = subscribing_connection(url, sender).await?;
        let channel: Arc<str> = format!("bare:{process}").into();
        conn.subscribe(&*channel).await?;
        let grants = Arc::new(Semaphore::new(0));
        let received = grants.clone();
        tokio::spawn(async move {
            while messages.recv().await.is_some() {
                received.add_permits(1);
            }
        });
        let load = |script: &'static str| cmd("SCRIPT").arg("LOAD").arg(script).to_owned();
        let acquire_sha: String = load(ACQUIRE).query_async(&mut conn).await?;
        let release_sha: String = load(RELEASE).query_async(&mut conn).await?;
        Ok(Self {
            conn,
            name,
            channel,
            grants,
            acquire_sha: acquire_sha.into(),
            release_sha: release_sha.into(),
        })
    }

    /// Waits for the lock. Returns the time: there is no fencing token, and times are in the same order.
    pub(super) async fn acquire(&self) -> Result<u64> {
        if self.call(&self.acquire_sha).await? == 0 {
            self.grants.acquire().await.context("the grants never close")?.forget();
        }
        Ok(now_ns())
    }

    pub(super) async fn release(&self) -> Result<()> {
        self.call(&self.release_sha).await.map(drop)
    }

    async fn call(&self, sha: &str) -> Result<u64> {
        let queue = format!("{}:queue", self.name);
        let mut call = Cmd::with_capacity(7, 192);
        call.arg("EVALSHA").arg(sha).arg(2).arg(self.name).arg(queue).arg(&*self.channel).arg(LEASE_MS);
        Ok(call.query_async(&mut self.conn.clone()).await?)
    }
}
