//! Keeper work for sessions: it begins them, sends heartbeats, notices a lapse, and ends unused ones.
//!
//! What a heartbeat reports is up to [`SessionHeartbeat`], and when it is due to the core.

use super::{KeepId, Kept, Shared, State, Work};
use crate::engine::keeper::heartbeat::{HeartbeatInFlight, Need, SessionHeartbeat};
use crate::engine::session::{Session, Sessions, fresh_id};
use crate::engine::{FAR, LostReason};
use crate::store::Outcome;
use futures_util::future::join_all;
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::{HeartbeatReply, Moment, Partition, SessionId, SessionOp, SessionReply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between attempts to begin a session: the first, and the longest.
const BIRTH_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

impl State {
    /// Reports a hold with heartbeats: it was extended, so it is held for a while.
    pub(super) fn tell(&mut self, id: KeepId) {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost && !kept.told) else { return };
        kept.told = self.hearts.with(kept.hold.session.place, |heart| heart.tell(&kept.hold.lock)).is_some();
    }

    /// Stops reporting a hold with heartbeats.
    pub(super) fn not_told(&mut self, id: KeepId) {
        if let Some(kept) = self.kept.get_mut(&id)
            && std::mem::take(&mut kept.told)
        {
            self.hearts.with(kept.hold.session.place, |heart| heart.left(&kept.hold.lock));
        }
    }

    /// Collects the work for sessions (7). A closing keeper sends no heartbeats: nothing depends on its sessions any
    /// more.
    pub(super) fn execute_session(&mut self, now: Moment, sessions: &Sessions, work: &mut Work) {
        if self.closing.is_some() {
            return;
        }
        for place in self.hearts.due(now) {
            if self.hearts.with(place, |heart| heart.is_idle(now)) == Some(true)
                && self.put_away(place, sessions, work)
            {
                continue;
            }
            match self.hearts.with(place, |heart| heart.poll(now)) {
                None | Some(Need::Rest) => {}
                Some(Need::Heartbeat(throb)) => work.throbs.push(throb),
                Some(Need::Lapsed) => self.lapse(place, now, work),
            }
        }
        for place in std::mem::take(&mut self.wanted) {
            if self.busy.contains(&place) {
                self.wanted.insert(place);
            } else if sessions.present(place).alive_until() == Moment::ZERO {
                self.busy.insert(place);
                work.begun.push(place);
            }
        }
    }

    /// Ends an unused session, in a store with several partitions.
    fn put_away(&mut self, place: Partition, sessions: &Sessions, work: &mut Work) -> bool {
        let Some(session) = self.hearts.session(place).filter(|session| sessions.put_away(session)).cloned()
        else {
            return false;
        };
        self.hearts.remove(place);
        self.busy.insert(place);
        work.unused_sessions.push(session);
        true
    }

    /// The session of a partition is over, with all holds that depend on it.
    fn lapse(&mut self, place: Partition, now: Moment, work: &mut Work) {
        let Some(SessionHeartbeat { session, .. }) = self.hearts.remove(place) else { return };
        // By this process's clock it would still be alive.
        let in_time = now < session.alive_until();
        session.end();
        self.busy.insert(place);
        work.lapsed.push(place);
        let reason = if in_time { LostReason::StoreLostData } else { LostReason::SessionLapsed };
        let here = |kept: &Kept| kept.hold.session.place == place;
        // What the next session reports is its own.
        self.kept.values_mut().filter(|kept| here(kept)).for_each(|kept| kept.told = false);
        let of_it = |kept: &Kept| {
            let its = &kept.hold.session;
            !kept.lost && its.life.ends_with_session() && its.id == session.id && here(kept)
        };
        let ids: Vec<_> = self.kept.iter().filter(|(_, kept)| of_it(kept)).map(|(id, _)| *id).collect();
        for id in ids {
            work.lost.extend(self.lose(id).map(|hold| (id, hold, reason.clone())));
        }
    }
}

/// Sends one heartbeat and records its result.
pub(super) async fn beat(shared: Arc<Shared>, throb: HeartbeatInFlight) {
    let sent_at = shared.environment.now();
    // Half of the remaining time, so that there is time for another attempt.
    let left = throb.valid_until.since(sent_at);
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let HeartbeatInFlight { session, op, .. } = throb;
    let (place, id) = (session.place, session.id);
    let outcome = shared.store.execute_session(place, &op, within).await;
    // This clone would make the session look used.
    drop(session);
    let now = shared.environment.now();
    let entered = shared.state().hearts.with(place, |heart| {
        if heart.session.id != id {
            return;
        }
        match outcome {
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive)) => {
                heart.handle_beaten(sent_at, now);
            }
            Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Lapsed)) => heart.handle_lapsed(),
            other => {
                if let Outcome::Failed(_, fault) = other {
                    tracing::debug!(%fault, "the session has not beaten yet");
                }
                heart.handle_fault(&op, now, &mut || shared.environment.random());
            }
        }
    });
    if entered.is_some() {
        shared.bell.notify_one();
    }
}

/// Begins a session in a partition, unless the keeper is closed. `again` is set if the previous one has lapsed.
pub(super) async fn begin(shared: Arc<Shared>, place: Partition, again: bool) {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => {}
        () = try_to_begin(&shared, place, again) => {}
    }
    shared.is_done(place);
}

/// Begins a session as soon as possible, and retries while a task waits for it.
async fn try_to_begin(shared: &Shared, place: Partition, again: bool) {
    let old = shared.sessions.present(place);
    let mut id = old.id;
    if again {
        tracing::warn!(session = %old.id, "the session has lapsed; all its holds are lost");
        id = fresh_id(&*shared.environment);
    }
    let (mut pause, most) = BIRTH_PAUSE;
    loop {
        if shared.birth.store.capabilities().partitioned && !shared.sessions.is_awaited(place) {
            // No task waits: it begins when it is wanted. The attempt may have left something at the store, so the
            // next one has another id.
            shared.sessions.rename(place, id);
            return shared.birth.store.close_mailbox(place, old.id);
        }
        match shared.birth.begin(place, id).await {
            Ok((session, pulse)) => return shared.live_on(&old, session, pulse),
            Err(fault) => {
                tracing::debug!(%fault, "cannot begin a session yet");
                shared.sessions.note(place, fault);
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
    let (place, id) = (session.place, session.id);
    session.end();
    shared.birth.store.close_mailbox(place, id);
    if !end(&shared, place, id, shared.timings.call).await {
        // The request may arrive late, and must not end the next session.
        shared.sessions.rename(place, fresh_id(&*shared.environment));
    }
    shared.is_done(place);
}

/// Ends all sessions at the store, with a single attempt: otherwise they lapse.
pub(super) async fn end_sessions(shared: &Shared, by: Option<Moment>) {
    let hearts: Vec<_> = shared.state().hearts.take().collect();
    let within = shared.timings.call.min(by.unwrap_or(FAR).since(shared.environment.now()));
    let ends = hearts.iter().map(|SessionHeartbeat { session, .. }| {
        session.end();
        end(shared, session.place, session.id, within)
    });
    let ends: Vec<_> = ends.collect();
    if !within.is_zero() {
        join_all(ends).await;
    }
}

async fn end(shared: &Shared, place: Partition, session: SessionId, within: Duration) -> bool {
    let op = SessionOp::End(session);
    match shared.store.execute_session(place, &op, within).await {
        Outcome::Done(_) => true,
        Outcome::Failed(_, fault) => {
            tracing::debug!(%fault, "the session was not ended: it lapses");
            false
        }
    }
}

impl Shared {
    /// No session of this partition is beginning or ending any more.
    fn is_done(&self, place: Partition) {
        self.state().busy.remove(&place);
        self.bell.notify_one();
    }

    /// Another session has begun: waiting tasks continue under it.
    fn live_on(&self, old: &Arc<Session>, session: Arc<Session>, pulse: Option<HeartbeatSchedule>) {
        let (place, id, now) = (session.place, session.id, self.environment.now());
        if let Some(pulse) = pulse {
            self.state().hearts.insert(SessionHeartbeat::new(session.clone(), pulse, now));
        }
        self.sessions.replace(session);
        if old.id == id {
            tracing::debug!(%place, session = %id, "a session has begun");
        } else {
            tracing::info!(%place, old = %old.id, new = %id, "another session has begun");
            self.birth.store.close_mailbox(place, old.id);
            self.birth.post.resubscribed();
        }
        if self.state().closing.is_some() {
            // A closing client sets `closing` first and closes the mailbox it finds then, which may have been the old
            // one.
            self.birth.store.close_mailbox(place, id);
        }
        self.bell.notify_one();
    }
}
