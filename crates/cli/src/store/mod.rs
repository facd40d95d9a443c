//! The store of the locks: where it is, the password for it, and a client of it.

pub(crate) mod args;
pub(crate) mod client;
pub(crate) mod default_file;
pub(crate) mod password;
pub(crate) mod url;

use std::time::Duration;

/// The time limit of a call to the store, and of the release at the end.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(2);
