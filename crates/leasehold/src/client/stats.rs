//! Figures of a client.

use super::Client;
use leasehold_store::ServerFinding;

/// Figures of a client at one moment: [`Client::stats`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("orders/42")?.acquire().await?;
/// assert_eq!((client.stats().holds, client.stats().holds_at_bare_majority), (1, 0));
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

    /// Returns figures of this client and its clones, for a metric. Sends nothing.
    pub fn stats(&self) -> Stats {
        let (holds, holds_at_bare_majority) = self.engine.keeper.count_holds();
        Stats { holds, holds_at_bare_majority }
    }
}
