//! The statistics of a store: what its clients have counted of each class of lock.

use crate::client::listing::Listing;
use crate::engine::Engine;
use crate::error::InspectError;
use leasehold_core::{ClassStatistics, StatisticsList, TimeHistogram};
use std::time::{Duration, SystemTime};

/// What the clients of a store have counted of one class of lock: [`Client::lock_statistics`](crate::Client::lock_statistics).
///
/// Mutexes, reentrant mutexes, read-write locks and semaphores are counted; elections, latches and barriers are not, and neither are
/// [detached holds](crate::DetachedHold), which no client holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// for class in client.lock_statistics().await? {
///     let (p50, p99) = (class.holds.quantile(0.5), class.holds.quantile(0.99));
///     println!("{}: {} holds, {p50:?}, {p99:?}", class.class, class.holds.count());
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatistics {
    /// The class.
    pub class: String,
    /// How long guards held a lock, of the holds that have ended; handed-off locks count for each task.
    pub holds: TimeHistogram,
    /// How long acquires took that acquired a lock, or waited for it until their time limit.
    pub waits: TimeHistogram,
    /// The longest hold that was released, and not lost.
    pub longest_hold: Duration,
    /// The longest of the waits.
    pub longest_wait: Duration,
    /// How many of these acquires found the lock taken.
    pub taken: u64,
    /// How many acquires made a single attempt, and found the lock taken.
    pub refused: u64,
    /// How many holds were lost.
    pub losses: u64,
    /// When the first of this began, by the store's clock.
    pub from: SystemTime,
    /// When a client merged something last, by the store's clock.
    pub to: SystemTime,
}

impl LockStatistics {
    fn new(class: String, statistics: ClassStatistics) -> Self {
        let ClassStatistics {
            holds,
            waits,
            taken,
            refused,
            losses,
            longest_hold_us,
            longest_wait_us,
            from_ms,
            to_ms,
        } = statistics;
        let at = |ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        let at = |ms| at(ms).unwrap_or(SystemTime::UNIX_EPOCH);
        Self {
            class,
            holds,
            waits,
            longest_hold: Duration::from_micros(longest_hold_us),
            longest_wait: Duration::from_micros(longest_wait_us),
            taken,
            refused,
            losses,
            from: at(from_ms),
            to: at(to_ms),
        }
    }

    /// Returns for how long it was counted.
    pub fn span(&self) -> Duration {
        self.to.duration_since(self.from).unwrap_or_default()
    }

    /// Returns which part of the acquires found the lock taken, from 0 to 1. If acquires come at random, that is also the part of the time for
    /// which a lock of this class is held.
    pub fn share_taken(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "a count of this size need not be exact")]
        let part = |count: u64| count as f64;
        let attempts = self.waits.count().saturating_add(self.refused);
        if attempts == 0 { 0.0 } else { part(self.taken.saturating_add(self.refused)) / part(attempts) }
    }
}

/// The statistics of the store. A store that keeps none fails: an empty list would be false.
pub(crate) async fn lock_statistics(engine: &Engine) -> Result<Listing<LockStatistics>, InspectError> {
    let StatisticsList { classes, skipped } =
        engine.list_statistics().await.map_err(|failed| failed.fault)?;
    let items = classes.into_iter().map(|(class, statistics)| LockStatistics::new(class, statistics));
    Ok(Listing::new(items.collect(), skipped))
}
