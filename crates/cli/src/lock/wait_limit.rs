//! How long to wait for a lock.

use crate::duration;
use crate::store::{CALL_TIMEOUT, UNDO_TIMEOUT};
use clap::Args;
use std::time::Duration;

#[derive(Args)]
pub(crate) struct WaitLimitArgs {
    /// Longest wait for the lock [default: for ever]
    ///
    /// With it, a store that cannot be reached is tried again within that time. Without it, the program ends at once if
    /// it cannot reach the store at the start.
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
        if self.try_once { WaitLimit::Try } else { WaitLimit::new(self.wait) }
    }
}

impl WaitLimit {
    /// The limit, if there is one.
    pub(crate) const fn new(limit: Option<Duration>) -> Self {
        match limit {
            Some(Duration::ZERO) => Self::Try,
            Some(limit) => Self::AtMost(limit),
            None => Self::Forever,
        }
    }

    /// How long the program may take to undo its requests if it has not acquired the lock.
    pub(crate) const fn undo_timeout(self) -> Duration {
        match self {
            Self::AtMost(_) => UNDO_TIMEOUT,
            Self::Try | Self::Forever => CALL_TIMEOUT,
        }
    }
}
