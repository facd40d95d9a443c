//! The checks of a quorum: what must hold, derived from its events alone.
//!
//! A hold is *outvoted* if nodes have forgotten it, so that less than a majority keeps it for as long as its client may rely
//! on it. Nothing is promised of such a hold but that its client learns of it.
//!
//! | Check | Property |
//! |---|---|
//! | [`Exclusion`] | guards of different owners are not valid at the same time, unless one of them is outvoted |
//! | [`Votes`] | once the nodes have been reachable for as long as a renewal takes, a renewed hold is on all nodes, and its guard says so; an outvoted one is lost |
//! | [`Tokens`] | a majority has stored a token before a guard shows it; tokens grow from holder to holder, unless less than a majority remembers the last one and a clock is behind it |
//! | [`Losses`] | a guard is lost only by its lease, by faults that keep it from being renewed, or because nodes forgot it |
//! | [`Leftovers`] | what was not granted, or was released while there were no faults, is on no node soon; at the end nothing is held |
//! | [`Progress`] | once the faults have ended, every waiter is served, and all tasks end in time |

mod exclusion;
mod leftovers;
mod losses;
mod progress;
mod tokens;
mod votes;

use crate::checks::CheckResult;
use crate::quorum::event::Event;
use crate::world::time::Instant;
use exclusion::Exclusion;
use leftovers::Leftovers;
use losses::Losses;
use progress::Progress;
use std::time::Duration;
use tokens::Tokens;
use votes::Votes;

/// A property that must hold.
pub(crate) trait Check {
    /// The name of the check.
    fn name(&self) -> &'static str;

    /// Called for each event.
    fn observe(&mut self, at: Instant, event: &Event<'_>) -> CheckResult;
}

/// The time limits of a run, which the checks depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long a call of the engine takes at most.
    pub(crate) call: Duration,
    /// How long all tasks need at most once the faults have ended.
    pub(crate) end: Duration,
}

/// All checks.
pub(crate) fn all(limits: Limits) -> Vec<Box<dyn Check + Send>> {
    vec![
        Box::new(Exclusion::default()),
        Box::new(Votes::new(limits)),
        Box::new(Tokens::default()),
        Box::new(Losses::new(limits)),
        Box::new(Leftovers::default()),
        Box::new(Progress::new(limits)),
    ]
}
