//! Defects of any lock, mostly of one that a single hold owns.

use crate::defects::shared::parts;
use crate::mutant::StoreMutant;
use leasehold_core::model::{LockState, QueueEntryId};
use leasehold_core::{
    Acquired, Claim, Extended, FencingToken, HoldId, Liveness, ObservedHolder, Op, Release, ReleaseAction,
    Reply, SessionId,
};

pub(crate) fn mutate_operation(mutant: StoreMutant, state: &LockState, op: &mut Op) {
    let last_holder = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
    let part = parts(state).and_then(|parts| parts.holds.first());
    let part = part.map(|part| Claim { hold: part.hold, value: part.owner.clone() });
    let holder =
        last_holder.map(|last_holder| &last_holder.claim).filter(|_| state.value.is_some()).or(part.as_ref());
    match (mutant, op) {
        (StoreMutant::ReleasesAnyHold, Op::Release(release)) => {
            release.claim = holder.unwrap_or(&release.claim).clone();
        }
        (StoreMutant::ValuesAlone, Op::Release(release)) if release.claim.value.is_some() => {
            let same = holder.filter(|holder| holder.value == release.claim.value);
            release.claim = same.unwrap_or(&release.claim).clone();
        }
        (StoreMutant::AlwaysGrants, Op::Release(release)) => release.action = ReleaseAction::Grant,
        (
            StoreMutant::ExtendsCooldown,
            Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. }),
        ) => {
            *for_ms += 60_000;
        }
        // The hold lasts as if no request about it had been sent.
        (StoreMutant::CooldownHasHolder, Op::Release(release))
            if matches!(release.action, ReleaseAction::Cooldown { .. }) =>
        {
            release.claim = Claim::new(HoldId::from_random(SessionId::from_random([0xee; 12]), [0; 16]));
        }
        (StoreMutant::WholeSeconds, Op::Acquire(request)) => {
            request.lease_ms = request.lease_ms / 1000 * 1000;
        }
        (StoreMutant::EvictsDetached, Op::Acquire(request)) => {
            request.liveness = Liveness::Session { alive_ms: 1 }
        }
        (StoreMutant::ForceReleasesAnyHold, Op::ForceRelease(free)) => {
            let last = state.record.as_ref().and_then(|record| record.last_fence);
            free.observed = last.map_or(free.observed, ObservedHolder::Hold);
        }
        (StoreMutant::AdoptsUnasked, Op::Acquire(request)) => {
            request.expire_foreign_ms.get_or_insert(1000);
        }
        _ => {}
    }
}

pub(crate) fn mutate_state(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    let LockState { value: Some(value), record: Some(record), .. } = state else {
        if let (StoreMutant::ForgetsEnded | StoreMutant::Barges, Some(record)) = (mutant, &mut state.record) {
            if mutant == StoreMutant::ForgetsEnded {
                record.ended.holds.clear();
            }
            if let (StoreMutant::Barges, Op::Acquire(_)) = (mutant, op) {
                record.tickets.clear();
                record.entries.clear();
            }
        }
        return;
    };
    match (mutant, op) {
        (StoreMutant::ForgetsEnded, _) => record.ended.holds.clear(),
        // There may be capacity beside the holders.
        (StoreMutant::Barges, Op::Acquire(_)) if state.kind.is_shared() => {
            record.tickets.clear();
            record.entries.clear();
        }
        (StoreMutant::ExtendShortens, Op::Extend(extend))
            if value.content.token() == Some(&*extend.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + extend.lease_ms);
        }
        (StoreMutant::PollsExtend, Op::Acquire(request))
            if value.content.token() == Some(&*request.claim.token()) =>
        {
            value.expires_ms = Some(now_ms + request.lease_ms);
        }
        (StoreMutant::PollsLoseTheEntry, Op::Acquire(request)) => {
            if let Some(place) = record.entries.remove(&QueueEntryId::of(state.kind, &request.claim.hold)) {
                record.tickets.remove(&place.ticket);
            }
        }
        _ => {}
    }
}

pub(crate) fn mutate_reply(mutant: StoreMutant, reply: &mut Reply) {
    match (mutant, reply) {
        (StoreMutant::ExtendsNothing, Reply::Extend(extended)) => *extended = Extended::Extended,
        (StoreMutant::HidesWaiters, Reply::Extend(Extended::Reserved { others_wait, .. })) => {
            *others_wait = false;
        }
        (StoreMutant::OmitsRemainingCount, Reply::Release(released)) => released.remaining_holds = 0,
        (StoreMutant::OneToken, Reply::Acquire(Acquired::Granted { fence, .. })) => {
            *fence = FencingToken::new(7);
        }
        (StoreMutant::OneToken, Reply::Inspect(inspection)) => {
            if let Some(holder) = &mut inspection.holder {
                holder.fence = Some(FencingToken::new(7));
            }
        }
        _ => {}
    }
}
