//! The checks of this crate, and judges that are not ours, over the same histories.

mod changes;
mod linearizability;
mod model;
mod operations;
mod page;
mod porcupine;
mod property;
mod random;
