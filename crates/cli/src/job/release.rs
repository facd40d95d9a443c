//! The release of the lock after its command, and what it means for the exit status.

use crate::job::CommandEnd;
use crate::lock::guard::AnyGuard;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use anyhow::anyhow;
use leasehold::error::ReleaseError;
use leasehold::{Client, LostReason};
use std::time::Duration;
use tokio::time::timeout;

/// Releases the lock. Returns the exit status of the command, or the failure if the command was not started or the
/// lock was lost while it ran. If the command was ended because of its lock, that is not released before the lock delay is
/// over: what the command has begun may still go on.
pub(crate) async fn release(
    client: &Client,
    guard: AnyGuard,
    lock_delay: Option<Duration>,
    ended: Result<CommandEnd, Failure>,
) -> Result<Exit, Failure> {
    if let (Ok(CommandEnd { lock_ended: true, .. }), Some(delay)) = (&ended, lock_delay) {
        // Once the hold has ended, the store keeps the lock for the delay.
        let _ = timeout(delay, guard.lost_signal().cancelled()).await;
    }
    let locks = guard.quoted_names();
    let valid_until = guard.valid_until();
    let (known_loss, ending) = (guard.check().err().map(|lost| lost.reason), ending(&guard));
    let released = match guard {
        // The command could not be started, so another instance may start the period.
        AnyGuard::OncePer(period) if ended.as_ref().is_err_and(|failure| failure.exit.is_not_started()) => {
            period.fail().await
        }
        guard => guard.release().await,
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(failure) => {
            warn_of_failed_release(&locks, &released);
            return Err(failure);
        }
    };
    if ended.lock_ended {
        return Err(loss(&locks, loss_reason(ending, &released)));
    }
    let ended_in_time = known_loss.is_none() && valid_until <= client.now();
    match released {
        Ok(()) => tracing::info!(%locks, "released"),
        Err(ReleaseError::Lost(reason)) if lost_during_command(&reason, ended_in_time) => {
            let cause = anyhow!(
                "lost {locks} while the command ran, which was detected only after it had ended: {reason}; another \
                 client may have held it at the same time"
            );
            return Err(Failure::lost(reason, cause));
        }
        // The command had already ended.
        Err(ReleaseError::Lost(_)) => tracing::info!(%locks, "the lease ended during the release"),
        Err(_) => warn_of_failed_release(&locks, &released),
    }
    Ok(ended.exit)
}

/// Warns that the lock may still be held. After a loss it is not.
fn warn_of_failed_release(locks: &str, released: &Result<(), ReleaseError>) {
    if let Err(error) = released
        && !matches!(error, ReleaseError::Lost(_))
    {
        log::warning(&format!("failed to release {locks}: {error}"));
    }
}

/// The failure if the command was ended because of its lock.
fn loss(locks: &str, reason: Option<LostReason>) -> Failure {
    let text = |why: &str| anyhow!("lost {locks}, so the command was ended: {why}");
    match reason {
        Some(reason) => Failure::lost(reason.clone(), text(&reason.to_string())),
        None => Failure::new(Exit::LOST, text("it could not be renewed in time")),
    }
}

/// Why a command under this lock has to end now, as far as the client knows. `None` if the hold can only not be renewed.
pub(crate) fn ending(guard: &AnyGuard) -> Option<LostReason> {
    match guard.check() {
        Err(lost) if !matches!(lost.reason, LostReason::Expired | LostReason::Capped) => Some(lost.reason),
        // The command is ended early, so that it is gone before the cap.
        _ if guard.is_capped() => Some(LostReason::Capped),
        _ => None,
    }
}

/// Why the lock of a command that was ended is lost, if that is known. `ending`: before the release.
fn loss_reason(ending: Option<LostReason>, released: &Result<(), ReleaseError>) -> Option<LostReason> {
    match (ending, released) {
        // What the keeper has detected is more precise than what a late release finds.
        (Some(reason), _) => Some(reason),
        (None, Err(ReleaseError::Lost(reason))) => Some(reason.clone()),
        (None, _) => None,
    }
}

/// Whether a lock whose release reports a loss was lost while the command ran. `ended_in_time`: the command ended under
/// a valid hold, and the lease or the session has ended since.
fn lost_during_command(reason: &LostReason, ended_in_time: bool) -> bool {
    use LostReason::{Evicted, Expired, SessionLapsed, TakenOver};
    !(ended_in_time && matches!(reason, Expired | TakenOver { .. } | Evicted | SessionLapsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_ends_after_the_command_is_no_loss() {
        assert!(!lost_during_command(&LostReason::Expired, true));
        assert!(!lost_during_command(&LostReason::TakenOver { by: None }, true));
        assert!(lost_during_command(&LostReason::Removed, true));
        assert!(lost_during_command(&LostReason::TakenOver { by: None }, false));
    }
}
