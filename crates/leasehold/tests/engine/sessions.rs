//! Sessions, over a store that can be cut off from one client, in virtual time: the cost of a death, an outage and a
//! stop.

use futures_util::future::BoxFuture;
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, MemoryStore, Notification, NotificationSink, Op, Outcome,
    Phase, SessionOp, SessionReply, Shards, Store,
};
use leasehold::{
    AcquireError, Attempt, Client, Ended, Environment, FencingToken, LostReason, Moment, SessionId,
};
use leasehold_core::{FIRST_LEASE, KeyError, Partition, SessionEntry, SessionMetadata};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A connection to the store that a test can cut.
#[derive(Clone)]
struct Connection {
    inner: MemoryStore,
    is_cut: Arc<AtomicBool>,
    heartbeats: Arc<AtomicU64>,
    begins: Arc<AtomicU64>,
    /// Set to lose the ends of sessions.
    loses_ends: Arc<AtomicBool>,
    /// How many replies to begins of sessions will be lost.
    lost_begins: Arc<AtomicU64>,
    extends: Arc<AtomicU64>,
    lists: Arc<AtomicU64>,
    /// The delay of the reply to a heartbeat.
    slow: Duration,
    /// Set to report every session as dead, like a list that is out of date.
    reports_all_as_dead: Arc<AtomicBool>,
    post: Arc<OnceLock<Arc<dyn NotificationSink>>>,
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
        if matches!(op, SessionOp::List) {
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
                for session in sessions {
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
struct Machine {
    started: Instant,
    suspended_ms: Arc<AtomicU64>,
    drawn: AtomicU64,
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
struct Fixture {
    store: MemoryStore,
    started: Instant,
    seed: AtomicU64,
}

/// A client, its connection, and its clock.
struct Process {
    client: Client,
    connection: Connection,
    suspended_ms: Arc<AtomicU64>,
}

impl Fixture {
    fn new() -> Self {
        let started = Instant::now();
        let store = MemoryStore::with_clock(move || {
            1_762_000_000_000_000
                + u64::try_from(started.elapsed().as_micros()).expect("a test is shorter than that")
        });
        Self { store, started, seed: AtomicU64::new(1) }
    }

    async fn process(&self, session: Option<Duration>) -> Process {
        self.process_with(session, Duration::ZERO).await
    }

    fn connection(&self, slow: Duration) -> Connection {
        Connection {
            inner: self.store.clone(),
            is_cut: Arc::default(),
            heartbeats: Arc::default(),
            begins: Arc::default(),
            loses_ends: Arc::default(),
            lost_begins: Arc::default(),
            extends: Arc::default(),
            lists: Arc::default(),
            slow,
            reports_all_as_dead: Arc::default(),
            post: Arc::default(),
        }
    }

    async fn process_with(&self, session: Option<Duration>, slow: Duration) -> Process {
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

    async fn sessions(&self) -> Vec<SessionEntry> {
        match self.store.execute_session(Partition::ONLY, &SessionOp::List, S).await {
            Outcome::Done(SessionReply::List(sessions)) => sessions,
            odd => panic!("{odd:?}"),
        }
    }
}

impl Process {
    /// From now on the client neither reaches the store nor receives notifications, like a process that was killed.
    fn cut(&self) {
        self.connection.is_cut.store(true, SeqCst);
    }

    fn reconnect(&self) {
        self.connection.is_cut.store(false, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_without_heartbeats_loses_all_its_holds() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let long = process.client.mutex("long").unwrap().lease(600 * S).acquire().await.unwrap();
    let watched = process.client.mutex("watched").unwrap().acquire().await.unwrap();
    sleep(30 * S).await;
    long.check().expect("it beats");
    process.cut();
    let cut_at = Instant::now();
    sleep(7 * S).await;
    long.check().expect("an outage that is shorter than the session is tolerated");
    let (a, b) = tokio::join!(long.lost(), watched.lost());
    assert_eq!((a.reason, b.reason), (LostReason::SessionLapsed, LostReason::SessionLapsed));
    assert!(cut_at.elapsed() < 10 * S, "before the store can think so: {:?}", cut_at.elapsed());
}

/// The process detects the lapse before the store does, and no task has a guard that would release the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_kept_for_local_tasks_is_released_when_its_session_lapses() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(10 * S)).await, fixture.process(None).await);
    let kept = process.client.mutex("a").unwrap().lease(600 * S).sticky(600 * S);
    kept.acquire().await.unwrap().release().await.unwrap();
    let theirs = other.client.mutex("a").unwrap();
    assert!(theirs.inspect().await.unwrap().held);
    process.suspended_ms.fetch_add(11_000, SeqCst);
    sleep(2 * S).await;
    assert!(
        !theirs.inspect().await.unwrap().held,
        "the store would take it for held for as long as its lease"
    );
}

#[tokio::test(start_paused = true)]
async fn another_session_begins_once_the_store_is_back() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let first = process.client.session_id();
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = process.client.mutex("b").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    waiting.await.unwrap().expect("it is free").release().await.unwrap();
    process.cut();
    guard.lost().await;
    let seeking = tokio::spawn({
        let mutex = process.client.mutex("a").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    sleep(10 * S).await;
    let refused = process.client.mutex("c").unwrap().try_acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Store(_))),
        "without a session nothing is requested: {refused:?}"
    );
    assert!(!seeking.is_finished(), "a waiter tolerates the outage");
    process.reconnect();
    let again = seeking.await.unwrap().expect("the store is back");
    assert_ne!(process.client.session_id(), first, "a session that lapsed is never revived");
    assert!(again.fencing_token() > guard.fencing_token());
    assert_eq!(guard.check().unwrap_err().reason, LostReason::SessionLapsed);
    drop(guard);
    sleep(5 * S).await;
    again.check().expect("the holds of the old session are not those of the new one");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_wait_for_the_lease_of_a_dead_holder() {
    for session in [S, 3 * S, 10 * S] {
        let fixture = Fixture::new();
        let (dead, live) = (fixture.process(Some(session)).await, fixture.process(Some(session)).await);
        let held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
        let next = tokio::spawn({
            let mutex = live.client.mutex("a").unwrap();
            async move { mutex.acquire().await }
        });
        sleep(20 * S).await;
        dead.cut();
        let died = Instant::now();
        let guard = next.await.unwrap().expect("the session of the dead ends");
        let waited = died.elapsed();
        assert!(held.check().is_err(), "the holder detected it first");
        assert!(waited > session / 2 && waited < session + 50 * MS, "{waited:?} of {session:?}");
        assert!(guard.fencing_token() > held.fencing_token());
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_waiter_detects_at_once_that_the_holder_is_dead() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(S)).await, fixture.process(Some(S)).await);
    let _held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    dead.cut();
    sleep(60 * S).await;
    let came = Instant::now();
    drop(live.client.mutex("a").unwrap().acquire().await.unwrap());
    assert!(came.elapsed() < 350 * MS, "{:?}", came.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fifty_dead_waiters_cost_no_more_than_one() {
    let fixture = Fixture::new();
    let holder = fixture.process(Some(3 * S)).await;
    let _held = holder.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let mut dead = vec![holder];
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let process = fixture.process(Some(3 * S)).await;
        let mutex = process.client.mutex("a").unwrap();
        waiting.push(tokio::spawn(async move { mutex.acquire().await }));
        sleep(MS).await;
        dead.push(process);
    }
    let live = fixture.process(Some(3 * S)).await;
    let next = tokio::spawn({
        let mutex = live.client.mutex("a").unwrap();
        async move { mutex.acquire().await }
    });
    sleep(30 * S).await;
    dead.iter().for_each(Process::cut);
    let died = Instant::now();
    drop(next.await.unwrap().expect("all before are dead"));
    assert!(died.elapsed() < 4 * S, "{:?}", died.elapsed());
    for process in waiting {
        process.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_detects_its_loss_without_the_network() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(5 * S).await;
    guard.check().expect("it beats");
    process.suspended_ms.fetch_add(6_000, SeqCst);
    let lost = guard.check().expect_err("nothing ran meanwhile, and nothing needs to");
    assert_eq!(lost.reason, LostReason::SessionLapsed);
    assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
}

#[tokio::test(start_paused = true)]
async fn without_a_session_leases_alone_decide() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(None).await, fixture.process(Some(S)).await);
    let held = dead.client.mutex("a").unwrap().lease(60 * S).acquire().await.unwrap();
    sleep(S).await;
    dead.cut();
    sleep(30 * S).await;
    held.check().expect("its lease lasts");
    let Attempt::Taken(contention) = live.client.mutex("a").unwrap().try_acquire().await.unwrap() else {
        panic!("its lease lasts");
    };
    assert_eq!(contention.holder.and_then(|holder| holder.session), None);
    let came = Instant::now();
    drop(live.client.mutex("a").unwrap().acquire().await.unwrap());
    assert!(came.elapsed() > 25 * S, "{:?}", came.elapsed());
    assert_eq!(dead.connection.heartbeats.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn operators_find_locks_held_for_longer_than_a_moment() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let held = |sessions: &[SessionEntry]| -> Vec<String> {
        let [session] = sessions else { panic!("one session: {sessions:?}") };
        session.held.iter().map(|lock| lock.name.to_string()).collect()
    };
    let quick = process.client.mutex("quick").unwrap();
    for _ in 0..1000 {
        quick.acquire().await.unwrap().release().await.unwrap();
    }
    let guard = process.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(3 * S).await;
    let sessions = fixture.sessions().await;
    assert_eq!(held(&sessions), ["long"]);
    let about = SessionMetadata::from_json(&sessions[0].metadata).expect("ours");
    assert_eq!((about.pid, about.labels["zone"].as_str()), (std::process::id(), "eu-1"));
    // The keeper need not renew a lock for a long time after its user has extended it.
    let own = process.client.mutex("own").unwrap().acquire().await.unwrap();
    own.extend_to(600 * S).await.unwrap();
    sleep(S).await;
    assert_eq!(held(&fixture.sessions().await), ["long", "own"]);
    own.release().await.unwrap();
    guard.release().await.unwrap();
    sleep(3 * S).await;
    assert!(held(&fixture.sessions().await).is_empty());
    assert!(
        process.connection.heartbeats.load(SeqCst) < 10,
        "{}",
        process.connection.heartbeats.load(SeqCst)
    );
    drop((quick, process));
    sleep(S).await;
    assert!(fixture.sessions().await.is_empty(), "an orderly shutdown leaves nothing");
}

/// The next heartbeat reports a release. A client that is dropped right afterwards needs no heartbeat; its keeper once
/// sent one all the same, and the end of the session waited for it.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_sends_no_heartbeat() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let guard = process.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(4 * S).await;
    guard.release().await.unwrap();
    let Process { client, connection, .. } = process;
    let beats = connection.heartbeats.load(SeqCst);
    drop(client);
    sleep(S).await;
    assert_eq!(connection.heartbeats.load(SeqCst), beats);
    assert!(fixture.sessions().await.is_empty(), "it has ended all the same");
}

#[tokio::test(start_paused = true)]
async fn a_session_cannot_be_shorter_than_a_second() {
    let store = MemoryStore::new();
    let error = Client::with_store(store).session_ttl(999 * MS).connect().await.expect_err("too short");
    assert!(error.to_string().contains("at least 1 s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_is_noticed_within_milliseconds() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(10 * S)).await, fixture.process(Some(10 * S)).await);
    for lease in [None, Some(600 * S)] {
        let mutex = process.client.mutex("a").unwrap();
        let mutex = if let Some(lease) = lease { mutex.lease(lease) } else { mutex };
        let guard = mutex.acquire().await.unwrap();
        sleep(20 * S).await;
        let freed = other.client.mutex("a").unwrap();
        let seen = freed.inspect_full().await.unwrap().observed.expect("it is held");
        freed.force_release(seen).await.expect("it is still held as it was seen");
        let freed_at = Instant::now();
        assert_eq!(guard.lost().await.reason, LostReason::ForceReleased);
        assert!(freed_at.elapsed() < 5 * MS, "{:?}", freed_at.elapsed());
        drop(guard);
        process.client.flush().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_forged_messages_costs_a_few_extends_and_no_lock() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(MS).await; // two that were granted at the same time may have the same number
    let bystander = process.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(20 * S).await;
    let before = process.connection.extends.load(SeqCst);
    let post = process.connection.post.get().expect("it was opened").clone();
    let forged =
        Notification::ForceReleased { to: process.client.session_id(), fence: guard.fencing_token() };
    for _ in 0..10_000 {
        post.deliver(forged);
        post.deliver(Notification::ForceReleased {
            to: process.client.session_id(),
            fence: FencingToken::new(1),
        });
        sleep(MS).await;
    }
    let sent = process.connection.extends.load(SeqCst) - before;
    assert!((10..=45).contains(&sent), "{sent} in 10 s");
    guard.check().expect("the store says that it is held");
    bystander.check().expect("no message named it");
}

#[tokio::test(start_paused = true)]
async fn a_monitor_frees_locks_without_waiters() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let kept = live.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    let evicted = Arc::new(Mutex::new(Vec::new()));
    let evictions = evicted.clone();
    let monitor = live.client.monitor();
    let running = tokio::spawn(monitor.run(move |round| {
        evictions.lock().unwrap().extend(round.evicted.iter().map(|e| (e.name.to_string(), e.fence)));
    }));
    sleep(10 * S).await;
    assert!(evicted.lock().unwrap().is_empty(), "all are alive");
    dead.cut();
    sleep(5 * S).await;
    assert_eq!(*evicted.lock().unwrap(), [("a".to_owned(), Some(held.fencing_token()))]);
    let details = live.client.mutex("a").unwrap().inspect_full().await.unwrap();
    assert!(!details.status.held && details.audit.len() == 1, "{details:?}");
    assert_eq!(details.audit[0].ended, Ended::Evicted);
    kept.check().expect("its session beats");
    sleep(60 * S).await;
    assert_eq!(evicted.lock().unwrap().len(), 1, "no eviction is reported twice");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn row_43_a_session_that_is_back_in_time_keeps_its_holds() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let guard = holder.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    other.connection.reports_all_as_dead.store(true, SeqCst);
    let mut monitor = other.client.monitor();
    for _ in 0..3 {
        let round = monitor.run_once().await;
        assert!(round.dead == 2 && round.evicted.is_empty() && round.fault.is_none(), "{round:?}");
    }
    guard.extend().await.expect("the store checked in the same step");
    // It was not recorded as done either.
    other.connection.reports_all_as_dead.store(false, SeqCst);
    holder.cut();
    sleep(4 * S).await;
    assert_eq!(monitor.run_once().await.evicted.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_monitor_tolerates_an_outage_and_polls_rarely_meanwhile() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let _held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    dead.cut();
    live.cut();
    let (rounds, evicted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (rounds.clone(), evicted.clone());
    let monitor = live.client.monitor().interval(S);
    let running = tokio::spawn(monitor.run(move |round| {
        counts.0.fetch_add(1, SeqCst);
        counts.1.fetch_add(round.evicted.len() as u64, SeqCst);
    }));
    sleep(300 * S).await;
    assert!((30..=60).contains(&rounds.load(SeqCst)), "{rounds:?}");
    assert!(live.connection.lists.load(SeqCst) < 100, "{:?}", live.connection.lists);
    live.reconnect();
    sleep(40 * S).await;
    // The reported locks of the dead session were forgotten meanwhile, and its lease still runs.
    assert_eq!(evicted.load(SeqCst), 0);
    let (late, late_live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let _held = late.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    late.cut();
    sleep(6 * S).await;
    assert_eq!(evicted.load(SeqCst), 1, "it works as before");
    drop(late_live);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_round_of_the_monitor_has_a_bound() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let mut held = Vec::new();
    for n in 0..1500 {
        held.push(dead.client.mutex(format!("n{n}")).unwrap().lease(600 * S).acquire().await.unwrap());
    }
    sleep(10 * S).await;
    dead.cut();
    sleep(4 * S).await;
    assert_eq!(live.client.locks().await.unwrap().len(), 1500);
    let mut monitor = live.client.monitor();
    let first = monitor.run_once().await;
    assert_eq!((first.evicted.len(), first.remaining, first.dead), (1024, 476, 1));
    let second = monitor.run_once().await;
    assert_eq!((second.evicted.len(), second.remaining), (476, 0));
    assert!(live.client.locks().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_lapsed_session_removes_no_report_of_the_next_one() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let old = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(5 * S).await;
    process.cut();
    old.lost().await;
    process.reconnect();
    let again = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(5 * S).await;
    let reported = || async {
        let of_it = |entry: &SessionEntry| entry.session == process.client.session_id();
        fixture.sessions().await.into_iter().find(of_it).expect("it lives").held.len()
    };
    assert_eq!(reported().await, 1, "the new session has reported its hold");
    drop(old);
    sleep(60 * S).await;
    again.check().expect("it is held all the time");
    assert_eq!(reported().await, 1, "and it is still listed");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_nothing_to_release_does_not_wait_for_a_session_that_cannot_begin() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    process.cut();
    sleep(20 * S + 300 * MS).await;
    let began = Instant::now();
    process.client.shutdown(30 * S).await.expect("nothing was held");
    assert!(began.elapsed() < 100 * MS, "{:?}", began.elapsed());
}

/// A late reply does not lengthen a session: its time counts from the sending of the heartbeat.
#[tokio::test(start_paused = true)]
async fn a_client_ends_its_session_before_the_store_does_however_slow_the_replies() {
    // For the reply to its creation, and for those to its heartbeats.
    for after in [50 * MS, 7_130 * MS] {
        let fixture = Fixture::new();
        let process = fixture.process_with(Some(4 * S), 900 * MS).await;
        let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
        sleep(after).await;
        guard.check().expect("it beats");
        process.cut();
        assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
        let sessions = fixture.sessions().await;
        assert!(sessions[0].alive_ms.is_some(), "the store thought so first: {sessions:?}");
    }
}

/// A client of two partitions, and its connection to each.
async fn client_of_two(fixtures: [&Fixture; 2]) -> (Client, [Connection; 2]) {
    let connections = fixtures.map(|fixture| fixture.connection(Duration::ZERO));
    let shard = |n: usize| (n.to_string(), Arc::new(connections[n].clone()) as Arc<dyn Store>);
    let environment = Machine {
        started: fixtures[0].started,
        suspended_ms: Arc::default(),
        drawn: AtomicU64::new(fixtures[0].seed.fetch_add(1, SeqCst) << 48),
    };
    let client = Client::with_store(Shards::new([0, 1].map(shard)).unwrap())
        .environment(environment)
        .connect()
        .await
        .unwrap();
    (client, connections)
}

/// A name in each of them.
fn names() -> [String; 2] {
    let shard = |n: usize| (n.to_string(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let shards = Shards::new([0, 1].map(shard)).unwrap();
    [0, 1].map(|n| {
        let lies_there =
            |name: &String| shards.shard_of(&Lock::mutex(name.parse().unwrap())) == n.to_string();
        (0..100).map(|n| format!("m{n}")).find(lies_there).unwrap()
    })
}

/// A session begins when it is needed, ends when nothing has referred to it for half a minute, and begins again; it
/// does not end while a lock is held there or waited for.
#[tokio::test(start_paused = true)]
async fn sessions_begin_and_end_with_their_use() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (other, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [here, there] = names().map(|name| client.mutex(name).unwrap());
    let held = here.acquire().await.unwrap();
    assert!(fixtures[0].sessions().await.is_empty(), "a first lease needs none");
    sleep(2 * S).await;
    let [begun] = &fixtures[0].sessions().await[..] else { panic!("one session") };
    assert_eq!(begun.session, client.session_id());
    assert_eq!(begun.held.len(), 1, "it begins with what it holds");
    assert!(fixtures[1].sessions().await.is_empty(), "none is needed there");

    for _ in 0..2 {
        let guard = there.acquire().await.unwrap();
        sleep(2 * S).await;
        guard.release().await.unwrap();
        sleep(25 * S).await;
        assert_eq!(fixtures[1].sessions().await[0].session, client.session_id(), "it may be needed again");
        sleep(20 * S).await;
        assert!(fixtures[1].sessions().await.is_empty(), "nothing refers to it");
        held.check().expect("the lock in the other partition is unaffected");
    }

    // A waiter has no hold, and needs its session all the same.
    let taken = other.mutex(there.name().as_str()).unwrap().acquire().await.unwrap();
    let waits = tokio::spawn({
        let there = there.clone();
        async move { there.acquire().await }
    });
    sleep(120 * S).await;
    let sessions = fixtures[1].sessions().await;
    assert!(sessions.iter().any(|entry| entry.session == client.session_id() && entry.alive_ms.is_some()));
    taken.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    sleep(120 * S).await;
    guard.check().expect("a hold keeps its session");
    held.check().expect("so does this");
    guard.release().await.unwrap();
    held.release().await.unwrap();
    client.shutdown(S).await.unwrap();
    other.shutdown(S).await.unwrap();
    for fixture in &fixtures {
        assert!(fixture.sessions().await.is_empty(), "they have ended in order");
    }
}

/// Partitions are independent: the session of one lapses, and another begins there when it is needed and possible.
#[tokio::test(start_paused = true)]
async fn a_partition_that_is_cut_off_does_not_affect_the_others() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [here, there] = names().map(|name| client.mutex(name).unwrap());
    let (held, lost) = (here.acquire().await.unwrap(), there.acquire().await.unwrap());
    sleep(15 * S).await;
    connections[1].is_cut.store(true, SeqCst);
    let lost = lost.lost().await;
    assert_eq!(lost.reason, LostReason::SessionLapsed);
    assert!(there.acquire_timeout(S).await.is_err());
    // No task keeps retrying for a partition that is not needed.
    sleep(60 * S).await;
    let tried = connections[1].begins.load(SeqCst);
    sleep(600 * S).await;
    assert_eq!(connections[1].begins.load(SeqCst), tried);
    held.check().expect("it is elsewhere");
    connections[1].is_cut.store(false, SeqCst);
    let again = there.acquire().await.unwrap();
    sleep(60 * S).await;
    again.check().expect("it is alive again");
    let entries = fixtures[1].sessions().await;
    let alive: Vec<_> = entries.iter().filter(|entry| entry.alive_ms.is_some()).collect();
    assert_eq!(alive.len(), 1);
    assert_ne!(alive[0].session, client.session_id(), "a session that lapsed is never revived");
    held.check().expect("it is elsewhere");
}

/// The request to end a session may arrive late if its reply was lost: the next session has another id, so the request
/// does not end it.
#[tokio::test(start_paused = true)]
async fn a_session_whose_end_is_not_known_is_not_revived() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [_, there] = names().map(|name| client.mutex(name).unwrap());
    let first = there.acquire().await.unwrap();
    sleep(2 * S).await;
    first.release().await.unwrap();
    connections[1].loses_ends.store(true, SeqCst);
    sleep(45 * S).await;
    let guard = there.acquire().await.unwrap();
    sleep(2 * S).await;
    let late = SessionOp::End(client.session_id());
    assert!(matches!(fixtures[1].store.execute_session(Partition::ONLY, &late, S).await, Outcome::Done(_)));
    sleep(30 * S).await;
    guard.check().expect("its session is another one");
}

/// Locks that are held only briefly cost no session, however many partitions they are in.
#[tokio::test(start_paused = true)]
async fn brief_holds_begin_no_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    for _ in 0..10 {
        for name in names() {
            let guard = client.mutex(name.as_str()).unwrap().acquire().await.unwrap();
            sleep(500 * MS).await;
            guard.release().await.unwrap();
            let read = client.rwlock(format!("{name}/r")).unwrap().read().await.unwrap();
            sleep(500 * MS).await;
            read.release().await.unwrap();
        }
    }
    for (fixture, connection) in fixtures.iter().zip(&connections) {
        assert!(fixture.sessions().await.is_empty());
        assert_eq!((connection.begins.load(SeqCst), connection.heartbeats.load(SeqCst)), (0, 0));
    }
}

/// A reader excludes no other reader, and asks for its whole lease at once; but not before its session has begun, since
/// the store frees what an unknown session holds.
#[tokio::test(start_paused = true)]
async fn no_hold_outlives_a_session_that_has_not_begun() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let lock = client.rwlock(names()[0].as_str()).unwrap();
    let read = lock.read().await.unwrap();
    assert!(read.remaining() <= FIRST_LEASE, "{:?}", read.remaining());
    connections[0].is_cut.store(true, SeqCst);
    let since = Instant::now();
    let lost = read.lost().await;
    assert!(since.elapsed() <= FIRST_LEASE, "{lost}");
}

/// A waiter that finds a lock taken begins its session, and the release grants the lock to it.
#[tokio::test(start_paused = true)]
async fn a_waiter_begins_its_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (other, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [name, _] = names();
    let guard = client.mutex(name.as_str()).unwrap().acquire().await.unwrap();
    assert!(other.mutex(name.as_str()).unwrap().try_acquire().await.unwrap().granted().is_none());
    assert_eq!(connections[0].begins.load(SeqCst), 0, "a single attempt does not wait");
    let mutex = other.mutex(name.as_str()).unwrap();
    let waits = tokio::spawn(async move { (mutex.acquire().await, Instant::now()) });
    sleep(500 * MS).await;
    assert_eq!(connections[0].begins.load(SeqCst), 1);
    assert_eq!(client.mutex(name.as_str()).unwrap().inspect().await.unwrap().waiting, 1);
    let released = Instant::now();
    guard.release().await.unwrap();
    let (next, at) = waits.await.unwrap();
    assert!(at - released < 10 * MS, "{:?}", at - released);
    sleep(60 * S).await;
    next.unwrap().check().expect("it is kept");
}

/// The reply to the begin of a session is lost: it begins again with the same id, before the holds expire.
#[tokio::test(start_paused = true)]
async fn a_session_begins_though_the_first_reply_is_lost() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (mutex, first_id) = (client.mutex(names()[0].as_str()).unwrap(), client.session_id());
    connections[0].lost_begins.store(2, SeqCst);
    let guard = mutex.acquire().await.unwrap();
    sleep(60 * S).await;
    guard.check().expect("it is kept");
    assert_eq!(connections[0].begins.load(SeqCst), 3);
    guard.release().await.unwrap();

    // The request whose reply was lost may arrive late, and must not begin the session that has ended.
    sleep(45 * S).await;
    assert!(fixtures[0].sessions().await.is_empty(), "nothing refers to it");
    let guard = mutex.acquire().await.unwrap();
    sleep(2 * S).await;
    let [begun] = &fixtures[0].sessions().await[..] else { panic!("one session") };
    assert_ne!(begun.session, first_id);
    guard.check().expect("it is kept");
}

/// What a request without a reply may have begun lapses. Later holds must not live with it.
#[tokio::test(start_paused = true)]
async fn a_session_that_lapsed_before_it_was_known_to_begin_has_another_id() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let mutex = client.mutex(names()[0].as_str()).unwrap();
    connections[0].lost_begins.store(u64::MAX, SeqCst);
    let guard = mutex.acquire().await.unwrap();
    let since = Instant::now();
    let lost = guard.lost().await;
    assert!(since.elapsed() <= FIRST_LEASE, "{lost}");
    connections[0].lost_begins.store(0, SeqCst);
    for _ in 0..30 {
        let guard = mutex.acquire().await.unwrap();
        let monitor = client.monitor().run_once().await;
        assert!(monitor.evicted.is_empty(), "{monitor:?}");
        guard.release().await.expect("no other client ended it");
        sleep(S).await;
    }
    let guard = mutex.acquire().await.unwrap();
    sleep(60 * S).await;
    guard.check().expect("it is kept");
}

/// A session that is shorter than a first lease would end before it: it begins first.
#[tokio::test(start_paused = true)]
async fn a_short_session_begins_before_anything_is_acquired() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let connections = [0, 1].map(|n: usize| fixtures[n].connection(Duration::ZERO));
    let shard = |n: usize| (n.to_string(), Arc::new(connections[n].clone()) as Arc<dyn Store>);
    let environment = Machine {
        started: fixtures[0].started,
        suspended_ms: Arc::default(),
        drawn: AtomicU64::new(1 << 48),
    };
    let store = Shards::new([0, 1].map(shard)).unwrap();
    let client =
        Client::with_store(store).environment(environment).session_ttl(2 * S).connect().await.unwrap();
    let guard = client.mutex(names()[0].as_str()).unwrap().acquire().await.unwrap();
    assert_eq!(connections[0].begins.load(SeqCst), 1);
    sleep(60 * S).await;
    guard.check().expect("it is kept");
}
