//! The engine's environment: a clock, randomness, sleep, and a thread for the keeper.

use crate::clock::boottime;
use futures_util::future::BoxFuture;
use leasehold_core::Moment;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime};
use tokio::runtime::{Handle, RuntimeFlavor};

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

    /// Whether a timer that is awaited here fires when [`now`](Self::now) shows its time. Asked when a client connects, and when
    /// an acquire begins: both fail if it does not. While tokio's clock is paused, the timers of [`System`] fire at once when
    /// the runtime is idle, and its clock shows no later time than before.
    fn timers_follow_clock(&self) -> bool {
        true
    }
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

    fn timers_follow_clock(&self) -> bool {
        !tokio_clock_is_paused()
    }
}

/// How far a reading of tokio's clock may follow one of the machine's and need no second look.
const AT_ONCE: Duration = Duration::from_micros(10);
/// How often the machine's clock is read until it moves: a clock that does not, proves nothing.
const MOST_READINGS: u32 = 1_000_000;
/// How many looks must agree.
const LOOKS: u32 = 3;

/// Whether tokio's clock is paused in this context, as by `#[tokio::test(start_paused = true)]`.
///
/// Tokio does not say so, but unless it is paused, its clock is the machine's monotonic one, which `std` reads: a reading of
/// tokio's after two different ones of `std` cannot equal a reading before them. Only a runtime of one thread can be paused.
fn tokio_clock_is_paused() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    if runtime.runtime_flavor() == RuntimeFlavor::MultiThread {
        return false;
    }
    // The usual case takes two readings.
    let before = std::time::Instant::now();
    let shown = tokio::time::Instant::now().into_std();
    if shown.checked_duration_since(before).is_some_and(|after| after < AT_ONCE) {
        return false;
    }
    (0..LOOKS).all(|_| stands_still(|| tokio::time::Instant::now().into_std()))
}

/// Whether a clock shows the same before and after the machine's clock has moved.
fn stands_still(shown: impl Fn() -> std::time::Instant) -> bool {
    let (first, begun) = (shown(), std::time::Instant::now());
    let moved = (0..MOST_READINGS).any(|_| std::time::Instant::now() > begun);
    moved && shown() == first
}

/// A random part of `most`.
pub fn jitter(environment: &dyn Environment, most: Duration) -> Duration {
    let share = f64::from(u32::try_from(environment.random() >> 32).unwrap_or(0)) / f64::from(u32::MAX);
    most.mul_f64(share)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_clock_stands_still_if_it_shows_the_same() {
        let frozen = Instant::now();
        assert!(stands_still(|| frozen));
        assert!((0..1000).all(|_| !stands_still(Instant::now)));
    }

    #[tokio::test(start_paused = true)]
    async fn timers_follow_the_clock_unless_tokio_is_paused() {
        assert!(!System.timers_follow_clock());
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(!System.timers_follow_clock(), "ahead");
        tokio::time::resume();
        // Another clock than before, which goes on where it stood.
        assert!((0..1000).all(|_| System.timers_follow_clock()));
        tokio::time::pause();
        assert!(!System.timers_follow_clock(), "again");
    }

    #[test]
    fn timers_follow_the_clock_of_runtimes_that_are_not_paused() {
        assert!((0..1000).all(|_| System.timers_follow_clock()), "no runtime");
        for mut builder in [tokio::runtime::Builder::new_current_thread(), {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1);
            builder
        }] {
            let runtime = builder.enable_time().build().expect("a runtime");
            let follow = async { (0..10_000).all(|_| System.timers_follow_clock()) };
            assert!(runtime.block_on(follow));
        }
    }
}
