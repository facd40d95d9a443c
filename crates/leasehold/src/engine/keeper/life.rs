//! What the keeper does for its session: it beats, notices the lapse, and begins another one.
//!
//! What a beat tells is [`Heart`]'s, and when it is due is the core's.

use super::super::heart::{Heart, Need, Throb};
use super::super::{FAR, LostReason, Session, jitter};
use super::{KeepId, Kept, Shared, State, Work};
use crate::store::Outcome;
use leasehold_core::pulse::Pulse;
use leasehold_core::{Beaten, Moment, SessionOp, SessionReply};
use std::sync::Arc;
use std::time::Duration;

/// Pauses between two tries to begin a session: the first, and the longest.
const BIRTH_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

impl State {
    /// People are told that a hold is there: it was extended, so it is one that lasts.
    pub(super) fn tell(&mut self, id: KeepId) {
        if let (Some(kept), Some(heart)) = (self.kept.get_mut(&id).filter(|kept| !kept.lost), &mut self.heart)
            && !std::mem::replace(&mut kept.told, true)
        {
            heart.tell(&kept.hold.lock);
        }
    }

    /// People are not told any more that a hold is there.
    pub(super) fn not_told(&mut self, id: KeepId) {
        if let (Some(kept), Some(heart)) = (self.kept.get_mut(&id), &mut self.heart)
            && std::mem::take(&mut kept.told)
        {
            heart.left(&kept.hold.lock);
        }
    }

    /// Looks after the session (7). Once the keeper is closed nothing lives with it any more: it is ended, and does not
    /// beat.
    pub(super) fn attend(&mut self, now: Moment, work: &mut Work) {
        let Some(heart) = self.heart.as_mut().filter(|_| self.closing.is_none()) else { return };
        match heart.poll(now) {
            Need::Rest => {}
            Need::Beat(throb) => work.throb = Some(throb),
            Need::Lapsed => {
                let session = heart.session.clone();
                // By our own count it would still be alive.
                let in_time = now < session.alive_until();
                session.end();
                self.heart = None;
                // What the next session has told of is its own.
                self.kept.values_mut().for_each(|kept| kept.told = false);
                work.lapsed = true;
                let reason = if in_time { LostReason::StoreLostData } else { LostReason::SessionLapsed };
                let of_it = |kept: &Kept| {
                    let its = &kept.hold.session;
                    !kept.lost && its.life.ends_with_session() && its.id == session.id
                };
                let ids: Vec<_> =
                    self.kept.iter().filter(|(_, kept)| of_it(kept)).map(|(id, _)| *id).collect();
                for id in ids {
                    work.lost.extend(self.lose(id).map(|hold| (id, hold, reason.clone())));
                }
            }
        }
    }
}

/// Sends one beat, and enters what came of it.
pub(super) async fn beat(shared: Arc<Shared>, throb: Throb) {
    let sent_at = shared.world.now();
    // Half of what is left, so that there is time for another try.
    let left = throb.valid_until.since(sent_at);
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let outcome = shared.store.attend(&throb.op, within).await;
    let now = shared.world.now();
    let mut state = shared.state();
    let Some(heart) = state.heart.as_mut().filter(|heart| heart.session.id == throb.session.id) else {
        return;
    };
    match outcome {
        Outcome::Done(SessionReply::Beat(Beaten::Alive)) => heart.handle_beaten(sent_at, now),
        Outcome::Done(SessionReply::Beat(Beaten::Lapsed)) => heart.handle_lapsed(),
        other => {
            if let Outcome::Refused(fault) | Outcome::Unknown(fault) = other {
                tracing::debug!(%fault, "the session has not beaten yet");
            }
            heart.handle_fault(&throb.op, now, &mut || shared.world.random());
        }
    }
    drop(state);
    shared.bell.notify_one();
}

/// Begins another session, since the present one has lapsed, unless the keeper is closed.
pub(super) async fn begin_again(shared: Arc<Shared>) {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => {}
        () = try_to_begin(&shared) => {}
    }
}

/// Begins another session as soon as that can be.
async fn try_to_begin(shared: &Shared) {
    let old = shared.sessions.present();
    tracing::warn!(session = %old.id, "the session has lapsed: all that it held is lost");
    let (mut pause, most) = BIRTH_PAUSE;
    loop {
        match shared.birth.begin().await {
            Ok((session, pulse)) => return shared.live_on(&old, session, pulse),
            Err(fault) => {
                tracing::debug!(%fault, "no session could begin yet");
                shared.sessions.note(fault);
            }
        }
        let again_at = shared.world.now() + pause / 2 + jitter(&*shared.world, pause / 2);
        shared.world.sleep_until(again_at).await;
        pause = (pause * 2).min(most);
    }
}

/// Tells the store that nothing more comes, once: if that is lost, the session lapses.
pub(super) async fn end_session(shared: &Shared, by: Option<Moment>) {
    let Some(heart) = shared.state().heart.take() else { return };
    heart.session.end();
    let op = SessionOp::End(heart.session.id);
    let within = shared.timings.call.min(by.unwrap_or(FAR).since(shared.world.now()));
    if within.is_zero() {
        return;
    }
    if let Outcome::Refused(fault) | Outcome::Unknown(fault) = shared.store.attend(&op, within).await {
        tracing::debug!(%fault, "the session was not ended: it lapses");
    }
}

impl Shared {
    /// Another session has begun: those who wait go on in its name.
    fn live_on(&self, old: &Session, session: Arc<Session>, pulse: Option<Pulse>) {
        let (id, now) = (session.id, self.world.now());
        self.state().heart = pulse.map(|pulse| Heart::new(session.clone(), pulse, now));
        tracing::info!(old = %old.id, new = %id, "another session has begun");
        self.sessions.replace(session);
        self.birth.store.close_mailbox(old.id);
        if self.state().closing.is_some() {
            // Who closes says so first, and then closes the mailbox that he finds: it may have been the old one.
            self.birth.store.close_mailbox(id);
        }
        self.birth.post.renewed();
        self.bell.notify_one();
    }
}
