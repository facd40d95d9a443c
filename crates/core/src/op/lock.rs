//! The identity of a lock: its kind and its name.

use crate::{Kind, LockName};
use std::fmt;

/// One lock: its name and its kind.
///
/// ```
/// use leasehold_core::{Kind, Lock};
///
/// let lock = Lock::mutex("orders/42".parse()?);
/// assert_eq!((lock.kind, lock.to_string().as_str()), (Kind::Mutex, "`orders/42`"));
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lock {
    /// The kind of the lock.
    pub kind: Kind,
    /// The name of the lock.
    pub name: LockName,
}

impl Lock {
    /// The Mutex of that name.
    pub const fn mutex(name: LockName) -> Self {
        Self { kind: Kind::Mutex, name }
    }

    /// The ReentrantMutex of that name.
    pub const fn reentrant(name: LockName) -> Self {
        Self { kind: Kind::Reentrant, name }
    }

    /// The Election of that name.
    pub const fn election(name: LockName) -> Self {
        Self { kind: Kind::Election, name }
    }

    /// The Semaphore of that name.
    pub const fn semaphore(name: LockName) -> Self {
        Self { kind: Kind::Semaphore, name }
    }

    /// The RwLock of that name.
    pub const fn rwlock(name: LockName) -> Self {
        Self { kind: Kind::RwLock, name }
    }

    /// The Latch of that name.
    pub const fn latch(name: LockName) -> Self {
        Self { kind: Kind::Latch, name }
    }

    /// The Barrier of that name.
    pub const fn barrier(name: LockName) -> Self {
        Self { kind: Kind::Barrier, name }
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name)
    }
}
