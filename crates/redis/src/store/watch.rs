//! Reading the keys of locks, so that the server reports their changes: after an extend, and for a waiter.
//!
//! [`tracking`](crate::conn::tracking) receives the reports.
//!
//! 1. A key is read after the request that may have written it, so what is reported from then on is a change by another
//!    client. What has changed in between shows in the value.
//! 2. Nothing depends on this: if a key cannot be read, the next renewal, or the next poll of the waiter, finds out.

use super::call_target::CallTarget;
use super::{Backend, RedisStore};
use crate::conn::tracking::{self, KeyTracking};
use futures_util::future::join_all;
use leasehold_core::{Acquired, Extended, Kind, Lock, LockKeys, Op, Reply};
use leasehold_store::{Outcome, Subscription};
use redis::{Pipeline, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::Instant;

/// How many keys one command reads at most.
const MAX_KEYS: usize = 64;

/// A key to read.
struct Watched {
    keys: LockKeys,
    /// The value that it has unless it was changed, if that is known; otherwise the key exists.
    value: Option<String>,
}

impl RedisStore {
    pub(super) fn tracking(&self) -> Option<&Arc<KeyTracking>> {
        match &*self.backend {
            Backend::Link(link) => link.tracking(),
            Backend::Cluster(cluster) => cluster.tracking(),
            Backend::Borrowed(_) => None,
        }
    }

    /// Watches the locks that were extended.
    pub(super) async fn watch_extended(&self, ops: &[(Lock, Op)], outcomes: &[Outcome], deadline: Instant) {
        let Some(tracking) = self.tracking().filter(|tracking| tracking.has_watcher()) else { return };
        let done = ops.iter().zip(outcomes);
        let watched: Vec<_> =
            done.filter_map(|((lock, op), outcome)| self.extended(lock, op, outcome)).collect();
        self.watch(tracking, &watched, deadline).await;
    }

    /// Watches a lock that was extended, or that a waiter did not get.
    pub(super) async fn watch_one(&self, lock: &Lock, op: &Op, outcome: &Outcome, deadline: Instant) {
        let Some(tracking) = self.tracking() else { return };
        let watched = match op {
            Op::Extend(_) if tracking.has_watcher() => self.extended(lock, op, outcome),
            Op::Acquire(_) => self.awaited(tracking, lock, outcome),
            _ => None,
        };
        self.watch(tracking, watched.as_slice(), deadline).await;
    }

    /// Subscribes to changes of the key of a Mutex, if the server reports them.
    pub(super) fn subscribe_to_key(&self, kind: Kind, keys: &LockKeys) -> Option<Subscription> {
        let tracking = self.tracking().filter(|_| kind == Kind::Mutex)?;
        let is_tracking = self.ready(keys.slot()).is_some_and(|target| target.is_tracking());
        is_tracking.then(|| tracking.subscribe(keys.name()))
    }

    /// A lock that was extended.
    fn extended(&self, lock: &Lock, op: &Op, outcome: &Outcome) -> Option<Watched> {
        let (Op::Extend(extend), Outcome::Done(Reply::Extend(extended))) = (op, outcome) else { return None };
        if !lock.kind.is_plain_string() || *extended == Extended::NotHeld {
            return None;
        }
        Some(Watched { keys: self.keys.lock(lock).ok()?, value: Some(lock.kind.token(&extend.claim)) })
    }

    /// A lock whose waiters are to be notified.
    fn awaited(&self, tracking: &KeyTracking, lock: &Lock, outcome: &Outcome) -> Option<Watched> {
        let Outcome::Done(Reply::Acquire(Acquired::Taken { .. })) = outcome else { return None };
        let keys = self.keys.lock(lock).ok().filter(|keys| tracking.is_awaited(keys.name()))?;
        Some(Watched { keys, value: None })
    }

    /// The connection to the node that serves `slot`, if there is one.
    fn ready(&self, slot: u16) -> Option<CallTarget<'_>> {
        match &*self.backend {
            Backend::Link(link) => Some(CallTarget::Link(link, link.ready()?)),
            Backend::Cluster(cluster) => {
                let node = cluster.known_node(slot)?;
                let connection = node.link.ready()?;
                Some(CallTarget::Node(node, Some(connection)))
            }
            Backend::Borrowed(_) => None,
        }
    }

    /// Reads the keys of locks, and reports those that have changed (1).
    async fn watch(&self, tracking: &Arc<KeyTracking>, watched: &[Watched], deadline: Instant) {
        // A command reads keys of one slot.
        let mut by_slot: BTreeMap<u16, Vec<&Watched>> = BTreeMap::new();
        for one in watched {
            let slot = self.cluster().map_or(0, |_| one.keys.slot());
            by_slot.entry(slot).or_default().push(one);
        }
        let mut by_node: BTreeMap<Arc<str>, (CallTarget<'_>, Vec<&[&Watched]>)> = BTreeMap::new();
        for (slot, watched) in &by_slot {
            let Some(target) = self.ready(*slot).filter(CallTarget::is_tracking) else { continue };
            let node = match &target {
                CallTarget::Node(node, _) => Arc::clone(node.name()),
                CallTarget::Link(..) | CallTarget::Borrowed(_) => Arc::clone(self.node()),
            };
            let (_, chunks) = by_node.entry(node).or_insert_with(|| (target, Vec::new()));
            chunks.extend(watched.chunks(MAX_KEYS));
        }
        let reads = by_node.into_values().map(|(target, chunks)| read(tracking, target, chunks, deadline));
        join_all(reads).await;
    }
}

/// Reads keys of one node.
async fn read(
    tracking: &Arc<KeyTracking>,
    mut target: CallTarget<'_>,
    chunks: Vec<&[&Watched]>,
    deadline: Instant,
) {
    let mut pipeline = Pipeline::with_capacity(2 * chunks.len());
    for chunk in &chunks {
        tracking::add_read(&mut pipeline, chunk.iter().map(|one| one.keys.name()));
    }
    let Ok(replies) = target.send_all(&pipeline, deadline).await else { return };
    for (chunk, reply) in chunks.iter().zip(replies.chunks(2)) {
        let [_, Value::Array(values)] = reply else { continue };
        for (one, value) in chunk.iter().zip(values) {
            if !one.is_unchanged(value) {
                tracking.changed(one.keys.name());
            }
        }
    }
}

impl Watched {
    fn is_unchanged(&self, found: &Value) -> bool {
        match (&self.value, found) {
            (Some(value), Value::BulkString(found)) => value.as_bytes() == found,
            (value, found) => value.is_none() && !matches!(found, Value::Nil),
        }
    }
}
