//! Reports what the tasks of this client wait for and hold, with its heartbeats.
//!
//! A client whose tasks never wait for long reports nothing. Once a wait has lasted for a while, it is reported, with all
//! that its actor holds, and withdrawn when it ends. What an owner holds is reported together with the lock: the owner may
//! wait in another process. So is what a client holds that runs under a hold of another process.
//!
//! 1. A report is made at most every [`REPORT_INTERVAL`], and sent at once if no heartbeat is in flight. So a wait that has ended
//!    is withdrawn within that time and the time of two requests.
//! 2. A session reports what its partition has.

use super::heartbeat::REPORT_INTERVAL;
use super::{Keeper, Shared, State, TrackedHold};
use crate::engine::NEVER;
use crate::engine::activity::{ActivityReport, Actor, EnclosingHold, ReportedHold, ReportedWait};
use crate::engine::session::Sessions;
use crate::store::Outcome;
use leasehold_core::{
    Heartbeat, HeartbeatReply, Lock, LockMode, Moment, Partition, SessionId, SessionOp, SessionReply,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// What the keeper reports of waits and holds.
pub(super) struct Activity {
    client: SessionId,
    /// Set if the store follows sessions by itself: reports are then sent without heartbeats.
    by_store: bool,
    within: Vec<EnclosingHold>,
    waits: BTreeMap<u64, Wait>,
    last_wait: u64,
    /// What each session was given to report.
    reported: BTreeMap<Partition, String>,
    /// Set if it may have changed since.
    is_changed: bool,
    /// When the last report was made.
    made_at: Option<Moment>,
    /// Set while reports without heartbeats are in flight.
    is_sending: bool,
}

/// A wait that is reported.
struct Wait {
    lock: Lock,
    partition: Partition,
    mode: LockMode,
    actor: Actor,
    since_ms: u64,
    refuses: bool,
}

impl Activity {
    pub(super) const fn new(client: SessionId, by_store: bool) -> Self {
        Self {
            client,
            by_store,
            within: Vec::new(),
            waits: BTreeMap::new(),
            last_wait: 0,
            reported: BTreeMap::new(),
            is_changed: false,
            made_at: None,
            is_sending: false,
        }
    }

    /// A hold has changed hands, or is over. Returns whether a report is due for that which was not before: the keeper must
    /// be woken.
    pub(super) fn hold_changed(&mut self) -> bool {
        let was_changed = self.is_changed;
        self.is_changed |= !self.waits.is_empty() || !self.reported.is_empty();
        self.is_changed && !was_changed
    }

    /// Whether reports go without heartbeats.
    pub(super) const fn is_by_store(&self) -> bool {
        self.by_store
    }

    /// The lock of a hold is reported from now on.
    pub(super) fn lock_reported(&mut self, actor: Option<&Actor>) {
        self.is_changed |= !self.within.is_empty() || actor.is_some_and(Actor::is_owner);
    }

    /// Another session has begun, which has reported nothing.
    pub(super) fn session_begun(&mut self, partition: Partition) {
        let had_reported = self.reported.remove(&partition).is_some();
        self.is_changed |= had_reported || !self.waits.is_empty();
    }

    /// When the next report is due (1).
    pub(super) fn due(&self) -> Moment {
        match self.made_at {
            _ if !self.is_changed || self.is_sending => NEVER,
            None => Moment::ZERO,
            Some(made_at) => made_at + REPORT_INTERVAL,
        }
    }
}

impl State {
    /// Makes the reports that are due. Returns those that are to be sent without heartbeats.
    pub(super) fn collect_activity(
        &mut self,
        now: Moment,
        sessions: &Sessions,
    ) -> Vec<(Partition, SessionOp)> {
        if now < self.activity.due() {
            return Vec::new();
        }
        (self.activity.is_changed, self.activity.made_at) = (false, Some(now));
        let mut texts = self.activity_texts();
        let before = self.activity.reported.keys().copied();
        let partitions: BTreeSet<_> = texts.keys().copied().chain(before).collect();
        let mut to_send = Vec::new();
        for partition in partitions {
            let text = texts.remove(&partition).unwrap_or_default();
            if self.activity.reported.get(&partition).map_or("", String::as_str) == text {
                continue;
            }
            let report = || text.clone();
            let is_taken = if self.activity.by_store {
                let session = sessions.current(partition);
                let begun = session.has_begun();
                if begun {
                    to_send.push((partition, report_op(session.id, report())));
                }
                begun
            } else {
                self.heartbeats.with(partition, |heartbeat| heartbeat.report_activity(report())).is_some()
            };
            // A session that begins later reports it then.
            if is_taken && !text.is_empty() {
                self.activity.reported.insert(partition, text);
            } else {
                self.activity.reported.remove(&partition);
            }
        }
        self.activity.is_sending = !to_send.is_empty();
        to_send
    }

    /// The text of each session that has something to report.
    fn activity_texts(&self) -> BTreeMap<Partition, String> {
        let mut reports: BTreeMap<Partition, ActivityReport> = BTreeMap::new();
        let Activity { client, within, waits, .. } = &self.activity;
        let empty = || ActivityReport {
            client: *client,
            waits: Vec::new(),
            holds: Vec::new(),
            within: within.clone(),
            omitted: 0,
        };
        let waiting: HashSet<_> = waits.values().map(|wait| &wait.actor).collect();
        let mut holding = HashSet::new();
        let is_reported = |tracked: &TrackedHold, actor: &Actor| {
            waiting.contains(actor) || tracked.reported && (actor.is_owner() || !within.is_empty())
        };
        for tracked in self.tracked.values() {
            let hold = &tracked.hold;
            let Some(actor) = hold.actor() else { continue };
            if tracked.lost || tracked.releasing || hold.is_idle() || !is_reported(tracked, actor) {
                continue;
            }
            holding.insert(actor);
            let (fence, own) = (hold.store_fence.as_u64(), hold.fence.as_u64());
            reports.entry(hold.session.partition).or_insert_with(empty).holds.push(ReportedHold {
                kind: hold.lock.kind.as_str().to_owned(),
                lock: hold.lock.name.as_str().to_owned(),
                fence,
                own_fence: (own != fence).then_some(own),
                actor: actor.to_report(),
            });
        }
        // Those that may be part of a cycle come first, and those of an actor side by side.
        let mut waits: Vec<_> = waits.iter().map(|(id, wait)| (wait.actor.to_report(), *id, wait)).collect();
        waits.sort_by_cached_key(|(actor, id, wait)| {
            (!holding.contains(&wait.actor) && within.is_empty(), actor.clone(), *id)
        });
        for (actor, id, Wait { lock, partition, mode, actor: _, since_ms, refuses }) in waits {
            reports.entry(*partition).or_insert_with(empty).waits.push(ReportedWait {
                id,
                kind: lock.kind.as_str().to_owned(),
                lock: lock.name.as_str().to_owned(),
                mode: mode.encode(),
                actor,
                since_ms: *since_ms,
                refuses: *refuses,
            });
        }
        for report in reports.values_mut() {
            report.holds.sort_unstable();
        }
        reports.into_iter().map(|(partition, report)| (partition, report.into_text())).collect()
    }
}

fn report_op(session: SessionId, activity: String) -> SessionOp {
    SessionOp::Heartbeat(Heartbeat {
        session,
        alive_ms: 0,
        begin: None,
        acquired: Vec::new(),
        released: Vec::new(),
        renew_listing: false,
        activity: Some(activity),
    })
}

/// Sends reports to a store that follows sessions by itself.
pub(super) async fn send_activity(shared: Arc<Shared>, ops: Vec<(Partition, SessionOp)>) {
    let outcomes = shared.store.execute_sessions(&ops, shared.timings.call).await;
    let mut state = shared.state();
    state.activity.is_sending = false;
    for ((partition, _), outcome) in ops.iter().zip(outcomes) {
        if !matches!(outcome, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))) {
            // No text of ours, so that the next report differs.
            state.activity.reported.insert(*partition, "unknown".to_owned());
            state.activity.is_changed = true;
        }
    }
    drop(state);
    shared.wake.notify_one();
}

impl Keeper {
    /// Sets the holds of other processes under which this one runs.
    pub(crate) fn set_enclosing(&self, within: Vec<EnclosingHold>) {
        self.shared.state().activity.within = within;
    }

    /// The client, in reports.
    pub(in crate::engine) fn client(&self) -> SessionId {
        self.shared.state().activity.client
    }

    /// Reports a wait that has lasted for a while, until the result is dropped. Reports nothing if no session can.
    pub(in crate::engine) fn report_wait(
        &self,
        lock: &Lock,
        partition: Partition,
        (mode, actor): (LockMode, Actor),
        since_ms: u64,
        refuses: bool,
    ) -> WaitReport {
        let mut state = self.shared.state();
        state.activity.last_wait += 1;
        let id = state.activity.last_wait;
        state
            .activity
            .waits
            .insert(id, Wait { lock: lock.clone(), partition, mode, actor, since_ms, refuses });
        state.activity.is_changed = true;
        drop(state);
        self.shared.wake.notify_one();
        WaitReport { shared: self.shared.clone(), id }
    }
}

/// A wait that is reported. Withdrawn when dropped.
pub(in crate::engine) struct WaitReport {
    shared: Arc<Shared>,
    pub(in crate::engine) id: u64,
}

impl Drop for WaitReport {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.activity.waits.remove(&self.id);
        state.activity.is_changed = true;
        drop(state);
        self.shared.wake.notify_one();
    }
}
