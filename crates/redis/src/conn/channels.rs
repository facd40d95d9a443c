//! Subscriptions to the channels of other libraries.
//!
//! The link, or the user's connection, subscribes; both do so in [`Turns`].

use leasehold_store::{Fault, FaultKind, Phase, Publisher};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, timeout_at};

/// The subscribers. The server has one subscription for each channel, whatever the number of subscribers.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    heard: Mutex<Heard>,
    turns: Turns,
}

/// Orders the beginnings and ends of subscriptions. An unsubscription runs in a task of its own, and must not
/// overtake the next subscription to the same channel.
#[derive(Debug, Default)]
pub(crate) struct Turns(tokio::sync::Mutex<()>);

#[derive(Debug, Default)]
struct Heard {
    /// Ordered by name, so that a simulation is reproducible.
    bells: BTreeMap<String, BTreeMap<u64, Publisher>>,
    last: u64,
}

impl Turns {
    /// Waits for the turn, which lasts until the returned value is dropped.
    pub(crate) async fn next(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }

    /// Subscribes in its turn. Other turns may take long, so the wait ends at the deadline.
    pub(crate) async fn begin(
        &self,
        subscribe: impl Future<Output = Result<(), Fault>>,
        node: &Arc<str>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let in_turn = async {
            let _turn = self.next().await;
            subscribe.await
        };
        let late = |_| Err(Fault::new(FaultKind::TimedOut, Phase::Send, Arc::clone(node)));
        timeout_at(deadline, in_turn).await.unwrap_or_else(late)
    }
}

impl Channels {
    /// Adds a subscriber of a channel, and returns its number.
    pub(crate) fn add(&self, channel: &str, bell: Publisher) -> u64 {
        let mut heard = self.lock();
        heard.last += 1;
        let number = heard.last;
        heard.bells.entry(channel.to_owned()).or_default().insert(number, bell);
        number
    }

    /// Removes a subscriber, and returns whether the channel has none left.
    pub(crate) fn remove(&self, channel: &str, number: u64) -> bool {
        let mut heard = self.lock();
        let Some(bells) = heard.bells.get_mut(channel) else { return false };
        bells.remove(&number);
        let last = bells.is_empty();
        if last {
            heard.bells.remove(channel);
        }
        last
    }

    /// Whether a channel has subscribers.
    pub(crate) fn is_heard(&self, channel: &str) -> bool {
        self.lock().bells.contains_key(channel)
    }

    /// All channels with subscribers.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().bells.keys().cloned().collect()
    }

    /// Notifies the subscribers of a message. Its content is not used: each subscriber reads the lock.
    pub(crate) fn ring(&self, channel: &[u8]) {
        let heard = self.lock();
        let bells = std::str::from_utf8(channel).ok().and_then(|channel| heard.bells.get(channel));
        bells.into_iter().flat_map(BTreeMap::values).for_each(Publisher::notify);
    }

    /// Notifies all subscribers that they may have missed messages.
    pub(crate) fn ring_all(&self) {
        self.lock().bells.values().flat_map(BTreeMap::values).for_each(Publisher::notify);
    }

    pub(crate) const fn turns(&self) -> &Turns {
        &self.turns
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        // No code under the lock can leave the maps half-changed.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
