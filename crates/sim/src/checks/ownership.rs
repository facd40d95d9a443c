//! A hold ends only for a legitimate reason, and a released hold does not return.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::model::QueueEntryId;
use leasehold_core::{
    Extended, HoldId, HoldStatus, Kind, Liveness, LockMode, ObservedHolder, Op, OwnValue, Reply,
};
use std::collections::{BTreeMap, BTreeSet};

/// A release or an extend compares the hold in the same step. Otherwise a hold ends only if its session has lapsed by
/// the store's clock, or by a forced release that names it. The hold that ended last never acquires the lock again,
/// however late or often its acquire arrives.
///
/// The same applies to each hold of a ReentrantMutex. Only the owner enters. No hold ends with another. A re-entrant
/// acquire may extend holds that are known to be in use, and shortens none.
#[derive(Debug, Default)]
pub struct Ownership {
    locks: BTreeMap<LockId, Before>,
    /// Holds that were extended by themselves: a client knows of them.
    known: BTreeSet<HoldId>,
}

/// A lock before an operation.
#[derive(Debug, Clone, Default)]
struct Before {
    /// Set once an operation has shown the state of the lock.
    is_known: bool,
    holds: Vec<Held>,
    places: BTreeMap<QueueEntryId, Partition>,
    /// The hold that ended last before its lease did.
    ended: Option<HoldId>,
}

/// A queue entry.
#[derive(Debug, Clone)]
struct Partition {
    /// When it expires, in the store's milliseconds.
    kept_ms: u64,
    life: Liveness,
    mode: LockMode,
    owner: Option<OwnValue>,
}

impl Ownership {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        let before = self.locks.entry(done.lock).or_default();
        // Expired holds belong to no client.
        before.holds.retain(|held| held.lasts(at));
        let after = done.holds(at);
        let has = |hold: &HoldId| after.iter().any(|held| held.hold == *hold);
        if before.is_known {
            owned(done, before, &after)?;
            entered(done, before, &after, &self.known)?;
            not_robbed(at, done, before, &after)?;
        }
        before.is_known = true;
        // An end is remembered until the next one, which may come with an acquire.
        if let Some(back) = before.ended.filter(|ended| matches!(done.op, Op::Acquire(_)) && has(ended)) {
            return Err(format!("{back:?} has {} again after its end", done.lock));
        }
        if ends_its_hold(done) {
            before.ended = done.claim().map(|claim| claim.hold);
        } else if let Some(gone) = before.holds.iter().find(|held| !has(&held.hold)) {
            before.ended = Some(gone.hold);
        }
        if let (Op::Extend(extend), Reply::Extend(Extended::Extended | Extended::Reserved { .. })) =
            (done.op, done.reply)
        {
            self.known.insert(extend.claim.hold);
        }
        before.holds = after;
        before.places = places(done);
        Ok(())
    }
}

/// Whether an operation is remembered as the end of its own hold. Where several meet the store remembers also the release of
/// a hold that it does not have: it can be under way.
fn ends_its_hold(done: &Execution<'_>) -> bool {
    let Reply::Release(released) = done.reply else { return false };
    match released.status {
        HoldStatus::Held => true,
        HoldStatus::Ended(_) => false,
        _ => matches!(done.state.kind, Kind::Latch | Kind::Barrier),
    }
}

/// The reply about the operation's own hold is correct, and holds of others are unchanged.
fn owned(done: &Execution<'_>, before: &Before, after: &[Held]) -> CheckResult {
    let claimed = done.claim().map(|claim| claim.hold);
    let is_own = before.holds.iter().any(|held| Some(held.hold) == claimed);
    let (lock, holds) = (done.lock, &before.holds);
    match (done.op, done.reply) {
        (Op::Extend(_), Reply::Extend(Extended::Extended | Extended::Reserved { .. })) if !is_own => {
            return Err(format!("{claimed:?} extended {lock}, which {holds:?} have"));
        }
        (Op::Release(_), Reply::Release(released)) if released.status == HoldStatus::Held && !is_own => {
            return Err(format!("{claimed:?} released {lock}, which {holds:?} have"));
        }
        (Op::Extend(_) | Op::Release(_), _) => {}
        _ => return Ok(()),
    }
    // The hold acquired with a release may be the same owner's, which re-enters.
    let enters = matches!(done.op, Op::Release(release) if release.next.is_some());
    for held in holds.iter().filter(|held| Some(held.hold) != claimed) {
        if !enters && !after.contains(held) {
            return Err(format!("{claimed:?} changed {lock} from {holds:?} to {after:?}"));
        }
    }
    Ok(())
}

/// A new hold on a held lock has the same owner. It shortens no hold, and extends only those known to be in use.
fn entered(done: &Execution<'_>, before: &Before, after: &[Held], known: &BTreeSet<HoldId>) -> CheckResult {
    let now = |held: &Held| after.iter().find(|other| other.hold == held.hold);
    let stay: Vec<_> = before.holds.iter().filter(|held| now(held).is_some()).collect();
    let asked = done.acquires().map(|(ask, _)| &ask.claim);
    for new in after.iter().filter(|held| before.holds.iter().all(|old| old.hold != held.hold)) {
        let asker: Option<&OwnValue> =
            asked.filter(|claim| claim.hold == new.hold).and_then(|c| c.value.as_ref());
        let is_owner = |held: &&Held| held.owner.is_some() && held.owner.as_ref() == asker;
        if done.state.kind.is_shared() {
            // `Sharing` checks which holds are compatible.
            break;
        }
        if let Some(other) = stay.iter().find(|held| !is_owner(held)) {
            return Err(format!("{:?} of {asker:?} got {} beside {other:?}", new.hold, done.lock));
        }
    }
    let claimed = done.claim().map(|claim| claim.hold);
    for held in before.holds.iter().filter(|held| Some(held.hold) != claimed) {
        let Some(now) = now(held) else { continue };
        if now.until.zip(held.until).is_some_and(|(now, then)| now < then) {
            return Err(format!("{:?} cut {held:?} of {} short: {now:?}", done.op, done.lock));
        }
        if now.until != held.until && !known.contains(&held.hold) {
            return Err(format!(
                "{:?} extended {held:?} of {}, which no client is known to use: {now:?}",
                done.op, done.lock
            ));
        }
    }
    Ok(())
}

/// No hold or queue entry ends but by its own release, by the lapse of its session, or by force.
fn not_robbed(at: Instant, done: &Execution<'_>, before: &Before, after: &[Held]) -> CheckResult {
    let (lock, now_ms) = (done.lock, done.clock.reading_us(at) / 1000);
    let is_dead = |session, life: Liveness| {
        life.ends_with_session() && done.evicts() == Some(session) && done.is_without_beat(session, at)
    };
    for held in before.holds.iter().filter(|held| after.iter().all(|now| now.hold != held.hold)) {
        let is_own = matches!(done.op, Op::Release(release) if release.claim.hold == held.hold);
        let is_freed =
            matches!(done.op, Op::ForceRelease(free) if free.observed == ObservedHolder::Hold(held.fence));
        let session = held.hold.session();
        let is_known = done.sessions.records.contains_key(&session);
        // A session without a record is spared because of any of its holds here.
        let its = before.holds.iter().filter(|held| held.hold.session() == session);
        let spared_until_ms = its.filter_map(Held::spared_until_ms).max().unwrap_or(0);
        let is_spared = !is_known && now_ms <= spared_until_ms;
        if !is_own && !is_freed && (is_spared || !is_dead(session, held.life)) {
            return Err(format!("{lock} was taken from {held:?} by {:?}", done.op));
        }
    }
    let now = places(done);
    let id = |hold: &HoldId| QueueEntryId::of(done.state.kind, hold);
    let stay: Vec<_> =
        before.holds.iter().filter(|held| after.iter().any(|now| now.hold == held.hold)).collect();
    for (place_id, place) in before.places.iter().filter(|(_, place)| place.kept_ms >= now_ms) {
        let asks = done.acquires().is_some_and(|(ask, _)| id(&ask.claim.hold) == *place_id);
        let is_own = asks || done.claim().is_some_and(|claim| id(&claim.hold) == *place_id);
        let is_granted = after.iter().any(|held| id(&held.hold) == *place_id);
        let session = place_id.session();
        let is_excused =
            is_own || is_granted || is_dead(session, place.life) || is_hopeless(done, place, &stay);
        if !now.contains_key(place_id) && !is_excused {
            return Err(format!("{session} lost its place before {lock} by {:?}", done.op));
        }
    }
    Ok(())
}

/// Whether a waiter can never be granted because of a current holder. It is refused when it polls.
fn is_hopeless(done: &Execution<'_>, place: &Partition, stay: &[&Held]) -> bool {
    let limit = done.state.record.as_ref().and_then(|record| record.limit);
    match place.mode {
        LockMode::Permits { count, .. } => limit.is_some_and(|limit| count > limit),
        LockMode::Upgrade => {
            !stay.iter().any(|held| held.mode == LockMode::Upgradable && held.owner == place.owner)
        }
        _ => false,
    }
}

fn places(done: &Execution<'_>) -> BTreeMap<QueueEntryId, Partition> {
    let places = done.state.record.iter().flat_map(|record| record.entries.iter());
    let seen = |place: &leasehold_core::model::QueueEntry| Partition {
        kept_ms: place.expires_ms,
        life: place.liveness,
        mode: place.mode,
        owner: place.claim.value.clone(),
    };
    places.map(|(id, place)| (*id, seen(place))).collect()
}

impl Check for Ownership {
    fn name(&self) -> &'static str {
        "ownership"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _scene: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => return self.executed(at, done),
            // The lock is foreign or free from here on.
            Event::Foreign(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.locks.entry(lock).or_default().holds.clear();
            }
            // The state of the store is unknown until the next operation.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.locks.clear(),
            _ => {}
        }
        Ok(())
    }
}
