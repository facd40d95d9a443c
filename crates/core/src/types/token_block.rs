//! A block of fencing tokens that the store reserves in advance.
//!
//! 1. The last token of a block is less than [`TokenBlock::MAX_AHEAD`] microseconds ahead of the store's clock: a store
//!    that loses its data starts anew from that clock. Most tokens stand for microseconds that have passed since the
//!    grant, or since the previous block: no other client can have received these, because it would need to hold the
//!    lock. None is older than [`TokenBlock::MAX_LEN`] microseconds: a fail-over that loses the reservation, and takes
//!    longer than that, gives none of them twice.

use crate::FencingToken;

/// Fencing tokens that the store has reserved for a hold, for the tasks to which its process hands it off.
///
/// ```
/// use leasehold_core::model::{LockState, all_alive};
/// use leasehold_core::{
///     Acquire, Claim, Extend, Extended, HoldId, Label, Liveness, Op, LockMode, Reply, Reserve, SessionId,
/// };
///
/// let mut lock = LockState::default();
/// let claim = Claim::new(HoldId::from_random(SessionId::from_random([7; 12]), [1; 16]));
/// let (label, liveness) = (Label::new("billing")?, Liveness::Session { alive_ms: 10_000 });
/// let request = Acquire {
///     claim: claim.clone(), lease_ms: 3_000, label, queue: None, expire_foreign_ms: None, liveness, predecessor: None,
///     mode: LockMode::Exclusive,
/// };
/// lock.apply(5_000_000, &Op::Acquire(request), &all_alive);
///
/// let reserve = Some(Reserve { tokens: 32, notify_wanted: false });
/// let extend = Op::Extend(Extend { claim, lease_ms: 3_000, keep_record: false, reserve, fence: None });
/// let (reply, _) = lock.apply(5_000_400, &extend, &all_alive);
/// let Reply::Extend(Extended::Reserved { mut block, .. }) = reply else { panic!("it is held") };
/// assert_eq!(block.pop_first().map(u64::from), Some(5_000_001)); // after the hold's own token
/// assert_eq!(block.remaining(), 31);
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBlock {
    next: FencingToken,
    remaining: u32,
}

impl TokenBlock {
    /// The maximum number of tokens in a block: one token per microsecond of the store's clock.
    pub const MAX_LEN: u32 = 1024;

    /// How many of them may be ahead of the store's clock, including the current microsecond.
    pub const MAX_AHEAD: u32 = 32;

    /// No token at all.
    pub const EMPTY: Self = Self { next: FencingToken::new(0), remaining: 0 };

    /// A block of `count` tokens, starting with `first`.
    pub const fn new(first: FencingToken, count: u32) -> Self {
        Self { next: first, remaining: count }
    }

    /// The block after `greatest`, the greatest token that was given or reserved, at `now_us` microseconds of
    /// the store's clock (1); and its last token.
    pub fn after(greatest: Option<FencingToken>, now_us: u64, tokens: u32) -> (Self, FencingToken) {
        // Without an earlier token, the tokens given in the past are unknown.
        let past = greatest.map_or(0, |_| u64::from(Self::MAX_LEN - Self::MAX_AHEAD));
        let first = FencingToken::after(greatest, now_us.saturating_sub(past)).as_u64();
        let wanted = u64::from(tokens.clamp(1, Self::MAX_LEN));
        let furthest = (now_us + u64::from(Self::MAX_AHEAD) - 1).min(FencingToken::MAX.as_u64());
        let last = (first + wanted - 1).min(furthest).max(first);
        let count = u32::try_from(last - first + 1).unwrap_or(1);
        (Self::new(FencingToken::new(first), count), FencingToken::new(last))
    }

    /// How many are left.
    pub const fn remaining(&self) -> u32 {
        self.remaining
    }

    /// The first of those that are left.
    pub fn first(&self) -> Option<FencingToken> {
        (self.remaining > 0).then_some(self.next)
    }

    /// Takes the next one.
    pub fn pop_first(&mut self) -> Option<FencingToken> {
        let token = self.first()?;
        (self.next, self.remaining) = (FencingToken::new(token.as_u64() + 1), self.remaining - 1);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_never_outruns_the_clock() {
        let ends = |last: Option<u64>, now_us, tokens| {
            let (block, upto) = TokenBlock::after(last.map(FencingToken::new), now_us, tokens);
            assert_eq!(block.next.as_u64() + u64::from(block.remaining()) - 1, upto.as_u64());
            (block.next.as_u64(), upto.as_u64())
        };
        assert_eq!(ends(None, 10_000, 32), (10_000, 10_031));
        assert_eq!(ends(None, 10_000, u32::MAX), (10_000, 10_031), "the earlier tokens are unknown");
        assert_eq!(ends(None, 10_000, 0), (10_000, 10_000));
        assert_eq!(
            ends(Some(10_031), 10_010, TokenBlock::MAX_LEN),
            (10_032, 10_041),
            "as far as the clock has advanced since"
        );
        assert_eq!(ends(Some(9_900), 10_000, TokenBlock::MAX_LEN), (9_901, 10_031), "what has passed unused");
        assert_eq!(ends(Some(9_900), 10_000, 5), (9_901, 9_905));
        assert_eq!(ends(Some(4_000), 10_000, u32::MAX), (9_008, 10_031), "none is older than a block");
        assert_eq!(ends(Some(50_000), 10_000, 32), (50_001, 50_001), "the clock went back");
        assert_eq!(ends(Some(1), 7, TokenBlock::MAX_LEN), (2, 38));
        let most = FencingToken::MAX.as_u64();
        assert_eq!(ends(None, most - 3, 32), (most - 3, most));
        assert_eq!(ends(Some(most), 1_000, 32), (most, most));
    }
}
