//! What an acquire does that waits for a lock in a cycle.

/// What an acquire does that is part of a cycle of waits: processes that wait for each other's locks, and go on only if one of
/// them gives up. For [`Mutex::deadlock`](crate::Mutex::deadlock) and the other kinds of locks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::error::AcquireError;
/// use leasehold::{Client, Deadlock};
///
/// let client = Client::connect("memory:").await?;
/// let (from, to) = (client.mutex("account/1")?, client.mutex("account/2")?.deadlock(Deadlock::Refuse));
/// let first = from.acquire().await?;
/// match to.acquire().await {
///     Ok(second) => second.release().await?,
///     // The first lock is released below, so that the others go on.
///     Err(AcquireError::Deadlock(cycle)) => eprintln!("try again: {cycle}"),
///     Err(error) => return Err(error.into()),
/// }
/// first.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deadlock {
    /// Goes on waiting. [`Client::wait_graph`](crate::Client::wait_graph) and `leasehold graph` show the cycle.
    #[default]
    Report,
    /// Fails with [`AcquireError::Deadlock`](crate::error::AcquireError::Deadlock), unless another wait of the cycle gives up: of
    /// those that refuse, the one that began last, by the clocks of their machines.
    ///
    /// From 0.3 s on, the wait looks for a cycle about once a second, as [`Client::wait_graph`](crate::Client::wait_graph)
    /// does. All that is said there about tasks, threads, owners and guards applies: a task that gives its guards to other tasks, or does
    /// other work while it waits, can be refused without need.
    Refuse,
}
