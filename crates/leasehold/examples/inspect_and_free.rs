//! Inspect a lock, adopt a hold of a process that is gone, and free a lock by force.
//!
//! A deployment takes a lock for an hour as a detached hold, and its process ends. The next step has the text of
//! the hold, adopts it and releases it. Another time the text is lost: an operator inspects the lock, and frees
//! it from exactly that holder. On Redis there is a third case: a key that another library has left without an
//! expiry.
//!
//!     cargo run --example inspect_and_free
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example inspect_and_free

use leasehold::error::ForceReleaseError;
use leasehold::{Client, DetachedHold, Mutex};
use std::error::Error;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LEASE: Duration = Duration::from_secs(3600);
const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:example-inspect".into());
    let first = Client::builder(&store).label("deploy, step 1").connect().await?;
    let second = Client::builder(&store).label("deploy, step 2").connect().await?;
    let operator = Client::builder(&store).label("operator").connect().await?;
    let name = "example/inspect_and_free";

    // Adopt: the text of the hold is a secret, which the first step hands to the second.
    let secret =
        first.mutex(name)?.lease(LEASE).max_wait(MAX_WAIT).acquire_detached().await?.to_secret_text();
    inspect(&operator.mutex(name)?).await?;
    let guard = secret.parse::<DetachedHold>()?.attach(&second).await?;
    println!("adopted by step 2, and renewed from now on; still held: {}", guard.check().is_ok());
    guard.release().await?;
    inspect(&operator.mutex(name)?).await?;

    // Free: the text is lost, so no process can release the hold.
    let lost = first.mutex(name)?.lease(LEASE).acquire_detached().await?.fencing_token();
    let lock = operator.mutex(name)?;
    let observed = lock.inspect_full().await?.observed.ok_or("the lock is free")?;
    lock.force_release(observed).await?;
    println!("freed from hold {lost}");

    // What was observed is compared in the same step, so a later holder does not lose the lock to an old decision.
    let guard = second.mutex(name)?.acquire_timeout(MAX_WAIT).await?;
    match Client::builder(&store)
        .label("late operator")
        .connect()
        .await?
        .mutex(name)?
        .force_release(observed)
        .await
    {
        Err(ForceReleaseError::Changed { .. }) => println!("not freed a second time: it has another holder"),
        other => println!("unexpected: {other:?}"),
    }
    guard.release().await?;
    for entry in lock.inspect_full().await?.audit.iter().filter(|entry| entry.fence == Some(lost)) {
        let holder = entry.holder.as_ref().map(ToString::to_string).unwrap_or_default();
        println!("audit: the hold of {holder} ended, {:?} by {}", entry.ended, entry.actor);
    }

    if store.starts_with("redis:") {
        foreign(&store, &operator).await?;
    }
    Ok(())
}

async fn inspect(lock: &Mutex) -> Result<()> {
    let status = lock.inspect().await?;
    match (&status.holder, status.remaining) {
        (Some(holder), Some(remaining)) => println!(
            "held by {holder}, for {} minutes, {} waiting; with a session: {}",
            remaining.as_secs().div_ceil(60),
            status.waiting,
            status.session.is_some()
        ),
        (None, None) if status.held => println!("held by a client of another library, without an expiry"),
        _ => println!("held: {}", status.held),
    }
    Ok(())
}

/// A client of another library has set the key without an expiry, and has crashed: the lock stays taken for ever.
async fn foreign(store: &str, operator: &Client) -> Result<()> {
    let (key, lock) = ("example/foreign", operator.mutex("example/foreign")?);
    let mut server = redis::Client::open(store)?.get_multiplexed_async_connection().await?;
    redis::cmd("SET").arg(key).arg("a value of another library").exec_async(&mut server).await?;
    inspect(&lock).await?;
    // An acquire gives the key an expiry; the holder may still work, so this is long in practice.
    let guard = lock.expire_foreign(Duration::from_millis(200)).acquire_timeout(MAX_WAIT).await?;
    println!("the key has got an expiry, which is over: the lock is held by this client");
    guard.release().await?;
    Ok(())
}
