//! The lease that the user gives.

use anyhow::Context;
use leasehold::Lease;
use std::time::Duration;

/// Fails if the store could not keep a hold for that long.
pub(crate) fn check(lease: Duration) -> anyhow::Result<()> {
    Lease::from(lease).check().context("invalid --lease")?;
    Ok(())
}
