//! Mutants of locks with several holders: see [`Mutant`].

use crate::mutants::Mutant;
use leasehold_core::model::{
    Content, LockState, QueueEntryId, SessionLookup, SharedHold, SharedHolders, Value,
};
use leasehold_core::{Acquire, Extended, HoldStatus, LockMode, Notification, Op, Reply, Resize};
use std::mem;

impl Mutant {
    /// Whether it shows only where several have a lock side by side.
    pub const fn is_of_shared_locks(self) -> bool {
        matches!(
            self,
            Self::ReaderBesideWriter
                | Self::UpgradeBesideReaders
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

    /// Executes an operation on a lock that several can have side by side.
    pub(crate) fn apply_to_shared(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let writes = |part: &SharedHold| matches!(part.mode, LockMode::Write | LockMode::Upgrade);
        let reads = |part: &SharedHold| part.mode == LockMode::Read;
        let may = |part: &SharedHold| part.mode == LockMode::Upgradable;
        let mode = if let Op::Acquire(ask) = op { ask.mode } else { LockMode::Exclusive };
        match (self, op, mode) {
            (Self::ReaderBesideWriter, _, LockMode::Read) => without(state, writes, now_us, op, alive),
            (Self::UpgradeBesideReaders, _, LockMode::Upgrade) => without(state, reads, now_us, op, alive),
            (Self::TwoMayUpgrade, _, LockMode::Upgradable) => without(state, may, now_us, op, alive),
            (Self::PermitsWeighOne, _, LockMode::Permits { .. }) => weightless(state, now_us, op, alive),
            (Self::ReadersBarge, Op::Acquire(ask), LockMode::Read) => barge(state, now_us, ask, alive),
            (Self::BarrierLacksOne, Op::Acquire(ask), LockMode::BarrierWait { total: 2.. })
            | (Self::LatchOpensEarly, Op::Acquire(ask), LockMode::LatchWait { total: 2.. }) => {
                one_less(state, now_us, ask, alive)
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
                let (reply, mut wakes) = state.apply(now_us, op, alive);
                self.mutate_holders(state, op, &reply);
                if self == Self::OnlyFirstGrantIsPublished {
                    wakes.truncate(1);
                }
                (reply, wakes)
            }
        }
    }

    /// Changes the state after an operation that the model has executed.
    fn mutate_holders(self, state: &mut LockState, op: &Op, reply: &Reply) {
        let Some(Value { content: Content::SharedHolders(parts), expires_ms }) = &mut state.value else {
            return;
        };
        let goes = match (self, reply) {
            (Self::LateReleaseFreesAnother, Reply::Release(released)) => {
                matches!(released.status, HoldStatus::Vanished | HoldStatus::Ended(_))
            }
            (Self::ExtendExtendsAllHolders, Reply::Extend(Extended::Extended)) => {
                if let Op::Extend(extend) = op
                    && let Some(until_ms) = parts.find(&extend.claim.hold).map(|part| part.until_ms)
                {
                    let each = parts.holds.iter_mut();
                    each.for_each(|part| part.until_ms = part.until_ms.max(until_ms));
                    *expires_ms = (*expires_ms).max(Some(until_ms));
                }
                false
            }
            _ => false,
        };
        if goes {
            parts.holds.remove(0);
            if parts.holds.is_empty() {
                state.value = None;
            }
        }
    }
}

/// Executes an acquire as if the queue were empty.
pub(crate) fn barge(
    state: &mut LockState,
    now_us: u64,
    ask: &Acquire,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    // Hides the queue while the acquire is executed.
    let hidden = state.record.as_mut().map(|record| {
        let mine = record.entries.remove(&QueueEntryId::of(state.kind, &ask.claim.hold));
        let hidden = (mem::take(&mut record.tickets), mem::take(&mut record.entries));
        drop(mine);
        hidden
    });
    let done = state.apply(now_us, &Op::Acquire(ask.clone()), alive);
    if let (Some(record), Some((tickets, places))) = (&mut state.record, hidden) {
        for (ticket, id) in tickets {
            if let Some(place) = places.get(&id)
                && !record.entries.contains_key(&id)
            {
                record.tickets.insert(ticket, id);
                record.entries.insert(id, place.clone());
            }
        }
    }
    done
}

/// Executes an operation as if some parts were not there.
fn without(
    state: &mut LockState,
    hides: impl Fn(&SharedHold) -> bool,
    now_us: u64,
    op: &Op,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let own = if let Op::Acquire(ask) = op { Some(ask.claim.hold) } else { None };
    let mut hidden = Vec::new();
    if let Some(Value { content: Content::SharedHolders(parts), .. }) = &mut state.value {
        let goes = |part: &SharedHold| hides(part) && Some(part.hold) != own;
        let (away, left) = mem::take(&mut parts.holds).into_iter().partition(goes);
        (hidden, parts.holds) = (away, left);
    }
    let done = state.apply(now_us, op, alive);
    // Holds that have ended meanwhile do not return.
    hidden.retain(|part| part.until_ms >= now_us / 1000);
    if hidden.is_empty() {
        return done;
    }
    let empty = Value { content: Content::SharedHolders(SharedHolders::default()), expires_ms: None };
    if let Value { content: Content::SharedHolders(parts), expires_ms } = state.value.get_or_insert(empty) {
        parts.holds.extend(hidden);
        parts.holds.sort_by_key(|part| part.fence);
        *expires_ms = parts.holds.iter().map(|part| part.until_ms).max();
    }
    done
}

/// Executes an operation as if every holder had one permit.
fn weightless(
    state: &mut LockState,
    now_us: u64,
    op: &Op,
    alive: SessionLookup<'_>,
) -> (Reply, Vec<Notification>) {
    let mut weights = Vec::new();
    if let Some(Value { content: Content::SharedHolders(parts), .. }) = &mut state.value {
        for part in &mut parts.holds {
            weights.push((part.hold, part.mode));
            if let LockMode::Permits { count, .. } = &mut part.mode {
                *count = 1;
            }
        }
    }
    let done = state.apply(now_us, op, alive);
    if let Some(Value { content: Content::SharedHolders(parts), .. }) = &mut state.value {
        for part in &mut parts.holds {
            let known = weights.iter().find(|(hold, _)| *hold == part.hold);
            part.mode = known.map_or(part.mode, |(_, mode)| *mode);
        }
    }
    done
}

/// Executes an acquire as if one party fewer were required.
fn one_less(
    state: &mut LockState,
    now_us: u64,
    ask: &Acquire,
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
    let mut asked = ask.clone();
    less(&mut asked.mode);
    each_mode(state, less);
    let limit = state.record.as_mut().and_then(|record| record.limit.as_mut());
    if let Some(limit) = limit {
        *limit -= 1;
    }
    let done = state.apply(now_us, &Op::Acquire(asked), alive);
    each_mode(state, more);
    if let Some(record) = &mut state.record {
        record.limit = ask.mode.total();
    }
    done
}

fn each_mode(state: &mut LockState, mut each: impl FnMut(&mut LockMode)) {
    for place in state.record.iter_mut().flat_map(|record| record.entries.values_mut()) {
        each(&mut place.mode);
    }
    if let Some(Value { content: Content::SharedHolders(parts), .. }) = &mut state.value {
        parts.holds.iter_mut().for_each(|part| each(&mut part.mode));
    }
}
