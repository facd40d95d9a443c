//! Ends holds on behalf of other clients: the eviction of a dead session, a forced release.
//!
//! 1. Only an operation that checks a session in the same step treats it as dead, and removes only what ends with that
//!    session.
//! 2. A hold that is ended here no longer waits. It can do both: another client replaced its value, the holder queued
//!    again, and the other client restored the value.
//! 3. Each hold that is ended here has an audit entry. The holds of a ReentrantMutex have one owner, and share an entry.

use super::audit::Audit;
use super::lock::{LockState, Now};
use super::record::{MAX_INSPECTED_ENTRIES, QueueEntryId};
use super::session::{SessionLookup, SessionStatus};
use crate::{
    AuditEntry, Ended, Evict, Evicted, FencingToken, ForceRelease, ForceReleased, HoldId, Label, Liveness,
    Notification, ObservedHolder, Refused, SessionId,
};

impl LockState {
    /// Ends the hold and the queue entries of a dead session (1). Returns the fencing token of the hold, and whether the
    /// session was queued. For a store that tracks dead sessions itself. The next operation that finds the lock free
    /// grants it.
    pub fn evict_session(
        &mut self,
        now_us: u64,
        dead: SessionId,
        actor: &Label,
    ) -> (Option<FencingToken>, bool) {
        let now = Now { us: now_us, ms: now_us / 1000 };
        self.drop_expired_holds(now);
        self.evict_dead(now, dead, actor, usize::MAX)
    }

    /// The same for one operation, which inspects so many holds of a shared lock.
    pub(super) fn evict_dead(
        &mut self,
        now: Now,
        dead: SessionId,
        actor: &Label,
        inspected: usize,
    ) -> (Option<FencingToken>, bool) {
        let ends_with_it =
            |liveness: Liveness, hold: &HoldId| liveness.ends_with_session() && hold.session() == dead;
        let was_queued = self.record.as_mut().is_some_and(|record| {
            let its_entries: Vec<_> = record
                .tickets
                .values()
                .filter(|id| id.session() == dead)
                .filter_map(|id| Some((*id, record.entries.get(id)?)))
                .take(MAX_INSPECTED_ENTRIES)
                .filter(|(_, entry)| ends_with_it(entry.liveness, &entry.claim.hold))
                .map(|(id, _)| id)
                .collect();
            // A session with more entries than that takes several steps.
            its_entries.into_iter().filter_map(|id| record.remove(id)).count() > 0
        });
        let fence = self
            .end_holds(now, Ended::Evicted, actor, inspected, |liveness, hold| ends_with_it(liveness, hold));
        (fence, was_queued)
    }

    /// Removes a dead session, and grants the lock to the next waiter.
    pub(super) fn evict(
        &mut self,
        now: Now,
        evict: &Evict,
        sessions: SessionLookup<'_>,
        notifications: &mut Vec<Notification>,
    ) -> Result<Evicted, Refused> {
        self.refuse_other_types()?;
        if self.session_alive_ms(now, evict.session, sessions).is_some() {
            return Ok(Evicted::Alive);
        }
        let (fence, was_queued) = self.evict_dead(now, evict.session, &evict.actor, usize::MAX);
        self.serve_queue(now, notifications);
        Ok(Evicted::Removed { fence, was_queued })
    }

    /// Ends the hold that an operator observed, and grants the lock to the next waiter.
    pub(super) fn force_release(
        &mut self,
        now: Now,
        force_release: &ForceRelease,
        notifications: &mut Vec<Notification>,
    ) -> Result<ForceReleased, Refused> {
        self.refuse_other_types()?;
        if self.kind.is_shared() {
            return Ok(self.force_release_shared(now, force_release, notifications));
        }
        let fence = self.fence();
        match force_release.observed {
            ObservedHolder::Hold(observed) if fence == Some(observed) => {
                // Each session once, oldest first: a script has no other order.
                let sessions: Vec<_> =
                    self.recorded_holders().iter().map(|recorded| recorded.claim.hold.session()).collect();
                let first = sessions.iter().enumerate().filter(|(at, to)| !sessions[..*at].contains(to));
                notifications
                    .extend(first.map(|(_, to)| Notification::ForceReleased { to: *to, fence: observed }));
                self.end_holds(now, Ended::ForceReleased, &force_release.actor, usize::MAX, |_, _| true);
                // A client of another library may have another hold of the same owner.
                self.value = None;
            }
            ObservedHolder::Foreign(fingerprint) if self.foreign_fingerprint() == Some(fingerprint) => {
                self.value = None;
                let (ended, actor) = (Ended::ForceReleased, force_release.actor.clone());
                Audit::push(
                    &mut self.audit,
                    AuditEntry { at_ms: now.ms, ended, fence: None, holder: None, actor },
                );
            }
            _ => return Ok(ForceReleased::Changed { holder: self.holder(now) }),
        }
        self.grant_next(now, None, notifications);
        Ok(ForceReleased::Released)
    }

    /// Ends the holds for which `ends` is true, on behalf of a client other than their holders; of a shared lock those among
    /// the `inspected` that end first. Returns the fencing token of the first, if there are any.
    pub(super) fn end_holds(
        &mut self,
        now: Now,
        ended: Ended,
        actor: &Label,
        inspected: usize,
        ends: impl Fn(Liveness, &HoldId) -> bool,
    ) -> Option<FencingToken> {
        if self.kind.is_shared() {
            return self.end_shared_holds(now, ended, actor, inspected, ends);
        }
        let mut lost = self.recorded_holders();
        lost.retain(|recorded| ends(recorded.liveness, &recorded.claim.hold));
        let first = lost.first()?;
        let fence = self.fence();
        self.retain_reentrant_holds(now, |held| !ends(held.liveness, &held.hold));
        if let Some(record) = &mut self.record {
            for recorded in &lost {
                let hold = &recorded.claim.hold;
                if record.has_entry(self.kind, hold) {
                    record.remove(QueueEntryId::of(self.kind, hold));
                }
                record.ended.push(recorded.claim.hold, ended);
            }
        }
        let holder = Some(first.label.clone());
        let entry = AuditEntry { at_ms: now.ms, ended, fence, holder, actor: actor.clone() };
        Audit::push(&mut self.audit, entry);
        fence
    }

    /// How long a session counts as alive; `None` if it is dead. An unknown session counts as alive for as long as its
    /// client may rely on a hold of this lock.
    pub(super) fn session_alive_ms(
        &self,
        now: Now,
        session: SessionId,
        sessions: SessionLookup<'_>,
    ) -> Option<u64> {
        match sessions(session) {
            SessionStatus::Alive(alive_ms) => Some(alive_ms),
            SessionStatus::Lapsed => None,
            SessionStatus::Unknown => {
                let believed =
                    self.recorded_holders().into_iter().filter_map(|recorded| match recorded.liveness {
                        Liveness::Session { alive_ms } if recorded.claim.hold.session() == session => {
                            recorded.since_ms.saturating_add(alive_ms).checked_sub(now.ms)
                        }
                        _ => None,
                    });
                believed.max()
            }
        }
    }
}
