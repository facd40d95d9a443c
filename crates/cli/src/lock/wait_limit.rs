//! How long to wait for a lock.

use crate::duration;
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct WaitLimitArgs {
    /// Maximum time to wait for the lock; without it, wait for ever
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// Do not wait: fail at once if the lock is held
    #[arg(long = "try", conflicts_with = "wait")]
    try_once: bool,
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitLimit {
    /// Not at all: the lock is requested once, without a queue entry.
    Try,
    AtMost(Duration),
    Forever,
}

impl WaitLimitArgs {
    pub(crate) fn limit(&self) -> WaitLimit {
        match (self.try_once, self.wait) {
            (true, _) | (false, Some(Duration::ZERO)) => WaitLimit::Try,
            (false, Some(limit)) => WaitLimit::AtMost(limit),
            (false, None) => WaitLimit::Forever,
        }
    }
}
