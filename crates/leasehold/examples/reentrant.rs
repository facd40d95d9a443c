//! A lock that its owner enters again: functions that take it may call one another.
//!
//!     cargo run --example reentrant
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example reentrant

use leasehold::{Attempt, Client, Owner, ReentrantMutex, Released};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let locks = Client::connect(&store).await?;
    let account = locks.reentrant_mutex("example/reentrant/account/7")?;

    // An owner stands for one piece of work, and all that is done in its scope is done for it.
    locks.owner().scope(transfer(&account)).await?;
    locks.owner().scope(siblings(&account)).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Takes the account, and calls a function that takes it too. With a `Mutex` it would wait for itself.
async fn transfer(account: &ReentrantMutex) -> Result<()> {
    let guard = account.acquire_timeout(PATIENCE).await?;
    withdraw(account, 3).await?;

    // Another owner finds it taken, and waits. A task that is spawned leaves the scope, and so is somebody else.
    let (somebody, other) = (account.clone(), account.clone());
    let tried = tokio::spawn(async move { somebody.try_acquire().await });
    if let Attempt::Taken(contention) = tried.await?? {
        println!("another owner does not get in: {contention}");
    }
    let other = tokio::spawn(async move { other.acquire_timeout(PATIENCE).await });

    assert_eq!(guard.release().await?, Released::Free);
    println!("transferred: the account is released for good");
    let guard = other.await??;
    println!("another owner waited, and has it now");
    guard.release().await?;
    Ok(())
}

/// In as many parts as are asked for. It can be called by itself, by who has the account already, and by itself again.
async fn withdraw(account: &ReentrantMutex, parts: u32) -> Result<()> {
    let guard = account.acquire_timeout(PATIENCE).await?;
    if parts > 1 {
        Box::pin(withdraw(account, parts - 1)).await?;
    }
    match guard.release().await? {
        Released::StillHeld { count } => println!("withdrawn: the account is still held {count} times"),
        Released::Free => println!("withdrawn, for nobody who had it before"),
    }
    Ok(())
}

/// Two tasks of one owner do **not** exclude each other. Where they must not meet, a `Mutex` goes between them.
async fn siblings(account: &ReentrantMutex) -> Result<()> {
    let inside = Arc::new(Barrier::new(2));
    let sibling = || async {
        let (account, inside) = (account.clone(), inside.clone());
        // `tokio::spawn` would leave the owner behind.
        let task = Owner::spawn(async move {
            let guard = account.acquire_timeout(PATIENCE).await?;
            inside.wait().await; // goes on when both are here, each with the account in hand
            Ok::<_, Box<dyn Error + Send + Sync>>(guard.release().await?)
        });
        task.await?
    };
    let (one, two) = tokio::try_join!(sibling(), sibling())?;
    println!("two siblings were inside at the same time; their releases said {one:?} and {two:?}");
    Ok(())
}
