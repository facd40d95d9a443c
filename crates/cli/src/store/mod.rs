//! The store of the locks: where it is, the password for it, and a client of it.

pub(crate) mod access;
pub(crate) mod args;
pub(crate) mod client;
pub(crate) mod default_file;
pub(crate) mod findings;
pub(crate) mod password;
pub(crate) mod password_command;
pub(crate) mod secret;
pub(crate) mod state_file;
pub(crate) mod url;

use std::time::Duration;

/// The time limit of a call to the store, and of the release at the end.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time limit of what follows the end of `--wait`: to leave the queue, and to undo requests without a reply. A store
/// that answers needs a fraction of it.
pub(crate) const UNDO_TIMEOUT: Duration = Duration::from_millis(500);
