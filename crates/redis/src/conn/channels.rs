//! Subscribers of the channels of locks: those that announce a free lock or a new leader.
//!
//! Owns the table of subscribers, and the order of subscriptions. The [link](super::link) or the
//! [user's connection](super::borrowed) sends SUBSCRIBE and UNSUBSCRIBE, while it holds the lock of
//! [`SubscriptionOrder`].

use leasehold_core::SessionId;
use leasehold_store::{Fault, FaultKind, Phase, Publisher};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, timeout_at};

/// The subscribers by channel. A connection has one subscription for each channel, for any number of subscribers.
#[derive(Debug, Default)]
pub(crate) struct LockChannels {
    subscribers: Mutex<Subscribers>,
    order: SubscriptionOrder,
}

/// Orders subscriptions and unsubscriptions. An unsubscription runs in a task of its own, and must not overtake the
/// next subscription to the same channel.
#[derive(Debug, Default)]
pub(crate) struct SubscriptionOrder(tokio::sync::Mutex<()>);

#[derive(Debug, Default)]
struct Subscribers {
    /// Ordered by name, so that a simulation is reproducible.
    by_channel: BTreeMap<String, BTreeMap<u64, Publisher>>,
    /// The number of the last subscriber that was added.
    last: u64,
}

impl SubscriptionOrder {
    /// Waits until no other subscription or unsubscription is in progress.
    pub(crate) async fn lock(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }

    /// Subscribes after those that are in progress. They may take long, so the wait ends at the deadline.
    pub(crate) async fn subscribe(
        &self,
        subscribe: impl Future<Output = Result<(), Fault>>,
        node: &Arc<str>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let in_order = async {
            let _ordered = self.lock().await;
            subscribe.await
        };
        let late = |_| Err(Fault::new(FaultKind::TimedOut, Phase::Send, Arc::clone(node)));
        timeout_at(deadline, in_order).await.unwrap_or_else(late)
    }
}

impl LockChannels {
    /// Adds a subscriber of a channel, and returns its number.
    pub(crate) fn add(&self, channel: &str, publisher: Publisher) -> u64 {
        let mut subscribers = self.lock();
        subscribers.last += 1;
        let number = subscribers.last;
        subscribers.by_channel.entry(channel.to_owned()).or_default().insert(number, publisher);
        number
    }

    /// Removes a subscriber, and returns whether the channel has none left.
    pub(crate) fn remove(&self, channel: &str, number: u64) -> bool {
        let mut subscribers = self.lock();
        let Some(publishers) = subscribers.by_channel.get_mut(channel) else { return false };
        publishers.remove(&number);
        let last = publishers.is_empty();
        if last {
            subscribers.by_channel.remove(channel);
        }
        last
    }

    /// Whether a channel has subscribers.
    pub(crate) fn has_subscribers(&self, channel: &str) -> bool {
        self.lock().by_channel.contains_key(channel)
    }

    /// All channels with subscribers.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().by_channel.keys().cloned().collect()
    }

    /// Notifies the subscribers of a message. Each of them reads the lock, whatever the message says.
    pub(crate) fn notify(&self, channel: &[u8], message: &[u8]) {
        let subscribers = self.lock();
        let publishers =
            std::str::from_utf8(channel).ok().and_then(|channel| subscribers.by_channel.get(channel));
        let publishers = publishers.into_iter().flat_map(BTreeMap::values);
        match next_waiter(message) {
            Some(waiter) => publishers.for_each(|publisher| publisher.notify_next(waiter)),
            None => publishers.for_each(Publisher::notify),
        }
    }

    /// Notifies all subscribers that they may have missed messages.
    pub(crate) fn notify_all(&self) {
        self.lock().by_channel.values().flat_map(BTreeMap::values).for_each(Publisher::notify);
    }

    pub(crate) const fn subscription_order(&self) -> &SubscriptionOrder {
        &self.order
    }

    fn lock(&self) -> MutexGuard<'_, Subscribers> {
        // No code panics between two changes that belong together.
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiter that a message names: see `announce_free.lua`.
fn next_waiter(message: &[u8]) -> Option<SessionId> {
    std::str::from_utf8(message.strip_prefix(b"free ")?).ok()?.parse().ok()
}
