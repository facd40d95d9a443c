//! What the store said is told, a hold is renewed, and a given lease lasts as long as it was given for.

use super::{Check, Health, Scene, Verdict};
use crate::sim::event::{Event, HostEvent, Keeping, LockId, TaskEvent, TaskId};
use crate::sim::time::Instant;
use leasehold_core::{Ended, Extended, Fate, FencingToken, HoldId, Op, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// By how much a given lease may fall short, beside an eighth of it, for what an extend would not be worth, and for the
/// drift of clocks: round trips.
const SHORT_BY: Duration = Duration::from_millis(150);

/// The longest life of a session without a beat, and the drift of clocks.
const SESSION: Duration = Duration::from_secs(11);

/// How long an answer may wait for the others of its batch.
const HEEDED_WITHIN: Duration = Duration::from_millis(60);

/// What the store said of a hold is what its task is told; a hold that is renewed is not lost where nothing went wrong; a
/// given lease is neither longer than it was given for, nor much shorter where nothing went wrong.
#[derive(Debug, Default)]
pub struct Keepings {
    kept: BTreeMap<(LockId, TaskId), Kept>,
    holds: BTreeMap<(LockId, FencingToken), HoldId>,
    /// When it was that a hold was first seen at the store.
    granted: BTreeMap<HoldId, Instant>,
    /// What is asked by a message.
    asked: BTreeMap<u64, Asked>,
    /// What was last said of the release of a hold.
    released: BTreeMap<HoldId, Fate>,
    /// Who must not believe any more, once time goes on.
    refused: Vec<(Instant, HoldId)>,
    /// What was taken by force.
    freed: BTreeSet<(LockId, FencingToken)>,
    /// What was taken from sessions that were dead.
    evicted: BTreeSet<HoldId>,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    fence: FencingToken,
    keeping: Keeping,
    acquired: Instant,
    until: Instant,
    /// Set once its user has lengthened it: then it lasts longer than it was given for.
    is_extended: bool,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Extend(HoldId),
    Release(HoldId),
}

impl Keepings {
    fn answered(&mut self, at: Instant, message: u64, reply: Option<&Reply>) {
        match (self.asked.remove(&message), reply) {
            (Some(Asked::Extend(hold)), Some(Reply::Extend(Extended::NotHeld))) => {
                self.refused.push((at, hold));
            }
            (Some(Asked::Release(hold)), Some(Reply::Release(released))) => {
                self.released.insert(hold, released.found);
            }
            _ => {}
        }
    }

    fn task(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent, scene: &Scene) -> Verdict {
        match what {
            TaskEvent::Acquired(fence, belief, keeping) => {
                let kept = Kept { fence, keeping, acquired: at, until: belief.until, is_extended: false };
                self.kept.insert((lock, task), kept);
                return self.not_beyond(lock, task);
            }
            TaskEvent::Believes(_, belief) => {
                if let Some(kept) = self.kept.get_mut(&(lock, task)) {
                    kept.until = belief.until;
                }
                return self.not_beyond(lock, task);
            }
            TaskEvent::Extends(_) => {
                if let Some(kept) = self.kept.get_mut(&(lock, task)) {
                    kept.is_extended = true;
                }
            }
            TaskEvent::Extended(_, until) => {
                let Some(kept) = self.kept.get(&(lock, task)) else { return Ok(()) };
                // It is believed no longer than the session.
                let session_until = scene.health(task.host).and_then(Health::session_until);
                let until = session_until.map_or(until, |end| end.min(until));
                // The drift is that of the whole lease, of which little may be left when the answer comes.
                let short = until.since(at) / 10 + Duration::from_millis(60);
                if kept.until + short < until {
                    return Err(format!(
                        "{task} extended {lock} until {until}, and has it until {}",
                        kept.until
                    ));
                }
            }
            TaskEvent::Told(_) => return self.lost(at, task, lock, scene),
            TaskEvent::Lets(..) => drop(self.kept.remove(&(lock, task))),
            TaskEvent::Released(fence, is_ok) => {
                let said = self.holds.get(&(lock, fence)).and_then(|hold| self.released.get(hold));
                let means_ok = matches!(said, Some(Fate::Held | Fate::Ended(Ended::Released)));
                if is_ok != means_ok {
                    return Err(format!(
                        "{task} was told {is_ok} of its release of {lock}, the store said {said:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A given lease is not believed for longer than it was given for.
    fn not_beyond(&self, lock: LockId, task: TaskId) -> Verdict {
        let Some(kept) = self.kept.get(&(lock, task)) else { return Ok(()) };
        // A clock that runs slow lets it last a little longer in true time.
        match kept.keeping {
            Keeping::Given(lease) if !kept.is_extended && kept.until > kept.acquired + lease + lease / 15 => {
                Err(format!("{task} believes in {lock} until {}, which was given for {lease:?}", kept.until))
            }
            _ => Ok(()),
        }
    }

    /// A task lost its hold: something must have gone wrong since it was acquired, or its lease is over.
    fn lost(&self, at: Instant, task: TaskId, lock: LockId, scene: &Scene) -> Verdict {
        let Some(kept) = self.kept.get(&(lock, task)) else { return Ok(()) };
        let well =
            scene.health(task.host).and_then(Health::well_since).is_some_and(|well| well <= kept.acquired);
        let hold = self.holds.get(&(lock, kept.fence));
        let granted = hold.and_then(|hold| self.granted.get(hold)).copied().unwrap_or(at);
        if !well || scene.upset_at.is_some_and(|upset| upset >= granted) {
            return Ok(());
        }
        // Where the store has forgotten a session, or its clock was set, it takes that for dead which does not know so yet.
        let is_forgotten = hold.is_some_and(|hold| self.evicted.contains(hold))
            && scene.upset_at.is_some_and(|upset| granted < upset + SESSION);
        if is_forgotten || self.freed.contains(&(lock, kept.fence)) {
            return Ok(());
        }
        let due = match kept.keeping {
            Keeping::Renewed(_) => return Err(format!("{task} lost {lock}, which should have been renewed")),
            Keeping::Given(lease) => kept.acquired + lease.saturating_sub(lease / 8 + SHORT_BY),
        };
        if at < due { Err(format!("{task} lost {lock} before {due}, when its lease ends")) } else { Ok(()) }
    }
}

impl Check for Keepings {
    fn name(&self) -> &'static str {
        "keeping"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, scene: &Scene) -> Verdict {
        match *event {
            Event::Executed(done) => {
                if let Some(Some(fence)) = done.freed() {
                    self.freed.insert((done.lock, fence));
                }
                let endings = done.state.record.iter().flat_map(|record| &record.ended.kept);
                let evicted = endings.filter(|(_, how)| *how == Ended::Evicted);
                self.evicted.extend(evicted.map(|(hold, _)| *hold));
                if let Some((claim, fence, _)) = done.holder() {
                    self.holds.insert((done.lock, fence), claim.hold);
                    self.granted.entry(claim.hold).or_insert(at);
                }
            }
            Event::Sent { message, op: Op::Extend(extend), .. } => {
                self.asked.insert(message, Asked::Extend(extend.claim.hold));
            }
            Event::Sent { message, op: Op::Release(release), .. } => {
                self.asked.insert(message, Asked::Release(release.claim.hold));
            }
            Event::Answered { message, reply, .. } => self.answered(at, message, reply),
            Event::Task(task, lock, what) => return self.task(at, task, lock, what, scene),
            Event::Host(host, HostEvent::Crashed) => self.kept.retain(|(_, task), _| task.host != host),
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, scene: &Scene) -> Verdict {
        let kept = &self.kept;
        let believes = |(heard, hold): &(Instant, HoldId)| {
            let held =
                kept.iter().find(|((lock, _), kept)| self.holds.get(&(*lock, kept.fence)) == Some(hold));
            held.filter(|(_, kept)| kept.until > at).map(|((lock, task), _)| (*heard, *lock, *task))
        };
        self.refused.retain(|refused| believes(refused).is_some());
        for (heard, lock, task) in self.refused.iter().filter_map(believes) {
            let well = scene.health(task.host).and_then(Health::stirs_since);
            if well.is_some_and(|well| at > well.max(heard) + HEEDED_WITHIN) {
                return Err(format!("{task} believes in {lock}, and was told at {heard} that it is gone"));
            }
        }
        Ok(())
    }
}
