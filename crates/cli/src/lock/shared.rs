//! A lock that several commands can hold: a read lock, the write lock, or permits.

use crate::lock::acquire_options::AcquireOptions;
use crate::lock::shared_guard::SharedGuard;
use crate::lock::wait_limit::WaitLimit;
use crate::output::failure::Failure;
use anyhow::anyhow;
use clap::Args;
use leasehold::{RwLock, Semaphore};

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
}

/// What a command acquires of a shared lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedMode {
    Read,
    Write,
    /// `count` of `total` permits.
    Permits {
        count: u32,
        total: u32,
        /// Set if this total replaces that of others.
        resize: bool,
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
                Some(SharedMode::Permits { count, total, resize: self.resize })
            }
            _ => None,
        })
    }
}

/// Acquires permits.
pub(crate) async fn acquire_permits(
    semaphore: Semaphore,
    count: u32,
    options: &AcquireOptions,
) -> Result<SharedGuard, Failure> {
    let semaphore = options.max_hold.into_iter().fold(semaphore, Semaphore::max_hold);
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
    let guard = match options.wait {
        WaitLimit::Try => options.granted(lock.try_write().await),
        WaitLimit::AtMost(limit) => options.acquired(lock.write_timeout(limit).await),
        WaitLimit::Forever => options.acquired(lock.write().await),
    };
    guard.map(|guard| SharedGuard::Write(Box::new(guard)))
}
