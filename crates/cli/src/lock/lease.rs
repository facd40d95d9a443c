//! The lease that the user gives.

use anyhow::Context;
use leasehold::Lease;
use std::time::Duration;

/// A lease, and the option that gives it: an error has to name that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivenLease {
    pub(crate) option: &'static str,
    pub(crate) lease: Duration,
}

impl GivenLease {
    pub(crate) const fn new(option: &'static str, lease: Duration) -> Self {
        Self { option, lease }
    }

    /// Fails if the store could not keep a hold for that long.
    pub(crate) fn check(self) -> anyhow::Result<()> {
        Lease::from(self.lease).check().with_context(|| format!("invalid {}", self.option))?;
        Ok(())
    }
}

/// Fails if the store could not keep a hold for the lease of `--lease`.
pub(crate) fn check(lease: Duration) -> anyhow::Result<()> {
    GivenLease::new("--lease", lease).check()
}
