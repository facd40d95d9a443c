//! The kinds of locks: each takes settings and gives a guard. None waits by itself: the engine does.

pub(crate) mod barrier;
pub(crate) mod contention;
pub(crate) mod deadlock;
pub(crate) mod election;
pub(crate) mod handle;
pub(crate) mod keyed_semaphore;
pub(crate) mod latch;
mod low_priority;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod observe_ends;
pub(crate) mod once_per;
pub(crate) mod reentrant;
pub(crate) mod run;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
