//! A lock that its owner acquires again: functions that acquire it may call one another.
//!
//!     cargo run --example reentrant
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example reentrant

use leasehold::{Attempt, Client, Owner, ReentrantMutex, Released};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = Client::connect(&store).await?;
    let account = locks.reentrant_mutex("example/reentrant/account/7")?;

    // An owner stands for one piece of work: everything in its scope acquires for it.
    locks.new_owner().scope(transfer(&account)).await?;
    locks.new_owner().scope(forks(&account)).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Acquires the account's lock, and calls a function that acquires it too. With a `Mutex` it would wait for
/// itself.
async fn transfer(account: &ReentrantMutex) -> Result<()> {
    let guard = account.acquire_timeout(MAX_WAIT).await?;
    withdraw(account, 3).await?;

    // Another owner finds the lock taken, and waits. A spawned task leaves the scope, and so has another
    // owner.
    let (contender, other) = (account.clone(), account.clone());
    let tried = tokio::spawn(async move { contender.try_acquire().await });
    if let Attempt::Taken(contention) = tried.await?? {
        println!("another owner does not get in: {contention}");
    }
    let other = tokio::spawn(async move { other.acquire_timeout(MAX_WAIT).await });

    assert_eq!(guard.release().await?, Released::NoLongerHeld);
    println!("transferred: the account is released for good");
    let guard = other.await??;
    println!("another owner waited, and holds it now");
    guard.release().await?;
    Ok(())
}

/// Withdraws in `parts` nested steps. It can be called alone, by a caller that holds the lock, and by itself.
async fn withdraw(account: &ReentrantMutex, parts: u32) -> Result<()> {
    let guard = account.acquire_timeout(MAX_WAIT).await?;
    if parts > 1 {
        Box::pin(withdraw(account, parts - 1)).await?;
    }
    match guard.release().await? {
        Released::StillHeld { count } => println!("withdrawn: the account is still held {count} times"),
        Released::NoLongerHeld => println!("withdrawn: the account is free again"),
    }
    Ok(())
}

/// Two tasks of one owner do **not** exclude each other. Where they must, use a `Mutex` between them.
async fn forks(account: &ReentrantMutex) -> Result<()> {
    let inside = Arc::new(Barrier::new(2));
    let fork = || async {
        let (account, inside) = (account.clone(), inside.clone());
        // `tokio::spawn` would leave the owner behind.
        let task = Owner::spawn(async move {
            let guard = account.acquire_timeout(MAX_WAIT).await?;
            inside.wait().await; // continues once both are here, each with a hold of the account
            Ok::<_, Box<dyn Error + Send + Sync>>(guard.release().await?)
        });
        task.await?
    };
    let (one, two) = tokio::try_join!(fork(), fork())?;
    println!("two forks were inside at the same time; their releases said {one:?} and {two:?}");
    Ok(())
}
