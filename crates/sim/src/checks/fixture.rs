//! A lock at a store, as the tests of the checks see it.

use super::{CheckContext, Promises};
use crate::event::{Execution, LockId};
use crate::world::scheduler::HostId;
use crate::world::time::{Clock, Instant};
use leasehold_core::model::{LockState, SessionStatus, Sessions, all_alive};
use leasehold_core::{Acquire, Claim, HoldId, Kind, Label, Liveness, LockMode, Op, Reply, SessionId};

pub(super) const LOCK: LockId = LockId(0);
pub(super) const HOST: HostId = HostId(0);

/// A lock, with the clock of its server.
pub(super) struct StoredLock {
    pub(super) state: LockState,
    pub(super) clock: Clock,
}

impl StoredLock {
    pub(super) fn new(kind: Kind) -> Self {
        Self { state: LockState::new(kind), clock: Clock::new(1_760_000_000_000_000, 0) }
    }

    /// Executes an operation. `change` alters the state and the reply that `observe` sees. Sessions have no records; those
    /// for which `is_dead` is true count as dead.
    pub(super) fn execute<T>(
        &mut self,
        at: Instant,
        op: &Op,
        is_dead: impl Fn(SessionId) -> bool,
        change: impl FnOnce(&mut LockState, &mut Reply),
        observe: impl FnOnce(&Execution<'_>) -> T,
    ) -> T {
        let status = |session| if is_dead(session) { SessionStatus::Lapsed } else { all_alive(session) };
        let (mut reply, notifications) = self.state.apply(self.clock.reading_us(at), op, &status);
        let mut state = self.state.clone();
        change(&mut state, &mut reply);
        observe(&Execution {
            host: HOST,
            message: 0,
            server: 0,
            is_copy: false,
            is_stale: false,
            in_multi_acquire: false,
            lock: LOCK,
            op,
            reply: &reply,
            notifications: &notifications,
            state: &state,
            sessions: &Sessions::default(),
            clock: &self.clock,
        })
    }
}

/// The context of checks of one lock.
pub(super) fn context(kind: Kind) -> CheckContext {
    CheckContext::new(Promises { exclusion: true, clocks: true }, false, vec![kind])
}

pub(super) fn hold(n: u8) -> HoldId {
    HoldId::from_random(SessionId::from_random([1; 12]), [n; 16])
}

/// An acquire for a second, without a place in the queue, whose hold ends by its lease alone.
pub(super) fn acquire(claim: Claim, mode: LockMode) -> Acquire {
    Acquire {
        claim,
        lease_ms: 1_000,
        label: Label::new("a client").expect("a plain text"),
        queue: None,
        expire_foreign_ms: None,
        liveness: Liveness::Lease,
        predecessor: None,
        mode,
    }
}
