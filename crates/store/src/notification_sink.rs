//! The receiving end of a session's mailbox.

use leasehold_core::Notification;

/// Receives the notifications for a session.
///
/// ```
/// use leasehold::core::{FencingToken, Nonce, SessionId, Notification};
/// use leasehold::store::NotificationSink;
/// use std::sync::mpsc;
///
/// /// Forwards notifications to a thread; `None` means that it has to poll.
/// struct Slot(mpsc::Sender<Option<Notification>>);
///
/// impl NotificationSink for Slot {
///     fn deliver(&self, notification: Notification) {
///         let _ = self.0.send(Some(notification));
///     }
///     fn resubscribed(&self) {
///         let _ = self.0.send(None);
///     }
/// }
///
/// let (sender, received) = mpsc::channel();
/// let to = SessionId::from_random([7; 12]);
/// let notification = Notification::Grant { to, nonce: Nonce::new(0, 77), fence: FencingToken::new(4711) };
/// Slot(sender).deliver(notification); // as a store does when a notification arrives
/// assert_eq!(received.recv()?, Some(notification));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait NotificationSink: Send + Sync + 'static {
    /// A notification has arrived. Does not block.
    ///
    /// Notifications of two operations on one lock arrive in their order, if the second began after the first had returned. A
    /// reconnect, or a slot that moves to another node, can change the order.
    fn deliver(&self, notification: Notification);

    /// Notifications may have been missed: the mailbox was reopened. Does not block.
    fn resubscribed(&self);
}
