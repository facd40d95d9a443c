//! A command's hold of a lock that can be shared: a read lock, the write lock, or permits.

use crate::args::{RunArgs, ShareArgs};
use crate::exit::{Exit, Failure};
use crate::held::Held;
use crate::owner::Who;
use crate::run::{not_acquired, tries_once};
use anyhow::anyhow;
use leasehold::{
    AcquireError, Attempt, Client, Guard, LockError, LockName, Permit, ReadGuard, ReleaseError, RwLock,
    Semaphore, WriteGuard,
};

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
            return Err(Failure::new(Exit::USAGE, error));
        }
        match share {
            Self::Permits { count, of } if count > of => {
                let error = anyhow!("--take {count} is more than --permits {of}");
                Err(Failure::new(Exit::USAGE, error))
            }
            share => Ok(Some(share)),
        }
    }
}

/// What a command holds.
#[derive(Debug)]
pub(crate) enum Part {
    Read(ReadGuard),
    Write(Box<WriteGuard>),
    Permits(Permit),
}

impl Part {
    /// The guard that all of them contain.
    pub(crate) fn guard(&self) -> &Guard {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
            Self::Permits(permit) => permit,
        }
    }

    /// Its mode, as a word for programs. These words are stable.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Write(_) => "write",
            Self::Permits(_) => "permits",
        }
    }

    /// The number of permits.
    pub(crate) fn permits(&self) -> Option<u32> {
        match self {
            Self::Permits(permit) => Some(permit.count()),
            Self::Read(_) | Self::Write(_) => None,
        }
    }

    pub(crate) async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Permits(permit) => permit.release().await,
        }
    }
}

/// Acquires the requested part of a lock.
pub(crate) async fn acquire(
    client: &Client,
    name: &LockName,
    share: Share,
    who: &Who,
    args: &RunArgs,
) -> Result<Held, Failure> {
    let unusable = |error: LockError| Failure::new(Exit::USAGE, error);
    // The command of a plain run must not receive the owner.
    let owner = match who {
        Who::None => None,
        Who::Fresh => Some(client.owner()),
        Who::Named(owner) | Who::Inherited(owner) => Some(owner.clone()),
    };
    let part = match share {
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
    Ok(Held::Part { part, owner })
}

async fn permits(semaphore: Semaphore, count: u32, args: &RunArgs) -> Result<Part, Failure> {
    let semaphore = args.max_hold.into_iter().fold(semaphore, Semaphore::max_hold);
    let semaphore = args.wait.into_iter().fold(semaphore, Semaphore::wait);
    let had = if tries_once(args) {
        tried(semaphore.try_acquire_many(count).await, args)?
    } else {
        waited(semaphore.acquire_many(count).await, args)?
    };
    Ok(Part::Permits(had))
}

async fn read_or_write(lock: RwLock, share: Share, args: &RunArgs) -> Result<Part, Failure> {
    let lock = args.max_hold.into_iter().fold(lock, RwLock::max_hold);
    let lock = args.wait.into_iter().fold(lock, RwLock::wait);
    Ok(match (share, tries_once(args)) {
        (Share::Writer, true) => Part::Write(Box::new(tried(lock.try_write().await, args)?)),
        (Share::Writer, false) => Part::Write(Box::new(waited(lock.write().await, args)?)),
        (_, true) => Part::Read(tried(lock.try_read().await, args)?),
        (_, false) => Part::Read(waited(lock.read().await, args)?),
    })
}

fn tried<H>(tried: Result<Attempt<H>, AcquireError>, args: &RunArgs) -> Result<H, Failure> {
    let conflict = args.conflict();
    match tried {
        Ok(Attempt::Granted(held)) => Ok(held),
        Ok(Attempt::Taken(who)) => Err(Failure::taken(conflict, anyhow!("{who}"))),
        Err(error) => Err(not_acquired(error, conflict)),
    }
}

fn waited<H>(waited: Result<H, AcquireError>, args: &RunArgs) -> Result<H, Failure> {
    waited.map_err(|error| not_acquired(error, args.conflict()))
}
