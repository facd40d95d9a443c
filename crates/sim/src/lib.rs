//! A simulated world that searches for defects in locks.
//!
//! The library's engine runs in it. Clients are [`leasehold::Client`]s whose clock, randomness, timers and store come from
//! this crate. Everything else is simulated on one thread in virtual time, in an order drawn from a seed: a server that
//! executes the model; a network that loses, delays, duplicates and reorders messages; processes that stop and crash; a
//! server that restarts with or without its data, or fails over to a lagging replica; two primaries at once, with clients at
//! each; clocks that drift and jump; and futures that are dropped at any await.
//!
//! ```
//! use leasehold_sim::{Run, run};
//!
//! let outcome = run(&Run::new(7));
//! assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
//! assert_eq!(outcome.counts, run(&Run::new(7)).counts); // the same seed is the same run
//! ```
//!
//! A quorum uses tokio's tasks and timers, and has a world and checks of its own ([`Run::with_quorum`]): the same engine on
//! tokio's paused clock, over five nodes that are slow, silent or away, and that forget.
//!
//! The [`checks`] define what must hold. They depend only on events, not on the workload. [Mutants](Mutant) prove that each
//! check can fail.
//!
//! 1. A run depends only on its seed: not on a clock, threads or hash order.
//! 2. A run leaves nothing behind, so a process can execute millions of runs.

mod any_guard;
pub mod checks;
mod config;
mod event;
pub mod history;
pub mod html;
mod model_server;
mod mutants;
mod quorum;
mod run;
pub mod timeline;
mod workload;
mod world;

pub use checks::recorder::{Counts, Violation};
pub use event::{
    AcquireFailure, AcquireMethod, Event, Execution, GuardId, Held, HostEvent, LeasePolicy, LockId,
    LossScope, MessageFault, MultiExecution, NewGuard, ObserverEvent, OwnerId, PeriodEvent, ProclaimedText,
    ReleaseMethod, SeenLeader, ServerEvent, SessionExecution, TaskEvent, TaskId, Validity,
};
pub use model_server::{Data, ModelServer, ServerMutant, ServerObservation};
pub use mutants::Mutant;
pub use run::{Outcome, Run, Scenario, run};
pub use world::faults::FaultProfile;
pub use world::scheduler::HostId;
pub use world::time::{Clock, Instant};
