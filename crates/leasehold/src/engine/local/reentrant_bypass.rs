//! The bypass request of a task, past the local queue: a ReentrantMutex admits its owner again at once, wherever that
//! owner holds it.
//!
//! The request does not queue at the store. If the lock is held by another owner the task stays in the local queue,
//! and sends another request only after [`retry_now`](ReentrantBypass::retry_now).
//!
//! 1. A retry is never lost: one that is due while a request is in flight takes effect after the reply, since the
//!    reply may be older. One that a request through the queue stands for is due again if that request ends without
//!    showing whether the owner holds the lock.
//! 2. A request without a reply is sent again: the owner may hold the lock and wait for this very task. So is one that
//!    a quorum has not granted although the owner holds the lock: the votes were split.

use crate::engine::Session;
use leasehold_core::machine::contender::{AcquireTerms, Contender, ContenderAction, Grant, WaitStatus};
use leasehold_core::machine::jitter::Random;
use leasehold_core::{Acquired, Claim, Executed, Moment, Nonce};
use std::time::Duration;

/// One task's bypass request.
pub(in crate::engine) struct ReentrantBypass {
    contender: Contender,
    /// Set while there is a reason to send a request, or a grant to take.
    pending: bool,
}

impl ReentrantBypass {
    /// A bypass to be sent at once: the owner may hold the lock already, in any process.
    pub(in crate::engine) fn new(session: leasehold_core::SessionId, slot: u32) -> Self {
        Self { contender: Contender::new(session, slot), pending: true }
    }

    /// The owner holds the lock: sends a request at once (1).
    pub(in crate::engine) fn retry_now(&mut self) {
        self.pending = true;
        self.contender.poll_soon(Moment::ZERO);
    }

    /// The owner holds the lock, whatever the reply: sends another request after the pause that follows the reply (2).
    pub(in crate::engine) fn retry_after_pause(&mut self) {
        self.pending = true;
    }

    /// Whether there is a request to send, or a grant to take.
    pub(in crate::engine) fn is_pending(&self) -> bool {
        self.pending
    }

    /// Whether a request is in flight.
    pub(in crate::engine) fn is_in_flight(&self) -> bool {
        self.contender.is_in_flight()
    }

    /// Whether it acquired the lock, which waits to be taken.
    pub(in crate::engine) fn is_granted(&self, now: Moment) -> bool {
        self.contender.is_granted(now)
    }

    /// The next action.
    pub(in crate::engine) fn poll(
        &mut self,
        now: Moment,
        terms: &AcquireTerms,
        random: Random<'_>,
    ) -> ContenderAction {
        let terms = AcquireTerms { queue: false, ..terms.clone() };
        let action = self.contender.poll(now, &terms, random);
        if matches!(action, ContenderAction::Send(..)) {
            self.pending = false;
        }
        action
    }

    /// The grant, if there is one.
    pub(in crate::engine) fn take_grant(&mut self) -> Option<Grant> {
        self.contender.take_grant()
    }

    /// Handles the reply to its request, or its absence (2). The claim returned must be released at the store.
    pub(in crate::engine) fn handle_answer(
        &mut self,
        nonce: Nonce,
        answer: Result<&Acquired, Executed>,
        now: Moment,
        random: Random<'_>,
    ) -> Option<Claim> {
        match answer {
            Ok(reply) => {
                self.contender.handle_reply(nonce, reply, now, random);
                self.pending |= !matches!(reply, Acquired::Taken { .. });
            }
            Err(executed) => {
                self.contender.handle_fault(nonce, executed, now, random);
                self.pending = true;
            }
        }
        self.contender.give_up_fresh()
    }

    /// Its request was not sent.
    pub(in crate::engine) fn cancel_request(&mut self, nonce: Nonce) {
        self.contender.cancel_request(nonce);
        self.pending = true;
    }

    /// Switches to another session. The claim returned must be released at the store.
    pub(in crate::engine) fn change_session(&mut self, session: &Session) -> Option<Claim> {
        if self.contender.session() == session.id {
            return None;
        }
        self.pending = true;
        self.contender.change_session(session.id)
    }

    /// Sends nothing more before the next [`retry_now`](Self::retry_now).
    pub(in crate::engine) fn clear_pending(&mut self) {
        self.pending = false;
    }

    /// Gives up. The claim returned must be released at the store.
    pub(in crate::engine) fn give_up(&mut self) -> Option<Claim> {
        self.contender.give_up()
    }

    /// How long the store has not answered.
    pub(in crate::engine) fn unresponsive_for(&self, now: Moment) -> Duration {
        self.contender.unresponsive_for(now)
    }

    /// What blocked the lock, as of the last reply.
    pub(in crate::engine) fn wait_status(&self) -> &WaitStatus {
        self.contender.wait_status()
    }
}
