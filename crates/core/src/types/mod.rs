//! Values that operations are made of: names, ids, keys, leases, fencing tokens, times.
//!
//! They are checked where they are made and read no clock and no randomness: callers pass both.

pub(crate) mod audit;
pub(crate) mod duration;
pub(crate) mod fence;
pub(crate) mod history;
pub(crate) mod id;
pub(crate) mod key;
pub(crate) mod label;
pub(crate) mod lease;
pub(crate) mod name;
pub(crate) mod retry;
pub(crate) mod time;
pub(crate) mod token_block;
