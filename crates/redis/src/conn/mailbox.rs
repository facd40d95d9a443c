//! The mailboxes of one link: delivers each message to its session, and all other messages to the subscribers of their
//! channel.
//!
//! The [link](super::link) or the [user's connection](super::borrowed) sends SUBSCRIBE and UNSUBSCRIBE, while it holds
//! the lock of [`SubscriptionOrder`].

use super::channels::{LockChannels, SubscriptionOrder};
use super::tracking::KeyTracking;
use leasehold_core::{Notification, SessionId};
use leasehold_store::NotificationSink;
use redis::{PushInfo, PushKind, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open mailboxes.
pub(crate) struct Mailboxes {
    /// Prefix of all mailbox channels.
    prefix: String,
    /// Ordered by session, so that a simulation is reproducible.
    open: Mutex<BTreeMap<SessionId, Arc<dyn NotificationSink>>>,
    order: SubscriptionOrder,
    /// The channels of locks.
    lock_channels: LockChannels,
    /// Set if it receives all messages in place of mailboxes.
    handler: Option<MessageHandler>,
    /// Set if it receives reports about keys.
    tracking: Option<Arc<KeyTracking>>,
}

/// Receives all messages of a connection.
type MessageHandler = Box<dyn Fn(&PushInfo) + Send + Sync>;

impl Mailboxes {
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            prefix,
            open: Mutex::default(),
            order: SubscriptionOrder::default(),
            lock_channels: LockChannels::default(),
            handler: None,
            tracking: None,
        }
    }

    /// Passes reports about keys on.
    pub(crate) fn with_tracking(mut self, tracking: Option<Arc<KeyTracking>>) -> Self {
        self.tracking = tracking;
        self
    }

    /// The receiver of reports about keys.
    pub(crate) const fn tracking(&self) -> Option<&Arc<KeyTracking>> {
        self.tracking.as_ref()
    }

    /// Creates a value without mailboxes: `handler` receives all messages.
    pub(crate) fn with_handler(handler: impl Fn(&PushInfo) + Send + Sync + 'static) -> Self {
        Self { handler: Some(Box::new(handler)), ..Self::new(String::new()) }
    }

    /// Whether all messages go to one receiver.
    pub(crate) const fn has_handler(&self) -> bool {
        self.handler.is_some()
    }

    /// The channel of a session.
    pub(crate) fn channel(&self, session: SessionId) -> String {
        format!("{}{session}", self.prefix)
    }

    /// The channels of locks.
    pub(crate) fn lock_channels(&self) -> &LockChannels {
        &self.lock_channels
    }

    pub(crate) fn open(&self, session: SessionId, sink: Arc<dyn NotificationSink>) {
        self.lock().insert(session, sink);
    }

    /// Closes a mailbox, and returns whether it was open.
    pub(crate) fn close(&self, session: SessionId) -> bool {
        self.lock().remove(&session).is_some()
    }

    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    pub(crate) const fn subscription_order(&self) -> &SubscriptionOrder {
        &self.order
    }

    /// All open mailboxes.
    pub(crate) fn all(&self) -> Vec<(SessionId, Arc<dyn NotificationSink>)> {
        self.lock().iter().map(|(session, sink)| (*session, Arc::clone(sink))).collect()
    }

    /// Notifies all subscribers that they may have missed messages.
    pub(crate) fn resubscribed(&self) {
        self.all().iter().for_each(|(_, sink)| sink.resubscribed());
        self.lock_channels.notify_all();
    }

    /// Delivers a message to its mailbox, or to the subscribers of its channel. Ignores anything in a mailbox that is
    /// not a grant: any client with permission to publish can send it.
    pub(crate) fn deliver(&self, push: &PushInfo) {
        if push.kind == PushKind::Invalidate {
            return self.tracking.iter().for_each(|tracking| tracking.deliver(push));
        }
        if let Some(handler) = &self.handler {
            return handler(push);
        }
        if push.kind != PushKind::Message {
            return;
        }
        let [Value::BulkString(channel), Value::BulkString(message)] = push.data.as_slice() else { return };
        let Some(session) = self.session(channel) else {
            return self.lock_channels.notify(channel, message);
        };
        let Some(sink) = self.lock().get(&session).cloned() else { return };
        match Notification::parse(session, message) {
            Ok(notification) => sink.deliver(notification),
            Err(error) => tracing::trace!(%session, %error, "ignored"),
        }
    }

    fn session(&self, channel: &[u8]) -> Option<SessionId> {
        let session = channel.strip_prefix(self.prefix.as_bytes())?;
        std::str::from_utf8(session).ok()?.parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<dyn NotificationSink>>> {
        // No code panics between two changes that belong together.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes").field("open", &self.lock().len()).finish_non_exhaustive()
    }
}
