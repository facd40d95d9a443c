//! Another prefix for all locks, without two holders on the way: between the old release and the new one, a release
//! that holds each lock under both. [The page][page] has the steps.
//!
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run -p leasehold --example change_a_prefix
//!
//! [page]: ../../../docs/how-to/change-a-prefix.md

use leasehold::{Client, Guard};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LIMIT: Duration = Duration::from_secs(30);

/// The clients of one process, for both prefixes.
#[derive(Clone)]
struct Locks {
    old: Client,
    new: Client,
}

/// What is deployed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Release {
    Old,
    Both,
    New,
}

/// Acquires the lock under both prefixes: the old one first, in every process.
async fn acquire_both(locks: &Locks, name: &str) -> Result<(Guard, Guard)> {
    let old = locks.old.mutex(name)?.acquire_timeout(LIMIT).await?;
    let new = locks.new.mutex(name)?.acquire_timeout(LIMIT).await?;
    Ok((old, new))
}

/// Releases it, in the other order.
async fn release_both((old, new): (Guard, Guard)) -> Result<()> {
    new.release().await?;
    old.release().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    // Unique, so that the example can be run again at once.
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
    let connect = async || {
        Ok::<_, Box<dyn Error + Send + Sync>>(Locks {
            old: Client::builder(&store).prefix(format!("old-{run}:")).connect().await?,
            new: Client::builder(&store).prefix(format!("new-{run}:")).connect().await?,
        })
    };

    // Two instances, which are deployed one after the other.
    let (first, second) = (connect().await?, connect().await?);
    for releases in
        [[Release::Old, Release::Both], [Release::Both, Release::Both], [Release::Both, Release::New]]
    {
        let most = most_at_once(&first, &second, releases).await?;
        println!("{releases:?}: at most {most} at once");
    }
    println!("{:?}: both hold it: {}", [Release::Old, Release::New], hold_both(&first, &second).await?);

    // What is written with a token of the old prefix is written on with tokens of the new one.
    let old = first.old.mutex("job")?.acquire().await?;
    let token = old.fencing_token();
    old.release().await?;
    let new = second.new.mutex("job")?.acquire().await?;
    println!("the token under the new prefix is greater: {}", new.fencing_token() > token);
    new.release().await?;
    Ok(())
}

/// Both instances acquire the lock some times. Returns how many held it at once.
async fn most_at_once(first: &Locks, second: &Locks, releases: [Release; 2]) -> Result<u32> {
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut instances = tokio::task::JoinSet::new();
    for (locks, release) in [first, second].into_iter().zip(releases) {
        let (locks, inside, most) = (locks.clone(), inside.clone(), most.clone());
        instances.spawn(async move {
            for _ in 0..20 {
                let held = acquire(&locks, release).await?;
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                held.release().await?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    for done in instances.join_all().await {
        done?;
    }
    Ok(most.load(Ordering::SeqCst))
}

/// Whether the instance without the new prefix and the one without the old hold the lock at once.
async fn hold_both(first: &Locks, second: &Locks) -> Result<bool> {
    let old = acquire(first, Release::Old).await?;
    let new = second.new.mutex("job")?.try_acquire().await?.granted();
    let both = new.is_some();
    if let Some(new) = new {
        new.release().await?;
    }
    old.release().await?;
    Ok(both)
}

enum Held {
    One(Guard),
    Both(Guard, Guard),
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Self::One(guard) => Ok(guard.release().await?),
            Self::Both(old, new) => release_both((old, new)).await,
        }
    }
}

async fn acquire(locks: &Locks, release: Release) -> Result<Held> {
    Ok(match release {
        Release::Old => Held::One(locks.old.mutex("job")?.acquire_timeout(LIMIT).await?),
        Release::New => Held::One(locks.new.mutex("job")?.acquire_timeout(LIMIT).await?),
        Release::Both => {
            let (old, new) = acquire_both(locks, "job").await?;
            Held::Both(old, new)
        }
    })
}
