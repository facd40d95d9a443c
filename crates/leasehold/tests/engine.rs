//! The engine over a store that hangs, fails and forgets at will.

use futures_util::future::BoxFuture;
use leasehold::store::{Fault, FaultKind, Lock, MemoryStore, Op, Outcome, Phase, Postbox, Reply, Store};
use leasehold::{
    AcquireError, AttachError, Client, DetachedHold, ExtendError, LostReason, Moment, ReleaseError,
    SessionId, World,
};
use leasehold_core::{Extended, KeyError};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const MS: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(2500);

/// What becomes of an operation.
#[derive(Clone, Copy)]
enum Whim {
    Obey,
    /// Obey, that much later.
    Late(Duration),
    /// No answer within the time of the call, and nothing done.
    Hang,
    /// Obey, and never answer.
    Mute,
    /// A fault that may pass, at once.
    Fail,
    /// The answer to an extend that comes too late.
    NotHeld,
}

type Mood = Arc<dyn Fn(&Lock, &Op) -> Whim + Send + Sync>;

/// A store in memory that does as it likes.
#[derive(Clone)]
struct Moody {
    inner: MemoryStore,
    mood: Mood,
    /// Whether mailboxes are never opened, and how many were closed.
    shut: bool,
    closed: Arc<AtomicU32>,
    /// Set while a mailbox cannot be opened for a reason that may pass.
    mail_is_down: Arc<AtomicBool>,
    /// How many operations are under way that are late.
    late: Arc<AtomicU32>,
}

impl Moody {
    fn new(inner: &MemoryStore, mood: impl Fn(&Lock, &Op) -> Whim + Send + Sync + 'static) -> Self {
        Self {
            inner: inner.clone(),
            mood: Arc::new(mood),
            shut: false,
            closed: Arc::default(),
            mail_is_down: Arc::default(),
            late: Arc::default(),
        }
    }

    async fn client(self, watchdog: Duration) -> Client {
        Client::of_store(self).watchdog_lease(watchdog).connect().await.expect("it connects")
    }
}

impl std::fmt::Debug for Moody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moody")
    }
}

impl Store for Moody {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        let fault = |kind| Outcome::Unknown(Fault::new(kind, Phase::Reply, "a moody store"));
        Box::pin(async move {
            match (self.mood)(lock, op) {
                Whim::Obey => self.inner.execute(lock, op, within).await,
                Whim::Late(by) => {
                    self.late.fetch_add(1, Ordering::SeqCst);
                    sleep(by).await;
                    let outcome = self.inner.execute(lock, op, within).await;
                    self.late.fetch_sub(1, Ordering::SeqCst);
                    outcome
                }
                Whim::Hang => {
                    sleep(within).await;
                    fault(FaultKind::TimedOut)
                }
                Whim::Mute => {
                    self.inner.execute(lock, op, within).await;
                    sleep(within).await;
                    fault(FaultKind::TimedOut)
                }
                Whim::Fail => fault(FaultKind::Busy),
                Whim::NotHeld => Outcome::Done(Reply::Extend(Extended::NotHeld)),
            }
        })
    }

    fn open_mailbox(
        &self,
        session: SessionId,
        post: Arc<dyn Postbox>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        if self.shut {
            Box::pin(std::future::pending())
        } else if self.mail_is_down.load(Ordering::SeqCst) {
            let fault = Fault::new(FaultKind::Unreachable, Phase::Connect, "a moody store");
            Box::pin(std::future::ready(Err(fault)))
        } else {
            self.inner.open_mailbox(session, post, within)
        }
    }

    fn close_mailbox(&self, session: SessionId) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        self.inner.close_mailbox(session);
    }

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A machine that can be suspended: its clock goes on, its timers do not.
#[derive(Debug, Clone)]
struct Machine {
    booted: Instant,
    slept_us: Arc<AtomicU64>,
}

impl World for Machine {
    fn now(&self) -> Moment {
        let slept = Duration::from_micros(self.slept_us.load(Ordering::SeqCst));
        Moment::ZERO + MS + self.booted.elapsed() + slept
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn host(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// True the first time only.
fn once() -> impl Fn() -> bool + Send + Sync {
    let asked = AtomicU32::new(0);
    move || asked.fetch_add(1, Ordering::SeqCst) == 0
}

#[tokio::test]
async fn many_holds_that_are_gone_are_told_so_at_once_where_nobody_says_why() {
    let store = Moody::new(&MemoryStore::new(), |_, op| match op {
        Op::Extend(_) => Whim::NotHeld,
        Op::Inspect(_) => Whim::Hang,
        _ => Whim::Obey,
    });
    let client = store.client(300 * MS).await;
    let mut guards = Vec::new();
    for n in 0..8 {
        guards.push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    let all = futures_util::future::join_all(guards.iter().map(leasehold::Guard::lost));
    timeout(SOON, all).await.expect("not one after the other");
}

#[tokio::test]
async fn a_failed_renewal_is_tried_again_while_another_of_its_batch_is_asked_after() {
    let first = once();
    let store = Moody::new(&MemoryStore::new(), move |lock, op| match op {
        Op::Extend(_) if lock.name.as_str() == "gone" => Whim::NotHeld,
        Op::Extend(_) if first() => Whim::Fail,
        Op::Inspect(_) => Whim::Hang,
        _ => Whim::Obey,
    });
    let client = store.client(600 * MS).await;
    let gone = client.mutex("gone").expect("a good name").acquire().await.expect("acquired");
    let kept = client.mutex("kept").expect("a good name").acquire().await.expect("acquired");
    sleep(900 * MS).await;
    assert!(gone.check().is_err());
    kept.check().expect("renewed at the second try");
    kept.release().await.expect("released");
}

#[tokio::test]
async fn a_release_awaits_a_renewal_under_way_also_of_a_hold_that_was_found_gone() {
    let renewal = once();
    let store = Moody::new(&MemoryStore::new(), move |_, op| match op {
        Op::Extend(_) if renewal() => Whim::Late(100 * MS),
        Op::Extend(_) => Whim::NotHeld,
        _ => Whim::Obey,
    });
    let late = store.late.clone();
    let client = store.client(600 * MS).await;
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    while late.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    guard.extend().await.expect_err("the store says that it is gone");
    guard.release().await.expect("this store had it all the same");
    assert_eq!(late.load(Ordering::SeqCst), 0, "nothing about the hold is sent any more");
}

#[tokio::test]
async fn a_dropped_guard_is_given_back_also_where_the_store_has_it_for_longer_than_is_known() {
    let inner = MemoryStore::new();
    let begun = Instant::now();
    let store = Moody::new(&inner, move |_, op| match op {
        Op::Extend(_) => Whim::Mute,
        Op::Release(_) if begun.elapsed() < 1000 * MS => Whim::Fail,
        _ => Whim::Obey,
    });
    let client = Client::of_store(store)
        .call_timeout(100 * MS)
        .watchdog_lease(400 * MS)
        .connect()
        .await
        .expect("open");
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    guard.extend_to(60_000 * MS).await.expect_err("there is no answer");
    drop(guard);
    let other = Client::of_store(inner).connect().await.expect("it connects");
    let mutex = other.mutex("m").expect("a good name").lease(1000 * MS);
    drop(mutex.acquire_timeout(SOON).await.expect("not after a minute"));
}

#[tokio::test]
async fn a_release_that_finds_the_hold_lost_gives_the_signal() {
    let now_us = Arc::new(AtomicU64::new(1_000_000));
    let clock = now_us.clone();
    let store = MemoryStore::with_clock(move || clock.load(Ordering::SeqCst));
    let client = Client::of_store(store.clone()).connect().await.expect("it connects");
    let other = Client::of_store(store).connect().await.expect("it connects");
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let lost = guard.lost_signal();
    now_us.fetch_add(3_600_000_000, Ordering::SeqCst);
    let taken_over = other.mutex("m").expect("a good name").acquire().await.expect("the lease has ended");
    guard.release().await.expect_err("somebody else has it");
    timeout(SOON, lost.cancelled()).await.expect("whoever works on is told");
    taken_over.release().await.expect("released");
}

#[tokio::test]
async fn an_extend_that_is_dropped_when_it_found_the_hold_gone_still_tells_the_loss() {
    let store = Moody::new(&MemoryStore::new(), |_, op| match op {
        Op::Extend(_) => Whim::NotHeld,
        Op::Inspect(_) => Whim::Hang,
        _ => Whim::Obey,
    });
    let client = store.client(30_000 * MS).await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    assert!(timeout(50 * MS, guard.extend()).await.is_err(), "it asks what became of it");
    assert!(guard.check().is_err());
    timeout(SOON, guard.lost()).await.expect("whoever waits for it is told");
}

#[tokio::test]
async fn a_swallowed_release_of_a_dropped_guard_is_sent_again_within_the_call_timeout() {
    let memory = MemoryStore::new();
    let first = once();
    let store =
        Moody::new(
            &memory,
            move |_, op| if matches!(op, Op::Release(_)) && first() { Whim::Hang } else { Whim::Obey },
        );
    let client = Client::of_store(store).call_timeout(200 * MS).connect().await.expect("it connects");
    drop(client.mutex("m").expect("a good name").acquire().await.expect("acquired"));
    timeout(SOON, client.settle()).await.expect("not only when the watchdog's lease ends");
    let status = client.mutex("m").expect("a good name").inspect().await.expect("an answer");
    assert!(!status.held, "{status:?}");
}

#[tokio::test]
async fn a_waiter_behind_a_single_try_queues_at_once() {
    let memory = MemoryStore::new();
    let other = Client::of_store(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = Moody::new(&memory, |_, _| Whim::Late(50 * MS)).client(30_000 * MS).await;
    let ours = client.mutex("m").expect("a good name");
    let single = tokio::spawn({
        let ours = ours.clone();
        async move { ours.try_acquire().await.expect("an answer").granted().is_none() }
    });
    sleep(20 * MS).await;
    let waiter = tokio::spawn(async move { ours.acquire().await.expect("acquired").release().await });
    assert!(single.await.expect("no panic"), "it is taken");
    sleep(200 * MS).await;
    assert_eq!(others.inspect().await.expect("an answer").waiting, 1, "it did not sleep first");
    held.release().await.expect("released");
    waiter.await.expect("no panic").expect("released");
}

#[tokio::test]
async fn a_bounded_retry_gives_up_though_the_holder_is_of_the_same_process() {
    let client = Client::of_store(MemoryStore::new()).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let polling = mutex.clone().retry(leasehold::RetryPolicy::constant(20 * MS).tries(4));
    let start = Instant::now();
    let missed = timeout(SOON, polling.acquire()).await.expect("it gives up");
    assert!(matches!(missed, Err(leasehold::AcquireError::OutOfTries { .. })), "{missed:?}");
    assert!(start.elapsed() >= 30 * MS, "three pauses of 10 to 20 ms: {:?}", start.elapsed());
    let polling = polling.retry(leasehold::RetryPolicy::constant(20 * MS));
    let waiter = tokio::spawn(async move { polling.acquire().await.map(drop) });
    sleep(50 * MS).await;
    guard.release().await.expect("released");
    waiter.await.expect("no panic").expect("acquired");
}

#[tokio::test]
async fn a_client_that_was_not_waited_for_leaves_no_mailbox() {
    let store = Moody { shut: true, ..Moody::new(&MemoryStore::new(), |_, _| Whim::Obey) };
    let closed = store.closed.clone();
    assert!(timeout(20 * MS, Client::of_store(store).connect()).await.is_err());
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_outage_counts_from_its_beginning_and_not_from_the_last_question() {
    let memory = MemoryStore::new();
    let asked = AtomicU32::new(0);
    let store = Moody::new(&memory, move |_, op| match op {
        Op::Acquire(_) if asked.fetch_add(1, Ordering::SeqCst) == 1 => Whim::Fail,
        _ => Whim::Obey,
    });
    let client = Client::of_store(store).outage_limit(200 * MS).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let waiter = tokio::spawn(async move { mutex.acquire().await.map(drop) });
    sleep(400 * MS).await;
    drop(guard);
    waiter.await.expect("no panic").expect("one fault is no outage");
}

#[tokio::test]
async fn a_hold_is_not_believed_past_its_lease_though_the_place_was_asked_for_longer() {
    let memory = MemoryStore::new();
    let other = Client::of_store(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = Client::of_store(memory).connect().await.expect("it connects");
    let long = client.mutex("m").expect("a good name");
    let short = long.clone().lease(500 * MS);
    let first = tokio::spawn(async move { long.acquire().await.map(drop) });
    while others.inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    let second = tokio::spawn(async move { short.acquire().await.expect("acquired") });
    sleep(20 * MS).await;
    first.abort();
    sleep(20 * MS).await;
    let start = Instant::now();
    held.release().await.expect("released");
    let guard = second.await.expect("no panic");
    assert!(guard.remaining() <= 500 * MS, "{:?}", guard.remaining());
    guard.lost().await;
    assert!(start.elapsed() < 900 * MS, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_long_extend_by_the_user_keeps_the_record_beside_the_lock() {
    let now_us = Arc::new(AtomicU64::new(1_762_000_000_000_000));
    let clock = now_us.clone();
    let store = MemoryStore::with_clock(move || clock.load(Ordering::SeqCst));
    let client = Client::of_store(store).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name").value("mine").expect("a good value");
    let guard = mutex.lease(60_000 * MS).acquire().await.expect("acquired");
    let hours = |n: u64| Duration::from_secs(n * 3600);
    guard.extend_to(hours(3)).await.expect("extended");
    now_us.fetch_add(7_200_000_000, Ordering::SeqCst);
    guard.extend_to(hours(3)).await.expect("held for another hour, and known as ours");
    guard.release().await.expect("released");
}

#[tokio::test]
async fn nothing_is_asked_of_a_hold_that_was_found_gone_after_its_release() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let store = Moody::new(&MemoryStore::new(), move |_, op| match op {
        Op::Extend(_) => Whim::NotHeld,
        Op::Inspect(_) => {
            count.fetch_add(1, Ordering::SeqCst);
            Whim::Fail
        }
        _ => Whim::Obey,
    });
    let client = store.client(150 * MS).await;
    let guard = client.mutex("m").expect("a good name").acquire().await.expect("acquired");
    while asked.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    guard.release().await.expect("the store has it still");
    let before = asked.load(Ordering::SeqCst);
    sleep(400 * MS).await;
    assert_eq!(asked.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn a_loss_during_a_suspend_is_told_soon_after_it() {
    let machine = Machine { booted: Instant::now(), slept_us: Arc::default() };
    let client = Client::of_store(MemoryStore::new()).world(machine.clone()).connect();
    let client = client.await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name").lease(Duration::from_secs(3600));
    let guard = mutex.acquire().await.expect("acquired");
    sleep(100 * MS).await;
    guard.check().expect("held");
    machine.slept_us.fetch_add(7_200_000_000, Ordering::SeqCst);
    assert!(guard.check().is_err());
    timeout(SOON, guard.lost()).await.expect("not only when the timer has caught up");
}

#[tokio::test]
async fn a_task_that_polls_keeps_nobody_of_its_process_from_the_queue() {
    let memory = MemoryStore::new();
    let other = Client::of_store(memory.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    let client = Client::of_store(memory).connect().await.expect("it connects");
    let mutex = client.mutex("m").expect("a good name");
    let polling = mutex.clone().retry(leasehold::RetryPolicy::constant(Duration::from_secs(3)).jitter(0.0));
    let poller = tokio::spawn(async move { polling.acquire().await.map(drop) });
    sleep(50 * MS).await;
    let waiter = tokio::spawn(async move { mutex.acquire().await.map(drop) });
    sleep(200 * MS).await;
    assert_eq!(others.inspect().await.expect("an answer").waiting, 1, "it has its place");
    held.release().await.expect("released");
    timeout(500 * MS, waiter).await.expect("told by a message").expect("no panic").expect("acquired");
    poller.await.expect("no panic").expect("acquired at a later try");
}

#[tokio::test]
async fn a_capped_hold_is_lost_before_its_release_is_sent() {
    let signal: Arc<OnceLock<CancellationToken>> = Arc::default();
    let (seen, sent) = (signal.clone(), Arc::new(AtomicU32::new(0)));
    let early = sent.clone();
    let store = Moody::new(&MemoryStore::new(), move |_, op| {
        if matches!(op, Op::Release(_)) {
            let lost = seen.get().is_some_and(CancellationToken::is_cancelled);
            early.fetch_add(if lost { 1 } else { 1000 }, Ordering::SeqCst);
        }
        Whim::Obey
    });
    let client = store.client(30_000 * MS).await;
    let guard = client.mutex("m").expect("a good name").max_hold(100 * MS).acquire().await.expect("acquired");
    signal.set(guard.lost_signal()).expect("nobody has set it");
    guard.lost().await;
    client.settle().await;
    assert_eq!(sent.load(Ordering::SeqCst), 1, "released once, and after it was lost");
    drop(guard);
    client.settle().await;
    assert_eq!(sent.load(Ordering::SeqCst), 1, "the keeper has done it already");
}

#[tokio::test]
async fn a_release_of_a_capped_hold_ends_within_a_call_and_nothing_is_sent_after_it() {
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    let store = Moody::new(&MemoryStore::new(), move |_, op| match op {
        Op::Release(_) => {
            count.fetch_add(1, Ordering::SeqCst);
            Whim::Fail
        }
        _ => Whim::Obey,
    });
    let client = Client::of_store(store).call_timeout(300 * MS).connect().await.expect("it connects");
    let guard = client.mutex("m").expect("a good name").max_hold(100 * MS).acquire().await.expect("acquired");
    assert_eq!(guard.lost().await.reason, LostReason::Capped);
    let start = Instant::now();
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    assert!(start.elapsed() < 2 * 300 * MS, "{:?}", start.elapsed());
    let before = sent.load(Ordering::SeqCst);
    assert!(before > 1, "it was sent again");
    sleep(600 * MS).await;
    assert_eq!(sent.load(Ordering::SeqCst), before);
}

/// What was sent about holds.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU32>);

impl Sent {
    fn note(&self, op: &Op) {
        if !matches!(op, Op::Inspect(_)) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Fails if anything is sent from now on.
    async fn assert_silent(&self) {
        let before = self.0.load(Ordering::SeqCst);
        sleep(400 * MS).await;
        assert_eq!(self.0.load(Ordering::SeqCst), before, "sent after the shutdown");
    }
}

#[tokio::test]
async fn a_shutdown_has_nobody_believe_before_it_releases_anything() {
    let signals: Arc<OnceLock<Vec<CancellationToken>>> = Arc::default();
    let (seen, early) = (signals.clone(), Arc::new(AtomicU32::new(0)));
    let (count, sent) = (early.clone(), Sent::default());
    let noted = sent.clone();
    let store = Moody::new(&MemoryStore::new(), move |_, op| {
        noted.note(op);
        let all_lost = seen.get().is_some_and(|all| all.iter().all(CancellationToken::is_cancelled));
        if matches!(op, Op::Release(_)) && !all_lost {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Whim::Obey
    });
    let client = store.client(300 * MS).await;
    let mut guards = Vec::new();
    for n in 0..8 {
        guards.push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    let all = guards.iter().map(leasehold::Guard::lost_signal).collect();
    signals.set(all).expect("nobody has set it");
    client.shutdown(SOON).await.expect("the store answers");
    assert_eq!(early.load(Ordering::SeqCst), 0, "released while somebody believed");
    drop(guards);
    sent.assert_silent().await;
}

#[tokio::test]
async fn a_shutdown_of_a_store_that_does_not_answer_ends_in_time_and_says_what_is_left() {
    let silent = Arc::new(AtomicU32::new(0));
    let (mood, sent) = (silent.clone(), Sent::default());
    let noted = sent.clone();
    let store = Moody::new(&MemoryStore::new(), move |_, op| {
        noted.note(op);
        if mood.load(Ordering::SeqCst) == 0 { Whim::Obey } else { Whim::Hang }
    });
    let client = store.client(30_000 * MS).await;
    let mutex = |name: &str| client.mutex(name).expect("a good name");
    let guard = mutex("a").acquire().await.expect("acquired");
    guard.extend_to(60_000 * MS).await.expect("extended");
    let released = mutex("b").acquire().await.expect("acquired");
    let extended = mutex("c").acquire().await.expect("acquired");
    silent.store(1, Ordering::SeqCst);
    let waits = mutex("d");
    let waits = tokio::spawn(async move { waits.acquire().await.map(drop) });
    let releases = tokio::spawn(async move { released.release().await });
    let extends = tokio::spawn(async move { extended.extend().await });
    drop(mutex("b").acquire_timeout(MS).await.map(drop));
    let start = Instant::now();
    let left = client.shutdown(300 * MS).await.expect_err("the store does not answer");
    assert!(start.elapsed() >= 300 * MS && start.elapsed() < 1500 * MS, "{:?}", start.elapsed());
    let names: Vec<_> = left.unreturned.iter().map(|left| left.lock.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    let lasts = left.unreturned[0].until.since(client.now());
    assert!(lasts > 58_000 * MS && lasts < 64_000 * MS, "{lasts:?}");
    assert!(left.to_string().contains("`a`, `b`, `c`, `d`"), "{left}");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let released = releases.await.expect("no panic");
    assert!(matches!(released, Err(ReleaseError::Lost(LostReason::ShutDown))), "{released:?}");
    let extended = extends.await.expect("no panic");
    assert!(matches!(extended, Err(ExtendError::Lost(_))), "{extended:?}");
    silent.store(0, Ordering::SeqCst);
    assert!(guard.check().is_err());
    drop(guard);
    assert_eq!(client.shutdown(SOON).await.expect_err("the same again").unreturned, left.unreturned);
    sent.assert_silent().await;
}

#[tokio::test]
async fn a_release_under_way_is_taken_over_by_a_shutdown_with_what_it_asks_for() {
    let inner = MemoryStore::new();
    let first = once();
    let store = Moody::new(&inner, move |_, op| match op {
        Op::Release(_) if first() => Whim::Late(200 * MS),
        _ => Whim::Obey,
    });
    let late = store.late.clone();
    let client = store.client(30_000 * MS).await;
    let mutex = client.mutex("m").expect("a good name");
    let guard = mutex.acquire().await.expect("acquired");
    let waits = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire().await.map(drop) }
    });
    sleep(20 * MS).await;
    let lost = guard.lost_signal();
    let releases = tokio::spawn(async move { guard.release().await });
    while late.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    client.shutdown(SOON).await.expect("the store answers");
    releases.await.expect("no panic").expect("it was given back");
    assert!(!lost.is_cancelled(), "it was released, not lost");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let status = mutex.inspect().await.expect("an answer");
    assert!(!status.held && status.waiting == 0, "{status:?}");
}

#[tokio::test]
async fn a_grant_to_a_client_that_is_shut_down_goes_on_to_the_next() {
    let inner = MemoryStore::new();
    let other = Client::of_store(inner.clone()).connect().await.expect("it connects");
    let others = other.mutex("m").expect("a good name");
    let held = others.acquire().await.expect("acquired");
    // Its reply is lost: the place is there, and nobody knows.
    let store =
        Moody::new(&inner, |_, op| if matches!(op, Op::Acquire(_)) { Whim::Mute } else { Whim::Obey });
    let client = store.client(30_000 * MS).await;
    let ours = client.mutex("m").expect("a good name");
    let waits = tokio::spawn(async move { ours.acquire().await.map(drop) });
    while others.inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    let next = tokio::spawn(async move { others.acquire().await.expect("acquired") });
    sleep(20 * MS).await;
    let (released, shut) = tokio::join!(held.release(), client.shutdown(SOON));
    released.expect("released");
    shut.expect("the store answers");
    assert!(matches!(waits.await.expect("no panic"), Err(AcquireError::Closed)));
    let next = timeout(500 * MS, next).await.expect("nobody holds it for nobody");
    next.expect("no panic").release().await.expect("released");
}

#[tokio::test]
async fn a_shutdown_tries_again_what_failed_and_does_what_was_dropped() {
    let inner = MemoryStore::new();
    let failed = AtomicU32::new(0);
    let store = Moody::new(&inner, move |_, op| match op {
        Op::Release(_) if failed.fetch_add(1, Ordering::SeqCst) < 12 => Whim::Fail,
        _ => Whim::Obey,
    });
    let client = store.client(30_000 * MS).await;
    let mutex = |n: u32| client.mutex(format!("m{n}")).expect("a good name");
    let mut guards = Vec::new();
    for n in 0..4 {
        guards.push(mutex(n).acquire().await.expect("acquired"));
    }
    drop(guards.pop());
    client.shutdown(SOON).await.expect("at a later try");
    for n in 0..4 {
        assert!(!mutex(n).inspect().await.expect("an answer").held, "{n}");
    }
}

/// A store whose own connection has a backlog: what is sent by it arrives in order, late, and whether or not
/// anybody waits for the answer. The keeper's connection has none.
#[derive(Debug, Clone)]
struct Backlog {
    inner: MemoryStore,
    queue: tokio::sync::mpsc::UnboundedSender<(Lock, Op)>,
}

impl Backlog {
    fn new(inner: &MemoryStore, each: Duration) -> Self {
        let (queue, mut sent) = tokio::sync::mpsc::unbounded_channel::<(Lock, Op)>();
        let server = inner.clone();
        tokio::spawn(async move {
            while let Some((lock, op)) = sent.recv().await {
                sleep(each).await;
                server.execute(&lock, &op, SOON).await;
            }
        });
        Self { inner: inner.clone(), queue }
    }
}

impl Store for Backlog {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            self.queue.send((lock.clone(), op.clone())).expect("the server runs");
            sleep(within).await;
            Outcome::Unknown(Fault::new(FaultKind::TimedOut, Phase::Reply, "a slow store"))
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

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.inner.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// The undo of an acquire goes behind it as well, by the same connection: by the keeper's alone it would overtake it,
/// and the acquire would hold the lock for nobody until its first lease ends.
#[tokio::test]
async fn an_undo_does_not_only_overtake_what_it_undoes() {
    let inner = MemoryStore::new();
    let slow = Client::of_store(Backlog::new(&inner, 30 * MS)).call_timeout(500 * MS).connect().await;
    let slow = slow.expect("it connects").mutex("m").expect("a good name");
    let other =
        Client::of_store(inner).connect().await.expect("it connects").mutex("m").expect("a good name");
    for _ in 0..5 {
        assert!(slow.acquire_timeout(10 * MS).await.is_err());
        sleep(40 * MS).await;
        let start = Instant::now();
        let guard = other.acquire_timeout(Duration::from_secs(10)).await.expect("acquired");
        assert!(start.elapsed() < Duration::from_secs(2), "held by nobody for {:?}", start.elapsed());
        guard.release().await.expect("released");
    }
}

/// A client of such a store, and another one of what is behind it.
async fn moody_and_sober(mood: impl Fn(&Lock, &Op) -> Whim + Send + Sync + 'static) -> (Client, Client) {
    let memory = MemoryStore::new();
    let moody = Client::of_store(Moody::new(&memory, mood)).call_timeout(200 * MS).watchdog_lease(900 * MS);
    let sober = Client::of_store(memory).connect().await.expect("it connects");
    (moody.connect().await.expect("it connects"), sober)
}

async fn detached(client: &Client) -> Result<DetachedHold, AcquireError> {
    client.mutex("m").expect("a good name").lease(Duration::from_secs(3600)).acquire_detached().await
}

async fn is_free(client: &Client) -> bool {
    !client.mutex("m").expect("a good name").inspect().await.expect("an answer").held
}

#[tokio::test]
async fn a_detached_hold_whose_lengthening_has_no_answer_is_given_back() {
    for whim in [Whim::Mute, Whim::Hang] {
        let (moody, sober) =
            moody_and_sober(move |_, op| if matches!(op, Op::Extend(_)) { whim } else { Whim::Obey }).await;
        let missed = detached(&moody).await.expect_err("nobody knows for how long it would last");
        let AcquireError::NotKept(why) = &missed else { panic!("{missed:?}") };
        assert!(matches!(**why, ExtendError::Store(_)), "{why:?}");
        timeout(SOON, moody.settle()).await.expect("it is given back, also where it lasts for an hour");
        assert!(is_free(&sober).await);
    }
}

#[tokio::test]
async fn a_detached_hold_that_is_gone_before_it_is_lengthened_is_none() {
    let (moody, _) = moody_and_sober(|_, op| match op {
        Op::Extend(_) => Whim::NotHeld,
        _ => Whim::Obey,
    })
    .await;
    let missed = detached(&moody).await.expect_err("it is gone");
    let AcquireError::NotKept(why) = &missed else { panic!("{missed:?}") };
    assert!(matches!(**why, ExtendError::Lost(_)), "{why:?}");
    assert!(missed.to_string().starts_with("the lock was granted, but could not be held for its lease: "));
}

#[tokio::test]
async fn a_detached_hold_survives_replies_that_are_lost() {
    let (acquire, extend, release) = (once(), once(), once());
    let (moody, sober) = moody_and_sober(move |_, op| match op {
        Op::Acquire(_) if acquire() => Whim::Mute,
        Op::Extend(_) if extend() => Whim::Fail,
        Op::Release(_) if release() => Whim::Mute,
        _ => Whim::Obey,
    })
    .await;
    let hold = detached(&moody).await.expect("asked again, and extended again");
    let unknown = hold.release(&moody).await.expect_err("there is no answer");
    assert!(matches!(unknown, ReleaseError::Unknown(_)), "{unknown:?}");
    hold.release(&moody).await.expect("it had been released, by this very hold");
    assert!(is_free(&sober).await);
}

#[tokio::test]
async fn an_attach_without_an_answer_hands_the_hold_back_and_can_be_tried_again() {
    let first = once();
    let (moody, sober) =
        moody_and_sober(
            move |_, op| if matches!(op, Op::Extend(_)) && first() { Whim::Mute } else { Whim::Obey },
        )
        .await;
    let hold = detached(&sober).await.expect("acquired");
    let failed = hold.attach(&moody).await.expect_err("there is no answer");
    let AttachError::NotExtended { hold, error: ExtendError::Store(_) } = failed else {
        panic!("{failed:?}")
    };
    let guard = hold.attach(&moody).await.expect("attached");
    guard.check().expect("held");
    guard.release().await.expect("released");
    assert!(is_free(&sober).await);
}

#[tokio::test]
async fn a_hold_that_is_released_while_it_is_attached_becomes_no_guard() {
    let (moody, sober) = moody_and_sober(|_, op| match op {
        Op::Extend(_) => Whim::Late(100 * MS),
        // After the extend: by the store alone the hold would be there when the extend is answered.
        Op::Release(_) => Whim::Late(180 * MS),
        _ => Whim::Obey,
    })
    .await;
    let hold = detached(&sober).await.expect("acquired");
    let copy: DetachedHold = hold.to_secret_text().parse().expect("it was written by us");
    let (attached, released) = tokio::join!(hold.attach(&moody), copy.release(&moody));
    released.expect("released");
    let refused = attached.expect_err("whoever believed in it would do so without it");
    let AttachError::NotExtended { error: ExtendError::Lost(lost), .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(lost.reason, LostReason::Released);
}

#[tokio::test]
async fn a_guard_of_a_hold_that_is_released_elsewhere_keeps_it_no_more_though_the_release_fails() {
    let (moody, sober) = moody_and_sober(|_, op| match op {
        Op::Release(_) => Whim::Fail,
        _ => Whim::Obey,
    })
    .await;
    let hold = client_hold(&sober, 300 * MS).await;
    let copy: DetachedHold = hold.to_secret_text().parse().expect("it was written by us");
    let guard = hold.attach(&moody).await.expect("attached");
    copy.release(&moody).await.expect_err("the store does not obey");
    assert!(guard.check().is_err());
    let mutex = sober.mutex("m").expect("a good name");
    let next = mutex.acquire_timeout(SOON).await.expect("its lease ends, since nobody renews it");
    next.release().await.expect("released");
}

async fn client_hold(client: &Client, lease: Duration) -> DetachedHold {
    let mutex = client.mutex("m").expect("a good name").lease(lease);
    mutex.acquire_detached().await.expect("acquired")
}

#[tokio::test]
async fn who_waits_for_a_detached_hold_looks_where_no_mailbox_can_be_opened() {
    let memory = MemoryStore::new();
    let other = Client::of_store(memory.clone()).connect().await.expect("it connects");
    let held = other.mutex("m").expect("a good name").acquire().await.expect("acquired");
    let store = Moody::new(&memory, |_, _| Whim::Obey);
    let mail_is_down = store.mail_is_down.clone();
    let client = store.client(900 * MS).await;
    mail_is_down.store(true, Ordering::SeqCst);
    let waiter = tokio::spawn(async move { detached(&client).await.expect("acquired") });
    while other.mutex("m").expect("a good name").inspect().await.expect("an answer").waiting == 0 {
        sleep(MS).await;
    }
    held.release().await.expect("released");
    let hold = timeout(700 * MS, waiter).await.expect("by a look, every 250 ms at most").expect("no panic");
    hold.release(&other).await.expect("released");
}

#[tokio::test]
async fn no_session_of_a_detached_hold_outlives_its_acquisition() {
    let memory = MemoryStore::new();
    let store = Moody::new(&memory, |_, _| Whim::Obey);
    let closed = store.closed.clone();
    let client = store.client(900 * MS).await;
    let hold = detached(&client).await.expect("acquired");
    assert_eq!(closed.load(Ordering::SeqCst), 1, "its mailbox, and not the client's");
    hold.release(&client).await.expect("released");
    let missed = client.mutex("m").expect("a good name").acquire_detached().await;
    assert!(matches!(missed, Err(AcquireError::NoLease)));
    drop(client);
    assert_eq!(closed.load(Ordering::SeqCst), 2);
}

/// A world in which time goes by as tokio's paused clock does.
#[derive(Debug, Clone, Copy)]
struct Paused(tokio::time::Instant);

impl World for Paused {
    fn now(&self) -> Moment {
        Moment::ZERO + MS + self.0.elapsed()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.0.elapsed()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn host(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// A store that counts the batches of extends, and answers each after a millisecond.
#[derive(Debug, Clone)]
struct Counted {
    inner: MemoryStore,
    sizes: Arc<std::sync::Mutex<Vec<usize>>>,
}

impl Counted {
    fn new(world: Paused) -> Self {
        let now_us = move || world.now().as_micros();
        Self { inner: MemoryStore::with_clock(now_us), sizes: Arc::default() }
    }

    fn take_sizes(&self) -> Vec<usize> {
        std::mem::take(&mut self.sizes.lock().expect("nobody panics"))
    }

    async fn holding(
        &self,
        world: Paused,
        watchdog: Duration,
        locks: u32,
        over: Duration,
    ) -> Vec<leasehold::Guard> {
        let client = Client::of_store(self.clone()).world(world).watchdog_lease(watchdog).connect();
        let client = client.await.expect("it connects");
        let mut guards = Vec::new();
        for n in 0..locks {
            guards
                .push(client.mutex(format!("m{n}")).expect("a good name").acquire().await.expect("acquired"));
            sleep(over / locks).await;
        }
        guards
    }
}

impl Store for Counted {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        self.inner.execute(lock, op, within)
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        self.sizes.lock().expect("nobody panics").push(ops.len());
        Box::pin(async move {
            sleep(MS).await;
            let all = ops.iter().map(|(lock, op)| self.inner.execute(lock, op, within));
            futures_util::future::join_all(all).await
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

    fn sibling(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// What woke the keeper made it look for the next that would be due soon, and send them by themselves.
#[tokio::test(start_paused = true)]
async fn many_holds_are_renewed_in_few_batches() {
    let world = Paused(tokio::time::Instant::now());
    let store = Counted::new(world);
    let guards = store.holding(world, 30_000 * MS, 1000, 10_000 * MS).await;
    sleep(15_000 * MS).await;
    store.take_sizes();
    sleep(60_000 * MS).await;
    let sizes = store.take_sizes();
    assert!(guards.iter().all(|guard| guard.remaining() > 19_000 * MS), "renewed after a third of the lease");
    assert!(sizes.len() <= 60 * 5, "{} batches in a minute", sizes.len());
    let extends: usize = sizes.iter().sum();
    assert!((6000..6150).contains(&extends), "{extends} extends, where 6000 are due");
}

#[tokio::test(start_paused = true)]
async fn holds_that_are_due_at_once_are_renewed_one_batch_after_the_other() {
    let world = Paused(tokio::time::Instant::now());
    let store = Counted::new(world);
    let guards = store.holding(world, 30_000 * MS, 1000, Duration::ZERO).await;
    sleep(15_000 * MS).await;
    store.take_sizes();
    sleep(30_000 * MS).await;
    let sizes = store.take_sizes();
    assert_eq!(sizes.len(), 3 * 4, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 256), "{sizes:?}");
    assert!(guards.iter().all(|guard| guard.remaining() > 19_000 * MS));
}

#[tokio::test(start_paused = true)]
async fn short_leases_are_renewed_in_time_and_not_all_the_time() {
    for lease_ms in [9, 30, 300, 2000] {
        let world = Paused(tokio::time::Instant::now());
        let store = Counted::new(world);
        let lease = Duration::from_millis(lease_ms);
        let guards = store.holding(world, lease, 20, Duration::ZERO).await;
        sleep(4000 * MS).await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()), "a lease of {lease:?}");
        let extends = store.take_sizes().iter().sum::<usize>() as u64;
        // Every third of the lease, less what timers may be late by.
        let due = 20 * 4000 / (lease_ms / 3 - 2);
        assert!(extends <= due, "{extends} extends of {lease:?}, where {due} are due");
    }
}
