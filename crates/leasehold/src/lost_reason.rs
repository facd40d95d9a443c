//! Why a hold was lost.

use leasehold_core::Label;
use std::fmt;

/// Why a hold was lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::{Client, LostReason};
/// use std::time::Duration;
///
/// let job = Client::connect("memory:").await?.mutex("job")?.lease(Duration::from_millis(20));
/// let guard = job.acquire().await?;
/// match guard.lost().await.reason {
///     LostReason::Expired => println!("the lease was too short"),
///     other => println!("lost early: {other}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// Its lease ended, by this process's clock.
    Expired,
    /// Another client holds the lock, or held it since: the lease ended, the key was removed before that, or the
    /// store lost its data.
    TakenOver {
        /// The present holder, if known.
        by: Option<Label>,
    },
    /// The key was removed before the lease ended: manually, or by the server's eviction policy.
    Removed,
    /// The store has lost its data, by a restart without persistence or a flush. Also reported if the store considers
    /// a session dead that sent its heartbeats in time: it came back with an old snapshot, or its clock was set forward.
    StoreLostData,
    /// The process was considered dead, and the lock was taken from it.
    Evicted,
    /// The lock was released by force.
    ForceReleased,
    /// Its session lapsed: no heartbeat reached the store in time, or the process was suspended. Another client may
    /// hold the lock by now, whatever is left of the lease.
    SessionLapsed,
    /// It was released before.
    Released,
    /// It reached its cap and was released: [`Mutex::max_hold`](crate::Mutex::max_hold),
    /// [`Mutex::max_renewals`](crate::Mutex::max_renewals).
    Capped,
    /// Its client was shut down: [`Client::shutdown`](crate::Client::shutdown).
    ShutDown,
}

impl LostReason {
    /// Returns a word for a label or a log field: `expired`, `taken_over`, `removed`, `store_lost_data`, `evicted`,
    /// `force_released`, `session_lapsed`, `released`, `capped` or `shut_down`.
    ///
    /// ```
    /// assert_eq!(leasehold::LostReason::SessionLapsed.as_str(), "session_lapsed");
    /// ```
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenOver { .. } => "taken_over",
            Self::Removed => "removed",
            Self::StoreLostData => "store_lost_data",
            Self::Evicted => "evicted",
            Self::ForceReleased => "force_released",
            Self::SessionLapsed => "session_lapsed",
            Self::Released => "released",
            Self::Capped => "capped",
            Self::ShutDown => "shut_down",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::TakenOver { by: Some(by) } if !by.as_str().is_empty() => {
                write!(f, "it was taken over by {by}")
            }
            Self::TakenOver { .. } => f.write_str("it was taken over"),
            Self::Removed => f.write_str("its key was removed before its lease ended"),
            Self::StoreLostData => f.write_str("the store has lost its data"),
            Self::Evicted => f.write_str("its process was considered dead"),
            Self::ForceReleased => f.write_str("it was released by force"),
            Self::SessionLapsed => {
                f.write_str("its session lapsed: the store did not receive its heartbeats in time")
            }
            Self::Released => f.write_str("it was released already"),
            Self::ShutDown => f.write_str("its client was shut down"),
            Self::Capped => f.write_str("it was held for as long as its cap allows"),
        }
    }
}
