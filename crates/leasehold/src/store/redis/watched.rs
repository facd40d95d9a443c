//! A value that tasks wait for.
//!
//! Owns the value, and the waking of those who wait: in the order in which they came, which a `tokio::sync::watch` does
//! not promise. So whoever waited longest for a connection is the first to use it, and a simulated world runs the same
//! each time. What the value means is its user's.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Debug)]
pub(super) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Reads the value. `read` must not wait.
    pub(super) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    pub(super) fn set(&self, value: T) {
        self.modify(|old| {
            *old = value;
            true
        });
    }

    /// Changes the value, and wakes those who wait if `change` says that it has done so.
    pub(super) fn modify(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.lock());
        if changed {
            self.changed.notify_waiters();
        }
    }

    /// Waits until something is found in the value.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(super) async fn wait_for<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            // It hears of every change from here on, also before it is awaited.
            let changed = self.changed.notified();
            let found = find(&self.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // What is done to the value is one assignment.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
