//! The guard of a lock that can be shared.

use leasehold::error::ReleaseError;
use leasehold::{Guard, Permit, ReadGuard, WriteGuard};
use std::ops::Deref;

/// A read lock, the write lock, or permits.
#[derive(Debug)]
pub(crate) enum SharedGuard {
    Read(ReadGuard),
    Write(Box<WriteGuard>),
    Permits(Permit),
}

impl SharedGuard {
    /// Its mode, as a word for programs. These words are stable.
    pub(crate) const fn mode(&self) -> &'static str {
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

impl Deref for SharedGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Read(guard) => guard,
            Self::Write(guard) => guard,
            Self::Permits(permit) => permit,
        }
    }
}
