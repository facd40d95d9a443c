//! `leasehold verify`: a workload with faults on a store of the user's, whose history a checker judges.
//!
//! Owns the coordinator (this process), its workers (processes of the same program), and what is between them and the store (a
//! relay that injects faults). The checker is `leasehold-history`, which knows nothing of this program.
//!
//! 1. Everything is in a space of its own, under a random prefix or in a file beside the user's, and is removed at the end,
//!    however the run ends, unless this process is killed.
//! 2. No worker outlives the coordinator: each has the kernel kill it with its parent, and ends when its standard input does.
//! 3. A line that a worker has written is in the history, also if the worker is killed after that.
//! 4. All times are of the monotonic clock of the machine.

pub(crate) mod budget;
pub(crate) mod clock;
pub(crate) mod coordinator;
pub(crate) mod counters;
pub(crate) mod faults;
pub(crate) mod leftovers;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod protocol;
pub(crate) mod recorder;
pub(crate) mod relay;
pub(crate) mod report;
pub(crate) mod space;
pub(crate) mod stall;
pub(crate) mod worker;
