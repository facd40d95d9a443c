//! Defects of locks that several clients hold at once.

use crate::mutant::StoreMutant;
use leasehold_core::model::{Content, LockState, QueueEntryId, SharedHold, SharedHolders, Value, all_alive};
use leasehold_core::{
    Acquired, Claim, Enqueue, Evicted, ForceReleased, HoldId, LockMode, Op, OwnValue, Refused, ReleaseAction,
    Reply,
};

/// Defects in parsing a request for a mode.
pub(crate) fn mutate_request(mutant: StoreMutant, state: &LockState, op: &mut Op) {
    let waits = state.waiter_sessions().next().is_some();
    let held = |claim: &Claim| parts(state).is_some_and(|parts| parts.find(&claim.hold).is_some());
    let waiting = |claim: &Claim| {
        state
            .record
            .as_ref()
            .is_some_and(|record| record.entries.contains_key(&QueueEntryId::Hold(claim.hold)))
    };
    let known = state.record.as_ref().and_then(|record| record.limit);
    match (mutant, op) {
        (StoreMutant::ResendAcquiresAgain, Op::Acquire(request))
            if held(&request.claim) || waiting(&request.claim) =>
        {
            let again = u8::try_from(state.waiter_sessions().count()).unwrap_or(0) + 1;
            request.claim.hold = HoldId::from_random(request.claim.hold.session(), [again; 16]);
        }
        (StoreMutant::ReadersQueue, Op::Acquire(request)) if waits && request.mode == LockMode::Read => {
            request.claim.value = OwnValue::new("another").ok();
        }
        (StoreMutant::WritersQueue, Op::Acquire(request)) if waits && request.mode == LockMode::Write => {
            request.claim.value = OwnValue::new("another").ok();
        }
        (StoreMutant::ProclaimsForAll, Op::Proclaim(proclaim)) => {
            if let Some(record) = &state.record
                && let (Some(holder), Some(fence)) = (&record.last_holder, record.last_fence)
            {
                (proclaim.claim, proclaim.fence) = (holder.claim.clone(), fence);
                proclaim.observed = holder.label.clone();
            }
        }
        (StoreMutant::UpgradablesShare, Op::Acquire(request)) if request.mode == LockMode::Upgradable => {
            request.mode = LockMode::Read;
        }
        (StoreMutant::OpensEarly, Op::Acquire(request)) => {
            if let LockMode::CountDown { count: 1.., total } = request.mode {
                request.mode = LockMode::CountDown { count: total, total };
            }
        }
        (StoreMutant::TriesQueue, Op::Acquire(request)) => {
            let nonce = leasehold_core::Nonce::new(0, 7);
            request.queue.get_or_insert(Enqueue { nonce, ttl_ms: 60_000 });
        }
        (StoreMutant::AcceptsAnyMode, Op::Acquire(request)) if !request.mode.applies_to(state.kind) => {
            let all = ["-", "p1:1", "r", "a1:1", "m1:1"].into_iter().filter_map(LockMode::parse);
            request.mode = all.into_iter().find(|mode| mode.applies_to(state.kind)).unwrap_or_default();
        }
        (StoreMutant::InventsOwners, Op::Acquire(request)) if request.claim.value.is_none() => {
            request.claim.value = OwnValue::new("invented").ok();
        }
        (StoreMutant::AcceptsAnyParties, Op::Acquire(request)) => {
            request.mode = match (request.mode, known) {
                (LockMode::CountDown { count, .. }, Some(of)) => LockMode::CountDown { count, total: of },
                (LockMode::LatchWait { .. }, Some(of)) => LockMode::LatchWait { total: of },
                (LockMode::BarrierWait { .. }, Some(of)) => LockMode::BarrierWait { total: of },
                (mode, _) => mode,
            };
        }
        (StoreMutant::KeepsAllPermits, Op::Release(release)) => {
            if let ReleaseAction::KeepPermits { count } = &mut release.action {
                *count = u32::MAX;
            }
        }
        (StoreMutant::ReturnsAllPermits, Op::Release(release)) => release.action = ReleaseAction::Grant,
        (StoreMutant::ResizesUnseen, Op::Resize(resize)) => resize.observed = known,
        (StoreMutant::ResizeIsAgreed, Op::Resize(resize)) => resize.agreed = true,
        _ => {}
    }
}

/// Defects of locks with several holders.
pub(crate) fn mutate_shared_holders(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    if let Some(record) = &mut state.record {
        match (mutant, op) {
            (StoreMutant::ExceedsPermits, Op::Acquire(_)) if record.limit.is_some() => {
                record.limit = Some(u32::MAX);
            }
            (StoreMutant::AcceptsAnyLimit, Op::Acquire(request)) => record.limit = request.mode.total(),
            (StoreMutant::OneEntryPerSession, Op::Acquire(request)) => {
                let mine = |id: &QueueEntryId| id.session() == request.claim.hold.session();
                record.tickets.retain(|_, id| !mine(id));
                record.entries.retain(|id, _| !mine(id));
            }
            (StoreMutant::CountsExpiredParties, _) => {
                record.entries.values_mut().for_each(|place| place.expires_ms = u64::MAX);
            }
            _ => {}
        }
    }
    let Some(Value { content: Content::SharedHolders(parts), expires_ms }) = &mut state.value else { return };
    match (mutant, op) {
        (StoreMutant::SharedHoldsEndTogether, _) => {
            let last_ms = parts.holds.iter().map(|part| part.until_ms).max().unwrap_or(now_ms);
            parts.holds.iter_mut().for_each(|part| part.until_ms = last_ms);
        }
        (StoreMutant::WriterIsShared, Op::Acquire(_)) => {
            let writes = |part: &&mut SharedHold| part.mode == LockMode::Write;
            parts.holds.iter_mut().filter(writes).for_each(|part| part.mode = LockMode::Read);
        }
        (StoreMutant::ResizeEvicts, Op::Resize(_)) => parts.holds.truncate(1),
        (StoreMutant::ExtendShortens, Op::Extend(extend)) => {
            let until_ms = now_ms + extend.lease_ms;
            parts.holds.iter_mut().for_each(|part| part.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        _ => {}
    }
}

/// Defects after an operation on a lock with several holders.
pub(crate) fn mutate_result(
    mutant: StoreMutant,
    before: &LockState,
    state: &mut LockState,
    op: &Op,
    reply: &mut Reply,
) {
    let hopeless = matches!(
        reply,
        Reply::Refused(Refused::OutOfRange { .. } | Refused::WouldDeadlock | Refused::NothingToUpgrade)
    );
    let waited = before.waiter_sessions().next().is_some();
    match (mutant, op, &mut *reply) {
        (StoreMutant::WaitsForEver, Op::Acquire(_), reply) if hopeless => {
            let (holder, position, predecessor, others) = (None, None, None, Vec::new());
            *reply = Reply::Acquire(Acquired::Taken { holder, position, predecessor, other_holders: others });
        }
        (StoreMutant::KeepsImpossibleEntries, Op::Resize(_), _) => {
            if let (Some(record), Some(old)) = (&mut state.record, &before.record) {
                (record.tickets, record.entries) = (old.tickets.clone(), old.entries.clone());
            }
        }
        (
            StoreMutant::ForceReleasesAll,
            Op::ForceRelease(_),
            Reply::ForceRelease(ForceReleased::Released),
        ) => {
            state.value = None;
        }
        (StoreMutant::HidesOthers, _, Reply::Acquire(Acquired::Taken { other_holders: others, .. })) => {
            others.clear();
        }
        (StoreMutant::HidesHolders, _, Reply::Inspect(inspection)) => inspection.shared_holders.truncate(1),
        (StoreMutant::EvictsOne, Op::Evict(_), Reply::Evict(Evicted::Removed { .. })) => {
            let lost = parts(before).and_then(|parts| parts.holds.last()).cloned();
            if let (Some(lost), Some(Value { content: Content::SharedHolders(parts), .. })) =
                (lost, &mut state.value)
            {
                parts.holds.push(lost);
            }
            if let Some(audit) = &mut state.audit {
                audit.entries.truncate(1);
            }
        }
        (StoreMutant::UpgradesQueue, Op::Acquire(request), reply)
            if waited && request.mode == LockMode::Upgrade =>
        {
            state.clone_from(before);
            let mut later = request.clone();
            later.mode = LockMode::Write;
            later.claim.value = OwnValue::new("another").ok();
            *reply = state.apply(1_762_000_000_000_000, &Op::Acquire(later), &all_alive).0;
        }
        _ => {}
    }
}

pub(crate) fn parts(state: &LockState) -> Option<&SharedHolders> {
    state.value.as_ref()?.content.shared_holders()
}
