//! Sessions, over a store that can be cut off from one client, in virtual time: what a death, an outage and a stop cost.

use futures_util::future::BoxFuture;
use leasehold::store::{
    Fault, FaultKind, Lock, MemoryStore, Op, Outcome, Phase, Postbox, SessionKeeping, SessionOp,
    SessionReply, Store,
};
use leasehold::{AcquireError, Attempt, Client, LostReason, Moment, SessionId, World};
use leasehold_core::{About, KeyError, SessionEntry};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A way to the store that can be cut.
#[derive(Debug, Clone)]
struct Way {
    inner: MemoryStore,
    is_cut: Arc<AtomicBool>,
    beats: Arc<AtomicU64>,
}

impl Way {
    async fn unless_cut<T>(
        &self,
        within: Duration,
        executed: impl Future<Output = Outcome<T>>,
    ) -> Outcome<T> {
        if self.is_cut.load(SeqCst) {
            sleep(within).await;
            return Outcome::Unknown(Fault::new(
                FaultKind::TimedOut,
                Phase::Reply,
                "a store that was cut off",
            ));
        }
        executed.await
    }
}

impl Store for Way {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(self.unless_cut(within, self.inner.execute(lock, op, within)))
    }

    fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        self.inner.open_mailbox(session, post, within)
    }

    fn close_mailbox(&self, session: SessionId) {
        self.inner.close_mailbox(session);
    }

    fn sessions(&self) -> SessionKeeping {
        self.inner.sessions()
    }

    fn attend<'a>(&'a self, op: &'a SessionOp, within: Duration) -> BoxFuture<'a, Outcome<SessionReply>> {
        if matches!(op, SessionOp::Beat(beat) if beat.begin.is_none()) {
            self.beats.fetch_add(1, SeqCst);
        }
        Box::pin(self.unless_cut(within, self.inner.attend(op, within)))
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A machine by tokio's clock, which may have been suspended.
#[derive(Debug)]
struct Machine {
    started: Instant,
    suspended_ms: Arc<AtomicU64>,
    drawn: AtomicU64,
}

impl World for Machine {
    fn now(&self) -> Moment {
        Moment::ZERO
            + S
            + self.started.elapsed()
            + MS * u32::try_from(self.suspended_ms.load(SeqCst)).expect("not for long")
    }

    fn wall(&self) -> SystemTime {
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

    fn host(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// A store, and what its clients go by.
struct Scene {
    store: MemoryStore,
    started: Instant,
    seed: AtomicU64,
}

/// One client, the way that it goes by, and its clock.
struct Party {
    client: Client,
    way: Way,
    suspended_ms: Arc<AtomicU64>,
}

impl Scene {
    fn new() -> Self {
        let started = Instant::now();
        let store = MemoryStore::with_clock(move || {
            1_762_000_000_000_000 + u64::try_from(started.elapsed().as_micros()).expect("not for ages")
        });
        Self { store, started, seed: AtomicU64::new(1) }
    }

    async fn party(&self, session: Option<Duration>) -> Party {
        let way = Way { inner: self.store.clone(), is_cut: Arc::default(), beats: Arc::default() };
        let suspended_ms = Arc::new(AtomicU64::new(0));
        let world = Machine {
            started: self.started,
            suspended_ms: suspended_ms.clone(),
            drawn: AtomicU64::new(self.seed.fetch_add(1, SeqCst) << 48),
        };
        let builder = Client::of_store(way.clone()).world(world).session_label("zone", "eu-1");
        let builder = match session {
            Some(session) => builder.session(session),
            None => builder.without_session(),
        };
        Party { client: builder.connect().await.expect("it connects"), way, suspended_ms }
    }

    async fn sessions(&self) -> Vec<SessionEntry> {
        match self.store.attend(&SessionOp::List, S).await {
            Outcome::Done(SessionReply::List(sessions)) => sessions,
            odd => panic!("{odd:?}"),
        }
    }
}

impl Party {
    /// From now on nothing of it reaches the store, and it hears of nothing: as one who was killed.
    fn cut(&self) {
        self.way.is_cut.store(true, SeqCst);
    }

    fn mend(&self) {
        self.way.is_cut.store(false, SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_beat_takes_all_its_holds_with_it() {
    let scene = Scene::new();
    let party = scene.party(Some(10 * S)).await;
    let long = party.client.mutex("long").unwrap().lease(600 * S).acquire().await.unwrap();
    let watched = party.client.mutex("watched").unwrap().acquire().await.unwrap();
    sleep(30 * S).await;
    long.check().expect("it beats");
    party.cut();
    let cut_at = Instant::now();
    sleep(7 * S).await;
    long.check().expect("an outage that is shorter than the session is ridden out");
    let (a, b) = tokio::join!(long.lost(), watched.lost());
    assert_eq!((a.reason, b.reason), (LostReason::SessionLapsed, LostReason::SessionLapsed));
    assert!(cut_at.elapsed() < 10 * S, "before the store can think so: {:?}", cut_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn another_session_begins_once_the_store_is_back() {
    let scene = Scene::new();
    let party = scene.party(Some(3 * S)).await;
    let first = party.client.session();
    let guard = party.client.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = party.client.mutex("b").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    waiting.await.unwrap().expect("nobody has it").release().await.unwrap();
    party.cut();
    guard.lost().await;
    let seeking = tokio::spawn({
        let mutex = party.client.mutex("a").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    sleep(10 * S).await;
    let refused = party.client.mutex("c").unwrap().try_acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Store(_))),
        "nothing is asked for without a session: {refused:?}"
    );
    assert!(!seeking.is_finished(), "who waits rides the outage out");
    party.mend();
    let again = seeking.await.unwrap().expect("the store is back");
    assert_ne!(party.client.session(), first, "a session that lapsed is never revived");
    assert!(again.fencing_token() > guard.fencing_token());
    assert_eq!(guard.check().unwrap_err().reason, LostReason::SessionLapsed);
    drop(guard);
    sleep(5 * S).await;
    again.check().expect("what the old session had is not the new one's");
}

#[tokio::test(start_paused = true)]
async fn the_next_does_not_wait_for_the_lease_of_the_dead() {
    for session in [S, 3 * S, 10 * S] {
        let scene = Scene::new();
        let (dead, live) = (scene.party(Some(session)).await, scene.party(Some(session)).await);
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
        assert!(held.check().is_err(), "it knew before");
        assert!(waited > session / 2 && waited < session + 50 * MS, "{waited:?} of {session:?}");
        assert!(guard.fencing_token() > held.fencing_token());
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_comes_late_learns_within_a_moment_that_the_holder_is_dead() {
    let scene = Scene::new();
    let (dead, live) = (scene.party(Some(S)).await, scene.party(Some(S)).await);
    let _held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    dead.cut();
    sleep(60 * S).await;
    let came = Instant::now();
    drop(live.client.mutex("a").unwrap().acquire().await.unwrap());
    assert!(came.elapsed() < 350 * MS, "{:?}", came.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fifty_dead_before_one_cost_no_more_than_one() {
    let scene = Scene::new();
    let holder = scene.party(Some(3 * S)).await;
    let _held = holder.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let mut dead = vec![holder];
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let party = scene.party(Some(3 * S)).await;
        let mutex = party.client.mutex("a").unwrap();
        waiting.push(tokio::spawn(async move { mutex.acquire().await }));
        sleep(MS).await;
        dead.push(party);
    }
    let live = scene.party(Some(3 * S)).await;
    let next = tokio::spawn({
        let mutex = live.client.mutex("a").unwrap();
        async move { mutex.acquire().await }
    });
    sleep(30 * S).await;
    dead.iter().for_each(Party::cut);
    let died = Instant::now();
    drop(next.await.unwrap().expect("all before are dead"));
    assert!(died.elapsed() < 4 * S, "{:?}", died.elapsed());
    for party in waiting {
        party.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn one_who_was_stopped_knows_it_without_the_network() {
    let scene = Scene::new();
    let party = scene.party(Some(3 * S)).await;
    let guard = party.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(5 * S).await;
    guard.check().expect("it beats");
    party.suspended_ms.fetch_add(6_000, SeqCst);
    let lost = guard.check().expect_err("nothing ran meanwhile, and nothing has to");
    assert_eq!(lost.reason, LostReason::SessionLapsed);
    assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
}

#[tokio::test(start_paused = true)]
async fn leases_alone_decide_where_that_is_asked_for() {
    let scene = Scene::new();
    let (dead, live) = (scene.party(None).await, scene.party(Some(S)).await);
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
    assert_eq!(dead.way.beats.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn people_find_what_is_held_for_longer_than_a_moment() {
    let scene = Scene::new();
    let party = scene.party(Some(10 * S)).await;
    let held = |sessions: &[SessionEntry]| -> Vec<String> {
        let [session] = sessions else { panic!("one session: {sessions:?}") };
        session.held.iter().map(|lock| lock.name.to_string()).collect()
    };
    let quick = party.client.mutex("quick").unwrap();
    for _ in 0..1000 {
        quick.acquire().await.unwrap().release().await.unwrap();
    }
    let guard = party.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(3 * S).await;
    let sessions = scene.sessions().await;
    assert_eq!(held(&sessions), ["long"]);
    let about = About::from_json(&sessions[0].about).expect("ours");
    assert_eq!((about.pid, about.labels["zone"].as_str()), (std::process::id(), "eu-1"));
    guard.release().await.unwrap();
    sleep(3 * S).await;
    assert!(held(&scene.sessions().await).is_empty());
    assert!(party.way.beats.load(SeqCst) < 10, "{}", party.way.beats.load(SeqCst));
    drop((quick, party));
    sleep(S).await;
    assert!(scene.sessions().await.is_empty(), "who ends in order leaves nothing");
}

/// A release tells the next beat that the lock is not held any more. A client that is dropped right behind it has nobody
/// to tell: its keeper sent that beat all the same, and the end of the session waited for it.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_does_not_beat() {
    let scene = Scene::new();
    let party = scene.party(Some(10 * S)).await;
    let guard = party.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(4 * S).await;
    guard.release().await.unwrap();
    let Party { client, way, .. } = party;
    let beats = way.beats.load(SeqCst);
    drop(client);
    sleep(S).await;
    assert_eq!(way.beats.load(SeqCst), beats);
    assert!(scene.sessions().await.is_empty(), "it has ended all the same");
}

#[tokio::test(start_paused = true)]
async fn a_session_cannot_be_shorter_than_a_second() {
    let store = MemoryStore::new();
    let error = Client::of_store(store).session(999 * MS).connect().await.expect_err("too short");
    assert!(error.to_string().contains("1 s at least"), "{error}");
}
