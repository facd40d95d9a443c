//! Independent servers for a quorum, as real processes on loopback.
//!
//! Owns booting them, and their URL as a quorum. The test controls each server.

use std::io;

use crate::server::{RedisServer, RedisServerBuilder};

/// Independent servers. All are killed on drop.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::Quorum;
///
/// let mut quorum = Quorum::start(3)?;
/// assert!(quorum.url().starts_with("redlock://127.0.0.1:"));
/// quorum.servers()[1].kill()?;
/// quorum.servers()[1].restart()?; // empty, and at the same port
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Quorum {
    servers: Vec<RedisServer>,
}

impl Quorum {
    /// Starts `count` servers.
    pub fn start(count: usize) -> io::Result<Self> {
        Self::with(count, &RedisServer::builder())
    }

    /// As [`start`](Self::start), with server settings.
    pub fn with(count: usize, settings: &RedisServerBuilder) -> io::Result<Self> {
        let servers = (0..count).map(|_| settings.clone().start()).collect::<io::Result<_>>()?;
        Ok(Self { servers })
    }

    /// `redlock://…`, with all servers and no options.
    pub fn url(&self) -> String {
        let servers: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        format!("redlock://{}", servers.join(","))
    }

    /// The servers, in the order of the URL.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The servers, for shared access.
    pub fn iter(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers.iter()
    }
}
