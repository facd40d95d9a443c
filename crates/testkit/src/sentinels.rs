//! A primary with replicas, watched by Sentinels: real processes, all on loopback.
//!
//! Owns booting them in order, and finding the primary. The Sentinels alone decide about a failover.

use std::io;
use std::time::Duration;

use crate::server::{RedisServer, RedisServerBuilder};
use crate::wait::wait_until;

/// The Sentinels' name of the primary.
const NAME: &str = "main";
/// How many Sentinels there are, and how many must find the primary down.
const SENTINELS: (usize, usize) = (3, 2);
/// How long the Sentinels may take to discover each other, or a new primary. A Sentinel that the machine stopped for 2 s does
/// nothing for 30 s (TILT mode).
const LIMIT: Duration = Duration::from_secs(75);

/// A primary and its replicas, with three Sentinels. All of them are killed on drop.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::Sentinels;
///
/// let sentinels = Sentinels::start(1)?;
/// assert_eq!(sentinels.primary()?.cli(&["SET", "orders/42", "token"])?.text(), Some("OK"));
/// assert!(sentinels.url().ends_with("/main"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sentinels {
    /// The first is the initial primary.
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl Sentinels {
    /// Starts a primary with a number of replicas.
    pub fn start(replicas: usize) -> io::Result<Self> {
        Self::with(replicas, &RedisServer::builder())
    }

    /// As [`start`](Self::start), with server settings.
    pub fn with(replicas: usize, settings: &RedisServerBuilder) -> io::Result<Self> {
        let primary = settings.clone().start()?;
        let at = format!("127.0.0.1 {}", primary.port());
        let mut servers = vec![primary];
        for _ in 0..replicas {
            // Without a delay, the replica is in sync sooner.
            let replica = settings.clone().config("replicaof", &at).config("repl-diskless-sync-delay", "0");
            servers.push(replica.start()?);
        }
        let (count, quorum) = SENTINELS;
        let sentinel = || {
            RedisServer::builder()
                .sentinel()
                .config("sentinel", format!("monitor {NAME} {at} {quorum}"))
                .config("sentinel", format!("down-after-milliseconds {NAME} 1000"))
                // On a busy machine the election of a leader can fail. The next one follows after twice this time.
                .config("sentinel", format!("failover-timeout {NAME} 3000"))
                .start()
        };
        let sentinels = (0..count).map(|_| sentinel()).collect::<io::Result<_>>()?;
        Ok(Self { servers, sentinels })
    }

    /// `redis+sentinel://…/main`, with all of the Sentinels.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/{NAME}", sentinels.join(","))
    }

    /// The servers; the first is the initial primary.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The Sentinels themselves.
    pub fn sentinels(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Waits until the Sentinels know each other and the replicas, and the replicas are in sync. Before that no
    /// failover is possible.
    pub fn wait_formed(&self) -> io::Result<()> {
        let (others, replicas) = (self.sentinels.len() - 1, self.servers.len() - 1);
        self.wait_until("the Sentinels to know each other", || {
            for sentinel in &self.sentinels {
                let record = sentinel.cli(&["SENTINEL", "MASTER", NAME])?.ok()?;
                let number = |field| record.field(field).and_then(|text| text.parse().ok());
                if number("num-other-sentinels") != Some(others) || number("num-slaves") != Some(replicas) {
                    return Ok(false);
                }
                for replica in sentinel.cli(&["SENTINEL", "REPLICAS", NAME])?.ok()?.elements() {
                    if replica.field("master-link-status") != Some("ok") {
                        return Ok(false);
                    }
                }
            }
            Ok(true)
        })
    }

    /// The index of the primary, by a majority of the Sentinels that reply.
    pub fn primary_index(&self) -> io::Result<usize> {
        let mut votes = vec![0; self.servers.len()];
        for sentinel in &self.sentinels {
            let Ok(answer) = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]) else { continue };
            let port = answer.elements().get(1).and_then(|port| port.text()?.parse().ok());
            if let Some(at) = self.servers.iter().position(|server| Some(server.port()) == port) {
                votes[at] += 1;
            }
        }
        let most = votes.iter().enumerate().max_by_key(|(_, votes)| **votes).filter(|(_, votes)| **votes > 0);
        most.map(|(at, _)| at).ok_or_else(|| io::Error::other("no Sentinel reports a primary"))
    }

    /// The primary.
    pub fn primary(&self) -> io::Result<&RedisServer> {
        Ok(&self.servers[self.primary_index()?])
    }

    /// Waits until another server is the primary. Returns its index. Queries the servers, since the Sentinels learn of
    /// it later.
    pub fn wait_promoted(&self, old: usize) -> io::Result<usize> {
        let mut promoted = None;
        self.wait_until("a replica to be promoted", || {
            let others =
                self.servers.iter().enumerate().filter(|(at, server)| *at != old && server.pid().is_some());
            for (at, server) in others {
                let role = server.cli(&["ROLE"])?.ok()?;
                if role.elements().first().and_then(|role| role.text()) == Some("master") {
                    promoted = Some(at);
                }
            }
            Ok(promoted.is_some())
        })?;
        promoted.ok_or_else(|| io::Error::other("the promoted server has ended"))
    }

    /// Waits until a Sentinel reports another primary.
    pub fn wait_reported(&self, old: usize) -> io::Result<()> {
        let old = self.servers[old].port().to_string();
        self.wait_until("a Sentinel to report the new primary", || {
            let port = |sentinel: &RedisServer| {
                let answer = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
                answer.elements().get(1)?.text().map(str::to_owned)
            };
            Ok(self.sentinels.iter().filter_map(port).any(|port| port != old))
        })
    }

    /// Starts a failover although nothing has failed. Waits until a Sentinel accepts: it refuses while it finds no
    /// suitable replica.
    pub fn fail_over(&self) -> io::Result<()> {
        self.wait_until("a Sentinel to start a failover", || {
            self.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME])?.ok().map(|_| true)
        })
    }

    fn wait_until(&self, state: &str, probe: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        wait_until(state, LIMIT, probe, || format!("the log of a Sentinel: {}", self.sentinels[0].log_tail()))
    }
}
