//! Hand-offs inside a process: whether the next task gets a hold without a release to the store.
//!
//! A [`Cohort`] is one hold as seen by the tasks that hand it off to one another. Its driver calls
//! [`decide`](Cohort::decide) for what happens to the hold, and feeds back what the store has reserved.
//!
//! 1. Each task has its own fencing token, from a [`TokenBlock`] that the store has reserved. What the store
//!    grants to the next holder, and what it reserves next, is greater than all of these.
//! 2. While other processes wait for the lock, hand-offs happen within a *hand-off window*: only tasks that were in the
//!    local queue when the window began get the hold, for at most [`HANDOFF_WINDOW`] and [`MAX_HANDOFFS`]. Then the process
//!    releases the hold and queues behind the others.
//! 3. The knowledge that no other process waits is valid for at most one window. After [`MAX_HANDOFFS`] hand-offs and a
//!    millisecond, the request that reserves the next block also checks for waiters.
//! 4. With a notification subscribed it is valid until that arrives. A notification may be missed while the connection is
//!    down, so the subscription counts again only once a later request has been answered. Until it is up again,
//!    the process does not know that it misses any.

use crate::{FencingToken, Moment, TokenBlock};
use std::time::Duration;

/// The maximum number of hand-offs in one window, while other processes wait.
pub const MAX_HANDOFFS: u32 = 32;

/// How long a window lasts while other processes wait, and how long the knowledge that none waits is valid.
pub const HANDOFF_WINDOW: Duration = Duration::from_millis(100);

/// The minimum interval between two checks for waiters, while none are known.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// What happens to a hold that one task has released, while another waits in the local queue.
///
/// See [`Cohort`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffDecision {
    /// The next task gets it, with the next token.
    HandOff,
    /// The next task gets it once the store has reserved tokens, or has reported whether others wait.
    Reserve,
    /// It goes back to the store.
    Release,
}

/// One hold as seen by the tasks of a process that hand it off.
///
/// ```
/// use leasehold_core::machine::cohort::{Cohort, HandoffDecision};
/// use leasehold_core::{FencingToken, Moment, TokenBlock};
///
/// let now = Moment::from_micros(5_000_000);
/// let mut cohort = Cohort::new(now, true, 2); // other processes wait; tasks 1 and 2 are in the local queue
/// assert_eq!(cohort.decide(now, 1), HandoffDecision::Reserve); // each needs a fencing token
/// cohort.handle_reserved((TokenBlock::new(FencingToken::new(4711), 32), true), false, now, 2);
///
/// assert_eq!(cohort.decide(now, 1), HandoffDecision::HandOff);
/// assert_eq!(cohort.hand_off(), Some(FencingToken::new(4711)));
/// assert_eq!(cohort.decide(now, 3), HandoffDecision::Release); // it came after the window had begun
/// ```
#[derive(Debug)]
pub struct Cohort {
    /// The tokens that are left, and the block to use after them.
    block: TokenBlock,
    next_block: TokenBlock,
    /// The number of remaining tokens at which to reserve more: half of the last block. A process that uses
    /// tokens faster then has more in reserve, so a slow reply delays it less often.
    low_watermark: u32,
    /// Whether others are known to wait, or must be assumed to.
    others_wait: bool,
    /// When the window began.
    window_start: Moment,
    /// The last task in the local queue when it began.
    last_waiter: u64,
    /// The number of hand-offs since.
    handoffs: u32,
    /// When a message last reported that another session requests the lock.
    wanted_at: Option<Moment>,
    /// Set once the store notifies this process when another session requests the lock, and no notification can have been
    /// missed since the last reply.
    subscribed: bool,
    /// When notifications may have been missed last.
    missed_at: Option<Moment>,
    /// Set once the store reserved nothing: no further request is made.
    reserve_failed: bool,
}

impl Cohort {
    /// A hold that the store has granted. `window_start` is when it was requested, or any moment after that.
    /// `last_waiter` is the number of the last task in the local queue: tasks with greater numbers arrived
    /// later.
    pub const fn new(window_start: Moment, others_wait: bool, last_waiter: u64) -> Self {
        let (block, next_block) = (TokenBlock::EMPTY, TokenBlock::EMPTY);
        let (wanted_at, subscribed, missed_at, reserve_failed) = (None, false, None, false);
        Self {
            block,
            next_block,
            low_watermark: 0,
            others_wait,
            window_start,
            last_waiter,
            handoffs: 0,
            wanted_at,
            subscribed,
            missed_at,
            reserve_failed,
        }
    }

    /// What happens to the hold now, if `waiter` is next in the local queue.
    pub fn decide(&self, now: Moment, waiter: u64) -> HandoffDecision {
        // With a notification subscribed, no check is needed.
        let over = now >= self.window_start + HANDOFF_WINDOW && (self.others_wait || !self.subscribed);
        let none_left = self.remaining() == 0;
        if self.others_wait && (over || self.handoffs >= MAX_HANDOFFS || waiter > self.last_waiter) {
            return HandoffDecision::Release;
        }
        match none_left || over {
            true if self.reserve_failed => HandoffDecision::Release,
            true => HandoffDecision::Reserve,
            false => HandoffDecision::HandOff,
        }
    }

    /// The same where no task waits, and the hold is kept for a later task until another session requests the
    /// lock, which requires a notification from the store.
    pub fn decide_idle(&self) -> HandoffDecision {
        match self.others_wait || self.reserve_failed {
            true => HandoffDecision::Release,
            false if self.remaining() == 0 || !self.subscribed => HandoffDecision::Reserve,
            false => HandoffDecision::HandOff,
        }
    }

    fn remaining(&self) -> u32 {
        self.block.remaining() + self.next_block.remaining()
    }

    /// Hands the hold off: returns the token of the next holder.
    pub fn hand_off(&mut self) -> Option<FencingToken> {
        if self.block.remaining() == 0 {
            self.block = std::mem::replace(&mut self.next_block, TokenBlock::EMPTY);
        }
        let token = self.block.pop_first()?;
        self.handoffs = self.handoffs.saturating_add(1);
        Some(token)
    }

    /// Whether it is time to reserve more tokens, so that no task waits for them, and to check for other
    /// waiters (3).
    pub fn should_reserve(&self, now: Moment) -> bool {
        let long_ago = !self.subscribed
            && self.handoffs >= MAX_HANDOFFS
            && now >= self.window_start + MIN_CHECK_INTERVAL;
        (self.remaining() <= self.low_watermark || long_ago) && !self.others_wait && !self.reserve_failed
    }

    /// The store has reserved a block. The request was sent at `sent_at`; `subscribed` says whether it subscribed
    /// to notifications. While no other session waits, each reply begins a window, and so does the first reply
    /// that reports a waiter.
    pub fn handle_reserved(
        &mut self,
        (block, others_wait): (TokenBlock, bool),
        subscribed: bool,
        sent_at: Moment,
        last_waiter: u64,
    ) {
        // Of two replies the later one has the greater tokens.
        if self.next_block.remaining() > 0 {
            self.block = self.next_block;
        }
        (self.next_block, self.low_watermark) = (block, block.remaining() / 2);
        // The reply to an earlier request says nothing of what was missed since (4).
        self.subscribed |= subscribed && self.missed_at.is_none_or(|at| at <= sent_at);
        // A notification since the request was sent is newer than the reply.
        let others_wait = others_wait || self.wanted_at.is_some_and(|at| sent_at <= at);
        if !self.others_wait || !others_wait {
            (self.window_start, self.handoffs, self.last_waiter) = (sent_at, 0, last_waiter);
        }
        self.others_wait = others_wait;
    }

    /// The store has reserved nothing, or did not confirm that it did.
    pub fn handle_reserve_failed(&mut self) {
        self.reserve_failed = true;
    }

    /// Notifications may have been missed until now (4).
    pub const fn handle_missed_messages(&mut self, now: Moment) {
        (self.subscribed, self.missed_at) = (false, Some(now));
    }

    /// A message reports that another session requests the lock. It may be forged: then the hold goes back to
    /// the store needlessly.
    pub fn handle_wanted(&mut self, now: Moment, last_waiter: u64) {
        self.wanted_at = Some(now);
        if !self.others_wait {
            (self.window_start, self.handoffs, self.last_waiter) = (now, 0, last_waiter);
            self.others_wait = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(1_000_000 + ms * 1_000)
    }

    fn block(first: u64, count: u32) -> TokenBlock {
        TokenBlock::new(FencingToken::new(first), count)
    }

    #[test]
    fn while_others_wait_only_tasks_queued_before_the_window_get_the_hold() {
        let mut cohort = Cohort::new(ms(0), true, 40);
        cohort.handle_reserved((block(1, 32), true), false, ms(1), 60);
        assert_eq!(cohort.decide(ms(99), 40), HandoffDecision::HandOff);
        assert_eq!(cohort.decide(ms(99), 41), HandoffDecision::Release, "it came later");
        assert_eq!(cohort.decide(ms(100), 2), HandoffDecision::Release, "the window is over");
        for _ in 0..MAX_HANDOFFS {
            assert_eq!(cohort.decide(ms(1), 2), HandoffDecision::HandOff);
            cohort.hand_off().expect("there are enough");
        }
        cohort.handle_reserved((block(100, 32), true), false, ms(2), 60);
        assert_eq!(cohort.decide(ms(2), 2), HandoffDecision::Release, "often enough");
    }

    #[test]
    fn while_no_other_session_waits_hand_offs_continue_with_regular_checks() {
        let mut cohort = Cohort::new(ms(0), false, 1);
        for round in 0..10 {
            assert_eq!(cohort.decide(ms(round), 1_000), HandoffDecision::Reserve);
            cohort.handle_reserved((block(round * 100, 32), false), false, ms(round), 1);
            for _ in 0..32 {
                assert_eq!(cohort.decide(ms(round), 1_000), HandoffDecision::HandOff);
                cohort.hand_off().expect("there are enough");
            }
        }
        cohort.handle_reserved((block(5_000, 32), false), false, ms(50), 1);
        assert_eq!(cohort.decide(ms(149), 1_000), HandoffDecision::HandOff);
        assert_eq!(
            cohort.decide(ms(150), 1_000),
            HandoffDecision::Reserve,
            "another session may wait by now"
        );
        cohort.handle_reserved((block(6_000, 32), true), false, ms(150), 7);
        assert_eq!(
            cohort.decide(ms(151), 7),
            HandoffDecision::HandOff,
            "the window begins when they are seen"
        );
        assert_eq!(cohort.decide(ms(151), 8), HandoffDecision::Release);
    }

    #[test]
    fn without_notifications_it_checks_often_enough_for_other_waiters() {
        for subscribed in [false, true] {
            let mut cohort = Cohort::new(ms(0), false, 1);
            cohort.handle_reserved((block(1, 1000), false), subscribed, ms(0), 1);
            for _ in 0..MAX_HANDOFFS {
                assert!(!cohort.should_reserve(ms(50)), "too few hand-offs");
                cohort.hand_off().expect("there are enough");
            }
            assert!(!cohort.should_reserve(ms(0)), "the hand-offs were fast");
            assert_eq!(cohort.should_reserve(ms(1)), !subscribed);
        }
    }

    #[test]
    fn without_tokens_it_goes_back_to_the_store() {
        let mut cohort = Cohort::new(ms(0), false, 1);
        cohort.handle_reserve_failed();
        assert_eq!(
            (cohort.decide(ms(0), 1), cohort.decide_idle()),
            (HandoffDecision::Release, HandoffDecision::Release)
        );
        assert_eq!(cohort.hand_off(), None);
    }

    #[test]
    fn it_is_kept_until_another_session_requests_it() {
        let mut cohort = Cohort::new(ms(0), false, 1);
        assert_eq!(cohort.decide_idle(), HandoffDecision::Reserve);
        cohort.handle_reserved((block(1, 20), false), false, ms(0), 1);
        assert_eq!(cohort.decide_idle(), HandoffDecision::Reserve, "no notification would arrive");
        cohort.handle_reserved((block(50, 20), false), true, ms(0), 1);
        assert_eq!(
            (cohort.decide_idle(), cohort.decide(ms(900), 1)),
            (HandoffDecision::HandOff, HandoffDecision::HandOff)
        );
        for token in (1..=20).chain(50..60) {
            assert!(!cohort.should_reserve(ms(90)), "{token}");
            assert_eq!(
                cohort.hand_off(),
                Some(FencingToken::new(token)),
                "none is left out, each is greater"
            );
        }
        assert!(cohort.should_reserve(ms(0)), "half of the last block is left");
        cohort.handle_wanted(ms(5), 3);
        assert_eq!(cohort.decide_idle(), HandoffDecision::Release);
        assert_eq!(
            cohort.decide(ms(6), 3),
            HandoffDecision::HandOff,
            "the task was queued when the window began"
        );
        cohort.handle_wanted(ms(50), 9);
        assert_eq!(cohort.decide(ms(105), 3), HandoffDecision::Release, "another note does not lengthen it");
    }

    #[test]
    fn after_missed_messages_it_asks_the_store_again() {
        let mut cohort = Cohort::new(ms(0), false, 1);
        cohort.handle_reserved((block(1, 1000), false), true, ms(0), 1);
        assert_eq!(cohort.decide(ms(500), 1), HandoffDecision::HandOff);
        cohort.handle_missed_messages(ms(600));
        for reply in [None, Some(ms(599))] {
            if let Some(sent_at) = reply {
                cohort.handle_reserved((block(2000, 1000), false), true, sent_at, 1);
            }
            assert_eq!(
                (cohort.decide_idle(), cohort.decide(ms(700), 1)),
                (HandoffDecision::Reserve, HandoffDecision::Reserve),
                "another session may wait, {reply:?}"
            );
        }
        cohort.handle_reserved((block(4000, 1000), false), true, ms(600), 1);
        assert_eq!(
            (cohort.decide_idle(), cohort.decide(ms(900), 1)),
            (HandoffDecision::HandOff, HandoffDecision::HandOff)
        );
    }

    #[test]
    fn an_older_reply_does_not_hide_that_another_session_waits() {
        let mut cohort = Cohort::new(ms(0), false, 1);
        cohort.handle_reserved((block(1, 20), false), true, ms(0), 1);
        cohort.handle_wanted(ms(5), 3);
        cohort.handle_reserved((block(50, 20), false), true, ms(4), 9);
        assert_eq!(
            (cohort.decide_idle(), cohort.decide(ms(6), 3)),
            (HandoffDecision::Release, HandoffDecision::HandOff)
        );
        assert_eq!(cohort.decide(ms(6), 4), HandoffDecision::Release, "it came after the other");
        cohort.handle_reserved((block(100, 20), false), true, ms(6), 9);
        assert_eq!(cohort.decide(ms(7), 9), HandoffDecision::HandOff, "the other has left");
    }
}
