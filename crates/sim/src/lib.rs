//! A simulated world, made to break locks in.
//!
//! The real engine runs in it, not a copy: clients are [`leasehold::Client`]s, whose clock, randomness, timers and
//! store come from here. Everything else is simulated on one thread in virtual time, in an order that a seed decides: a
//! server that is the model, a network that loses, delays, doubles and reorders, processes that stand still and die, a
//! server that restarts with and without its data or fails over to a replica that lags, clocks that drift and jump,
//! and futures that are dropped at any await.
//!
//! ```
//! use leasehold_sim::{Run, run};
//!
//! let outcome = run(&Run::new(7));
//! assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
//! assert_eq!(outcome.counts, run(&Run::new(7)).counts); // the same seed is the same run
//! ```
//!
//! What must hold is in [`checks`], apart from the workload and ignorant of it. Whether the checks can see
//! anything is proved by [planted bugs](Mutant).
//!
//! 1. A run depends on its seed alone: no clock, no thread, no hash order.
//! 2. Nothing of a run outlives it, so that a million of them fit into one process.

pub mod checks;
mod event;
pub mod history;
mod model_server;
mod mutants;
mod workload;
mod world;

pub use checks::recorder::{Counts, Violation};
pub use event::{
    AcquireFailure, AcquireMethod, Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId,
    LossScope, MessageFault, MultiExecution, NewGuard, ObserverEvent, OwnerId, PeriodEvent, ReleaseMethod,
    ServerEvent, SessionExecution, TaskEvent, TaskId, Validity,
};
pub use model_server::{Data, Flaw, ModelServer, Seen};
pub use mutants::Mutant;
pub use world::faults::FaultProfile;
pub use world::scheduler::HostId;
pub use world::time::{Clock, Instant};
pub use world::{Outcome, Run, run};
