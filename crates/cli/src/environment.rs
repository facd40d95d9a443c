//! The environment variables that the program reads, and those that a command under a lock receives.

use crate::output::failure::Failure;
use anyhow::anyhow;
use std::env::{self, VarError};

/// The URL of the store.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
/// The user of the server.
pub(crate) const USERNAME: &str = "LEASEHOLD_USERNAME";
/// The password of the server. No command receives it.
pub(crate) const PASSWORD: &str = "LEASEHOLD_PASSWORD";
/// The directory of what this program remembers for the user, in place of the one beside the default store.
pub(crate) const STATE_DIR: &str = "LEASEHOLD_STATE_DIR";
/// How many holds the history of each lock keeps that this program acquires.
pub(crate) const HISTORY: &str = "LEASEHOLD_HISTORY";
/// The owner for which a reentrant lock is acquired. A command under such a lock receives it.
pub(crate) const OWNER: &str = "LEASEHOLD_OWNER";
/// The names of the locks of a command, one a line. Only commands receive it.
pub(crate) const NAME: &str = "LEASEHOLD_NAME";
/// The fencing tokens of these locks, one a line. Only commands receive it.
pub(crate) const FENCE: &str = "LEASEHOLD_FENCE";

/// A variable, if it is set and not empty. An error does not show a value that is not UTF-8.
pub(crate) fn variable(name: &str) -> Result<Option<String>, Failure> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Failure::usage(anyhow!("the environment variable {name} is not UTF-8 text")))
        }
    }
}
