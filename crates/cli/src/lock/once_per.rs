//! A command that runs at most once in a period.

use crate::duration;
use crate::lock::acquire_options::AcquireOptions;
use crate::output::failure::Failure;
use clap::Args;
use leasehold::{OncePer, PeriodGuard};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct OncePerArgs {
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help = ONCE_HELP, long_help = ONCE_LONG)]
    #[arg(conflicts_with_all = ["wait", "try_once", "lease", "max_hold", "session", "no_session", "reentrant", "owner", "shared", "exclusive", "permits", "take"])]
    pub(crate) once_per: Option<Duration>,

    /// Maximum run time of the command, if that is longer than the period of --once-per
    ///
    /// The command is ended --kill-grace before this time is over. If this machine dies meanwhile, no other machine
    /// runs the command for as long.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "once_per")]
    pub(crate) at_most: Option<Duration>,
}

const ONCE_HELP: &str =
    "Run the command at most once in this period, over all machines; otherwise end with 0 at once";

const ONCE_LONG: &str = "\
Run the command at most once in this period, over all machines; otherwise end with 0 at once

The period counts from the start of a command. Whatever happens to the command or to this machine, no other command \
starts before the period is over. One exception: a fail-over to a replica that has not copied the start yet, or a restart \
that loses it, allows another one; `?replicas=1` in the URL waits for a replica first. Needs no session, and takes one NAME.";

impl OncePerArgs {
    /// The lease of the hold, which covers the whole period from the start; `None` without --once-per.
    pub(crate) fn lease(&self) -> Option<Duration> {
        let period = self.once_per?;
        Some(self.at_most.unwrap_or(period).max(period))
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
