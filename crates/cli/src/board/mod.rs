//! The locks of a store as a web page: what `leasehold board` serves.
//!
//! Owns the HTTP server, which requests it answers (`access`), and what the page is sent. Reads of the store belong to `fleet`, but for a
//! single lock's page.
//!
//! 1. What a message, a stream, all connections and the charts can take is bounded. A slow reader receives the newest state,
//!    and no queue grows for it.
//! 2. The host of each request is checked before anything else; a request that changes something also needs the origin of the
//!    page and a content type that no form can send.
//! 3. No text of a client is ever markup: the server sends JSON, and the page sets texts and nothing else.
//! 4. A lock is freed only as it was shown: the request names the fencing token.

mod access;
mod assets;
mod charts;
mod connections;
mod free;
mod graph_layout;
mod lock_page;
mod query;
mod routes;
mod snapshot;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use access::{Access, MIN_TOKEN, random_token};

use crate::fleet::{Fleet, FleetWatch};
use charts::Charts;
use leasehold::Client;
use leasehold::core::Lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::sleep;

/// How many streams are open at a time: one a visible page.
const MAX_STREAMS: usize = 32;
/// The pause between two messages of a stream.
const PACE: Duration = Duration::from_secs(1);

/// What all requests share.
pub(crate) struct Board {
    /// Reads single locks, and frees them.
    client: Client,
    access: Access,
    /// The servers of the store, for the head of the page.
    store: String,
    fleet: watch::Sender<Arc<Fleet>>,
    charts: Mutex<Charts>,
    streams: Arc<Semaphore>,
    shown: ShownLocks,
    pace: Duration,
}

impl Board {
    pub(crate) fn new(client: Client, access: Access, store: String) -> Arc<Self> {
        Self::with_pace(client, access, store, PACE)
    }

    fn with_pace(client: Client, access: Access, store: String, pace: Duration) -> Arc<Self> {
        Arc::new(Self {
            client,
            access,
            store,
            fleet: watch::Sender::new(Arc::default()),
            charts: Mutex::new(Charts::new()),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            shown: ShownLocks::default(),
            pace,
        })
    }

    /// Shows a fleet, and has it looked at what the pages show, until the future is dropped.
    pub(crate) async fn follow(&self, mut watch: FleetWatch) {
        self.publish(watch.fleet());
        loop {
            tokio::select! {
                fleet = watch.changed() => self.publish(fleet),
                () = self.shown.changed.notified() => watch.look_at(self.shown.all()),
                // The charts go on while nothing changes.
                () = sleep(charts::INTERVAL) => self.publish(watch.fleet()),
            }
        }
    }

    /// Makes this the state that the pages show.
    fn publish(&self, fleet: Arc<Fleet>) {
        self.charts.lock().unwrap_or_else(PoisonError::into_inner).record(&fleet);
        self.fleet.send_replace(fleet);
    }

    /// Serves the page, until the future is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        connections::accept(listener, routes::router(self)).await;
    }
}

/// The locks that are in the tables of the open pages.
#[derive(Default)]
struct ShownLocks {
    next: AtomicU64,
    by_stream: Mutex<HashMap<u64, Vec<Lock>>>,
    changed: Notify,
}

impl ShownLocks {
    fn new_stream(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Replaces the locks of a stream.
    fn set(&self, stream: u64, locks: &[Lock]) {
        let mut by_stream = self.by_stream.lock().unwrap_or_else(PoisonError::into_inner);
        let old = if locks.is_empty() {
            by_stream.remove(&stream).unwrap_or_default()
        } else if by_stream.get(&stream).is_some_and(|old| old == locks) {
            return;
        } else {
            by_stream.insert(stream, locks.to_vec()).unwrap_or_default()
        };
        if old != locks {
            self.changed.notify_one();
        }
    }

    fn all(&self) -> Vec<Lock> {
        let by_stream = self.by_stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = by_stream.values().flatten().cloned().collect();
        all.sort_by(|a, b| (a.name.as_str(), a.kind.as_str()).cmp(&(b.name.as_str(), b.kind.as_str())));
        all.dedup();
        all
    }
}
