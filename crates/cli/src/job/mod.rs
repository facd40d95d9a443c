//! A command that runs under a lock, from its start to the release of the lock. What kind of lock it is does not matter
//! here.
//!
//! The command starts under a whole lease, not under the short first lease of a new hold.

pub(crate) mod child;
pub(crate) mod kill_timer;
pub(crate) mod release;
pub(crate) mod signals;
pub(crate) mod supervisor;
pub(crate) mod terminal;
pub(crate) mod times;

use crate::job::child::Child;
use crate::job::signals::Signals;
use crate::job::supervisor::Supervisor;
use crate::job::times::JobTimes;
use crate::lock::guard::AnyGuard;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use leasehold::Client;
use leasehold::error::ExtendError;
use rustix::process::Signal;
use std::ffi::OsString;

/// How a command that was started has ended.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    /// The exit status of the command.
    pub(crate) exit: Exit,
    /// Set if this program ended it, because its lock was lost or could not be renewed.
    pub(crate) lock_ended: bool,
    /// The last signal by which a user or another program asked it to end.
    pub(crate) requested: Option<Signal>,
}

/// Runs the command under the lock until the command has ended. Fails if it was not started.
pub(crate) async fn run(
    client: &Client,
    guard: &AnyGuard,
    times: &JobTimes,
    words: &[OsString],
    signals: &mut Signals,
) -> Result<CommandEnd, Failure> {
    let extended = extend_to_whole_lease(guard, times).await;
    extended.map_err(|failure| failure.failed_to_all("hold", &guard.quoted_names()))?;
    signals.catch_all()?;
    let child = Child::start(words, guard)?;
    Ok(Supervisor::new(child, client, guard, times).run(signals).await)
}

async fn extend_to_whole_lease(guard: &AnyGuard, times: &JobTimes) -> Result<(), Failure> {
    if guard.remaining() > times.kill_grace + times.time_to_renew() / 2 {
        return Ok(());
    }
    let extended = match guard.extend().await {
        // The cap allows no more.
        Err(ExtendError::Capped { .. }) => Ok(()),
        extended => extended,
    };
    extended.map_err(|error| match &error {
        ExtendError::Lost(lost) => Failure::lost(lost.reason.clone(), error),
        _ => Failure::unavailable(error),
    })
}
