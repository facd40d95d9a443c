//! Distributed locks held by lease: on Redis or Valkey, between the processes of one machine, or
//! inside one process.

mod clock;
pub mod store;

pub use leasehold_core::{
    FencingToken, Holder, KeyError, Label, LabelError, Lease, LeaseError, LockName, Moment, NameError,
    OwnValue, OwnValueError, Owner, Pause, RetryPolicy, SessionId,
};
