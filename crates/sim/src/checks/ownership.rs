//! A hold ends only for a legitimate reason, and a released hold does not return.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::model::QueueEntryId;
use leasehold_core::{
    Extended, HoldId, HoldStatus, Kind, Liveness, LockMode, ObservedHolder, Op, OwnValue, RELEASED_TTL,
    Reply, whole_millis,
};
use std::collections::{BTreeMap, BTreeSet};

/// A release or an extend compares the hold in the same step. Otherwise a hold ends only if its session has lapsed by
/// the store's clock, or by a forced release that names it. The hold that ended last does not acquire the lock again while
/// the store remembers it,
/// however late or often its acquire arrives.
///
/// The same applies to each hold of a ReentrantMutex. Only the owner enters, and its holds end one by one. A re-entrant
/// acquire may extend holds that are known to be in use, and shortens none.
#[derive(Debug, Default)]
pub struct Ownership {
    locks: BTreeMap<LockId, LockBefore>,
    /// Holds that an extend has named: a client uses them.
    in_use: BTreeSet<HoldId>,
}

/// A lock before an operation.
#[derive(Debug, Clone, Default)]
struct LockBefore {
    /// Set once an operation has shown the state of the lock.
    is_known: bool,
    holds: Vec<Held>,
    entries: BTreeMap<QueueEntryId, QueuedWaiter>,
    /// The hold that ended last, before its lease did; and until when the store remembers it at least, in its milliseconds.
    ended: Option<(HoldId, u64)>,
}

/// A queue entry.
#[derive(Debug, Clone)]
struct QueuedWaiter {
    /// When it expires, in the store's milliseconds.
    expires_ms: u64,
    liveness: Liveness,
    mode: LockMode,
    owner: Option<OwnValue>,
}

impl Ownership {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        let before = self.locks.entry(done.lock).or_default();
        // Expired holds belong to no client.
        before.holds.retain(|held| held.lasts(at));
        let after = done.holds(at);
        let is_held = |hold: &HoldId| after.iter().any(|held| held.hold == *hold);
        if before.is_known {
            check_own_hold(done, before, &after)?;
            check_new_holds(done, before, &after, &self.in_use)?;
            check_ends(at, done, before, &after)?;
        }
        before.is_known = true;
        // An end is remembered until the next one, which may come with an acquire; of an idle lock not for long. A hold that
        // returns later ends with its first lease.
        let now_ms = done.clock.reading_us(at) / 1000;
        before.ended.take_if(|(_, until_ms)| now_ms > *until_ms);
        let returned = before.ended.map(|(hold, _)| hold);
        if let Some(returned) = returned.filter(|ended| matches!(done.op, Op::Acquire(_)) && is_held(ended)) {
            return Err(format!("{returned:?} of {} has returned after its end", done.lock));
        }
        let until_ms = now_ms + whole_millis(RELEASED_TTL);
        if ends_its_hold(done) {
            before.ended = done.claim().map(|claim| (claim.hold, until_ms));
        } else if let Some(ended) = before.holds.iter().rfind(|held| !is_held(&held.hold)) {
            // Of many that end at once, the store remembers the last ones.
            before.ended = Some((ended.hold, until_ms));
        }
        if let (Op::Extend(extend), Reply::Extend(Extended::Extended | Extended::Reserved { .. })) =
            (done.op, done.reply)
        {
            self.in_use.insert(extend.claim.hold);
        }
        before.holds = after;
        before.entries = entries(done);
        Ok(())
    }
}

/// Whether the store remembers the operation as the end of its own hold. For a latch or a barrier it also remembers the
/// release of a hold that it does not have: its acquire may be in flight.
fn ends_its_hold(done: &Execution<'_>) -> bool {
    let Reply::Release(released) = done.reply else { return false };
    match released.status {
        HoldStatus::Held => true,
        HoldStatus::Ended(_) => false,
        _ => matches!(done.state.kind, Kind::Latch | Kind::Barrier),
    }
}

/// The reply about the operation's own hold is correct, and holds of others are unchanged.
fn check_own_hold(done: &Execution<'_>, before: &LockBefore, after: &[Held]) -> CheckResult {
    let claimed = done.claim().map(|claim| claim.hold);
    let is_own = before.holds.iter().any(|held| Some(held.hold) == claimed);
    let (lock, holds) = (done.lock, &before.holds);
    match (done.op, done.reply) {
        (Op::Extend(_), Reply::Extend(Extended::Extended | Extended::Reserved { .. })) if !is_own => {
            return Err(format!("{claimed:?} extended {lock}, held by {holds:?}"));
        }
        (Op::Release(_), Reply::Release(released)) if released.status == HoldStatus::Held && !is_own => {
            return Err(format!("{claimed:?} released {lock}, held by {holds:?}"));
        }
        (Op::Extend(_) | Op::Release(_), _) => {}
        _ => return Ok(()),
    }
    // The hold acquired with a release may be the same owner's, which re-enters.
    let reenters = matches!(done.op, Op::Release(release) if release.next.is_some());
    for held in holds.iter().filter(|held| Some(held.hold) != claimed) {
        if !reenters && !after.contains(held) {
            return Err(format!("{claimed:?} changed {lock} from {holds:?} to {after:?}"));
        }
    }
    Ok(())
}

/// A new hold on a held lock has the same owner. It shortens no hold, and extends only those known to be in use.
fn check_new_holds(
    done: &Execution<'_>,
    before: &LockBefore,
    after: &[Held],
    in_use: &BTreeSet<HoldId>,
) -> CheckResult {
    let now = |held: &Held| after.iter().find(|other| other.hold == held.hold);
    let remaining: Vec<_> = before.holds.iter().filter(|held| now(held).is_some()).collect();
    let request = done.acquires().map(|(request, _)| &request.claim);
    for new in after.iter().filter(|held| before.holds.iter().all(|old| old.hold != held.hold)) {
        let requesting_owner: Option<&OwnValue> =
            request.filter(|claim| claim.hold == new.hold).and_then(|c| c.value.as_ref());
        let is_owner = |held: &&Held| held.owner.is_some() && held.owner.as_ref() == requesting_owner;
        if done.state.kind.is_shared() {
            // `Sharing` checks which holds are compatible.
            break;
        }
        if let Some(other) = remaining.iter().find(|held| !is_owner(held)) {
            return Err(format!(
                "{:?} of {requesting_owner:?} acquired {} beside {other:?}",
                new.hold, done.lock
            ));
        }
    }
    let claimed = done.claim().map(|claim| claim.hold);
    for held in before.holds.iter().filter(|held| Some(held.hold) != claimed) {
        let Some(now) = now(held) else { continue };
        if now.until.zip(held.until).is_some_and(|(now, then)| now < then) {
            return Err(format!("{:?} shortened {held:?} of {}: {now:?}", done.op, done.lock));
        }
        if now.until != held.until && !in_use.contains(&held.hold) {
            return Err(format!(
                "{:?} extended {held:?} of {}, which no client is known to use: {now:?}",
                done.op, done.lock
            ));
        }
    }
    Ok(())
}

/// No hold or queue entry ends but by its own release, by the lapse of its session, or by force.
fn check_ends(at: Instant, done: &Execution<'_>, before: &LockBefore, after: &[Held]) -> CheckResult {
    let (lock, now_ms) = (done.lock, done.clock.reading_us(at) / 1000);
    let has_lapsed = |session, liveness: Liveness| {
        liveness.ends_with_session() && done.evicts() == Some(session) && done.has_no_live_record(session, at)
    };
    for held in before.holds.iter().filter(|held| after.iter().all(|now| now.hold != held.hold)) {
        let is_own = matches!(done.op, Op::Release(release) if release.claim.hold == held.hold);
        let is_freed =
            matches!(done.op, Op::ForceRelease(free) if free.observed == ObservedHolder::Hold(held.fence));
        let session = held.hold.session();
        let is_known = done.sessions.records.contains_key(&session);
        // A session without a record is not evicted while any of its holds here lasts.
        let its = before.holds.iter().filter(|held| held.hold.session() == session);
        let session_spared_until_ms = its.filter_map(Held::session_spared_until_ms).max().unwrap_or(0);
        let is_spared = !is_known && now_ms <= session_spared_until_ms;
        if !is_own && !is_freed && (is_spared || !has_lapsed(session, held.liveness)) {
            return Err(format!("{held:?} of {lock} was ended by {:?}", done.op));
        }
    }
    let now = entries(done);
    let id = |hold: &HoldId| QueueEntryId::of(done.state.kind, hold);
    let remaining: Vec<_> =
        before.holds.iter().filter(|held| after.iter().any(|now| now.hold == held.hold)).collect();
    for (entry_id, waiter) in before.entries.iter().filter(|(_, waiter)| waiter.expires_ms >= now_ms) {
        let polls = done.acquires().is_some_and(|(request, _)| id(&request.claim.hold) == *entry_id);
        let is_own = polls || done.claim().is_some_and(|claim| id(&claim.hold) == *entry_id);
        let is_granted = after.iter().any(|held| id(&held.hold) == *entry_id);
        let session = entry_id.session();
        let is_legitimate = is_own
            || is_granted
            || has_lapsed(session, waiter.liveness)
            || can_never_be_granted(done, waiter, &remaining);
        if !now.contains_key(entry_id) && !is_legitimate {
            return Err(format!("the queue entry of {session} for {lock} was removed by {:?}", done.op));
        }
    }
    Ok(())
}

/// Whether a waiter can never be granted because of a current holder. It is refused when it polls.
fn can_never_be_granted(done: &Execution<'_>, waiter: &QueuedWaiter, remaining: &[&Held]) -> bool {
    let limit = done.state.record.as_ref().and_then(|record| record.limit);
    match waiter.mode {
        LockMode::Permits { count, .. } => limit.is_some_and(|limit| count > limit),
        LockMode::Upgrade => {
            !remaining.iter().any(|held| held.mode == LockMode::Upgradable && held.owner == waiter.owner)
        }
        _ => false,
    }
}

fn entries(done: &Execution<'_>) -> BTreeMap<QueueEntryId, QueuedWaiter> {
    let entries = done.state.record.iter().flat_map(|record| record.entries.iter());
    let seen = |waiter: &leasehold_core::model::QueueEntry| QueuedWaiter {
        expires_ms: waiter.expires_ms,
        liveness: waiter.liveness,
        mode: waiter.mode,
        owner: waiter.claim.value.clone(),
    };
    entries.map(|(id, waiter)| (*id, seen(waiter))).collect()
}

impl Check for Ownership {
    fn name(&self) -> &'static str {
        "ownership"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.executed(at, done),
            // From now on a foreign client holds the lock, or it is free.
            Event::Foreign(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.locks.entry(lock).or_default().holds.clear();
            }
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() => self.locks.clear(),
            _ => {}
        }
        Ok(())
    }
}
