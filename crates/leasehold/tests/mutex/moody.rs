//! Holds, single and combined, over a store that is slow or silent on demand.

use crate::site::until_waiting;
use futures_util::future::BoxFuture;
use leasehold::core::Partition;
use leasehold::store::{
    Capabilities, Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase,
    SessionOp, SessionReply, Store,
};
use leasehold::{
    AcquireError, Attempt, Client, KeyError, LostReason, MultiGuard, MultiMutex, Mutex, ReleaseError,
    Released, SessionId,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(10);

/// What happens to an operation.
#[derive(Clone, Copy)]
enum Whim {
    Obey,
    /// Execute it after this delay.
    Late(Duration),
    /// No reply within the call's timeout, and no effect.
    Hang,
    /// Break the connection, without effect.
    Break,
    /// Execute it, and break the connection instead of replying.
    Cut,
    /// Execute it, and never reply.
    Mute,
}

type Mood = Arc<dyn Fn(&str, &Op) -> Whim + Send + Sync>;

/// A memory store with injected faults.
#[derive(Clone)]
struct Moody {
    inner: MemoryStore,
    mood: Mood,
    /// Set while session heartbeats fail.
    no_beats: Arc<AtomicBool>,
}

impl Moody {
    fn new(mood: impl Fn(&str, &Op) -> Whim + Send + Sync + 'static) -> Self {
        Self { inner: MemoryStore::new(), mood: Arc::new(mood), no_beats: Arc::default() }
    }

    async fn client(&self) -> Client {
        self.client_with(2_000 * MS).await
    }

    async fn client_with(&self, call: Duration) -> Client {
        Client::with_store(self.clone()).call_timeout(call).connect().await.expect("it connects")
    }

    /// A client to which the store behaves normally.
    async fn other(&self) -> Client {
        Client::with_store(self.inner.clone()).connect().await.expect("it connects")
    }
}

impl fmt::Debug for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Moody")
    }
}

fn unknown<T>(kind: FaultKind) -> Outcome<T> {
    Outcome::Failed(Executed::Unknown, Fault::new(kind, Phase::Reply, "a moody store"))
}

impl Store for Moody {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match (self.mood)(lock.name.as_str(), op) {
                Whim::Obey => self.inner.execute(lock, op, within).await,
                Whim::Late(by) => {
                    sleep(by).await;
                    self.inner.execute(lock, op, within).await
                }
                Whim::Hang => {
                    sleep(within).await;
                    unknown(FaultKind::TimedOut)
                }
                Whim::Break => unknown(FaultKind::Disconnected),
                Whim::Mute => {
                    self.inner.execute(lock, op, within).await;
                    sleep(within).await;
                    unknown(FaultKind::TimedOut)
                }
                Whim::Cut => {
                    self.inner.execute(lock, op, within).await;
                    unknown(FaultKind::Disconnected)
                }
            }
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
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
        Box::pin(async move {
            if self.no_beats.load(Ordering::SeqCst) {
                sleep(within).await;
                return unknown(FaultKind::TimedOut);
            }
            self.inner.execute_session(place, op, within).await
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A counter that tests and fault rules share.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Count {
    /// Increments the counter and returns its former value.
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    async fn until(&self, least: u32) {
        let reached = async {
            while self.0.load(Ordering::SeqCst) < least {
                sleep(MS).await;
            }
        };
        timeout(SOON, reached).await.expect("it happens");
    }
}

fn mutex(client: &Client, name: &str) -> Mutex {
    client.mutex(name).expect("a good name")
}

fn both(client: &Client) -> MultiMutex {
    client.multi_mutex(["a", "b"]).expect("good names")
}

async fn take_by_force(mutex: &Mutex) {
    let seen = mutex.inspect_full().await.expect("an answer").seen.expect("the lock has a holder");
    mutex.force_release(seen).await.expect("freed");
}

/// The reason for the loss of the first hold is learned although the second is known to be lost before that.
#[tokio::test]
async fn the_loss_of_another_of_them_hides_no_reason() {
    let store = Moody::new(|name, op| match op {
        Op::Inspect(_) if name == "a" => Whim::Late(200 * MS),
        _ => Whim::Obey,
    });
    let (client, other) = (store.client().await, store.other().await);
    let guard = both(&client).acquire().await.expect("acquired");
    let signal = guard.lost_signal();
    take_by_force(&mutex(&other, "a")).await;
    take_by_force(&mutex(&other, "b")).await;
    guard.extend().await.expect_err("both are gone");
    let lost = timeout(SOON, guard.lost()).await.expect("the loss is reported");
    assert_eq!(lost.reason, LostReason::ForceReleased, "{lost}");
    assert!(signal.is_cancelled());
    let told = async {
        while guard.check().expect_err("it is gone").reason != LostReason::ForceReleased {
            sleep(MS).await;
        }
    };
    timeout(SOON, told).await.expect("the loss of the first is reported, too");
}

/// Acquires both in two rounds: the first round acquires one lock, and the reply about the other is lost. It takes
/// more than 400 ms to recover the result.
async fn acquired_slowly(lease: Duration) -> MultiGuard {
    let asked = Count::default();
    let store = Moody::new(move |name, op| match op {
        Op::Acquire(_) if name == "b" && asked.next() == 1 => Whim::Hang,
        _ => Whim::Obey,
    });
    let (client, other) = (store.client_with(400 * MS).await, store.other().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let all = both(&client).lease(lease);
    let waits = tokio::spawn(async move { all.acquire().await });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    timeout(SOON, waits).await.expect("in time").expect("no panic").expect("acquired")
}

#[tokio::test]
async fn what_ended_while_the_rest_was_asked_for_is_not_handed_out() {
    let guard = acquired_slowly(300 * MS).await;
    guard.check().expect("all are held when it is returned");
    assert!(guard.remaining() > 150 * MS, "{:?}", guard.remaining());
}

#[tokio::test]
async fn the_lease_counts_for_all_from_when_the_last_was_had() {
    let guard = acquired_slowly(1_500 * MS).await;
    assert!(guard.remaining() > 1_200 * MS, "{:?}", guard.remaining());
}

#[tokio::test]
async fn a_limit_is_kept_also_where_what_was_had_cannot_be_given_back() {
    let store = Moody::new(|_, op| if matches!(op, Op::Release(_)) { Whim::Hang } else { Whim::Obey });
    let (client, other) = (store.client().await, store.other().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let kept = mutex(&other, "b").acquire().await.expect("acquired");
    let all = both(&client);
    let waits = tokio::spawn(async move {
        let start = Instant::now();
        (all.acquire_timeout(500 * MS).await, start.elapsed())
    });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    let (missed, waited) = waits.await.expect("no panic");
    assert!(
        matches!(&missed, Err(AcquireError::TimedOut { lock, .. }) if lock.as_str() == "b"),
        "{missed:?}"
    );
    assert!(waited < 1_500 * MS, "{waited:?}");
    kept.release().await.expect("released");
}

#[tokio::test]
async fn a_limit_is_kept_also_where_what_was_had_cannot_be_lengthened() {
    let store = Moody::new(|_, op| if matches!(op, Op::Extend(_)) { Whim::Hang } else { Whim::Obey });
    let (client, other) = (store.client().await, store.other().await);
    let taken = mutex(&other, "a").acquire().await.expect("acquired");
    let all = both(&client).lease(10_000 * MS);
    let waits = tokio::spawn(async move {
        let start = Instant::now();
        (all.acquire_timeout(500 * MS).await, start.elapsed())
    });
    until_waiting(&mutex(&other, "a"), 1).await;
    taken.release().await.expect("released");
    let (acquired, waited) = waits.await.expect("no panic");
    acquired.expect("all are held").check().expect("as long as the first lease");
    assert!(waited < 1_500 * MS, "{waited:?}");
}

/// A waiter for the lock that then acquires it so often that the store forgets the earlier holds.
async fn waited_for(other: &Client) -> tokio::task::JoinHandle<()> {
    let theirs = mutex(other, "a");
    let visit = tokio::spawn({
        let theirs = theirs.clone();
        async move {
            for _ in 0..leasehold::core::model::EndedHolds::MAX_LEN {
                theirs.acquire().await.expect("acquired").release().await.expect("released");
            }
        }
    });
    until_waiting(&theirs, 1).await;
    visit
}

/// The release was executed and its reply lost. By the time it is repeated, so many other holds have ended that the
/// store no longer remembers: it cannot report whether the release or a loss ended the hold.
#[tokio::test]
async fn a_release_that_may_have_worked_is_not_told_as_a_loss() {
    let releases = Count::default();
    let store = Moody::new(move |_, op| match op {
        Op::Release(_) if releases.next() == 0 => Whim::Cut,
        Op::Release(_) => Whim::Late(300 * MS),
        _ => Whim::Obey,
    });
    let (client, other) = (store.client().await, store.other().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    let lost = guard.lost_signal();
    let visit = waited_for(&other).await;
    let released = guard.release().await;
    visit.await.expect("no panic");
    assert!(matches!(released, Err(ReleaseError::Unknown(_))), "{released:?}");
    assert!(!lost.is_cancelled(), "no loss is known");
}

/// Two holds of one owner are released at the same time over a connection that breaks: the store remembers both.
#[tokio::test]
async fn siblings_that_are_released_twice_are_told_of_no_loss() {
    let releases = Count::default();
    let count = releases.clone();
    let store = Moody::new(move |_, op| match op {
        Op::Release(_) if count.next() < 2 => Whim::Cut,
        _ => Whim::Obey,
    });
    let client = store.client().await;
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&client.owner());
    let one = ours.acquire().await.expect("acquired");
    let other = ours.acquire().await.expect("entered again");
    let (one, other) = tokio::join!(one.release(), other.release());
    assert_eq!((one.expect("released"), other.expect("released")), (Released::Free, Released::Free));
    assert_eq!(releases.next(), 4, "both were sent again");
}

/// A loss that the store reports for certain is reported, even if the release may have been executed before.
#[tokio::test]
async fn a_hold_that_was_taken_by_force_is_lost_at_whichever_sending() {
    let releases = Count::default();
    let count = releases.clone();
    let store = Moody::new(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Whim::Break,
        _ => Whim::Obey,
    });
    let (client, other) = (store.client().await, store.other().await);
    let guard = mutex(&client, "a").acquire().await.expect("acquired");
    take_by_force(&mutex(&other, "a")).await;
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ForceReleased))), "{released:?}");
    assert_eq!(releases.next(), 2, "it was sent again");
}

/// A shutdown during a release learns its result by a second release request, sent after the first.
#[tokio::test]
async fn a_release_that_a_shutdown_takes_over_is_told_as_it_went() {
    for visited in [false, true] {
        let releases = Count::default();
        let count = releases.clone();
        let store = Moody::new(move |_, op| match op {
            Op::Release(_) if count.next() == 0 => Whim::Mute,
            _ => Whim::Obey,
        });
        let (client, other) = (store.client().await, store.other().await);
        let guard = mutex(&client, "a").acquire().await.expect("acquired");
        let visit = if visited { Some(waited_for(&other).await) } else { None };
        let release = tokio::spawn(guard.release());
        releases.until(1).await;
        if let Some(visit) = visit {
            visit.await.expect("no panic");
        }
        client.shutdown(SOON).await.expect("the store answers");
        let released = release.await.expect("no panic");
        if visited {
            assert!(matches!(released, Err(ReleaseError::Unknown(_))), "{released:?}");
        } else {
            released.expect("it was executed");
        }
        assert_eq!(releases.next(), 2, "the user's release, and one after it");
    }
}

/// The result includes the owner's remaining hold count, whichever client released.
#[tokio::test]
async fn a_release_that_a_shutdown_takes_over_says_what_is_left() {
    let releases = Count::default();
    let count = releases.clone();
    let store = Moody::new(move |_, op| match op {
        Op::Release(_) if count.next() == 0 => Whim::Mute,
        _ => Whim::Obey,
    });
    let (client, other) = (store.client().await, store.other().await);
    let owner = client.owner();
    let elsewhere = other.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let elsewhere = elsewhere.acquire().await.expect("acquired");
    let ours = client.reentrant_mutex("a").expect("a good name").owned_by(&owner);
    let guard = ours.acquire().await.expect("entered");
    let release = tokio::spawn(guard.release());
    releases.until(1).await;
    client.shutdown(SOON).await.expect("the store answers");
    let released = release.await.expect("no panic").expect("it was executed");
    assert_eq!(released, Released::StillHeld { count: 1 });
    elsewhere.release().await.expect("released");
}

/// The reply to the multi-lock request is lost, and no session can begin before the deadline: whether anything was
/// acquired is unknown.
#[tokio::test]
async fn an_answer_that_was_lost_is_unknown_also_where_the_session_lapses_then() {
    let no_beats = Arc::new(AtomicBool::new(false));
    let (silent, asked) = (no_beats.clone(), Count::default());
    let mut store = Moody::new(move |_, op| match op {
        Op::Acquire(_) if asked.next() < 2 => {
            silent.store(true, Ordering::SeqCst);
            Whim::Cut
        }
        Op::Acquire(_) => Whim::Hang,
        _ => Whim::Obey,
    });
    store.no_beats = no_beats;
    let builder = Client::with_store(store.clone()).session(1_000 * MS).call_timeout(200 * MS);
    let client = builder.connect().await.expect("it connects");
    let missed = both(&client).acquire_timeout(2_500 * MS).await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    let other = store.other().await;
    for name in ["a", "b"] {
        let free = async {
            while !matches!(mutex(&other, name).try_acquire().await, Ok(Attempt::Granted(_))) {
                sleep(MS).await;
            }
        };
        timeout(SOON, free).await.expect("any hold of it is undone");
    }
}
