//! Server mutants of local hand-off: see [`Mutant`].

use crate::mutants::Mutant;
use leasehold_core::model::{LockState, Reserved, SessionLookup};
use leasehold_core::{Acquired, Extend, Extended, FencingToken, Notification, Op, Reply, TokenBlock};

/// More tokens than the clock advances by in a second.
const FAR_TOO_MANY: u32 = 1_000_000;

impl Mutant {
    /// Whether it affects only local hand-off and caching.
    pub(crate) const fn is_of_handoffs(self) -> bool {
        matches!(
            self,
            Self::ReservesWithoutHold
                | Self::BlockExceedsReservation
                | Self::BlockOutrunsClock
                | Self::BlockIgnoresReserved
                | Self::WaitersAreNotReported
        )
    }

    /// Executes an operation on a lock that is handed off locally.
    pub(crate) fn apply_to_handoffs(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let (mut reply, mut notifications) = state.apply(now_us, op, alive);
        if self == Self::WaitersAreNotReported {
            notifications.retain(|notification| !matches!(notification, Notification::Wanted { .. }));
            report_no_waiters(&mut reply);
        }
        if let Op::Extend(Extend { reserve: Some(reserve), .. }) = op
            && let Reply::Extend(extended) = &mut reply
        {
            self.reserve(state, now_us, reserve.tokens, extended);
        }
        (reply, notifications)
    }

    /// Changes the reply to a reservation that the model has executed.
    fn reserve(self, state: &mut LockState, now_us: u64, tokens: u32, extended: &mut Extended) {
        let Some(record) = &mut state.record else { return };
        let last = record.last_fence.map_or(0, FencingToken::as_u64);
        let notify_wanted = record.reserved.is_some_and(|reserved| reserved.notify_wanted);
        let mut remember = |last_fence| record.reserved = Some(Reserved { last_fence, notify_wanted });
        match (self, extended) {
            (Self::ReservesWithoutHold, extended @ Extended::NotHeld) => {
                let greatest = record.last_fence.max(record.reserved.map(|reserved| reserved.last_fence));
                let (block, last_fence) = TokenBlock::after(greatest, now_us, tokens);
                record.reserved = Some(Reserved { last_fence, notify_wanted });
                *extended = Extended::Reserved { block, others_wait: false };
            }
            (Self::BlockExceedsReservation, Extended::Reserved { block, .. }) => {
                *block = block
                    .first()
                    .map_or(TokenBlock::EMPTY, |first| TokenBlock::new(first, TokenBlock::MAX_LEN));
            }
            (Self::BlockOutrunsClock, Extended::Reserved { block, .. }) => {
                let Some(first) = block.first() else { return };
                *block = TokenBlock::new(first, FAR_TOO_MANY);
                remember(FencingToken::new(first.as_u64() + u64::from(FAR_TOO_MANY) - 1));
            }
            (Self::BlockIgnoresReserved, Extended::Reserved { block, .. }) => {
                *block = TokenBlock::new(FencingToken::new(last + 1), TokenBlock::MAX_LEN);
                remember(FencingToken::new(last + u64::from(TokenBlock::MAX_LEN)));
            }
            _ => {}
        }
    }
}

fn report_no_waiters(reply: &mut Reply) {
    let acquired = match reply {
        Reply::Extend(Extended::Reserved { others_wait, .. }) => {
            *others_wait = false;
            return;
        }
        Reply::Acquire(acquired) => Some(acquired),
        Reply::Release(released) => released.next.as_mut().and_then(|next| next.as_mut().ok()),
        _ => None,
    };
    if let Some(Acquired::Granted { others_wait, .. }) = acquired {
        *others_wait = false;
    }
}
