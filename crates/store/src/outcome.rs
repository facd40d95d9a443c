//! What became of an operation that a store was given.

use crate::fault::Fault;
use leasehold_core::{Executed, Reply};

/// What became of an operation: a reply, or a fault with the answer to whether it was [`Executed`].
///
/// There are always three cases: it was executed, it was not, or that is unknown. It is not a `Result`, because a `?` would
/// pass the last two on as one.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::core::{Inspect, Lock, Op, Reply};
/// use leasehold::store::{Executed, MemoryStore, Outcome, Store};
/// use std::time::Duration;
///
/// let (lock, op) = (Lock::mutex("orders/42".parse()?), Op::Inspect(Inspect { claim: None, details: false }));
/// match MemoryStore::new().execute(&lock, &op, Duration::from_secs(1)).await {
///     Outcome::Done(Reply::Inspect(seen)) => println!("{} wait", seen.waiters),
///     Outcome::Done(other) => println!("an answer to another question: {other:?}"),
///     Outcome::Failed(Executed::No, fault) => println!("not executed: {fault}"),
///     Outcome::Failed(Executed::Unknown, fault) => println!("executed or not, or only yet to be: {fault}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub enum Outcome<T = Reply> {
    /// It was executed, and this is the reply.
    Done(T),
    /// There is no reply: whether it was executed nevertheless, and why there is none.
    Failed(Executed, Fault),
}
