//! A command's hold of a lock that can be shared: a read lock, the write lock, or permits.

use crate::args::{RunArgs, ShareArgs};
use crate::job::held::{Held, SharedGuard};
use crate::job::owner::Who;
use crate::output::error_map::acquire_failure;
use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::{AcquireError, Attempt, Client, LockError, LockName, RwLock, Semaphore};

/// What a command acquires of a shared lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// A read lock.
    Reader,
    /// The write lock.
    Writer,
    /// `count` of `of` permits.
    Permits { count: u32, of: u32 },
}

impl Share {
    /// What the arguments request; `None` for a lock that is not shared.
    pub(crate) fn of(args: &ShareArgs, names: usize) -> Result<Option<Self>, Failure> {
        let share = match (args.shared, args.exclusive, args.permits) {
            (true, _, _) => Self::Reader,
            (_, true, _) => Self::Writer,
            (_, _, Some(of)) => Self::Permits { count: args.take.unwrap_or(1), of },
            _ => return Ok(None),
        };
        if names > 1 {
            let error = anyhow!(
                "--shared, --exclusive and --permits take one lock, and {names} are named: nest them, everywhere in the \
                 same order"
            );
            return Err(Failure::usage(error));
        }
        match share {
            Self::Permits { count, of } if count > of => {
                let error = anyhow!("--take {count} is more than --permits {of}");
                Err(Failure::usage(error))
            }
            share => Ok(Some(share)),
        }
    }
}

/// Acquires the requested share of a lock.
pub(crate) async fn acquire(
    client: &Client,
    name: &LockName,
    share: Share,
    who: &Who,
    args: &RunArgs,
) -> Result<Held, Failure> {
    let unusable = |error: LockError| Failure::usage(error);
    // The command of a plain run must not receive the owner.
    let owner = match who {
        Who::None => None,
        Who::Fresh => Some(client.owner()),
        Who::Named(owner) | Who::Inherited(owner) => Some(owner.clone()),
    };
    let hold = match share {
        Share::Permits { count, of } => {
            let semaphore = client.semaphore(name.clone(), of).map_err(unusable)?;
            permits(semaphore, count, args).await?
        }
        Share::Reader | Share::Writer => {
            let lock = client.rwlock(name.clone()).map_err(unusable)?;
            let lock = owner.iter().fold(lock, RwLock::owned_by);
            read_or_write(lock, share, args).await?
        }
    };
    Ok(Held::Shared { hold, owner })
}

async fn permits(semaphore: Semaphore, count: u32, args: &RunArgs) -> Result<SharedGuard, Failure> {
    let semaphore = args.max_hold.into_iter().fold(semaphore, Semaphore::max_hold);
    let semaphore = args.wait.into_iter().fold(semaphore, Semaphore::wait);
    let had = if args.tries_once() {
        tried(semaphore.try_acquire_many(count).await, args)?
    } else {
        waited(semaphore.acquire_many(count).await, args)?
    };
    Ok(SharedGuard::Permits(had))
}

async fn read_or_write(lock: RwLock, share: Share, args: &RunArgs) -> Result<SharedGuard, Failure> {
    let lock = args.max_hold.into_iter().fold(lock, RwLock::max_hold);
    let lock = args.wait.into_iter().fold(lock, RwLock::wait);
    Ok(match (share, args.tries_once()) {
        (Share::Writer, true) => SharedGuard::Write(Box::new(tried(lock.try_write().await, args)?)),
        (Share::Writer, false) => SharedGuard::Write(Box::new(waited(lock.write().await, args)?)),
        (_, true) => SharedGuard::Read(tried(lock.try_read().await, args)?),
        (_, false) => SharedGuard::Read(waited(lock.read().await, args)?),
    })
}

fn tried<H>(tried: Result<Attempt<H>, AcquireError>, args: &RunArgs) -> Result<H, Failure> {
    let conflict = args.conflict();
    match tried {
        Ok(Attempt::Granted(held)) => Ok(held),
        Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
        Err(error) => Err(acquire_failure(error, conflict)),
    }
}

fn waited<H>(waited: Result<H, AcquireError>, args: &RunArgs) -> Result<H, Failure> {
    waited.map_err(|error| acquire_failure(error, args.conflict()))
}
