//! A cluster of primaries with replicas: real processes, all on loopback.
//!
//! Owns booting the nodes, joining them, and moving slots step by step. The nodes alone decide which replica is
//! promoted.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::FrozenClock;
use crate::resp::Value;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::wait::wait_until;

/// How many slots a cluster has.
const SLOTS: usize = 16_384;
/// After how long without a reply a node counts as failed, in milliseconds.
const NODE_TIMEOUT_MS: &str = "1000";
/// The same where the clock of the nodes stands still: longer than any test moves it.
const FROZEN_TIMEOUT_MS: &str = "2000000000";
/// By how much such a clock moves at a time while the nodes join.
const TICK: Duration = Duration::from_millis(10);
/// How long the nodes may take to agree, or to promote a replica.
const LIMIT: Duration = Duration::from_secs(40);

/// Primaries, each with its replicas, that share all slots. All of them are killed on drop.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use leasehold_testkit::Cluster;
///
/// let cluster = Cluster::start(3, 0)?;
/// let (slot, owner) = (cluster.slot("orders/42")?, cluster.owner_of("orders/42")?);
/// assert_eq!(cluster.cli_at("orders/42", &["SET", "orders/42", "token"])?.text(), Some("OK"));
/// cluster.move_slot(slot, (owner + 1) % 3)?;
/// assert_eq!(cluster.cli_at("orders/42", &["GET", "orders/42"])?.text(), Some("token"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cluster {
    /// The initial primaries, then the replicas.
    nodes: Vec<RedisServer>,
    /// The ids of the nodes.
    ids: Vec<String>,
}

impl Cluster {
    /// Starts primaries with a number of replicas each.
    pub fn start(primaries: usize, replicas: usize) -> io::Result<Self> {
        Self::with(primaries, replicas, &RedisServer::builder())
    }

    /// As [`start`](Self::start), with server settings such as [`tls`](RedisServerBuilder::tls). Returns when all
    /// nodes agree.
    pub fn with(primaries: usize, replicas: usize, settings: &RedisServerBuilder) -> io::Result<Self> {
        let settings = settings
            .clone()
            .node()
            .config("cluster-node-timeout", NODE_TIMEOUT_MS)
            .config("cluster-replica-validity-factor", "0")
            .config("repl-diskless-sync-delay", "0");
        let count = primaries * (1 + replicas);
        let nodes = (0..count).map(|_| settings.clone().start()).collect::<io::Result<Vec<_>>>()?;
        let id = |node: &RedisServer| -> io::Result<_> {
            let id = node.cli(&["CLUSTER", "MYID"])?.ok()?;
            id.text().map(str::to_owned).ok_or_else(|| io::Error::other("a node has no id"))
        };
        let ids = nodes.iter().map(id).collect::<io::Result<_>>()?;
        let cluster = Self { nodes, ids };
        cluster.meet(primaries)?;
        for at in primaries..count {
            let primary = &cluster.ids[at % primaries];
            cluster.nodes[at].cli(&["CLUSTER", "REPLICATE", primary])?.ok()?;
        }
        cluster.wait_agreed()?;
        Ok(cluster)
    }

    /// Starts a cluster whose nodes share a clock that the test controls. It moves while the nodes join; after that no node
    /// is found to fail, and none is promoted.
    pub fn frozen(
        primaries: usize,
        replicas: usize,
        clock: &FrozenClock,
        settings: &RedisServerBuilder,
    ) -> io::Result<Self> {
        let settings = settings
            .clone()
            .clock(clock)
            // A jump of the clock is no silence of a node.
            .config("cluster-node-timeout", FROZEN_TIMEOUT_MS)
            .config("repl-timeout", "1000000");
        let is_joined = AtomicBool::new(false);
        thread::scope(|scope| {
            let ticking = scope.spawn(|| -> io::Result<()> {
                while !is_joined.load(Ordering::Acquire) {
                    thread::sleep(TICK);
                    clock.advance(TICK)?;
                }
                Ok(())
            });
            let cluster = Self::with(primaries, replicas, &settings);
            is_joined.store(true, Ordering::Release);
            ticking.join().unwrap_or_else(|_| Err(io::Error::other("the clock panicked")))?;
            cluster
        })
    }

    fn meet(&self, primaries: usize) -> io::Result<()> {
        for (at, node) in self.nodes.iter().enumerate() {
            // Otherwise all nodes start with the same epoch, and resolve the conflict later.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?.ok()?;
            if at < primaries {
                // Redis 6.2 has no ADDSLOTSRANGE.
                let slots =
                    (SLOTS * at / primaries..SLOTS * (at + 1) / primaries).map(|slot| slot.to_string());
                let command = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots);
                node.cli(&command.collect::<Vec<_>>())?.ok()?;
            }
        }
        let mut met: Option<Instant> = None;
        self.wait_until("the nodes to know each other", || {
            // On a busy machine a handshake can exceed its limit of a second.
            if met.is_none_or(|met| met.elapsed() > Duration::from_secs(2)) {
                met = Some(Instant::now());
                let port = self.nodes[0].port().to_string();
                for node in &self.nodes[1..] {
                    node.cli(&["CLUSTER", "MEET", "127.0.0.1", &port])?.ok()?;
                }
            }
            for node in &self.nodes {
                let known = node.cli(&["CLUSTER", "NODES"])?.ok()?;
                let known = known.text().unwrap_or_default().to_owned();
                let all = self.ids.iter().all(|id| known.lines().any(|line| line.starts_with(id)));
                if !all || known.contains("handshake") {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Waits until all running nodes report a healthy cluster, agree on the owner of each slot, and all replicas are
    /// in sync.
    pub fn wait_agreed(&self) -> io::Result<()> {
        self.wait_until("the nodes to agree", || {
            let mut maps = Vec::new();
            for node in self.running() {
                let info = node.cli(&["CLUSTER", "INFO"])?.ok()?;
                let copied = node.cli(&["INFO", "replication"])?.ok()?;
                let copied = !copied.text().unwrap_or_default().contains("master_link_status:down");
                if !copied || !info.text().unwrap_or_default().contains("cluster_state:ok") {
                    return Ok(false);
                }
                maps.push(shards(&node.cli(&["CLUSTER", "SLOTS"])?.ok()?));
            }
            let running = self.running().count();
            let complete = |map: &Vec<Shard>| map.iter().flat_map(|(.., ports)| ports).count() >= running;
            Ok(maps.windows(2).all(|pair| pair[0] == pair[1]) && maps.iter().all(complete))
        })
    }

    /// `redis+cluster://…`, with all of the nodes; `rediss+cluster://…` by TLS, without the authority.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        let scheme = if self.nodes.iter().any(RedisServer::is_tls) { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{}", nodes.join(","))
    }

    /// Makes clients reach the node with this index by another port, such as that of a relay.
    pub fn announce_port(&self, at: usize, port: u16) -> io::Result<()> {
        let command = ["CONFIG", "SET", "cluster-announce-port", &port.to_string()];
        self.nodes[at].cli(&command)?.ok().map(drop)
    }

    /// The nodes: the initial primaries, then the replicas.
    pub fn nodes(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// The node with this index.
    pub fn node(&self, at: usize) -> &RedisServer {
        &self.nodes[at]
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> io::Result<u16> {
        let node = self.running().next().ok_or_else(|| io::Error::other("no node runs"))?;
        let slot = node.cli(&["CLUSTER", "KEYSLOT", key])?.ok()?.integer();
        slot.and_then(|slot| slot.try_into().ok()).ok_or_else(|| io::Error::other("a key without a slot"))
    }

    /// The index of the primary that owns a slot, by its own report.
    pub fn owner(&self, slot: u16) -> io::Result<usize> {
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.pid().is_some()) {
            let Ok(map) = node.cli(&["CLUSTER", "SLOTS"]).and_then(Value::ok) else { continue };
            let owns = |(first, last, ports): &Shard| {
                (*first..=*last).contains(&slot.into()) && ports.first() == Some(&node.port().into())
            };
            if shards(&map).iter().any(owns) {
                return Ok(at);
            }
        }
        Err(io::Error::other(format!("no node owns slot {slot}")))
    }

    /// The index of the primary that owns a key.
    pub fn owner_of(&self, key: &str) -> io::Result<usize> {
        self.owner(self.slot(key)?)
    }

    /// Runs a command on the primary that owns a key.
    pub fn cli_at<A: AsRef<[u8]>>(&self, key: &str, arguments: &[A]) -> io::Result<Value> {
        self.nodes[self.owner_of(key)?].cli(arguments)
    }

    /// Moves a slot to another primary, with all of its keys.
    pub fn move_slot(&self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.owner(slot)?;
        if from == to {
            return Ok(());
        }
        self.begin_move(slot, from, to)?;
        loop {
            let keys = self.keys(slot, from)?;
            if keys.is_empty() {
                break;
            }
            self.move_keys(&keys, from, to)?;
        }
        self.end_move(slot, from, to)
    }

    /// Moves a slot to another primary at once, with all of its keys in all databases, as Valkey 9 does by
    /// `CLUSTER MIGRATESLOTS`. Returns when all nodes report the new owner.
    pub fn migrate_slot(&self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.owner(slot)?;
        let text = slot.to_string();
        let command = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &text, &text, "NODE", &self.ids[to]];
        self.nodes[from].cli(&command)?.ok()?;
        self.wait_until("a slot to migrate", || {
            for node in self.running() {
                if !self.is_owner_by(node, slot, to)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Begins to move a slot: keys that the source lacks are served by the target from now on.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]])?.ok()?;
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]])?.ok().map(drop)
    }

    /// The keys of a slot that a node has.
    pub fn keys(&self, slot: u16, at: usize) -> io::Result<Vec<String>> {
        let keys = self.nodes[at].cli(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"])?.ok()?;
        Ok(keys.elements().iter().filter_map(|key| key.text().map(str::to_owned)).collect())
    }

    /// Moves keys of the slot.
    pub fn move_keys<K: AsRef<str>>(&self, keys: &[K], from: usize, to: usize) -> io::Result<()> {
        let port = self.nodes[to].port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(AsRef::as_ref));
        self.nodes[from].cli(&command)?.ok().map(drop)
    }

    /// Ends the move of a slot whose keys have all moved. Returns when all nodes report the new owner and know each
    /// other's epochs: before that, the former owner could claim the slot when it moves again.
    ///
    /// Only the target is notified, with `SETSLOT NODE`; it takes a greater epoch and announces itself. A node that is
    /// notified by command too early then sees an older message in which the target does not claim the slot. Redis
    /// 7.0 keeps a note of that for ever (`owner_not_claiming_slot`), and if this node is the target of a later
    /// move, it gives the slot, with the keys, back to the source, which no longer wants it: no node claims the slot.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        if self.nodes[from].pid().is_some() && !self.keys(slot, from)?.is_empty() {
            return Err(io::Error::other(format!("keys of slot {slot} are left at its source")));
        }
        self.assign(slot, to, to)?;
        self.wait_until("the nodes to agree on a slot that has moved", || {
            let mut epochs = Vec::new();
            for node in self.running() {
                if !self.is_owner_by(node, slot, to)? {
                    return Ok(false);
                }
                epochs.push(current_epoch(node)?);
            }
            Ok(epochs.windows(2).all(|pair| pair[0] == pair[1]))
        })?;
        // The source keeps the slot as "migrating" otherwise.
        if self.nodes[from].pid().is_some() && is_primary(&self.nodes[from])? {
            self.assign(slot, from, to)?;
        }
        Ok(())
    }

    /// Notifies the node `at` of the owner of a slot.
    fn assign(&self, slot: u16, at: usize, owner: usize) -> io::Result<()> {
        let command = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[owner]];
        self.nodes[at].cli(&command)?.ok().map(drop)
    }

    /// Whether a node reports this owner of a slot.
    fn is_owner_by(&self, node: &RedisServer, slot: u16, owner: usize) -> io::Result<bool> {
        let port = i64::from(self.nodes[owner].port());
        let owns = |(first, last, ports): &Shard| {
            (*first..=*last).contains(&slot.into()) && ports.first() == Some(&port)
        };
        Ok(shards(&node.cli(&["CLUSTER", "SLOTS"])?.ok()?).iter().any(owns))
    }

    /// Waits until another node owns the slots of this one. Returns its index.
    pub fn wait_promoted(&self, slot: u16, old: usize) -> io::Result<usize> {
        let mut promoted = None;
        self.wait_until("a replica to be promoted", || {
            promoted = self.owner(slot).ok().filter(|at| *at != old);
            Ok(promoted.is_some())
        })?;
        promoted.ok_or_else(|| io::Error::other("the promoted node has ended"))
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.pid().is_some())
    }

    fn wait_until(&self, state: &str, probe: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
        wait_until(state, LIMIT, probe, || {
            let report = |node: &RedisServer| {
                ["NODES", "INFO"].map(|what| node.cli(&["CLUSTER", what]).and_then(Value::ok).ok())
            };
            format!("the nodes report {:?}", self.running().map(report).collect::<Vec<_>>())
        })
    }
}

/// The first and last slot of a range, and the ports of its nodes, the primary first.
type Shard = (i64, i64, Vec<i64>);

fn shards(map: &Value) -> Vec<Shard> {
    let shard = |range: &Value| {
        let [first, last, nodes @ ..] = range.elements() else { return None };
        let mut ports: Vec<_> =
            nodes.iter().filter_map(|node| node.elements().get(1).and_then(Value::integer)).collect();
        // Replicas are reported in any order.
        if let Some(replicas) = ports.get_mut(1..) {
            replicas.sort_unstable();
        }
        Some((first.integer()?, last.integer()?, ports))
    };
    let mut shards: Vec<_> = map.elements().iter().filter_map(shard).collect();
    shards.sort_unstable();
    shards
}

/// The greatest epoch that a node knows.
fn current_epoch(node: &RedisServer) -> io::Result<Option<String>> {
    let info = node.cli(&["CLUSTER", "INFO"])?.ok()?;
    let mut lines = info.text().unwrap_or_default().lines();
    Ok(lines.find_map(|line| line.strip_prefix("cluster_current_epoch:")).map(str::to_owned))
}

fn is_primary(node: &RedisServer) -> io::Result<bool> {
    let role = node.cli(&["ROLE"])?.ok()?;
    Ok(role.elements().first().and_then(Value::text) == Some("master"))
}
