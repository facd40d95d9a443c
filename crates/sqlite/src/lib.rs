//! The SQLite store, for the processes of one machine: the model, with the state of each lock in a row of a file.
//!
//! It needs no server. All processes of one user that open the same path share its locks. The kernel reports which
//! processes are alive, and a grant reaches the waiting process through a local socket.
//!
//! | Module | Owns |
//! |---|---|
//! | [`store`] | the public handle: sends jobs to the store's thread |
//! | [`worker`] | the thread, and the open mailboxes of this process |
//! | [`database`] | the connection to the file, and when transactions and cleanups run |
//! | [`transaction`] | one operation inside its transaction |
//! | [`format`](mod@format) | the tables, and the start of a new boot |
//! | [`session_files`] | which sessions are alive |
//! | [`session_table`] | session metadata, for listings |
//! | [`statistics_table`] | what clients have counted |
//! | [`mailbox`] | notifications between processes |
//! | [`location`] | the paths, and their permissions |
//! | [`busy`] | waiting for other writers |
//! | [`machine`] | the boot id and the clock |
//! | [`error`] | errors at the file, and the faults they become |

#[cfg(target_os = "linux")]
mod busy;
#[cfg(target_os = "linux")]
mod database;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod format;
#[cfg(target_os = "linux")]
mod location;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod mailbox;
#[cfg(target_os = "linux")]
mod session_files;
#[cfg(target_os = "linux")]
mod session_table;
#[cfg(target_os = "linux")]
mod statistics_table;
#[cfg(target_os = "linux")]
mod store;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(target_os = "linux")]
mod transaction;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(target_os = "linux")]
pub use store::SqliteStore;
#[cfg(not(target_os = "linux"))]
pub use unsupported::SqliteStore;
