//! The engine: the only loops that wait, renew and release. Every kind of lock goes through them.
//!
//! It keeps two things apart: a *hold* is what the process has at the store, a guard is what a task has
//! of it. Tasks of a process queue before a [`seat`]; its front drives the contest at the store.
//!
//! 1. At most one question a lock is on its way from a process, except after its asker was dropped.
//! 2. A hold is spent once its release was first sent: it is never handed to anyone after that.
//! 3. Whatever is dropped at whatever await leaves either nothing or an errand with the keeper.

mod acquire;
mod confirm;
mod detached;
mod gate;
mod heart;
mod hold;
mod keep_id;
mod keeper;
mod line;
mod loss;
mod observe;
mod pace;
mod patience;
mod pursuit;
#[cfg(all(test, shuttle))]
mod races;
mod release;
mod reservation;
mod seat;
mod session;
mod several;
mod shutdown;
mod straight;

pub(crate) use acquire::{Won, acquire, take_kept};
pub(crate) use confirm::confirm;
pub(crate) use detached::{
    Detached, NotAttached, NotDetached, NotExtended, acquire_detached, attach, extend_detached, own_session,
    release_detached,
};
pub(crate) use hold::Hold;
pub use hold::LostReason;
pub(crate) use keep_id::KeepId;
pub(crate) use loss::announce;
pub(crate) use observe::Watching;
pub(crate) use pursuit::{Missed, Pursuit};
use release::read_release;
pub(crate) use release::{NotReleased, abandon, carry_on, release};
pub(crate) use seat::Seat;
pub(crate) use seat::passing::Parting;
pub(crate) use session::Session;
pub(crate) use several::{InTheWay, acquire_all};
pub use shutdown::{ShutdownError, Unreturned};

use crate::store::{Executed, Fault, FaultKind, Outcome, Phase, Postbox, Store};
use detached::Attached;
use futures_util::future::BoxFuture;
use gate::Gate;
use keeper::{Ear, Keeper};
use leasehold_core::contend::Terms;
use leasehold_core::{
    About, Label, Lock, Moment, Op, Place, Reply, SessionEntry, SessionId, SessionOp, SessionReply, Wake,
};
use leasehold_store::sync::{Mutex, MutexGuard, OnceLock};
use leasehold_store::{World, jitter};
use seat::Cleared;
use session::{Birth, Sessions, fresh_id};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, btree_map};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timings {
    /// Every call to the store, its resends included.
    pub(crate) call: Duration,
    /// How long a waiter without a limit of its own rides out a store that does not answer.
    pub(crate) outage: Duration,
    /// The lease of a hold that a watchdog renews.
    pub(crate) watchdog: Duration,
    /// How long a session lives without a beat; nothing, where leases alone should decide.
    pub(crate) session: Option<Duration>,
}

/// A moment that never comes.
const FAR: Moment = Moment::from_micros(u64::MAX);

/// One client's engine.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) world: Arc<dyn World>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) label: Label,
    pub(crate) timings: Timings,
    pub(crate) keeper: Keeper,
    gate: Arc<Gate>,
    seats: Arc<Seats>,
    attached: Attached,
}

/// Waits for what the store does behind its answers, for no longer than that can matter: what was lost lasts no longer than a
/// first lease.
async fn settled(store: &dyn Store, world: &dyn World, timings: Timings) {
    let longest = world.now() + leasehold_core::FIRST_LEASE + timings.call;
    tokio::select! {
        biased;
        () = store.settle() => {}
        () = world.sleep_until(longest) => {}
    }
}

impl Engine {
    /// Starts an engine: its session has begun when this returns, and its keeper runs.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        world: Arc<dyn World>,
        about: About,
        timings: Timings,
    ) -> Result<Arc<Self>, StartError> {
        let label = about.label.clone();
        let seats = Arc::new(Seats::new(world.clone()));
        let birth = Birth {
            store: store.clone(),
            world: world.clone(),
            post: seats.clone(),
            about: about.to_json(),
            timings,
        };
        let id = fresh_id(&*world);
        let (sessions, pulse) = if store.capabilities().partitioned {
            (Sessions::where_wanted(id, birth.life()), None)
        } else {
            let (only, pulse) = birth.begin(Place::ONLY, id).await.map_err(StartError::Session)?;
            (Sessions::only(only), pulse)
        };
        let sessions = Arc::new(sessions);
        let keeper = Keeper::start(store.sibling(), birth, sessions.clone(), pulse).map_err(|error| {
            store.close_mailbox(Place::ONLY, id);
            StartError::Keeper(error)
        })?;
        // Nobody else sets it.
        let _ = seats.keeper.set(keeper.ear());
        let (attached, gate) = (Attached::default(), Arc::default());
        Ok(Arc::new(Self { store, world, sessions, label, timings, keeper, gate, seats, attached }))
    }

    /// Waits until nothing is left to be done that nobody waits for.
    pub(crate) async fn settle(&self) {
        self.keeper.errands_done().await;
        settled(&*self.store, &*self.world, self.timings).await;
    }

    /// The seat of this process before a lock.
    pub(crate) fn seat(&self, lock: &Lock) -> Arc<Seat> {
        let place = self.store.place(lock);
        self.seats.seat(lock, place, self.sessions.id_at(place))
    }

    /// A seat for one acquisition alone, before a lock that several can have side by side: tasks of one process do not
    /// wait for one another there, and each has a place of its own in the store's queue.
    pub(crate) fn own_seat(&self, lock: &Lock) -> Arc<Seat> {
        let place = self.store.place(lock);
        self.seats.own_seat(lock, place, self.sessions.id_at(place))
    }

    /// Closes the mailboxes of all sessions.
    fn close_mailboxes(&self) {
        for session in self.sessions.all() {
            self.store.close_mailbox(session.place, session.id);
        }
    }

    /// Runs what is sent about a hold; nothing comes of it once a shutdown has begun.
    pub(crate) async fn unless_shut<F: Future>(&self, sending: F) -> Option<F::Output> {
        self.gate.pass(pin!(sending)).await
    }

    /// Sends one operation, and again after a fault that may pass, until `within` is over.
    pub(crate) async fn call(&self, lock: &Lock, op: &Op, within: Duration) -> Result<Reply, Uncertain> {
        Ok(self.ask(lock, op, within).await?.reply)
    }

    /// The same, and says whether it was executed before, perhaps.
    pub(crate) async fn ask(
        &self,
        lock: &Lock,
        op: &Op,
        within: Duration,
    ) -> Result<Answer<Reply>, Uncertain> {
        insist(&*self.world, within, |left| self.store.execute(lock, op, left)).await
    }

    /// Which sessions the store knows, those of one name that are alive as one, and those that are dead; asked for again after a fault that may pass, for as long as a call may take.
    pub(crate) async fn list_sessions(&self) -> Result<Vec<SessionEntry>, Uncertain> {
        let ask = |left| self.store.attend(Place::ONLY, &SessionOp::List, left);
        if let SessionReply::List(sessions) = insist(&*self.world, self.timings.call, ask).await?.reply {
            return Ok(together(sessions));
        }
        let text = "it answered another question than was asked".to_owned();
        let fault = Fault::new(FaultKind::Failed(text), Phase::Reply, "the store");
        Err(Uncertain { fault, executed: Executed::No })
    }
}

/// A client has a session in each place of a store that has several, and as a rule they are called alike.
fn together(entries: Vec<SessionEntry>) -> Vec<SessionEntry> {
    let mut known: BTreeMap<(SessionId, bool), SessionEntry> = BTreeMap::new();
    for entry in entries {
        match known.entry((entry.session, entry.alive_ms.is_some())) {
            btree_map::Entry::Vacant(free) => drop(free.insert(entry)),
            btree_map::Entry::Occupied(mut found) => {
                let found = found.get_mut();
                found.alive_ms = found.alive_ms.max(entry.alive_ms);
                found.held.extend(entry.held);
            }
        }
    }
    known.into_values().collect()
}

impl Drop for Engine {
    fn drop(&mut self) {
        for kept in self.seats.part() {
            self.keeper.part_with(kept);
        }
        // In this order: the keeper may be about to begin another session.
        self.keeper.close();
        if !self.gate.is_closed() {
            self.close_mailboxes();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("session", &self.sessions.id())
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// Why an engine cannot start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The session cannot begin.
    Session(Fault),
    /// The keeper's thread cannot be started.
    Keeper(io::Error),
}

/// A reply to a call.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) reply: T,
    /// Why an earlier sending had no reply, if one had none that may have been executed.
    pub(crate) unanswered: Option<Fault>,
}

/// A call without a reply.
#[derive(Debug)]
pub(crate) struct Uncertain {
    /// The last fault.
    pub(crate) fault: Fault,
    /// Whether any of its sendings was executed.
    pub(crate) executed: Executed,
}

/// Sends one operation until it has a reply, a fault that does not pass, or no time left; each time it waits for the
/// reply for `each` at most. Sending it twice equals sending it once, so nothing is lost by it.
pub(crate) async fn call(
    store: &dyn Store,
    world: &dyn World,
    lock: &Lock,
    op: &Op,
    within: Duration,
    each: Duration,
) -> Result<Reply, Uncertain> {
    Ok(insist(world, within, |left| store.execute(lock, op, left.min(each))).await?.reply)
}

/// Asks until there is an answer, a fault that does not pass, or no time left.
async fn insist<'a, T>(
    world: &dyn World,
    within: Duration,
    mut ask: impl FnMut(Duration) -> BoxFuture<'a, Outcome<T>>,
) -> Result<Answer<T>, Uncertain> {
    let deadline = world.now() + within;
    let mut unanswered = None;
    let mut earlier: Option<Fault> = None;
    let mut pause = Duration::from_millis(10);
    loop {
        let left = deadline.since(world.now());
        let fault = match ask(left).await {
            Outcome::Done(reply) => return Ok(Answer { reply, unanswered }),
            Outcome::Failed(Executed::No, fault) => fault,
            Outcome::Failed(Executed::Unknown, fault) => unanswered.insert(fault).clone(),
        };
        let fault = fault.or_earlier(earlier.take());
        let again_at = world.now() + pause / 2 + jitter(world, pause / 2);
        if !fault.is_transient() || again_at >= deadline {
            let executed = if unanswered.is_some() { Executed::Unknown } else { Executed::No };
            return Err(Uncertain { fault, executed });
        }
        earlier = Some(fault);
        world.sleep_until(again_at).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// What a reply of another kind means: a refusal, or a store that does not keep its contract.
fn odd_reply(reply: Reply) -> (Fault, Executed) {
    let executed = if matches!(reply, Reply::Refused(_)) { Executed::No } else { Executed::Unknown };
    (Fault::odd_reply(reply), executed)
}

/// All seats of a client, and the postbox that hands each its grants, and the keeper the news of what was freed.
struct Seats {
    world: Arc<dyn World>,
    table: Mutex<Table>,
    /// Set once there is a keeper: before that nothing is held that a message could be about.
    keeper: OnceLock<Ear>,
}

#[derive(Default)]
struct Table {
    by_lock: HashMap<Lock, u32>,
    slots: Vec<Weak<Seat>>,
    free: Vec<u32>,
    /// Seats of others than the client's session, which are to be closed with its own.
    guests: Vec<Weak<Seat>>,
    /// Set once the client is shut down: seats are closed from the start then.
    closed: bool,
}

impl Seats {
    fn new(world: Arc<dyn World>) -> Self {
        Self { world, table: Mutex::default(), keeper: OnceLock::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(self: &Arc<Self>, lock: &Lock, place: Place, session: SessionId) -> Arc<Seat> {
        let mut table = self.table();
        if let Some(slot) = table.by_lock.get(lock)
            && let Some(seat) = table.slots.get(*slot as usize).and_then(Weak::upgrade)
        {
            return seat;
        }
        let (slot, seat) = self.new_seat(&mut table, lock, place, session);
        table.by_lock.insert(lock.clone(), slot);
        seat
    }

    fn own_seat(self: &Arc<Self>, lock: &Lock, place: Place, session: SessionId) -> Arc<Seat> {
        self.new_seat(&mut self.table(), lock, place, session).1
    }

    fn new_seat(
        self: &Arc<Self>,
        table: &mut Table,
        lock: &Lock,
        place: Place,
        session: SessionId,
    ) -> (u32, Arc<Seat>) {
        let slot = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Weak::new());
            u32::try_from(table.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let (all, left) = (Arc::downgrade(self), lock.clone());
        let seat = Arc::new(Seat::new(lock.clone(), place, session, slot, move |kept| {
            if let Some(all) = all.upgrade() {
                all.remove(&left, slot);
                if let (Some(kept), Some(keeper)) = (kept, all.keeper.get()) {
                    keeper.part_with(kept);
                }
            }
        }));
        if table.closed {
            // There is nothing in a new one.
            seat.close();
        }
        if let Some(place) = table.slots.get_mut(slot as usize) {
            *place = Arc::downgrade(&seat);
        }
        (slot, seat)
    }

    /// Stands in line for several locks in one step: whoever else does so comes before or after in all of them.
    fn join_all(&self, seats: &[&Arc<Seat>], terms: &Arc<Terms>) -> Vec<u64> {
        let _table = self.table();
        seats.iter().map(|seat| seat.join(terms.clone())).collect()
    }

    fn remove(&self, lock: &Lock, slot: u32) {
        let mut table = self.table();
        if let Entry::Occupied(entry) = table.by_lock.entry(lock.clone())
            && *entry.get() == slot
        {
            entry.remove();
        }
        table.free.push(slot);
    }

    /// Has a seat closed with these that is none of them.
    fn receive(&self, guest: &Arc<Seat>) {
        let mut table = self.table();
        table.guests.retain(|guest| guest.strong_count() > 0);
        table.guests.push(Arc::downgrade(guest));
        if table.closed {
            // There is nothing in a new one.
            guest.close();
        }
    }

    /// Closes all seats there are, and all there will be.
    fn close(&self) -> Vec<(Arc<Seat>, Cleared)> {
        let mut table = self.table();
        table.closed = true;
        let seats: Vec<_> = table.slots.iter().chain(&table.guests).filter_map(Weak::upgrade).collect();
        // A seat that goes out of use takes itself out of the table.
        drop(table);
        seats
            .into_iter()
            .map(|seat| {
                let cleared = seat.close();
                (seat, cleared)
            })
            .collect()
    }

    /// What is kept in any of them for whoever comes.
    fn part(&self) -> Vec<KeepId> {
        let seats: Vec<_> = self.table().slots.iter().filter_map(Weak::upgrade).collect();
        seats.iter().filter_map(|seat| seat.part()).collect()
    }

    fn by_slot(&self, slot: u32) -> Option<Arc<Seat>> {
        self.table().slots.get(slot as usize).and_then(Weak::upgrade)
    }
}

impl Postbox for Seats {
    fn deliver(&self, wake: Wake) {
        match wake {
            Wake::Grant { nonce, fence, .. } => {
                if let Some(seat) = self.by_slot(nonce.slot()) {
                    seat.handle_grant(nonce, fence, self.world.now());
                }
            }
            Wake::Freed { fence, .. } => {
                if let Some(keeper) = self.keeper.get() {
                    keeper.hear_freed(fence);
                }
            }
            Wake::Wanted { fence, .. } => {
                if let Some(keeper) = self.keeper.get() {
                    keeper.hear_wanted(fence);
                }
            }
            _ => {}
        }
    }

    fn renewed(&self) {
        let seats: Vec<_> = self.table().slots.iter().filter_map(Weak::upgrade).collect();
        for seat in seats {
            seat.handle_news(self.world.now());
        }
    }
}
