//! The notifications that one session has received.

use leasehold_core::{FencingToken, Nonce, Notification, SessionId};
use leasehold_store::NotificationSink;
use std::collections::VecDeque;
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
    unread: Mutex<Unread>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct Unread {
    grants: VecDeque<GrantMessage>,
    /// The tokens of holds that were released by force.
    force_released: VecDeque<FencingToken>,
    /// The tokens of holds for which another client waits.
    wanted: VecDeque<FencingToken>,
}

impl Inbox {
    /// Waits for the next grant.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next_grant(&self) -> GrantMessage {
        self.next(|unread| unread.grants.pop_front()).await
    }

    /// Waits for the next notification of a forced release. Returns the token of the hold.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next_force_release(&self) -> FencingToken {
        self.next(|unread| unread.force_released.pop_front()).await
    }

    /// Waits for the next notification that another client waits. Returns the token of the hold.
    ///
    /// Cancel safety: no message is lost.
    pub async fn next_wanted(&self) -> FencingToken {
        self.next(|unread| unread.wanted.pop_front()).await
    }

    /// Removes and returns all unread notifications that another client waits.
    pub fn take_wanted(&self) -> Vec<FencingToken> {
        self.unread().wanted.drain(..).collect()
    }

    /// Whether there is no unread grant.
    pub fn is_empty(&self) -> bool {
        self.unread().grants.is_empty()
    }

    /// How many notifications are unread.
    pub fn unread_count(&self) -> usize {
        let unread = self.unread();
        unread.grants.len() + unread.force_released.len() + unread.wanted.len()
    }

    async fn next<T>(&self, pop: impl Fn(&mut Unread) -> Option<T>) -> T {
        loop {
            let arrived = self.arrived.notified();
            let next = pop(&mut self.unread());
            if let Some(next) = next {
                return next;
            }
            arrived.await;
        }
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NotificationSink for Inbox {
    fn deliver(&self, notification: Notification) {
        match notification {
            Notification::Grant { to, nonce, fence } => {
                self.unread().grants.push_back(GrantMessage { to, nonce, fence });
            }
            Notification::ForceReleased { fence, .. } => self.unread().force_released.push_back(fence),
            Notification::Wanted { fence, .. } => self.unread().wanted.push_back(fence),
            _ => {}
        }
        self.arrived.notify_one();
    }

    fn resubscribed(&self) {}
}
