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

use super::renewal::RENEWAL;
use super::topology::{Map, Redirect, redirect};
use super::{PAUSE, Shared};
use crate::config::address::Address;
use crate::conn::link::{Link, LinkConnection, STABLE_AFTER, backoff};
use crate::conn::mailbox::Mailboxes;
use crate::conn::messages::PROBE;
use crate::error_map::classify;
use crate::location::ConnPurpose;
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
const MAX_CONCURRENT: usize = 64;
/// How long one subscription may take.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The subscriptions. Dropping them ends their tasks.
pub(crate) struct Subscriptions {
    shared: Arc<Shared>,
    table: Arc<Watched<ChannelTable>>,
    /// The task that starts one task for each node with subscriptions; `None` before the first.
    task: Mutex<Option<JoinHandle<()>>>,
}

/// All subscribed channels by name.
#[derive(Default)]
struct ChannelTable {
    channels: BTreeMap<String, Channel>,
    /// Number of the last [`Publisher`].
    last: u64,
}

struct Channel {
    slot: u16,
    subscriber: Subscriber,
    /// Node on which the channel is subscribed; `None` until then.
    at: Option<Address>,
    /// Whether the channel was subscribed before, so that messages may have been missed.
    before: bool,
    /// Why the channel cannot be subscribed.
    fault: Option<Fault>,
}

enum Subscriber {
    /// The mailbox of a session.
    Mailbox(SessionId, Arc<dyn NotificationSink>),
    /// Subscribers of a channel of another library.
    Publishers(BTreeMap<u64, Publisher>),
}

impl Subscriptions {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, table: Arc::new(Watched::new(ChannelTable::default())), task: Mutex::default() }
    }

    /// Opens the mailbox of a session, on a channel of a slot.
    pub(crate) async fn open_mailbox(
        &self,
        (slot, channel): (u16, String),
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        self.table.modify(|table| {
            let subscriber = Subscriber::Mailbox(session, sink);
            match table.channels.get_mut(&channel) {
                Some(known) => known.subscriber = subscriber,
                None => drop(table.channels.insert(channel.clone(), Channel::new(slot, subscriber))),
            }
            true
        });
        let opened = self.until_subscribed(&channel, deadline).await;
        if opened.is_err() {
            self.close_mailbox(&channel);
        }
        opened
    }

    /// Closes a mailbox.
    pub(crate) fn close_mailbox(&self, channel: &str) {
        self.table.modify(|table| table.channels.remove(channel).is_some());
    }

    /// Subscribes to a channel of a slot to which other libraries publish.
    ///
    /// Cancel safety: dropping the future ends the subscription.
    pub(crate) async fn listen(
        &self,
        (slot, channel): (u16, String),
        deadline: Instant,
    ) -> Result<Subscription, Fault> {
        let (publisher, mut number) = (Publisher::default(), 0);
        self.table.modify(|table| {
            table.last += 1;
            number = table.last;
            let new = || Channel::new(slot, Subscriber::Publishers(BTreeMap::new()));
            let known = table.channels.entry(channel.clone()).or_insert_with(new);
            if let Subscriber::Publishers(publishers) = &mut known.subscriber {
                publishers.insert(number, publisher.clone());
            }
            true
        });
        let (table, name) = (Arc::downgrade(&self.table), channel.clone());
        let subscription = Subscription::new(&publisher, move || {
            let Some(table) = table.upgrade() else { return };
            table.modify(|table| {
                let Some(Channel { subscriber: Subscriber::Publishers(publishers), .. }) =
                    table.channels.get_mut(&name)
                else {
                    return false;
                };
                publishers.remove(&number);
                let is_last = publishers.is_empty();
                if is_last {
                    table.channels.remove(&name);
                }
                is_last
            });
        });
        self.until_subscribed(&channel, deadline).await?;
        publisher.notify();
        Ok(subscription)
    }

    async fn until_subscribed(&self, channel: &str, deadline: Instant) -> Result<(), Fault> {
        self.start();
        let settled = |table: &ChannelTable| {
            let known = table.channels.get(channel)?;
            match (&known.at, &known.fault) {
                (Some(_), _) => Some(Ok(())),
                (None, Some(fault)) => Some(Err(fault.clone())),
                (None, None) => None,
            }
        };
        match timeout_at(deadline, self.table.wait_for(settled)).await {
            Ok(settled) => settled,
            Err(_) => Err(self.shared.last_fault()),
        }
    }

    /// Starts the subscription task, or restarts it if the runtime it ran in has ended.
    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            // The connections of the other runtime, and their subscriptions, are gone.
            self.table.modify(|table| {
                table.channels.values_mut().for_each(|channel| channel.at = None);
                false
            });
            *task = Some(tokio::spawn(run_nodes(Arc::clone(&self.shared), Arc::clone(&self.table))));
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
        let channels = self.table.read(|table| table.channels.len());
        f.debug_struct("Subscriptions").field("channels", &channels).finish_non_exhaustive()
    }
}

impl Channel {
    const fn new(slot: u16, subscriber: Subscriber) -> Self {
        Self { slot, subscriber, at: None, before: false, fault: None }
    }
}

impl ChannelTable {
    /// The nodes that should have subscriptions.
    fn nodes(&self, map: &Map) -> BTreeSet<Address> {
        self.channels.values().filter_map(|channel| map.primary(channel.slot)).cloned().collect()
    }

    /// The channels still to subscribe at a node, and those to unsubscribe there.
    fn pending(&self, map: &Map, node: &Address, here: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
        let belongs = |channel: &Channel| map.primary(channel.slot) == Some(node);
        let wanted = self.channels.iter().filter(|(name, channel)| {
            belongs(channel) && (channel.at.as_ref() != Some(node) || !here.contains(*name))
        });
        let over = here.iter().filter(|name| !self.channels.get(*name).is_some_and(belongs));
        (wanted.map(|(name, _)| name.clone()).collect(), over.cloned().collect())
    }
}

/// Runs one subscription task for each node, while there are subscriptions for it.
async fn run_nodes(shared: Arc<Shared>, table: Arc<Watched<ChannelTable>>) {
    let mut tasks: BTreeMap<Address, AbortOnDropHandle<()>> = BTreeMap::new();
    loop {
        let map = shared.view.wait_for(|view| view.map.clone()).await;
        let nodes = table.read(|table| table.nodes(&map));
        tasks.retain(|node, _| nodes.contains(node));
        for node in &nodes {
            tasks.entry(node.clone()).or_insert_with(|| {
                let task = maintain_node(Arc::clone(&shared), Arc::clone(&table), node.clone());
                AbortOnDropHandle::new(tokio::spawn(task))
            });
        }
        let other_map = shared
            .view
            .wait_for(|view| view.map.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &map)).then_some(()));
        let other_nodes = table.wait_for(|table| (table.nodes(&map) != nodes).then_some(()));
        tokio::select! {
            () = other_map => {}
            () = other_nodes => {}
        }
    }
}

/// Keeps the subscriptions at one node.
async fn maintain_node(shared: Arc<Shared>, table: Arc<Watched<ChannelTable>>, node: Address) {
    let handler = {
        let (shared, table, node) = (Arc::downgrade(&shared), Arc::downgrade(&table), node.clone());
        move |push: &PushInfo| {
            let (Some(shared), Some(table)) = (shared.upgrade(), table.upgrade()) else { return };
            deliver(&shared, &table, &node, push);
        }
    };
    let config = shared.config.for_cluster_node(&node, ConnPurpose::Messages);
    let link = Link::new(config, Mailboxes::with_handler(handler));
    let environment = shared.config.shared_environment();
    let mut failures = 0;
    loop {
        let pause = backoff(RENEWAL, failures, environment.random());
        tokio::time::sleep(pause).await;
        let connection = match link.connection(Instant::now() + SUBSCRIBE_TIMEOUT).await {
            Ok(connection) => connection,
            Err(fault) => {
                failures += 1;
                shared.mark_stale(None);
                if !fault.is_transient() {
                    record_fault(&shared, &table, &node, &fault);
                }
                continue;
            }
        };
        // Subscriptions on the previous connection are gone.
        table.modify(|table| {
            for channel in table.channels.values_mut().filter(|channel| channel.at.as_ref() == Some(&node)) {
                channel.at = None;
            }
            false
        });
        let since = Instant::now();
        tokio::select! {
            biased;
            () = link.until_replaced(&connection) => {}
            () = keep_subscribed(&shared, &table, &node, &link, &connection) => link.replace(&connection),
        }
        // The end of a connection that lasted says nothing about the next one.
        failures = if since.elapsed() >= STABLE_AFTER { 0 } else { (failures + 1).min(4) };
        shared.mark_stale(None);
    }
}

/// Records why channels at a node cannot be subscribed.
fn record_fault(shared: &Shared, table: &Watched<ChannelTable>, node: &Address, fault: &Fault) {
    let Some(map) = shared.map() else { return };
    table.modify(|table| {
        for channel in table.channels.values_mut().filter(|channel| map.primary(channel.slot) == Some(node)) {
            channel.fault = Some(fault.clone());
        }
        true
    });
}

/// Keeps the channels of a node subscribed while replies match requests (1) and the connection responds (4).
async fn keep_subscribed(
    shared: &Shared,
    table: &Watched<ChannelTable>,
    node: &Address,
    link: &Link,
    connection: &LinkConnection,
) {
    let mut here = BTreeSet::new();
    let mut failures = 0;
    let mut answered = Instant::now();
    loop {
        let pending = |map: &Map| {
            table.read(|table| {
                let (wanted, over) = table.pending(map, node, &here);
                (!wanted.is_empty() || !over.is_empty()).then_some((wanted, over))
            })
        };
        let (map, (mut wanted, over)) = loop {
            let map = shared.view.wait_for(|view| view.map.clone()).await;
            if let Some(pending) = pending(&map) {
                break (map, pending);
            }
            let other_map = shared
                .view
                .wait_for(|view| view.map.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &map)).then_some(()));
            let more = table.wait_for(|table| {
                let (wanted, over) = table.pending(&map, node, &here);
                (!wanted.is_empty() || !over.is_empty()).then_some(())
            });
            tokio::select! {
                () = other_map => {}
                () = more => {}
                () = sleep_until(answered + PROBE.0) => {
                    if !responds(link, connection.clone()).await {
                        return;
                    }
                    answered = Instant::now();
                }
            }
        };
        wanted.truncate(MAX_CONCURRENT);
        let subscriptions = wanted.iter().map(|channel| subscribe(link, connection.clone(), channel));
        let mut is_later = false;
        for (channel, subscribed) in wanted.iter().zip(join_all(subscriptions).await) {
            match subscribed {
                Subscribed::Done => {
                    here.insert(channel.clone());
                    record_subscribed(table, channel, node);
                }
                Subscribed::Elsewhere(redirected) => {
                    is_later = true;
                    match (redirected, table.read(|table| table.channels.get(channel).map(|it| it.slot))) {
                        (Redirect::Moved(to), Some(slot)) => shared.moved(slot, to),
                        _ => shared.mark_stale(None),
                    }
                }
                Subscribed::Refused(fault) => {
                    is_later = true;
                    table.modify(|table| {
                        let known = table.channels.get_mut(channel);
                        known.map(|known| known.fault = Some(fault)).is_some()
                    });
                }
                Subscribed::OutOfSync => return,
            }
        }
        for channel in &over {
            here.remove(channel);
        }
        let ends = over.iter().map(|channel| unsubscribe(link, connection.clone(), channel));
        if join_all(ends).await.contains(&false) {
            return;
        }
        drop(map);
        answered = Instant::now();
        failures = if is_later { failures + 1 } else { 0 };
        tokio::time::sleep(backoff(
            (PAUSE.0, RENEWAL.1),
            failures,
            shared.config.shared_environment().random(),
        ))
        .await;
    }
}

/// Outcome of a subscription.
enum Subscribed {
    Done,
    /// The slot is elsewhere.
    Elsewhere(Redirect),
    /// The subscription failed.
    Refused(Fault),
    /// Replies no longer match requests (1), or no reply arrived.
    OutOfSync,
}

async fn subscribe(link: &Link, mut connection: LinkConnection, channel: &str) -> Subscribed {
    let Some(answers) = send_both(link, &mut connection, ["SSUBSCRIBE", "SUBSCRIBE"], channel).await else {
        return Subscribed::OutOfSync;
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
                    let fault = Fault::new(classify(error).kind, Phase::Handshake, Arc::clone(link.node()));
                    return Subscribed::Refused(fault);
                }
            }
            _ => return Subscribed::OutOfSync,
        }
    }
    Subscribed::Done
}

/// Ends a subscription. Returns whether replies still match requests.
async fn unsubscribe(link: &Link, mut connection: LinkConnection, channel: &str) -> bool {
    let answers = send_both(link, &mut connection, ["SUNSUBSCRIBE", "UNSUBSCRIBE"], channel).await;
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
async fn responds(link: &Link, mut connection: LinkConnection) -> bool {
    match link.call(&mut connection, &cmd("PING"), Instant::now() + PROBE.1).await {
        Ok(Value::SimpleString(answer)) => answer == "PONG",
        // The user lacks permission for PING, but the server responded.
        Ok(Value::ServerError(_)) => true,
        // No reply, or one that matches no request (1).
        _ => false,
    }
}

/// Sends two commands for one channel in one write.
async fn send_both(
    link: &Link,
    connection: &mut LinkConnection,
    commands: [&str; 2],
    channel: &str,
) -> Option<Vec<Value>> {
    let mut pipeline = Pipeline::with_capacity(2);
    for command in commands {
        let request: Cmd = cmd(command).arg(channel).clone();
        pipeline.add_command(request);
    }
    let answers = link.call_all(connection, &pipeline, Instant::now() + SUBSCRIBE_TIMEOUT).await.ok()?;
    (answers.len() == commands.len()).then_some(answers)
}

/// Whether a message belongs to the channel.
fn is_of(data: &[Value], channel: &str) -> bool {
    data.first().and_then(|found| from_redis_value_ref::<String>(found).ok()).as_deref() == Some(channel)
}

/// The address that a link leads to.
fn link_address(link: &Link) -> Option<Address> {
    match link.config().location() {
        crate::location::ServerLocation::ClusterNode(address, _) => Some(address.clone()),
        _ => None,
    }
}

/// Records that a channel is subscribed at a node, and notifies the subscriber if it may have missed messages (2).
fn record_subscribed(table: &Watched<ChannelTable>, channel: &str, node: &Address) {
    let mut sink = None;
    table.modify(|table| {
        let Some(known) = table.channels.get_mut(channel) else { return false };
        (known.at, known.fault) = (Some(node.clone()), None);
        if std::mem::replace(&mut known.before, true) {
            match &known.subscriber {
                Subscriber::Mailbox(_, report) => sink = Some(Arc::clone(report)),
                Subscriber::Publishers(publishers) => publishers.values().for_each(Publisher::notify),
            }
        }
        true
    });
    // Called outside the lock: user code may take long.
    if let Some(sink) = sink {
        sink.resubscribed();
    }
}

/// Delivers a message. Ignores anything in a mailbox that is not a grant: any client with permission to publish can
/// send it.
fn deliver(shared: &Shared, table: &Watched<ChannelTable>, node: &Address, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (
            PushKind::SMessage | PushKind::Message,
            [Value::BulkString(channel), Value::BulkString(message)],
        ) => {
            let Ok(channel) = std::str::from_utf8(channel) else { return };
            let sink = table.read(|table| match &table.channels.get(channel)?.subscriber {
                Subscriber::Mailbox(session, sink) => Some((*session, Arc::clone(sink))),
                Subscriber::Publishers(publishers) => {
                    publishers.values().for_each(Publisher::notify);
                    None
                }
            });
            let Some((session, sink)) = sink else { return };
            match Notification::parse(session, message) {
                Ok(notification) => sink.deliver(notification),
                Err(error) => tracing::trace!(%session, %error, "ignored"),
            }
        }
        // Usually the slot has left the node.
        (PushKind::SUnsubscribe, [channel, ..]) => {
            let Ok(channel) = from_redis_value_ref::<String>(channel) else { return };
            let mut lost = false;
            table.modify(|table| {
                let known = table.channels.get_mut(&channel).filter(|known| known.at.as_ref() == Some(node));
                lost = known.map(|known| known.at = None).is_some();
                lost
            });
            if lost {
                shared.mark_stale(None);
            }
        }
        _ => {}
    }
}
