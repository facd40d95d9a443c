//! Several locks held together, over a store that is slow and silent at will.

use crate::place::until_waiting;
use futures_util::future::BoxFuture;
use leasehold::store::{
    Fault, FaultKind, Lock, MemoryStore, Op, Outcome, Phase, Postbox, SessionKeeping, SessionOp,
    SessionReply, Store,
};
use leasehold::{AcquireError, Client, KeyError, LostReason, MultiGuard, MultiMutex, Mutex, SessionId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(10);

/// What becomes of an operation.
#[derive(Clone, Copy)]
enum Whim {
    Obey,
    /// Obey, that much later.
    Late(Duration),
    /// No answer within the time of the call, and nothing done.
    Hang,
    /// Obey, and break the connection instead of answering.
    Cut,
}

type Mood = Arc<dyn Fn(&str, &Op) -> Whim + Send + Sync>;

/// A store in memory that does as it likes.
#[derive(Clone)]
struct Moody {
    inner: MemoryStore,
    mood: Mood,
    /// Set while no session can beat.
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
        Client::of_store(self.clone()).call_timeout(call).connect().await.expect("it connects")
    }

    /// One for whom the store does as it should.
    async fn other(&self) -> Client {
        Client::of_store(self.inner.clone()).connect().await.expect("it connects")
    }
}

impl fmt::Debug for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Moody")
    }
}

fn unknown<T>(kind: FaultKind) -> Outcome<T> {
    Outcome::Unknown(Fault::new(kind, Phase::Reply, "a moody store"))
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
                Whim::Cut => {
                    self.inner.execute(lock, op, within).await;
                    unknown(FaultKind::Disconnected)
                }
            }
        })
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
        Box::pin(async move {
            if self.no_beats.load(Ordering::SeqCst) {
                sleep(within).await;
                return unknown(FaultKind::TimedOut);
            }
            self.inner.attend(op, within).await
        })
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A number that is told and changed from within a mood.
#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Count {
    /// Counts one, and says how many there were before.
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
    let seen = mutex.inspect_in_full().await.expect("an answer").seen.expect("somebody holds it");
    mutex.free_by_force(seen).await.expect("freed");
}

/// Why the first is gone is learned although the second is known to be lost before that.
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
    let lost = timeout(SOON, guard.lost()).await.expect("told");
    assert_eq!(lost.reason, LostReason::Freed, "{lost}");
    assert!(signal.is_cancelled());
    let told = async {
        while guard.check().expect_err("it is gone").reason != LostReason::Freed {
            sleep(MS).await;
        }
    };
    timeout(SOON, told).await.expect("of the first as well");
}

/// Acquires both in two rounds: the first of them was taken, and when it is had the answer about the second is lost.
/// It takes more than 400 ms to learn that.
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
    let all = both(&client);
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
