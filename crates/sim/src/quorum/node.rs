//! A node: a memory store with a clock of its own, which can be away, and can forget.

use crate::event::LockId;
use crate::mutants::quorum::{self as mutants, NodeOp, NodeReply};
use crate::quorum::event::{ClientNo, Event, ForgottenHold, HoldNo, NEEDED, NodeNo};
use crate::quorum::holds::Hold;
use crate::quorum::world::World;
use crate::world::time::Instant;
use futures_util::FutureExt;
use leasehold::store::{MemoryStore, Outcome, Store};
use leasehold_core::{Acquired, Extended, HoldId, HoldStatus, Inspect, Lock, Op, Reply};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// By how much the expiry of a hold may seem to be early, because nodes count in milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A node.
pub(crate) struct Node {
    pub(crate) number: NodeNo,
    pub(crate) world: Arc<World>,
    state: Mutex<State>,
}

struct State {
    store: MemoryStore,
    /// Until when it receives nothing.
    away_until: Instant,
    /// Whether it refuses connections meanwhile.
    refuses: bool,
    /// The hold that each lock was granted last.
    last_granted: BTreeMap<LockId, HoldId>,
    /// Until when it keeps each hold. It reports only how long it keeps the longest hold of an owner.
    expiries: BTreeMap<HoldId, Instant>,
}

impl Node {
    pub(crate) fn new(number: NodeNo, world: Arc<World>) -> Arc<Self> {
        let (store, last_granted, expiries) = (empty(number, &world), BTreeMap::new(), BTreeMap::new());
        let state = State { store, away_until: Instant(0), refuses: false, last_granted, expiries };
        Arc::new(Self { number, world, state: Mutex::new(state) })
    }

    fn with<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Receives nothing for that long.
    pub(crate) fn leave(&self, lasts: Duration, refuses: bool) {
        let until = self.world.now() + lasts;
        self.with(|state| (state.away_until, state.refuses) = (until, refuses));
    }

    pub(crate) fn is_away(&self) -> bool {
        self.with(|state| state.away_until) > self.world.now()
    }

    pub(crate) fn refuses_connections(&self) -> bool {
        self.is_away() && self.with(|state| state.refuses)
    }

    /// Executes an operation that a client sent at that time.
    pub(crate) fn execute(&self, client: ClientNo, lock: &Lock, op: &Op, sent_at: Instant) -> Reply {
        let (world, lock_id) = (&self.world, self.world.lock_id(lock));
        let hold = hold_of(op);
        let known = hold.and_then(|hold| world.holds(|holds| holds.get(hold).cloned()));
        let apply = |op: &Op| self.apply(lock, op);
        let executed = match world.mutant {
            Some(mutant) => mutants::execute(mutant, NodeOp { op, hold: known.as_ref(), apply: &apply }),
            None => NodeReply::real(apply(op)),
        };
        let reply = executed.reply;
        if let (Reply::Acquire(Acquired::Granted { .. }), Some(hold)) = (&reply, hold) {
            self.with(|state| state.last_granted.insert(lock_id, hold));
            world.holds(|holds| {
                if let Some(hold) = holds.get_mut(hold).filter(|hold| hold.is_granted()) {
                    hold.repaired.insert(self.number);
                }
            });
        }
        self.note_expiry(op, &reply);
        if executed.is_real && !matches!(op, Op::Inspect(_)) {
            let (hold, is_granted) = known.map_or((None, false), |of| (Some(of.number), of.is_granted()));
            let (node, reply) = (self.number, &reply);
            let lock = lock_id;
            world.record(&Event::Executed { client, node, lock, hold, is_granted, op, reply, sent_at });
        }
        reply
    }

    /// Notes until when it keeps a hold that it has granted or extended.
    fn note_expiry(&self, op: &Op, reply: &Reply) {
        let kept = match (op, reply) {
            (Op::Acquire(acquire), Reply::Acquire(Acquired::Granted { .. })) => {
                Some((acquire.claim.hold, acquire.lease_ms))
            }
            (Op::Extend(_), Reply::Extend(Extended::NotHeld)) => None,
            (Op::Extend(extend), Reply::Extend(_)) => Some((extend.claim.hold, extend.lease_ms)),
            _ => None,
        };
        if let Some((hold, lease_ms)) = kept {
            let expiry = self.shows_at(lease_ms);
            self.with(|state| {
                let known = state.expiries.entry(hold).or_insert(expiry);
                *known = expiry.max(*known);
            });
        }
    }

    /// When this many milliseconds have passed by its clock.
    fn shows_at(&self, remaining_ms: u64) -> Instant {
        let now_ms = self.world.reading_us(self.number) / 1000;
        self.world.clocks[self.number.0].shows_at((now_ms + remaining_ms) * 1000)
    }

    /// Executes an operation at the store.
    fn apply(&self, lock: &Lock, op: &Op) -> Reply {
        let store = self.with(|state| state.store.clone());
        match store.execute(lock, op, Duration::ZERO).now_or_never() {
            Some(Outcome::Done(reply)) => reply,
            // A memory store replies at once, and has no faults.
            other => unreachable!("{other:?}"),
        }
    }

    /// Until when it keeps a hold, if it has it.
    pub(crate) fn keeps_until(&self, hold: &Hold) -> Option<Instant> {
        let inspect = Op::Inspect(Inspect { claim: Some(hold.claim().clone()), details: false });
        let Reply::Inspect(seen) = self.apply(&hold.lock, &inspect) else { return None };
        let remaining_ms = seen.holder.filter(|_| seen.hold_status == Some(HoldStatus::Held))?.remaining_ms?;
        let known = self.with(|state| state.expiries.get(&hold.claim().hold).copied());
        Some(self.shows_at(remaining_ms).min(known.unwrap_or_default()))
    }

    /// Whether a lock has a holder here.
    pub(crate) fn is_held(&self, lock: &Lock) -> bool {
        let inspect = Op::Inspect(Inspect { claim: None, details: false });
        matches!(self.apply(lock, &inspect), Reply::Inspect(seen) if seen.holder.is_some())
    }

    /// The holds that were granted last here, as far as the node has them still.
    pub(crate) fn holders(&self) -> Vec<(LockId, HoldNo)> {
        let last = self.with(|state| state.last_granted.clone());
        let held = last.into_iter().filter_map(|(lock, hold)| {
            let hold = self.world.holds(|holds| holds.get(hold).cloned())?;
            self.keeps_until(&hold).map(|_| (lock, hold.number))
        });
        held.collect()
    }

    /// The holds that it would forget, and what the other nodes keep of them.
    pub(crate) fn would_forget(&self, nodes: &[Arc<Self>]) -> Vec<ForgottenHold> {
        let active: Vec<_> = self.world.holds(|holds| holds.active().cloned().collect());
        let here = active.into_iter().filter(|hold| self.keeps_until(hold).is_some());
        let others = || nodes.iter().filter(|node| node.number != self.number);
        let forgotten = here.map(|hold| {
            let until = self.world.relied_on_until(hold.claim().hold);
            let keeps = |node: &&Arc<Self>| node.keeps_until(&hold);
            let is_enough = |node: &&Arc<Self>| {
                let keeps_until = keeps(node).filter(|_| !hold.repaired.contains(&node.number));
                keeps_until.is_some_and(|end| end + ROUNDING >= until)
            };
            ForgottenHold {
                hold: hold.number,
                kept_by: others().filter(is_enough).count(),
                held_by: others().filter(|node| keeps(node).is_some()).count(),
                is_in_flight: hold.messages > 0 || hold.requested_until(self.world.now()).is_some(),
            }
        });
        forgotten.collect()
    }

    /// Loses its data, and continues to vote. With `if_healed` only if a majority keeps each hold that it has.
    pub(crate) fn forget(&self, nodes: &[Arc<Self>], if_healed: bool) -> bool {
        self.world.sample_validity();
        let holds = self.would_forget(nodes);
        if if_healed && holds.iter().any(|forgotten| forgotten.kept_by < NEEDED) {
            return false;
        }
        self.with(|state| {
            state.store = empty(self.number, &self.world);
            state.expiries.clear();
        });
        self.world.record(&Event::Forgot { node: self.number, holds: &holds });
        true
    }
}

fn empty(number: NodeNo, world: &Arc<World>) -> MemoryStore {
    let world = world.clone();
    MemoryStore::with_clock(move || world.reading_us(number))
}

/// The hold that an operation is about.
pub(crate) const fn hold_of(op: &Op) -> Option<HoldId> {
    match op {
        Op::Acquire(acquire) => Some(acquire.claim.hold),
        Op::Extend(extend) => Some(extend.claim.hold),
        Op::Release(release) => Some(release.claim.hold),
        Op::RaiseFence(raise) => Some(raise.claim.hold),
        _ => None,
    }
}
