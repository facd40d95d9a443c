//! Servers, faults and checks for Leasehold's own tests.
//!
//! killed and stopped (`Worker`), and futures that are dropped half-way (`cancel_at_every_await`). It knows
//! nothing of locks: what a lock must do is said by the tests that use it.
//!

mod cancel;
mod frame;
mod resp;

pub use cancel::cancel_at_every_await;
pub use frame::{FrameError, Splitter};
pub use resp::{RespConnection, Value};
