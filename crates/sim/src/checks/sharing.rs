//! Concurrent holders are compatible, at the store and by its clock.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, LockId, ServerEvent};
use crate::world::time::Instant;
use leasehold_core::{Acquire, Acquired, HoldId, Kind, LockMode, Op, Refused, Reply, Resized};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a mode excludes every other owner.
pub(super) const fn writes(mode: LockMode) -> bool {
    matches!(mode, LockMode::Exclusive | LockMode::Write | LockMode::Upgrade)
}

/// Whether two modes exclude each other. Modes of the same owner do not.
pub(super) fn excludes(one: LockMode, other: LockMode, same_owner: bool) -> bool {
    let both_upgradable = one == LockMode::Upgradable && other == LockMode::Upgradable;
    !same_owner && (writes(one) || writes(other) || both_upgradable)
}

/// A new hold is compatible with all others. Permits stay within their limit; a writer is alone apart from its own
/// owner; there is one upgradable reader, and only it upgrades. A latch opens after all arrivals. A barrier opens for
/// all parties or none. A resize changes the limit only if it states the current one. A refusal has the reason that
/// it states. An owner with a hold reads again at once, and one that writes gets every mode at once.
#[derive(Debug, Default)]
pub struct Sharing {
    locks: BTreeMap<LockId, LockBefore>,
    /// The mode that each hold requested.
    requested: BTreeMap<HoldId, LockMode>,
}

/// A lock before an operation.
#[derive(Debug, Default)]
struct LockBefore {
    holds: Vec<Held>,
    limit: Option<u32>,
}

impl Sharing {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        for request in acquires(done.op) {
            self.requested.insert(request.claim.hold, request.mode);
        }
        let after = done.holds(at);
        let limit = done.state.record.as_ref().and_then(|record| record.limit);
        let before = self.locks.insert(done.lock, LockBefore { holds: after.clone(), limit });
        let Some(mut before) = before else { return Ok(()) };
        before.holds.retain(|held| held.lasts(at));
        let is_new = |held: &&Held| before.holds.iter().all(|old| old.hold != held.hold);
        let new: Vec<_> = after.iter().filter(is_new).collect();
        for held in &new {
            let requested = self.requested.get(&held.hold).copied();
            if requested != Some(held.mode) {
                return Err(format!("{held:?} of {} was requested as {requested:?}", done.lock));
            }
            let clashes = |other: &&Held| {
                let is_same = held.owner.is_some() && held.owner == other.owner;
                other.hold != held.hold && excludes(held.mode, other.mode, is_same)
            };
            if let Some(other) = after.iter().find(clashes) {
                return Err(format!("{} was granted to {held:?} beside {other:?}", done.lock));
            }
        }
        match done.state.kind {
            Kind::Semaphore => counted(done, &new, &after, limit)?,
            Kind::RwLock => upgraded(done, &new, &after)?,
            Kind::Latch => opened(done, &new, &after)?,
            Kind::Barrier => met(done, &new)?,
            _ => {}
        }
        resized(done, before.limit, limit)?;
        refused(done, &before)?;
        re_entered(done, &before)
    }
}

/// All acquires of an operation.
fn acquires(op: &Op) -> impl Iterator<Item = &Acquire> {
    let request = match op {
        Op::Acquire(request) => Some(request),
        Op::Release(release) => release.next.as_ref(),
        _ => None,
    };
    request.into_iter()
}

/// The holders have no more permits than there are.
fn counted(done: &Execution<'_>, new: &[&Held], after: &[Held], limit: Option<u32>) -> CheckResult {
    let sum: u64 = after.iter().map(|held| u64::from(held.mode.count())).sum();
    if !new.is_empty() && limit.is_none_or(|limit| sum > u64::from(limit)) {
        return Err(format!("{sum} permits of {} are held, and there are {limit:?}: {after:?}", done.lock));
    }
    Ok(())
}

/// An upgrade comes from the upgradable reader.
fn upgraded(done: &Execution<'_>, new: &[&Held], after: &[Held]) -> CheckResult {
    for held in new.iter().filter(|held| held.mode == LockMode::Upgrade) {
        let mut own = after.iter().filter(|other| other.owner == held.owner);
        if !own.any(|other| other.mode == LockMode::Upgradable) {
            return Err(format!("{held:?} of {} is an upgrade without an upgradable read", done.lock));
        }
    }
    Ok(())
}

/// A latch opens after all arrivals.
fn opened(done: &Execution<'_>, new: &[&Held], after: &[Held]) -> CheckResult {
    let arrived: u64 = after.iter().map(|held| u64::from(held.mode.count())).sum();
    for held in new {
        if let LockMode::LatchWait { total } = held.mode
            && arrived < u64::from(total)
        {
            return Err(format!("{} opened for {held:?} after {arrived} arrivals", done.lock));
        }
    }
    Ok(())
}

/// A barrier opens for all parties or none.
fn met(done: &Execution<'_>, new: &[&Held]) -> CheckResult {
    let of = new.first().and_then(|held| held.mode.total());
    match of {
        Some(of) if new.len() != of as usize => {
            Err(format!("{} opened for {} of {of} parties: {new:?}", done.lock, new.len()))
        }
        _ => Ok(()),
    }
}

/// The limit changes only by a resize that states the former value.
fn resized(done: &Execution<'_>, before: Option<u32>, after: Option<u32>) -> CheckResult {
    let states_limit = |request: &Acquire| Some(after) == request.mode.total().map(Some);
    let is_right = match (done.op, done.reply) {
        (Op::Resize(resize), Reply::Resize(Resized::Done)) => {
            after == Some(resize.limit) && (before == resize.observed || before == after)
        }
        // Each acquire of a barrier or latch states the limit; the first acquire of a semaphore sets it.
        _ if before.is_none() || done.state.kind != Kind::Semaphore => {
            after == before || acquires(done.op).any(states_limit)
        }
        _ => after == before,
    };
    if is_right {
        return Ok(());
    }
    Err(format!("the limit of {} changed from {before:?} to {after:?} by {:?}", done.lock, done.op))
}

/// A refusal has the reason that it states.
fn refused(done: &Execution<'_>, before: &LockBefore) -> CheckResult {
    let (Op::Acquire(request), Reply::Refused(refused)) = (done.op, done.reply) else { return Ok(()) };
    let own = |held: &&Held| held.owner.is_some() && held.owner == request.claim.value;
    // This operation may have granted another request of the same owner first.
    let now = crate::event::holds(done.state, done.clock);
    let granted = now.iter().filter(|_| *refused == Refused::WouldDeadlock);
    // The operation may have evicted the owner's hold from a lapsed session.
    let is_evicted = |held: &Held| {
        done.evicts() == Some(held.hold.session()) && now.iter().all(|other| other.hold != held.hold)
    };
    let held = before.holds.iter().filter(|held| !is_evicted(held));
    let owned: BTreeSet<_> = held.chain(granted).filter(own).map(|held| held.mode.encode()).collect();
    let is_right = match refused {
        // An owner that writes waits for no other.
        Refused::WouldDeadlock => !owned.is_empty() && !now.iter().filter(own).any(|held| writes(held.mode)),
        Refused::NothingToUpgrade => !owned.contains(&LockMode::Upgradable.encode()),
        Refused::OutOfRange { .. } => {
            matches!(request.mode, LockMode::Permits { count, total } if count > before.limit.unwrap_or(total))
        }
        _ => false,
    };
    if is_right {
        return Ok(());
    }
    Err(format!("{:?} of {} was refused: {refused:?}; its owner holds {owned:?}", request.mode, done.lock))
}

/// A holder of an RwLock reads again at once, and a writer writes again at once, regardless of waiters.
fn re_entered(done: &Execution<'_>, before: &LockBefore) -> CheckResult {
    let Some((request, Acquired::Taken { .. })) = done.acquires() else { return Ok(()) };
    let admits = |held: &&Held| {
        held.owner.is_some()
            && held.owner == request.claim.value
            && (request.mode == LockMode::Read || writes(held.mode))
            // This operation may have evicted the hold.
            && done.evicts() != Some(held.hold.session())
    };
    match before.holds.iter().find(admits) {
        Some(own) => Err(format!(
            "{:?} waits for {} in mode {:?}; its owner holds {own:?}",
            request.claim.hold, done.lock, request.mode
        )),
        None => Ok(()),
    }
}

impl Check for Sharing {
    fn name(&self) -> &'static str {
        "sharing"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if context.is_shared(done.lock) => return self.executed(at, done),
            Event::Server(ServerEvent::Deleted(lock)) => {
                if let Some(before) = self.locks.get_mut(&lock) {
                    before.holds.clear();
                }
            }
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() => self.locks.clear(),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{StoredLock, acquire, context, hold};
    use leasehold_core::{Claim, OwnValue};

    fn write(n: u8, owner: &str) -> Op {
        Op::Acquire(acquire(Claim { hold: hold(n), value: OwnValue::new(owner).ok() }, LockMode::Write))
    }

    /// Executes writes of several owners. The last one is seen as `change` leaves it.
    fn written(
        owners: &[&str],
        change: impl Fn(&mut leasehold_core::model::LockState, &mut Reply),
    ) -> CheckResult {
        let (mut check, mut stored) = (Sharing::default(), StoredLock::new(Kind::RwLock));
        let context = context(Kind::RwLock);
        let mut last = Ok(());
        for (n, owner) in owners.iter().enumerate() {
            last?;
            let is_last = n + 1 == owners.len();
            let observe = |done: &Execution<'_>| check.observe(Instant(0), &Event::Executed(done), &context);
            let change = |state: &mut _, reply: &mut _| {
                if is_last {
                    change(state, reply);
                }
            };
            let op = write(u8::try_from(n).unwrap_or_default(), owner);
            last = stored.execute(Instant(0), &op, |_| false, change, observe);
        }
        last
    }

    #[test]
    fn writes_of_one_owner_do_not_clash_and_those_of_two_do() {
        assert_eq!(written(&["one", "one", "two", "one"], |_, _| {}), Ok(()));
        let give_away = |state: &mut leasehold_core::model::LockState, _: &mut Reply| {
            if let Some(leasehold_core::model::Value {
                content: leasehold_core::model::Content::SharedHolders(shared),
                ..
            }) = &mut state.value
                && let Some(last) = shared.holds.last_mut()
            {
                last.owner = OwnValue::new("two").ok();
            }
        };
        written(&["one", "one"], give_away).expect_err("two owners write");
    }

    #[test]
    fn a_writer_that_waits_to_write_again_or_is_refused_is_found() {
        let wait = |_: &mut _, reply: &mut Reply| {
            *reply = Reply::Acquire(Acquired::Taken {
                holder: None,
                position: None,
                predecessor: None,
                other_holders: Vec::new(),
            });
        };
        written(&["one", "one"], wait).expect_err("it waits for itself");
        let refuse = |_: &mut _, reply: &mut Reply| *reply = Reply::Refused(Refused::WouldDeadlock);
        written(&["one", "one"], refuse).expect_err("it need not wait");
    }
}
