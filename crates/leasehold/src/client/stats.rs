//! Figures of a client.

use super::Client;
use leasehold_store::ServerFinding;
use std::time::Duration;

/// Figures of a client at one moment: [`Client::stats`]. Numbers of what has happened count from the start of the client.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// let stats = client.stats();
/// assert_eq!((stats.held, stats.waiting, stats.acquired, stats.lost.total()), (1, 0, 1, 0));
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// How many holds this client has, including those that it keeps for its own tasks.
    pub holds: usize,
    /// How many of them only a bare majority of a quorum had when they were last extended: one more node that forgets
    /// such a hold ends it, and may let another client acquire the lock before its holder learns of that. Always 0 for any
    /// other store.
    pub holds_at_bare_majority: usize,
    /// How many locks guards hold at this moment.
    pub held: u64,
    /// How many acquires wait at this moment for a lock that is taken.
    pub waiting: u64,
    /// How many acquires have succeeded, those of detached holds included.
    pub acquired: u64,
    /// How many acquires found the lock taken, and had one attempt only or no more.
    pub taken: u64,
    /// How many acquires reached their time limit while the lock was taken.
    pub timed_out: u64,
    /// How many acquires failed: the store did not answer, or refused.
    pub failed: u64,
    /// How many acquires were cancelled: their futures were dropped.
    pub cancelled: u64,
    /// How many acquires were ended by a [shutdown](Client::shutdown).
    pub closed: u64,
    /// How many guards were released or dropped while they held their locks.
    pub released: u64,
    /// How many holds were lost, by reason.
    pub lost: Losses,
    /// How many locks were handed off from one task of this client to another, without a request to the store.
    pub handed_off_locally: u64,
    /// How many locks were handed off to this client by the store, after they had been taken.
    pub handed_off_remotely: u64,
    /// How often a hold was extended.
    pub renewals: u64,
    /// How often a request to extend a hold failed. It is sent again.
    pub failed_renewals: u64,
    /// How many requests the store has answered.
    pub requests_done: u64,
    /// How many requests failed and were certainly not executed.
    pub requests_not_executed: u64,
    /// How many requests were not answered, and may have been executed.
    pub requests_unknown: u64,
    /// How many sessions have lapsed.
    pub sessions_lapsed: u64,
    /// How long this client's session lasts without another heartbeat: of several, the one that ends first. `None` if
    /// the client has no session at this moment, or its store needs no heartbeats.
    pub session_margin: Option<Duration>,
}

/// How many holds of a client were lost, by [reason](crate::LostReason): part of [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Losses {
    /// [`LostReason::Expired`](crate::LostReason::Expired).
    pub expired: u64,
    /// [`LostReason::TakenOver`](crate::LostReason::TakenOver).
    pub taken_over: u64,
    /// [`LostReason::Removed`](crate::LostReason::Removed).
    pub removed: u64,
    /// [`LostReason::StoreLostData`](crate::LostReason::StoreLostData).
    pub store_lost_data: u64,
    /// [`LostReason::Evicted`](crate::LostReason::Evicted).
    pub evicted: u64,
    /// [`LostReason::ForceReleased`](crate::LostReason::ForceReleased).
    pub force_released: u64,
    /// [`LostReason::SessionLapsed`](crate::LostReason::SessionLapsed).
    pub session_lapsed: u64,
    /// [`LostReason::Released`](crate::LostReason::Released).
    pub released: u64,
    /// [`LostReason::Capped`](crate::LostReason::Capped).
    pub capped: u64,
    /// [`LostReason::ShutDown`](crate::LostReason::ShutDown).
    pub shut_down: u64,
}

impl Losses {
    /// Returns how many holds were lost without being asked for: all but those of a [shutdown](Client::shutdown).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// assert_eq!(client.stats().lost.total(), 0);
    /// # Ok(()) }
    /// ```
    pub const fn total(&self) -> u64 {
        let Self { expired, taken_over, removed, store_lost_data, evicted, .. } = self;
        let Self { force_released, session_lapsed, released, capped, .. } = self;
        *expired
            + *taken_over
            + *removed
            + *store_lost_data
            + *evicted
            + *force_released
            + *session_lapsed
            + *released
            + *capped
    }
}

impl Client {
    /// Returns what was found out about the servers when this client connected to them, the latest of each server, notices
    /// included. Empty for `memory:` and `sqlite:`, and while no server is connected. Sends nothing.
    ///
    /// Use it to show at the start of a service what an operator should know. Warnings are also logged, once.
    /// [`ClientBuilder::diagnose`](crate::ClientBuilder::diagnose) reads all servers again, and finds more.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leasehold::Client::connect("memory:").await?;
    /// for found in client.findings().iter().filter(|found| found.finding.needs_action()) {
    ///     eprintln!("{found}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn findings(&self) -> Vec<ServerFinding> {
        self.engine.store.findings()
    }

    /// Returns figures of this client and its clones. Sends nothing. The figures are read one after the other, while others
    /// change: they may not fit together exactly.
    pub fn stats(&self) -> Stats {
        let engine = &self.engine;
        let (holds, holds_at_bare_majority) = engine.keeper.count_holds();
        let counters = &engine.telemetry.counters;
        let lost = &counters.lost;
        Stats {
            holds,
            holds_at_bare_majority,
            held: counters.held.get(),
            waiting: counters.waiting.get(),
            acquired: counters.acquired.get(),
            taken: counters.taken.get(),
            timed_out: counters.timed_out.get(),
            failed: counters.failed.get(),
            cancelled: counters.cancelled.get(),
            closed: counters.closed.get(),
            released: counters.released.get(),
            lost: Losses {
                expired: lost.expired.get(),
                taken_over: lost.taken_over.get(),
                removed: lost.removed.get(),
                store_lost_data: lost.store_lost_data.get(),
                evicted: lost.evicted.get(),
                force_released: lost.force_released.get(),
                session_lapsed: lost.session_lapsed.get(),
                released: lost.released.get(),
                capped: lost.capped.get(),
                shut_down: lost.shut_down.get(),
            },
            handed_off_locally: counters.handed_off_locally.get(),
            handed_off_remotely: counters.handed_off_remotely.get(),
            renewals: counters.renewals.get(),
            failed_renewals: counters.failed_renewals.get(),
            requests_done: counters.requests_done.get(),
            requests_not_executed: counters.requests_not_executed.get(),
            requests_unknown: counters.requests_unknown.get(),
            sessions_lapsed: counters.sessions_lapsed.get(),
            session_margin: engine.sessions.margin(engine.environment.now()),
        }
    }
}
