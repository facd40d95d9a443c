//! A client's sessions, one per partition of the store: whether it is alive, how it begins, and which one is current.
//!
//! 1. A hold that depends on a session is valid no longer than the session: every check of the hold also checks the
//!    session's end, without the network.
//! 2. A session that has lapsed is over. The next one has its own id and mailbox. Requests of the old one are undone,
//!    and its replies are ignored.
//! 3. Nothing is requested before the store has acknowledged the first heartbeat.
//! 4. Partitions fail independently. In a store with several, a session begins where it is first wanted; normally all
//!    sessions of a client have the same id. An unused session ends after a while, under the session-table mutex, so
//!    no task can pick it up concurrently.

use super::Timings;
use crate::store::{Fault, FaultKind, NotificationSink, Outcome, Phase, SessionTracking, Store};
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{
    Heartbeat, HeartbeatReply, Liveness, Moment, Partition, SessionId, SessionOp, SessionReply, whole_millis,
};
use leasehold_store::Environment;
use leasehold_store::sync::{AtomicU64, Mutex, MutexGuard, Notify};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// One session, as its holds see it.
pub(crate) struct Session {
    /// Its partition.
    pub(crate) partition: Partition,
    pub(crate) id: SessionId,
    /// What ends the holds that it acquires.
    pub(crate) liveness: Liveness,
    /// Microseconds of the client's clock; zero before it has begun and once it has lapsed.
    alive_until: AtomicU64,
}

impl Session {
    pub(crate) fn new(partition: Partition, id: SessionId, liveness: Liveness, alive_until: Moment) -> Self {
        Self { partition, id, liveness, alive_until: AtomicU64::new(alive_until.as_micros()) }
    }

    /// Until when it is known alive; [`Moment::ZERO`] once it has lapsed.
    pub(crate) fn alive_until(&self) -> Moment {
        Moment::from_micros(self.alive_until.load(Ordering::Acquire))
    }

    /// This session for holds with this liveness: holds that end by their lease alone are allowed in a session with
    /// heartbeats.
    pub(super) fn with_liveness(self: &Arc<Self>, liveness: Liveness) -> Arc<Self> {
        let alone = || Arc::new(Self::new(self.partition, self.id, liveness, super::NEVER));
        if liveness == self.liveness { self.clone() } else { alone() }
    }

    /// A heartbeat has reached the store.
    pub(super) fn extend(&self, alive_until: Moment) {
        let raised = |old| (old != 0 && old < alive_until.as_micros()).then_some(alive_until.as_micros());
        // A refusal means that it has lapsed, or is alive for longer already.
        let _ = self.alive_until.fetch_update(Ordering::AcqRel, Ordering::Acquire, raised);
    }

    /// It has lapsed (2).
    pub(super) fn end(&self) {
        self.alive_until.store(0, Ordering::Release);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Session");
        text.field("partition", &self.partition).field("id", &self.id).field("liveness", &self.liveness);
        text.finish_non_exhaustive()
    }
}

/// The current sessions of a client.
pub(crate) struct Sessions {
    /// The session id where none has lapsed.
    id: SessionId,
    /// What ends the holds of all of them.
    pub(crate) liveness: Liveness,
    /// Set if sessions begin and end on demand: in a store with several partitions.
    on_demand: bool,
    partitions: Mutex<BTreeMap<Partition, PartitionSession>>,
    changed: Notify,
}

/// The state of one partition.
struct PartitionSession {
    current: Arc<Session>,
    /// Why the next session has not begun yet.
    last_fault: Option<Fault>,
    /// The number of tasks that wait for the next session.
    waiters: usize,
}

impl PartitionSession {
    fn new(current: Arc<Session>) -> Self {
        Self { current, last_fault: None, waiters: 0 }
    }
}

/// A task that waits for a session to begin.
struct WaitingTask<'a> {
    sessions: &'a Sessions,
    partition: Partition,
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        self.sessions.with_partition(self.partition, |state| state.waiters = state.waiters.saturating_sub(1));
    }
}

impl Sessions {
    /// Sessions with this id that begin on demand.
    pub(super) fn on_demand(id: SessionId, liveness: Liveness) -> Self {
        Self { id, liveness, on_demand: true, partitions: Mutex::default(), changed: Notify::new() }
    }

    /// A single session that has begun already.
    pub(super) fn single(first: Arc<Session>) -> Self {
        let (id, liveness) = (first.id, first.liveness);
        let partitions = Mutex::new(BTreeMap::from([(first.partition, PartitionSession::new(first))]));
        Self { id, liveness, on_demand: false, partitions, changed: Notify::new() }
    }

    fn partitions(&self) -> MutexGuard<'_, BTreeMap<Partition, PartitionSession>> {
        // No code panics while it holds this mutex.
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_partition<T>(&self, partition: Partition, access: impl FnOnce(&mut PartitionSession) -> T) -> T {
        access(
            self.partitions()
                .entry(partition)
                .or_insert_with(|| PartitionSession::new(self.not_begun(partition, self.id))),
        )
    }

    /// A session that has not begun: it is never valid.
    fn not_begun(&self, partition: Partition, id: SessionId) -> Arc<Session> {
        Arc::new(Session::new(partition, id, self.liveness, Moment::ZERO))
    }

    /// The id of the sessions where none has lapsed.
    pub(crate) fn id(&self) -> SessionId {
        self.partitions().get(&Partition::ONLY).map_or(self.id, |state| state.current.id)
    }

    /// The id of the current session of a partition.
    pub(crate) fn id_at(&self, partition: Partition) -> SessionId {
        self.partitions().get(&partition).map_or(self.id, |state| state.current.id)
    }

    /// The current session of a partition, which may have lapsed, or not have begun.
    pub(crate) fn current(&self, partition: Partition) -> Arc<Session> {
        self.with_partition(partition, |state| state.current.clone())
    }

    /// All sessions, whether or not they have begun.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.partitions().values().map(|state| state.current.clone()).collect()
    }

    /// Another session has begun.
    pub(super) fn replace(&self, next: Arc<Session>) {
        self.with_partition(next.partition, |state| (state.current, state.last_fault) = (next, None));
        self.changed.notify_waiters();
    }

    /// Another session could not begin.
    pub(super) fn set_fault(&self, partition: Partition, fault: Fault) {
        self.with_partition(partition, |state| state.last_fault = Some(fault));
    }

    /// Why there is no live session.
    pub(super) fn last_fault(&self, partition: Partition) -> Fault {
        let last_fault = self.with_partition(partition, |state| state.last_fault.clone());
        last_fault.unwrap_or_else(|| Fault::new(FaultKind::TimedOut, Phase::Reply, "the store"))
    }

    /// Whether a task waits for the next session.
    pub(super) fn is_awaited(&self, partition: Partition) -> bool {
        self.partitions().get(&partition).is_some_and(|state| state.waiters > 0)
    }

    /// Waits until another session than `old` is current in its partition. Calls `request` first, to request one.
    pub(super) async fn wait_for_next(&self, old: &Arc<Session>, request: impl FnOnce()) {
        let partition = old.partition;
        self.with_partition(partition, |state| state.waiters += 1);
        let _waiting = WaitingTask { sessions: self, partition };
        request();
        loop {
            let changed = self.changed.notified();
            if !Arc::ptr_eq(&self.current(partition), old) {
                return;
            }
            changed.await;
        }
    }

    /// Removes a session that only the keeper still refers to (4). Returns whether it removed it.
    pub(super) fn remove_idle(&self, session: &Arc<Session>) -> bool {
        let mut partitions = self.partitions();
        let Some(state) = partitions.get_mut(&session.partition) else { return false };
        // No task can clone it while this mutex is held.
        let is_idle = state.waiters == 0 && Arc::strong_count(session) == 2;
        if self.on_demand && is_idle && Arc::ptr_eq(&state.current, session) {
            state.current = self.not_begun(session.partition, session.id);
            return true;
        }
        false
    }

    /// A removed session may still be known to the store: the next one gets another id.
    pub(super) fn set_next_id(&self, partition: Partition, id: SessionId) {
        self.with_partition(partition, |state| state.current = self.not_begun(partition, id));
        // Waiters re-check.
        self.changed.notify_waiters();
    }
}

/// What each session of a client begins with.
pub(super) struct SessionFactory {
    /// The connection for requests and messages.
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) sink: Arc<dyn NotificationSink>,
    /// The session metadata that stores keep for operators.
    pub(super) metadata: String,
    pub(super) timings: Timings,
}

impl SessionFactory {
    /// What ends the holds of such a session.
    pub(super) fn liveness(&self) -> Liveness {
        match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::Never, _) | (_, None) => Liveness::Lease,
            (_, Some(alive)) => Liveness::Session { alive_ms: whole_millis(alive) },
        }
    }

    /// Begins a session in a partition: opens its mailbox and has the store acknowledge it (3). The session has a
    /// heartbeat schedule if the store requires heartbeats.
    ///
    /// Cancel safety: if the future is dropped, the mailbox is closed, and nothing was requested under the session.
    pub(super) async fn begin(
        &self,
        partition: Partition,
        id: SessionId,
    ) -> Result<(Arc<Session>, Option<HeartbeatSchedule>), Fault> {
        let mailbox = Mailbox { store: &*self.store, partition, session: id };
        self.store.open_mailbox(partition, id, self.sink.clone(), self.timings.call).await?;
        let liveness = self.liveness();
        let begun = match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::ByHeartbeat, Some(alive)) => {
                let sent_at = self.environment.now();
                self.send_first_heartbeat(partition, id, whole_millis(alive)).await?;
                let schedule = HeartbeatSchedule::new(alive, sent_at);
                let session = Session::new(partition, id, liveness, schedule.valid_until());
                (Arc::new(session), Some(schedule))
            }
            (SessionTracking::ByStore, Some(alive)) => {
                self.send_first_heartbeat(partition, id, whole_millis(alive)).await?;
                (Arc::new(Session::new(partition, id, liveness, super::NEVER)), None)
            }
            _ => (Arc::new(Session::new(partition, id, liveness, super::NEVER)), None),
        };
        std::mem::forget(mailbox);
        Ok(begun)
    }

    async fn send_first_heartbeat(
        &self,
        partition: Partition,
        session: SessionId,
        alive_ms: u64,
    ) -> Result<(), Fault> {
        let begin = Some(self.metadata.clone());
        let op = SessionOp::Heartbeat(Heartbeat {
            session,
            alive_ms,
            begin,
            acquired: Vec::new(),
            released: Vec::new(),
        });
        match self.store.execute_session(partition, &op, self.timings.call).await {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => Ok(()),
            Outcome::Done(_) => {
                let text = "it treated a new session as an existing one".to_owned();
                Err(Fault::new(FaultKind::Failed(text), Phase::Reply, "the store"))
            }
            Outcome::Failed(_, fault) => Err(fault),
        }
    }
}

/// A new random session id.
pub(super) fn fresh_id(environment: &dyn Environment) -> SessionId {
    let mut bits = [0; 12];
    bits[..8].copy_from_slice(&environment.random().to_ne_bytes());
    bits[8..].copy_from_slice(&environment.random().to_ne_bytes()[..4]);
    SessionId::from_random(bits)
}

/// A mailbox that closes on drop, unless a session takes it over.
pub(super) struct Mailbox<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) partition: Partition,
    pub(super) session: SessionId,
}

impl Drop for Mailbox<'_> {
    fn drop(&mut self) {
        self.store.close_mailbox(self.partition, self.session);
    }
}
