//! Times that do not depend on what else the machine does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the thread is due.
const INTERVAL: Duration = Duration::from_millis(5);

/// A delay that every timer has.
const USUAL_NS: u64 = 1_000_000;

/// Measures a time, and how late the machine ran a thread meanwhile that was due every 5 ms.
///
/// On a machine with other work each step of a test waits for a core, and a correct lock seems slow. A bound on
/// [`undisturbed`](Self::undisturbed) holds there too; it shows less there. On a quiet machine that is the real time, so a bound is there as
/// strict as one on [`elapsed`](Self::elapsed).
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    delays: Arc<Delays>,
}

/// Delays of the thread, each less the usual one.
#[derive(Debug)]
struct Delays {
    is_over: AtomicBool,
    /// When the thread is due next, in nanoseconds from the start.
    due_ns: AtomicU64,
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Stopwatch {
    /// Measures from now on.
    pub fn start() -> Self {
        let start = Instant::now();
        let delays = Arc::new(Delays {
            is_over: AtomicBool::new(false),
            due_ns: AtomicU64::new(nanoseconds(INTERVAL)),
            total_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        });
        thread::spawn({
            let delays = delays.clone();
            move || delays.measure(start)
        });
        Self { start, delays }
    }

    /// The real time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time since the start, less the delays of the thread.
    pub fn undisturbed(&self) -> Duration {
        let elapsed_ns = nanoseconds(self.start.elapsed());
        let delays_ns = self.delays.total_ns.load(Ordering::SeqCst) + self.delays.present_ns(elapsed_ns);
        Duration::from_nanos(elapsed_ns.saturating_sub(delays_ns))
    }

    /// The longest delay of the thread.
    pub fn longest_delay(&self) -> Duration {
        let present_ns = self.delays.present_ns(nanoseconds(self.start.elapsed()));
        Duration::from_nanos(self.delays.longest_ns.load(Ordering::SeqCst).max(present_ns))
    }

    /// Fails the test if the time since the start, less the delays, is not below the limit.
    ///
    /// # Panics
    ///
    /// If it is not; the message has both times.
    #[track_caller]
    pub fn assert_below(&self, limit: Duration, what: &str) {
        let (undisturbed, elapsed) = (self.undisturbed(), self.elapsed());
        assert!(
            undisturbed < limit,
            "{what}: {undisturbed:?} without delays, {elapsed:?} in all, not {limit:?}"
        );
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.delays.is_over.store(true, Ordering::SeqCst);
    }
}

impl Delays {
    fn measure(&self, start: Instant) {
        while !self.is_over.load(Ordering::SeqCst) {
            let due = start.elapsed() + INTERVAL;
            self.due_ns.store(nanoseconds(due), Ordering::SeqCst);
            thread::sleep(INTERVAL);
            let late_ns = nanoseconds(start.elapsed().saturating_sub(due)).saturating_sub(USUAL_NS);
            // First the next time at which it is due, so that no delay counts twice.
            self.due_ns.store(u64::MAX, Ordering::SeqCst);
            self.total_ns.fetch_add(late_ns, Ordering::SeqCst);
            self.longest_ns.fetch_max(late_ns, Ordering::SeqCst);
        }
    }

    /// The delay so far, if the thread is due now.
    fn present_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.due_ns.load(Ordering::SeqCst)).saturating_sub(USUAL_NS)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_measures_until_the_stopwatch_is_dropped() {
        let watch = Stopwatch::start();
        let delays = Arc::downgrade(&watch.delays);
        while watch.elapsed() < Duration::from_millis(50) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(watch.undisturbed() <= watch.elapsed());
        assert!(delays.strong_count() == 2, "it measures");
        drop(watch);
        while delays.strong_count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn delays_are_deducted_while_the_thread_waits_and_afterwards() {
        let delays = Delays {
            is_over: AtomicBool::new(false),
            due_ns: AtomicU64::new(5_000_000),
            total_ns: AtomicU64::new(0),
            longest_ns: AtomicU64::new(0),
        };
        assert_eq!(delays.present_ns(5_900_000), 0, "the usual delay");
        assert_eq!(delays.present_ns(26_000_000), 20_000_000);
        delays.due_ns.store(u64::MAX, Ordering::SeqCst);
        delays.total_ns.store(20_000_000, Ordering::SeqCst);
        let start =
            Instant::now().checked_sub(Duration::from_millis(100)).expect("the machine runs for longer");
        let watch = Stopwatch { start, delays: Arc::new(delays) };
        assert!(watch.undisturbed() + Duration::from_millis(19) < watch.elapsed());
        assert!(watch.undisturbed() >= Duration::from_millis(80));
    }
}
