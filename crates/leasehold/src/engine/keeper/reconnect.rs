//! What the keeper does when a connection was made again (10): it compares the store with what this client knows.

use super::heartbeat::SessionHeartbeat;
use super::renewal_batcher::BATCH;
use super::{Shared, State, TrackedHold, Work};
use crate::store::Outcome;
use leasehold_core::{Lock, Moment, Op, Partition};
use leasehold_store::jitter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often a release is repeated that has no reply. If the keeper's own connection takes longer, the leases end the rest.
const ATTEMPTS: usize = 3;
/// The pause before another attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// The least time between two comparisons: messages can be lost at any rate, and the mailboxes of a cluster are reopened
/// one by one.
const COMPARE_INTERVAL: Duration = Duration::from_millis(250);

impl State {
    /// Has the store of a partition compared with what this client knows. Returns whether that is new.
    pub(super) fn compare_soon(&mut self, partition: Partition) -> bool {
        self.reconnected.insert(partition, self.ended_holds.ended()).is_none()
    }

    /// When stores are to be compared next, if a connection was made again.
    pub(super) fn next_comparison(&self) -> Option<Moment> {
        let earliest = self.compared_at.map_or(Moment::ZERO, |at| at + COMPARE_INTERVAL);
        (!self.reconnected.is_empty()).then_some(earliest)
    }

    /// Collects what there is to ask of stores that may have lost data.
    pub(super) fn collect_unverified(&mut self, now: Moment, work: &mut Work) {
        let is_due = self.next_comparison().is_some_and(|at| at <= now);
        let reconnected = if is_due { std::mem::take(&mut self.reconnected) } else { BTreeMap::new() };
        let mut unverified = std::mem::take(&mut self.unverified);
        if self.shut_down || self.closing.is_some() || (reconnected.is_empty() && unverified.is_empty()) {
            return;
        }
        if is_due {
            self.compared_at = Some(now);
        }
        for partition in reconnected.keys() {
            self.heartbeats.with(*partition, SessionHeartbeat::check_soon);
        }
        let releases = self.ended_holds.releases(&reconnected, now);
        work.repeated_releases = releases.chunks(BATCH).map(<[_]>::to_vec).collect();
        unverified.extend(reconnected.into_keys());
        // Otherwise a hold that the store has lost would be taken for held until its next renewal.
        let is_affected =
            |tracked: &TrackedHold| !tracked.lost && unverified.contains(&tracked.hold.session.partition);
        let affected = self.tracked.iter_mut().filter(|(_, tracked)| is_affected(tracked));
        let ids: Vec<_> = affected
            .map(|(id, tracked)| {
                tracked.schedule.verify_soon(now);
                *id
            })
            .collect();
        for id in ids {
            self.reschedule(id);
        }
    }
}

/// Releases holds again that have ended, unless the keeper is closed. What has no reply in the end is left to the leases.
pub(super) async fn repeat_releases(shared: Arc<Shared>, releases: Vec<(Lock, Op)>) {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => {}
        () = try_to_release(&shared, releases) => {}
    }
}

async fn try_to_release(shared: &Shared, mut releases: Vec<(Lock, Op)>) {
    for attempt in 1.. {
        let request = shared.telemetry().request();
        let outcomes = shared.store.execute_all(&releases, shared.timings.call).await;
        request.all_answered(&releases, &outcomes);
        let failed = releases.into_iter().zip(outcomes).filter_map(|(release, outcome)| match outcome {
            Outcome::Failed(_, fault) if fault.is_transient() => Some(release),
            Outcome::Failed(_, fault) => {
                tracing::debug!(lock = %release.0, %fault, "cannot repeat the release");
                None
            }
            Outcome::Done(_) => None,
        });
        releases = failed.collect();
        if releases.is_empty() || attempt >= ATTEMPTS {
            return;
        }
        let again_at = shared.environment.now() + PAUSE + jitter(&*shared.environment, PAUSE);
        shared.environment.sleep_until(again_at).await;
    }
}
