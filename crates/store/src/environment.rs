//! The engine's environment: a clock, randomness, sleep, and a thread for the keeper.

use crate::clock::boottime;
use futures_util::future::BoxFuture;
use leasehold_core::Moment;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};

/// The source of time, randomness and threads. Replace it in order to run a client in simulated time.
///
/// An environment in which an hour passes as fast as tokio's paused clock is advanced:
///
/// ```
/// use futures_util::future::BoxFuture;
/// use leasehold::store::{Environment, MemoryStore};
/// use leasehold::{Client, Moment};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use std::time::{Duration, SystemTime};
/// use tokio::time::Instant;
///
/// #[derive(Debug)]
/// struct Simulated {
///     start: Instant,
///     drawn: AtomicU64,
/// }
///
/// impl Environment for Simulated {
///     fn now(&self) -> Moment {
///         Moment::ZERO + self.start.elapsed()
///     }
///     fn system_time(&self) -> SystemTime {
///         SystemTime::UNIX_EPOCH + self.start.elapsed()
///     }
///     fn random(&self) -> u64 {
///         self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed) // the same in every run
///     }
///     fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
///         Box::pin(tokio::time::sleep(at.since(self.now())))
///     }
///     fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
///         tokio::spawn(keeper); // on the same runtime, which owns the clock
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let start = Instant::now();
/// let store = MemoryStore::with_clock(move || start.elapsed().as_micros() as u64);
/// let environment = Simulated { start, drawn: AtomicU64::new(1) };
/// let client = Client::with_store(store).environment(environment).connect().await?;
///
/// let hour = Duration::from_secs(3600);
/// let guard = client.mutex("index")?.lease(hour).acquire().await?;
/// println!("{}", guard.lost().await);
/// assert!(start.elapsed() > hour - hour / 50);
/// # Ok(()) }
/// ```
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// The current time of a clock that runs during a suspend and never goes back.
    fn now(&self) -> Moment;

    /// The wall-clock time. Read only for leases that end at an instant, and for the reported end of a detached hold.
    fn system_time(&self) -> SystemTime;

    /// 64 unpredictable random bits.
    fn random(&self) -> u64;

    /// Sleeps until `at`, or a little longer.
    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()>;

    /// Runs the keeper to completion, apart from the caller's tasks.
    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()>;
}

/// The real environment: the machine's clock, its randomness, tokio's timers, a thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Environment for System {
    fn now(&self) -> Moment {
        boottime()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || runtime.block_on(keeper);
        std::thread::Builder::new().name("leasehold-keeper".into()).spawn(run).map(drop)
    }
}

/// A random part of `most`.
pub fn jitter(environment: &dyn Environment, most: Duration) -> Duration {
    let share = f64::from(u32::try_from(environment.random() >> 32).unwrap_or(0)) / f64::from(u32::MAX);
    most.mul_f64(share)
}
