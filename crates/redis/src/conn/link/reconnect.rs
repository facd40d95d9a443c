//! The task of a link that makes its connections.
//!
//! 1. Attempts are paced. The first starts at once, if the last connection has lasted long enough. The next follows
//!    after 50 ms, doubling up to 2 s, half of it jitter.
//! 2. Behind Sentinels, the task is subscribed to all of them all the time. When the primary moves, the link gives up
//!    the connection to the old one and connects to the new one at once.

use super::health::ConnectionHealth;
use super::{LinkConnection, Shared, State};
use crate::config::address::Protocol;
use crate::conn::connect::open_connection;
use crate::conn::sentinel::{PrimaryReport, SentinelWatch};
use leasehold_core::SessionId;
use leasehold_store::{Fault, FaultKind, NotificationSink, Phase, jitter};
use redis::PushKind;
use std::error::Error;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Pauses between attempts: the first, and the longest.
const RECONNECT_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
/// Time over which clients spread their connections to a new primary, since all learn of it at the same moment.
const SPREAD: Duration = Duration::from_millis(50);
/// How long a connection must last for the next attempt to start without a pause.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The mailboxes that were open when a connection attempt began.
type OpenMailboxes = Vec<(SessionId, Arc<dyn NotificationSink>)>;

/// Runs the connecting task, and reports a fault if it panics, as it does on a runtime without IO or timers.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut task = JoinSet::new();
    task.spawn(maintain(Arc::clone(&shared)));
    if let Some(Err(_)) = task.join_next().await {
        let text = "the tokio runtime lacks IO or timers: build it with `enable_all`";
        let fault =
            Fault::new(FaultKind::Unusable(text.to_owned()), Phase::Connect, Arc::clone(&shared.node));
        shared.state.set(State::Down(Some(fault)));
    }
}

/// Makes connections while the link exists (1), and leaves a server that is no longer the primary (2).
async fn maintain(shared: Arc<Shared>) {
    let environment = shared.config.shared_environment();
    let mut sentinels = SentinelWatch::new(&shared.config);
    // Last address reported by Sentinels.
    let mut known: Option<PrimaryReport> = None;
    let mut failures = 0;
    let mut spread = Duration::ZERO;
    let mut is_first = true;
    loop {
        let attempted = async {
            tokio::time::sleep(pause(failures, environment.random()) + spread).await;
            (shared.mailboxes.all(), attempt(&shared, known.clone()).await)
        };
        let attempted = tokio::select! {
            biased;
            seen = sentinels.moved(known.as_ref()) => Err(seen),
            attempted = attempted => Ok(attempted),
        };
        spread = Duration::ZERO;
        match attempted {
            Ok((mailboxes, Ok(connection))) => {
                let since = Instant::now();
                tracing::debug!(node = %shared.node, "connected");
                known.clone_from(&connection.ready.report);
                let health = publish(&shared, connection, mailboxes);
                if !std::mem::take(&mut is_first)
                    && let Some(tracking) = shared.mailboxes.tracking()
                {
                    // The server has forgotten what it remembered for the last connection.
                    tracking.all_changed();
                }
                tokio::select! {
                    biased;
                    () = shared.until_replaced(&health) => {}
                    seen = sentinels.moved(known.as_ref()) => {
                        shared.give_up(&health);
                        (known, spread) = (Some(seen), jitter(&**environment, SPREAD));
                    }
                }
                tracing::debug!(node = %shared.node, "the connection is lost");
                failures = if since.elapsed() >= STABLE_AFTER { 0 } else { failures + 1 };
            }
            Ok((_, Err(fault))) => {
                report(&shared, &fault, failures);
                shared.state.set(State::Down(Some(fault)));
                failures += 1;
            }
            Err(seen) => {
                // Happens once for each fail-over, because the epoch grows. The fault of the old primary says nothing
                // about the new one.
                shared.state.set(State::Down(None));
                (known, spread) = (Some(seen), jitter(&**environment, SPREAD));
                failures = 0;
            }
        }
    }
}

/// Logs the fault of an attempt, after this many failures in a row.
fn report(shared: &Shared, fault: &Fault, failures: u32) {
    let cause = fault.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    // Credentials that were just rotated are rejected once, and accepted by the next attempt.
    if matches!(fault.kind, FaultKind::Credentials(_)) && failures == 1 {
        tracing::warn!(node = %shared.node, "{fault}{cause}");
    } else {
        tracing::debug!(node = %shared.node, "no connection: {fault}{cause}");
    }
}

/// Makes a connection available to calls, and notifies the subscribers from before it. Returns its health.
fn publish(shared: &Shared, connection: LinkConnection, mailboxes: OpenMailboxes) -> Arc<ConnectionHealth> {
    let health = Arc::clone(&connection.health);
    shared.state.set(State::Up(connection));
    if health.ended.load(Ordering::SeqCst) {
        // The connection ended before it was available.
        shared.give_up(&health);
    }
    for (_, sink) in mailboxes {
        sink.resubscribed();
    }
    shared.mailboxes.lock_channels().notify_all();
    health
}

/// Makes one attempt.
async fn attempt(shared: &Arc<Shared>, last_report: Option<PrimaryReport>) -> Result<LinkConnection, Fault> {
    let health = Arc::new(ConnectionHealth::new(Arc::clone(shared.config.shared_environment())));
    let on_push = {
        let (mailboxes, health) = (Arc::clone(&shared.mailboxes), Arc::clone(&health));
        // With RESP2, messages arrive on another connection, and say nothing about this one.
        let is_shared = shared.config.protocol() == Protocol::Resp3;
        // A strong reference would keep the link alive through its own connection.
        let link: Weak<Shared> = Arc::downgrade(shared);
        move |push: redis::PushInfo| {
            if push.kind == PushKind::Disconnection {
                health.ended.store(true, Ordering::SeqCst);
                if let Some(link) = link.upgrade() {
                    link.give_up(&health);
                }
            } else {
                if is_shared {
                    health.received();
                }
                mailboxes.deliver(&push);
            }
        }
    };
    let ready =
        open_connection(&shared.config, &shared.node, &shared.mailboxes, last_report, on_push).await?;
    Ok(LinkConnection { ready, health, batches: Arc::default() })
}

/// Pause after this many failures in a row (1). `random` is 64 random bits.
fn pause(failures: u32, random: u64) -> Duration {
    RECONNECT_BACKOFF.pause(failures, random)
}

/// Pauses between attempts, which grow with the number of failures in a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The pause after this many failures in a row. `random` is 64 random bits.
    pub(crate) fn pause(self, failures: u32, random: u64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let pause = self.first.saturating_mul(1 << doublings.min(10)).min(self.longest);
        #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
        let fraction = random as f64 / u64::MAX as f64;
        pause / 2 + (pause / 2).mul_f64(fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_and_capped() {
        assert_eq!(pause(0, u64::MAX), Duration::ZERO);
        assert_eq!(pause(1, 0), Duration::from_millis(25));
        assert_eq!(pause(2, u64::MAX), Duration::from_millis(100));
        assert_eq!(pause(u32::MAX, u64::MAX), Duration::from_secs(2));
        assert!(pause(40, u64::MAX / 4) < pause(40, u64::MAX / 4 * 3));
    }
}
