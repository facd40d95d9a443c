//! The life of a hold: asked for, checked, used, checked, and released.

use super::report::Reporter;
use crate::output::report::millis;
use leasehold::LockGuard;
use leasehold::error::{AcquireError, ReleaseError};
use leasehold_history::{Answer, Mode, ReleaseAnswer, What};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// A guard of any kind.
pub(super) type AnyGuard = Box<dyn LockGuard>;

/// A call of acquire.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) lock: Arc<str>,
    pub(super) mode: Mode,
    pub(super) limit: Option<Duration>,
    /// Set for a re-entrant lock.
    pub(super) owner: Option<u64>,
}

/// Calls acquire, and reports question and answer. Returns the number of the call, and what was granted.
pub(super) async fn ask<G>(
    reporter: &Reporter,
    asked: Call,
    acquiring: impl Future<Output = Result<Option<G>, AcquireError>>,
    fence: impl FnOnce(&G) -> Option<u64>,
) -> Option<(u64, G)> {
    let call = reporter.next_call();
    let limit_ms = asked.limit.map(millis);
    let lock = asked.lock.to_string();
    reporter.event(What::Asked { call, lock, mode: asked.mode, limit_ms, owner: asked.owner });
    let answered = acquiring.await;
    let answer = match &answered {
        Ok(Some(granted)) => Answer::Granted { fence: fence(granted) },
        Ok(None) | Err(AcquireError::TimedOut { .. } | AcquireError::RetriesExhausted { .. }) => {
            Answer::NotGranted
        }
        Err(error) => Answer::Failed { error: error.to_string() },
    };
    reporter.event(What::Answered { call, answer });
    Some((call, answered.ok()??))
}

/// [`ask`] for what has a guard.
pub(super) async fn ask_for_guard(
    reporter: &Reporter,
    asked: Call,
    acquiring: impl Future<Output = Result<Option<AnyGuard>, AcquireError>>,
) -> Option<(u64, AnyGuard)> {
    ask(reporter, asked, acquiring, |guard| Some(guard.fencing_token().as_u64())).await
}

/// How often a holder checks its hold: what it believes is known this exactly.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// What tells holders to end, and to keep what they have.
#[derive(Debug)]
pub(super) struct Orders {
    pub(super) stopping: CancellationToken,
    /// Until when holds that are valid are kept.
    pub(super) linger: watch::Sender<Instant>,
}

impl Orders {
    pub(super) fn new() -> Self {
        Self { stopping: CancellationToken::new(), linger: watch::Sender::new(Instant::now()) }
    }

    /// Whether a hold that was to be kept until `end` is kept now.
    fn keeps(&self, end: Instant) -> bool {
        !self.stopping.is_cancelled() && Instant::now() < end.max(*self.linger.borrow())
    }
}

/// Uses a hold for a while, and reports it. With `writes`, it guards the counter of its lock.
pub(super) async fn keep(
    reporter: &Reporter,
    orders: &Orders,
    (call, guard): (u64, &AnyGuard),
    (lock, writes): (&str, bool),
    time: Duration,
) {
    let working = async {
        if !check(reporter, call, guard) {
            return;
        }
        let read = if writes { reporter.read(call, lock).await } else { None };
        let end = Instant::now() + time;
        while orders.keeps(end) {
            let pause = CHECK_INTERVAL.min(end.saturating_duration_since(Instant::now()));
            tokio::select! {
                () = sleep(pause.max(Duration::from_millis(1))) => {}
                () = orders.stopping.cancelled() => {}
            }
            if orders.keeps(end) && !check(reporter, call, guard) {
                return;
            }
        }
        if check(reporter, call, guard)
            && let Some(read) = read
        {
            reporter.write(call, lock, guard.fencing_token().as_u64(), read).await;
            // What it believes after the write says whether that came too late.
            check(reporter, call, guard);
        }
    };
    tokio::pin!(working);
    tokio::select! {
        () = &mut working => {}
        lost = guard.lost() => {
            reporter.event(What::Lost { call, reason: lost.reason.as_str().to_owned() });
            // The holder goes on until it checks the next time.
            working.await;
        }
    }
}

/// Releases a hold, and reports it.
pub(super) async fn release(reporter: &Reporter, call: u64, guard: AnyGuard) {
    reporter.event(What::ReleaseAsked { call });
    let answer = match guard.release().await {
        Ok(()) => ReleaseAnswer::Released,
        Err(ReleaseError::Lost(_)) => ReleaseAnswer::NotHeld,
        Err(error) => ReleaseAnswer::Failed { error: error.to_string() },
    };
    reporter.event(What::Released { call, answer });
}

fn check(reporter: &Reporter, call: u64, guard: &AnyGuard) -> bool {
    let since_us = reporter.clock().now_us();
    let valid = guard.check().is_ok();
    reporter.event(What::Checked { call, since_us, valid });
    valid
}
