//! Mutants of locks with several holders: see [`Mutant`].

use crate::mutants::Mutant;
use leasehold_core::model::{
    Content, LockState, QueueEntryId, SessionLookup, SharedHold, SharedHolders, Value,
};
use leasehold_core::{Acquire, Extended, HoldStatus, LockMode, Notification, Op, Reply, Resize};
use std::mem;

impl Mutant {
    /// Whether it affects only locks with several holders.
    pub const fn is_of_shared_locks(self) -> bool {
        matches!(
            self,
            Self::ReaderBesideWriter
                | Self::UpgradeBesideReaders
                | Self::TwoMayWrite
                | Self::TwoMayUpgrade
                | Self::PermitsWeighOne
                | Self::LateReleaseFreesAnother
                | Self::ExtendExtendsAllHolders
                | Self::ReadersBarge
                | Self::ResizeWithoutComparing
                | Self::ResizeGrantsNothing
                | Self::OnlyFirstGrantIsPublished
                | Self::BarrierLacksOne
                | Self::LatchOpensEarly
        )
    }

    /// Executes an operation on a lock that can have several holders.
    pub(crate) fn apply_to_shared(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let writes = |hold: &SharedHold| matches!(hold.mode, LockMode::Write | LockMode::Upgrade);
        let reads = |hold: &SharedHold| hold.mode == LockMode::Read;
        let upgradable = |hold: &SharedHold| hold.mode == LockMode::Upgradable;
        let mode = if let Op::Acquire(request) = op { request.mode } else { LockMode::Exclusive };
        match (self, op, mode) {
            (Self::ReaderBesideWriter, _, LockMode::Read) | (Self::TwoMayWrite, _, LockMode::Write) => {
                without(state, writes, now_us, op, alive)
            }
            (Self::UpgradeBesideReaders, _, LockMode::Upgrade) => without(state, reads, now_us, op, alive),
            (Self::TwoMayUpgrade, _, LockMode::Upgradable) => without(state, upgradable, now_us, op, alive),
            (Self::PermitsWeighOne, _, LockMode::Permits { .. }) => {
                with_one_permit_each(state, now_us, op, alive)
            }
            (Self::ReadersBarge, Op::Acquire(request), LockMode::Read) => {
                barge(state, now_us, request, alive)
            }
            (Self::BarrierLacksOne, Op::Acquire(request), LockMode::BarrierWait { total: 2.. })
            | (Self::LatchOpensEarly, Op::Acquire(request), LockMode::LatchWait { total: 2.. }) => {
                with_one_fewer(state, now_us, request, alive)
            }
            (Self::ResizeWithoutComparing, Op::Resize(resize), _) => {
                let observed = state.record.as_ref().and_then(|record| record.limit);
                state.apply(now_us, &Op::Resize(Resize { observed, ..*resize }), alive)
            }
            (Self::ResizeGrantsNothing, Op::Resize(_), _) => {
                let hidden = state.record.as_mut().map(|record| mem::take(&mut record.tickets));
                let done = state.apply(now_us, op, alive);
                if let (Some(record), Some(hidden)) = (&mut state.record, hidden) {
                    record.tickets = hidden;
                }
                done
            }
            _ => {
                let (reply, mut notifications) = state.apply(now_us, op, alive);
                self.mutate_holders(state, op, &reply);
                if self == Self::OnlyFirstGrantIsPublished {
                    notifications.truncate(1);
                }
                (reply, notifications)
            }
        }
    }

    /// Changes the state after an operation that the model has executed.
    fn mutate_holders(self, state: &mut LockState, op: &Op, reply: &Reply) {
        let Some(Value { content: Content::SharedHolders(holders), expires_ms }) = &mut state.value else {
            return;
        };
        let removes_first = match (self, reply) {
            (Self::LateReleaseFreesAnother, Reply::Release(released)) => {
                matches!(released.status, HoldStatus::Vanished | HoldStatus::Ended(_))
            }
            (Self::ExtendExtendsAllHolders, Reply::Extend(Extended::Extended)) => {
                if let Op::Extend(extend) = op
                    && let Some(until_ms) = holders.find(&extend.claim.hold).map(|hold| hold.until_ms)
                {
                    let each = holders.holds.iter_mut();
                    each.for_each(|hold| hold.until_ms = hold.until_ms.max(until_ms));
                    *expires_ms = (*expires_ms).max(Some(until_ms));
                }
                false
            }
            _ => false,
        };
        if removes_first {
            holders.holds.remove(0);
            if holders.holds.is_empty() {
                state.value = None;
            }
        }
    }
}

/// Executes an acquire as if the queue were empty.
pub(crate) fn barge(
    state: &mut LockState,
    now_us: u64,
    request: &Acquire,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    // Hides the queue while the acquire is executed.
    let hidden = state.record.as_mut().map(|record| {
        let own = record.entries.remove(&QueueEntryId::of(state.kind, &request.claim.hold));
        let hidden = (mem::take(&mut record.tickets), mem::take(&mut record.entries));
        drop(own);
        hidden
    });
    let done = state.apply(now_us, &Op::Acquire(request.clone()), alive);
    if let (Some(record), Some((tickets, places))) = (&mut state.record, hidden) {
        for (ticket, id) in tickets {
            if let Some(entry) = places.get(&id)
                && !record.entries.contains_key(&id)
            {
                record.tickets.insert(ticket, id);
                record.entries.insert(id, entry.clone());
            }
        }
    }
    done
}

/// Executes an operation as if some holds did not exist.
fn without(
    state: &mut LockState,
    hides: impl Fn(&SharedHold) -> bool,
    now_us: u64,
    op: &Op,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let own = if let Op::Acquire(request) = op { Some(request.claim.hold) } else { None };
    let mut hidden = Vec::new();
    if let Some(Value { content: Content::SharedHolders(holders), .. }) = &mut state.value {
        let is_hidden = |hold: &SharedHold| hides(hold) && Some(hold.hold) != own;
        (hidden, holders.holds) = mem::take(&mut holders.holds).into_iter().partition(is_hidden);
    }
    let done = state.apply(now_us, op, alive);
    // Holds that have ended meanwhile do not return.
    hidden.retain(|hold| hold.until_ms >= now_us / 1000);
    if hidden.is_empty() {
        return done;
    }
    let empty = Value { content: Content::SharedHolders(SharedHolders::default()), expires_ms: None };
    if let Value { content: Content::SharedHolders(holders), expires_ms } = state.value.get_or_insert(empty) {
        holders.holds.extend(hidden);
        holders.holds.sort_by_key(|hold| hold.fence);
        *expires_ms = holders.holds.iter().map(|hold| hold.until_ms).max();
    }
    done
}

/// Executes an operation as if every holder had one permit.
fn with_one_permit_each(
    state: &mut LockState,
    now_us: u64,
    op: &Op,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let mut weights = Vec::new();
    if let Some(Value { content: Content::SharedHolders(holders), .. }) = &mut state.value {
        for hold in &mut holders.holds {
            weights.push((hold.hold, hold.mode));
            if let LockMode::Permits { count, .. } = &mut hold.mode {
                *count = 1;
            }
        }
    }
    let done = state.apply(now_us, op, alive);
    if let Some(Value { content: Content::SharedHolders(holders), .. }) = &mut state.value {
        for hold in &mut holders.holds {
            let known = weights.iter().find(|(other, _)| *other == hold.hold);
            hold.mode = known.map_or(hold.mode, |(_, mode)| *mode);
        }
    }
    done
}

/// Executes an acquire as if one party fewer were required.
fn with_one_fewer(
    state: &mut LockState,
    now_us: u64,
    request: &Acquire,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let less = |mode: &mut LockMode| {
        if let LockMode::BarrierWait { total } | LockMode::LatchWait { total } = mode {
            *total -= 1;
        }
    };
    let more = |mode: &mut LockMode| {
        if let LockMode::BarrierWait { total } | LockMode::LatchWait { total } = mode {
            *total += 1;
        }
    };
    let mut fewer = request.clone();
    less(&mut fewer.mode);
    each_mode(state, less);
    let limit = state.record.as_mut().and_then(|record| record.limit.as_mut());
    if let Some(limit) = limit {
        *limit -= 1;
    }
    let done = state.apply(now_us, &Op::Acquire(fewer), alive);
    each_mode(state, more);
    if let Some(record) = &mut state.record {
        record.limit = request.mode.total();
    }
    done
}

fn each_mode(state: &mut LockState, mut each: impl FnMut(&mut LockMode)) {
    for entry in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
        each(&mut entry.mode);
    }
    if let Some(Value { content: Content::SharedHolders(holders), .. }) = &mut state.value {
        holders.holds.iter_mut().for_each(|hold| each(&mut hold.mode));
    }
}
