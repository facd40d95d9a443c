//! What came to the mailbox of one session.

use leasehold::store::Postbox;
use leasehold_core::{FencingToken, Nonce, SessionId, Wake};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A grant's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Letter {
    /// Whose mailbox it went to.
    pub to: SessionId,
    /// The nonce of the look that it answers.
    pub nonce: Nonce,
    /// The fencing token of the hold.
    pub fence: FencingToken,
}

/// A mailbox that keeps what comes.
#[derive(Debug, Default)]
pub struct Letters {
    unread: Mutex<Vec<Letter>>,
    freed: Mutex<Vec<FencingToken>>,
    news: Notify,
}

impl Letters {
    /// The next letter, once there is one.
    ///
    /// Cancel safety: no letter is lost.
    pub async fn next(&self) -> Letter {
        loop {
            let news = self.news.notified();
            if let Some(first) = self.first() {
                return first;
            }
            news.await;
        }
    }

    /// Which hold was said to have been ended by force, once one was.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next_freed(&self) -> FencingToken {
        loop {
            let news = self.news.notified();
            if let Some(freed) = self.first_freed() {
                return freed;
            }
            news.await;
        }
    }

    /// Whether there is no unread letter.
    pub fn is_empty(&self) -> bool {
        self.unread().is_empty()
    }

    /// The first unread letter, if there is one.
    fn first(&self) -> Option<Letter> {
        let mut unread = self.unread();
        if unread.is_empty() { None } else { Some(unread.remove(0)) }
    }

    fn first_freed(&self) -> Option<FencingToken> {
        let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
        if freed.is_empty() { None } else { Some(freed.remove(0)) }
    }

    fn unread(&self) -> MutexGuard<'_, Vec<Letter>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Postbox for Letters {
    fn deliver(&self, wake: Wake) {
        match wake {
            Wake::Grant { to, nonce, fence } => self.unread().push(Letter { to, nonce, fence }),
            Wake::Freed { fence, .. } => {
                self.freed.lock().unwrap_or_else(PoisonError::into_inner).push(fence);
            }
            _ => {}
        }
        self.news.notify_one();
    }

    fn renewed(&self) {}
}
