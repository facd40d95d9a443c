//! Histories of distributed locks: what clients asked, what they were answered, and when.
//!
//! `leasehold verify` records a history, and the checker of this crate judges it. Neither the format nor the checker knows a lock
//! library or a store: both speak of locks, calls and holds. The format is JSON Lines: one [`Event`] a line.

mod event;

pub use event::{Answer, Event, FaultKind, LockKind, LockSpec, Mode, ReleaseAnswer, What};
