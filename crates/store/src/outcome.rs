//! The outcome of an operation.

use crate::fault::Fault;
use leasehold_core::{Executed, Reply};

/// The outcome of an operation: a reply, or a fault and whether the operation was [`Executed`].
///
/// There are three cases: the operation was executed, it was not executed, or that is unknown. This is not a `Result`: a
/// `?` would fold the last two cases into one.
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
///     Outcome::Done(other) => println!("a reply to another operation: {other:?}"),
///     Outcome::Failed(Executed::No, fault) => println!("not executed: {fault}"),
///     Outcome::Failed(Executed::Unknown, fault) => println!("may have been executed, or may still be: {fault}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub enum Outcome<T = Reply> {
    /// It was executed, and this is the reply.
    Done(T),
    /// There is no reply: whether the operation was executed nevertheless, and the reason.
    Failed(Executed, Fault),
}
