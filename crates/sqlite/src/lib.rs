//! The SQLite store, for the processes of one machine: the model, with the state of each lock in a row of a file.
//!
//! It needs no server. All processes of one user that open the same path share its locks. The kernel reports which
//! processes are alive, and a grant reaches the waiting process through a local socket.
//!
//! This module owns the public handle. Its parts: [`site`] the files and their permissions, [`ledger`] the
//! transactions, [`format`](mod@format) the tables, [`trouble`] the errors there, [`machine`] the clock, [`life`]
//! which sessions are alive, [`register`] their metadata, [`mailbox`] the notifications, [`worker`] the thread,
//! [`busy`] waiting for other writers, [`store`] the handle itself.

#[cfg(target_os = "linux")]
mod busy;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod format;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod life;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod mailbox;
#[cfg(target_os = "linux")]
mod register;
#[cfg(target_os = "linux")]
mod site;
#[cfg(target_os = "linux")]
mod store;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(target_os = "linux")]
mod trouble;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(not(target_os = "linux"))]
pub use elsewhere::SqliteStore;
#[cfg(target_os = "linux")]
pub use store::SqliteStore;
