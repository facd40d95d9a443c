//! A client's sessions, one per partition of the store: whether it is alive, how it begins, and which one is current.
//!
//! 1. A hold that depends on a session is valid no longer than the session: every check of the hold also checks the
//!    session's end, without the network.
//! 2. A session that has lapsed is over. The next one has its own id and mailbox. Requests of the old one are undone,
//!    and its replies are ignored.
//! 3. Nothing is requested before the store has acknowledged the first heartbeat.
//! 4. Partitions fail independently. In a store with several, a session begins where it is first wanted; normally all
//!    sessions of a client have the same id. An unused session ends after a while, under the session-table mutex, so
//!    no task can pick it up concurrently.

use super::Timings;
use crate::store::{Fault, FaultKind, NotificationSink, Outcome, Phase, SessionTracking, Store};
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{
    Heartbeat, HeartbeatReply, Liveness, Moment, Partition, SessionId, SessionOp, SessionReply, whole_millis,
};
use leasehold_store::Environment;
use leasehold_store::sync::{AtomicU64, Mutex, MutexGuard, Notify};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// One session, as its holds see it.
pub(crate) struct Session {
    /// Its partition.
    pub(crate) place: Partition,
    pub(crate) id: SessionId,
    /// What ends the holds that it acquires.
    pub(crate) life: Liveness,
    /// Microseconds of the client's clock; zero before it has begun and once it has lapsed.
    alive_until: AtomicU64,
}

impl Session {
    pub(crate) fn new(place: Partition, id: SessionId, life: Liveness, alive_until: Moment) -> Self {
        Self { place, id, life, alive_until: AtomicU64::new(alive_until.as_micros()) }
    }

    /// Until when it is known alive; [`Moment::ZERO`] once it has lapsed.
    pub(crate) fn alive_until(&self) -> Moment {
        Moment::from_micros(self.alive_until.load(Ordering::Acquire))
    }

    /// This session for holds with this liveness: holds that end by their lease alone are allowed in a session with
    /// heartbeats.
    pub(super) fn of_life(self: &Arc<Self>, life: Liveness) -> Arc<Self> {
        let alone = || Arc::new(Self::new(self.place, self.id, life, super::FAR));
        if life == self.life { self.clone() } else { alone() }
    }

    /// A heartbeat has reached the store.
    pub(super) fn raise(&self, alive_until: Moment) {
        let raised = |old| (old != 0 && old < alive_until.as_micros()).then_some(alive_until.as_micros());
        // A refusal means that it has lapsed, or is alive for longer already.
        let _ = self.alive_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }

    /// It has lapsed (2).
    pub(super) fn end(&self) {
        self.alive_until.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Session");
        text.field("place", &self.place).field("id", &self.id).field("life", &self.life);
        text.finish_non_exhaustive()
    }
}

/// The current sessions of a client.
pub(crate) struct Sessions {
    /// The session id where none has lapsed.
    id: SessionId,
    /// What ends the holds of all of them.
    pub(crate) life: Liveness,
    /// Set if sessions begin and end on demand: in a store with several partitions.
    come_and_go: bool,
    places: Mutex<BTreeMap<Partition, Local>>,
    changed: Notify,
}

/// The state of one partition.
struct Local {
    present: Arc<Session>,
    /// Why the next session has not begun yet.
    trouble: Option<Fault>,
    /// The number of tasks that wait for the next session.
    awaited: usize,
}

impl Local {
    fn new(present: Arc<Session>) -> Self {
        Self { present, trouble: None, awaited: 0 }
    }
}

/// A task that waits for a session to begin.
struct Awaiting<'a> {
    sessions: &'a Sessions,
    place: Partition,
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.sessions.local(self.place, |local| local.awaited = local.awaited.saturating_sub(1));
    }
}

impl Sessions {
    /// Sessions with this id that begin on demand.
    pub(super) fn where_wanted(id: SessionId, life: Liveness) -> Self {
        Self { id, life, come_and_go: true, places: Mutex::default(), changed: Notify::new() }
    }

    /// A single session that has begun already.
    pub(super) fn only(first: Arc<Session>) -> Self {
        let (id, life) = (first.id, first.life);
        let places = Mutex::new(BTreeMap::from([(first.place, Local::new(first))]));
        Self { id, life, come_and_go: false, places, changed: Notify::new() }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Partition, Local>> {
        // No code panics while it holds this mutex.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn local<T>(&self, place: Partition, look: impl FnOnce(&mut Local) -> T) -> T {
        look(self.places().entry(place).or_insert_with(|| Local::new(self.unborn(place, self.id))))
    }

    /// A session that has not begun: it is never valid.
    fn unborn(&self, place: Partition, id: SessionId) -> Arc<Session> {
        Arc::new(Session::new(place, id, self.life, Moment::ZERO))
    }

    /// The id of the sessions where none has lapsed.
    pub(crate) fn id(&self) -> SessionId {
        self.places().get(&Partition::ONLY).map_or(self.id, |local| local.present.id)
    }

    /// The id of the current session of a partition.
    pub(crate) fn id_at(&self, place: Partition) -> SessionId {
        self.places().get(&place).map_or(self.id, |local| local.present.id)
    }

    /// The current session of a partition, which may have lapsed, or not have begun.
    pub(crate) fn present(&self, place: Partition) -> Arc<Session> {
        self.local(place, |local| local.present.clone())
    }

    /// All sessions, whether or not they have begun.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.places().values().map(|local| local.present.clone()).collect()
    }

    /// Another session has begun.
    pub(super) fn replace(&self, next: Arc<Session>) {
        self.local(next.place, |local| (local.present, local.trouble) = (next, None));
        self.changed.notify_waiters();
    }

    /// Another session could not begin.
    pub(super) fn note(&self, place: Partition, fault: Fault) {
        self.local(place, |local| local.trouble = Some(fault));
    }

    /// Why there is no live session.
    pub(super) fn trouble(&self, place: Partition) -> Fault {
        let trouble = self.local(place, |local| local.trouble.clone());
        trouble.unwrap_or_else(|| Fault::new(FaultKind::TimedOut, Phase::Reply, "the store"))
    }

    /// Whether a task waits for the next session.
    pub(super) fn is_awaited(&self, place: Partition) -> bool {
        self.places().get(&place).is_some_and(|local| local.awaited > 0)
    }

    /// Waits until another session than `old` is current in its partition. Calls `ask` first, to request one.
    pub(super) async fn after(&self, old: &Arc<Session>, ask: impl FnOnce()) {
        let place = old.place;
        self.local(place, |local| local.awaited += 1);
        let _awaiting = Awaiting { sessions: self, place };
        ask();
        loop {
            let changed = self.changed.notified();
            if !Arc::ptr_eq(&self.present(place), old) {
                return;
            }
            changed.await;
        }
    }

    /// Removes a session that only the keeper still refers to (4). Returns whether it did.
    pub(super) fn put_away(&self, session: &Arc<Session>) -> bool {
        let mut places = self.places();
        let Some(local) = places.get_mut(&session.place) else { return false };
        // No task can clone it while this mutex is held.
        let is_idle = local.awaited == 0 && Arc::strong_count(session) == 2;
        if self.come_and_go && is_idle && Arc::ptr_eq(&local.present, session) {
            local.present = self.unborn(session.place, session.id);
            return true;
        }
        false
    }

    /// A removed session may still be known to the store: the next one gets another id.
    pub(super) fn rename(&self, place: Partition, id: SessionId) {
        self.local(place, |local| local.present = self.unborn(place, id));
        // Waiters re-check.
        self.changed.notify_waiters();
    }
}

/// What each session of a client begins with.
pub(super) struct SessionFactory {
    /// The connection for requests and messages.
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) post: Arc<dyn NotificationSink>,
    /// The session metadata that stores keep for operators.
    pub(super) about: String,
    pub(super) timings: Timings,
}

impl SessionFactory {
    /// What ends the holds of such a session.
    pub(super) fn life(&self) -> Liveness {
        match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::Never, _) | (_, None) => Liveness::Lease,
            (_, Some(alive)) => Liveness::Session { alive_ms: whole_millis(alive) },
        }
    }

    /// Begins a session in a partition: opens its mailbox and has the store acknowledge it (3). The session has a
    /// heartbeat schedule if the store requires heartbeats.
    ///
    /// Cancel safety: if the future is dropped, the mailbox is closed, and nothing was requested under the session.
    pub(super) async fn begin(
        &self,
        place: Partition,
        id: SessionId,
    ) -> Result<(Arc<Session>, Option<HeartbeatSchedule>), Fault> {
        let mailbox = Mailbox { store: &*self.store, place, session: id };
        self.store.open_mailbox(place, id, self.post.clone(), self.timings.call).await?;
        let life = self.life();
        let begun = match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::ByHeartbeat, Some(alive)) => {
                let sent_at = self.environment.now();
                self.execute_session(place, id, whole_millis(alive)).await?;
                let pulse = HeartbeatSchedule::new(alive, sent_at);
                let session = Session::new(place, id, life, pulse.valid_until());
                (Arc::new(session), Some(pulse))
            }
            (SessionTracking::ByStore, Some(alive)) => {
                self.execute_session(place, id, whole_millis(alive)).await?;
                (Arc::new(Session::new(place, id, life, super::FAR)), None)
            }
            _ => (Arc::new(Session::new(place, id, life, super::FAR)), None),
        };
        std::mem::forget(mailbox);
        Ok(begun)
    }

    async fn execute_session(
        &self,
        place: Partition,
        session: SessionId,
        alive_ms: u64,
    ) -> Result<(), Fault> {
        let begin = Some(self.about.clone());
        let op = SessionOp::Heartbeat(Heartbeat {
            session,
            alive_ms,
            begin,
            acquired: Vec::new(),
            released: Vec::new(),
        });
        match self.store.execute_session(place, &op, self.timings.call).await {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => Ok(()),
            Outcome::Done(_) => {
                let text = "it treated a new session as an existing one".to_owned();
                Err(Fault::new(FaultKind::Failed(text), Phase::Reply, "the store"))
            }
            Outcome::Failed(_, fault) => Err(fault),
        }
    }
}

/// A new random session id.
pub(super) fn fresh_id(environment: &dyn Environment) -> SessionId {
    let mut bits = [0; 12];
    bits[..8].copy_from_slice(&environment.random().to_ne_bytes());
    bits[8..].copy_from_slice(&environment.random().to_ne_bytes()[..4]);
    SessionId::from_random(bits)
}

/// A mailbox that closes on drop, unless a session takes it over.
pub(super) struct Mailbox<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) place: Partition,
    pub(super) session: SessionId,
}

impl Drop for Mailbox<'_> {
    fn drop(&mut self) {
        self.store.close_mailbox(self.place, self.session);
    }
}
