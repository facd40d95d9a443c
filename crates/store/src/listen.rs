//! Hearing what clients of other libraries say when they release a lock, and that an Election has another leader.
//!
//! Owns what is heard, and the end of the hearing. Where the messages come from is a store's.
//!
//! 1. A message is a hint: that something was said, not what. Whoever hears it looks.
//! 2. Nothing is missed silently: what was said while nobody waited is heard by the next who does, once.

use crate::sync::Notify;
use std::fmt;
use std::sync::Arc;

/// Somebody listens to a lock's clients of other libraries until this is dropped: see [`Store::listen`](crate::Store::listen).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use leasehold::store::{Bell, Listening};
///
/// let bell = Bell::default(); // a store has it, and rings it at each message
/// let mut listening = Listening::new(&bell, || println!("nobody listens any more"));
/// bell.ring();
/// bell.ring();
/// listening.heard().await; // for both: time to look how the lock stands
/// # }
/// ```
pub struct Listening {
    bell: Bell,
    /// What ends it; `None` only while it is dropped.
    end: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// By which a store says that something was said. Clones are the same bell.
///
/// [`Listening`] shows it in use.
#[derive(Clone, Default)]
pub struct Bell(Arc<Notify>);

impl Bell {
    /// Something was said, or may have been: it is heard once, however often that comes before. Does not block.
    pub fn ring(&self) {
        self.0.notify_one();
    }
}

impl Listening {
    /// Hears this bell. `end` is called when it is dropped, and must not block.
    pub fn new(bell: &Bell, end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self { bell: bell.clone(), end: Some(Box::new(end)) }
    }

    /// Waits until something was said since the last time, or may have been: also once after each new subscription.
    ///
    /// Cancel safety: what was said is heard by the next call.
    pub async fn heard(&mut self) {
        self.bell.0.notified().await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(end) = self.end.take() {
            end();
        }
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_was_said_is_heard_once_and_not_lost_with_a_future() {
        let ended = Arc::new(AtomicU32::new(0));
        let bell = Bell::default();
        let end = Arc::clone(&ended);
        let mut listening = Listening::new(&bell, move || {
            end.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(listening.heard().now_or_never(), None);
        bell.ring();
        bell.ring();
        assert_eq!(listening.heard().now_or_never(), Some(()));
        assert_eq!(listening.heard().now_or_never(), None);

        // A future that is dropped after it was woken takes nothing with it.
        let mut waiting = Box::pin(listening.heard());
        assert!((&mut waiting).now_or_never().is_none());
        bell.ring();
        drop(waiting);
        assert_eq!(listening.heard().now_or_never(), Some(()));

        drop(listening);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }
}
