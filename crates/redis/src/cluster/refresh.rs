//! Refresh of the slot map: which nodes are queried, how often, and which answer is accepted.
//!
//! Owns the task that refreshes the map. [`topology`] parses the replies of the nodes.
//!
//! 1. The map is refreshed only on a reason for doubt: a redirect, a missing or broken connection, or a node that reports
//!    the cluster down. Any number of reasons cause one request. While nothing changes, requests are spaced by pauses
//!    that grow to half a second and are half random.
//! 2. A map older than the known one is accepted only if no node has a newer one, because a partitioned node has an old
//!    map. During a fail-over all nodes report the same until a replica is promoted, so the refresh does not wait for
//!    silent nodes then, but repeats soon.

use super::Shared;
use super::topology::{self, Map, NodeReport};
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::conn::link::Backoff;
use crate::conn::open::open;
use crate::conn::sentinel::prefer_transient;
use crate::error_map::unconnected;
use crate::location::{ClusterSeeds, ServerLocation, not_a_single_server};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold_store::{Fault, FaultKind, Phase, jitter};
use redis::Pipeline;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Pauses between two refreshes of the map (1): the first, and the longest.
pub(super) const REFRESH_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_millis(500));
/// After this long without a refresh, the next one starts without a pause.
const CALM: Duration = Duration::from_secs(1);
/// Time over which clients spread a refresh that starts without a pause.
const SPREAD: Duration = Duration::from_millis(20);
/// How long to wait for one node before the next one is queried as well.
pub(super) const STAGGER: Duration = Duration::from_millis(100);
/// How long to wait for the other nodes after a node with a current map reports the cluster down. In a fail-over
/// every node reports that and one does not answer; waiting for it would delay the discovery of the promotion.
pub(super) const OTHERS_TIMEOUT: Duration = Duration::from_millis(500);
/// How many nodes one refresh queries at most; each refresh picks others.
const MAX_SOURCES: usize = 5;

impl ClusterSeeds {
    /// The address of one of the primaries.
    pub(crate) async fn find(&self, config: &RedisConfig, node: &Arc<str>) -> Result<Address, Fault> {
        let report = request_map(config, self.nodes.clone(), None).await?;
        let first = report.primaries().first().cloned();
        first.ok_or_else(|| not_a_single_server(node))
    }
}

impl Shared {
    /// The nodes to request the map from, in order.
    fn sources(&self, preferred: Option<Address>) -> Vec<Address> {
        let mut sources = self.map().map(|map| map.primaries().to_vec()).unwrap_or_default();
        if let ServerLocation::Cluster(seeds) = self.config.location() {
            // The seeds may have no slots any more, or may be the only nodes that respond.
            let unknown = seeds.nodes.iter().filter(|seed| !sources.contains(seed)).cloned();
            let unknown: Vec<_> = unknown.collect();
            sources.extend(unknown);
        }
        let environment = self.config.shared_environment();
        for at in (1..sources.len()).rev() {
            let other = environment.random() % (at as u64 + 1);
            sources.swap(at, usize::try_from(other).unwrap_or(at));
        }
        // Connected nodes need no new connection, so they come first.
        let nodes = self.nodes();
        sources.sort_by_key(|at| nodes.get(at).is_none_or(|node| node.link.ready().is_none()));
        if let Some(preferred) = preferred {
            sources.retain(|source| *source != preferred);
            sources.insert(0, preferred);
        }
        sources.truncate(MAX_SOURCES);
        sources
    }

    /// Requests the slot map.
    pub(super) async fn refresh(&self, preferred: Option<Address>) -> Result<Map, Fault> {
        request_map(&self.config, self.sources(preferred), Some(self)).await
    }
}

/// Requests the map from one node after the other, and from several at once if they are slow; uses existing links
/// where there are any. Returns the first map from a node that reports the cluster up and knows no older
/// configuration than ours, or else the newest map received in time (2).
pub(super) async fn request_map(
    config: &RedisConfig,
    nodes: Vec<Address>,
    shared: Option<&Shared>,
) -> Result<Map, Fault> {
    let known = shared.and_then(Shared::map).map_or(0, |map| map.epoch);
    let requests = nodes.iter().zip(0_u32..).map(|(node, position)| async move {
        tokio::time::sleep(STAGGER * position).await;
        request_map_from(config, node, shared).await
    });
    let mut requests: FuturesUnordered<_> = requests.collect();
    let (mut best, mut last_fault): (Option<NodeReport>, _) = (None, None);
    let mut until: Option<Instant> = None;
    let left = |until: Option<Instant>| {
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    };
    while let Ok(Some(reported)) = timeout(left(until), requests.next()).await {
        match reported {
            Ok(report) if report.is_cluster_up && report.map.epoch >= known => return Ok(report.map),
            Ok(report) => {
                if report.map.epoch >= known {
                    until.get_or_insert_with(|| Instant::now() + OTHERS_TIMEOUT);
                }
                let rank = |report: &NodeReport| (report.is_cluster_up, report.map.epoch);
                if best.as_ref().is_none_or(|best| rank(&report) > rank(best)) {
                    best = Some(report);
                }
            }
            Err(fault) => {
                tracing::debug!(node = %fault.node, %fault, "a node does not report the slot map");
                last_fault = Some(prefer_transient(last_fault, fault));
            }
        }
    }
    let unreachable = || Fault::new(FaultKind::Unreachable, Phase::Connect, config.node());
    best.map(|best| best.map).ok_or_else(|| last_fault.unwrap_or_else(unreachable))
}

/// Requests the map from one node.
async fn request_map_from(
    config: &RedisConfig,
    address: &Address,
    shared: Option<&Shared>,
) -> Result<NodeReport, Fault> {
    let name: Arc<str> = address.to_string().into();
    let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(&name));
    let mut requests = Pipeline::with_capacity(2);
    topology::add_requests(&mut requests);
    let node = shared.and_then(|shared| shared.nodes().get(address).cloned());
    let ready = node.and_then(|node| node.link.ready().map(|connection| (node, connection)));
    let replies = if let Some((node, mut connection)) = ready {
        let deadline = Instant::now() + config.attempt_timeout();
        let replies = node.link.call_all(&mut connection, &requests, deadline).await;
        replies.map_err(|no_reply| node.no_reply(no_reply))?
    } else {
        let info = config.connection_info(address, &name).await?;
        let replies = async {
            let opened = open(config, address, &info, config.attempt_timeout()).await;
            // Dropping `opened` may end the task that drives its stream, so it is kept until the reply arrives.
            let mut opened = opened.map_err(|error| unconnected(error, address, &name))?;
            let replies = opened.conn.send_packed_commands(&requests, 0, requests.len()).await;
            replies.map_err(|error| fault(FaultKind::Disconnected).with_source(error))
        };
        match timeout(config.attempt_timeout(), replies).await {
            Ok(replies) => replies.map_err(|fault| config.with_provider(fault))?,
            Err(_) => return Err(fault(FaultKind::TimedOut)),
        }
    };
    topology::parse_report(address, &replies).map_err(|kind| config.with_provider(fault(kind)))
}

/// Refreshes the map whenever it is stale (1).
pub(super) async fn maintain_map(shared: Arc<Shared>) {
    let environment = shared.config.shared_environment();
    let mut last: Option<Instant> = None;
    let mut unchanged = 0;
    loop {
        shared.view.wait_for(|view| (view.is_stale || view.waiting > 0).then_some(())).await;
        match last {
            Some(last) if last.elapsed() < CALM => {
                tokio::time::sleep(REFRESH_BACKOFF.pause(unchanged + 1, environment.random())).await;
            }
            Some(_) => {
                unchanged = 0;
                tokio::time::sleep(jitter(&**environment, SPREAD)).await;
            }
            None => {}
        }
        let mut preferred = None;
        shared.view.modify(|view| {
            view.is_stale = false;
            preferred = view.preferred_source.take();
            false
        });
        match shared.refresh(preferred).await {
            Ok(map) => unchanged = if shared.replace(&Arc::new(map)) { 0 } else { unchanged + 1 },
            Err(fault) => {
                unchanged += 1;
                shared.view.modify(|view| {
                    view.fault = Some(fault);
                    true
                });
            }
        }
        last = Some(Instant::now());
    }
}
