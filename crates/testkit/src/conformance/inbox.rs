//! What came to the mailbox of one session.

use leasehold_core::{FencingToken, Nonce, SessionId, Wake};
use leasehold_store::Postbox;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A grant's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantMessage {
    /// Whose mailbox it went to.
    pub to: SessionId,
    /// The nonce of the look that it answers.
    pub nonce: Nonce,
    /// The fencing token of the hold.
    pub fence: FencingToken,
}

/// A mailbox that keeps what comes.
#[derive(Debug, Default)]
pub struct Inbox {
    unread: Mutex<Vec<GrantMessage>>,
    freed: Mutex<Vec<FencingToken>>,
    wanted: Mutex<Vec<FencingToken>>,
    news: Notify,
}

impl Inbox {
    /// The next message, once there is one.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next(&self) -> GrantMessage {
        loop {
            let news = self.news.notified();
            if let Some(message) = first(&self.unread) {
                return message;
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
            if let Some(freed) = first(&self.freed) {
                return freed;
            }
            news.await;
        }
    }

    /// Which hold others were said to ask for, once they did.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next_wanted(&self) -> FencingToken {
        loop {
            let news = self.news.notified();
            if let Some(wanted) = first(&self.wanted) {
                return wanted;
            }
            news.await;
        }
    }

    /// Which holds others were said to ask for so far, and nobody has read.
    pub fn take_wanted(&self) -> Vec<FencingToken> {
        std::mem::take(&mut *of(&self.wanted))
    }

    /// Whether there is no unread message.
    pub fn is_empty(&self) -> bool {
        of(&self.unread).is_empty()
    }
}

/// The first of those that nobody has read, if there is one.
fn first<T>(unread: &Mutex<Vec<T>>) -> Option<T> {
    let mut unread = of(unread);
    if unread.is_empty() { None } else { Some(unread.remove(0)) }
}

fn of<T>(unread: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Postbox for Inbox {
    fn deliver(&self, wake: Wake) {
        match wake {
            Wake::Grant { to, nonce, fence } => of(&self.unread).push(GrantMessage { to, nonce, fence }),
            Wake::Freed { fence, .. } => of(&self.freed).push(fence),
            Wake::Wanted { fence, .. } => of(&self.wanted).push(fence),
            _ => {}
        }
        self.news.notify_one();
    }

    fn renewed(&self) {}
}
