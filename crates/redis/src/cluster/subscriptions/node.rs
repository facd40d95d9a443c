//! The subscriptions at each primary.
//!
//! Owns one connection to each primary whose slots have subscriptions, and the subscriptions on it.
//!
//! 1. Subscriptions use a connection of their own. A primary that loses a slot ends the subscriptions to its channels
//!    without a request, and the client library would take that message for the reply to the latest request. If it
//!    arrives between a request and its reply, the connection is given up.
//! 2. A subscription counts once the server has confirmed both channels. A server without sharded channels has plain
//!    ones only.
//! 3. Calls rarely wait on such a connection, so their timeouts do not detect its loss. It is probed at intervals,
//!    and replaced if it does not respond.

use super::{ChannelTable, deliver, record_subscribed};
use crate::cluster::refresh::REFRESH_BACKOFF;
use crate::cluster::topology::{Redirect, redirect};
use crate::cluster::{RETRY_BACKOFF, Shared};
use crate::config::address::Address;
use crate::conn::link::{Backoff, Link, LinkConnection, STABLE_AFTER};
use crate::conn::mailbox::Mailboxes;
use crate::conn::messages::{PROBE_INTERVAL, PROBE_TIMEOUT};
use crate::error_map::classify;
use crate::location::ServerLocation;
use futures_util::future::join_all;
use leasehold_store::watched::Watched;
use leasehold_store::{Fault, Phase};
use redis::{Pipeline, PushInfo, PushKind, Value, cmd, from_redis_value_ref};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// How many subscriptions are requested at the same time.
const MAX_CONCURRENT: usize = 64;
/// How long one subscription may take.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs one subscription task for each node, while there are subscriptions for it.
pub(super) async fn run_all(shared: Arc<Shared>, table: Arc<Watched<ChannelTable>>) {
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
    let config = shared.config.for_cluster_node(&node);
    let link = Link::new(config, Mailboxes::with_handler(handler));
    let environment = shared.config.shared_environment();
    let mut failures = 0;
    loop {
        let pause = REFRESH_BACKOFF.pause(failures, environment.random());
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
        let subscriptions = NodeSubscriptions {
            shared: &shared,
            table: &table,
            node: &node,
            link: &link,
            connection: &connection,
            here: BTreeSet::new(),
            responded_at: since,
        };
        tokio::select! {
            biased;
            () = link.until_replaced(&connection) => {}
            () = subscriptions.maintain() => link.replace(&connection),
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

/// The subscriptions on one connection to a node.
struct NodeSubscriptions<'a> {
    shared: &'a Shared,
    table: &'a Watched<ChannelTable>,
    node: &'a Address,
    link: &'a Link,
    connection: &'a LinkConnection,
    /// The channels that are subscribed on the connection.
    here: BTreeSet<String>,
    /// When the connection last responded.
    responded_at: Instant,
}

impl NodeSubscriptions<'_> {
    /// Keeps the channels of the node subscribed while replies match requests (1) and the connection responds (3).
    async fn maintain(mut self) {
        let mut failures = 0;
        while let Some((mut missing, unused)) = self.next_changes().await {
            missing.truncate(MAX_CONCURRENT);
            let Some(has_failed) = self.subscribe_all(&missing).await else { return };
            if !self.unsubscribe_all(&unused).await {
                return;
            }
            self.responded_at = Instant::now();
            failures = if has_failed { failures + 1 } else { 0 };
            let random = self.shared.config.shared_environment().random();
            tokio::time::sleep(
                Backoff::new(RETRY_BACKOFF.first, REFRESH_BACKOFF.longest).pause(failures, random),
            )
            .await;
        }
    }

    /// Waits until channels are to be subscribed or unsubscribed, and probes the connection meanwhile (3). `None` if it
    /// does not respond.
    async fn next_changes(&mut self) -> Option<(Vec<String>, Vec<String>)> {
        loop {
            let map = self.shared.view.wait_for(|view| view.map.clone()).await;
            let pending = |table: &ChannelTable| table.pending(&map, self.node, &self.here);
            if let Some(changes) = self.table.read(pending) {
                return Some(changes);
            }
            let other_map = self
                .shared
                .view
                .wait_for(|view| view.map.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &map)).then_some(()));
            let more = self.table.wait_for(|table| pending(table).map(drop));
            tokio::select! {
                () = other_map => {}
                () = more => {}
                () = sleep_until(self.responded_at + PROBE_INTERVAL) => {
                    if !responds(self.link, self.connection.clone()).await {
                        return None;
                    }
                    self.responded_at = Instant::now();
                }
            }
        }
    }

    /// Subscribes to channels. Returns whether a subscription failed; `None` if replies do not match requests (1).
    async fn subscribe_all(&mut self, channels: &[String]) -> Option<bool> {
        let subscriptions =
            channels.iter().map(|channel| subscribe(self.link, self.connection.clone(), channel));
        let mut has_failed = false;
        for (channel, subscribed) in channels.iter().zip(join_all(subscriptions).await) {
            match subscribed {
                Subscribed::Done => {
                    self.here.insert(channel.clone());
                    record_subscribed(self.table, channel, self.node);
                }
                Subscribed::Elsewhere(redirected) => {
                    has_failed = true;
                    let slot = self.table.read(|table| table.channels.get(channel).map(|known| known.slot));
                    match (redirected, slot) {
                        (Redirect::Moved(to), Some(slot)) => self.shared.moved(slot, to),
                        _ => self.shared.mark_stale(None),
                    }
                }
                Subscribed::Refused(fault) => {
                    has_failed = true;
                    self.table.modify(|table| {
                        let known = table.channels.get_mut(channel);
                        known.map(|known| known.fault = Some(fault)).is_some()
                    });
                }
                Subscribed::OutOfSync => return None,
            }
        }
        Some(has_failed)
    }

    /// Unsubscribes from channels. Returns whether replies still match requests (1).
    async fn unsubscribe_all(&mut self, channels: &[String]) -> bool {
        for channel in channels {
            self.here.remove(channel);
        }
        let ends = channels.iter().map(|channel| unsubscribe(self.link, self.connection.clone(), channel));
        !join_all(ends).await.contains(&false)
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
    // Redis 6.2 has no channels of slots, Amazon's serverless cache has no others: one of the two suffices.
    let mut has_one = false;
    for (answer, kind) in answers.iter().zip([PushKind::SSubscribe, PushKind::Subscribe]) {
        match answer {
            Value::Push { kind: found, data } if *found == kind && is_of(data, channel) => has_one = true,
            Value::ServerError(error) => {
                if let Some(redirected) = link_address(link).and_then(|at| redirect(&at, answer)) {
                    return Subscribed::Elsewhere(redirected);
                }
                let unknown = error.details().is_some_and(|details| details.starts_with("unknown command"));
                let may_have_other = has_one || kind == PushKind::SSubscribe;
                if !(unknown && may_have_other) {
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

/// Probes the connection (3).
async fn responds(link: &Link, mut connection: LinkConnection) -> bool {
    match link.call(&mut connection, &cmd("PING"), Instant::now() + PROBE_TIMEOUT).await {
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
        pipeline.cmd(command).arg(channel);
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
        ServerLocation::ClusterNode(address) => Some(address.clone()),
        _ => None,
    }
}
