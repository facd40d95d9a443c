//! The lock that a command requests: its kind, by the options, and its acquisition.

use crate::lock::acquire_options::AcquireOptions;
use crate::lock::guard::AnyGuard;
use crate::lock::once_per::{self, OncePerArgs};
use crate::lock::other_kind;
use crate::lock::owner::{OwnerArgs, OwnerSource};
use crate::lock::shared::{self, SharedArgs, SharedMode};
use crate::lock::shared_guard::SharedGuard;
use crate::lock::wait_limit::WaitLimit;
use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::core::Kind;
use leasehold::error::LockError;
use leasehold::{
    Client, Guard, LockName, MultiAttempt, MultiGuard, MultiMutex, Mutex, Owner, ReentrantGuard,
    ReentrantMutex, RwLock,
};
use std::slice;
use std::time::Duration;

/// The lock that a command requests.
#[derive(Debug)]
pub(crate) enum LockRequest {
    Mutex(LockName),
    /// Several locks, together.
    Multi(Vec<LockName>),
    Reentrant(LockName, OwnerSource),
    /// A lock that can be shared. A read lock or write lock can belong to an owner.
    Shared(LockName, SharedMode, Option<OwnerSource>),
    /// At most one start in a period.
    OncePer {
        name: LockName,
        period: Duration,
        at_most: Option<Duration>,
    },
}

impl LockRequest {
    /// The lock that the options request. Fails if they do not fit together.
    pub(crate) fn from_args(
        names: Vec<LockName>,
        owner: &OwnerArgs,
        shared: &SharedArgs,
        once_per: &OncePerArgs,
    ) -> Result<Self, Failure> {
        let (owner, shared) = (owner.source()?, shared.mode()?);
        let [name] = &names[..] else {
            reject_several(names.len(), owner.as_ref(), shared.as_ref(), once_per)?;
            return Ok(Self::Multi(names));
        };
        let name = name.clone();
        Ok(match (once_per.once_per, shared, owner) {
            (Some(period), _, _) => Self::OncePer { name, period, at_most: once_per.at_most },
            (None, Some(mode), owner) => Self::Shared(name, mode, owner),
            (None, None, Some(owner)) => Self::Reentrant(name, owner),
            (None, None, None) => Self::Mutex(name),
        })
    }

    /// The names, as they were given.
    pub(crate) fn names(&self) -> &[LockName] {
        match self {
            Self::Multi(names) => names,
            Self::Mutex(name)
            | Self::Reentrant(name, _)
            | Self::Shared(name, _, _)
            | Self::OncePer { name, .. } => slice::from_ref(name),
        }
    }

    /// The kind of lock.
    pub(crate) const fn kind(&self) -> Kind {
        match self {
            Self::Mutex(_) | Self::Multi(_) | Self::OncePer { .. } => Kind::Mutex,
            Self::Reentrant(..) => Kind::Reentrant,
            Self::Shared(_, SharedMode::Read | SharedMode::Write, _) => Kind::RwLock,
            Self::Shared(_, SharedMode::Permits { .. }, _) => Kind::Semaphore,
        }
    }

    /// Whether the hold can depend on the session of this process.
    pub(crate) fn can_use_session(&self) -> bool {
        match self {
            Self::Mutex(_) | Self::Multi(_) => true,
            Self::Reentrant(_, owner) => !matches!(owner, OwnerSource::Inherited(_)),
            Self::Shared(_, _, owner) => !matches!(owner, Some(OwnerSource::Inherited(_))),
            Self::OncePer { .. } => false,
        }
    }

    /// Acquires the lock.
    pub(crate) async fn acquire(
        &self,
        client: &Client,
        options: &AcquireOptions,
    ) -> Result<AnyGuard, Failure> {
        match self.try_to_acquire(client, options).await {
            Ok(guard) => Ok(guard),
            Err(failure) => Err(other_kind::explain(failure, client, self.names(), self.kind()).await),
        }
    }

    async fn try_to_acquire(&self, client: &Client, options: &AcquireOptions) -> Result<AnyGuard, Failure> {
        match self {
            Self::Mutex(name) => {
                let lock = usable(client.mutex(name.clone()))?;
                acquire_mutex(lock, options).await.map(AnyGuard::Mutex)
            }
            Self::Multi(names) => {
                let locks = usable(client.multi_mutex(names.iter().cloned()))?;
                acquire_multi(locks, options).await.map(AnyGuard::Multi)
            }
            Self::Reentrant(name, owner) => {
                let lock = usable(client.reentrant_mutex(name.clone()))?.owned_by(&owner.owner(client));
                acquire_reentrant(lock, options).await.map(AnyGuard::Reentrant)
            }
            Self::Shared(name, SharedMode::Permits { count, total, resize, key: Some(key) }, _) => {
                let permits = (*count, *total, *resize);
                let acquire = shared::acquire_permits_of_key(client, name, permits, key, options);
                Box::pin(acquire).await.map(AnyGuard::Keyed)
            }
            Self::Shared(name, mode, owner) => {
                let owner = owner.as_ref().map(|owner| owner.owner(client));
                let guard = acquire_shared(client, name, mode, owner.as_ref(), options).await?;
                Ok(AnyGuard::Shared { guard, owner })
            }
            Self::OncePer { name, period, at_most } => {
                let lock = usable(client.once_per(name.clone(), *period))?;
                once_per::start(lock, *at_most, options).await.map(AnyGuard::OncePer)
            }
        }
    }
}

/// Fails if an option that is for one lock is given with several names.
fn reject_several(
    names: usize,
    owner: Option<&OwnerSource>,
    shared: Option<&SharedMode>,
    once_per: &OncePerArgs,
) -> Result<(), Failure> {
    if owner.is_some() {
        return Err(Failure::usage(anyhow!(
            "--reentrant and --owner take one lock, and {names} are named: several can be held together only without \
             them; or nest them, everywhere in the same order: `leasehold run --reentrant a -- leasehold run \
             --reentrant b -- …`"
        )));
    }
    if shared.is_some() {
        return Err(Failure::usage(anyhow!(
            "--shared, --exclusive and --permits take one lock, and {names} are named: nest them, everywhere in the \
             same order"
        )));
    }
    if once_per.once_per.is_some() {
        return Err(Failure::usage(anyhow!("--once-per takes one lock, and {names} are named")));
    }
    Ok(())
}

fn usable<L>(lock: Result<L, LockError>) -> Result<L, Failure> {
    lock.map_err(Failure::usage)
}

async fn acquire_mutex(lock: Mutex, options: &AcquireOptions) -> Result<Guard, Failure> {
    let lock = options.max_hold.into_iter().fold(lock, Mutex::max_hold);
    let lock = options.lock_delay.into_iter().fold(lock, Mutex::lock_delay);
    let lock = options.low_priority_for.into_iter().fold(lock, Mutex::low_priority_for);
    let lock = lock.deadlock(options.deadlock);
    let lock = options.adopt.into_iter().fold(lock, Mutex::expire_foreign);
    match options.wait {
        WaitLimit::Try => options.granted(lock.try_acquire().await),
        WaitLimit::AtMost(limit) => options.acquired(lock.acquire_timeout(limit).await),
        WaitLimit::Forever => options.acquired(lock.acquire().await),
    }
}

async fn acquire_reentrant(
    lock: ReentrantMutex,
    options: &AcquireOptions,
) -> Result<ReentrantGuard, Failure> {
    let lock = options.max_hold.into_iter().fold(lock, ReentrantMutex::max_hold);
    let lock = options.lock_delay.into_iter().fold(lock, ReentrantMutex::lock_delay);
    let lock = options.low_priority_for.into_iter().fold(lock, ReentrantMutex::low_priority_for);
    let lock = lock.deadlock(options.deadlock);
    let lock = options.adopt.into_iter().fold(lock, ReentrantMutex::expire_foreign);
    match options.wait {
        WaitLimit::Try => options.granted(lock.try_acquire().await),
        WaitLimit::AtMost(limit) => options.acquired(lock.acquire_timeout(limit).await),
        WaitLimit::Forever => options.acquired(lock.acquire().await),
    }
}

async fn acquire_shared(
    client: &Client,
    name: &LockName,
    mode: &SharedMode,
    owner: Option<&Owner>,
    options: &AcquireOptions,
) -> Result<SharedGuard, Failure> {
    let rwlock = || {
        let lock = usable(client.rwlock(name.clone()))?;
        Ok(owner.into_iter().fold(lock, RwLock::owned_by))
    };
    match mode {
        SharedMode::Read => shared::acquire_read(rwlock()?, options).await,
        SharedMode::Write => shared::acquire_write(rwlock()?, options).await,
        SharedMode::Permits { count, total, resize, key: _ } => {
            let semaphore = usable(client.semaphore(name.clone(), *total))?;
            let semaphore = if *resize { semaphore.resize_on_mismatch() } else { semaphore };
            shared::acquire_permits(semaphore, *count, options).await
        }
    }
}

async fn acquire_multi(locks: MultiMutex, options: &AcquireOptions) -> Result<MultiGuard, Failure> {
    let locks = options.max_hold.into_iter().fold(locks, MultiMutex::max_hold);
    let locks = locks.deadlock(options.deadlock);
    match options.wait {
        WaitLimit::Try => match options.acquired(locks.try_acquire().await)? {
            MultiAttempt::Granted(guard) => Ok(guard),
            MultiAttempt::Taken { lock, contention } => {
                Err(Failure::taken(options.conflict, anyhow!("`{lock}` is {contention}")))
            }
        },
        WaitLimit::AtMost(limit) => options.acquired(locks.acquire_timeout(limit).await),
        WaitLimit::Forever => options.acquired(locks.acquire().await),
    }
}
