//! Subscriptions in a cluster: the mailboxes of sessions, and the channels of locks.
//!
//! Owns the table of subscribed channels, and the delivery of messages. [`node`] subscribes to them at each primary.
//!
//! Each channel is subscribed twice: as a sharded channel at the slot's primary, and as a plain channel of the same
//! name, to which a message is published that no subscriber of the sharded channel has received.
//!
//! A subscriber is notified after each new subscription: when its slot has moved, when another node is the primary, or
//! when a connection broke. It then looks for messages that it has missed.

mod node;

use super::Shared;
use super::topology::Map;
use crate::config::address::Address;
use leasehold_core::{Notification, SessionId};
use leasehold_store::watched::Watched;
use leasehold_store::{Fault, NotificationSink, Publisher, Subscription};
use redis::{PushInfo, PushKind, Value, from_redis_value_ref};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

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
    was_subscribed: bool,
    /// Why the channel cannot be subscribed.
    fault: Option<Fault>,
}

enum Subscriber {
    /// The mailbox of a session.
    Mailbox(SessionId, Arc<dyn NotificationSink>),
    /// Subscribers of the channel of a lock.
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

    /// Subscribes to the channel of a lock in a slot.
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
            *task = Some(tokio::spawn(node::run_all(Arc::clone(&self.shared), Arc::clone(&self.table))));
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
        Self { slot, subscriber, at: None, was_subscribed: false, fault: None }
    }
}

impl ChannelTable {
    /// The nodes that should have subscriptions.
    fn nodes(&self, map: &Map) -> BTreeSet<Address> {
        self.channels.values().filter_map(|channel| map.primary(channel.slot)).cloned().collect()
    }

    /// The channels to subscribe at a node, and those to unsubscribe there; `None` if there are none. `here` are the
    /// channels that are subscribed at the node.
    fn pending(
        &self,
        map: &Map,
        node: &Address,
        here: &BTreeSet<String>,
    ) -> Option<(Vec<String>, Vec<String>)> {
        let belongs = |channel: &Channel| map.primary(channel.slot) == Some(node);
        let missing = self.channels.iter().filter(|(name, channel)| {
            belongs(channel) && (channel.at.as_ref() != Some(node) || !here.contains(*name))
        });
        let missing: Vec<_> = missing.map(|(name, _)| name.clone()).collect();
        let unused = here.iter().filter(|name| !self.channels.get(*name).is_some_and(belongs));
        let unused: Vec<_> = unused.cloned().collect();
        (!missing.is_empty() || !unused.is_empty()).then_some((missing, unused))
    }
}

/// Records that a channel is subscribed at a node, and notifies the subscriber if it may have missed messages.
fn record_subscribed(table: &Watched<ChannelTable>, channel: &str, node: &Address) {
    let mut resubscribed = None;
    table.modify(|table| {
        let Some(known) = table.channels.get_mut(channel) else { return false };
        (known.at, known.fault) = (Some(node.clone()), None);
        if std::mem::replace(&mut known.was_subscribed, true) {
            match &known.subscriber {
                Subscriber::Mailbox(_, sink) => resubscribed = Some(Arc::clone(sink)),
                Subscriber::Publishers(publishers) => publishers.values().for_each(Publisher::notify),
            }
        }
        true
    });
    // Called outside the lock: user code may take long.
    if let Some(sink) = resubscribed {
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
