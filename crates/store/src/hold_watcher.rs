//! The receiving end of hints that a hold may be gone.

use leasehold_core::LockName;

/// Receives hints that holds may be gone, before their renewals would find out: see
/// [`Store::watch_holds`](crate::Store::watch_holds).
///
/// A hint proves nothing. It can be late, repeated, forged, or caused by a request of the same client, and it can be
/// missing. A watcher asks the store, and limits how often: a server that runs out of memory for what it remembers gives one
/// hint after the other.
///
/// ```
/// use leasehold::core::LockName;
/// use leasehold::store::HoldWatcher;
/// use std::sync::mpsc;
///
/// /// Forwards the names to a thread that inspects the locks; `None` means all of them.
/// struct Names(mpsc::Sender<Option<LockName>>);
///
/// impl HoldWatcher for Names {
///     fn changed(&self, name: &LockName) {
///         let _ = self.0.send(Some(name.clone()));
///     }
///     fn all_changed(&self) {
///         let _ = self.0.send(None);
///     }
/// }
///
/// let (sender, received) = mpsc::channel();
/// Names(sender).changed(&"orders/42".parse()?); // as a store does when a key of that lock was deleted
/// assert_eq!(received.recv()?, Some("orders/42".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait HoldWatcher: Send + Sync + 'static {
    /// What the store keeps of a lock of this name was changed or removed, by a request that did not come over the
    /// connection that extends the hold. Does not block.
    fn changed(&self, name: &LockName);

    /// Any hold may be gone: all data was removed, or hints may have been missed. Does not block.
    fn all_changed(&self);
}
