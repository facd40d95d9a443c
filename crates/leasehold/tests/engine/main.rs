//! The engine over a store that hangs, fails and loses data on demand.

mod detached;
mod losing;
mod moody;
mod passing;
mod releasing;
mod renewing;
mod shutdown;
mod waiting;
