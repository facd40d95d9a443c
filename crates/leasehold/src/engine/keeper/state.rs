//! What the keeper knows of its holds, and which work is due. The numbers are those of [`keeper`](super).

use super::extend::{Batch, Sent};
use super::handoff::ReserveInFlight;
use super::renewal_batcher::DueHold;
use super::{State, TrackedHold, Work};
use crate::engine::hold::{Hold, TrackingId};
use crate::engine::session::Sessions;
use crate::engine::{LostReason, NEVER};
use leasehold_core::machine::renewal::RenewalAction;
use leasehold_core::{FencingToken, Moment};
use std::sync::Arc;
use std::time::Duration;

impl TrackedHold {
    /// Updates the hold's validity from its renewal schedule.
    pub(super) fn update_hold(&self) {
        self.hold.set_kept_until(self.schedule.kept_until());
        self.hold.extend_validity(self.schedule.valid_until());
        if self.schedule.ends_by_limit() {
            self.hold.set_capped();
        }
    }
}

impl State {
    pub(super) fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// A hold has ended, and nothing about it is to be sent but its release.
    pub(super) fn forget(&mut self, id: TrackingId, now: Moment) {
        if let Some(tracked) = self.tracked.remove(&id) {
            self.activity.hold_changed();
            self.ended_holds.add(&tracked.hold, now);
            self.hints.remove(id, &tracked.hold.lock.name);
            self.by_fence.remove(&(tracked.hold.store_fence, id));
            if let Some(slot) = tracked.slot {
                self.batcher.remove(id, slot);
            }
            if let Some(at) = tracked.idle_check_at {
                self.idle_checks.remove(&(at, id));
            }
        }
    }

    /// Schedules the next action for a hold.
    pub(super) fn reschedule(&mut self, id: TrackingId) -> Moment {
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| !tracked.lost) else { return NEVER };
        if let Some(slot) = tracked.slot.take() {
            self.batcher.remove(id, slot);
        }
        let due = tracked.schedule.due();
        // A hold that must be extended at once does not wait for others.
        let until = if tracked.schedule.is_verification_pending() || tracked.schedule.has_queued_request() {
            due
        } else {
            tracked.schedule.valid_until()
        };
        tracked.slot = Some(self.batcher.insert(id, due, until));
        due
    }

    /// Extends all holds with this token as soon as possible: one of them is gone, or is reported to be. Returns
    /// whether there are any.
    pub(super) fn extend_soon(&mut self, fence: FencingToken, now: Moment) -> bool {
        let range = (fence, TrackingId(0))..=(fence, TrackingId(u64::MAX));
        let ids: Vec<_> = self.by_fence.range(range).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(tracked) = self.tracked.get_mut(id).filter(|tracked| !tracked.lost) {
                tracked.schedule.verify_soon(now);
                self.reschedule(*id);
            }
        }
        !ids.is_empty()
    }

    /// Stops extending a hold, until it is retired (2).
    pub(super) fn stop_extending(&mut self, id: TrackingId) -> Option<Arc<Hold>> {
        self.unreport(id);
        self.activity.hold_changed();
        let tracked = self.tracked.get_mut(&id)?;
        tracked.lost = true;
        if let Some(slot) = tracked.slot.take() {
            self.batcher.remove(id, slot);
        }
        Some(tracked.hold.clone())
    }

    /// Collects all work that is due, and the extends that go along with it.
    pub(super) fn collect(&mut self, now: Moment, call: Duration, sessions: &Sessions) -> Work {
        let closing = self.closing.map(|by| by.min(self.end_by));
        let mut work = Work { closing, shutdown_report: self.shutdown_report.take(), ..Work::default() };
        work.cleanups.append(&mut self.cleanups);
        self.collect_unverified(now, &mut work);
        self.follow_hints(now);
        if self.closing.is_none() {
            work.activity = self.collect_activity(now, sessions);
        }
        self.collect_heartbeats(now, call, sessions, &mut work);
        work.lost.append(&mut self.lost_with_session);
        for DueHold { id, ahead } in self.batcher.take(now) {
            let Some(tracked) = self.tracked.get_mut(&id) else { continue };
            tracked.slot = None;
            if tracked.hold.is_invalid() {
                // It was found lost, or is being released, elsewhere; that code reports it.
                self.stop_extending(id);
                continue;
            }
            if tracked.schedule.is_request_due(now, ahead) && !tracked.hold.session.has_begun() {
                self.await_session(id);
                continue;
            }
            match tracked.schedule.poll(now, ahead) {
                RenewalAction::Expired | RenewalAction::Release if tracked.hold.is_idle() => {
                    work.unclaimed.push(id);
                    continue;
                }
                RenewalAction::Expired => {
                    work.lost.extend(self.stop_extending(id).map(|hold| (id, hold, LostReason::Expired)));
                    continue;
                }
                RenewalAction::Release if !tracked.hold.margin().is_zero() => {
                    work.lost.extend(self.stop_extending(id).map(|hold| (id, hold, LostReason::Capped)));
                    continue;
                }
                RenewalAction::Release => {
                    work.capped.extend(self.give_up(id, now));
                    continue;
                }
                RenewalAction::SendRequest => {
                    work.reserves.push(ReserveInFlight::new(id, tracked, call, now));
                }
                RenewalAction::Extend { lease, keep_record } => {
                    tracked.hold.may_last(now + call + tracked.hold.store_lease(lease));
                    let ends_soon = tracked.schedule.valid_until().since(now) < call * 2;
                    let batches = if ends_soon { &mut work.urgent } else { &mut work.calm };
                    let sent = Sent { id, hold: tracked.hold.clone(), lease, keep_record };
                    tracked.in_flight = Some(Batch::add(batches, sent));
                    self.hints.settle(id);
                    self.report(id);
                }
                RenewalAction::Sleep(_) => {}
            }
            self.reschedule(id);
        }
        self.collect_wanted_sessions(sessions, &mut work);
        work.idle_checks = self.take_idle_checks(now);
        let heartbeat = self.heartbeats.next().filter(|_| self.closing.is_none());
        let activity = Some(self.activity.due()).filter(|at| *at != NEVER && self.closing.is_none());
        let idle_check = self.idle_checks.first().map(|(at, _)| *at);
        let comparison = self.next_comparison().filter(|_| self.closing.is_none() && !self.shut_down);
        work.next = self
            .batcher
            .next()
            .into_iter()
            .chain(heartbeat)
            .chain(activity)
            .chain(idle_check)
            .chain(comparison)
            .chain(self.hints.next())
            .min();
        self.wakes_at = work.next.unwrap_or(NEVER);
        work.next = work.next.into_iter().chain(closing.filter(|by| *by != NEVER)).min();
        work
    }
}
