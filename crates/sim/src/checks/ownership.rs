//! Nothing is taken from anybody but by its own hold, from the dead, or as it was seen; and what was released does not
//! come back.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::model::PlaceId;
use leasehold_core::{Extended, Fate, HoldId, Kind, Life, Op, OwnValue, Portion, Reply, Seen};
use std::collections::{BTreeMap, BTreeSet};

/// Nothing is released or extended except by comparing the hold in the same step. Nothing else is taken from anybody but
/// what lives with a session that is dead at that instant, by the store's clock, or the hold that a person has seen. And the
/// hold that was ended last does not take the lock again, however late or often its acquire arrives.
///
/// An owner's holds of a ReentrantMutex are held to the same, each by itself: nobody enters but the owner; none ends with
/// another; and one that enters may lengthen those which are known to be had, and shortens none.
#[derive(Debug, Default)]
pub struct Ownership {
    locks: BTreeMap<LockId, Before>,
    /// Holds that were lengthened by themselves: somebody knows that he has them.
    known: BTreeSet<HoldId>,
}

/// A lock before an operation.
#[derive(Debug, Clone, Default)]
struct Before {
    /// Set once an operation has told how the lock stands.
    is_known: bool,
    holds: Vec<Held>,
    places: BTreeMap<PlaceId, Place>,
    /// The hold that ended last before its lease did.
    ended: Option<HoldId>,
}

/// A place in the queue.
#[derive(Debug, Clone)]
struct Place {
    /// Until when it is kept, in the store's milliseconds.
    kept_ms: u64,
    life: Life,
    portion: Portion,
    owner: Option<OwnValue>,
}

impl Ownership {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        let before = self.locks.entry(done.lock).or_default();
        // What is over is nobody's any more.
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
    match released.found {
        Fate::Held => true,
        Fate::Ended(_) => false,
        _ => matches!(done.state.kind, Kind::Latch | Kind::Barrier),
    }
}

/// What an operation says of its own hold is so, and it leaves those of others as they are.
fn owned(done: &Execution<'_>, before: &Before, after: &[Held]) -> CheckResult {
    let claimed = done.claim().map(|claim| claim.hold);
    let is_own = before.holds.iter().any(|held| Some(held.hold) == claimed);
    let (lock, holds) = (done.lock, &before.holds);
    match (done.op, done.reply) {
        (Op::Extend(_), Reply::Extend(Extended::Extended | Extended::Reserved { .. })) if !is_own => {
            return Err(format!("{claimed:?} extended {lock}, which {holds:?} have"));
        }
        (Op::Release(_), Reply::Release(released)) if released.found == Fate::Held && !is_own => {
            return Err(format!("{claimed:?} released {lock}, which {holds:?} have"));
        }
        (Op::Extend(_) | Op::Release(_), _) => {}
        _ => return Ok(()),
    }
    // The hold that is asked for with a release may be its owner's, who enters again.
    let enters = matches!(done.op, Op::Release(release) if release.next.is_some());
    for held in holds.iter().filter(|held| Some(held.hold) != claimed) {
        if !enters && !after.contains(held) {
            return Err(format!("{claimed:?} changed {lock} from {holds:?} to {after:?}"));
        }
    }
    Ok(())
}

/// Whoever comes to a lock that somebody has is of the same owner; and what that one has lasts no shorter for it, and no
/// longer unless it is known to be had.
fn entered(done: &Execution<'_>, before: &Before, after: &[Held], known: &BTreeSet<HoldId>) -> CheckResult {
    let now = |held: &Held| after.iter().find(|other| other.hold == held.hold);
    let stay: Vec<_> = before.holds.iter().filter(|held| now(held).is_some()).collect();
    let asked = done.acquires().map(|(ask, _)| &ask.claim);
    for new in after.iter().filter(|held| before.holds.iter().all(|old| old.hold != held.hold)) {
        let asker: Option<&OwnValue> =
            asked.filter(|claim| claim.hold == new.hold).and_then(|c| c.value.as_ref());
        let is_owner = |held: &&Held| held.owner.is_some() && held.owner.as_ref() == asker;
        if done.state.kind.is_shared() {
            // Who gets on with whom is what `Sharing` sees.
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
                "{:?} made {held:?} of {} last longer, which nobody is known to have: {now:?}",
                done.op, done.lock
            ));
        }
    }
    Ok(())
}

/// Nobody has lost a hold or a place but by his own release, by his death, or by force.
fn not_robbed(at: Instant, done: &Execution<'_>, before: &Before, after: &[Held]) -> CheckResult {
    let (lock, now_ms) = (done.lock, done.clock.reading_us(at) / 1000);
    let is_dead = |session, life: Life| {
        life.ends_with_session() && done.evicts() == Some(session) && done.is_without_beat(session, at)
    };
    for held in before.holds.iter().filter(|held| after.iter().all(|now| now.hold != held.hold)) {
        let is_own = matches!(done.op, Op::Release(release) if release.claim.hold == held.hold);
        let is_freed = matches!(done.op, Op::Free(free) if free.seen == Seen::Hold(held.fence));
        let session = held.hold.session();
        let is_known = done.sessions.records.contains_key(&session);
        // One that is not known is spared for the sake of any hold that it has here.
        let its = before.holds.iter().filter(|held| held.hold.session() == session);
        let spared_until_ms = its.filter_map(Held::spared_until_ms).max().unwrap_or(0);
        let is_spared = !is_known && now_ms <= spared_until_ms;
        if !is_own && !is_freed && (is_spared || !is_dead(session, held.life)) {
            return Err(format!("{lock} was taken from {held:?} by {:?}", done.op));
        }
    }
    let now = places(done);
    let id = |hold: &HoldId| PlaceId::of(done.state.kind, hold);
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

/// Whether one who waits can never be let in any more, by those who stay: he is told so when he looks.
fn is_hopeless(done: &Execution<'_>, place: &Place, stay: &[&Held]) -> bool {
    let limit = done.state.record.as_ref().and_then(|record| record.limit);
    match place.portion {
        Portion::Permits { count, .. } => limit.is_some_and(|limit| count > limit),
        Portion::Upgrade => {
            !stay.iter().any(|held| held.portion == Portion::Upgradable && held.owner == place.owner)
        }
        _ => false,
    }
}

fn places(done: &Execution<'_>) -> BTreeMap<PlaceId, Place> {
    let places = done.state.record.iter().flat_map(|record| record.places.iter());
    let seen = |place: &leasehold_core::model::Place| Place {
        kept_ms: place.expires_ms,
        life: place.life,
        portion: place.portion,
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
            // A stranger has it from here on, or nobody.
            Event::Foreign(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.locks.entry(lock).or_default().holds.clear();
            }
            // What is known of the store is void; the next operation tells.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => self.locks.clear(),
            _ => {}
        }
        Ok(())
    }
}
