//! A value that tasks wait for.
//!
//! Owns the value, and the waking of those who wait: in the order in which they came, which a `tokio::sync::watch` does
//! not promise. So whoever waited longest for a connection is the first to use it, and a simulated world runs the same
//! each time. What the value means is its user's.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A value, and the tasks that wait for it to change.
#[derive(Debug)]
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    /// This value, for which no task waits yet.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Reads the value. `read` must not wait.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    /// Replaces the value, and wakes all tasks that wait.
    pub fn set(&self, value: T) {
        self.modify(|old| {
            *old = value;
            true
        });
    }

    /// Changes the value, and wakes those who wait if `change` says that it has done so.
    pub fn modify(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.lock());
        if changed {
            self.changed.notify_waiters();
        }
    }

    /// Waits until something is found in the value.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn wait_for<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> R {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn who_waits_is_woken_in_the_order_in_which_he_came() {
        let (watched, order) = (Arc::new(Watched::new(false)), Arc::new(Mutex::new(Vec::new())));
        let wait = |number| {
            let (watched, order) = (Arc::clone(&watched), Arc::clone(&order));
            tokio::spawn(async move {
                watched.wait_for(|set| set.then_some(())).await;
                order.lock().unwrap_or_else(PoisonError::into_inner).push(number);
            })
        };
        let waiting: Vec<_> = (0..20).map(wait).collect();
        tokio::task::yield_now().await; // until all of them wait
        watched.modify(|_| false);
        watched.set(true);
        for task in waiting {
            task.await.expect("it does not panic");
        }
        assert_eq!(*order.lock().unwrap_or_else(PoisonError::into_inner), (0..20).collect::<Vec<_>>());
    }
}
