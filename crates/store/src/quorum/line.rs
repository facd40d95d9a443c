//! The order of the waiters of a lock: a hint, which lets none of them wait for long, and saves attempts that would split
//! the votes. The votes alone decide.
//!
//! 1. A waiter joins a line at each node, with the time that it has waited, so the lines agree but for the time that a
//!    message takes. It joins again now and then, in case a node has lost its line or named it in vain.
//! 2. A release names the first in the line. That waiter attempts at once, and the others only [`TURN`] later, or when
//!    the next release names them. Nodes that do not agree on the first waiter cost an attempt.
//! 3. A client whose release has named another one stands back for a moment if it requests the lock again: its request
//!    would arrive before the message does.

use super::{BackgroundTasks, QuorumStore, SUBSCRIBE_TIMEOUT};
use crate::store::Store;
use crate::subscription::Publisher;
use crate::sync::Mutex;
use leasehold_core::{Kind, Lock, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// How long the waiter that was named has for its attempt before others attempt: that long, plus a random part of
/// [`TURN_JITTER`].
const TURN: Duration = Duration::from_millis(10);
const TURN_JITTER: Duration = Duration::from_millis(10);
/// How long a client stands back after a release that has named another one (3).
const STAND_BACK: Duration = Duration::from_millis(5);
/// How long the message of one node is held back, until other nodes have freed the lock as well.
const RELAY_DELAY: Duration = Duration::from_millis(1);
/// A random part of this is added where no waiter is named, so that they do not all attempt at the same moment.
const RELAY_JITTER: Duration = Duration::from_millis(7);
/// When a waiter joins the line again: always, and after it was named.
const JOIN_INTERVAL: Duration = Duration::from_millis(300);
const JOIN_AFTER_TURN: Duration = Duration::from_millis(20);
/// A lock is forgotten when this client has not contended for it for so long, once at least so many are known.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);
const MIN_SWEPT: usize = 64;

/// The locks for which this client has contended of late.
#[derive(Debug, Clone, Default)]
pub(super) struct Contention(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    locks: HashMap<Lock, Contended>,
    /// How many there were after the last sweep: the next one is due when there are twice as many.
    swept: usize,
}

#[derive(Debug)]
struct Contended {
    /// The session that did not get the lock last.
    session: Option<SessionId>,
    /// The session whose release has named another waiter last, and when it did.
    released: Option<(SessionId, Instant)>,
    noted_at: Instant,
}

impl Contention {
    /// The lock was taken when this session requested it.
    pub(super) fn lost(&self, lock: &Lock, session: SessionId, now: Instant) {
        self.note(lock, now, |contended| contended.session = Some(session));
    }

    /// This session has released the lock, and another one waits for it.
    pub(super) fn released_to_waiters(&self, lock: &Lock, session: SessionId, now: Instant) {
        self.note(lock, now, |contended| contended.released = Some((session, now)));
    }

    /// How long this session stands back before it requests the lock (3).
    pub(super) fn stand_back(&self, lock: &Lock, session: SessionId, now: Instant) -> Duration {
        let released = self.with(|table| table.locks.get(lock).and_then(|contended| contended.released));
        let own = released.filter(|(by, _)| *by == session);
        own.map_or(Duration::ZERO, |(_, at)| (at + STAND_BACK).saturating_duration_since(now))
    }

    fn session(&self, lock: &Lock) -> Option<SessionId> {
        self.with(|table| table.locks.get(lock).and_then(|contended| contended.session))
    }

    fn note(&self, lock: &Lock, now: Instant, change: impl FnOnce(&mut Contended)) {
        self.with(|table| {
            if !table.locks.contains_key(lock) && table.locks.len() >= (table.swept * 2).max(MIN_SWEPT) {
                table.locks.retain(|_, contended| now - contended.noted_at < FORGOTTEN_AFTER);
                table.swept = table.locks.len();
            }
            let new = Contended { session: None, released: None, noted_at: now };
            let contended = table.locks.entry(lock.clone()).or_insert(new);
            contended.noted_at = now;
            change(contended);
        });
    }

    fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        // No code panics between two changes that belong together.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The notification of a node.
pub(super) struct NodeNotification {
    node: usize,
    /// The waiter that the release named.
    next: Option<SessionId>,
}

/// Keeps a waiter in the line, and notifies it when it is to attempt.
pub(super) struct Relay {
    nodes: Arc<[Arc<dyn Store>]>,
    needed: usize,
    node_timeout: Duration,
    background: BackgroundTasks,
    lock: Lock,
    /// The session that waits. Without one the waiter has no place in the line.
    session: Option<SessionId>,
    waiter: Publisher,
    since: Instant,
    /// The nodes that have sent a notification: at the others it could be named, and not learn of it.
    heard: u32,
    join_at: Instant,
    turn: Turn,
}

/// When the waiter is to attempt.
#[derive(Debug, Default)]
struct Turn {
    due: Option<Instant>,
    /// When the first message arrived that named a waiter for the last release. Those of the other nodes follow within a
    /// [`TURN`].
    released_at: Option<Instant>,
    /// The nodes that have named this waiter for that release.
    named_by: u32,
}

impl Relay {
    pub(super) fn new(quorum: &QuorumStore, lock: Lock, waiter: Publisher) -> Self {
        let QuorumStore { nodes, node_timeout, background, contention, .. } = quorum;
        let (nodes, background, session) = (nodes.clone(), background.clone(), contention.session(&lock));
        // The releases of other kinds name no waiter.
        let session = session.filter(|_| lock.kind == Kind::Mutex);
        let (needed, node_timeout, since) = (quorum.needed(), *node_timeout, Instant::now());
        let (join_at, heard, turn) = (since + JOIN_INTERVAL, 0, Turn::default());
        Self { nodes, needed, node_timeout, background, lock, session, waiter, since, heard, join_at, turn }
    }

    pub(super) async fn run(mut self, mut notifications: mpsc::UnboundedReceiver<NodeNotification>) {
        loop {
            let wake_at = self.turn.due.map_or(self.join_at, |due| due.min(self.join_at));
            let received = timeout_at(wake_at, notifications.recv()).await;
            let now = Instant::now();
            match received {
                Ok(Some(notification)) => self.note(&notification, now),
                Ok(None) => return,
                Err(_) => {}
            }
            if self.turn.due.take_if(|due| *due <= now).is_some() {
                self.waiter.notify();
            }
            if self.join_at <= now {
                self.join_at = now + JOIN_INTERVAL;
                self.join(now).await;
            }
        }
    }

    fn note(&mut self, notification: &NodeNotification, now: Instant) {
        let NodeNotification { node, next } = *notification;
        if self.heard & 1 << node == 0 {
            self.heard |= 1 << node;
            self.join_at = self.join_at.min(now + RELAY_DELAY);
        }
        match next {
            Some(next) if self.session == Some(next) => {
                self.turn.named(node, self.needed, now);
                self.join_at = now + JOIN_AFTER_TURN;
            }
            Some(_) => self.turn.another_was_named(now, random_part(TURN_JITTER)),
            None => self.turn.released(now, random_part(RELAY_JITTER)),
        }
    }

    /// Joins the line at each node that has sent a notification (1). Nothing waits for that.
    async fn join(&self, now: Instant) {
        let Some(session) = self.session else { return };
        let (waited, within) = (now - self.since, self.node_timeout);
        let heard = self.nodes.iter().enumerate().filter(|(at, _)| self.heard & 1 << at != 0);
        for (_, node) in heard {
            let (node, lock) = (node.clone(), self.lock.clone());
            self.background.begin(async move { node.join_line(&lock, session, waited, within).await }).await;
        }
    }
}

impl Turn {
    /// A node has named this waiter. It attempts once a majority has, because the lock is free at those nodes, or
    /// [`RELAY_DELAY`] after the first (2).
    fn named(&mut self, node: usize, needed: usize, now: Instant) {
        let first = self.begin_release(now);
        let before = self.named_by.count_ones() as usize;
        self.named_by |= 1 << node;
        if before < needed {
            let is_free = self.named_by.count_ones() as usize >= needed;
            self.due = Some(if is_free { now } else { first + RELAY_DELAY });
        }
    }

    /// A node has named another waiter. A node that names this one for the same release counts for more.
    fn another_was_named(&mut self, now: Instant, jitter: Duration) {
        self.begin_release(now);
        if self.named_by == 0 {
            self.due = Some(now + TURN + jitter);
        }
    }

    /// A node has named no waiter, or a message may have been missed. Further notifications meanwhile lead to the same
    /// attempt, and a node that names a waiter for the same release counts for more.
    fn released(&mut self, now: Instant, jitter: Duration) {
        if self.is_same_release(now) {
            return;
        }
        let due = now + RELAY_DELAY + jitter;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Returns when the first message about the release arrived that the present message is about.
    fn begin_release(&mut self, now: Instant) -> Instant {
        if !self.is_same_release(now) {
            (self.released_at, self.named_by) = (Some(now), 0);
        }
        self.released_at.unwrap_or(now)
    }

    fn is_same_release(&self, now: Instant) -> bool {
        self.released_at.is_some_and(|first| now - first < TURN)
    }
}

fn random_part(of: Duration) -> Duration {
    of.mul_f64(f64::from(rand::random::<u16>()) / f64::from(u16::MAX))
}

/// Forwards a node's notifications. A failed subscription is retried now and then; nothing waits for it.
pub(super) async fn forward_node(
    at: usize,
    node: Arc<dyn Store>,
    lock: Lock,
    relay: mpsc::UnboundedSender<NodeNotification>,
) {
    // The relay ends with this task.
    let forward = |next| drop(relay.send(NodeNotification { node: at, next }));
    loop {
        match node.subscribe(&lock, SUBSCRIBE_TIMEOUT).await {
            Ok(Some(mut subscription)) => {
                // Re-check for what was published before.
                forward(None);
                loop {
                    subscription.notified().await;
                    forward(subscription.take_next());
                }
            }
            Ok(None) => return,
            Err(_) => tokio::time::sleep(SUBSCRIBE_TIMEOUT).await,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
