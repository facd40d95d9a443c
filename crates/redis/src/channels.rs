//! The channels on which other libraries say something, and who listens to which.
//!
//! It does not subscribe: that is the link's, or the lent connection's. Both do so in [`Turns`].

use leasehold_store::{Bell, Fault, FaultKind, Phase};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, timeout_at};

/// Who listens. However many do to one channel, the server has one subscription.
#[derive(Debug, Default)]
pub(super) struct Channels {
    heard: Mutex<Heard>,
    turns: Turns,
}

/// Turns to begin and to end subscriptions, so that the end of one never overtakes the beginning of the next to the same
/// channel: it is told by a task of its own.
#[derive(Debug, Default)]
pub(super) struct Turns(tokio::sync::Mutex<()>);

#[derive(Debug, Default)]
struct Heard {
    /// In the order of their names, so that a simulated world runs the same each time.
    bells: BTreeMap<String, BTreeMap<u64, Bell>>,
    last: u64,
}

impl Turns {
    /// Waits for the turn, which lasts until the returned value is dropped.
    pub(super) async fn next(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.lock().await
    }

    /// Subscribes in its turn. Others may have theirs for long.
    pub(super) async fn begin(
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
    /// Has a bell rung at each message on a channel; gives its number.
    pub(super) fn add(&self, channel: &str, bell: Bell) -> u64 {
        let mut heard = self.lock();
        heard.last += 1;
        let number = heard.last;
        heard.bells.entry(channel.to_owned()).or_default().insert(number, bell);
        number
    }

    /// Takes a bell away again, and says whether nobody listens to the channel any more.
    pub(super) fn remove(&self, channel: &str, number: u64) -> bool {
        let mut heard = self.lock();
        let Some(bells) = heard.bells.get_mut(channel) else { return false };
        bells.remove(&number);
        let last = bells.is_empty();
        if last {
            heard.bells.remove(channel);
        }
        last
    }

    /// Whether anybody listens to a channel.
    pub(super) fn is_heard(&self, channel: &str) -> bool {
        self.lock().bells.contains_key(channel)
    }

    /// All that somebody listens to.
    pub(super) fn all(&self) -> Vec<String> {
        self.lock().bells.keys().cloned().collect()
    }

    /// A message has come. What it says is its sender's: whoever hears it looks for himself.
    pub(super) fn ring(&self, channel: &[u8]) {
        let heard = self.lock();
        let bells = std::str::from_utf8(channel).ok().and_then(|channel| heard.bells.get(channel));
        bells.into_iter().flat_map(BTreeMap::values).for_each(Bell::ring);
    }

    /// Messages may have been missed.
    pub(super) fn ring_all(&self) {
        self.lock().bells.values().flat_map(BTreeMap::values).for_each(Bell::ring);
    }

    pub(super) const fn turns(&self) -> &Turns {
        &self.turns
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        // No code runs under the lock that could leave the maps half-changed.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
