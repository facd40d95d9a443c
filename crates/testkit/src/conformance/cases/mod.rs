//! The cases: each plays one scene, and says which rows of docs/failure-modes.md it answers.

mod agreement;
mod calls;
mod entering;
mod fencing;
mod freeing;
mod holding;
mod leases;
mod mailbox;
mod names;
mod passing;
mod queueing;
mod releasing;
mod resting;
mod sessions;
mod together;
mod values;

pub use agreement::*;
pub use calls::*;
pub use entering::*;
pub use fencing::*;
pub use freeing::*;
pub use holding::*;
pub use leases::*;
pub use mailbox::*;
pub use names::*;
pub use passing::*;
pub use queueing::*;
pub use releasing::*;
pub use resting::*;
pub use sessions::*;
pub use together::*;
pub use values::*;
