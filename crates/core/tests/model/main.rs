//! Properties of the model, over random operations of several sessions and a clock that moves as it likes.
//!
//! The model is the law that every store is compared with, so what it promises is checked here by
//! looking at its state from outside, with nothing shared but the types.

mod happenings;
mod mutex;
mod reentrant;
mod reserving;
mod resting;
mod shared;
