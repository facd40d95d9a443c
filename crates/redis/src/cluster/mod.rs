//! A cluster: the slot map, a link to each primary in use, and the routing of calls.
//!
//! Owns the known state of the cluster and the links. [`send`] sends a call and follows redirects, [`refresh`] refreshes
//! the map, [`recovery`] paces retries while the cluster is down, and [`subscriptions`] owns the subscriptions. The
//! store interprets calls and replies.
//!
//! 1. The map is replaced as a whole. A MOVED changes it for one slot until the next refresh.
//! 2. One task refreshes the map, whenever it is marked as stale.

mod recovery;
mod refresh;
mod send;
mod subscriptions;
#[cfg(test)]
mod tests;
mod topology;

use super::config::RedisConfig;
use super::config::address::Address;
use super::conn::link::{Backoff, Link, LinkConnection, NoReply};
use super::conn::mailbox::Mailboxes;
use super::conn::tracking::KeyTracking;
use crate::cluster::recovery::Recovery;
use crate::cluster::refresh::maintain_map;
use crate::cluster::subscriptions::Subscriptions;
use crate::cluster::topology::Map;
use futures_util::future::join_all;
use leasehold_store::watched::Watched;
use leasehold_store::{Fault, FaultKind, Phase};
use redis::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub(crate) use crate::cluster::send::OnTryAgain;
pub(crate) use crate::cluster::topology::{Redirect, SLOTS, redirect};

/// Pauses before the same node is tried again: the first, and the longest.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
/// How long a connection attempt may take before the map is marked as stale: the address may be that of a primary that
/// is gone.
const STALE_AFTER: Duration = Duration::from_millis(100);

/// A cluster. Its tasks and its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// The task that refreshes the map (2); `None` before the first call.
    task: Mutex<Option<JoinHandle<()>>>,
    subscriptions: Subscriptions,
}

#[derive(Debug)]
struct Shared {
    config: RedisConfig,
    /// Name of the cluster in messages that concern no single node.
    name: Arc<str>,
    view: Watched<View>,
    /// The receiver of reports about keys.
    tracking: Option<Arc<KeyTracking>>,
    /// The nodes in use.
    nodes: Mutex<BTreeMap<Address, Arc<Node>>>,
}

/// Known state of the cluster.
#[derive(Debug, Default)]
struct View {
    map: Option<Arc<Map>>,
    /// Fault of the last refresh, if it failed.
    fault: Option<Fault>,
    /// Set if the map may be out of date.
    is_stale: bool,
    /// Node that probably has a newer map, and is the first to be queried.
    preferred_source: Option<Address>,
    /// Number of calls that wait for a connection, which may never succeed at the mapped address.
    waiting: usize,
}

/// One node, and the link to it.
#[derive(Debug)]
pub(crate) struct Node {
    address: Address,
    pub(crate) link: Link,
    recovery: Recovery,
}

impl Node {
    /// Name of the node in messages.
    pub(crate) fn name(&self) -> &Arc<str> {
        self.link.node()
    }

    /// Redirect in a reply of this node, if the node executed nothing.
    pub(crate) fn redirect(&self, value: &Value) -> Option<Redirect> {
        redirect(&self.address, value)
    }

    /// The fault of a missing reply.
    pub(crate) fn no_reply(&self, no_reply: NoReply) -> Fault {
        no_reply.fault(self.name())
    }
}

impl Cluster {
    /// Creates a cluster that connects at the first call.
    pub(crate) fn new(config: RedisConfig, tracking: Option<Arc<KeyTracking>>) -> Self {
        let (name, view) = (config.node(), Watched::new(View::default()));
        let shared = Arc::new(Shared { config, name, view, tracking, nodes: Mutex::default() });
        Self { subscriptions: Subscriptions::new(Arc::clone(&shared)), shared, task: Mutex::new(None) }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.shared.config
    }

    /// Name of the cluster in messages that concern no single node.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    /// The receiver of reports about keys.
    pub(crate) fn tracking(&self) -> Option<&Arc<KeyTracking>> {
        self.shared.tracking.as_ref()
    }

    /// The node that serves `slot`, as far as that is known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        self.shared.map()?.primary(slot).map(|primary| self.shared.node(primary))
    }

    /// The subscriptions in this cluster.
    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        // Subscriptions need a slot map.
        self.start();
        &self.subscriptions
    }

    /// Requests the slot map, and tries to connect to every primary. A single primary may be unreachable.
    ///
    /// Cancel safety: connection attempts continue.
    pub(crate) async fn connect(&self) -> Result<(), Fault> {
        let map = Arc::new(self.shared.refresh(None).await?);
        let nodes: Vec<_> = map.primaries().iter().map(|primary| self.shared.node(primary)).collect();
        self.shared.replace(&map);
        self.start();
        let connected = join_all(nodes.iter().map(|node| node.link.connect())).await;
        let any = connected.iter().any(Result::is_ok);
        connected
            .into_iter()
            .filter_map(Result::err)
            .try_for_each(|fault| if any && fault.is_transient() { Ok(()) } else { Err(fault) })
    }

    /// The slot map; waits for the first one.
    pub(crate) async fn map(&self, deadline: Instant) -> Result<Arc<Map>, Fault> {
        if let Some(map) = self.shared.map() {
            return Ok(map);
        }
        self.mark_stale();
        let settled = |view: &View| match (&view.map, &view.fault) {
            (Some(map), _) => Some(Ok(Arc::clone(map))),
            (None, Some(fault)) if !fault.is_transient() => Some(Err(fault.clone())),
            (None, _) => None,
        };
        let _waiting = self.shared.wait();
        match timeout_at(deadline, self.shared.view.wait_for(settled)).await {
            Ok(settled) => settled,
            Err(_) => Err(self.shared.last_fault()),
        }
    }

    /// Connects to the node at an address.
    pub(crate) async fn connect_to(
        &self,
        primary: &Address,
        deadline: Instant,
    ) -> Result<(Arc<Node>, LinkConnection), Fault> {
        let node = self.shared.node(primary);
        let connection = node.link.connection(deadline).await?;
        Ok((node, connection))
    }

    /// Waits for a connection to the node that serves `slot`. Follows a fail-over while it waits.
    pub(crate) async fn connection(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<(Arc<Node>, LinkConnection), Fault> {
        let mut waiting = None;
        loop {
            let map = self.map(deadline).await?;
            let has_moved = |view: &View| {
                let now = view.map.as_ref().and_then(|map| map.primary(slot));
                (now != map.primary(slot)).then_some(())
            };
            let moved = self.shared.view.wait_for(has_moved);
            let Some(primary) = map.primary(slot) else {
                self.mark_stale();
                let _waiting = self.shared.wait();
                if timeout_at(deadline, moved).await.is_err() {
                    return Err(self.uncovered());
                }
                continue;
            };
            let node = self.shared.node(primary);
            if let Some(connection) = node.link.ready() {
                return Ok((node, connection));
            }
            let limit = if waiting.is_none() { STALE_AFTER } else { Duration::MAX };
            let until = Instant::now().checked_add(limit).map_or(deadline, |until| until.min(deadline));
            tokio::select! {
                biased;
                () = moved => {}
                connection = node.link.connection(until) => match connection {
                    Ok(connection) => return Ok((node, connection)),
                    Err(fault) if !fault.is_transient() || Instant::now() >= deadline => return Err(fault),
                    Err(_) => {
                        self.mark_stale();
                        waiting.get_or_insert_with(|| self.shared.wait());
                    }
                },
            }
        }
    }

    /// The fault of a call for a slot that no node serves at present.
    pub(crate) fn uncovered(&self) -> Fault {
        Fault::new(FaultKind::Busy, Phase::Connect, Arc::clone(self.name()))
    }

    /// Marks the map as stale, so that it is refreshed.
    pub(crate) fn mark_stale(&self) {
        self.shared.mark_stale(None);
        self.start();
    }

    /// Applies a MOVED redirect, which is valid until the next refresh (1).
    pub(crate) fn moved(&self, slot: u16, to: Address) {
        self.shared.moved(slot, to);
        self.start();
    }

    /// Starts the refresh task, or restarts it if the runtime it ran in has ended.
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(maintain_map(Arc::clone(&self.shared))));
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

/// Counts a call that waits for a connection, until it is dropped.
struct WaitingCall<'a>(&'a Shared);

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.view.modify(|view| {
            view.waiting -= 1;
            false
        });
    }
}

impl Shared {
    fn map(&self) -> Option<Arc<Map>> {
        self.view.read(|view| view.map.clone())
    }

    fn wait(&self) -> WaitingCall<'_> {
        self.view.modify(|view| {
            view.waiting += 1;
            view.waiting == 1
        });
        WaitingCall(self)
    }

    fn mark_stale(&self, preferred_source: Option<Address>) {
        self.view.modify(|view| {
            let has_changed = !view.is_stale;
            view.is_stale = true;
            view.preferred_source = preferred_source.or_else(|| view.preferred_source.take());
            has_changed
        });
    }

    fn moved(&self, slot: u16, to: Address) {
        self.view.modify(|view| {
            if let Some(map) = view.map.as_ref().filter(|map| map.primary(slot) != Some(&to)) {
                view.map = Some(Arc::new(map.with(slot, &to)));
            }
            (view.is_stale, view.preferred_source) = (true, Some(to));
            true
        });
    }

    /// Returns the node at an address, and marks it as in use.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let config = self.config.for_cluster_node(address);
            let mailboxes = Mailboxes::with_handler(|_| {}).with_tracking(self.tracking.clone());
            let link = Link::new(config, mailboxes);
            Arc::new(Node { address: address.clone(), link, recovery: Recovery::default() })
        });
        Arc::clone(node)
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<Address, Arc<Node>>> {
        // No code panics while it holds this lock.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the map, and returns whether it differs from the old one.
    fn replace(&self, map: &Arc<Map>) -> bool {
        let mut has_changed = true;
        self.view.modify(|view| {
            has_changed = view.map.as_ref().is_none_or(|old| !old.agrees_with(map));
            view.fault = None;
            view.map = Some(Arc::clone(map));
            true
        });
        if has_changed {
            self.nodes().retain(|address, _| map.primaries().contains(address));
            tracing::debug!(cluster = %self.name, primaries = map.primaries().len(), "the slot map has changed");
        }
        has_changed
    }

    fn last_fault(&self) -> Fault {
        let last = self.view.read(|view| view.fault.clone());
        last.unwrap_or_else(|| self.config.unconnected_in_time(&self.name))
    }
}
