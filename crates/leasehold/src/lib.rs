//! Distributed locks held by lease: on Redis or Valkey, between the processes of one machine, or
//! inside one process.

mod client;
mod clock;
mod engine;
mod error;
mod guard;
mod mutex;
pub mod store;

pub use client::{Client, ClientBuilder};
pub use engine::{LostReason, World};
pub use error::{
    AcquireError, ConnectError, Contention, ExtendError, InspectError, LockError, Lost, ReleaseError,
    RunError,
};
pub use guard::Guard;
pub use mutex::{Attempt, Mutex, Status};

pub use leasehold_core::{
    FencingToken, Holder, KeyError, Label, LabelError, Lease, LeaseError, LockName, Moment, NameError,
    OwnValue, OwnValueError, Owner, Pause, RetryPolicy, SessionId,
};
