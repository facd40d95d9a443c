//! The thread of a store, so that no task waits for a disk.
//!
//! 1. A job begins at most once: the first change of its [`Ticket`] decides, by the thread that begins it or by the
//!    caller that withdraws it.
//! 2. The thread ends when the last handle of the store is dropped; jobs sent before that are still done.

use super::ledger::{Failure, Ledger};
use super::mailbox::{self, Mailbox};
use leasehold_core::{
    Acquire, Lock, Moment, MultiAcquired, Notification, Op, SessionId, SessionOp, SessionReply,
};
use leasehold_store::clock::boottime;
use leasehold_store::{Executed, Fault, FaultKind, NotificationSink, Outcome, Phase};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// A job for the thread.
pub(super) enum Job {
    /// Execute an operation.
    Execute { lock: Lock, op: Op, deadline: Moment, ticket: Ticket, reply: oneshot::Sender<Outcome> },
    /// Acquire all of several locks, or none.
    TakeAll {
        asks: Vec<(Lock, Acquire)>,
        deadline: Moment,
        ticket: Ticket,
        reply: oneshot::Sender<Outcome<Vec<MultiAcquired>>>,
    },
    /// Execute an operation on the sessions.
    Attend { op: SessionOp, deadline: Moment, ticket: Ticket, reply: oneshot::Sender<Outcome<SessionReply>> },
    /// Open a mailbox.
    Open {
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        ticket: Ticket,
        reply: oneshot::Sender<Result<(), Fault>>,
    },
    /// Close a mailbox.
    Close(SessionId),
}

/// The right to begin a job, or to withdraw it before it begins (1).
#[derive(Debug, Clone, Default)]
pub(super) struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Takes the right; `false` if it was taken before.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// The state of the thread.
pub(super) struct Worker {
    ledger: Ledger,
    mailboxes: HashMap<SessionId, Mailbox>,
    /// Sessions that may have a row in the register, to be removed when they end.
    begun: HashSet<SessionId>,
}

impl Worker {
    /// A worker for an open file.
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, mailboxes: HashMap::new(), begun: HashSet::new() }
    }

    /// Runs until all handles are dropped (2).
    pub(super) fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Execute { lock, op, deadline, ticket, reply } => {
                    if ticket.take() {
                        let (outcome, wakes) = self.execute(&lock, &op, deadline);
                        self.deliver(wakes);
                        // The caller may be gone.
                        let _ = reply.send(outcome);
                        if self.ledger.is_untidy() {
                            self.ledger.tidy();
                        }
                    }
                }
                Job::TakeAll { asks, deadline, ticket, reply } => {
                    if ticket.take() {
                        let _ = reply.send(self.take_all(&asks, deadline));
                        if self.ledger.is_untidy() {
                            self.ledger.tidy();
                        }
                    }
                }
                Job::Attend { op, deadline, ticket, reply } => {
                    if ticket.take() {
                        let _ = reply.send(self.execute_session(&op, deadline));
                    }
                }
                Job::Open { session, post, ticket, reply } => {
                    if ticket.take() {
                        let _ = reply.send(self.open(session, post));
                    }
                }
                Job::Close(session) => self.close(session),
            }
        }
        if !self.begun.is_empty() {
            self.ledger.forget(self.begun.drain());
        }
    }

    fn execute(&mut self, lock: &Lock, op: &Op, deadline: Moment) -> (Outcome, Vec<Notification>) {
        if deadline <= boottime() {
            let fault = self.ledger.site().fault(Phase::Send, FaultKind::TimedOut);
            return (Outcome::Failed(Executed::No, fault), Vec::new());
        }
        let mailboxes = &self.mailboxes;
        match self.ledger.execute(lock, op, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok((reply, wakes)) => (Outcome::Done(reply), wakes),
            Err(Failure { executed, fault }) => (Outcome::Failed(executed, fault), Vec::new()),
        }
    }

    fn take_all(&mut self, asks: &[(Lock, Acquire)], deadline: Moment) -> Outcome<Vec<MultiAcquired>> {
        if deadline <= boottime() {
            return Outcome::Failed(Executed::No, self.ledger.site().fault(Phase::Send, FaultKind::TimedOut));
        }
        let mailboxes = &self.mailboxes;
        match self.ledger.take_all(asks, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(shares) => Outcome::Done(shares),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    fn execute_session(&mut self, op: &SessionOp, deadline: Moment) -> Outcome<SessionReply> {
        if deadline <= boottime() {
            return Outcome::Failed(Executed::No, self.ledger.site().fault(Phase::Send, FaultKind::TimedOut));
        }
        match op {
            // Recorded before it is known whether the row was written.
            SessionOp::Heartbeat(beat)
                if beat.begin.is_some() && self.mailboxes.contains_key(&beat.session) =>
            {
                self.begun.insert(beat.session);
            }
            _ => {}
        }
        let mailboxes = &self.mailboxes;
        match self.ledger.execute_session(op, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(reply) => Outcome::Done(reply),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    /// Removes the register row before the session's life file: while that file exists, another process can find
    /// both.
    fn close(&mut self, session: SessionId) {
        if self.begun.remove(&session) {
            self.ledger.forget([session]);
        }
        self.mailboxes.remove(&session);
    }

    fn deliver(&self, wakes: Vec<Notification>) {
        for wake in wakes {
            match self.mailboxes.get(&wake.to()) {
                Some(mailbox) => mailbox.deliver(wake),
                None => {
                    if let Err(error) = mailbox::send(self.ledger.sessions(), wake) {
                        tracing::debug!(session = %wake.to(), %error, "cannot send a message");
                    }
                }
            }
        }
    }

    fn open(&mut self, session: SessionId, post: Arc<dyn NotificationSink>) -> Result<(), Fault> {
        self.ledger.site().check_in_place()?;
        // A session that is opened again keeps its life file: in between it could be considered dead.
        if let Some(mailbox) = self.mailboxes.get(&session) {
            mailbox.redirect(post);
            return Ok(());
        }
        let mailbox = Mailbox::open(self.ledger.sessions(), session, post)
            .map_err(|error| self.ledger.site().io(Phase::Connect, error))?;
        self.mailboxes.insert(session, mailbox);
        Ok(())
    }
}
