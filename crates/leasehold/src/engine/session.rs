//! The session of a client: whether it is alive, how one begins, and which is the present one.
//!
//! 1. Whatever lives with a session is believed no longer than the session itself: whoever looks at a hold looks at
//!    the session's end as well, and needs no network for it.
//! 2. A session that has lapsed is over, and another one begins, with an id and a mailbox of its own. What the old
//!    one asked for is undone, and nobody believes its answers.
//! 3. Nothing is asked for before the store has acknowledged the first beat.

use super::{Timings, World};
use crate::store::{Fault, FaultKind, Outcome, Phase, Postbox, SessionKeeping, Store};
use crate::sync::{AtomicU64, Mutex, Notify};
use leasehold_core::pulse::Pulse;
use leasehold_core::{Beat, Beaten, Life, Moment, SessionId, SessionOp, SessionReply, whole_millis};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// One session, as its holds see it.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// What ends a hold that it asks for.
    pub(crate) life: Life,
    /// Microseconds of the client's clock; zero once it has lapsed.
    alive_until: AtomicU64,
}

impl Session {
    pub(crate) fn new(id: SessionId, life: Life, alive_until: Moment) -> Self {
        Self { id, life, alive_until: AtomicU64::new(alive_until.as_micros()) }
    }

    /// Until when it may be believed alive; [`Moment::ZERO`] once it has lapsed.
    pub(crate) fn alive_until(&self) -> Moment {
        Moment::from_micros(self.alive_until.load(Ordering::Acquire))
    }

    /// This one, as holds see it that end by this: with their lease alone, it may be, also where a session beats.
    pub(super) fn of_life(self: &Arc<Self>, life: Life) -> Arc<Self> {
        if life == self.life { self.clone() } else { Arc::new(Self::new(self.id, life, super::FAR)) }
    }

    /// A beat has reached the store.
    pub(super) fn raise(&self, alive_until: Moment) {
        let raised = |old| (old != 0 && old < alive_until.as_micros()).then_some(alive_until.as_micros());
        // A refusal means that it has lapsed, or lives longer already.
        let _ = self.alive_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }

    /// It has lapsed (2).
    pub(super) fn end(&self) {
        self.alive_until.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("life", &self.life).finish_non_exhaustive()
    }
}

/// The present session of a client.
pub(crate) struct Sessions {
    present: Mutex<Arc<Session>>,
    /// Why the next one has not begun yet.
    trouble: Mutex<Option<Fault>>,
    changed: Notify,
}

impl Sessions {
    pub(super) fn new(first: Arc<Session>) -> Self {
        Self { present: Mutex::new(first), trouble: Mutex::new(None), changed: Notify::new() }
    }

    /// The present one, which may have lapsed.
    pub(crate) fn present(&self) -> Arc<Session> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Another one has begun.
    pub(super) fn replace(&self, next: Arc<Session>) {
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = next;
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.changed.notify_waiters();
    }

    /// Another one could not begin.
    pub(super) fn note(&self, fault: Fault) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }

    /// Why there is no session that is alive.
    pub(super) fn trouble(&self) -> Fault {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        trouble.unwrap_or_else(|| Fault::new(FaultKind::TimedOut, Phase::Reply, "the store"))
    }

    /// Waits until another one than `old` is the present one.
    pub(super) async fn after(&self, old: SessionId) {
        loop {
            let changed = self.changed.notified();
            if self.present().id != old {
                return;
            }
            changed.await;
        }
    }
}

/// What every session of a client begins with.
pub(super) struct Birth {
    /// The connection by which its locks are asked for, and its messages come.
    pub(super) store: Arc<dyn Store>,
    pub(super) world: Arc<dyn World>,
    pub(super) post: Arc<dyn Postbox>,
    /// For people to read, as stores keep it.
    pub(super) about: String,
    pub(super) timings: Timings,
}

impl Birth {
    /// Begins a session: its mailbox is open, and the store has acknowledged it (3). It has a pulse where it lives by
    /// beats.
    ///
    /// Cancel safety: if the future is dropped, its mailbox is closed, and nothing was asked for in its name.
    pub(super) async fn begin(&self) -> Result<(Arc<Session>, Option<Pulse>), Fault> {
        let id = fresh_id(&*self.world);
        let mailbox = Mailbox { store: &*self.store, session: id };
        self.store.open_mailbox(id, self.post.clone(), self.timings.call).await?;
        let life =
            self.timings.session.map_or(Life::Lease, |alive| Life::Session { alive_ms: whole_millis(alive) });
        let begun = match (self.store.sessions(), self.timings.session) {
            (SessionKeeping::ByBeat, Some(alive)) => {
                let sent_at = self.world.now();
                self.attend(id, whole_millis(alive)).await?;
                let pulse = Pulse::new(alive, sent_at);
                let session = Session::new(id, life, pulse.valid_until());
                (Arc::new(session), Some(pulse))
            }
            (SessionKeeping::ByItself, Some(alive)) => {
                self.attend(id, whole_millis(alive)).await?;
                (Arc::new(Session::new(id, life, super::FAR)), None)
            }
            _ => (Arc::new(Session::new(id, Life::Lease, super::FAR)), None),
        };
        std::mem::forget(mailbox);
        Ok(begun)
    }

    async fn attend(&self, session: SessionId, alive_ms: u64) -> Result<(), Fault> {
        let begin = Some(self.about.clone());
        let op = SessionOp::Beat(Beat { session, alive_ms, begin, held: Vec::new(), left: Vec::new() });
        match self.store.attend(&op, self.timings.call).await {
            Outcome::Done(SessionReply::Beat(Beaten::Alive)) => Ok(()),
            Outcome::Done(_) => {
                let text = "it took a new session for an old one".to_owned();
                Err(Fault::new(FaultKind::Failed(text), Phase::Reply, "the store"))
            }
            Outcome::Refused(fault) | Outcome::Unknown(fault) => Err(fault),
        }
    }
}

/// The id of a session that nobody has been before.
pub(super) fn fresh_id(world: &dyn World) -> SessionId {
    let mut bits = [0; 12];
    bits[..8].copy_from_slice(&world.random().to_ne_bytes());
    bits[8..].copy_from_slice(&world.random().to_ne_bytes()[..4]);
    SessionId::from_random(bits)
}

/// A mailbox that is closed when this is dropped, unless a session comes to have it.
pub(super) struct Mailbox<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) session: SessionId,
}

impl Drop for Mailbox<'_> {
    fn drop(&mut self) {
        self.store.close_mailbox(self.session);
    }
}
