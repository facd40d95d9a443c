//! The sessions of a client, one in each place of the store: whether it is alive, how one begins, and which is the present one.
//!
//! 1. Whatever lives with a session is believed no longer than the session itself: whoever looks at a hold looks at
//!    the session's end as well, and needs no network for it.
//! 2. A session that has lapsed is over, and another one begins, with an id and a mailbox of its own. What the old
//!    one asked for is undone, and nobody believes its answers.
//! 3. Nothing is asked for before the store has acknowledged the first beat.
//! 4. Places stand or fall alone. In a store that has several a session begins where it is first wanted; as a rule all of a
//!    client's have one id. Where nothing refers to it for a while it ends, and no task can have got hold of it meanwhile.

use super::Timings;
use crate::store::{Fault, FaultKind, Outcome, Phase, Postbox, SessionKeeping, Store};
use leasehold_core::pulse::Pulse;
use leasehold_core::{Beat, Beaten, Life, Moment, Place, SessionId, SessionOp, SessionReply, whole_millis};
use leasehold_store::World;
use leasehold_store::sync::{AtomicU64, Mutex, MutexGuard, Notify};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// One session, as its holds see it.
pub(crate) struct Session {
    /// Where it lives.
    pub(crate) place: Place,
    pub(crate) id: SessionId,
    /// What ends a hold that it asks for.
    pub(crate) life: Life,
    /// Microseconds of the client's clock; zero once it has lapsed, and before it has begun.
    alive_until: AtomicU64,
}

impl Session {
    pub(crate) fn new(place: Place, id: SessionId, life: Life, alive_until: Moment) -> Self {
        Self { place, id, life, alive_until: AtomicU64::new(alive_until.as_micros()) }
    }

    /// Until when it may be believed alive; [`Moment::ZERO`] once it has lapsed.
    pub(crate) fn alive_until(&self) -> Moment {
        Moment::from_micros(self.alive_until.load(Ordering::Acquire))
    }

    /// This one, as holds see it that end by this: with their lease alone, it may be, also where a session beats.
    pub(super) fn of_life(self: &Arc<Self>, life: Life) -> Arc<Self> {
        let alone = || Arc::new(Self::new(self.place, self.id, life, super::FAR));
        if life == self.life { self.clone() } else { alone() }
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
        let mut text = f.debug_struct("Session");
        text.field("place", &self.place).field("id", &self.id).field("life", &self.life);
        text.finish_non_exhaustive()
    }
}

/// The present sessions of a client.
pub(crate) struct Sessions {
    /// What a session is called where none has lapsed.
    id: SessionId,
    /// What ends the holds of all of them.
    pub(crate) life: Life,
    /// Set where they begin and end as they are wanted: in a store that has several places.
    come_and_go: bool,
    places: Mutex<BTreeMap<Place, Local>>,
    changed: Notify,
}

/// What there is in one place.
struct Local {
    present: Arc<Session>,
    /// Why the next one has not begun yet.
    trouble: Option<Fault>,
    /// How many tasks wait for it.
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
    place: Place,
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.sessions.local(self.place, |local| local.awaited = local.awaited.saturating_sub(1));
    }
}

impl Sessions {
    /// Sessions of that id, which begin where they are wanted.
    pub(super) fn where_wanted(id: SessionId, life: Life) -> Self {
        Self { id, life, come_and_go: true, places: Mutex::default(), changed: Notify::new() }
    }

    /// The only one, which is there already.
    pub(super) fn only(first: Arc<Session>) -> Self {
        let (id, life) = (first.id, first.life);
        let places = Mutex::new(BTreeMap::from([(first.place, Local::new(first))]));
        Self { id, life, come_and_go: false, places, changed: Notify::new() }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<Place, Local>> {
        // Nothing in here panics while it holds them.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn local<T>(&self, place: Place, look: impl FnOnce(&mut Local) -> T) -> T {
        look(self.places().entry(place).or_insert_with(|| Local::new(self.unborn(place, self.id))))
    }

    /// One that has not begun: nobody believes it alive.
    fn unborn(&self, place: Place, id: SessionId) -> Arc<Session> {
        Arc::new(Session::new(place, id, self.life, Moment::ZERO))
    }

    /// What its sessions are called, where none has lapsed.
    pub(crate) fn id(&self) -> SessionId {
        self.places().get(&Place::ONLY).map_or(self.id, |local| local.present.id)
    }

    /// What the present one of a place is called.
    pub(crate) fn id_at(&self, place: Place) -> SessionId {
        self.places().get(&place).map_or(self.id, |local| local.present.id)
    }

    /// The present one of a place, which may have lapsed, or not have begun.
    pub(crate) fn present(&self, place: Place) -> Arc<Session> {
        self.local(place, |local| local.present.clone())
    }

    /// All there are, whether or not they have begun.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.places().values().map(|local| local.present.clone()).collect()
    }

    /// Another one has begun.
    pub(super) fn replace(&self, next: Arc<Session>) {
        self.local(next.place, |local| (local.present, local.trouble) = (next, None));
        self.changed.notify_waiters();
    }

    /// Another one could not begin.
    pub(super) fn note(&self, place: Place, fault: Fault) {
        self.local(place, |local| local.trouble = Some(fault));
    }

    /// Why there is no session that is alive.
    pub(super) fn trouble(&self, place: Place) -> Fault {
        let trouble = self.local(place, |local| local.trouble.clone());
        trouble.unwrap_or_else(|| Fault::new(FaultKind::TimedOut, Phase::Reply, "the store"))
    }

    /// Whether somebody waits for the next one.
    pub(super) fn is_awaited(&self, place: Place) -> bool {
        self.places().get(&place).is_some_and(|local| local.awaited > 0)
    }

    /// Waits until another one than `old` is the present one in its place. Whoever begins it is to be told before by `ask`.
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

    /// Puts one away that nothing refers to but the keeper (4), and says whether it did.
    pub(super) fn put_away(&self, session: &Arc<Session>) -> bool {
        let mut places = self.places();
        let Some(local) = places.get_mut(&session.place) else { return false };
        // Nobody gets another clone while the places are locked.
        let is_idle = local.awaited == 0 && Arc::strong_count(session) == 2;
        if self.come_and_go && is_idle && Arc::ptr_eq(&local.present, session) {
            local.present = self.unborn(session.place, session.id);
            return true;
        }
        false
    }

    /// One that was put away may be there still: the next is called otherwise.
    pub(super) fn rename(&self, place: Place, id: SessionId) {
        self.local(place, |local| local.present = self.unborn(place, id));
        // Who waits for it looks at it anew.
        self.changed.notify_waiters();
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
    /// What ends the holds of a session that begins so.
    pub(super) fn life(&self) -> Life {
        match (self.store.capabilities().sessions, self.timings.session) {
            (SessionKeeping::Never, _) | (_, None) => Life::Lease,
            (_, Some(alive)) => Life::Session { alive_ms: whole_millis(alive) },
        }
    }

    /// Begins a session in a place: its mailbox is open, and the store has acknowledged it (3). It has a pulse where it
    /// lives by beats.
    ///
    /// Cancel safety: if the future is dropped, its mailbox is closed, and nothing was asked for in its name.
    pub(super) async fn begin(
        &self,
        place: Place,
        id: SessionId,
    ) -> Result<(Arc<Session>, Option<Pulse>), Fault> {
        let mailbox = Mailbox { store: &*self.store, place, session: id };
        self.store.open_mailbox(place, id, self.post.clone(), self.timings.call).await?;
        let life = self.life();
        let begun = match (self.store.capabilities().sessions, self.timings.session) {
            (SessionKeeping::ByBeat, Some(alive)) => {
                let sent_at = self.world.now();
                self.attend(place, id, whole_millis(alive)).await?;
                let pulse = Pulse::new(alive, sent_at);
                let session = Session::new(place, id, life, pulse.valid_until());
                (Arc::new(session), Some(pulse))
            }
            (SessionKeeping::ByItself, Some(alive)) => {
                self.attend(place, id, whole_millis(alive)).await?;
                (Arc::new(Session::new(place, id, life, super::FAR)), None)
            }
            _ => (Arc::new(Session::new(place, id, life, super::FAR)), None),
        };
        std::mem::forget(mailbox);
        Ok(begun)
    }

    async fn attend(&self, place: Place, session: SessionId, alive_ms: u64) -> Result<(), Fault> {
        let begin = Some(self.about.clone());
        let op = SessionOp::Beat(Beat { session, alive_ms, begin, held: Vec::new(), left: Vec::new() });
        match self.store.attend(place, &op, self.timings.call).await {
            Outcome::Done(SessionReply::Beat(Beaten::Alive)) => Ok(()),
            Outcome::Done(_) => {
                let text = "it took a new session for an old one".to_owned();
                Err(Fault::new(FaultKind::Failed(text), Phase::Reply, "the store"))
            }
            Outcome::Failed(_, fault) => Err(fault),
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
    pub(super) place: Place,
    pub(super) session: SessionId,
}

impl Drop for Mailbox<'_> {
    fn drop(&mut self) {
        self.store.close_mailbox(self.place, self.session);
    }
}
