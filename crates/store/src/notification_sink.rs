//! Where a store delivers the messages to a session.

use leasehold_core::Notification;

/// Where a session's grants go.
///
/// ```
/// use leasehold::core::{FencingToken, Nonce, SessionId, Notification};
/// use leasehold::store::NotificationSink;
/// use std::sync::mpsc;
///
/// /// Hands messages on to a thread; nothing means that it has to look for itself.
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
/// Slot(sender).deliver(notification); // as a store does, to which this message came
/// assert_eq!(received.recv()?, Some(notification));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait NotificationSink: Send + Sync + 'static {
    /// A message has come. Does not block.
    fn deliver(&self, notification: Notification);

    /// Messages may have been missed: the mailbox was opened anew. Does not block.
    fn resubscribed(&self);
}
