//! The mailboxes of one link: delivers each message to its session, and all other messages to their channels.
//!
//! The link, or the user's connection, subscribes; both do so in [`Turns`].

use super::channels::{Channels, Turns};
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
    turns: Turns,
    /// Channels of other libraries.
    others: Channels,
    /// Set if another component receives all messages.
    ear: Option<MessageHandler>,
}

/// Receives all messages of a connection.
type MessageHandler = Box<dyn Fn(&PushInfo) + Send + Sync>;

impl Mailboxes {
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            prefix,
            open: Mutex::default(),
            turns: Turns::default(),
            others: Channels::default(),
            ear: None,
        }
    }

    /// No mailboxes: `ear` receives all messages.
    pub(crate) fn elsewhere(ear: impl Fn(&PushInfo) + Send + Sync + 'static) -> Self {
        Self { ear: Some(Box::new(ear)), ..Self::new(String::new()) }
    }

    /// The channel of a session.
    pub(crate) fn channel(&self, session: SessionId) -> String {
        format!("{}{session}", self.prefix)
    }

    /// The channels of other libraries.
    pub(crate) fn others(&self) -> &Channels {
        &self.others
    }

    pub(crate) fn open(&self, session: SessionId, post: Arc<dyn NotificationSink>) {
        self.lock().insert(session, post);
    }

    /// Closes a mailbox, and returns whether it was open.
    pub(crate) fn close(&self, session: SessionId) -> bool {
        self.lock().remove(&session).is_some()
    }

    pub(crate) fn is_open(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    pub(crate) const fn turns(&self) -> &Turns {
        &self.turns
    }

    /// All open mailboxes.
    pub(crate) fn all(&self) -> Vec<(SessionId, Arc<dyn NotificationSink>)> {
        self.lock().iter().map(|(session, post)| (*session, Arc::clone(post))).collect()
    }

    /// Notifies all subscribers that they may have missed messages.
    pub(crate) fn resubscribed(&self) {
        self.all().iter().for_each(|(_, post)| post.resubscribed());
        self.others.ring_all();
    }

    /// Delivers a message to its mailbox, or to the subscribers of its channel. Ignores anything in a mailbox that is
    /// not a grant: any client with permission to publish can send it.
    pub(crate) fn deliver(&self, push: &PushInfo) {
        if let Some(ear) = &self.ear {
            return ear(push);
        }
        if push.kind != PushKind::Message {
            return;
        }
        let [Value::BulkString(channel), Value::BulkString(message)] = push.data.as_slice() else { return };
        let Some(session) = self.session(channel) else { return self.others.ring(channel) };
        let Some(post) = self.lock().get(&session).cloned() else { return };
        match Notification::parse(session, message) {
            Ok(wake) => post.deliver(wake),
            Err(error) => tracing::trace!(%session, %error, "ignored"),
        }
    }

    fn session(&self, channel: &[u8]) -> Option<SessionId> {
        let session = channel.strip_prefix(self.prefix.as_bytes())?;
        std::str::from_utf8(session).ok()?.parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<dyn NotificationSink>>> {
        // No code under the lock can leave the map half-changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes").field("open", &self.lock().len()).finish_non_exhaustive()
    }
}
