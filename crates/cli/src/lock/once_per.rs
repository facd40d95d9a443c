//! A command that runs at most once in a period.

use crate::duration;
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::lease::GivenLease;
use crate::output::failure::Failure;
use clap::Args;
use leasehold::{OncePer, PeriodGuard};
use std::time::Duration;

#[derive(Args)]
#[command(next_help_heading = "Once per period")]
pub(crate) struct OncePerArgs {
    /// Run once in this period, over all machines; the others end with 0 at once
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    #[arg(conflicts_with_all = ["wait", "try_once", "lease", "max_hold", "session", "no_session", "reentrant", "owner", "shared", "exclusive", "permits", "take", "resize"])]
    pub(crate) once_per: Option<Duration>,

    /// Maximum run time, if it is longer than the period
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "once_per")]
    pub(crate) at_most: Option<Duration>,
}

impl OncePerArgs {
    /// The lease of the hold, which covers the whole period from the start; `None` without --once-per.
    pub(crate) fn lease(&self) -> Option<GivenLease> {
        let period = self.once_per?;
        Some(match self.at_most {
            Some(at_most) if at_most > period => GivenLease::new("--at-most", at_most),
            _ => GivenLease::new("--once-per", period),
        })
    }
}

/// Starts a period, unless one has not ended yet.
pub(crate) async fn start(
    lock: OncePer,
    at_most: Option<Duration>,
    options: &AcquireOptions,
) -> Result<PeriodGuard, Failure> {
    let lock = at_most.into_iter().fold(lock, OncePer::max_duration);
    options.granted(lock.try_start().await)
}
