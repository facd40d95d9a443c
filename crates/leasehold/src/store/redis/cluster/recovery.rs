//! Asking a cluster that is not well: one caller asks for all, and the others are woken when he is answered.
//!
//! 1. One at a time has the turn, and asks again after pauses that grow to a tenth of a second. The others wait until he has
//!    an answer. They do not wait long: they may have been refused for something else, at another node or of one slot.
//! 2. Who has the turn and ends without an answer, since his time is over or he was dropped, wakes one that waits.

use super::PAUSE;
use crate::store::redis::link::spaced;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// How long one waits for who has the turn, half of it random.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1));

#[derive(Debug, Default)]
pub(super) struct Recovery {
    is_taken: AtomicBool,
    answered: Notify,
}

/// The turn to ask for all.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    recovery: &'a Recovery,
    refused: u32,
    is_answered: bool,
}

impl Recovery {
    /// Rests after a refusal, until it is time to ask again. Says whether there is time for that.
    pub(super) async fn rest<'a>(
        &'a self,
        turn: &mut Option<Turn<'a>>,
        random: u64,
        deadline: Instant,
    ) -> bool {
        let mut answered = std::pin::pin!(self.answered.notified());
        // From here on, so that no answer is missed between this and the wait.
        answered.as_mut().enable();
        if turn.is_none() && !self.is_taken.swap(true, Ordering::AcqRel) {
            *turn = Some(Turn { recovery: self, refused: 0, is_answered: false });
        }
        let now = Instant::now();
        if let Some(turn) = turn {
            turn.refused += 1;
            let until = now + spaced(PAUSE, turn.refused, random);
            if until < deadline {
                sleep(until - now).await;
            }
            return until < deadline;
        }
        let until = (now + spaced(PATIENCE, 1, random)).min(deadline);
        timeout_at(until, answered).await.is_ok() || until < deadline
    }
}

impl Turn<'_> {
    /// The cluster has answered.
    pub(super) fn end(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.recovery.is_taken.store(false, Ordering::Release);
        if self.is_answered {
            self.recovery.answered.notify_waiters();
        } else {
            self.recovery.answered.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_ms(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_with_pauses_and_the_others_wait_for_its_answer() {
        let (recovery, mut turn) = (Recovery::default(), None);
        assert!(recovery.rest(&mut turn, 0, in_ms(5000)).await);
        let (start, mut other, mut third) = (Instant::now(), None, None);
        let others = async {
            tokio::join!(recovery.rest(&mut other, 0, in_ms(450)), recovery.rest(&mut third, 0, in_ms(5000)))
        };
        let one = async {
            for _ in 0..7 {
                assert!(recovery.rest(&mut turn, 0, in_ms(5000)).await);
            }
            start.elapsed()
        };
        let (late, asked) = tokio::join!(others, one);
        assert_eq!(late, (false, true), "one has no more time, one has waited long enough");
        assert_eq!(asked, Duration::from_millis(5 + 10 + 20 + 40 + 50 + 50 + 50));
        assert!(other.is_none() && third.is_none());
        let (start, answer) = (Instant::now(), async { turn.take().expect("it has the turn").end() });
        let (woken, ()) = tokio::join!(recovery.rest(&mut other, 0, in_ms(5000)), answer);
        assert!(woken && other.is_none() && start.elapsed().is_zero(), "at once, to ask itself");
    }

    #[tokio::test(start_paused = true)]
    async fn who_ends_without_an_answer_wakes_one() {
        let (recovery, mut turn) = (Recovery::default(), None);
        assert!(!recovery.rest(&mut turn, u64::MAX, in_ms(5)).await, "there is no time for another call");
        let (start, mut other, mut third) = (Instant::now(), None, None);
        let gone = async { drop(turn.take()) };
        let other_rests = async { recovery.rest(&mut other, 0, in_ms(5000)).await.then(|| start.elapsed()) };
        let third_rests = async { recovery.rest(&mut third, 0, in_ms(5000)).await.then(|| start.elapsed()) };
        let (first, second, ()) = tokio::join!(other_rests, third_rests, gone);
        assert_eq!((first, second), (Some(Duration::ZERO), Some(PATIENCE.0 / 2)));
        assert!(recovery.rest(&mut other, 0, in_ms(5000)).await && other.is_some(), "it has the turn");
    }
}
