//! Subscriptions in a cluster: mailboxes, and channels of other libraries.
//!
//! Owns one connection to each primary whose slots have subscriptions, and the subscriptions on it. Each channel has
//! two: the sharded channel at the slot's primary, and the plain channel of the same name, to which a message is
//! published that no subscriber of the sharded channel has received.
//!
//! 1. Subscriptions use a connection of their own. A primary that loses a slot ends the subscriptions to its channels
//!    without a request, and the client library would take that message for the reply to the latest request. If it
//!    arrives between a request and its reply, the connection is given up.
//! 2. A subscriber is notified after each new subscription: when its slot has moved, when another node is the
//!    primary, or when a connection broke. It then looks for messages it has missed.
//! 3. A subscription counts once the server has confirmed both channels. A server without sharded channels has plain
//!    ones only.
//! 4. Calls rarely wait on such a connection, so their timeouts do not detect its loss. It is probed at intervals,
//!    and replaced if it does not respond.

use super::topology::{Map, Redirect, redirect};
use super::{PAUSE, RENEWAL, Shared};
use crate::config::address::Address;
use crate::conn::link::{LASTED, Link, Wire, spaced};
use crate::conn::mailbox::Mailboxes;
use crate::conn::messages::LOOK;
use crate::error_map::judge;
use crate::site::ConnPurpose;
use futures_util::future::join_all;
use leasehold_core::{Notification, SessionId};
use leasehold_store::watched::Watched;
use leasehold_store::{Fault, NotificationSink, Phase, Publisher, Subscription};
use redis::{Cmd, Pipeline, PushInfo, PushKind, Value, cmd, from_redis_value_ref};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::task::AbortOnDropHandle;

/// How many subscriptions are requested at the same time.
const AT_ONCE: usize = 64;
/// How long one subscription may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The subscriptions. Dropping them ends their tasks.
pub(crate) struct Subscriptions {
    shared: Arc<Shared>,
    heard: Arc<Watched<Heard>>,
    /// The task that starts one task for each node with subscriptions; `None` before the first.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// All subscribed channels by name.
#[derive(Default)]
struct Heard {
    channels: BTreeMap<String, Channel>,
    /// Number of the last [`Publisher`].
    last: u64,
}

struct Channel {
    slot: u16,
    who: Who,
    /// Node on which the channel is subscribed; `None` until then.
    at: Option<Address>,
    /// Whether the channel was subscribed before, so that messages may have been missed.
    before: bool,
    /// Why the channel cannot be subscribed.
    fault: Option<Fault>,
}

enum Who {
    /// The mailbox of a session.
    Post(SessionId, Arc<dyn NotificationSink>),
    /// Subscribers of a channel of another library.
    Bells(BTreeMap<u64, Publisher>),
}

impl Subscriptions {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, heard: Arc::new(Watched::new(Heard::default())), task: Mutex::default() }
    }

    /// Opens the mailbox of a session, on a channel of a slot.
    pub(crate) async fn open_mailbox(
        &self,
        (slot, channel): (u16, String),
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        self.heard.modify(|heard| {
            let who = Who::Post(session, post);
            match heard.channels.get_mut(&channel) {
                Some(known) => known.who = who,
                None => drop(heard.channels.insert(channel.clone(), Channel::new(slot, who))),
            }
            true
        });
        let opened = self.until_heard(&channel, deadline).await;
        if opened.is_err() {
            self.close_mailbox(&channel);
        }
        opened
    }

    /// Closes a mailbox.
    pub(crate) fn close_mailbox(&self, channel: &str) {
        self.heard.modify(|heard| heard.channels.remove(channel).is_some());
    }

    /// Subscribes to a channel of a slot to which other libraries publish.
    ///
    /// Cancel safety: dropping the future ends the subscription.
    pub(crate) async fn listen(
        &self,
        (slot, channel): (u16, String),
        deadline: Instant,
    ) -> Result<Subscription, Fault> {
        let (bell, mut number) = (Publisher::default(), 0);
        self.heard.modify(|heard| {
            heard.last += 1;
            number = heard.last;
            let new = || Channel::new(slot, Who::Bells(BTreeMap::new()));
            let known = heard.channels.entry(channel.clone()).or_insert_with(new);
            if let Who::Bells(bells) = &mut known.who {
                bells.insert(number, bell.clone());
            }
            true
        });
        let (heard, name) = (Arc::downgrade(&self.heard), channel.clone());
        let listening = Subscription::new(&bell, move || {
            let Some(heard) = heard.upgrade() else { return };
            heard.modify(|heard| {
                let Some(Channel { who: Who::Bells(bells), .. }) = heard.channels.get_mut(&name) else {
                    return false;
                };
                bells.remove(&number);
                let is_last = bells.is_empty();
                if is_last {
                    heard.channels.remove(&name);
                }
                is_last
            });
        });
        self.until_heard(&channel, deadline).await?;
        bell.notify();
        Ok(listening)
    }

    async fn until_heard(&self, channel: &str, deadline: Instant) -> Result<(), Fault> {
        self.start();
        let settled = |heard: &Heard| {
            let known = heard.channels.get(channel)?;
            match (&known.at, &known.fault) {
                (Some(_), _) => Some(Ok(())),
                (None, Some(fault)) => Some(Err(fault.clone())),
                (None, None) => None,
            }
        };
        match timeout_at(deadline, self.heard.wait_for(settled)).await {
            Ok(settled) => settled,
            Err(_) => Err(self.shared.last_fault()),
        }
    }

    /// Starts the subscription task, or restarts it if the runtime it ran in has ended.
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            // The connections of the other runtime, and their subscriptions, are gone.
            self.heard.modify(|heard| {
                heard.channels.values_mut().for_each(|channel| channel.at = None);
                false
            });
            *task = Some(tokio::spawn(run_nodes(Arc::clone(&self.shared), Arc::clone(&self.heard))));
        }
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = self.heard.read(|heard| heard.channels.len());
        f.debug_struct("Subscriptions").field("channels", &channels).finish_non_exhaustive()
    }
}

impl Channel {
    const fn new(slot: u16, who: Who) -> Self {
        Self { slot, who, at: None, before: false, fault: None }
    }
}

impl Heard {
    /// The nodes that should have subscriptions.
    fn nodes(&self, map: &Map) -> BTreeSet<Address> {
        self.channels.values().filter_map(|channel| map.primary(channel.slot)).cloned().collect()
    }

    /// The channels still to subscribe at a node, and those to unsubscribe there.
    fn to_do(&self, map: &Map, node: &Address, here: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
        let belongs = |channel: &Channel| map.primary(channel.slot) == Some(node);
        let wanted = self.channels.iter().filter(|(name, channel)| {
            belongs(channel) && (channel.at.as_ref() != Some(node) || !here.contains(*name))
        });
        let over = here.iter().filter(|name| !self.channels.get(*name).is_some_and(belongs));
        (wanted.map(|(name, _)| name.clone()).collect(), over.cloned().collect())
    }
}

/// Runs one subscription task for each node, while there are subscriptions for it.
async fn run_nodes(shared: Arc<Shared>, heard: Arc<Watched<Heard>>) {
    let mut tasks: BTreeMap<Address, AbortOnDropHandle<()>> = BTreeMap::new();
    loop {
        let map = shared.view.wait_for(|view| view.map.clone()).await;
        let nodes = heard.read(|heard| heard.nodes(&map));
        tasks.retain(|node, _| nodes.contains(node));
        for node in &nodes {
            tasks.entry(node.clone()).or_insert_with(|| {
                let hearing = hear(Arc::clone(&shared), Arc::clone(&heard), node.clone());
                AbortOnDropHandle::new(tokio::spawn(hearing))
            });
        }
        let other_map = shared
            .view
            .wait_for(|view| view.map.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &map)).then_some(()));
        let other_nodes = heard.wait_for(|heard| (heard.nodes(&map) != nodes).then_some(()));
        tokio::select! {
            () = other_map => {}
            () = other_nodes => {}
        }
    }
}

/// Keeps the subscriptions at one node.
async fn hear(shared: Arc<Shared>, heard: Arc<Watched<Heard>>, node: Address) {
    let ear = {
        let (shared, heard, node) = (Arc::downgrade(&shared), Arc::downgrade(&heard), node.clone());
        move |push: &PushInfo| {
            let (Some(shared), Some(heard)) = (shared.upgrade(), heard.upgrade()) else { return };
            deliver(&shared, &heard, &node, push);
        }
    };
    let config = shared.config.of_member(&node, ConnPurpose::Messages);
    let link = Link::new(config, Mailboxes::elsewhere(ear));
    let environment = shared.config.surroundings();
    let mut failures = 0;
    loop {
        let pause = spaced(RENEWAL, failures, environment.random());
        tokio::time::sleep(pause).await;
        let wire = match link.wire(Instant::now() + PATIENCE).await {
            Ok(wire) => wire,
            Err(fault) => {
                failures += 1;
                shared.doubt(None);
                if !fault.is_transient() {
                    refuse(&shared, &heard, &node, &fault);
                }
                continue;
            }
        };
        // Subscriptions on the previous connection are gone.
        heard.modify(|heard| {
            for channel in heard.channels.values_mut().filter(|channel| channel.at.as_ref() == Some(&node)) {
                channel.at = None;
            }
            false
        });
        let since = Instant::now();
        tokio::select! {
            biased;
            () = link.until_replaced(&wire) => {}
            () = keep_subscribed(&shared, &heard, &node, &link, &wire) => link.replace(&wire),
        }
        // The end of a connection that lasted says nothing about the next one.
        failures = if since.elapsed() >= LASTED { 0 } else { (failures + 1).min(4) };
        shared.doubt(None);
    }
}

/// Records why channels at a node cannot be subscribed.
fn refuse(shared: &Shared, heard: &Watched<Heard>, node: &Address, fault: &Fault) {
    let Some(map) = shared.map() else { return };
    heard.modify(|heard| {
        for channel in heard.channels.values_mut().filter(|channel| map.primary(channel.slot) == Some(node)) {
            channel.fault = Some(fault.clone());
        }
        true
    });
}

/// Keeps the channels of a node subscribed while replies match requests (1) and the connection responds (4).
async fn keep_subscribed(shared: &Shared, heard: &Watched<Heard>, node: &Address, link: &Link, wire: &Wire) {
    let mut here = BTreeSet::new();
    let mut failures = 0;
    let mut answered = Instant::now();
    loop {
        let to_do = |map: &Map| {
            heard.read(|heard| {
                let (wanted, over) = heard.to_do(map, node, &here);
                (!wanted.is_empty() || !over.is_empty()).then_some((wanted, over))
            })
        };
        let (map, (mut wanted, over)) = loop {
            let map = shared.view.wait_for(|view| view.map.clone()).await;
            if let Some(to_do) = to_do(&map) {
                break (map, to_do);
            }
            let other_map = shared
                .view
                .wait_for(|view| view.map.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &map)).then_some(()));
            let more = heard.wait_for(|heard| {
                let (wanted, over) = heard.to_do(&map, node, &here);
                (!wanted.is_empty() || !over.is_empty()).then_some(())
            });
            tokio::select! {
                () = other_map => {}
                () = more => {}
                () = sleep_until(answered + LOOK.0) => {
                    if !is_there(link, wire.clone()).await {
                        return;
                    }
                    answered = Instant::now();
                }
            }
        };
        wanted.truncate(AT_ONCE);
        let subscriptions = wanted.iter().map(|channel| subscribe(link, wire.clone(), channel));
        let mut is_later = false;
        for (channel, subscribed) in wanted.iter().zip(join_all(subscriptions).await) {
            match subscribed {
                Subscribed::Heard => {
                    here.insert(channel.clone());
                    enter(heard, channel, node);
                }
                Subscribed::Elsewhere(redirected) => {
                    is_later = true;
                    match (redirected, heard.read(|heard| heard.channels.get(channel).map(|it| it.slot))) {
                        (Redirect::Moved(to), Some(slot)) => shared.moved(slot, to),
                        _ => shared.doubt(None),
                    }
                }
                Subscribed::Refused(fault) => {
                    is_later = true;
                    heard.modify(|heard| {
                        let known = heard.channels.get_mut(channel);
                        known.map(|known| known.fault = Some(fault)).is_some()
                    });
                }
                Subscribed::Confused => return,
            }
        }
        for channel in &over {
            here.remove(channel);
        }
        let ends = over.iter().map(|channel| unsubscribe(link, wire.clone(), channel));
        if join_all(ends).await.contains(&false) {
            return;
        }
        drop(map);
        answered = Instant::now();
        failures = if is_later { failures + 1 } else { 0 };
        tokio::time::sleep(spaced((PAUSE.0, RENEWAL.1), failures, shared.config.surroundings().random()))
            .await;
    }
}

/// Outcome of a subscription.
enum Subscribed {
    Heard,
    /// The slot is elsewhere.
    Elsewhere(Redirect),
    /// The subscription failed.
    Refused(Fault),
    /// Replies no longer match requests (1), or no reply arrived.
    Confused,
}

async fn subscribe(link: &Link, mut wire: Wire, channel: &str) -> Subscribed {
    let Some(answers) = both(link, &mut wire, ["SSUBSCRIBE", "SUBSCRIBE"], channel).await else {
        return Subscribed::Confused;
    };
    for (answer, kind) in answers.iter().zip([PushKind::SSubscribe, PushKind::Subscribe]) {
        match answer {
            Value::Push { kind: found, data } if *found == kind && is_of(data, channel) => {}
            Value::ServerError(error) => {
                if let Some(redirected) = link_address(link).and_then(|at| redirect(&at, answer)) {
                    return Subscribed::Elsewhere(redirected);
                }
                let unknown = error.details().is_some_and(|details| details.starts_with("unknown command"));
                if !(kind == PushKind::SSubscribe && unknown) {
                    let fault = Fault::new(judge(error).kind, Phase::Handshake, Arc::clone(link.node()));
                    return Subscribed::Refused(fault);
                }
            }
            _ => return Subscribed::Confused,
        }
    }
    Subscribed::Heard
}

/// Ends a subscription. Returns whether replies still match requests.
async fn unsubscribe(link: &Link, mut wire: Wire, channel: &str) -> bool {
    let answers = both(link, &mut wire, ["SUNSUBSCRIBE", "UNSUBSCRIBE"], channel).await;
    let kinds = [PushKind::SUnsubscribe, PushKind::Unsubscribe];
    answers.is_some_and(|answers| {
        answers.iter().zip(kinds).all(|(answer, kind)| match answer {
            Value::Push { kind: found, data } => *found == kind && is_of(data, channel),
            // The slot has left this node, and the subscription with it.
            Value::ServerError(_) => true,
            _ => false,
        })
    })
}

/// Probes the connection (4).
async fn is_there(link: &Link, mut wire: Wire) -> bool {
    match link.call(&mut wire, &cmd("PING"), Instant::now() + LOOK.1).await {
        Ok(Value::SimpleString(answer)) => answer == "PONG",
        // The user lacks permission for PING, but the server responded.
        Ok(Value::ServerError(_)) => true,
        // No reply, or one that matches no request (1).
        _ => false,
    }
}

/// Sends two commands for one channel in one write.
async fn both(link: &Link, wire: &mut Wire, words: [&str; 2], channel: &str) -> Option<Vec<Value>> {
    let mut pipeline = Pipeline::with_capacity(2);
    for word in words {
        let about: Cmd = cmd(word).arg(channel).clone();
        pipeline.add_command(about);
    }
    let answers = link.call_all(wire, &pipeline, Instant::now() + PATIENCE).await.ok()?;
    (answers.len() == words.len()).then_some(answers)
}

/// Whether a message belongs to the channel.
fn is_of(data: &[Value], channel: &str) -> bool {
    data.first().and_then(|found| from_redis_value_ref::<String>(found).ok()).as_deref() == Some(channel)
}

/// The address that a link leads to.
fn link_address(link: &Link) -> Option<Address> {
    match link.config().site() {
        crate::site::ServerLocation::Member(address, _) => Some(address.clone()),
        _ => None,
    }
}

/// Records that a channel is subscribed at a node, and notifies the subscriber if it may have missed messages (2).
fn enter(heard: &Watched<Heard>, channel: &str, node: &Address) {
    let mut post = None;
    heard.modify(|heard| {
        let Some(known) = heard.channels.get_mut(channel) else { return false };
        (known.at, known.fault) = (Some(node.clone()), None);
        if std::mem::replace(&mut known.before, true) {
            match &known.who {
                Who::Post(_, told) => post = Some(Arc::clone(told)),
                Who::Bells(bells) => bells.values().for_each(Publisher::notify),
            }
        }
        true
    });
    // Called outside the lock: user code may take long.
    if let Some(post) = post {
        post.resubscribed();
    }
}

/// Delivers a message. Ignores anything in a mailbox that is not a grant: any client with permission to publish can
/// send it.
fn deliver(shared: &Shared, heard: &Watched<Heard>, node: &Address, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (
            PushKind::SMessage | PushKind::Message,
            [Value::BulkString(channel), Value::BulkString(message)],
        ) => {
            let Ok(channel) = std::str::from_utf8(channel) else { return };
            let post = heard.read(|heard| match &heard.channels.get(channel)?.who {
                Who::Post(session, post) => Some((*session, Arc::clone(post))),
                Who::Bells(bells) => {
                    bells.values().for_each(Publisher::notify);
                    None
                }
            });
            let Some((session, post)) = post else { return };
            match Notification::parse(session, message) {
                Ok(wake) => post.deliver(wake),
                Err(error) => tracing::trace!(%session, %error, "ignored"),
            }
        }
        // Usually the slot has left the node.
        (PushKind::SUnsubscribe, [channel, ..]) => {
            let Ok(channel) = from_redis_value_ref::<String>(channel) else { return };
            let mut lost = false;
            heard.modify(|heard| {
                let known = heard.channels.get_mut(&channel).filter(|known| known.at.as_ref() == Some(node));
                lost = known.map(|known| known.at = None).is_some();
                lost
            });
            if lost {
                shared.doubt(None);
            }
        }
        _ => {}
    }
}
