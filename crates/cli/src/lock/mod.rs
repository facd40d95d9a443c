//! Locks of all kinds: what the options request, how it is acquired, and the guard of what is held. The logic of locks
//! is the library's.

pub(crate) mod acquire_options;
pub(crate) mod any_lock;
pub(crate) mod guard;
pub(crate) mod lease;
pub(crate) mod once_per;
pub(crate) mod other_kind;
pub(crate) mod owner;
pub(crate) mod request;
pub(crate) mod shared;
pub(crate) mod shared_guard;
pub(crate) mod token_file;
pub(crate) mod wait_limit;
pub(crate) mod waiting;
