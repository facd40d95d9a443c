//! When a waiter polls the store, although no notification has arrived.
//!
//! The interval grows with the distance to the front of the queue. A waiter polls sooner when the predecessor would be
//! dead, when the holder's lease ends, and when no client would notify it.

use super::{Contender, POLL_INTERVAL};
use crate::machine::jitter::{Jitter, Random};
use crate::{FIRST_LEASE, Holder, Moment, SessionId};
use std::time::Duration;

/// How much longer the interval between two polls is for each further position.
const POLL_INTERVAL_STEP: Duration = Duration::from_millis(250);
/// The longest interval between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// When the first waiter polls while no client can grant the lock: the holder is a client of another library.
const FOREIGN_POLL: Jitter = Jitter::new(Duration::from_millis(50), Duration::from_millis(250));
/// When to poll for how long a session remains alive that has just become the predecessor.
const PREDECESSOR_POLL: Jitter = Jitter::new(Duration::from_millis(200), Duration::from_millis(300));
/// How often in a row the next poll follows immediately because the predecessor is not the session that the request
/// named.
pub(super) const MAX_IMMEDIATE_POLLS: u32 = 64;
/// The pause after that.
pub(super) const PREDECESSOR_PAUSE: Duration = Duration::from_millis(20);
/// How long to wait after a split vote, in which no client got a majority: the range of the first pause, and how often it
/// doubles.
const SPLIT_VOTE_POLL: Jitter = Jitter::new(Duration::from_millis(2), Duration::from_millis(20));
const SPLIT_VOTE_DOUBLINGS: u32 = 3;
/// The jitter of a poll at a known moment, so that waiters do not poll all at once.
const POLL_JITTER: Jitter = Jitter::new(Duration::ZERO, Duration::from_millis(5));

impl Contender {
    /// How long to wait for a notification after a "taken" reply to a request that named this session.
    pub(super) fn poll_delay(
        &mut self,
        named: Option<SessionId>,
        now: Moment,
        random: Random<'_>,
    ) -> Duration {
        let base = self.base_poll_delay(random);
        let Some(predecessor) = self.wait_status.predecessor else { return base };
        let predecessor_changed = named.is_some_and(|named| named != predecessor.session);
        self.predecessor_changes =
            if predecessor_changed { self.predecessor_changes.saturating_add(1) } else { 0 };
        let watch_delay = match self.watched.next().and_then(|(_, alive_until)| alive_until) {
            Some(alive_until) => {
                let dead = alive_until.since(now).saturating_add(Duration::from_millis(1));
                dead.saturating_add(POLL_JITTER.pick(random()))
            }
            // The session that the request named is gone, perhaps dead. The sessions before it may be dead as well.
            None if predecessor_changed && self.predecessor_changes <= MAX_IMMEDIATE_POLLS => Duration::ZERO,
            None if predecessor_changed => PREDECESSOR_PAUSE,
            None => PREDECESSOR_POLL.pick(random()),
        };
        base.min(watch_delay)
    }

    /// The delay, without regard to the death of a session.
    pub(super) fn base_poll_delay(&self, random: Random<'_>) -> Duration {
        let holder = self.wait_status.holder.as_ref();
        let fresh_hold = self.requested.as_ref().is_some_and(|requested| requested.fresh_hold);
        if fresh_hold && holder.is_none() {
            let most =
                SPLIT_VOTE_POLL.max * (1 << self.split_votes.saturating_sub(1).min(SPLIT_VOTE_DOUBLINGS));
            return Jitter::new(SPLIT_VOTE_POLL.min, most).pick(random());
        }
        let is_first = self.wait_status.position.unwrap_or(0) == 0;
        let poll_often = self.requested.as_ref().is_some_and(|requested| requested.poll_often);
        let unsubscribed = !self.subscribed && holder.is_some_and(Holder::is_foreign);
        // Without a holder, the lock was left free, or all waiters before are dead, and no grant would arrive. A latch or
        // a barrier never has a holder: the arrival of other clients causes the grant.
        let has_holders = self.requested.as_ref().is_none_or(|requested| requested.mode.excludes());
        let is_soon = (holder.is_none() && has_holders) || (is_first && (poll_often || unsubscribed));
        let poll_delay = if is_soon {
            FOREIGN_POLL.pick(random())
        } else {
            let queue_ttl = self.requested.as_ref().map_or(FIRST_LEASE, |requested| requested.queue_ttl);
            let longest = self.poll_interval().min(queue_ttl.saturating_sub(POLL_INTERVAL) / 2);
            Jitter::new(longest * 4 / 5, longest).pick(random())
        };
        match holder.and_then(|holder| holder.remaining_ms) {
            Some(remaining_ms) if is_first => {
                let expiry = Duration::from_millis(remaining_ms + 1);
                poll_delay.min(expiry + POLL_JITTER.pick(random()))
            }
            _ => poll_delay,
        }
    }

    /// The longest interval until the next poll: longer further back in the queue.
    pub(super) fn poll_interval(&self) -> Duration {
        let steps = self.wait_status.position.unwrap_or(0).min(64);
        let steps = u32::try_from(steps).unwrap_or(64);
        (POLL_INTERVAL + POLL_INTERVAL_STEP * steps).min(MAX_POLL_INTERVAL)
    }
}
