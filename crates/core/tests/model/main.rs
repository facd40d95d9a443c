//! Properties of the model, over random operations of several sessions and a clock that moves as it likes.
//!
//! The model is the reference for every store. These tests check its guarantees from outside, by looking at
//! its state, and share nothing with it but the types.

mod cooldown;
mod many_holders;
mod mutex;
mod reentrant;
mod reservation;
mod shared;
mod stored_form;
mod workload;
