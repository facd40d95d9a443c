//! Times that do not depend on what else the machine does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which the thread is due.
const INTERVAL: Duration = Duration::from_millis(5);

/// A delay that every timer has.
const USUAL: Duration = Duration::from_millis(1);

/// A delay that is deducted. Shorter ones are no reason to miss a bound.
const LONG: Duration = Duration::from_millis(20);

/// Measures a time, and how late the machine ran a thread meanwhile that was due every 5 ms.
///
/// On a machine with other work each step of a test waits for a core, and a correct lock seems slow. A bound on
/// [`undisturbed`](Self::undisturbed) holds on such a machine too, but shows less. On a quiet machine `undisturbed` is the
/// real time, and a bound on it as strict as one on [`elapsed`](Self::elapsed).
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    delays: Arc<Mutex<Delays>>,
}

/// Delays of the thread.
#[derive(Debug)]
struct Delays {
    is_over: bool,
    /// When the thread is due next, since the start.
    due: Duration,
    /// The sum of the long ones.
    total: Duration,
    longest: Duration,
}

impl Stopwatch {
    /// Measures from now on.
    pub fn start() -> Self {
        let start = Instant::now();
        // The thread may begin late, too.
        let due = Duration::ZERO;
        let delays = Delays { is_over: false, due, total: Duration::ZERO, longest: Duration::ZERO };
        let delays = Arc::new(Mutex::new(delays));
        thread::spawn({
            let delays = delays.clone();
            move || {
                while !lock(&delays).handle_run(start.elapsed()) {
                    thread::sleep(INTERVAL);
                }
            }
        });
        Self { start, delays }
    }

    /// The real time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time since the start, less the delays of the thread.
    pub fn undisturbed(&self) -> Duration {
        let delays = lock(&self.delays);
        let elapsed = self.start.elapsed();
        elapsed.saturating_sub(delays.total + deducted(delays.present(elapsed)))
    }

    /// The longest delay of the thread.
    pub fn longest_delay(&self) -> Duration {
        let delays = lock(&self.delays);
        delays.longest.max(delays.present(self.start.elapsed()))
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
        lock(&self.delays).is_over = true;
    }
}

impl Delays {
    /// The thread runs, so long after the start. Returns whether it is to end.
    fn handle_run(&mut self, elapsed: Duration) -> bool {
        let late = self.present(elapsed);
        self.total += deducted(late);
        self.longest = self.longest.max(late);
        self.due = elapsed + INTERVAL;
        self.is_over
    }

    /// The delay so far, if the thread is due, less the usual one.
    fn present(&self, elapsed: Duration) -> Duration {
        elapsed.saturating_sub(self.due).saturating_sub(USUAL)
    }
}

fn deducted(delay: Duration) -> Duration {
    if delay >= LONG { delay } else { Duration::ZERO }
}

fn lock(delays: &Mutex<Delays>) -> MutexGuard<'_, Delays> {
    delays.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_thread_measures_until_the_stopwatch_is_dropped() {
        let watch = Stopwatch::start();
        let delays = Arc::downgrade(&watch.delays);
        while watch.elapsed() < 50 * MS {
            thread::sleep(MS);
        }
        assert!(watch.undisturbed() <= watch.elapsed());
        assert_eq!(delays.strong_count(), 2, "it measures");
        drop(watch);
        while delays.strong_count() > 0 {
            thread::sleep(MS);
        }
    }

    #[test]
    fn long_delays_are_deducted_while_the_thread_waits_and_afterwards() {
        let none = Duration::ZERO;
        let mut delays = Delays { is_over: false, due: none, total: none, longest: none };
        assert_eq!(delays.present(MS), none, "the usual delay");
        assert_eq!(delays.present(26 * MS), 25 * MS, "it has not begun");
        delays.handle_run(26 * MS);
        assert_eq!((delays.due, delays.total), (31 * MS, 25 * MS));
        delays.handle_run(42 * MS);
        assert_eq!((delays.total, delays.longest), (25 * MS, 25 * MS), "10 ms are no reason");
        delays.handle_run(147 * MS);
        assert_eq!((delays.total, delays.longest), (124 * MS, 99 * MS));
    }

    #[test]
    fn an_undisturbed_time_is_less_by_the_delays() {
        let start = Instant::now().checked_sub(100 * MS).expect("the machine runs for longer");
        let delays = Delays { is_over: false, due: Duration::MAX, total: 20 * MS, longest: 20 * MS };
        let watch = Stopwatch { start, delays: Arc::new(Mutex::new(delays)) };
        let (undisturbed, elapsed) = (watch.undisturbed(), watch.elapsed());
        assert!(undisturbed >= 80 * MS && undisturbed + 20 * MS <= elapsed, "{undisturbed:?} of {elapsed:?}");
    }
}
