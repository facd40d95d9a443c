//! What came to the mailbox of one session.

use leasehold::store::Postbox;
use leasehold_core::Wake;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A mailbox that keeps what comes.
#[derive(Debug, Default)]
pub struct Letters {
    unread: Mutex<Vec<Wake>>,
    news: Notify,
}

impl Letters {
    /// The next letter, once there is one.
    ///
    /// Cancel safety: no letter is lost.
    pub async fn next(&self) -> Wake {
        loop {
            let news = self.news.notified();
            if let Some(first) = self.first() {
                return first;
            }
            news.await;
        }
    }

    /// Whether there is no unread letter.
    pub fn is_empty(&self) -> bool {
        self.unread().is_empty()
    }

    /// The first unread letter, if there is one.
    fn first(&self) -> Option<Wake> {
        let mut unread = self.unread();
        if unread.is_empty() { None } else { Some(unread.remove(0)) }
    }

    fn unread(&self) -> MutexGuard<'_, Vec<Wake>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Postbox for Letters {
    fn deliver(&self, wake: Wake) {
        self.unread().push(wake);
        self.news.notify_one();
    }

    fn renewed(&self) {}
}
