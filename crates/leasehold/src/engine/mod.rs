//! The engine: the only code that waits for, renews and releases locks. Every kind of lock uses it.
//!
//! A *hold* is what the process holds at the store; a guard is the handle that a task has to it. The tasks of a
//! process that want the same lock queue at its lock entry ([`local::lock_entry`]). The task at the front of that queue contends
//! at the store for the whole process.
//!
//! 1. A process has at most one acquire request in flight per lock, except after a task dropped its request.
//! 2. Once the release of a hold has been sent, the hold is never handed off.
//! 3. A future dropped at any await leaves either nothing behind or a cleanup with the keeper.

mod acquire;
pub(crate) mod activity;
mod detached;
mod hold;
mod keeper;
mod local;
mod loss;
mod observe;
mod release;
mod session;
mod shutdown;
mod shutdown_gate;
mod wait_graph;

pub(crate) use acquire::confirm::confirm;
pub(crate) use acquire::several::{MultiBlocked, acquire_all};
pub(crate) use acquire::{AcquireFailure, AcquireParams, AcquiredHold, acquire, take_idle};
pub(crate) use detached::{
    Detached, NotAttached, NotDetached, NotExtended, acquire_detached, attach, detached_session,
    extend_detached, release_detached,
};
pub(crate) use hold::{Hold, TrackingId};
pub(crate) use local::lock_entry::LockEntry;
pub(crate) use local::lock_entry::handoff::ReleasePolicy;
pub(crate) use loss::report_loss;
pub(crate) use observe::LeaderWatch;
use release::read_release;
pub(crate) use release::{NotReleased, abandon, continue_release, release, release_again};
pub(crate) use session::Session;
pub use shutdown::{ShutdownError, UnreleasedLock};
pub(crate) use wait_graph::wait_graph;
pub use wait_graph::{WaitCycle, WaitGraph, WaitHolder, WaitInfo};

use crate::lost_reason::LostReason;
use crate::store::{Executed, Fault, FaultKind, Outcome, Phase, Store};
use crate::telemetry::{Operation, Telemetry};
use detached::Attached;
use futures_util::future::BoxFuture;
use keeper::Keeper;
use leasehold_core::{
    Label, Lock, Moment, Op, Partition, Reply, SessionEntry, SessionId, SessionList, SessionMetadata,
    SessionOp, SessionReply, StatisticsList,
};
use leasehold_store::{Environment, jitter};
use local::lock_table::LockTable;
use session::{SessionFactory, Sessions, fresh_id};
use shutdown_gate::ShutdownGate;
use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Time limits of the engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timings {
    /// Limit for one call to the store, including its resends.
    pub(crate) call: Duration,
    /// How long a waiter without a deadline tolerates a store that does not answer.
    pub(crate) outage: Duration,
    /// Lease of the holds that a watchdog renews.
    pub(crate) watchdog: Duration,
    /// Session lifetime without a heartbeat. `None` if holds end by their leases alone.
    pub(crate) session: Option<Duration>,
}

/// A moment that never comes.
const NEVER: Moment = Moment::from_micros(u64::MAX);

/// The engine of one client.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) label: Label,
    pub(crate) timings: Timings,
    /// How many holds the history of a lock keeps, unless the lock is set otherwise.
    pub(crate) history: u16,
    pub(crate) keeper: Keeper,
    pub(crate) telemetry: Arc<Telemetry>,
    gate: Arc<ShutdownGate>,
    locks: Arc<LockTable>,
    attached: Attached,
}

/// Waits for the store's background work. Stops when a first lease would have ended: after that, a lost request has no
/// effect.
async fn flush_store(store: &dyn Store, environment: &dyn Environment, timings: Timings) {
    let longest = environment.now() + leasehold_core::FIRST_LEASE + timings.call;
    tokio::select! {
        biased;
        () = store.flush() => {}
        () = environment.sleep_until(longest) => {}
    }
}

impl Engine {
    /// Starts an engine and its keeper. Unless sessions begin on demand, the session has begun on return. With `lazily`, the
    /// keeper begins it as soon as the store replies.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        environment: Arc<dyn Environment>,
        metadata: SessionMetadata,
        timings: Timings,
        history: u16,
        telemetry: Arc<Telemetry>,
        lazily: bool,
    ) -> Result<Arc<Self>, StartError> {
        let label = metadata.label.clone();
        let locks = Arc::new(LockTable::new(environment.clone()));
        let session_factory = SessionFactory {
            store: store.clone(),
            environment: environment.clone(),
            events: locks.clone(),
            metadata: metadata.to_json().into(),
            timings,
            telemetry: telemetry.clone(),
        };
        let id = fresh_id(&*environment);
        let (sessions, schedule) = if store.capabilities().partitioned || lazily {
            (Sessions::on_demand(id, session_factory.liveness()), None)
        } else {
            let only = Arc::new(session_factory.not_begun(Partition::ONLY, id));
            match session_factory.begin(&only, &[]).await.map_err(Fault::from) {
                Ok(schedule) => (Sessions::single(only), schedule),
                // The server can be used, and too few of its replicas: the session begins when it is needed.
                Err(fault) if fault.is_unconfirmed() => {
                    (Sessions::on_demand(fresh_id(&*environment), session_factory.liveness()), None)
                }
                Err(fault) => return Err(StartError::Session(fault)),
            }
        };
        let sessions = Arc::new(sessions);
        let keeper =
            Keeper::start(store.fork(), session_factory, sessions.clone(), schedule).map_err(|error| {
                store.close_mailbox(Partition::ONLY, id);
                StartError::Keeper(error)
            })?;
        locks.set_keeper(keeper.handle());
        if lazily && !store.capabilities().partitioned {
            keeper.begin_session(Partition::ONLY);
        }
        let (attached, gate) = (Attached::default(), Arc::default());
        Ok(Arc::new(Self {
            store,
            environment,
            sessions,
            label,
            timings,
            history,
            keeper,
            telemetry,
            gate,
            locks,
            attached,
        }))
    }

    /// Waits until no cleanup and no background work of the store is in flight.
    pub(crate) async fn flush(&self) {
        self.keeper.cleanups_done().await;
        flush_store(&*self.store, &*self.environment, self.timings).await;
    }

    /// The process's shared entry for a lock.
    pub(crate) fn entry(&self, lock: &Lock) -> Arc<LockEntry> {
        let partition = self.store.partition(lock);
        self.locks.entry(lock, partition, self.sessions.id_at(partition))
    }

    /// An entry for a single acquisition of a lock with several simultaneous holders: tasks of one process do not
    /// wait for each other, and each has its own entry in the store's queue.
    pub(crate) fn own_entry(&self, lock: &Lock) -> Arc<LockEntry> {
        let partition = self.store.partition(lock);
        self.locks.own_entry(lock, partition, self.sessions.id_at(partition))
    }

    /// Closes the mailboxes of all sessions.
    fn close_mailboxes(&self) {
        for session in self.sessions.all().into_iter().filter(|session| session.has_begun()) {
            self.store.close_mailbox(session.partition, session.id);
        }
    }

    /// Waits until the session of a hold has begun, or is over: before that, the hold cannot be extended. Fails after
    /// `within`.
    pub(crate) async fn begin_session(&self, session: &Arc<Session>, within: Duration) -> Result<(), Fault> {
        if session.has_begun() {
            return Ok(());
        }
        let partition = session.partition;
        let request = || self.keeper.begin_session(partition);
        let begins = self.sessions.wait_for_change(session, request, Session::has_begun);
        let until = self.environment.now() + within;
        tokio::select! {
            biased;
            () = begins => Ok(()),
            () = self.environment.sleep_until(until) => Err(self.sessions.last_fault(partition)),
        }
    }

    /// Runs a request about a hold. Returns `None` if a shutdown has begun or begins meanwhile.
    pub(crate) async fn unless_shut<F: Future>(&self, sending: F) -> Option<F::Output> {
        self.gate.run(pin!(sending)).await
    }

    /// Sends one operation and retries it after transient faults, for up to `within`.
    pub(crate) async fn call(&self, lock: &Lock, op: &Op, within: Duration) -> Result<Reply, CallFailure> {
        Ok(self.request(lock, op, within).await?.reply)
    }

    /// Like [`Self::call`], where each attempt waits at most `each` for its reply.
    pub(crate) async fn call_in_parts(
        &self,
        lock: &Lock,
        op: &Op,
        within: Duration,
        each: Duration,
    ) -> Result<Reply, CallFailure> {
        call(&*self.store, &*self.environment, &self.telemetry, lock, op, within, each).await
    }

    /// Like [`Self::call`], but also reports whether an earlier, unanswered attempt may have been executed.
    pub(crate) async fn request(
        &self,
        lock: &Lock,
        op: &Op,
        within: Duration,
    ) -> Result<Answer<Reply>, CallFailure> {
        let send = |left| self.store.execute(lock, op, left);
        retry(&*self.environment, &self.telemetry, op, within, send).await
    }

    /// Lists the store's sessions. Live sessions with the same id are merged, and so are dead ones. Retries transient
    /// faults for as long as one call may take.
    pub(crate) async fn list_sessions(&self) -> Result<SessionList, CallFailure> {
        self.read_sessions(Partition::ONLY, &SessionOp::List).await
    }

    /// Looks some sessions of a partition up. Retries like [`list_sessions`](Self::list_sessions).
    pub(crate) async fn find_sessions(
        &self,
        partition: Partition,
        sessions: Vec<SessionId>,
    ) -> Result<SessionList, CallFailure> {
        self.read_sessions(partition, &SessionOp::Find(sessions)).await
    }

    /// Lists the statistics of the store. Retries like [`list_sessions`](Self::list_sessions).
    pub(crate) async fn list_statistics(&self) -> Result<StatisticsList, CallFailure> {
        let op = &SessionOp::ListStatistics;
        let send = |left| self.store.execute_session(Partition::ONLY, op, left);
        let call = self.timings.call;
        match retry(&*self.environment, &self.telemetry, op, call, send).await?.reply {
            SessionReply::Statistics(list) => Ok(list),
            _ => Err(other_reply()),
        }
    }

    async fn read_sessions(&self, partition: Partition, op: &SessionOp) -> Result<SessionList, CallFailure> {
        let send = |left| self.store.execute_session(partition, op, left);
        if let SessionReply::List(list) =
            retry(&*self.environment, &self.telemetry, op, self.timings.call, send).await?.reply
        {
            return Ok(SessionList { entries: merge_by_client(list.entries), ..list });
        }
        Err(other_reply())
    }
}

/// The failure of a request whose reply is one to another request.
fn other_reply() -> CallFailure {
    let text = "its reply does not match the request".to_owned();
    let fault = Fault::new(FaultKind::Failed(text), Phase::Reply, "the store");
    CallFailure { fault, executed: Executed::No }
}

/// Merges entries of one client: it has one session per partition, normally all with the same id.
fn merge_by_client(entries: Vec<SessionEntry>) -> Vec<SessionEntry> {
    let mut known: BTreeMap<(SessionId, bool), SessionEntry> = BTreeMap::new();
    for entry in entries {
        match known.entry((entry.session, entry.alive_ms.is_some())) {
            btree_map::Entry::Vacant(free) => drop(free.insert(entry)),
            btree_map::Entry::Occupied(mut found) => {
                let found = found.get_mut();
                found.alive_ms = found.alive_ms.max(entry.alive_ms);
                found.held.extend(entry.held);
                // A line for each session.
                if !found.activity.is_empty() && !entry.activity.is_empty() {
                    found.activity.push('\n');
                }
                found.activity.push_str(&entry.activity);
            }
        }
    }
    known.into_values().collect()
}

impl Drop for Engine {
    fn drop(&mut self) {
        for idle in self.locks.remove_idle() {
            self.keeper.release_idle(idle);
        }
        // Close the keeper first: it may be about to begin another session.
        self.keeper.close();
        if !self.gate.is_closed() {
            self.close_mailboxes();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("session", &self.sessions.id())
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// Why an engine cannot start.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The session cannot begin.
    Session(Fault),
    /// The keeper's thread cannot be started.
    Keeper(io::Error),
}

/// A reply to a call.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) reply: T,
    /// The fault of an earlier attempt that was not answered and may have been executed.
    pub(crate) unanswered: Option<Fault>,
}

/// A call that was not answered.
#[derive(Debug)]
pub(crate) struct CallFailure {
    /// The last fault.
    pub(crate) fault: Fault,
    /// Whether any of its sendings was executed.
    pub(crate) executed: Executed,
}

/// Sends one operation until it is answered, fails permanently, or `within` is over. Each attempt waits at most
/// `each` for its reply. Resending is safe: operations are idempotent.
pub(crate) async fn call(
    store: &dyn Store,
    environment: &dyn Environment,
    telemetry: &Telemetry,
    lock: &Lock,
    op: &Op,
    within: Duration,
    each: Duration,
) -> Result<Reply, CallFailure> {
    let send = |left: Duration| store.execute(lock, op, left.min(each));
    Ok(retry(environment, telemetry, op, within, send).await?.reply)
}

/// Repeats a request until it is answered, fails permanently, or no time is left.
async fn retry<'a, T>(
    environment: &dyn Environment,
    telemetry: &Telemetry,
    op: &impl Operation,
    within: Duration,
    mut send: impl FnMut(Duration) -> BoxFuture<'a, Outcome<T>>,
) -> Result<Answer<T>, CallFailure> {
    let deadline = environment.now() + within;
    let mut unanswered = None;
    let mut earlier: Option<Fault> = None;
    let mut pause = Duration::from_millis(10);
    loop {
        let left = deadline.since(environment.now());
        let request = telemetry.request();
        let fault = match request.pass(op.operation(), send(left).await) {
            Outcome::Done(reply) => return Ok(Answer { reply, unanswered }),
            Outcome::Failed(Executed::No, fault) => fault,
            Outcome::Failed(Executed::Unknown, fault) => unanswered.insert(fault).clone(),
        };
        let fault = fault.or_earlier(earlier.take());
        let again_at = environment.now() + pause / 2 + jitter(environment, pause / 2);
        if !fault.is_transient() || again_at >= deadline {
            let executed = if unanswered.is_some() { Executed::Unknown } else { Executed::No };
            return Err(CallFailure { fault, executed });
        }
        earlier = Some(fault);
        environment.sleep_until(again_at).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Classifies a reply of the wrong kind: a refusal, or a store that breaks its contract.
fn unexpected_reply(reply: Reply) -> (Fault, Executed) {
    let executed = if matches!(reply, Reply::Refused(_)) { Executed::No } else { Executed::Unknown };
    (Fault::unexpected_reply(reply), executed)
}
