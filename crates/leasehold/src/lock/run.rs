//! A future that runs under a lock, whatever its kind.

use crate::error::{LostHold, ReleaseError, RunError};
use crate::guard::lock_guard::LockGuard;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for the reason of a loss, which the store is asked for. It has as long to answer.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// Runs a future under a guard, and releases the guard. If the lock is lost first, drops both.
pub(crate) async fn run_under<G: LockGuard + 'static, F: Future>(
    guard: G,
    work: impl FnOnce(Arc<G>) -> F,
) -> Result<F::Output, RunError<F::Output>> {
    let guard = Arc::new(guard);
    let result = tokio::select! {
        biased;
        lost = guard.lost() => return Err(RunError::Lost(lost)),
        result = work(Arc::clone(&guard)) => result,
    };
    // The signal of a loss can be late, after a suspend for example, or while the store is asked for the reason.
    if let Err(lost) = guard.check() {
        let lost = tokio::time::timeout(REASON_WITHIN, guard.lost()).await.unwrap_or(lost);
        return Err(RunError::LostAtRelease { result, lost });
    }
    // If a task that the future spawned uses the guard, the last reference releases the lock.
    let Some(guard) = Arc::into_inner(guard) else { return Ok(result) };
    let (lock, fence) = (guard.name().clone(), guard.fencing_token());
    match Box::new(guard).release().await {
        Ok(()) => Ok(result),
        Err(ReleaseError::Lost(reason)) => {
            Err(RunError::LostAtRelease { result, lost: LostHold { lock, fence, reason } })
        }
        Err(error) => {
            tracing::warn!(%lock, %error, "not released");
            Ok(result)
        }
    }
}
