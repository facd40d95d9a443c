//! What a server reports about keys that a connection has read (`CLIENT TRACKING`): which of them another client has
//! changed since.
//!
//! Owns the receivers of these reports. [`watch`](crate::store) reads the keys.
//!
//! 1. The server remembers a key only if `CLIENT CACHING YES` went before the command that read it, and forgets it with the
//!    first write, also one of this connection. So each key is read again after each of its extends.
//! 2. A report is a hint. It comes as well for a key that the server had no room to remember, for the same key of another
//!    database, and for all keys if any database was flushed.
//! 3. A waiter is notified of a key at most once per [`NOTIFY_INTERVAL`], however often the key changes.

use super::channels::LockChannels;
use leasehold_core::LockName;
use leasehold_store::{HoldWatcher, Publisher, Subscription};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, PushInfo, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two notifications of a waiter (3): as often as one polls that is not notified.
const NOTIFY_INTERVAL: Duration = Duration::from_millis(50);

/// The receivers of the reports of one store.
pub(crate) struct KeyTracking {
    /// The prefix of all keys.
    prefix: String,
    /// Receives reports about holds, once it is set.
    watcher: OnceLock<Arc<dyn HoldWatcher>>,
    /// The waiters for locks of other libraries' clients, by key.
    waiters: LockChannels,
    /// When the waiters of a key may be notified next (3): those that were notified within the interval.
    paused: Mutex<BTreeMap<String, Pause>>,
    /// Set once it was logged that the server refuses.
    has_warned: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Instant,
    /// Whether a task notifies the waiters then.
    is_scheduled: bool,
}

impl KeyTracking {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            watcher: OnceLock::new(),
            waiters: LockChannels::default(),
            paused: Mutex::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    /// Sets the receiver of reports about holds. Returns whether there was none.
    pub(crate) fn set_watcher(&self, watcher: Arc<dyn HoldWatcher>) -> bool {
        self.watcher.set(watcher).is_ok()
    }

    /// Whether holds are watched.
    pub(crate) fn has_watcher(&self) -> bool {
        self.watcher.get().is_some()
    }

    /// Has the server report to this connection. Returns whether it will.
    pub(crate) async fn start(&self, conn: &mut MultiplexedConnection, node: &str) -> bool {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
        pipeline.add_command(caching());
        let replies = conn.send_packed_commands(&pipeline, 0, pipeline.len()).await;
        let refusal = match &replies {
            Ok(replies) => replies.iter().find_map(|reply| match reply {
                Value::ServerError(error) => Some(error.to_string()),
                _ => None,
            }),
            // The next call finds out that the connection is broken.
            Err(_) => return false,
        };
        let Some(refusal) = refusal else { return true };
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                node,
                "no CLIENT TRACKING, so a removed lock is noticed with its next renewal: {refusal}"
            );
        }
        false
    }

    /// Delivers a report.
    pub(crate) fn deliver(self: &Arc<Self>, push: &PushInfo) {
        match push.data.first() {
            Some(Value::Array(keys)) => {
                for key in keys {
                    if let Value::BulkString(key) = key
                        && let Ok(key) = std::str::from_utf8(key)
                    {
                        self.changed(key);
                    }
                }
            }
            // All of them.
            _ => self.all_changed(),
        }
    }

    /// A key was changed, or may have been.
    pub(crate) fn changed(self: &Arc<Self>, key: &str) {
        if self.waiters.has_subscribers(key) {
            self.notify_waiters(key);
        }
        if let Some(watcher) = self.watcher.get()
            && let Some(Ok(name)) = key.strip_prefix(&self.prefix).map(LockName::new)
        {
            watcher.changed(&name);
        }
    }

    /// Reports may have been missed, or all keys are gone.
    pub(crate) fn all_changed(&self) {
        self.waiters.notify_all();
        if let Some(watcher) = self.watcher.get() {
            watcher.all_changed();
        }
    }

    /// Subscribes to changes of a key. The key must be [read](pipeline) after each notification.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &str) -> Subscription {
        let publisher = Publisher::default();
        let number = self.waiters.add(key, publisher.clone());
        let (tracking, key) = (Arc::downgrade(self), key.to_owned());
        Subscription::new(&publisher, move || {
            if let Some(tracking) = tracking.upgrade() {
                tracking.waiters.remove(&key, number);
            }
        })
    }

    /// Whether a waiter has subscribed to changes of this key.
    pub(crate) fn is_awaited(&self, key: &str) -> bool {
        self.waiters.has_subscribers(key)
    }

    /// Notifies the waiters of a key, now or when the interval is over (3).
    fn notify_waiters(self: &Arc<Self>, key: &str) {
        let now = Instant::now();
        let mut paused = self.paused();
        paused.retain(|_, pause| pause.is_scheduled || now < pause.until);
        let Some(pause) = paused.get_mut(key) else {
            paused.insert(key.to_owned(), Pause { until: now + NOTIFY_INTERVAL, is_scheduled: false });
            drop(paused);
            return self.waiters.notify(key.as_bytes(), b"");
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if std::mem::replace(&mut pause.is_scheduled, true) {
            return;
        }
        let (tracking, key, until) = (Arc::downgrade(self), key.to_owned(), pause.until);
        runtime.spawn(async move {
            tokio::time::sleep_until(until).await;
            let Some(tracking) = tracking.upgrade() else { return };
            let next = Pause { until: Instant::now() + NOTIFY_INTERVAL, is_scheduled: false };
            tracking.paused().insert(key.clone(), next);
            tracking.waiters.notify(key.as_bytes(), b"");
        });
    }

    fn paused(&self) -> MutexGuard<'_, BTreeMap<String, Pause>> {
        // No code panics while it holds this mutex.
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for KeyTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyTracking").field("has_watcher", &self.has_watcher()).finish_non_exhaustive()
    }
}

/// Adds the commands that read these keys, which lie in one slot, and have the server remember them. The second reply is the
/// list of the values.
pub(crate) fn add_read<'a>(pipeline: &mut Pipeline, keys: impl IntoIterator<Item = &'a str>) {
    pipeline.add_command(caching());
    let read = pipeline.cmd("MGET");
    for key in keys {
        read.arg(key);
    }
}

fn caching() -> Cmd {
    let mut cmd = redis::cmd("CLIENT");
    cmd.arg("CACHING").arg("YES");
    cmd
}
