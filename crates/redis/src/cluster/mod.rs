//! A cluster: the slot map, a link to each primary in use, and the routing of calls.
//!
//! Owns the slot map, its renewal, and the routing of each call. The store interprets calls and replies;
//! [`subscriptions`] owns the subscriptions.
//!
//! 1. A call that may have been executed is not resent. If a node reports that it executed nothing, because the slot
//!    is elsewhere, is migrating or has no primary, the call goes on to the node that serves the slot: until its
//!    deadline, a limited number of times, and with a pause before the same node is tried again. Of the calls that a
//!    node refuses because the cluster is down, only one retries on behalf of all ([`recovery`]).
//! 2. One task renews the map, and only on a reason for doubt: a redirect, a missing or broken connection, or a node
//!    that reports the cluster down. Any number of reasons cause one request. While nothing changes, requests are
//!    backoff by pauses that grow to half a second and are half random.
//! 3. The map is replaced as a whole. A map older than the known one is accepted only if no node has a newer one,
//!    because a partitioned node has an old map. A MOVED changes the map for one slot until the next renewal. During
//!    a fail-over all nodes report the same until a replica is promoted, so the renewal does not wait for silent
//!    nodes then, but repeats soon.
//! 4. ASKING and its call go out in one write, so that no command of another task comes between them.

mod recovery;
mod subscriptions;
#[cfg(test)]
mod tests;
mod topology;

use super::config::RedisConfig;
use super::config::address::Address;
use super::conn::link::{Link, LinkConnection, Lost, backoff};
use super::conn::mailbox::Mailboxes;
use super::conn::open::open;
use super::conn::sentinel::prefer_transient;
use super::error_map::unconnected;
use super::location::{ClusterSeeds, ConnPurpose, ServerLocation, not_a_single_server};
use super::script::Call;
use crate::cluster::recovery::{Recovery, RetryingCall};
use crate::cluster::subscriptions::Subscriptions;
use crate::cluster::topology::{Map, NodeReport};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use leasehold_store::jitter;
use leasehold_store::watched::Watched;
use leasehold_store::{Executed, Fault, FaultKind, Outcome, Phase};
use redis::{Cmd, Pipeline, Value, cmd};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use crate::cluster::topology::{Redirect, SLOTS, redirect};

/// How many times one call is sent at most (1).
const MAX_SENDS: u32 = 64;
/// How many redirects are followed without a pause.
const AT_ONCE: u32 = 4;
/// Pauses before the same node is tried again: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// Pauses between two renewals of the map (2).
const RENEWAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// After this long without a renewal, the next one starts at once; and the time over which clients spread it.
const CALM: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));
/// How long to wait for one node before the next one is asked as well.
const STAGGER: Duration = Duration::from_millis(100);
/// How long to wait for the other nodes after a node with a current map reports the cluster down. In a fail-over
/// every node reports that and one does not answer; waiting for it would delay the discovery of the promotion.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(500);
/// How many nodes one renewal asks at most; each renewal picks others.
const MAX_SOURCES: usize = 5;
/// How long a connection attempt may take before the map is in doubt.
const STALE_AFTER: Duration = Duration::from_millis(100);
/// How long to wait for a connection to the target of an ASK redirect.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

impl ClusterSeeds {
    /// One of the primaries.
    pub(crate) async fn find(&self, config: &RedisConfig, node: &Arc<str>) -> Result<Address, Fault> {
        let report = request_map(config, self.nodes.clone(), None).await?;
        let first = report.primaries().first().cloned();
        first.ok_or_else(|| not_a_single_server(node))
    }
}

/// A cluster. Its tasks and its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// The task that renews the map (2); `None` before the first call.
    task: Mutex<Option<JoinHandle<()>>>,
    subscriptions: Subscriptions,
}

#[derive(Debug)]
struct Shared {
    config: RedisConfig,
    /// Name of the cluster in messages that concern no single node.
    name: Arc<str>,
    view: Watched<View>,
    /// The nodes in use.
    nodes: Mutex<BTreeMap<Address, Arc<Node>>>,
}

/// Known state of the cluster.
#[derive(Debug, Default)]
struct View {
    map: Option<Arc<Map>>,
    /// Fault of the last renewal, if it failed.
    fault: Option<Fault>,
    /// Set if there is a reason to doubt the map.
    is_stale: bool,
    /// Node that probably has a newer map.
    hint: Option<Address>,
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
    pub(crate) fn lost(&self, lost: Lost) -> Fault {
        let fault = |kind| Fault::new(kind, Phase::Reply, Arc::clone(self.name()));
        match lost {
            Lost::Broken(error) => fault(FaultKind::Disconnected).with_source(error),
            Lost::TimedOut => fault(FaultKind::TimedOut),
        }
    }
}

/// What to do if only some keys of a call are on the node that received it, because the slot migrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnSplit {
    /// Retry until the deadline of the call.
    Retry,
    /// Retry a few times, then return the reply.
    Report,
}

/// Number of retries with [`Tell`](OnSplit::Report).
const SPLIT_RETRIES: u32 = 2;

impl Cluster {
    /// Creates a cluster that connects at the first call.
    pub(crate) fn new(config: RedisConfig) -> Self {
        let name = config.node();
        let shared =
            Arc::new(Shared { config, name, view: Watched::new(View::default()), nodes: Mutex::default() });
        Self { subscriptions: Subscriptions::new(Arc::clone(&shared)), shared, task: Mutex::new(None) }
    }

    pub(crate) fn config(&self) -> &RedisConfig {
        &self.shared.config
    }

    /// Name of the cluster in messages that concern no single node.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.shared.name
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
        let map = Arc::new(self.shared.renew(None).await?);
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
    pub(crate) async fn reach(
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
            let elsewhere = |view: &View| {
                let now = view.map.as_ref().and_then(|map| map.primary(slot));
                (now != map.primary(slot)).then_some(())
            };
            let moved = self.shared.view.wait_for(elsewhere);
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
            // A slow connection attempt may lead to a primary that is gone (2).
            let patience = if waiting.is_none() { STALE_AFTER } else { Duration::MAX };
            let until = Instant::now().checked_add(patience).map_or(deadline, |until| until.min(deadline));
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

    /// Sends a script call to the node that serves the slot (1), and returns the reply and that node. Set
    /// `with_script` if the server is known to lack the script.
    pub(crate) async fn reply<T>(
        &self,
        slot: u16,
        call: &Call,
        with_script: bool,
        on_split: OnSplit,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let loading = || call.load();
        self.send(slot, (call.cmd(), Some(&loading)), with_script, on_split, deadline).await
    }

    /// Same as [`reply`](Self::reply), for a command with one key and without a script.
    pub(crate) async fn command<T>(
        &self,
        slot: u16,
        cmd: &Cmd,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        self.send(slot, (cmd, None), false, OnSplit::Retry, deadline).await
    }

    async fn send<T>(
        &self,
        slot: u16,
        (cmd, script): Sent<'_>,
        mut with_script: bool,
        on_split: OnSplit,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let (mut ask_target, mut again, mut pauses) = (None, 0, 0);
        let (mut last, mut sent, mut retries) = (None, 0, RetryingCall::default());
        while sent < MAX_SENDS {
            sent += 1;
            let asking = ask_target.is_some();
            let reached = match ask_target.take() {
                None => retries.yielding(self.connection(slot, deadline)).await,
                Some(there) => match self.reach(&there, deadline.min(Instant::now() + ASK_TIMEOUT)).await {
                    Err(fault) if fault.is_transient() && Instant::now() < deadline => continue,
                    reached => reached,
                },
            };
            let (node, mut connection) = match (reached, last) {
                (Ok(reached), _) => reached,
                // The earlier reply says more than the connection fault.
                (Err(_), Some(last)) => return Ok(last),
                (Err(fault), None) => return Err(Outcome::Failed(Executed::No, fault)),
            };
            let loading = script.filter(|_| with_script).map(|loading| loading());
            let value = send(&node, &mut connection, (loading, asking, cmd), deadline);
            let value = retries.yielding(value).await.map_err(|lost| {
                self.mark_stale();
                Outcome::Failed(Executed::Unknown, node.lost(lost))
            })?;
            if script.is_some() && is_unknown_script(&value) {
                ask_target = asking.then(|| node.address.clone());
                (with_script, last) = (true, Some((value, node)));
                continue;
            }
            let random = self.shared.config.shared_environment().random();
            let mut rest = sent > AT_ONCE;
            let redirect = node.redirect(&value);
            if redirect != Some(Redirect::Later) {
                retries.answered();
            }
            match redirect {
                None => return Ok((value, node)),
                Some(Redirect::Moved(to)) => self.moved(slot, to),
                Some(Redirect::Ask(to)) => ask_target = Some(to),
                Some(Redirect::Again) => {
                    again += 1;
                    if on_split == OnSplit::Report && again > SPLIT_RETRIES {
                        return Ok((value, node));
                    }
                    rest = true;
                }
                Some(Redirect::Unnamed) => {
                    self.mark_stale();
                    rest = true;
                }
                Some(Redirect::Later) => {
                    self.mark_stale();
                    let has_time = retries.rest(&node, random, deadline).await;
                    last = Some((value, node));
                    if !has_time {
                        break;
                    }
                    // Not counted: the deadline and the pauses limit these retries.
                    sent -= 1;
                    continue;
                }
            }
            last = Some((value, node));
            if rest {
                pauses += 1;
                let pause = backoff(PAUSE, pauses, random);
                if Instant::now() + pause >= deadline {
                    break;
                }
                tokio::time::sleep(pause).await;
            }
        }
        last.ok_or_else(|| Outcome::Failed(Executed::No, self.shared.last_fault()))
    }

    /// The fault of a call for a slot that no node serves at present.
    pub(crate) fn uncovered(&self) -> Fault {
        Fault::new(FaultKind::Busy, Phase::Connect, Arc::clone(self.name()))
    }

    /// Marks the map as doubtful, so that it is renewed.
    pub(crate) fn mark_stale(&self) {
        self.shared.mark_stale(None);
        self.start();
    }

    /// Applies a MOVED redirect, which holds until the next renewal (3).
    pub(crate) fn moved(&self, slot: u16, to: Address) {
        self.shared.moved(slot, to);
        self.start();
    }

    /// Starts the renewal task, or restarts it if the runtime it ran in has ended.
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

/// A command, and the command that loads its script, if it is a script call.
type Sent<'a> = (&'a Cmd, Option<&'a (dyn Fn() -> Cmd + Sync)>);

/// Sends a command and returns its reply. With `asking`, ASKING precedes it in the same write (4).
async fn send(
    node: &Node,
    connection: &mut LinkConnection,
    (loading, asking, command): (Option<Cmd>, bool, &Cmd),
    deadline: Instant,
) -> Result<Value, Lost> {
    if !asking && loading.is_none() {
        return node.link.call(connection, command, deadline).await;
    }
    let mut pipeline = Pipeline::with_capacity(3);
    let loads = loading.is_some();
    if let Some(loading) = loading {
        pipeline.add_command(loading);
    }
    if asking {
        pipeline.add_command(cmd("ASKING"));
    }
    pipeline.add_command(command.clone());
    let mut values = node.link.call_all(connection, &pipeline, deadline).await?;
    let value = values.pop().unwrap_or_default();
    // If loading the script failed, for example for lack of permission, that error counts.
    let load_error =
        values.into_iter().next().filter(|value| loads && matches!(value, Value::ServerError(_)));
    Ok(load_error.filter(|_| is_unknown_script(&value)).unwrap_or(value))
}

/// Whether the server does not know the script.
pub(crate) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether nothing was executed because only some of the keys are on this node.
pub(crate) fn is_split(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "TRYAGAIN")
}

/// Counts a call that waits for a connection, until it is dropped.
struct Waiting<'a>(&'a Shared);

impl Drop for Waiting<'_> {
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

    fn wait(&self) -> Waiting<'_> {
        self.view.modify(|view| {
            view.waiting += 1;
            view.waiting == 1
        });
        Waiting(self)
    }

    fn mark_stale(&self, hint: Option<Address>) {
        self.view.modify(|view| {
            let news = !view.is_stale;
            view.is_stale = true;
            view.hint = hint.or_else(|| view.hint.take());
            news
        });
    }

    fn moved(&self, slot: u16, to: Address) {
        self.view.modify(|view| {
            if let Some(map) = view.map.as_ref().filter(|map| map.primary(slot) != Some(&to)) {
                view.map = Some(Arc::new(map.with(slot, &to)));
            }
            (view.is_stale, view.hint) = (true, Some(to));
            true
        });
    }

    /// Returns the node at an address, and marks it as in use.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let config = self.config.for_cluster_node(address, ConnPurpose::Calls);
            let link = Link::new(config, Mailboxes::with_handler(|_| {}));
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
        let mut is_other = true;
        self.view.modify(|view| {
            is_other = view.map.as_ref().is_none_or(|old| !old.agrees_with(map));
            view.fault = None;
            view.map = Some(Arc::clone(map));
            true
        });
        if is_other {
            self.nodes().retain(|address, _| map.primaries().contains(address));
            tracing::debug!(cluster = %self.name, primaries = map.primaries().len(), "the slot map has changed");
        }
        is_other
    }

    fn last_fault(&self) -> Fault {
        let timed_out = || Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(&self.name));
        self.view.read(|view| view.fault.clone()).unwrap_or_else(timed_out)
    }

    /// The nodes to request the map from, in order.
    fn sources(&self, hint: Option<Address>) -> Vec<Address> {
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
        if let Some(hint) = hint {
            sources.retain(|source| *source != hint);
            sources.insert(0, hint);
        }
        sources.truncate(MAX_SOURCES);
        sources
    }

    /// Requests the slot map.
    async fn renew(&self, hint: Option<Address>) -> Result<Map, Fault> {
        request_map(&self.config, self.sources(hint), Some(self)).await
    }
}

/// Requests the map from one node after the other, and from several at once if they are slow; uses existing links
/// where there are any. Returns the first map from a node that reports the cluster up and knows no older
/// configuration than ours, or else the newest map received in time (3).
async fn request_map(
    config: &RedisConfig,
    nodes: Vec<Address>,
    shared: Option<&Shared>,
) -> Result<Map, Fault> {
    let known = shared.and_then(Shared::map).map_or(0, |map| map.epoch);
    let asked = nodes.iter().zip(0_u32..).map(|(node, place)| async move {
        tokio::time::sleep(STAGGER * place).await;
        ask(config, node, shared).await
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut best, mut last_fault): (Option<NodeReport>, _) = (None, None);
    let mut until: Option<Instant> = None;
    let left = |until: Option<Instant>| {
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    };
    while let Ok(Some(answer)) = timeout(left(until), asked.next()).await {
        match answer {
            Ok(report) if report.is_cluster_up && report.map.epoch >= known => return Ok(report.map),
            Ok(report) => {
                if report.map.epoch >= known {
                    until.get_or_insert_with(|| Instant::now() + OTHERS_TIMEOUT);
                }
                let worth = |report: &NodeReport| (report.is_cluster_up, report.map.epoch);
                if best.as_ref().is_none_or(|best| worth(&report) > worth(best)) {
                    best = Some(report);
                }
            }
            Err(fault) => {
                tracing::debug!(node = %fault.node, %fault, "a node does not report the slot map");
                last_fault = Some(prefer_transient(last_fault, fault));
            }
        }
    }
    let silent = || Fault::new(FaultKind::Unreachable, Phase::Connect, config.node());
    best.map(|best| best.map).ok_or_else(|| last_fault.unwrap_or_else(silent))
}

/// Requests the map from one node.
async fn ask(config: &RedisConfig, address: &Address, shared: Option<&Shared>) -> Result<NodeReport, Fault> {
    let name: Arc<str> = address.to_string().into();
    let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(&name));
    let mut questions = Pipeline::with_capacity(2);
    topology::ask(&mut questions);
    let node = shared.and_then(|shared| shared.nodes().get(address).cloned());
    let ready = node.and_then(|node| node.link.ready().map(|connection| (node, connection)));
    let asked = async {
        let answers = if let Some((node, mut connection)) = ready {
            let deadline = Instant::now() + config.attempt_timeout();
            node.link.call_all(&mut connection, &questions, deadline).await.map_err(|lost| node.lost(lost))?
        } else {
            let unconnected = |error| unconnected(error, address, &name);
            let info = config.connection_info(address).map_err(unconnected)?;
            let opened = open(config, address, &info, config.attempt_timeout()).await;
            // Keep the whole value until the reply arrives: it may drive the stream itself.
            let mut opened = opened.map_err(unconnected)?;
            let answers = opened.conn.send_packed_commands(&questions, 0, questions.len()).await;
            answers.map_err(|error| fault(FaultKind::Disconnected).with_source(error))?
        };
        topology::read(address, &answers).map_err(fault)
    };
    match timeout(config.attempt_timeout(), asked).await {
        Ok(report) => report,
        Err(_) => Err(fault(FaultKind::TimedOut)),
    }
}

/// Renews the map whenever it is in doubt (2).
async fn maintain_map(shared: Arc<Shared>) {
    let environment = shared.config.shared_environment();
    let mut last: Option<Instant> = None;
    let mut unchanged = 0;
    loop {
        shared.view.wait_for(|view| (view.is_stale || view.waiting > 0).then_some(())).await;
        let (calm, spread) = CALM;
        match last {
            Some(last) if last.elapsed() < calm => {
                tokio::time::sleep(backoff(RENEWAL, unchanged + 1, environment.random())).await;
            }
            Some(_) => {
                unchanged = 0;
                tokio::time::sleep(jitter(&**environment, spread)).await;
            }
            None => {}
        }
        let mut hint = None;
        shared.view.modify(|view| {
            view.is_stale = false;
            hint = view.hint.take();
            false
        });
        match shared.renew(hint).await {
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
