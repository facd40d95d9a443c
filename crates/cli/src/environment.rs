//! The environment variables that the program reads, and those that a command under a lock receives.

use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::{FencingToken, LockName};
use std::env::{self, VarError};

/// The URL of the store.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
/// The user of the server.
pub(crate) const USERNAME: &str = "LEASEHOLD_USERNAME";
/// The password of the server. No command receives it.
pub(crate) const PASSWORD: &str = "LEASEHOLD_PASSWORD";
/// The token of the web page of `board`. No command receives it.
pub(crate) const BOARD_TOKEN: &str = "LEASEHOLD_BOARD_TOKEN";
/// The directory of what this program remembers for the user, in place of the one beside the default store.
pub(crate) const STATE_DIR: &str = "LEASEHOLD_STATE_DIR";
/// How many holds the history of each lock keeps that this program acquires.
pub(crate) const HISTORY: &str = "LEASEHOLD_HISTORY";
/// Whether what this program does is counted for the statistics of the store: `on` or `off`.
pub(crate) const STATISTICS: &str = "LEASEHOLD_STATISTICS";
/// The owner for which a reentrant lock is acquired. A command under such a lock receives it.
pub(crate) const OWNER: &str = "LEASEHOLD_OWNER";
/// The names of the locks of a command, one a line. Commands receive it; a program inside of such a command names these locks as
/// those that it runs under.
pub(crate) const NAME: &str = "LEASEHOLD_NAME";
/// The fencing tokens of these locks, one a line. Commands receive it.
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

/// The holds under which this program runs: it is the command of another one, or a part of it. What is no lock or token is
/// left out, since nothing depends on them but the graph of waits.
pub(crate) fn enclosing_holds() -> Vec<(LockName, FencingToken)> {
    let [names, fences] = [NAME, FENCE].map(|name| env::var(name).unwrap_or_default());
    let holds = names.lines().zip(fences.lines());
    let parsed =
        holds.map(|(name, fence)| Some((LockName::new(name).ok()?, FencingToken::new(fence.parse().ok()?))));
    parsed.flatten().collect()
}
