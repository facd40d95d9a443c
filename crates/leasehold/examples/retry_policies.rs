//! How to wait for a lock: in the queue, for a limited time, by a retry policy, or not at all.
//!
//! Without a policy a waiter queues: the release grants it the lock, in order of arrival, however long it has
//! waited. A retry policy polls instead. It is for callers that rather give up after some tries, or must not enter
//! the queue. Each try is a request, and nothing makes the tries fair.
//!
//!     cargo run --example retry_policies
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example retry_policies

use leasehold::error::AcquireError;
use leasehold::{Attempt, Client, RetryPolicy};
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let holder = Client::builder(&store).label("holder").connect().await?;
    let waiter = Client::builder(&store).label("waiter").connect().await?;
    let guard = holder.mutex("example/retry_policies")?.acquire_timeout(Duration::from_secs(30)).await?;
    let lock = || waiter.mutex("example/retry_policies");

    // Once, for work that may be left out. That the lock is taken is a value, and no error.
    if let Attempt::Taken(contention) = lock()?.try_acquire().await? {
        println!("one try: {contention}");
    }

    // Four tries, with a pause that doubles. Half of each pause is random, so that clients which have failed
    // together do not come back together.
    let policy = RetryPolicy::exponential(Duration::from_millis(10), Duration::from_secs(1)).tries(4);
    println!("the longest pauses: {:?}", longest_pauses(policy));
    match lock()?.retry(policy).acquire().await {
        Err(AcquireError::RetriesExhausted { contention, .. }) => println!("four tries: {contention}"),
        other => return unexpected(other),
    }

    // The same pause each time, and a limit for the time instead of the tries.
    let policy = RetryPolicy::constant(Duration::from_millis(20));
    match lock()?.retry(policy).acquire_timeout(Duration::from_millis(200)).await {
        Err(AcquireError::TimedOut { contention, .. }) => println!("200 ms of tries: {contention}"),
        other => return unexpected(other),
    }

    // A place in the queue, for a limited time: the right choice for most services.
    match lock()?.max_wait(Duration::from_millis(200)).acquire().await {
        Err(AcquireError::TimedOut { contention, .. }) => println!("200 ms in the queue: {contention}"),
        other => return unexpected(other),
    }

    // A place in the queue gets the lock from the release itself. A policy finds it free at its next try.
    let queued = lock()?;
    let queued = tokio::spawn(async move { queued.acquire().await });
    while holder.mutex("example/retry_policies")?.inspect().await?.waiting == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let polling =
        Client::builder(&store).label("polling").connect().await?.mutex("example/retry_policies")?;
    let polling = polling.retry(RetryPolicy::constant(Duration::from_millis(20)));
    let polling = tokio::spawn(async move { polling.acquire().await });
    guard.release().await?;
    let guard = queued.await??;
    println!("in the queue: granted, as hold {}", guard.fencing_token());
    guard.release().await?;
    let guard = polling.await??;
    println!("by a policy without a limit: granted, as hold {}", guard.fencing_token());
    guard.release().await?;
    Ok(())
}

/// The pauses of a policy, as long as randomness can make them.
fn longest_pauses(policy: RetryPolicy) -> Vec<Duration> {
    (1..).map_while(|tried| policy.backoff_after(tried, u64::MAX)).collect()
}

fn unexpected<T>(result: std::result::Result<T, AcquireError>) -> Result<()> {
    Err(result.err().map_or_else(|| "the lock was free".into(), Into::into))
}
