//! Subscriptions: notifications that a lock was released to clients that do not queue, or that an Election has another
//! leader.
//!
//! Owns the notification and the end of a subscription. The source of the messages is up to the store.
//!
//! 1. A notification is a hint that something changed, not what. The subscriber re-checks. On a node of a quorum it may
//!    name the next waiter, which is a hint as well.
//! 2. No notification is lost silently: one that arrives while the subscriber does not wait is delivered at its next
//!    wait, once.

use crate::sync::{Mutex, Notify};
use leasehold_core::SessionId;
use std::fmt;
use std::sync::{Arc, PoisonError};

/// A subscription to a lock's notifications, which ends when this is dropped: see
/// [`Store::subscribe`](super::Store::subscribe).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use leasehold::store::{Publisher, Subscription};
///
/// let publisher = Publisher::default(); // a store keeps it, and calls `notify` for each message
/// let mut subscription = Subscription::new(&publisher, || println!("the subscription has ended"));
/// publisher.notify();
/// publisher.notify();
/// subscription.notified().await; // covers both: re-check the lock now
/// # }
/// ```
pub struct Subscription {
    publisher: Publisher,
    /// Ends the subscription; `None` only during drop.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// The sending side of a [`Subscription`], for a store. Clones notify the same subscription.
///
/// [`Subscription`] shows it in use.
#[derive(Clone, Default)]
pub struct Publisher(Arc<Shared>);

#[derive(Default)]
struct Shared {
    changed: Notify,
    next_waiter: Mutex<Option<SessionId>>,
}

impl Publisher {
    /// Notifies the subscription of a possible change. Notifications before the next wait are merged. Does not block.
    pub fn notify(&self) {
        self.0.changed.notify_one();
    }

    /// Notifies the subscription of a release that named this session as the next waiter. Of merged notifications the last
    /// name counts.
    pub fn notify_next(&self, waiter: SessionId) {
        *self.0.next_waiter.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiter);
        self.notify();
    }
}

impl Subscription {
    /// Creates a subscription to this publisher. `end` is called when it is dropped, and must not block.
    pub fn new(publisher: &Publisher, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { publisher: publisher.clone(), end: Some(Box::new(end)) }
    }

    /// Waits until there was a notification since the last time, or one may have been missed: it also returns once
    /// after each reconnection.
    ///
    /// Cancel safety: a notification is delivered to the next call.
    pub async fn notified(&mut self) {
        self.publisher.0.changed.notified().await;
    }

    /// The waiter that a notification since the last call named as the next one, if one did.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use leasehold::store::{Publisher, Subscription};
    /// use leasehold_core::SessionId;
    ///
    /// let publisher = Publisher::default();
    /// let mut subscription = Subscription::new(&publisher, || {});
    /// let session = SessionId::from_random([7; 12]);
    /// publisher.notify_next(session);
    /// subscription.notified().await;
    /// assert_eq!(subscription.take_next(), Some(session));
    /// assert_eq!(subscription.take_next(), None);
    /// # }
    /// ```
    pub fn take_next(&mut self) -> Option<SessionId> {
        self.publisher.0.next_waiter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_notification_is_delivered_once_and_not_lost_with_a_future() {
        let ended = Arc::new(AtomicU32::new(0));
        let publisher = Publisher::default();
        let end = Arc::clone(&ended);
        let mut subscription = Subscription::new(&publisher, move || {
            end.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(subscription.notified().now_or_never(), None);
        publisher.notify();
        publisher.notify();
        assert_eq!(subscription.notified().now_or_never(), Some(()));
        assert_eq!(subscription.notified().now_or_never(), None);

        // A future that is dropped after it was woken does not consume the notification.
        let mut waiting = Box::pin(subscription.notified());
        assert!((&mut waiting).now_or_never().is_none());
        publisher.notify();
        drop(waiting);
        assert_eq!(subscription.notified().now_or_never(), Some(()));

        drop(subscription);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }
}
