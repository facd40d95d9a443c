//! A value that tasks wait for.
//!
//! Owns the value and the waking of waiters, in order of arrival, which `tokio::sync::watch` does not guarantee. So
//! the longest waiter for a connection uses it first, and a simulation is deterministic. What the value means is up
//! to its user.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A value, and the tasks that wait for it to change.
#[derive(Debug)]
pub struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    /// Creates a value for which no task waits yet.
    pub fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Reads the value. `read` must not wait.
    pub fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.lock())
    }

    /// Replaces the value, and wakes all waiters.
    pub fn set(&self, value: T) {
        self.modify(|old| {
            *old = value;
            true
        });
    }

    /// Changes the value, and wakes all waiters if `change` returns true.
    pub fn modify(&self, change: impl FnOnce(&mut T) -> bool) {
        let changed = change(&mut self.lock());
        if changed {
            self.changed.notify_waiters();
        }
    }

    /// Waits until `find` returns something.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub async fn wait_for<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            // Registered for every change from here on, even before it is awaited.
            let changed = self.changed.notified();
            let found = find(&self.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // Every change to the value is a single assignment.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn waiters_are_woken_in_order_of_arrival() {
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
