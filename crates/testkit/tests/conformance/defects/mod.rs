//! How a store with a defect changes operations, its state, replies and notifications.

pub(crate) mod exclusive;
pub(crate) mod multi;
pub(crate) mod reentrant;
pub(crate) mod reservation;
pub(crate) mod shared;
