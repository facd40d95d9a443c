//! A store that can be cut off from one client, in virtual time.

use futures_util::future::BoxFuture;
use leasehold::inspect::SessionId;
use leasehold::store::Environment;
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase, Reply,
    SessionOp, SessionReply, Store,
};
use leasehold::{Client, Moment};
use leasehold_core::{HoldStatus, KeyError, Partition, Released, SessionEntry};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const S: Duration = Duration::from_secs(1);

/// A connection to the store that a test can cut.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) inner: MemoryStore,
    pub(super) is_cut: Arc<AtomicBool>,
    pub(super) heartbeats: Arc<AtomicU64>,
    pub(super) begins: Arc<AtomicU64>,
    /// Set to lose the ends of sessions.
    pub(super) loses_ends: Arc<AtomicBool>,
    /// How many replies to begins of sessions will be lost.
    pub(super) lost_begins: Arc<AtomicU64>,
    pub(super) extends: Arc<AtomicU64>,
    pub(super) lists: Arc<AtomicU64>,
    /// Set to confirm releases that are not executed, like a store that comes back with older data.
    pub(super) forgets_releases: Arc<AtomicBool>,
    /// The delay of the reply to a heartbeat.
    pub(super) slow: Duration,
    /// Set to report every session as dead, like a list that is out of date.
    pub(super) reports_all_as_dead: Arc<AtomicBool>,
    pub(super) post: Arc<OnceLock<Arc<dyn NotificationSink>>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

impl Connection {
    async fn unless_cut<T>(
        &self,
        within: Duration,
        executed: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        if self.is_cut.load(SeqCst) {
            sleep(within).await;
            return Outcome::Failed(
                Executed::Unknown,
                Fault::new(FaultKind::TimedOut, Phase::Reply, "a store that was cut off"),
            );
        }
        executed.await
    }
}

impl Store for Connection {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        if matches!(op, Op::Extend(_)) {
            self.extends.fetch_add(1, SeqCst);
        }
        if matches!(op, Op::Release(_)) && self.forgets_releases.load(SeqCst) {
            let status = HoldStatus::Held;
            let released =
                Released { status, remaining_holds: 0, holder: None, next_waiter: None, next: None };
            return Box::pin(std::future::ready(Outcome::Done(Reply::Release(released))));
        }
        Box::pin(self.unless_cut(within, self.inner.execute(lock, op, within)))
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        let _ = self.post.set(post.clone());
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn execute_session<'a>(
        &'a self,
        place: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        if matches!(op, SessionOp::Heartbeat(beat) if beat.begin.is_none()) {
            self.heartbeats.fetch_add(1, SeqCst);
        }
        if matches!(op, SessionOp::Heartbeat(beat) if beat.begin.is_some()) {
            self.begins.fetch_add(1, SeqCst);
        }
        if matches!(op, SessionOp::End(_)) && self.loses_ends.load(SeqCst) {
            let fault = Fault::new(FaultKind::Disconnected, Phase::Reply, "a store that was cut off");
            return Box::pin(std::future::ready(Outcome::Failed(Executed::Unknown, fault)));
        }
        if matches!(op, SessionOp::List | SessionOp::Find(_)) {
            self.lists.fetch_add(1, SeqCst);
        }
        Box::pin(async move {
            let mut outcome = self.unless_cut(within, self.inner.execute_session(place, op, within)).await;
            if matches!(op, SessionOp::Heartbeat(_)) {
                sleep(self.slow).await;
            }
            let loses = |left: u64| left.checked_sub(1);
            if matches!(op, SessionOp::Heartbeat(beat) if beat.begin.is_some())
                && self.lost_begins.fetch_update(SeqCst, SeqCst, loses).is_ok()
            {
                let fault = Fault::new(FaultKind::Disconnected, Phase::Reply, "a store that was cut off");
                return Outcome::Failed(Executed::Unknown, fault);
            }
            if let Outcome::Done(SessionReply::List(sessions)) = &mut outcome
                && self.reports_all_as_dead.load(SeqCst)
            {
                for session in &mut sessions.entries {
                    session.alive_ms = None;
                }
            }
            outcome
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// The environment of a machine with tokio's clock, which may have been suspended.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) started: Instant,
    pub(super) suspended_ms: Arc<AtomicU64>,
    pub(super) drawn: AtomicU64,
}

impl Environment for Machine {
    fn now(&self) -> Moment {
        Moment::ZERO
            + S
            + self.started.elapsed()
            + MS * u32::try_from(self.suspended_ms.load(SeqCst)).expect("not for long")
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.started.elapsed()
    }

    fn random(&self) -> u64 {
        let mut x = self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, SeqCst);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// A store, and the start of its clock.
pub(super) struct Fixture {
    pub(super) store: MemoryStore,
    pub(super) started: Instant,
    /// By how much the store's clock was set forward.
    pub(super) skipped_ms: Arc<AtomicU64>,
    pub(super) seed: AtomicU64,
}

/// A client, its connection, and its clock.
pub(super) struct Process {
    pub(super) client: Client,
    pub(super) connection: Connection,
    pub(super) suspended_ms: Arc<AtomicU64>,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        let skipped_ms = Arc::new(AtomicU64::new(0));
        let skipped = skipped_ms.clone();
        let store = MemoryStore::with_clock(move || {
            1_762_000_000_000_000
                + skipped.load(SeqCst) * 1000
                + u64::try_from(started.elapsed().as_micros()).expect("a test is shorter than that")
        });
        Self { store, started, skipped_ms, seed: AtomicU64::new(1) }
    }

    pub(super) async fn process(&self, session: Option<Duration>) -> Process {
        self.process_with(session, Duration::ZERO).await
    }

    pub(super) fn connection(&self, slow: Duration) -> Connection {
        Connection {
            inner: self.store.clone(),
            is_cut: Arc::default(),
            heartbeats: Arc::default(),
            begins: Arc::default(),
            loses_ends: Arc::default(),
            lost_begins: Arc::default(),
            extends: Arc::default(),
            lists: Arc::default(),
            forgets_releases: Arc::default(),
            slow,
            reports_all_as_dead: Arc::default(),
            post: Arc::default(),
        }
    }

    pub(super) async fn process_with(&self, session: Option<Duration>, slow: Duration) -> Process {
        let connection = self.connection(slow);
        let suspended_ms = Arc::new(AtomicU64::new(0));
        let environment = Machine {
            started: self.started,
            suspended_ms: suspended_ms.clone(),
            drawn: AtomicU64::new(self.seed.fetch_add(1, SeqCst) << 48),
        };
        let builder =
            Client::with_store(connection.clone()).environment(environment).session_label("zone", "eu-1");
        let builder = match session {
            Some(session) => builder.session_ttl(session),
            None => builder.without_session(),
        };
        Process { client: builder.connect().await.expect("it connects"), connection, suspended_ms }
    }

    /// The store has no record of a session any more, like a promoted replica that lacks it.
    pub(super) async fn forget(&self, session: SessionId) {
        let ended = self.store.execute_session(Partition::ONLY, &SessionOp::End(session), S).await;
        assert!(matches!(ended, Outcome::Done(_)), "{ended:?}");
    }

    pub(super) async fn sessions(&self) -> Vec<SessionEntry> {
        match self.store.execute_session(Partition::ONLY, &SessionOp::List, S).await {
            Outcome::Done(SessionReply::List(sessions)) => sessions.entries,
            odd => panic!("{odd:?}"),
        }
    }
}

impl Process {
    /// From now on the client neither reaches the store nor receives notifications, like a process that was killed.
    pub(super) fn cut(&self) {
        self.connection.is_cut.store(true, SeqCst);
    }

    pub(super) fn reconnect(&self) {
        self.connection.is_cut.store(false, SeqCst);
    }
}
