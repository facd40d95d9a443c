//! Keeper work for sessions: it begins them, sends heartbeats, notices a lapse, and ends unused ones.
//!
//! What a heartbeat reports is up to [`SessionHeartbeat`], and when it is due to the core.

use super::statistics::merge_last;
use super::{Shared, State, TrackedHold, TrackingId, Work};
use crate::engine::hold::Hold;
use crate::engine::keeper::heartbeat::{
    DueSession, HeartbeatBatch, MAX_REPORTS, SessionAction, SessionHeartbeat, begins,
};
use crate::engine::session::{BeginFailure, Session, Sessions, fresh_id};
use crate::engine::{LostReason, NEVER};
use crate::store::Outcome;
use crate::telemetry::Operation;
use futures_util::future::{join, join_all};
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{HeartbeatReply, Lock, Moment, Partition, SessionId, SessionOp, SessionReply};
use leasehold_store::jitter;
use std::collections::BTreeSet;
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
        let partition = tracked.hold.session.partition;
        let reported = self.heartbeats.with(partition, |heartbeat| heartbeat.report_held(&tracked.hold.lock));
        tracked.reported = reported.is_some() || self.activity.is_by_store();
        self.activity.lock_reported(tracked.hold.actor());
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

    /// Collects the work for live sessions (7). A closing keeper sends no heartbeats: nothing depends on its sessions any
    /// more.
    pub(super) fn collect_heartbeats(
        &mut self,
        now: Moment,
        call: Duration,
        sessions: &Sessions,
        work: &mut Work,
    ) {
        if self.closing.is_some() {
            return;
        }
        for DueSession { partition, ahead } in self.heartbeats.due(now) {
            let mut action = self.heartbeats.with(partition, |heartbeat| heartbeat.poll(now, ahead));
            if matches!(action, Some(SessionAction::End)) {
                if self.end_if_unused(partition, sessions, work) {
                    continue;
                }
                action = self.heartbeats.with(partition, |heartbeat| heartbeat.poll_in_use(now, ahead));
            }
            match action {
                None | Some(SessionAction::Nothing | SessionAction::End) => {}
                Some(SessionAction::Heartbeat(request)) => {
                    HeartbeatBatch::add(&mut work.heartbeats, request, now, call);
                }
                Some(SessionAction::Lapsed) => self.end_lapsed(partition, now, work),
            }
        }
    }

    /// Collects the partitions where a session must begin.
    pub(super) fn collect_wanted_sessions(&mut self, sessions: &Sessions, work: &mut Work) {
        if self.closing.is_some() {
            return;
        }
        for partition in std::mem::take(&mut self.sessions_wanted) {
            if self.sessions_changing.contains(&partition) {
                self.sessions_wanted.insert(partition);
            } else if !sessions.current(partition).has_begun() {
                self.sessions_changing.insert(partition);
                work.to_begin.push(partition);
            }
        }
    }

    /// Leaves a hold as it is until the session of its partition has begun, or the hold expires.
    pub(super) fn await_session(&mut self, id: TrackingId) {
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        let (partition, expires) = (tracked.hold.session.partition, tracked.schedule.valid_until());
        tracked.slot = Some(self.batcher.insert(id, expires, expires));
        self.awaiting_session.entry(partition).or_default().insert(id);
        self.sessions_wanted.insert(partition);
    }

    /// Holds that wait until the session of this partition has begun: it begins with these.
    fn held_before(&self, partition: Partition) -> Vec<Arc<Hold>> {
        let ids = self.awaiting_session.get(&partition).into_iter().flatten().take(MAX_REPORTS);
        ids.filter_map(|id| self.tracked.get(id)).map(|tracked| tracked.hold.clone()).collect()
    }

    /// Counts the holds that a session has begun with. What is not held any more is reported with its next heartbeat.
    fn adopt(
        &mut self,
        awaiting: &BTreeSet<TrackingId>,
        reported: &[Lock],
        mut heartbeat: SessionHeartbeat,
    ) -> SessionHeartbeat {
        for id in awaiting {
            let Some(tracked) = self.tracked.get_mut(id).filter(|tracked| !tracked.lost) else { continue };
            if reported.binary_search(&tracked.hold.lock).is_ok() {
                heartbeat.count_held(&tracked.hold.lock);
                tracked.reported = true;
                self.activity.lock_reported(tracked.hold.actor());
            }
        }
        for lock in reported {
            heartbeat.report_if_released(lock);
        }
        heartbeat
    }

    /// Whether a hold waits until the session of this partition has begun.
    fn is_session_awaited(&mut self, partition: Partition, now: Moment) -> bool {
        let Some(mut ids) = self.awaiting_session.remove(&partition) else { return false };
        let can_wait = |tracked: &TrackedHold| !tracked.lost && now < tracked.hold.valid_until();
        ids.retain(|id| self.tracked.get(id).is_some_and(can_wait));
        let is_awaited = !ids.is_empty();
        if is_awaited {
            self.awaiting_session.insert(partition, ids);
        }
        is_awaited
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
        self.lose_holds_of(&session, &reason);
    }

    /// Stops extending all holds of a session that is over. The keeper reports their loss.
    /// Returns whether there were any.
    fn lose_holds_of(&mut self, session: &Session, reason: &LostReason) -> bool {
        let partition = session.partition;
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
        for id in &ids {
            let lost = self.stop_extending(*id).map(|hold| (*id, hold, reason.clone()));
            self.lost_with_session.extend(lost);
        }
        !ids.is_empty()
    }

    /// Removes the idle holds that do not end with this session, which is over. No task takes them any more, and what the store
    /// sends to the session does not arrive: the client would not learn that another one wants the lock.
    fn remove_idle_of(&mut self, session: &Session, now: Moment) -> Vec<Arc<Hold>> {
        let is_kept = |tracked: &TrackedHold| {
            let its = &tracked.hold.session;
            let is_of_it = its.id == session.id && its.partition == session.partition;
            is_of_it && tracked.hold.is_idle() && !tracked.lost
        };
        let ids: Vec<_> =
            self.tracked.iter().filter(|(_, tracked)| is_kept(tracked)).map(|(id, _)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove_idle(id, now)).collect()
    }
}

/// Sends heartbeats together, and records their results.
pub(super) async fn send_heartbeats(shared: Arc<Shared>, batch: HeartbeatBatch) {
    let HeartbeatBatch { requests, within } = batch;
    let sent_at = shared.environment.now();
    let each = requests.into_iter().map(|request| {
        let partition = request.session.partition;
        (request.session, (partition, request.op))
    });
    let (sessions, ops): (Vec<_>, Vec<_>) = each.unzip();
    let request = shared.telemetry().request();
    let outcomes = shared.store.execute_sessions(&ops, within).await;
    let now = shared.environment.now();
    let margins: Vec<_> = sessions.iter().map(|session| session.alive_until().since(now)).collect();
    // These clones would make the sessions look used.
    drop(sessions);
    request.all_answered(&ops, &outcomes);
    let renewed =
        outcomes.iter().zip(margins).filter(|(outcome, margin)| is_alive(outcome) && !margin.is_zero());
    let renewed: Vec<_> = renewed.map(|(_, margin)| margin).collect();
    let mut state = shared.state();
    let mut begun_again = Vec::new();
    for ((partition, op), outcome) in ops.iter().zip(outcomes) {
        let must_verify = state.heartbeats.with(*partition, |heartbeat| {
            let random = &mut || shared.environment.random();
            heartbeat.is_of(op) && heartbeat.handle_outcome(op, outcome, sent_at, now, random)
        });
        if must_verify == Some(true) {
            // First when the store turns out to have forgotten the session, since it may never begin again; then once it has
            // begun, for what was granted in between.
            state.unverified.insert(*partition);
            if begins(op) {
                tracing::warn!(%partition, "the store had forgotten the session, and perhaps its locks");
                begun_again.push(*partition);
            }
        }
    }
    drop(state);
    for margin in renewed {
        shared.telemetry().session_renewed(margin);
    }
    for partition in begun_again {
        // The store has lost the queues as well.
        shared.session_factory.events.missed_messages(partition);
    }
}

fn is_alive(outcome: &Outcome<SessionReply>) -> bool {
    matches!(outcome, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)))
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

/// Begins the current session of a partition as soon as possible, and retries while a task or a hold waits for it.
async fn try_to_begin(shared: &Shared, partition: Partition, again: bool) {
    let mut session = shared.sessions.current(partition);
    let first_id = session.id;
    if again {
        tracing::warn!(session = %session.id, "the session has lapsed; all its holds are lost");
        session = shared.renew(&session);
    }
    let (mut pause, most) = BEGIN_BACKOFF;
    loop {
        let now = shared.environment.now();
        if shared.session_factory.store.capabilities().partitioned && !shared.is_session_awaited(partition) {
            // It begins when it is needed.
            return;
        }
        if session.is_over(now) {
            session = shared.renew(&session);
        }
        let held = shared.state().held_before(partition);
        let locks: BTreeSet<_> = held.iter().map(|hold| hold.lock.clone()).collect();
        let locks: Vec<_> = locks.into_iter().collect();
        match shared.session_factory.begin(&session, &locks).await {
            Ok(schedule) => return shared.handle_begun(first_id, session, schedule, &locks),
            Err(BeginFailure::Lapsed) => {
                tracing::debug!(session = %session.id, "the session lapsed before it was known to have begun");
                session = shared.renew(&session);
            }
            Err(BeginFailure::Fault(fault)) => {
                if fault.is_transient() {
                    tracing::debug!(%fault, "cannot begin a session yet");
                } else {
                    tracing::warn!(%partition, %fault, "cannot begin a session: longer holds will expire");
                }
                shared.sessions.set_fault(partition, fault);
                if !shared.sessions.begin_late() {
                    session = shared.renew(&session);
                }
            }
        }
        let again_at = shared.environment.now() + pause / 2 + jitter(&*shared.environment, pause / 2);
        shared.environment.sleep_until(again_at).await;
        pause = (pause * 2).min(most);
    }
}

/// Ends an unused session.
pub(super) async fn end_unused(shared: Arc<Shared>, session: Arc<Session>) {
    let (partition, id) = (session.partition, session.id);
    session.end();
    shared.session_factory.store.close_mailbox(partition, id);
    let is_over = end(&shared, partition, id, shared.timings.call).await && !session.may_begin_late();
    // Otherwise the request that begins or ends it may arrive late, and must not concern the next session.
    let next = if is_over { id } else { fresh_id(&*shared.environment) };
    shared.sessions.renew(partition, next);
    shared.finish_change(partition);
}

/// Ends all sessions at the store, with a single attempt: otherwise they lapse. Merges what was counted last.
pub(super) async fn end_sessions(shared: &Shared, by: Option<Moment>) {
    let heartbeats: Vec<_> = shared.state().heartbeats.take().collect();
    let within = shared.timings.call.min(by.unwrap_or(NEVER).since(shared.environment.now()));
    let ends = heartbeats.iter().map(|SessionHeartbeat { session, .. }| {
        session.end();
        end(shared, session.partition, session.id, within)
    });
    let ends: Vec<_> = ends.collect();
    if !within.is_zero() {
        join(join_all(ends), merge_last(shared, within)).await;
    }
}

async fn end(shared: &Shared, partition: Partition, session: SessionId, within: Duration) -> bool {
    let op = SessionOp::End(session);
    let request = shared.telemetry().request();
    let outcome = shared.store.execute_session(partition, &op, within).await;
    request.answered(op.operation(), &outcome);
    match outcome {
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

    /// Whether a task or a hold waits until the session of this partition has begun.
    fn is_session_awaited(&self, partition: Partition) -> bool {
        let now = self.environment.now();
        self.sessions.is_awaited(partition) || self.state().is_session_awaited(partition, now)
    }

    /// Replaces a session that is over by one with another id, which has not begun.
    fn renew(&self, old: &Arc<Session>) -> Arc<Session> {
        old.end();
        self.session_factory.store.close_mailbox(old.partition, old.id);
        let lost_any = {
            let mut state = self.state();
            state.renewed.insert(old.partition);
            state.lose_holds_of(old, &LostReason::SessionLapsed)
        };
        if lost_any {
            // It had not begun, and never will: a lapse has been signaled before.
            self.sessions.handle_lapsed();
        }
        let next = self.sessions.renew(old.partition, fresh_id(&*self.environment));
        let now = self.environment.now();
        let kept = self.state().remove_idle_of(old, now);
        for hold in &kept {
            self.release_removed(hold, now);
        }
        tracing::debug!(partition = %old.partition, old = %old.id, new = %next.id, "the session has another id");
        self.session_factory.events.missed_messages(old.partition);
        self.wake.notify_one();
        next
    }

    /// A session has begun: waiting tasks continue under it, and its holds can be extended.
    fn handle_begun(
        &self,
        old: SessionId,
        session: Arc<Session>,
        schedule: Option<HeartbeatSchedule>,
        reported: &[Lock],
    ) {
        let (partition, id, now) = (session.partition, session.id, self.environment.now());
        if old == id {
            tracing::debug!(%partition, session = %id, "a session has begun");
        } else {
            tracing::info!(%partition, %old, new = %id, "another session has begun");
        }
        let mut state = self.state();
        let awaiting = state.awaiting_session.remove(&partition).unwrap_or_default();
        if let Some(schedule) = schedule {
            let metadata = self.session_factory.metadata.clone();
            let heartbeat = SessionHeartbeat::new(session, schedule, metadata, now);
            let heartbeat = state.adopt(&awaiting, reported, heartbeat);
            state.heartbeats.insert(heartbeat);
        }
        state.activity.session_begun(partition);
        for hold in awaiting {
            state.reschedule(hold);
        }
        if state.renewed.remove(&partition) {
            // While no mailbox was open, a connection made again to a store with older data would not have been reported.
            state.compare_soon(partition);
        }
        let is_closing = state.closing.is_some();
        drop(state);
        self.sessions.handle_begun(partition);
        if is_closing {
            // A closing client sets `closing` first and closes the mailboxes that it finds then.
            self.session_factory.store.close_mailbox(partition, id);
        }
        self.wake.notify_one();
    }
}
