//! The clock of a test: tokio's, or one that only the test moves.
//!
//! Owns the time, the timers and the keepers of the clients that use it. It does not own what the clients do.
//!
//! 1. A reading is never smaller than one before.
//! 2. A clock that the test moves goes from timer to timer. Before the next one, each future that awaited a timer was polled or
//!    dropped, no keeper runs or is about to, and no client has used the clock or the store for a moment of real time.

use super::manual::ManualClock;
use futures_util::future::BoxFuture;
use leasehold_core::Moment;
use leasehold_store::Environment;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::runtime::Handle;

/// What the clock shows at first: zero would make the ends of leases before it zero, too.
const FIRST: Duration = Duration::from_secs(3600);

/// When the clock shows zero: in 2025. Fencing tokens begin there, too.
const EPOCH: Duration = Duration::from_secs(1_750_000_000);

/// The clock of a [`TestStore`](super::TestStore) and its clients: time, timers, randomness and threads. Clones are the same
/// clock.
///
/// - [`tokio`](Self::tokio) follows tokio's clock, and so an hour passes at once when it is
///   [paused](https://docs.rs/tokio/latest/tokio/time/fn.pause.html): when every task waits, tokio goes on to the next
///   timer, be it a lease, a renewal, a time limit, or the test's own. That is the clock of [`TestStore::new`](super::TestStore::new).
/// - [`manual`](Self::manual) moves when the test says so: for the [blocking API](crate::blocking), and for runtimes of several
///   threads, whose clock tokio cannot pause.
///
/// The random numbers are the same in every run.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::testing::TestStore;
/// use std::time::Duration;
///
/// let store = TestStore::new();
/// let client = store.client().connect().await?;
/// let guard = client.mutex("index")?.acquire().await?;
/// store.clock().advance(Duration::from_secs(86_400)).await; // renewed all day long
/// guard.check()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TestClock(Arc<Inner>);

struct Inner {
    source: Source,
    /// How long all clients were suspended.
    suspended_us: AtomicU64,
    /// The largest reading (1).
    shown_us: AtomicU64,
    /// How many random numbers were drawn.
    drawn: AtomicU64,
}

enum Source {
    /// Tokio's clock, since an instant.
    Tokio {
        start: tokio::time::Instant,
        /// The runtime whose clock it is. `None` if it was made outside of one: then that of the caller.
        runtime: Option<Handle>,
    },
    Manual(Arc<ManualClock>),
}

impl TestClock {
    /// Creates a clock that follows tokio's: the real one, or the paused one of this runtime. Call it within the runtime.
    pub fn tokio() -> Self {
        let (start, runtime) = (tokio::time::Instant::now(), Handle::try_current().ok());
        Self::new(Source::Tokio { start, runtime })
    }

    /// Creates a clock that stands still until [`advance`](Self::advance) or [`advance_blocking`](Self::advance_blocking)
    /// moves it. Keepers run on threads of their own, as in production.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::testing::{TestClock, TestStore};
    /// use std::time::Duration;
    ///
    /// let clock = TestClock::manual();
    /// let client = TestStore::with_clock(clock.clone()).client().connect_blocking()?;
    /// let minute = Duration::from_secs(60);
    /// let guard = client.mutex("index")?.lease(minute).acquire()?;
    /// clock.advance_blocking(minute / 2);
    /// guard.check()?;
    /// clock.advance_blocking(minute / 2);
    /// assert!(guard.check().is_err());
    /// # Ok(()) }
    /// ```
    pub fn manual() -> Self {
        Self::new(Source::Manual(Arc::default()))
    }

    fn new(source: Source) -> Self {
        let (suspended_us, shown_us, drawn) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(Inner { source, suspended_us, shown_us, drawn }))
    }

    /// Returns how much time has passed on this clock.
    pub fn elapsed(&self) -> Duration {
        let passed = match &self.0.source {
            Source::Manual(clock) => clock.now(),
            Source::Tokio { start, runtime } => {
                let _in_runtime = runtime.as_ref().map(Handle::enter);
                start.elapsed()
            }
        };
        let us = micros(passed).saturating_add(self.0.suspended_us.load(Ordering::SeqCst));
        // (1) Of another thread's reading, too.
        Duration::from_micros(us.max(self.0.shown_us.fetch_max(us, Ordering::SeqCst)))
    }

    /// Lets `by` pass, and everything happen that is due in this time, in order: renewals, heartbeats, polls of waiters, ends of
    /// leases and of time limits.
    ///
    /// On tokio's clock this is a sleep: at once if it is paused, else in real time. A manual clock goes from timer to timer; it
    /// lets the tasks and threads that were woken go on before it moves further, by some milliseconds of real time for each step.
    /// A task that computes for longer in between finds that more time has passed.
    ///
    /// Cancel safety: if the future is dropped, less time has passed.
    pub async fn advance(&self, by: Duration) {
        match &self.0.source {
            Source::Tokio { .. } => tokio::time::sleep(by).await,
            Source::Manual(clock) => {
                let until = clock.now() + by;
                loop {
                    clock.settle_async().await;
                    if !clock.step(until) {
                        break;
                    }
                }
            }
        }
    }

    /// Like [`advance`](Self::advance), for a test without a runtime. On tokio's clock, blocks the thread for `by`.
    pub fn advance_blocking(&self, by: Duration) {
        match &self.0.source {
            Source::Tokio { .. } => std::thread::sleep(by),
            Source::Manual(clock) => {
                let until = clock.now() + by;
                loop {
                    clock.settle();
                    if !clock.step(until) {
                        break;
                    }
                }
            }
        }
    }

    /// Lets `by` pass for the store while all clients are stopped, as with `SIGSTOP` or while their machine is suspended: no
    /// renewal is sent and no timer fires. Leases and sessions that are shorter end. The clients go on at the next await of the test.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold::LostReason;
    /// use leasehold::testing::TestStore;
    /// use std::time::Duration;
    ///
    /// let store = TestStore::new();
    /// let client = store.client().connect().await?;
    /// let guard = client.mutex("index")?.acquire().await?;
    /// store.clock().suspend_clients(Duration::from_secs(11)); // the session lives for 10 s
    /// assert!(guard.check().is_err());
    /// assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
    /// # Ok(()) }
    /// ```
    pub fn suspend_clients(&self, by: Duration) {
        self.0.suspended_us.fetch_add(micros(by), Ordering::SeqCst);
        self.elapsed();
        if let Source::Manual(clock) = &self.0.source {
            clock.wake_all();
        }
    }

    /// The time of the store, in microseconds since the Unix epoch.
    pub(super) fn store_us(&self) -> u64 {
        micros(EPOCH + self.elapsed())
    }

    /// A client used the store (2).
    pub(super) fn note_activity(&self) {
        if let Source::Manual(clock) = &self.0.source {
            clock.note_activity();
        }
    }
}

impl Environment for TestClock {
    fn now(&self) -> Moment {
        Moment::ZERO + FIRST + self.elapsed()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + EPOCH + self.elapsed()
    }

    fn random(&self) -> u64 {
        // SplitMix64.
        let drawn = self.0.drawn.fetch_add(1, Ordering::SeqCst) + 1;
        let mut bits = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        match &self.0.source {
            Source::Tokio { runtime, .. } => {
                let _in_runtime = runtime.as_ref().map(Handle::enter);
                Box::pin(tokio::time::sleep(at.since(self.now())))
            }
            Source::Manual(manual) => {
                let (clock, mut timer) = (self.clone(), manual.timer(at.since(self.now())));
                Box::pin(poll_fn(move |cx| timer.poll(cx, || clock.now() >= at)))
            }
        }
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        match &self.0.source {
            Source::Tokio { runtime: Some(runtime), .. } => drop(runtime.spawn(keeper)),
            Source::Tokio { runtime: None, .. } => {
                let no_runtime = |_| io::Error::other("there is no tokio runtime here: connect inside one");
                Handle::try_current().map_err(no_runtime)?.spawn(keeper);
            }
            Source::Manual(clock) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let keeper = clock.clone().tracked(keeper);
                let run = move || runtime.block_on(keeper);
                std::thread::Builder::new().name("leasehold-keeper".into()).spawn(run)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestClock").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
