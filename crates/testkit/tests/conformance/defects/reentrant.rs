//! Defects of a ReentrantMutex.

use crate::mutant::StoreMutant;
use leasehold_core::model::{Content, LockState, ReentrantHolds, Value};
use leasehold_core::{Acquire, FencingToken, Op, OwnValue};

/// Defects of a ReentrantMutex.
pub(crate) fn mutate_entries(mutant: StoreMutant, state: &mut LockState, now_ms: u64, op: &Op) {
    let Some(Value { content: Content::ReentrantHolds(entries), expires_ms }) = &mut state.value else {
        return;
    };
    match (mutant, op) {
        (StoreMutant::CountsTwice, Op::Acquire(request)) if entries.find(&request.claim.hold).is_some() => {
            entries.count += 1;
        }
        (StoreMutant::EntryShortens, Op::Acquire(request)) if reenters(entries, request) => {
            let until_ms = now_ms + request.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = until_ms);
            *expires_ms = Some(until_ms);
        }
        (StoreMutant::EntryExtendsUnknownHolds, Op::Acquire(request)) if reenters(entries, request) => {
            let until_ms = now_ms + entries.lease_ms;
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = entry.until_ms.max(until_ms));
        }
        (StoreMutant::MixesOwners, Op::Acquire(request)) => {
            let alike = |owner: &str| owner.chars().next().map(|first| first.to_ascii_lowercase());
            let mine = request.claim.value.as_ref().map(OwnValue::as_str).unwrap_or_default();
            if alike(mine) == alike(entries.owner.as_str()) {
                entries.owner = request.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
        }
        (StoreMutant::ExpiredHoldsCount, _) => {
            let lie = entries.holds.len();
            entries.holds.retain(|entry| entry.until_ms >= now_ms);
            if lie > entries.holds.len() && !entries.holds.is_empty() {
                *expires_ms = Some(now_ms + 1_000_000_000);
            }
        }
        (StoreMutant::InnerReleaseFrees, Op::Release(release))
            if entries.find(&release.claim.hold).is_some() =>
        {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = 1;
        }
        (StoreMutant::EntryHasItsToken, Op::Acquire(request)) if reenters(entries, request) => {
            entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
        }
        (StoreMutant::EntriesQueue, Op::Acquire(request)) if reenters(entries, request) => {
            // No client has this owner, so none re-enters.
            entries.owner = OwnValue::new("another").unwrap_or_else(|_| entries.owner.clone());
        }
        (StoreMutant::FreesBeforeNextAcquire, Op::Release(release)) if release.next.is_some() => {
            entries.holds.retain(|entry| entry.hold == release.claim.hold);
            entries.count = entries.holds.len() as u64;
        }
        (StoreMutant::NotifiesOneProcess, Op::ForceRelease(_)) => entries.holds.truncate(1),
        (StoreMutant::AllHoldsEndTogether, _) | (StoreMutant::ReleaseSetsRemainingExpiry, Op::Release(_)) => {
            let last_ms = entries.holds.iter().map(|entry| entry.until_ms).max().unwrap_or(now_ms);
            entries.holds.iter_mut().for_each(|entry| entry.until_ms = last_ms);
        }
        (StoreMutant::EvictsTheOwner, Op::Evict(evict)) => {
            let dead = entries.holds.iter().any(|entry| entry.hold.session() == evict.session);
            if dead {
                entries.holds.retain(|entry| entry.hold.session() == evict.session);
                entries.count = entries.holds.len() as u64;
            }
        }
        _ => {}
    }
}

/// Whether an acquire re-enters.
pub(crate) fn reenters(entries: &ReentrantHolds, request: &Acquire) -> bool {
    request.claim.value.as_ref() == Some(&entries.owner) && entries.find(&request.claim.hold).is_none()
}
