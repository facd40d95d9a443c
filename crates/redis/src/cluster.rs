//! A cluster: a link to each primary in use, which of them has which slot, and the way from one to the other.
//!
//! Owns the map of slots, its renewal, and where one call goes. What a call means, and what its reply says, is the
//! store's; what is heard, and where, is that of [`ears`].
//!
//! 1. Nothing is resent that may have been executed. Where a node has said that it has executed nothing, since the slot is
//!    elsewhere, moves, or has no primary yet, the call goes on to whoever has it: within its deadline, so often at most,
//!    and with a pause before it asks the same node again. Of those that a node refuses since it is not well, one asks
//!    for all ([`recovery`]).
//! 2. One task renews the map, and only when there is reason to doubt it: a node has said that a slot is elsewhere, a
//!    connection is missing or has broken, or a node is not well. However many find that out, it asks once, with pauses
//!    that grow to half a second and are half random for as long as nothing has changed.
//! 3. The map is replaced as a whole. One that is older than what is known is believed only if nobody knows better, since a
//!    node that was cut off has an old one. What a MOVED says of one slot counts until the next. While no node is well, all
//!    say the same until one is promoted: so nobody waits for the silent ones then, but asks again soon.
//! 4. An ASKING goes before its call in one write, so that nothing of another task's comes between them.

mod ears;
mod recovery;
#[cfg(test)]
mod tests;
mod topology;

use self::ears::Ears;
use self::recovery::{Patient, Recovery};
use self::topology::{Map, Told};
use super::address::Address;
use super::config::RedisConfig;
use super::link::{Link, Lost, Wire, spaced};
use super::mailbox::Mailboxes;
use super::open::open;
use super::script::Call;
use super::sentinel::more_hopeful;
use super::site::{Errand, Seeds, Site, no_one_server};
use super::verdict::unconnected;
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

pub(super) use self::topology::{Redirect, SLOTS, redirect};

/// How often one call is sent at most (1).
const SENT_AT_MOST: u32 = 64;
/// How often it goes on to another node without a pause.
const AT_ONCE: u32 = 4;
/// Pauses before the same is asked again: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// Pauses between two renewals of the map (2).
const RENEWAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// After how long without one the next is made at once, and in what time all clients do so.
const CALM: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(20));
/// How long a node is waited for before another is asked as well.
const STAGGER: Duration = Duration::from_millis(100);
/// How long the others are waited for once a node that is not well has told what is no older than what is known. In a
/// fail-over no node is well, and one of them is gone: who waited for it would hear of the promotion only later.
const OTHERS: Duration = Duration::from_millis(500);
/// How many are asked at most, each time others of them.
const ASKED_AT_MOST: usize = 5;
/// How long a connection may be made before the map is doubted for it.
const DOUBTED_AFTER: Duration = Duration::from_millis(100);
/// How long a node is waited for that another has sent us to for this once.
const ASIDE: Duration = Duration::from_millis(500);

impl Seeds {
    /// One of the primaries.
    pub(super) async fn find(&self, config: &RedisConfig, node: &Arc<str>) -> Result<Address, Fault> {
        let told = ask_any(config, self.nodes.clone(), None).await?;
        let first = told.primaries().first().cloned();
        first.ok_or_else(|| no_one_server(node))
    }
}

/// A cluster. Its tasks and its connections end when it is dropped.
#[derive(Debug)]
pub(super) struct Cluster {
    shared: Arc<Shared>,
    /// Renews the map (2); `None` before the first call.
    task: Mutex<Option<JoinHandle<()>>>,
    ears: Ears,
}

#[derive(Debug)]
struct Shared {
    config: RedisConfig,
    /// What messages name it by where no node is to blame.
    name: Arc<str>,
    view: Watched<View>,
    /// The nodes in use.
    nodes: Mutex<BTreeMap<Address, Arc<Node>>>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
struct View {
    map: Option<Arc<Map>>,
    /// Why the last renewal failed, if it did.
    fault: Option<Fault>,
    /// Set if somebody has reason to doubt the map.
    doubted: bool,
    /// Who may know better.
    hint: Option<Address>,
    /// How many wait for a connection, which may never come where the map says.
    waiting: usize,
}

/// One node, and the link to it.
#[derive(Debug)]
pub(super) struct Node {
    address: Address,
    pub(super) link: Link,
    recovery: Recovery,
}

impl Node {
    /// What messages name it by.
    pub(super) fn name(&self) -> &Arc<str> {
        self.link.node()
    }

    /// Where an answer of it says to go on, if it has executed nothing.
    pub(super) fn redirect(&self, value: &Value) -> Option<Redirect> {
        redirect(&self.address, value)
    }

    /// The fault of an answer that did not come.
    pub(super) fn lost(&self, lost: Lost) -> Fault {
        let fault = |kind| Fault::new(kind, Phase::Reply, Arc::clone(self.name()));
        match lost {
            Lost::Broken(error) => fault(FaultKind::Disconnected).because(error),
            Lost::TimedOut => fault(FaultKind::TimedOut),
        }
    }
}

/// What to do where only some of the keys of a call are at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// Wait, for as long as the call has.
    Wait,
    /// Try again, shortly, and then say so.
    Tell,
}

/// How often a call is tried again that is to be [told](Split::Tell) of.
const TRIED_AGAIN: u32 = 2;

impl Cluster {
    /// A cluster to which no connection is made before the first call.
    pub(super) fn new(config: RedisConfig) -> Self {
        let name = config.node();
        let shared =
            Arc::new(Shared { config, name, view: Watched::new(View::default()), nodes: Mutex::default() });
        Self { ears: Ears::new(Arc::clone(&shared)), shared, task: Mutex::new(None) }
    }

    pub(super) fn config(&self) -> &RedisConfig {
        &self.shared.config
    }

    /// What messages name it by where no node is to blame.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.shared.name
    }

    /// What is heard in it.
    pub(super) fn ears(&self) -> &Ears {
        // Who hears has to know where.
        self.start();
        &self.ears
    }

    /// Asks who has which slot, and connects to all primaries once. One of them may be gone for the moment.
    ///
    /// Cancel safety: attempts to connect go on.
    pub(super) async fn connect(&self) -> Result<(), Fault> {
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

    /// Who has which slot.
    pub(super) async fn map(&self, deadline: Instant) -> Result<Arc<Map>, Fault> {
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

    /// A primary, and a connection to it.
    pub(super) async fn reach(
        &self,
        primary: &Address,
        deadline: Instant,
    ) -> Result<(Arc<Node>, Wire), Fault> {
        let node = self.shared.node(primary);
        let wire = node.link.wire(deadline).await?;
        Ok((node, wire))
    }

    /// Whoever has a slot, and a connection to it, as soon as there is one: in place of one that is gone, another may be
    /// the primary by then.
    pub(super) async fn wire(&self, slot: u16, deadline: Instant) -> Result<(Arc<Node>, Wire), Fault> {
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
            // A connection that takes long may be one to a primary that is gone (2).
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

    /// Sends the call of a script to whoever has the slot (1), and gives the answer and whose it is. `with_script` is set
    /// where the server is known not to know it.
    pub(super) async fn reply<T>(
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

    /// The same with a command that is no script, on one key.
    pub(super) async fn command<T>(
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
                // It has an answer, which says more.
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
                    // However often: the time limits it, and the pauses.
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

    /// The fault of who wants a slot that nobody has for the moment.
    pub(super) fn uncovered(&self) -> Fault {
        Fault::new(FaultKind::Busy, Phase::Connect, Arc::clone(self.name()))
    }

    /// Somebody has reason to doubt the map.
    pub(super) fn doubt(&self) {
        self.shared.doubt(None);
        self.start();
    }

    /// A node has said that a slot is elsewhere: it counts until the map is renewed (3).
    pub(super) fn moved(&self, slot: u16, to: Address) {
        self.shared.moved(slot, to);
        self.start();
    }

    /// Starts the task that renews the map, also where the runtime that it ran in has ended.
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

/// A command, and how its script is loaded if it is one's call.
type Sent<'a> = (&'a Cmd, Option<&'a (dyn Fn() -> Cmd + Sync)>);

/// Sends a command, and gives the answer to it. Where it has to be `asking`, that goes right before it (4).
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
    // If the loading failed, for want of permission say, it is what counts.
    let trouble = values.into_iter().next().filter(|value| loads && matches!(value, Value::ServerError(_)));
    Ok(trouble.filter(|_| is_unknown_script(&value)).unwrap_or(value))
}

/// Whether a server does not know the script.
pub(super) fn is_unknown_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether nothing was executed since only some of the keys are where it was asked.
pub(super) fn is_split(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "TRYAGAIN")
}

/// One that waits for a connection, until it is dropped.
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

    /// The node at an address, which is in use from now on.
    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let config = self.config.of_member(address, Errand::Calls);
            let link = Link::new(config, Mailboxes::elsewhere(|_| {}));
            Arc::new(Node { address: address.clone(), link, recovery: Recovery::default() })
        });
        Arc::clone(node)
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<Address, Arc<Node>>> {
        // Nothing in here panics while it holds them.
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a new map in the place of the old, and says whether it is another.
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
            tracing::debug!(cluster = %self.name, primaries = map.primaries().len(), "the slots are known");
        }
        is_other
    }

    fn last_fault(&self) -> Fault {
        let timed_out = || Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(&self.name));
        self.view.read(|view| view.fault.clone()).unwrap_or_else(timed_out)
    }

    /// Whom to ask, in this order.
    fn advisers(&self, hint: Option<Address>) -> Vec<Address> {
        let mut advisers = self.map().map(|map| map.primaries().to_vec()).unwrap_or_default();
        if let Site::Cluster(seeds) = self.config.site() {
            // Those that were named may have no slots any more, or may be the only ones that are there.
            let unknown = seeds.nodes.iter().filter(|seed| !advisers.contains(seed)).cloned();
            let unknown: Vec<_> = unknown.collect();
            advisers.extend(unknown);
        }
        let world = self.config.surroundings();
        for at in (1..advisers.len()).rev() {
            let other = world.random() % (at as u64 + 1);
            advisers.swap(at, usize::try_from(other).unwrap_or(at));
        }
        // Those to whom there is a connection need no other.
        let nodes = self.nodes();
        advisers.sort_by_key(|at| nodes.get(at).is_none_or(|node| node.link.ready().is_none()));
        if let Some(hint) = hint {
            advisers.retain(|adviser| *adviser != hint);
            advisers.insert(0, hint);
        }
        advisers.truncate(ASKED_AT_MOST);
        advisers
    }

    /// Asks who has which slot.
    async fn renew(&self, hint: Option<Address>) -> Result<Map, Fault> {
        ask_any(&self.config, self.advisers(hint), Some(self)).await
    }
}

/// Asks those nodes one after the other, or side by side where they are slow; by the links to those that are in use.
/// Gives what the first says that is well and knows of no older configuration than ours, or else the latest of all who
/// answer in time (3).
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
                tracing::debug!(node = %fault.node, %fault, "a node does not say who has which slots");
                trouble = Some(more_hopeful(trouble, fault));
            }
        }
    }
    let silent = || Fault::new(FaultKind::Unreachable, Phase::Connect, config.node());
    best.map(|best| best.map).ok_or_else(|| trouble.unwrap_or_else(silent))
}

/// Asks one node.
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
            // It is kept whole until it has answered: it may move the bytes itself.
            let mut opened = opened.map_err(unconnected)?;
            let answers = opened.conn.send_packed_commands(&questions, 0, questions.len()).await;
            answers.map_err(|error| fault(FaultKind::Disconnected).because(error))?
        };
        topology::read(address, &answers).map_err(fault)
    };
    match timeout(config.patience(), asked).await {
        Ok(told) => told,
        Err(_) => Err(fault(FaultKind::TimedOut)),
    }
}

/// Renews the map whenever it is doubted (2).
async fn keep_map(shared: Arc<Shared>) {
    let world = shared.config.surroundings();
    let mut last: Option<Instant> = None;
    let mut unchanged = 0;
    loop {
        shared.view.wait_for(|view| (view.doubted || view.waiting > 0).then_some(())).await;
        let (calm, spread) = CALM;
        match last {
            Some(last) if last.elapsed() < calm => {
                tokio::time::sleep(spaced(RENEWAL, unchanged + 1, world.random())).await;
            }
            Some(_) => {
                unchanged = 0;
                tokio::time::sleep(jitter(&**world, spread)).await;
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
