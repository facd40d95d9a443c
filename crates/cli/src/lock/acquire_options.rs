//! How a lock is acquired, whatever its kind.

use crate::lock::wait_limit::WaitLimit;
use crate::output::error_map::acquire_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::error::AcquireError;
use leasehold::{Attempt, Deadlock};
use std::time::Duration;

/// How a lock is acquired.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireOptions {
    pub(crate) wait: WaitLimit,
    /// The cap of the hold, if it has one.
    pub(crate) max_hold: Option<Duration>,
    /// For how long the lock stays taken after a loss.
    pub(crate) lock_delay: Option<Duration>,
    /// For how long other waiters go first.
    pub(crate) low_priority_for: Option<Duration>,
    /// What a wait does that is part of a cycle of waits.
    pub(crate) deadlock: Deadlock,
    /// The expiry that a key of another library without one gets.
    pub(crate) adopt: Option<Duration>,
    /// The exit status if another client holds the lock.
    pub(crate) conflict: Exit,
}

impl AcquireOptions {
    /// The guard of a single attempt.
    pub(crate) fn granted<G>(&self, attempt: Result<Attempt<G>, AcquireError>) -> Result<G, Failure> {
        match attempt {
            Ok(Attempt::Granted(guard)) => Ok(guard),
            Ok(Attempt::Taken(contention)) => Err(Failure::taken(self.conflict, anyhow!("{contention}"))),
            Err(error) => Err(acquire_failure(error, self.conflict)),
        }
    }

    /// The guard after a wait.
    pub(crate) fn acquired<G>(&self, acquired: Result<G, AcquireError>) -> Result<G, Failure> {
        acquired.map_err(|error| acquire_failure(error, self.conflict))
    }
}
