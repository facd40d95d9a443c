//! The notifications that one session has received.

use leasehold_core::{FencingToken, Nonce, Notification, SessionId};
use leasehold_store::NotificationSink;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A grant's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantMessage {
    /// The session.
    pub to: SessionId,
    /// The nonce of the poll that it answers.
    pub nonce: Nonce,
    /// The fencing token of the hold.
    pub fence: FencingToken,
}

/// A mailbox that keeps its notifications.
#[derive(Debug, Default)]
pub struct Inbox {
    unread: Mutex<Vec<GrantMessage>>,
    freed: Mutex<Vec<FencingToken>>,
    wanted: Mutex<Vec<FencingToken>>,
    news: Notify,
}

impl Inbox {
    /// Waits for the next grant.
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

    /// Waits for the next notification of a forced release. Returns the token of the hold.
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

    /// Waits for the next notification that another client waits. Returns the token of the hold.
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

    /// Removes and returns all unread notifications that another client waits.
    pub fn take_wanted(&self) -> Vec<FencingToken> {
        std::mem::take(&mut *of(&self.wanted))
    }

    /// Whether there is no unread message.
    pub fn is_empty(&self) -> bool {
        of(&self.unread).is_empty()
    }
}

/// The first unread notification.
fn first<T>(unread: &Mutex<Vec<T>>) -> Option<T> {
    let mut unread = of(unread);
    if unread.is_empty() { None } else { Some(unread.remove(0)) }
}

fn of<T>(unread: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    unread.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NotificationSink for Inbox {
    fn deliver(&self, wake: Notification) {
        match wake {
            Notification::Grant { to, nonce, fence } => {
                of(&self.unread).push(GrantMessage { to, nonce, fence });
            }
            Notification::ForceReleased { fence, .. } => of(&self.freed).push(fence),
            Notification::Wanted { fence, .. } => of(&self.wanted).push(fence),
            _ => {}
        }
        self.news.notify_one();
    }

    fn resubscribed(&self) {}
}
