//! The keeper's loop: collects the work that is due, starts it, and sleeps. The numbers are those of
//! [`keeper`](super).

use super::activity::send_activity;
use super::cleanup::run_cleanup;
use super::extend::extend;
use super::handoff::send_reserve;
use super::reconnect::repeat_releases;
use super::sessions::{begin, end_sessions, end_unused, send_heartbeats};
use super::statistics::merge_statistics;
use super::{Shared, shutdown_report};
use crate::engine::{LostReason, flush_store};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep while anything is held: timers stop during a suspend, deadlines of holds do not.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Runs the keeper until it is closed and its cleanups are done.
pub(super) async fn run(shared: Arc<Shared>) {
    // Dropped after the running futures, so nothing is sent any more by then.
    let _end = End(shared.clone());
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    // Whether a closing keeper without other work has waited for the store's background work.
    let mut flushed = false;
    let mut planned = None;
    loop {
        let now = shared.environment.now();
        if let Some(planned) = planned.take() {
            shared.telemetry().woke(planned, now);
        }
        let work = shared.state().collect(now, shared.timings.call, &shared.sessions);
        for (id, hold, reason) in work.lost {
            hold.lose(reason);
            if hold.is_idle() {
                // No guard will release it, and the store may still keep it.
                shared.release_idle(id);
            }
        }
        for (hold, cleanup) in work.capped {
            hold.lose(LostReason::Capped);
            running.push(Box::pin(run_cleanup(shared.clone(), cleanup)));
        }
        for id in work.unclaimed {
            shared.release_idle(id);
        }
        for reserve in work.reserves {
            running.push(Box::pin(send_reserve(shared.clone(), reserve)));
        }
        for (id, hold) in work.idle_checks {
            shared.check_idle(id, &hold, now);
        }
        for batch in work.heartbeats {
            running.push(Box::pin(send_heartbeats(shared.clone(), batch)));
        }
        if !work.activity.is_empty() {
            running.push(Box::pin(send_activity(shared.clone(), work.activity)));
        }
        if work.closing.is_none() && shared.begins_merge(now) {
            running.push(Box::pin(merge_statistics(shared.clone())));
        }
        if !work.lapsed.is_empty() {
            shared.sessions.handle_lapsed();
            work.lapsed.iter().for_each(|_| shared.telemetry().session_lapsed());
        }
        for partition in work.lapsed {
            running.push(Box::pin(begin(shared.clone(), partition, true)));
        }
        for partition in work.to_begin {
            running.push(Box::pin(begin(shared.clone(), partition, false)));
        }
        for session in work.unused_sessions {
            running.push(Box::pin(end_unused(shared.clone(), session)));
        }
        for batch in work.urgent.into_iter().chain(work.calm) {
            running.push(Box::pin(extend(shared.clone(), batch)));
        }
        flushed &= work.cleanups.is_empty() && work.shutdown_report.is_none();
        for cleanup in work.cleanups {
            running.push(Box::pin(run_cleanup(shared.clone(), cleanup)));
        }
        for releases in work.repeated_releases {
            running.push(Box::pin(repeat_releases(shared.clone(), releases)));
        }
        if let Some(shutdown_report) = work.shutdown_report {
            running.push(Box::pin(shutdown_report::send(shared.clone(), shutdown_report)));
        }
        if work.closing.is_some_and(|by| running.is_empty() || by <= now) {
            if flushed || work.closing.is_some_and(|by| by <= now) {
                return end_sessions(&shared, work.closing).await;
            }
            flushed = true;
            running.push(Box::pin(flush_before_end(shared.clone())));
        }
        let merge = shared.merge_due().filter(|_| work.closing.is_none());
        planned = work.next.map(|at| at.min(now + MAX_SLEEP)).into_iter().chain(merge).min();
        let sleep = async {
            match planned {
                Some(at) => shared.environment.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            () = shared.wake.notified() => {}
            () = sleep => {}
        }
    }
}

async fn flush_before_end(shared: Arc<Shared>) {
    flush_store(&*shared.store, &*shared.environment, shared.timings).await;
}

/// Ends the keeper on every path.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let now = self.0.environment.now();
        let mut state = self.0.state();
        state.ended = Some(now);
        state.cleanups.clear();
        let outstanding = state.outstanding.take_all();
        state.unreleased.extend(outstanding);
        drop(state);
        self.0.cleanups_done.notify_waiters();
        self.0.ended.cancel();
    }
}
