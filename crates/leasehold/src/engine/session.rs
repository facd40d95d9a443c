//! A client's sessions, one per partition of the store: whether it is alive, how it begins, and which one is current.
//!
//! 1. A hold that depends on a session is valid no longer than the session: every check of the hold also checks the
//!    session's end, without the network.
//! 2. A session that has lapsed is over. The next one has its own id and mailbox. Requests of the old one are undone,
//!    and its replies are ignored.
//! 3. A session begins before its client extends a hold, or waits in a queue. In a store with one partition, that is
//!    before it requests anything. In a store with several, the session is *not begun* until then: its holds end with
//!    their first lease. A store takes a session that it does not know for alive as long as its client may rely on such a
//!    hold. So a session costs nothing where locks are held only briefly.
//! 4. Partitions fail independently; normally all sessions of a client have the same id. An unused session ends after a
//!    while, under the session-table mutex, so no task can pick it up concurrently. Nothing is requested while it ends.
//! 5. A request to begin a session may have been executed even if it got no reply. Once one was sent, nothing is requested
//!    for longer than that session would live; after that, the session has another id. A session without holds has another
//!    id for each such request. A session that is alive by this clock, and that the store has forgotten, begins again under
//!    its own id: requests go on meanwhile, and once it is over, the next one has another id if that begin had no reply.

use super::{NEVER, Timings};
use crate::store::{Executed, Fault, FaultKind, NotificationSink, Outcome, Phase, SessionTracking, Store};
use crate::telemetry::{Operation, Telemetry};
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{
    FIRST_LEASE, Heartbeat, HeartbeatReply, Liveness, Lock, Moment, Notification, Partition, SessionId,
    SessionOp, SessionReply, drift, whole_millis,
};
use leasehold_store::Environment;
use leasehold_store::sync::{AtomicU64, Mutex, MutexGuard, Notify};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// One session, as its holds see it.
pub(crate) struct Session {
    /// Its partition.
    pub(crate) partition: Partition,
    pub(crate) id: SessionId,
    /// What ends the holds that it acquires.
    pub(crate) liveness: Liveness,
    /// Microseconds of the client's clock; zero while it must not be used, and once it has lapsed.
    alive_until: AtomicU64,
    /// Whether the store knows it, and its mailbox is open (3).
    begun: AtomicBool,
    /// Whether a request to begin it got no reply (5).
    begin_unanswered: AtomicBool,
}

impl Session {
    pub(crate) fn new(partition: Partition, id: SessionId, liveness: Liveness, alive_until: Moment) -> Self {
        let alive_until = AtomicU64::new(alive_until.as_micros());
        let (begun, begin_unanswered) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { partition, id, liveness, alive_until, begun, begin_unanswered }
    }

    /// A session that has not begun: it must not be used, or only as long as it need not begin (3).
    fn not_begun(partition: Partition, id: SessionId, liveness: Liveness, usable: bool) -> Self {
        let alive_until = if usable { NEVER } else { Moment::ZERO };
        Self { begun: AtomicBool::new(false), ..Self::new(partition, id, liveness, alive_until) }
    }

    /// Whether a hold of it can be extended, and a request for a lock can wait in a queue (3).
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// A request to begin it is about to be sent (5).
    fn limit(&self, alive_until: Moment) {
        self.alive_until.fetch_min(alive_until.as_micros(), Ordering::AcqRel);
    }

    fn begin(&self, alive_until: Moment) {
        self.alive_until.store(alive_until.as_micros(), Ordering::Release);
        self.begun.store(true, Ordering::Release);
    }

    /// Whether it can only begin with another id (5).
    pub(super) fn is_over(&self, now: Moment) -> bool {
        let alive_until = self.alive_until();
        !self.has_begun() && alive_until != Moment::ZERO && alive_until <= now
    }

    /// A request to begin it may have been executed, and has no reply (5).
    pub(super) fn begin_is_unanswered(&self) {
        self.begin_unanswered.store(true, Ordering::Release);
    }

    /// Whether a request to begin it may still arrive at the store (5).
    pub(super) fn may_begin_late(&self) -> bool {
        self.begin_unanswered.load(Ordering::Acquire)
    }

    /// Until when it is known alive; [`Moment::ZERO`] while it must not be used, and once it has lapsed.
    pub(crate) fn alive_until(&self) -> Moment {
        Moment::from_micros(self.alive_until.load(Ordering::Acquire))
    }

    /// The moment from which on it has less than `left`, or less than half of the time that it lives without a heartbeat: more
    /// than that is left at every moment while heartbeats succeed.
    pub(crate) fn warn_at(&self, left: Duration) -> Moment {
        match self.liveness {
            Liveness::Session { alive_ms } => {
                self.alive_until() - left.min(Duration::from_millis(alive_ms) / 2)
            }
            Liveness::Lease => NEVER,
        }
    }

    /// This session for holds with this liveness: holds that end by their lease alone are allowed in a session with
    /// heartbeats.
    pub(super) fn with_liveness(self: &Arc<Self>, liveness: Liveness) -> Arc<Self> {
        let alone = || Arc::new(Self::new(self.partition, self.id, liveness, NEVER));
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
        text.field("begun", &self.has_begun()).finish_non_exhaustive()
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
    /// Set if locks are requested before the session has begun: it would live for longer than a first lease.
    begin_late: bool,
    partitions: Mutex<BTreeMap<Partition, PartitionSession>>,
    changed: Notify,
    /// Cancelled, and replaced, when a session lapses.
    lost: Mutex<CancellationToken>,
}

/// The state of one partition.
struct PartitionSession {
    current: Arc<Session>,
    /// Why the next session has not begun yet.
    last_fault: Option<Fault>,
    /// The number of tasks that wait until a session begins.
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
        let begin_late = match liveness {
            Liveness::Lease => true,
            Liveness::Session { alive_ms } => alive_ms >= whole_millis(FIRST_LEASE),
        };
        Self { on_demand: true, begin_late, ..Self::none(id, liveness) }
    }

    /// A single session that has begun already.
    pub(super) fn single(first: Arc<Session>) -> Self {
        let (id, liveness) = (first.id, first.liveness);
        let partitions = Mutex::new(BTreeMap::from([(first.partition, PartitionSession::new(first))]));
        Self { partitions, ..Self::none(id, liveness) }
    }

    fn none(id: SessionId, liveness: Liveness) -> Self {
        Self {
            id,
            liveness,
            on_demand: false,
            begin_late: false,
            partitions: Mutex::default(),
            changed: Notify::new(),
            lost: Mutex::default(),
        }
    }

    /// A token that is cancelled when a session lapses.
    pub(crate) fn lost_signal(&self) -> CancellationToken {
        // A child token, so that a caller that cancels it does not signal a lapse to others.
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).child_token()
    }

    /// A session has lapsed.
    pub(super) fn handle_lapsed(&self) {
        std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
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

    /// A session that begins when it is needed.
    fn not_begun(&self, partition: Partition, id: SessionId) -> Arc<Session> {
        Arc::new(Session::not_begun(partition, id, self.liveness, self.begin_late))
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

    /// Whether a session can have holds before it has begun.
    pub(super) fn begin_late(&self) -> bool {
        self.begin_late
    }

    /// All sessions, whether or not they have begun.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        self.partitions().values().map(|state| state.current.clone()).collect()
    }

    /// How much is left of the session that ends first, of those that have begun and need heartbeats.
    pub(crate) fn margin(&self, now: Moment) -> Option<Duration> {
        let ends = self.all().into_iter().filter(|session| session.has_begun());
        let ends = ends.map(|session| session.alive_until()).filter(|end| *end != NEVER);
        ends.min().map(|end| end.since(now))
    }

    /// The current session of a partition has begun.
    pub(super) fn handle_begun(&self, partition: Partition) {
        self.with_partition(partition, |state| state.last_fault = None);
        self.changed.notify_waiters();
    }

    /// The current session of a partition could not begin.
    pub(super) fn set_fault(&self, partition: Partition, fault: Fault) {
        self.with_partition(partition, |state| state.last_fault = Some(fault));
    }

    /// Why the last attempt to begin the current session failed.
    pub(super) fn known_fault(&self, partition: Partition) -> Option<Fault> {
        self.with_partition(partition, |state| state.last_fault.clone())
    }

    /// Why there is no live session.
    pub(super) fn last_fault(&self, partition: Partition) -> Fault {
        self.known_fault(partition)
            .unwrap_or_else(|| Fault::new(FaultKind::TimedOut, Phase::Reply, "the store"))
    }

    /// Whether a task waits until a session begins.
    pub(super) fn is_awaited(&self, partition: Partition) -> bool {
        self.partitions().get(&partition).is_some_and(|state| state.waiters > 0)
    }

    /// Waits until a session is as expected, or another one is current in its partition. Calls `request` first, to have
    /// a session begin.
    pub(super) async fn wait_for_change(
        &self,
        session: &Arc<Session>,
        request: impl FnOnce(),
        is_expected: impl Fn(&Session) -> bool,
    ) {
        let partition = session.partition;
        self.with_partition(partition, |state| state.waiters += 1);
        let _waiting = WaitingTask { sessions: self, partition };
        request();
        loop {
            let changed = self.changed.notified();
            if is_expected(session) || !Arc::ptr_eq(&self.current(partition), session) {
                return;
            }
            changed.await;
        }
    }

    /// Removes a session that only the keeper still refers to (4). Returns whether it removed it. The caller must
    /// [renew](Self::renew) it.
    pub(super) fn remove_idle(&self, session: &Arc<Session>) -> bool {
        let mut partitions = self.partitions();
        let Some(state) = partitions.get_mut(&session.partition) else { return false };
        // No task can clone it while this mutex is held.
        let is_idle = state.waiters == 0 && Arc::strong_count(session) == 2;
        if self.on_demand && is_idle && Arc::ptr_eq(&state.current, session) {
            let next = Session::not_begun(session.partition, session.id, self.liveness, false);
            state.current = Arc::new(next);
            return true;
        }
        false
    }

    /// Makes a session that has not begun the current one. It needs another id if the store may still know the previous
    /// one.
    pub(super) fn renew(&self, partition: Partition, id: SessionId) -> Arc<Session> {
        let next = self.not_begun(partition, id);
        self.with_partition(partition, |state| state.current = next.clone());
        // Waiters re-check.
        self.changed.notify_waiters();
        next
    }
}

/// Receives what arrives for the sessions of a client.
pub(super) trait SessionEvents: Send + Sync + 'static {
    /// A notification has arrived. Does not block.
    fn deliver(&self, notification: Notification);

    /// Notifications for a partition may have been missed, or places in its queues are lost: its waiters ask again. Does
    /// not block.
    fn missed_messages(&self, partition: Partition);

    /// A connection to a partition was made again: its store may have lost data. Does not block.
    fn reconnected(&self, partition: Partition);
}

/// Receives what arrives for the session of one partition.
pub(super) struct PartitionSink {
    pub(super) events: Arc<dyn SessionEvents>,
    pub(super) partition: Partition,
}

impl NotificationSink for PartitionSink {
    fn deliver(&self, notification: Notification) {
        self.events.deliver(notification);
    }

    fn resubscribed(&self) {
        self.events.missed_messages(self.partition);
        self.events.reconnected(self.partition);
    }
}

/// What each session of a client begins with.
pub(super) struct SessionFactory {
    /// The connection for requests and messages.
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) events: Arc<dyn SessionEvents>,
    /// The session metadata that stores keep for operators.
    pub(super) metadata: Arc<str>,
    pub(super) timings: Timings,
    pub(super) telemetry: Arc<Telemetry>,
}

impl SessionFactory {
    /// What ends the holds of such a session.
    pub(super) fn liveness(&self) -> Liveness {
        match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::Never, _) | (_, None) => Liveness::Lease,
            (_, Some(alive)) => Liveness::Session { alive_ms: whole_millis(alive) },
        }
    }

    /// A session that must begin before it is used.
    pub(super) fn not_begun(&self, partition: Partition, id: SessionId) -> Session {
        Session::not_begun(partition, id, self.liveness(), false)
    }

    /// Begins a session: opens its mailbox and has the store acknowledge it (3), with the locks that it holds already. It
    /// has a heartbeat schedule if the store requires heartbeats.
    ///
    /// Cancel safety: if the future is dropped, the mailbox is closed, and the session has not begun.
    pub(super) async fn begin(
        &self,
        session: &Session,
        held: &[Lock],
    ) -> Result<Option<HeartbeatSchedule>, BeginFailure> {
        let Session { partition, id, .. } = *session;
        let mailbox = Mailbox { store: &*self.store, partition, session: id };
        let sink = Arc::new(PartitionSink { events: self.events.clone(), partition });
        self.store.open_mailbox(partition, id, sink, self.timings.call).await?;
        let (schedule, alive_until) = match (self.store.capabilities().sessions, self.timings.session) {
            (SessionTracking::ByHeartbeat, Some(alive)) => {
                let sent_at = self.environment.now();
                session.limit(sent_at + alive - drift(alive));
                self.send_first_heartbeat(session, held, whole_millis(alive)).await?;
                let schedule = HeartbeatSchedule::new(alive, sent_at);
                let valid_until = schedule.valid_until();
                (Some(schedule), valid_until)
            }
            (SessionTracking::ByStore, Some(alive)) => {
                self.send_first_heartbeat(session, held, whole_millis(alive)).await?;
                (None, NEVER)
            }
            _ => (None, NEVER),
        };
        std::mem::forget(mailbox);
        session.begin(alive_until);
        Ok(schedule)
    }

    async fn send_first_heartbeat(
        &self,
        session: &Session,
        held: &[Lock],
        alive_ms: u64,
    ) -> Result<(), BeginFailure> {
        let begin = Some(self.metadata.to_string());
        let (acquired, released) = (held.to_vec(), Vec::new());
        let op = SessionOp::Heartbeat(Heartbeat {
            session: session.id,
            alive_ms,
            begin,
            acquired,
            released,
            renew_listing: true,
            activity: None,
        });
        let request = self.telemetry.request();
        let outcome = self.store.execute_session(session.partition, &op, self.timings.call).await;
        request.answered(op.operation(), &outcome);
        match outcome {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => Ok(()),
            Outcome::Done(_) => Err(BeginFailure::Lapsed),
            Outcome::Failed(executed, fault) => {
                if executed != Executed::No {
                    session.begin_is_unanswered();
                }
                Err(BeginFailure::Fault(fault))
            }
        }
    }
}

/// Why a session has not begun.
#[derive(Debug)]
pub(super) enum BeginFailure {
    /// The store did not answer, or refused.
    Fault(Fault),
    /// The session began by an earlier request, and has lapsed since (5).
    Lapsed,
}

impl From<Fault> for BeginFailure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<BeginFailure> for Fault {
    fn from(failure: BeginFailure) -> Self {
        match failure {
            BeginFailure::Fault(fault) => fault,
            BeginFailure::Lapsed => {
                let text = "it treated a new session as an existing one".to_owned();
                Self::new(FaultKind::Failed(text), Phase::Reply, "the store")
            }
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
