//! A task's own way to the store, past the line: of a ReentrantMutex, whose owner gets in at once wherever he has it.
//!
//! It asks without queueing, so nothing but the answer comes of it: who is told "taken" stands in line. It goes
//! again only when it is [called](Straight::call).
//!
//! 1. A call is never forgotten: one that comes while a question is on its way is heard once it is answered, since the
//!    answer may be older.
//! 2. A question without an answer is asked again: the owner may have the lock, and wait for this very task.

use super::Session;
use leasehold_core::contend::{Contender, Grant, Random, Standing, Step, Terms};
use leasehold_core::{Acquired, Claim, Executed, Moment, Nonce};
use std::time::Duration;

/// One task's own way.
pub(super) struct Straight {
    contender: Contender,
    /// Set while there is a reason to ask, or something to be had.
    wanted: bool,
}

impl Straight {
    /// One that is to be gone at once: the owner may have the lock already, in whatever process.
    pub(super) fn new(session: leasehold_core::SessionId, slot: u32) -> Self {
        Self { contender: Contender::new(session, slot), wanted: true }
    }

    /// The owner has the lock.
    pub(super) fn call(&mut self) {
        self.wanted = true;
        self.contender.handle_news(Moment::ZERO);
    }

    /// Whether there is anything to do on it.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Whether the lock was had by it, and waits to be taken.
    pub(super) fn is_won(&self, now: Moment) -> bool {
        self.contender.is_won(now)
    }

    /// What to do on it now, and whether a question is on its way from then on.
    pub(super) fn poll(&mut self, now: Moment, terms: &Terms, random: Random<'_>) -> Step {
        let terms = Terms { queue: false, ..terms.clone() };
        let step = self.contender.poll(now, &terms, random);
        if matches!(step, Step::Ask(..)) {
            self.wanted = false;
        }
        step
    }

    /// The hold, if there is one.
    pub(super) fn take(&mut self) -> Option<Grant> {
        self.contender.take()
    }

    /// The answer to its question, or that there was none (2). What is returned has to be released at the store.
    pub(super) fn handle_answer(
        &mut self,
        nonce: Nonce,
        answer: Result<&Acquired, Executed>,
        now: Moment,
        random: Random<'_>,
    ) -> Option<Claim> {
        match answer {
            Ok(reply) => {
                self.contender.handle_reply(nonce, reply, now, random);
                self.wanted |= !matches!(reply, Acquired::Taken { .. });
            }
            Err(executed) => {
                self.contender.handle_fault(nonce, executed, now, random);
                self.wanted = true;
            }
        }
        self.contender.renounce()
    }

    /// Its question was not sent after all.
    pub(super) fn unask(&mut self, nonce: Nonce) {
        self.contender.unask(nonce);
        self.wanted = true;
    }

    /// Asks for another session from now on. What is returned has to be released at the store.
    pub(super) fn change_session(&mut self, session: &Session) -> Option<Claim> {
        if self.contender.session() == session.id {
            return None;
        }
        self.wanted = true;
        self.contender.change_session(session.id)
    }

    /// There is no reason to go any more, before the next call.
    pub(super) fn rest(&mut self) {
        self.wanted = false;
    }

    /// It is not gone any more. What is returned has to be released at the store.
    pub(super) fn give_up(&mut self) -> Option<Claim> {
        self.contender.give_up()
    }

    /// For how long the store has not answered.
    pub(super) fn silence(&self, now: Moment) -> Duration {
        self.contender.silence(now)
    }

    /// Who stood in the way, as of the last answer.
    pub(super) fn standing(&self) -> &Standing {
        self.contender.standing()
    }
}
