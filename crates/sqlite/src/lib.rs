//! The store between the processes of one machine: the model, with a lock's state in a row of a file.
//!
//! No server is needed. All processes of one user that open the same path share its locks; the kernel
//! tells who is still alive, and a grant reaches the process that waits for it by a local socket.
//!
//! This module owns the handle; the parts below own one thing each:
//! [`site`] the files and who may touch them, [`ledger`] the transactions, [`format`](mod@format) the tables, [`trouble`] what goes wrong there, [`machine`] the clock,
//! [`life`] who is alive, [`register`] who is behind that, [`mailbox`] the wake-ups, [`worker`] the thread, [`patience`] the waiting for
//! other writers, [`store`] the handle itself.

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
mod patience;
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
