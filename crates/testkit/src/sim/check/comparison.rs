//! Nothing is taken from anybody but by its own hold, from the dead, or as it was seen; and what was released does not
//! come back.

use super::{Check, Scene, Verdict};
use crate::sim::event::{Event, Execution, LockId, ServerEvent};
use crate::sim::time::Instant;
use leasehold_core::{Extended, Fate, FencingToken, HoldId, Life, Op, Reply, Seen, SessionId};
use std::collections::BTreeMap;

/// Nothing is released or extended except by comparing the hold in the same step. Nothing else is taken from anybody but
/// what lives with a session that is dead at that instant, by the store's clock, or the hold that a person has seen. And the
/// hold that was ended last does not take the lock again, however late or often its acquire arrives.
#[derive(Debug, Default)]
pub struct Comparison {
    locks: BTreeMap<LockId, Before>,
}

/// A lock before an operation.
#[derive(Debug, Clone, Default)]
struct Before {
    /// Set once an operation has told how the lock stands.
    is_known: bool,
    holder: Option<Held>,
    places: BTreeMap<SessionId, Place>,
    /// The hold that ended last before its lease did.
    ended: Option<HoldId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    hold: HoldId,
    until: Option<Instant>,
    fence: FencingToken,
    life: Life,
    /// Until when it is spared, in the store's milliseconds, where its session is not known.
    spared_until_ms: u64,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Until when it is kept, in the store's milliseconds.
    kept_ms: u64,
    life: Life,
}

impl Comparison {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> Verdict {
        let before = self.locks.entry(done.lock).or_default();
        let after = held(done);
        let is_back = |ended: &HoldId| {
            matches!(done.op, Op::Acquire(_)) && after.is_some_and(|held| held.hold == *ended)
        };
        if before.is_known {
            owned(at, done, before, after)?;
            not_robbed(at, done, before, after)?;
        }
        before.is_known = true;
        // An end is remembered until the next one, which may come with an acquire.
        if let Some(back) = before.ended.filter(is_back) {
            return Err(format!("{back:?} has {} again after its end", done.lock));
        }
        if matches!(done.reply, Reply::Release(released) if released.found == Fate::Held) {
            before.ended = done.claim().map(|claim| claim.hold);
        } else if let Some(held) = before.holder.filter(|held| held.until.is_none_or(|until| at < until))
            && after.map(|after| after.hold) != Some(held.hold)
        {
            before.ended = Some(held.hold);
        }
        before.holder = after;
        before.places = places(done);
        Ok(())
    }
}

/// What an operation says of its own hold is so, and it leaves those of others as they are.
fn owned(at: Instant, done: &Execution<'_>, before: &Before, after: Option<Held>) -> Verdict {
    let held = before.holder.filter(|held| held.until.is_none_or(|until| at < until));
    let claimed = done.claim().map(|claim| claim.hold);
    let is_own = claimed.is_some() && held.map(|held| held.hold) == claimed;
    let lock = done.lock;
    match (done.op, done.reply) {
        (Op::Extend(_), Reply::Extend(Extended::Extended)) if !is_own => {
            Err(format!("{claimed:?} extended {lock}, which {held:?} has"))
        }
        (Op::Release(_), Reply::Release(released)) if released.found == Fate::Held && !is_own => {
            Err(format!("{claimed:?} released {lock}, which {held:?} has"))
        }
        (Op::Extend(_) | Op::Release(_), _) if held.is_some() && !is_own && after != held => {
            Err(format!("{claimed:?} changed {lock} from {held:?} to {after:?}"))
        }
        _ => Ok(()),
    }
}

/// Nobody has lost a hold or a place but by his own release, by his death, or by force.
fn not_robbed(at: Instant, done: &Execution<'_>, before: &Before, after: Option<Held>) -> Verdict {
    let (lock, now_ms) = (done.lock, done.clock.reading_us(at) / 1000);
    let is_dead = |session, life: Life| {
        life.ends_with_session() && done.evicts() == Some(session) && done.is_without_beat(session, at)
    };
    if let Some(held) = before.holder.filter(|held| held.until.is_none_or(|until| at < until))
        && after.map(|after| after.hold) != Some(held.hold)
    {
        let is_own = matches!(done.op, Op::Release(release) if release.claim.hold == held.hold);
        let is_freed = matches!(done.op, Op::Free(free) if free.seen == Seen::Hold(held.fence));
        let is_known = done.sessions.records.contains_key(&held.hold.session());
        let is_spared = !is_known && now_ms <= held.spared_until_ms;
        if !is_own && !is_freed && (is_spared || !is_dead(held.hold.session(), held.life)) {
            return Err(format!("{lock} was taken from {held:?} by {:?}", done.op));
        }
    }
    let now = places(done);
    for (session, place) in before.places.iter().filter(|(_, place)| place.kept_ms >= now_ms) {
        let asks = done.acquires().is_some_and(|(ask, _)| ask.claim.hold.session() == *session);
        let is_own = asks || done.claim().is_some_and(|claim| claim.hold.session() == *session);
        let is_granted = after.is_some_and(|held| held.hold.session() == *session);
        if !now.contains_key(session) && !is_own && !is_granted && !is_dead(*session, place.life) {
            return Err(format!("{session} lost its place before {lock} by {:?}", done.op));
        }
    }
    Ok(())
}

fn held(done: &Execution<'_>) -> Option<Held> {
    let (claim, fence, until) = done.holder()?;
    let spared_until_ms = done.spared_until_ms().unwrap_or(0);
    Some(Held { hold: claim.hold, until, fence, life: done.life()?, spared_until_ms })
}

fn places(done: &Execution<'_>) -> BTreeMap<SessionId, Place> {
    let places = done.state.record.iter().flat_map(|record| record.places.iter());
    places.map(|(session, place)| (*session, Place { kept_ms: place.expires_ms, life: place.life })).collect()
}

impl Check for Comparison {
    fn name(&self) -> &'static str {
        "comparison"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, _scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => return self.executed(at, done),
            // A stranger has it from here on, or nobody.
            Event::Stranger(lock, Some(_)) | Event::Server(ServerEvent::Deleted(lock)) => {
                self.locks.entry(lock).or_default().holder = None;
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
