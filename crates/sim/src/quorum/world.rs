//! The state that everything in the world of a quorum shares.

use crate::any_guard::AnyGuard;
use crate::event::{GuardId, LeasePolicy, LockId};
use crate::mutants::Mutant;
use crate::quorum::event::{
    ClientNo, Event, HoldNo, NODES, NewGuard, NodeNo, OwnerNo, RequestOutcome, TaskNo,
};
use crate::quorum::holds::Holds;
use crate::quorum::recorder::Recorder;
use crate::world::time::{Clock, Instant};
use leasehold::{Moment, Owner};
use leasehold_core::{Acquire, HoldId, Lock};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// What the clocks of the clients show at the world's beginning.
const CLIENTS_START_AT: Duration = Duration::from_secs(1_000);

/// The world of one run.
pub(crate) struct World {
    began: tokio::time::Instant,
    /// The clocks of the nodes.
    pub(crate) clocks: [Clock; NODES],
    pub(crate) mutant: Option<Mutant>,
    pub(crate) locks: Vec<Lock>,
    state: Mutex<State>,
    /// Notified once a check has failed.
    failed: Notify,
}

struct State {
    recorder: Recorder,
    holds: Holds,
    guards: Vec<LiveGuard>,
    last_guard: u32,
    owners: Vec<Owner>,
}

/// A guard of a task, until it is released or dropped.
#[derive(Clone)]
pub(crate) struct LiveGuard {
    pub(crate) id: GuardId,
    pub(crate) hold: HoldId,
    pub(crate) guard: Weak<AnyGuard>,
    until: Instant,
}

impl World {
    /// The world that begins now.
    pub(crate) fn new(
        clocks: [Clock; NODES],
        locks: Vec<Lock>,
        mutant: Option<Mutant>,
        recorder: Recorder,
    ) -> Arc<Self> {
        let holds = Holds::default();
        let state = State { recorder, holds, guards: Vec::new(), last_guard: 0, owners: Vec::new() };
        Arc::new(Self {
            began: tokio::time::Instant::now(),
            clocks,
            mutant,
            locks,
            state: Mutex::new(state),
            failed: Notify::new(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        Instant(0) + self.began.elapsed()
    }

    /// What the clock of every client shows now.
    pub(crate) fn moment(&self) -> Moment {
        Moment::ZERO + CLIENTS_START_AT + self.began.elapsed()
    }

    fn shown_at(moment: Moment) -> Instant {
        Instant(0) + moment.since(Moment::ZERO + CLIENTS_START_AT)
    }

    /// What the clock of a node shows now.
    pub(crate) fn reading_us(&self, node: NodeNo) -> u64 {
        self.clocks[node.0].reading_us(self.now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A run ends at its first panic, so what a panic left inconsistent is not used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, event: &Event<'_>) {
        if self.state().recorder.record(self.now(), event) {
            self.failed.notify_one();
        }
    }

    /// Reports that the world itself is not as it should be.
    pub(crate) fn fail(&self, what: String) {
        self.state().recorder.fail("world", self.now(), what);
        self.failed.notify_one();
    }

    /// Waits until a check has failed.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }

    /// Takes the recorder out of the finished world.
    pub(crate) fn finish<T>(&self, read: impl FnOnce(&mut Recorder) -> T) -> T {
        read(&mut self.state().recorder)
    }

    pub(crate) fn holds<T>(&self, read: impl FnOnce(&mut Holds) -> T) -> T {
        read(&mut self.state().holds)
    }

    pub(crate) fn lock_id(&self, lock: &Lock) -> LockId {
        let at = self.locks.iter().position(|other| other == lock);
        LockId(at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX))
    }

    fn owner_no(&self, owner: &Owner) -> OwnerNo {
        let owners = &mut self.state().owners;
        let known = owners.iter().position(|known| known == owner);
        OwnerNo(known.unwrap_or_else(|| {
            owners.push(owner.clone());
            owners.len() - 1
        }))
    }

    /// A client requests a hold. Returns the number of the request.
    pub(crate) fn requested(&self, client: ClientNo, lock: &Lock, acquire: &Acquire) -> u64 {
        let (now, lock_id) = (self.now(), self.lock_id(lock));
        let slowest_us = self.clocks.iter().map(|clock| clock.reading_us(now)).min().unwrap_or(0);
        let (hold, request) = self.holds(|holds| {
            let number = holds.requested(client, lock_id, lock, acquire, slowest_us);
            (number, holds.begin_request(acquire.claim.hold, acquire.lease_ms, now))
        });
        self.record(&Event::Requested { client, lock: lock_id, hold });
        request
    }

    /// A request for a hold has been answered, or no task awaits its reply any more.
    pub(crate) fn answered(&self, hold: HoldId, request: u64, outcome: RequestOutcome) {
        let now = self.now();
        let number = self.holds(|holds| {
            holds.end_request(hold, request, now);
            holds.answered(hold, outcome)
        });
        if let Some(hold) = number {
            self.record(&Event::Answered { hold, outcome });
        }
    }

    /// A task has a new guard.
    pub(crate) fn acquired(
        &self,
        task: TaskNo,
        lock: LockId,
        guard: &Arc<AnyGuard>,
        lease: LeasePolicy,
    ) -> GuardId {
        self.sample_validity();
        let owner = guard.owner().map(|owner| self.owner_no(owner));
        let until = Self::shown_at(guard.valid_until());
        let fence = guard.fences().first().map(|(_, fence)| *fence);
        let mut state = self.state();
        state.last_guard += 1;
        let id = GuardId(state.last_guard);
        let found = fence.and_then(|fence| {
            let hold = state.holds.of_guard(task.0, lock, fence, id)?;
            Some((fence, hold.number, hold.claim().hold, hold.slowest_us))
        });
        let Some((fence, number, hold, slowest_us)) = found else {
            drop(state);
            self.fail(format!("{task} has a guard of {lock} with {fence:?}, which no request was granted"));
            return id;
        };
        state.guards.push(LiveGuard { id, hold, guard: Arc::downgrade(guard), until });
        drop(state);
        let new = NewGuard { hold: number, lock, task, owner, fence, lease, until, slowest_us };
        self.record(&Event::Acquired { guard: id, new: &new });
        id
    }

    /// A task begins to release its guard.
    pub(crate) fn releasing(&self, guard: GuardId) {
        let mut state = self.state();
        if let Some(at) = state.guards.iter().position(|live| live.id == guard) {
            let live = state.guards.swap_remove(at);
            state.holds.ended(live.hold);
        }
        drop(state);
        self.record(&Event::Releasing { guard });
    }

    /// The guards of all tasks.
    pub(crate) fn guards(&self) -> Vec<LiveGuard> {
        self.state().guards.clone()
    }

    /// Records until when guards are valid, where that has changed.
    pub(crate) fn sample_validity(&self) {
        let mut changed = Vec::new();
        for live in &mut self.state().guards {
            let Some(guard) = live.guard.upgrade() else { continue };
            let until = Self::shown_at(guard.valid_until());
            if until != live.until {
                live.until = until;
                changed.push((live.id, until));
            }
        }
        for (guard, until) in changed {
            self.record(&Event::ValidUntil { guard, until });
        }
    }

    /// Until when the client of a hold may rely on it.
    pub(crate) fn relied_on_until(&self, hold: HoldId) -> Instant {
        let now = self.now();
        let state = self.state();
        let guard = state.guards.iter().find(|live| live.hold == hold).map(|live| live.until);
        let requested = state.holds.get(hold).and_then(|hold| hold.requested_until(now));
        guard.max(requested).unwrap_or_default()
    }

    /// The number of a hold, and whether the quorum has granted it.
    pub(crate) fn number(&self, hold: HoldId) -> Option<(HoldNo, bool)> {
        self.holds(|holds| {
            let hold = holds.get(hold)?;
            Some((hold.number, hold.is_granted()))
        })
    }
}
