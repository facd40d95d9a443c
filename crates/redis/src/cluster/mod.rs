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
//!    spaced by pauses that grow to half a second and are half random.
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
use super::conn::link::{Link, Lost, Wire, spaced};
use super::conn::mailbox::Mailboxes;
use super::conn::open::open;
use super::conn::sentinel::more_hopeful;
use super::error_map::unconnected;
use super::script::Call;
use super::site::{ConnPurpose, Seeds, ServerLocation, no_one_server};
use crate::cluster::recovery::{Patient, Recovery};
use crate::cluster::subscriptions::Subscriptions;
use crate::cluster::topology::{Map, Told};
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
const SENT_AT_MOST: u32 = 64;
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
const OTHERS: Duration = Duration::from_millis(500);
/// How many nodes one renewal asks at most; each renewal picks others.
const ASKED_AT_MOST: usize = 5;
/// How long a connection attempt may take before the map is in doubt.
const DOUBTED_AFTER: Duration = Duration::from_millis(100);
/// How long to wait for a connection to the target of an ASK redirect.
const ASIDE: Duration = Duration::from_millis(500);

impl Seeds {
    /// One of the primaries.
    pub(crate) async fn find(&self, config: &RedisConfig, node: &Arc<str>) -> Result<Address, Fault> {
        let told = ask_any(config, self.nodes.clone(), None).await?;
        let first = told.primaries().first().cloned();
        first.ok_or_else(|| no_one_server(node))
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
    doubted: bool,
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

/// What to do if a node has only some keys of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// Retry until the deadline of the call.
    Wait,
    /// Retry a few times, then return the reply.
    Tell,
}

/// Number of retries with [`Tell`](Split::Tell).
const TRIED_AGAIN: u32 = 2;

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
        self.doubt();
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
    ) -> Result<(Arc<Node>, Wire), Fault> {
        let node = self.shared.node(primary);
        let wire = node.link.wire(deadline).await?;
        Ok((node, wire))
    }

    /// Waits for a connection to the node that serves `slot`. Follows a fail-over while it waits.
    pub(crate) async fn wire(&self, slot: u16, deadline: Instant) -> Result<(Arc<Node>, Wire), Fault> {
        let mut waiting = None;
        loop {
            let map = self.map(deadline).await?;
            let elsewhere = |view: &View| {
                let now = view.map.as_ref().and_then(|map| map.primary(slot));
                (now != map.primary(slot)).then_some(())
            };
            let moved = self.shared.view.wait_for(elsewhere);
            let Some(primary) = map.primary(slot) else {
                self.doubt();
                let _waiting = self.shared.wait();
                if timeout_at(deadline, moved).await.is_err() {
                    return Err(self.uncovered());
                }
                continue;
            };
            let node = self.shared.node(primary);
            if let Some(wire) = node.link.ready() {
                return Ok((node, wire));
            }
            // A slow connection attempt may lead to a primary that is gone (2).
            let patience = if waiting.is_none() { DOUBTED_AFTER } else { Duration::MAX };
            let until = Instant::now().checked_add(patience).map_or(deadline, |until| until.min(deadline));
            tokio::select! {
                biased;
                () = moved => {}
                wire = node.link.wire(until) => match wire {
                    Ok(wire) => return Ok((node, wire)),
                    Err(fault) if !fault.is_transient() || Instant::now() >= deadline => return Err(fault),
                    Err(_) => {
                        self.doubt();
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
        split: Split,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let loading = || call.load();
        self.send(slot, (call.cmd(), Some(&loading)), with_script, split, deadline).await
    }

    /// Same as [`reply`](Self::reply), for a command with one key and without a script.
    pub(crate) async fn command<T>(
        &self,
        slot: u16,
        cmd: &Cmd,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        self.send(slot, (cmd, None), false, Split::Wait, deadline).await
    }

    async fn send<T>(
        &self,
        slot: u16,
        (cmd, script): Sent<'_>,
        mut with_script: bool,
        split: Split,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let (mut aside, mut again, mut pauses) = (None, 0, 0);
        let (mut last, mut sent, mut patient) = (None, 0, Patient::default());
        while sent < SENT_AT_MOST {
            sent += 1;
            let asking = aside.is_some();
            let reached = match aside.take() {
                None => patient.leaving(self.wire(slot, deadline)).await,
                Some(there) => match self.reach(&there, deadline.min(Instant::now() + ASIDE)).await {
                    Err(fault) if fault.is_transient() && Instant::now() < deadline => continue,
                    reached => reached,
                },
            };
            let (node, mut wire) = match (reached, last) {
                (Ok(reached), _) => reached,
                // The earlier reply says more than the connection fault.
                (Err(_), Some(last)) => return Ok(last),
                (Err(fault), None) => return Err(Outcome::Failed(Executed::No, fault)),
            };
            let loading = script.filter(|_| with_script).map(|loading| loading());
            let value = send(&node, &mut wire, (loading, asking, cmd), deadline);
            let value = patient.leaving(value).await.map_err(|lost| {
                self.doubt();
                Outcome::Failed(Executed::Unknown, node.lost(lost))
            })?;
            if script.is_some() && is_unknown_script(&value) {
                aside = asking.then(|| node.address.clone());
                (with_script, last) = (true, Some((value, node)));
                continue;
            }
            let random = self.shared.config.surroundings().random();
            let mut rest = sent > AT_ONCE;
            let redirect = node.redirect(&value);
            if redirect != Some(Redirect::Later) {
                patient.answered();
            }
            match redirect {
                None => return Ok((value, node)),
                Some(Redirect::Moved(to)) => self.moved(slot, to),
                Some(Redirect::Ask(to)) => aside = Some(to),
                Some(Redirect::Again) => {
                    again += 1;
                    if split == Split::Tell && again > TRIED_AGAIN {
                        return Ok((value, node));
                    }
                    rest = true;
                }
                Some(Redirect::Unnamed) => {
                    self.doubt();
                    rest = true;
                }
                Some(Redirect::Later) => {
                    self.doubt();
                    let has_time = patient.rest(&node, random, deadline).await;
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
                let pause = spaced(PAUSE, pauses, random);
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
    pub(crate) fn doubt(&self) {
        self.shared.doubt(None);
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
            *task = Some(tokio::spawn(keep_map(Arc::clone(&self.shared))));
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
    wire: &mut Wire,
    (loading, asking, command): (Option<Cmd>, bool, &Cmd),
    deadline: Instant,
) -> Result<Value, Lost> {
    if !asking && loading.is_none() {
        return node.link.call(wire, command, deadline).await;
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
    let mut values = node.link.call_all(wire, &pipeline, deadline).await?;
    let value = values.pop().unwrap_or_default();
    // If loading the script failed, for example for lack of permission, that error counts.
    let trouble = values.into_iter().next().filter(|value| loads && matches!(value, Value::ServerError(_)));
    Ok(trouble.filter(|_| is_unknown_script(&value)).unwrap_or(value))
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

    fn doubt(&self, hint: Option<Address>) {
        self.view.modify(|view| {
            let news = !view.doubted;
            view.doubted = true;
            view.hint = hint.or_else(|| view.hint.take());
            news
        });
    }

    fn moved(&self, slot: u16, to: Address) {
        self.view.modify(|view| {
            if let Some(map) = view.map.as_ref().filter(|map| map.primary(slot) != Some(&to)) {
                view.map = Some(Arc::new(map.with(slot, &to)));
            }
            (view.doubted, view.hint) = (true, Some(to));
            true
        });
    }

    /// Returns the node at an address, and marks it as in use.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let config = self.config.of_member(address, ConnPurpose::Calls);
            let link = Link::new(config, Mailboxes::elsewhere(|_| {}));
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
    fn advisers(&self, hint: Option<Address>) -> Vec<Address> {
        let mut advisers = self.map().map(|map| map.primaries().to_vec()).unwrap_or_default();
        if let ServerLocation::Cluster(seeds) = self.config.site() {
            // The seeds may have no slots any more, or may be the only nodes that respond.
            let unknown = seeds.nodes.iter().filter(|seed| !advisers.contains(seed)).cloned();
            let unknown: Vec<_> = unknown.collect();
            advisers.extend(unknown);
        }
        let environment = self.config.surroundings();
        for at in (1..advisers.len()).rev() {
            let other = environment.random() % (at as u64 + 1);
            advisers.swap(at, usize::try_from(other).unwrap_or(at));
        }
        // Connected nodes need no new connection, so they come first.
        let nodes = self.nodes();
        advisers.sort_by_key(|at| nodes.get(at).is_none_or(|node| node.link.ready().is_none()));
        if let Some(hint) = hint {
            advisers.retain(|adviser| *adviser != hint);
            advisers.insert(0, hint);
        }
        advisers.truncate(ASKED_AT_MOST);
        advisers
    }

    /// Requests the slot map.
    async fn renew(&self, hint: Option<Address>) -> Result<Map, Fault> {
        ask_any(&self.config, self.advisers(hint), Some(self)).await
    }
}

/// Requests the map from one node after the other, and from several at once if they are slow; uses existing links
/// where there are any. Returns the first map from a node that reports the cluster up and knows no older
/// configuration than ours, or else the newest map received in time (3).
async fn ask_any(config: &RedisConfig, nodes: Vec<Address>, shared: Option<&Shared>) -> Result<Map, Fault> {
    let known = shared.and_then(Shared::map).map_or(0, |map| map.epoch);
    let asked = nodes.iter().zip(0_u32..).map(|(node, place)| async move {
        tokio::time::sleep(STAGGER * place).await;
        ask(config, node, shared).await
    });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let (mut best, mut trouble): (Option<Told>, _) = (None, None);
    let mut until: Option<Instant> = None;
    let left = |until: Option<Instant>| {
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    };
    while let Ok(Some(answer)) = timeout(left(until), asked.next()).await {
        match answer {
            Ok(told) if told.is_well && told.map.epoch >= known => return Ok(told.map),
            Ok(told) => {
                if told.map.epoch >= known {
                    until.get_or_insert_with(|| Instant::now() + OTHERS);
                }
                let worth = |told: &Told| (told.is_well, told.map.epoch);
                if best.as_ref().is_none_or(|best| worth(&told) > worth(best)) {
                    best = Some(told);
                }
            }
            Err(fault) => {
                tracing::debug!(node = %fault.node, %fault, "a node does not report the slot map");
                trouble = Some(more_hopeful(trouble, fault));
            }
        }
    }
    let silent = || Fault::new(FaultKind::Unreachable, Phase::Connect, config.node());
    best.map(|best| best.map).ok_or_else(|| trouble.unwrap_or_else(silent))
}

/// Requests the map from one node.
async fn ask(config: &RedisConfig, address: &Address, shared: Option<&Shared>) -> Result<Told, Fault> {
    let name: Arc<str> = address.to_string().into();
    let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(&name));
    let mut questions = Pipeline::with_capacity(2);
    topology::ask(&mut questions);
    let node = shared.and_then(|shared| shared.nodes().get(address).cloned());
    let ready = node.and_then(|node| node.link.ready().map(|wire| (node, wire)));
    let asked = async {
        let answers = if let Some((node, mut wire)) = ready {
            let deadline = Instant::now() + config.patience();
            node.link.call_all(&mut wire, &questions, deadline).await.map_err(|lost| node.lost(lost))?
        } else {
            let unconnected = |error| unconnected(error, address, &name);
            let info = config.connection_info(address).map_err(unconnected)?;
            let opened = open(config, address, &info, config.patience()).await;
            // Keep the whole value until the reply arrives: it may drive the stream itself.
            let mut opened = opened.map_err(unconnected)?;
            let answers = opened.conn.send_packed_commands(&questions, 0, questions.len()).await;
            answers.map_err(|error| fault(FaultKind::Disconnected).with_source(error))?
        };
        topology::read(address, &answers).map_err(fault)
    };
    match timeout(config.patience(), asked).await {
        Ok(told) => told,
        Err(_) => Err(fault(FaultKind::TimedOut)),
    }
}

/// Renews the map whenever it is in doubt (2).
async fn keep_map(shared: Arc<Shared>) {
    let environment = shared.config.surroundings();
    let mut last: Option<Instant> = None;
    let mut unchanged = 0;
    loop {
        shared.view.wait_for(|view| (view.doubted || view.waiting > 0).then_some(())).await;
        let (calm, spread) = CALM;
        match last {
            Some(last) if last.elapsed() < calm => {
                tokio::time::sleep(spaced(RENEWAL, unchanged + 1, environment.random())).await;
            }
            Some(_) => {
                unchanged = 0;
                tokio::time::sleep(jitter(&**environment, spread)).await;
            }
            None => {}
        }
        let mut hint = None;
        shared.view.modify(|view| {
            view.doubted = false;
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
