//! Defects of token reservations, and of notifications to the holder.

use crate::mutant::StoreMutant;
use leasehold_core::model::LockState;
use leasehold_core::{Acquired, FencingToken, Kind, Notification, Op, Reply, TokenBlock};

/// Defects of reservations.
pub(crate) fn mutate_reservation(mutant: StoreMutant, state: &mut LockState, op: &mut Op) {
    let is_mutex = state.kind == Kind::Mutex;
    let Some(record) = &mut state.record else { return };
    match (mutant, op) {
        (StoreMutant::ReservesOfAnyKind, Op::Extend(extend)) if !is_mutex => extend.reserve = None,
        (StoreMutant::ReservesForAnyHold, Op::Extend(extend)) => {
            extend.claim =
                record.last_holder.as_ref().map_or(&extend.claim, |last_holder| &last_holder.claim).clone();
        }
        (StoreMutant::ReservesAgain, Op::Extend(_))
        | (StoreMutant::GrantsReserved, Op::Acquire(_) | Op::Release(_)) => {
            record.reserved = None;
        }
        (
            StoreMutant::ReservesMore | StoreMutant::ReservesOne | StoreMutant::NotifiesUnasked,
            Op::Extend(extend),
        ) => {
            if let Some(reserve) = &mut extend.reserve {
                match mutant {
                    StoreMutant::ReservesMore => reserve.tokens = TokenBlock::MAX_LEN,
                    StoreMutant::ReservesOne => reserve.tokens = 1,
                    _ => reserve.notify_wanted = true,
                }
            }
        }
        (StoreMutant::NotifiesForEver, Op::Acquire(_)) => {
            if let (Some(reserved), Some(last)) = (&mut record.reserved, record.last_fence) {
                reserved.last_fence = reserved.last_fence.max(FencingToken::after(Some(last), 0));
            }
        }
        _ => {}
    }
}

/// Defects of notifications to the holder.
pub(crate) fn mutate_notifications(
    mutant: StoreMutant,
    state: &LockState,
    op: &Op,
    reply: &Reply,
    notifications: &mut Vec<Notification>,
) {
    if mutant == StoreMutant::NotifiesNoHolder {
        notifications.retain(|notification| !matches!(notification, Notification::Wanted { .. }));
    }
    let (Op::Acquire(request), Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })) = (op, reply)
    else {
        return;
    };
    let Some(record) = state.record.as_ref() else { return };
    let (Some(last_holder), Some(reserved), Some(fence)) =
        (&record.last_holder, record.reserved, record.last_fence)
    else {
        return;
    };
    let to = last_holder.claim.hold.session();
    let notifies = reserved.notify_wanted && reserved.last_fence > fence;
    let own = mutant == StoreMutant::NotifiesOfOwnRequest && to == request.claim.hold.session();
    let lost = mutant == StoreMutant::NotifiesLostHold && holder.is_foreign();
    if notifies && (own || lost) {
        notifications.push(Notification::Wanted { to, fence });
    }
}
