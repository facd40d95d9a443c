//! Keeper work for sessions: it begins them, sends heartbeats, notices a lapse, and ends unused ones.
//!
//! What a heartbeat reports is up to [`SessionHeartbeat`], and when it is due to the core.

use super::{Shared, State, TrackedHold, TrackingId, Work};
use crate::engine::keeper::heartbeat::{HeartbeatInFlight, SessionAction, SessionHeartbeat};
use crate::engine::session::{Session, Sessions, fresh_id};
use crate::engine::{LostReason, NEVER};
use crate::store::Outcome;
use futures_util::future::join_all;
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{HeartbeatReply, Moment, Partition, SessionId, SessionOp, SessionReply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between attempts to begin a session: the first, and the longest.
const BEGIN_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

impl State {
    /// Reports a hold with heartbeats: it was extended, so it is held for a while.
    pub(super) fn report(&mut self, id: TrackingId) {
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| !tracked.lost && !tracked.reported)
        else {
            return;
        };
        tracked.reported = self
            .heartbeats
            .with(tracked.hold.session.partition, |heartbeat| heartbeat.report_held(&tracked.hold.lock))
            .is_some();
    }

    /// Stops reporting a hold with heartbeats.
    pub(super) fn unreport(&mut self, id: TrackingId) {
        if let Some(tracked) = self.tracked.get_mut(&id)
            && std::mem::take(&mut tracked.reported)
        {
            self.heartbeats.with(tracked.hold.session.partition, |heartbeat| {
                heartbeat.report_released(&tracked.hold.lock);
            });
        }
    }

    /// Collects the work for sessions (7). A closing keeper sends no heartbeats: nothing depends on its sessions any
    /// more.
    pub(super) fn collect_sessions(&mut self, now: Moment, sessions: &Sessions, work: &mut Work) {
        if self.closing.is_some() {
            return;
        }
        for partition in self.heartbeats.due(now) {
            if self.heartbeats.with(partition, |heartbeat| heartbeat.is_idle(now)) == Some(true)
                && self.end_if_unused(partition, sessions, work)
            {
                continue;
            }
            match self.heartbeats.with(partition, |heartbeat| heartbeat.poll(now)) {
                None | Some(SessionAction::Nothing) => {}
                Some(SessionAction::Heartbeat(request)) => work.heartbeats.push(request),
                Some(SessionAction::Lapsed) => self.end_lapsed(partition, now, work),
            }
        }
        for partition in std::mem::take(&mut self.sessions_wanted) {
            if self.sessions_changing.contains(&partition) {
                self.sessions_wanted.insert(partition);
            } else if sessions.current(partition).alive_until() == Moment::ZERO {
                self.sessions_changing.insert(partition);
                work.to_begin.push(partition);
            }
        }
    }

    /// Ends an unused session, in a store with several partitions.
    fn end_if_unused(&mut self, partition: Partition, sessions: &Sessions, work: &mut Work) -> bool {
        let Some(session) =
            self.heartbeats.session(partition).filter(|session| sessions.remove_idle(session)).cloned()
        else {
            return false;
        };
        self.heartbeats.remove(partition);
        self.sessions_changing.insert(partition);
        work.unused_sessions.push(session);
        true
    }

    /// The session of a partition is over, with all holds that depend on it.
    fn end_lapsed(&mut self, partition: Partition, now: Moment, work: &mut Work) {
        let Some(SessionHeartbeat { session, .. }) = self.heartbeats.remove(partition) else { return };
        // By this process's clock it would still be alive.
        let in_time = now < session.alive_until();
        session.end();
        self.sessions_changing.insert(partition);
        work.lapsed.push(partition);
        let reason = if in_time { LostReason::StoreLostData } else { LostReason::SessionLapsed };
        let here = |tracked: &TrackedHold| tracked.hold.session.partition == partition;
        // What the next session reports is its own.
        self.tracked
            .values_mut()
            .filter(|tracked| here(tracked))
            .for_each(|tracked| tracked.reported = false);
        let of_it = |tracked: &TrackedHold| {
            let its = &tracked.hold.session;
            !tracked.lost && its.liveness.ends_with_session() && its.id == session.id && here(tracked)
        };
        let ids: Vec<_> =
            self.tracked.iter().filter(|(_, tracked)| of_it(tracked)).map(|(id, _)| *id).collect();
        for id in ids {
            work.lost.extend(self.stop_extending(id).map(|hold| (id, hold, reason.clone())));
        }
    }
}

/// Sends one heartbeat and records its result.
pub(super) async fn send_heartbeat(shared: Arc<Shared>, request: HeartbeatInFlight) {
    let sent_at = shared.environment.now();
    // Half of the remaining time, so that there is time for another attempt.
    let left = request.valid_until.since(sent_at);
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let HeartbeatInFlight { session, op, .. } = request;
    let (partition, id) = (session.partition, session.id);
    let outcome = shared.store.execute_session(partition, &op, within).await;
    // This clone would make the session look used.
    drop(session);
    let now = shared.environment.now();
    let is_current = shared.state().heartbeats.with(partition, |heartbeat| {
        if heartbeat.session.id != id {
            return;
        }
        match outcome {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                heartbeat.handle_alive(sent_at, now);
            }
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => heartbeat.handle_lapsed(),
            other => {
                if let Outcome::Failed(_, fault) = other {
                    tracing::debug!(%fault, "no reply to a heartbeat");
                }
                heartbeat.handle_fault(&op, now, &mut || shared.environment.random());
            }
        }
    });
    if is_current.is_some() {
        shared.wake.notify_one();
    }
}

/// Begins a session in a partition, unless the keeper is closed. `again` is set if the previous one has lapsed.
pub(super) async fn begin(shared: Arc<Shared>, partition: Partition, again: bool) {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => {}
        () = try_to_begin(&shared, partition, again) => {}
    }
    shared.finish_change(partition);
}

/// Begins a session as soon as possible, and retries while a task waits for it.
async fn try_to_begin(shared: &Shared, partition: Partition, again: bool) {
    let old = shared.sessions.current(partition);
    let mut id = old.id;
    if again {
        tracing::warn!(session = %old.id, "the session has lapsed; all its holds are lost");
        id = fresh_id(&*shared.environment);
    }
    let (mut pause, most) = BEGIN_BACKOFF;
    loop {
        if shared.session_factory.store.capabilities().partitioned && !shared.sessions.is_awaited(partition) {
            // No task waits: it begins when it is wanted. The attempt may have left something at the store, so the
            // next one has another id.
            shared.sessions.set_next_id(partition, id);
            return shared.session_factory.store.close_mailbox(partition, old.id);
        }
        match shared.session_factory.begin(partition, id).await {
            Ok((session, schedule)) => return shared.handle_begun(&old, session, schedule),
            Err(fault) => {
                tracing::debug!(%fault, "cannot begin a session yet");
                shared.sessions.set_fault(partition, fault);
            }
        }
        let again_at = shared.environment.now() + pause / 2 + jitter(&*shared.environment, pause / 2);
        shared.environment.sleep_until(again_at).await;
        pause = (pause * 2).min(most);
        id = fresh_id(&*shared.environment);
    }
}

/// Ends an unused session.
pub(super) async fn end_unused(shared: Arc<Shared>, session: Arc<Session>) {
    let (partition, id) = (session.partition, session.id);
    session.end();
    shared.session_factory.store.close_mailbox(partition, id);
    if !end(&shared, partition, id, shared.timings.call).await {
        // The request may arrive late, and must not end the next session.
        shared.sessions.set_next_id(partition, fresh_id(&*shared.environment));
    }
    shared.finish_change(partition);
}

/// Ends all sessions at the store, with a single attempt: otherwise they lapse.
pub(super) async fn end_sessions(shared: &Shared, by: Option<Moment>) {
    let heartbeats: Vec<_> = shared.state().heartbeats.take().collect();
    let within = shared.timings.call.min(by.unwrap_or(NEVER).since(shared.environment.now()));
    let ends = heartbeats.iter().map(|SessionHeartbeat { session, .. }| {
        session.end();
        end(shared, session.partition, session.id, within)
    });
    let ends: Vec<_> = ends.collect();
    if !within.is_zero() {
        join_all(ends).await;
    }
}

async fn end(shared: &Shared, partition: Partition, session: SessionId, within: Duration) -> bool {
    let op = SessionOp::End(session);
    match shared.store.execute_session(partition, &op, within).await {
        Outcome::Done(_) => true,
        Outcome::Failed(_, fault) => {
            tracing::debug!(%fault, "the session was not ended: it lapses");
            false
        }
    }
}

impl Shared {
    /// No session of this partition is beginning or ending any more.
    fn finish_change(&self, partition: Partition) {
        self.state().sessions_changing.remove(&partition);
        self.wake.notify_one();
    }

    /// Another session has begun: waiting tasks continue under it.
    fn handle_begun(&self, old: &Arc<Session>, session: Arc<Session>, schedule: Option<HeartbeatSchedule>) {
        let (partition, id, now) = (session.partition, session.id, self.environment.now());
        if let Some(schedule) = schedule {
            self.state().heartbeats.insert(SessionHeartbeat::new(session.clone(), schedule, now));
        }
        self.sessions.replace(session);
        if old.id == id {
            tracing::debug!(%partition, session = %id, "a session has begun");
        } else {
            tracing::info!(%partition, old = %old.id, new = %id, "another session has begun");
            self.session_factory.store.close_mailbox(partition, old.id);
            self.session_factory.sink.resubscribed();
        }
        if self.state().closing.is_some() {
            // A closing client sets `closing` first and closes the mailbox it finds then, which may have been the old
            // one.
            self.session_factory.store.close_mailbox(partition, id);
        }
        self.wake.notify_one();
    }
}
