//! The mailboxes of one link: which sessions have one, and where their grants go; and where all other messages go.
//!
//! It does not subscribe: that is the link's, or the lent connection's. Both do so in [`Turns`].

use super::channels::{Channels, Turns};
use leasehold_core::{SessionId, Wake};
use leasehold_store::Postbox;
use redis::{PushInfo, PushKind, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open mailboxes.
pub(super) struct Mailboxes {
    /// What the channels of all mailboxes begin with.
    prefix: String,
    /// In the order of their sessions, so that a simulated world runs the same each time.
    open: Mutex<BTreeMap<SessionId, Arc<dyn Postbox>>>,
    turns: Turns,
    /// Where other libraries say something.
    others: Channels,
    /// Set where somebody else knows whom messages are for.
    ear: Option<Ear>,
}

/// Who is told all messages of a connection.
type Ear = Box<dyn Fn(&PushInfo) + Send + Sync>;

impl Mailboxes {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            open: Mutex::default(),
            turns: Turns::default(),
            others: Channels::default(),
            ear: None,
        }
    }

    /// None here: all messages are somebody else's.
    pub(super) fn elsewhere(ear: impl Fn(&PushInfo) + Send + Sync + 'static) -> Self {
        Self { ear: Some(Box::new(ear)), ..Self::new(String::new()) }
    }

    /// The channel of a session.
    pub(super) fn channel(&self, session: SessionId) -> String {
        format!("{}{session}", self.prefix)
    }

    /// The channels of other libraries.
    pub(super) fn others(&self) -> &Channels {
        &self.others
    }

    pub(super) fn open(&self, session: SessionId, post: Arc<dyn Postbox>) {
        self.lock().insert(session, post);
    }

    /// Closes a mailbox, and says whether it was open.
    pub(super) fn close(&self, session: SessionId) -> bool {
        self.lock().remove(&session).is_some()
    }

    pub(super) fn is_open(&self, session: SessionId) -> bool {
        self.lock().contains_key(&session)
    }

    pub(super) const fn turns(&self) -> &Turns {
        &self.turns
    }

    /// All that are open now.
    pub(super) fn all(&self) -> Vec<(SessionId, Arc<dyn Postbox>)> {
        self.lock().iter().map(|(session, post)| (*session, Arc::clone(post))).collect()
    }

    /// Messages may have been missed: all that listen are told.
    pub(super) fn renewed(&self) {
        self.all().iter().for_each(|(_, post)| post.renewed());
        self.others.ring_all();
    }

    /// Hands a message to the mailbox that it is for, or tells those who listen there. Whatever is no grant in a mailbox
    /// is none of ours, and is ignored: everybody who may publish can send it.
    pub(super) fn deliver(&self, push: &PushInfo) {
        if let Some(ear) = &self.ear {
            return ear(push);
        }
        if push.kind != PushKind::Message {
            return;
        }
        let [Value::BulkString(channel), Value::BulkString(message)] = push.data.as_slice() else { return };
        let Some(session) = self.session(channel) else { return self.others.ring(channel) };
        let Some(post) = self.lock().get(&session).cloned() else { return };
        match Wake::parse(session, message) {
            Ok(wake) => post.deliver(wake),
            Err(error) => tracing::trace!(%session, %error, "ignored"),
        }
    }

    fn session(&self, channel: &[u8]) -> Option<SessionId> {
        let session = channel.strip_prefix(self.prefix.as_bytes())?;
        std::str::from_utf8(session).ok()?.parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<dyn Postbox>>> {
        // No code runs under the lock that could leave the map half-changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes").field("open", &self.lock().len()).finish_non_exhaustive()
    }
}
