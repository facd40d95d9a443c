//! The thread of a store, which does all work on the file, so that no task waits for a disk. It also owns the open
//! mailboxes of this process.
//!
//! 1. A job begins at most once: the first change of its [`StartFlag`] decides, by the thread that begins it or by the
//!    caller that withdraws it.
//! 2. The thread ends when the last handle of the store is dropped; jobs sent before that are still done.

use super::database::{Database, Failure};
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
    Execute { lock: Lock, op: Op, deadline: Moment, start: StartFlag, reply: oneshot::Sender<Outcome> },
    /// Acquire all of several locks, or none.
    AcquireAll {
        requests: Vec<(Lock, Acquire)>,
        deadline: Moment,
        start: StartFlag,
        reply: oneshot::Sender<Outcome<Vec<MultiAcquired>>>,
    },
    /// Execute an operation on the sessions.
    ExecuteSession {
        op: SessionOp,
        deadline: Moment,
        start: StartFlag,
        reply: oneshot::Sender<Outcome<SessionReply>>,
    },
    /// Open a mailbox.
    Open {
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        start: StartFlag,
        reply: oneshot::Sender<Result<(), Fault>>,
    },
    /// Close a mailbox.
    Close(SessionId),
}

/// The right to begin a job, or to withdraw it before it begins (1).
#[derive(Debug, Clone, Default)]
pub(super) struct StartFlag(Arc<AtomicBool>);

impl StartFlag {
    /// Takes the right; `false` if it was taken before.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// The state of the thread.
pub(super) struct Worker {
    database: Database,
    mailboxes: HashMap<SessionId, Mailbox>,
    /// Sessions that may have metadata in the table of sessions, which is removed when they end.
    begun: HashSet<SessionId>,
}

impl Worker {
    /// A worker for an open file.
    pub(super) fn new(database: Database) -> Self {
        Self { database, mailboxes: HashMap::new(), begun: HashSet::new() }
    }

    /// Runs until all handles are dropped (2).
    pub(super) fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Execute { lock, op, deadline, start, reply } => {
                    if start.take() {
                        let (outcome, notifications) = self.execute(&lock, &op, deadline);
                        self.deliver(notifications);
                        // The caller may be gone.
                        let _ = reply.send(outcome);
                        if self.database.needs_cleanup() {
                            self.database.clean_up();
                        }
                    }
                }
                Job::AcquireAll { requests, deadline, start, reply } => {
                    if start.take() {
                        let _ = reply.send(self.acquire_all(&requests, deadline));
                        if self.database.needs_cleanup() {
                            self.database.clean_up();
                        }
                    }
                }
                Job::ExecuteSession { op, deadline, start, reply } => {
                    if start.take() {
                        let _ = reply.send(self.execute_session(&op, deadline));
                    }
                }
                Job::Open { session, sink, start, reply } => {
                    if start.take() {
                        let _ = reply.send(self.open(session, sink));
                    }
                }
                Job::Close(session) => self.close(session),
            }
        }
        if !self.begun.is_empty() {
            self.database.delete_metadata(self.begun.drain());
        }
    }

    fn execute(&mut self, lock: &Lock, op: &Op, deadline: Moment) -> (Outcome, Vec<Notification>) {
        if deadline <= boottime() {
            let fault = self.database.location().fault(Phase::Send, FaultKind::TimedOut);
            return (Outcome::Failed(Executed::No, fault), Vec::new());
        }
        let mailboxes = &self.mailboxes;
        match self.database.execute(lock, op, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok((reply, notifications)) => (Outcome::Done(reply), notifications),
            Err(Failure { executed, fault }) => (Outcome::Failed(executed, fault), Vec::new()),
        }
    }

    fn acquire_all(&mut self, requests: &[(Lock, Acquire)], deadline: Moment) -> Outcome<Vec<MultiAcquired>> {
        if deadline <= boottime() {
            return Outcome::Failed(
                Executed::No,
                self.database.location().fault(Phase::Send, FaultKind::TimedOut),
            );
        }
        let mailboxes = &self.mailboxes;
        match self.database.acquire_all(requests, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(results) => Outcome::Done(results),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    fn execute_session(&mut self, op: &SessionOp, deadline: Moment) -> Outcome<SessionReply> {
        if deadline <= boottime() {
            return Outcome::Failed(
                Executed::No,
                self.database.location().fault(Phase::Send, FaultKind::TimedOut),
            );
        }
        match op {
            // Recorded first: an unknown outcome may have written the row.
            SessionOp::Heartbeat(heartbeat)
                if heartbeat.begin.is_some() && self.mailboxes.contains_key(&heartbeat.session) =>
            {
                self.begun.insert(heartbeat.session);
            }
            _ => {}
        }
        let mailboxes = &self.mailboxes;
        match self.database.execute_session(op, deadline, &|session| mailboxes.contains_key(&session)) {
            Ok(reply) => Outcome::Done(reply),
            Err(Failure { executed, fault }) => Outcome::Failed(executed, fault),
        }
    }

    /// Removes the metadata before the session's file: if this process dies in between, another process finds the file
    /// and removes both.
    fn close(&mut self, session: SessionId) {
        if self.begun.remove(&session) {
            self.database.delete_metadata([session]);
        }
        self.mailboxes.remove(&session);
    }

    fn deliver(&self, notifications: Vec<Notification>) {
        for notification in notifications {
            match self.mailboxes.get(&notification.to()) {
                Some(mailbox) => mailbox.deliver(notification),
                None => {
                    if let Err(error) = mailbox::send(self.database.sessions(), notification) {
                        tracing::debug!(session = %notification.to(), %error, "cannot send a message");
                    }
                }
            }
        }
    }

    fn open(&mut self, session: SessionId, sink: Arc<dyn NotificationSink>) -> Result<(), Fault> {
        self.database.location().check_in_place()?;
        // A session that is opened again keeps its file: without one, other processes could consider it dead.
        if let Some(mailbox) = self.mailboxes.get(&session) {
            mailbox.redirect(sink);
            return Ok(());
        }
        let mailbox = Mailbox::open(self.database.sessions(), session, sink)
            .map_err(|error| self.database.location().io(Phase::Connect, error))?;
        self.mailboxes.insert(session, mailbox);
        Ok(())
    }
}
