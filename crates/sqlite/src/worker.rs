//! The thread that a store's work is done on, so that no task ever waits for a disk.
//!
//! 1. A job is begun once, or never: whoever first changes its [`Ticket`] decides, the thread that takes
//!    it up or the caller who gives it up.
//! 2. The thread ends when the last handle of the store is dropped; what has come before is still done.

use super::ledger::{Failure, Ledger};
use super::mailbox::{self, Mailbox};
use leasehold_core::{Acquire, Lock, Moment, Op, SessionId, SessionOp, SessionReply, Share, Wake};
use leasehold_store::clock::boottime;
use leasehold_store::{Executed, Fault, FaultKind, Outcome, Phase, Postbox};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use tokio::sync::oneshot;

/// Something to do.
pub(super) enum Job {
    /// Execute an operation.
    Execute { lock: Lock, op: Op, deadline: Moment, ticket: Ticket, reply: oneshot::Sender<Outcome> },
    /// Take all of several locks, or none.
    TakeAll {
        asks: Vec<(Lock, Acquire)>,
        deadline: Moment,
        ticket: Ticket,
        reply: oneshot::Sender<Outcome<Vec<Share>>>,
    },
    /// Execute an operation on the sessions.
    Attend { op: SessionOp, deadline: Moment, ticket: Ticket, reply: oneshot::Sender<Outcome<SessionReply>> },
    /// Open a mailbox.
    Open {
        session: SessionId,
        post: Arc<dyn Postbox>,
        ticket: Ticket,
        reply: oneshot::Sender<Result<(), Fault>>,
    },
    /// Close a mailbox.
    Close(SessionId),
}

/// The right to begin a job, or to give it up before it was begun (1).
#[derive(Debug, Clone, Default)]
pub(super) struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Takes the right; `false` if it was taken before.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// What the thread has.
pub(super) struct Worker {
    ledger: Ledger,
    mailboxes: HashMap<SessionId, Mailbox>,
    /// Which sessions the register may have a row of, to be forgotten when they end.
    begun: HashSet<SessionId>,
}

impl Worker {
    /// A worker at an open file.
    pub(super) fn new(ledger: Ledger) -> Self {
        Self { ledger, mailboxes: HashMap::new(), begun: HashSet::new() }
    }

    /// Works until nobody can ask for anything any more (2).
    pub(super) fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Execute { lock, op, deadline, ticket, reply } => {
                    if ticket.take() {
                        let (outcome, wakes) = self.execute(&lock, &op, deadline);
                        self.deliver(wakes);
                        // Whoever asked may have gone.
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
                        let _ = reply.send(self.attend(&op, deadline));
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

    fn execute(&mut self, lock: &Lock, op: &Op, deadline: Moment) -> (Outcome, Vec<Wake>) {
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

    fn take_all(&mut self, asks: &[(Lock, Acquire)], deadline: Moment) -> Outcome<Vec<Share>> {
        if deadline <= boottime() {
            return Outcome::Failed(Executed::No, self.ledger.site().fault(Phase::Send, FaultKind::TimedOut));
        }
        let mailboxes = &self.mailboxes;
        match self.ledger.take_all(asks, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(shares) => Outcome::Done(shares),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    fn attend(&mut self, op: &SessionOp, deadline: Moment) -> Outcome<SessionReply> {
        if deadline <= boottime() {
            return Outcome::Failed(Executed::No, self.ledger.site().fault(Phase::Send, FaultKind::TimedOut));
        }
        match op {
            // Before it is known whether it was written.
            SessionOp::Beat(beat) if beat.begin.is_some() && self.mailboxes.contains_key(&beat.session) => {
                self.begun.insert(beat.session);
            }
            _ => {}
        }
        let mailboxes = &self.mailboxes;
        match self.ledger.attend(op, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(reply) => Outcome::Done(reply),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    /// Who is behind a session goes before its life: as long as that is there, somebody can find both.
    fn close(&mut self, session: SessionId) {
        if self.begun.remove(&session) {
            self.ledger.forget([session]);
        }
        self.mailboxes.remove(&session);
    }

    fn deliver(&self, wakes: Vec<Wake>) {
        for wake in wakes {
            match self.mailboxes.get(&wake.to()) {
                Some(mailbox) => mailbox.deliver(wake),
                None => {
                    if let Err(error) = mailbox::send(self.ledger.sessions(), wake) {
                        tracing::debug!(session = %wake.to(), %error, "a message was not sent");
                    }
                }
            }
        }
    }

    fn open(&mut self, session: SessionId, post: Arc<dyn Postbox>) -> Result<(), Fault> {
        self.ledger.site().check_in_place()?;
        // A session that is opened anew keeps its life: between two, it could be taken for dead.
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
