//! A lock that several commands can hold: a read lock, the write lock, or permits.

use crate::lock::acquire_options::AcquireOptions;
use crate::lock::shared_guard::SharedGuard;
use crate::lock::wait_limit::WaitLimit;
use crate::output::failure::Failure;
use anyhow::anyhow;
use clap::Args;
use leasehold::error::{AcquireError, Refused};
use leasehold::{Client, KeyedPermit, KeyedSemaphore, LockName, MultiAttempt, RwLock, Semaphore};

#[derive(Args)]
#[command(next_help_heading = "Lock")]
pub(crate) struct SharedArgs {
    /// Read lock: together with other --shared holders
    #[arg(long, conflicts_with_all = ["exclusive", "permits"])]
    shared: bool,

    /// Write lock: alone, also without --shared ones
    #[arg(long, conflicts_with = "permits")]
    exclusive: bool,

    /// One of N permits: at most N commands at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(conflicts_with_all = ["reentrant", "owner"])]
    permits: Option<u32>,

    /// Take M of the permits, all at once [default: 1]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..), requires = "permits")]
    take: Option<u32>,

    /// Change N to this one where others use another
    #[arg(long, requires = "permits")]
    resize: bool,

    /// Take them for this tenant or other key, with --per-key
    #[arg(long, value_name = "KEY", requires_all = ["permits", "per_key"])]
    key: Option<String>,

    /// At most M of the N permits for the same --key
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(requires_all = ["permits", "key"])]
    per_key: Option<u32>,
}

/// A limit of permits for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyLimit {
    key: String,
    /// How many permits the key may have.
    permits: u32,
}

/// What a command acquires of a shared lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SharedMode {
    Read,
    Write,
    /// `count` of `total` permits.
    Permits {
        count: u32,
        total: u32,
        /// Set if this total replaces that of others.
        resize: bool,
        /// Set if the permits are those of a key.
        key: Option<KeyLimit>,
    },
}

impl SharedArgs {
    /// What the options request; `None` for a lock that is not shared.
    pub(crate) fn mode(&self) -> Result<Option<SharedMode>, Failure> {
        Ok(match (self.shared, self.exclusive, self.permits) {
            (true, _, _) => Some(SharedMode::Read),
            (_, true, _) => Some(SharedMode::Write),
            (_, _, Some(total)) => {
                let count = self.take.unwrap_or(1);
                if count > total {
                    return Err(Failure::usage(anyhow!("--take {count} is more than --permits {total}")));
                }
                Some(SharedMode::Permits {
                    count,
                    total,
                    resize: self.resize,
                    key: self.key_limit(total, count)?,
                })
            }
            _ => None,
        })
    }
}

impl SharedArgs {
    /// The limit for the key, if there is one. Each of the two options requires the other.
    fn key_limit(&self, total: u32, count: u32) -> Result<Option<KeyLimit>, Failure> {
        let (Some(key), Some(permits)) = (self.key.clone(), self.per_key) else { return Ok(None) };
        if permits > total {
            return Err(Failure::usage(anyhow!("--per-key {permits} is more than --permits {total}")));
        }
        if count > permits {
            return Err(Failure::usage(anyhow!("--take {count} is more than --per-key {permits}")));
        }
        Ok(Some(KeyLimit { key, permits }))
    }
}

/// Acquires permits of a key.
pub(crate) async fn acquire_permits_of_key(
    client: &Client,
    name: &LockName,
    (count, total, resize): (u32, u32, bool),
    KeyLimit { key, permits }: &KeyLimit,
    options: &AcquireOptions,
) -> Result<KeyedPermit, Failure> {
    let semaphore = client.keyed_semaphore(name.clone(), total, *permits).map_err(Failure::usage)?;
    let semaphore = if resize { semaphore.resize_on_mismatch() } else { semaphore };
    let semaphore = options.max_hold.into_iter().fold(semaphore, KeyedSemaphore::max_hold);
    let semaphore = semaphore.deadlock(options.deadlock);
    let acquired = match options.wait {
        WaitLimit::Try => match semaphore.try_acquire_many(key, count).await {
            Ok(MultiAttempt::Taken { lock, contention }) => {
                let of_key =
                    if lock == *semaphore.name() { "" } else { "all permits of this key are taken: " };
                return Err(Failure::taken(options.conflict, anyhow!("{of_key}{contention}")));
            }
            Ok(MultiAttempt::Granted(permit)) => Ok(permit),
            Err(error) => Err(error),
        },
        WaitLimit::AtMost(limit) => semaphore.acquire_many_timeout(key, count, limit).await,
        WaitLimit::Forever => semaphore.acquire_many(key, count).await,
    };
    match acquired {
        Err(AcquireError::Impossible(refused @ Refused::Disagreement { requested, known, .. })) => {
            let option = match (requested == total, requested == *permits) {
                (false, _) => "--per-key",
                (true, false) => "--permits",
                (true, true) => "--permits or --per-key",
            };
            let advice = format!(
                "the name is used with {option} {known} now: use that, or --resize to make it {requested} for all"
            );
            let error = AcquireError::Impossible(refused);
            Err(Failure::usage(anyhow::Error::new(error).context(advice)))
        }
        acquired => options.acquired(acquired),
    }
}

/// Acquires permits.
pub(crate) async fn acquire_permits(
    semaphore: Semaphore,
    count: u32,
    options: &AcquireOptions,
) -> Result<SharedGuard, Failure> {
    let semaphore = options.max_hold.into_iter().fold(semaphore, Semaphore::max_hold);
    let semaphore = options.lock_delay.into_iter().fold(semaphore, Semaphore::lock_delay);
    let semaphore = options.low_priority_for.into_iter().fold(semaphore, Semaphore::low_priority_for);
    let semaphore = semaphore.deadlock(options.deadlock);
    let permit = match options.wait {
        WaitLimit::Try => options.granted(semaphore.try_acquire_many(count).await),
        WaitLimit::AtMost(limit) => options.acquired(semaphore.acquire_many_timeout(count, limit).await),
        WaitLimit::Forever => options.acquired(semaphore.acquire_many(count).await),
    };
    permit.map(SharedGuard::Permits)
}

/// Acquires a read lock.
pub(crate) async fn acquire_read(lock: RwLock, options: &AcquireOptions) -> Result<SharedGuard, Failure> {
    let lock = options.max_hold.into_iter().fold(lock, RwLock::max_hold);
    let lock = options.lock_delay.into_iter().fold(lock, RwLock::lock_delay);
    let lock = options.low_priority_for.into_iter().fold(lock, RwLock::low_priority_for);
    let lock = lock.deadlock(options.deadlock);
    let guard = match options.wait {
        WaitLimit::Try => options.granted(lock.try_read().await),
        WaitLimit::AtMost(limit) => options.acquired(lock.read_timeout(limit).await),
        WaitLimit::Forever => options.acquired(lock.read().await),
    };
    guard.map(SharedGuard::Read)
}

/// Acquires the write lock.
pub(crate) async fn acquire_write(lock: RwLock, options: &AcquireOptions) -> Result<SharedGuard, Failure> {
    let lock = options.max_hold.into_iter().fold(lock, RwLock::max_hold);
    let lock = options.lock_delay.into_iter().fold(lock, RwLock::lock_delay);
    let lock = options.low_priority_for.into_iter().fold(lock, RwLock::low_priority_for);
    let lock = lock.deadlock(options.deadlock);
    let guard = match options.wait {
        WaitLimit::Try => options.granted(lock.try_write().await),
        WaitLimit::AtMost(limit) => options.acquired(lock.write_timeout(limit).await),
        WaitLimit::Forever => options.acquired(lock.write().await),
    };
    guard.map(|guard| SharedGuard::Write(Box::new(guard)))
}
