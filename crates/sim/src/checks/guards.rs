//! Which hold a guard is of.
//!
//! The engine does not reveal the id of a hold, which is a secret. But a process must have received a reply or a
//! grant for a hold before a task has its guard. So a new guard belongs to the received hold with that token and
//! count that fits the reported validity best and has no guard; unless that hold is released while the guard is in
//! use. (A task that is granted the lock by its queue entry releases a hold that it was granted out of turn.)
//!
//! A guard from a hand-off has a token that the store reserved for its hold. It belongs to the hold of that
//! reservation, until that hold is released.

use crate::event::{Event, GuardId, HostEvent, LockId, NewGuard, OwnerId, ReleaseMethod, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquire, Acquired, Extended, FencingToken, HoldId, LockMode, MultiAcquired, Nonce, Notification, Op,
    Reply, drift,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The guards of tasks.
#[derive(Debug, Default)]
pub struct Guards {
    known: BTreeMap<GuardId, GuardRecord>,
    /// The requests of a message, the nonces of polls, and their times.
    asked: BTreeMap<u64, Vec<Asked>>,
    looks: BTreeMap<Nonce, Asked>,
    /// Holds that processes have received, newest last, and that have no guard.
    heard: BTreeMap<HostId, Vec<Heard>>,
    /// The guard of a hold; after a hand-off, the last one.
    bound: BTreeMap<HoldId, GuardId>,
    /// Messages that reserve tokens, with their hold.
    reserving: BTreeMap<u64, (LockId, HoldId)>,
    /// The tokens that processes have received.
    blocks: BTreeMap<HostId, Vec<Reserved>>,
    /// When processes began to give holds up.
    given_up: BTreeMap<HoldId, Instant>,
    /// The message that releases a hold, and the reply.
    releasing: BTreeMap<u64, HoldId>,
    released: BTreeSet<HoldId>,
    /// Those that are given back, or were.
    release_guard: BTreeMap<GuardId, Instant>,
    /// The guard that a task has begun to release. The next message of its process is that release, if it can send at
    /// all.
    letting: Option<GuardId>,
    owners: BTreeMap<OwnerId, String>,
}

/// A guard.
#[derive(Debug, Clone, Copy)]
pub struct GuardRecord {
    /// Of which lock.
    pub lock: LockId,
    /// The task.
    pub task: TaskId,
    /// Its fencing token.
    pub fence: FencingToken,
    /// The token by which the store knows its hold. It differs after a hand-off.
    pub known_as: FencingToken,
    /// For which owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnerId>,
    /// The lock mode.
    pub mode: LockMode,
    /// Whether it is one of several locks under one guard.
    pub together: bool,
    /// Of which hold; `None` if its process cannot know of any.
    pub hold: Option<HoldId>,
}

/// A hold that a process has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    lock: LockId,
    hold: HoldId,
    fence: FencingToken,
    /// The owner's number of holds, as reported.
    count: u64,
    /// Until when it may be valid, apart from clock errors.
    until: Instant,
    /// When that was.
    at: Instant,
}

/// Fencing tokens that were reserved for a hold.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    lock: LockId,
    hold: HoldId,
    first: FencingToken,
    last: FencingToken,
}

/// A request of a process.
#[derive(Debug, Clone, Copy)]
struct Asked {
    lock: LockId,
    hold: HoldId,
    at: Instant,
    lease_ms: u64,
}

impl Heard {
    fn is_of(&self, lock: LockId, fence: FencingToken) -> bool {
        (self.lock, self.fence) == (lock, fence)
    }
}

impl GuardRecord {
    /// Whether its hold was handed on to it.
    pub fn was_handed_off(&self) -> bool {
        self.known_as != self.fence
    }
}

impl Reserved {
    fn is_of(&self, lock: LockId, fence: FencingToken) -> bool {
        self.lock == lock && (self.first..=self.last).contains(&fence)
    }
}

impl Guards {
    /// The record of a guard.
    pub fn get(&self, guard_id: GuardId) -> Option<&GuardRecord> {
        self.known.get(&guard_id)
    }

    /// Of which hold a guard is.
    pub fn hold(&self, guard_id: GuardId) -> Option<HoldId> {
        self.known.get(&guard_id)?.hold
    }

    /// The guard of a hold; after a hand-off, the last one.
    pub fn of(&self, hold: &HoldId) -> Option<GuardId> {
        self.bound.get(hold).copied()
    }

    /// Whether a process has received this hold, and no guard has it.
    pub fn has_heard(&self, host: HostId, hold: &HoldId) -> bool {
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|heard| heard.hold == *hold))
    }

    /// Whether a process has received a hold of this lock that no guard has.
    pub fn has_heard_of(&self, host: HostId, lock: LockId) -> bool {
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|heard| heard.lock == lock))
    }

    /// When a task began to give a guard back, or dropped it.
    pub fn release_guard(&self, guard_id: GuardId) -> Option<Instant> {
        self.release_guard.get(&guard_id).copied()
    }

    /// Whether the release of a guard's hold was sent and the release has returned. For several locks, whether it was
    /// answered: some may be cached, and released later for another reason.
    pub fn is_released(&self, guard_id: GuardId) -> bool {
        let Some((known, hold)) = self.known.get(&guard_id).and_then(|known| Some((known, known.hold?)))
        else {
            return false;
        };
        if known.together { self.released.contains(&hold) } else { self.given_up(&hold).is_some() }
    }

    /// When the process of a hold began to give it up.
    pub fn given_up(&self, hold: &HoldId) -> Option<Instant> {
        self.given_up.get(hold).copied()
    }

    /// An owner's text.
    pub fn owner(&self, owner: OwnerId) -> Option<&str> {
        self.owners.get(&owner).map(String::as_str)
    }

    pub(super) fn observe(&mut self, at: Instant, event: &Event<'_>) {
        let letting = self.letting.take();
        if let (Some(guard_id), Event::Sent { host, op: Op::Release(release), .. }) = (letting, event) {
            self.is_released_as(guard_id, *host, release.claim.hold);
        }
        match *event {
            Event::Owner(owner, text) => drop(self.owners.insert(owner, text.to_owned())),
            Event::Sent { host, message, lock, op } => self.sent(at, host, message, lock, op),
            Event::Answered {
                host,
                message,
                reply: Some(Reply::Extend(Extended::Reserved { block, .. })),
            } => {
                let reserving = self.reserving.remove(&message);
                if let Some(((lock, hold), first)) = reserving.zip(block.first()) {
                    let last = FencingToken::new(first.as_u64() + u64::from(block.remaining()) - 1);
                    self.blocks.entry(host).or_default().push(Reserved { lock, hold, first, last });
                }
            }
            Event::Answered { host, message, reply } => {
                self.reserving.remove(&message);
                self.released.extend(self.releasing.remove(&message).filter(|_| reply.is_some()));
                let asked = self.asked.remove(&message);
                let had = match reply {
                    Some(Reply::Acquire(acquired)) => Some(acquired),
                    Some(Reply::Release(released)) => {
                        released.next.as_ref().and_then(|next| next.as_ref().ok())
                    }
                    _ => None,
                };
                for (asked, acquired) in asked.into_iter().flatten().zip(had) {
                    self.had(at, host, asked, acquired);
                }
            }
            Event::MultiAnswered { host, message, shares } => {
                let asked = self.asked.remove(&message).into_iter().flatten();
                for (asked, share) in asked.zip(shares.into_iter().flatten()) {
                    if let MultiAcquired::Acquired(acquired) = share {
                        self.had(at, host, asked, acquired);
                    }
                }
            }
            Event::Notified(host, Notification::Grant { nonce, fence, .. }) => {
                if let Some(asked) = self.looks.get(&nonce).copied() {
                    self.hears(at, host, asked, (fence, 1, asked.lease_ms));
                }
            }
            Event::Task(_, _, TaskEvent::Releasing(guard_id, how)) => {
                self.release_guard.entry(guard_id).or_insert(at);
                self.letting = Some(guard_id).filter(|_| how == ReleaseMethod::Release);
            }
            Event::Task(task, lock, TaskEvent::Acquired(guard_id, gain)) => {
                self.acquired(at, task, lock, guard_id, gain);
            }
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => {
                self.heard.remove(&host);
                self.blocks.remove(&host);
            }
            _ => {}
        }
    }

    fn sent(&mut self, at: Instant, host: HostId, message: u64, lock: LockId, op: &Op) {
        let asks = match op {
            Op::Acquire(ask) => Some(ask),
            Op::Extend(extend) => {
                let wanted = extend.reserve.map(|_| (lock, extend.claim.hold));
                self.reserving.extend(wanted.map(|wanted| (message, wanted)));
                None
            }
            Op::Release(release) => {
                self.given_up.entry(release.claim.hold).or_insert(at);
                self.releasing.insert(message, release.claim.hold);
                if let Some(blocks) = self.blocks.get_mut(&host) {
                    blocks.retain(|block| block.hold != release.claim.hold);
                }
                self.gives_up(host, release.claim.hold);
                if let Some(heard) = self.heard.get_mut(&host) {
                    // It is given up, and no guard will be of it.
                    heard.retain(|heard| heard.hold != release.claim.hold);
                }
                release.next.as_ref()
            }
            _ => None,
        };
        if let Some(Acquire { claim, queue, lease_ms, .. }) = asks {
            let asked = Asked { lock, hold: claim.hold, at, lease_ms: *lease_ms };
            // One message may acquire several locks.
            self.asked.entry(message).or_default().push(asked);
            if let Some(queue) = queue {
                self.looks.insert(queue.nonce, asked);
            }
        }
    }

    /// A hold is released. A guard in use that was matched with it belongs to another hold with the same token.
    fn gives_up(&mut self, host: HostId, hold: HoldId) {
        let Some(guard_id) =
            self.bound.get(&hold).copied().filter(|guard_id| !self.release_guard.contains_key(guard_id))
        else {
            return;
        };
        let (Some(known), Some(heard)) = (self.known.get(&guard_id), self.heard.get(&host)) else { return };
        let other = heard.iter().rfind(|heard| heard.is_of(known.lock, known.fence));
        if let Some(right) = other.map(|heard| heard.hold) {
            self.bind(guard_id, host, right);
        }
    }

    /// A guard is released as being of this hold.
    fn is_released_as(&mut self, guard_id: GuardId, host: HostId, hold: HoldId) {
        let (Some(known), Some(heard)) = (self.known.get(&guard_id).copied(), self.heard.get(&host)) else {
            return;
        };
        if known.hold == Some(hold) {
            return;
        }
        if heard.iter().any(|heard| heard.hold == hold && heard.is_of(known.lock, known.fence)) {
            return self.bind(guard_id, host, hold);
        }
        // Two holds were confused.
        let other = self.bound.get(&hold).copied().filter(|other| !self.release_guard.contains_key(other));
        let other = other.and_then(|other| Some((other, self.known.get_mut(&other)?)));
        if let (Some((other, theirs)), Some(wrong)) = (other, known.hold)
            && (theirs.lock, theirs.fence, theirs.task.host) == (known.lock, known.fence, host)
        {
            theirs.hold = Some(wrong);
            self.known.insert(guard_id, GuardRecord { hold: Some(hold), ..known });
            self.bound.extend([(hold, guard_id), (wrong, other)]);
        }
    }

    /// Matches a guard with this hold instead of the earlier one.
    fn bind(&mut self, guard_id: GuardId, host: HostId, right: HoldId) {
        if let Some(heard) = self.heard.get_mut(&host) {
            heard.retain(|heard| heard.hold != right);
        }
        if let Some(known) = self.known.get_mut(&guard_id)
            && let Some(wrong) = known.hold.replace(right)
        {
            self.bound.remove(&wrong);
        }
        self.bound.insert(right, guard_id);
    }

    fn had(&mut self, at: Instant, host: HostId, asked: Asked, acquired: &Acquired) {
        if let Acquired::Granted { fence, owner_holds, remaining_ms, .. } = acquired {
            let count = owner_holds.map_or(1, |owner_holds| owner_holds.count);
            self.hears(at, host, asked, (*fence, count, *remaining_ms));
        }
    }

    fn hears(
        &mut self,
        now: Instant,
        host: HostId,
        asked: Asked,
        (fence, count, remaining_ms): (FencingToken, u64, u64),
    ) {
        let Asked { lock, hold, at, .. } = asked;
        let lasts = Duration::from_millis(remaining_ms);
        let until = at + lasts.saturating_sub(drift(lasts));
        let new = Heard { lock, hold, fence, count, until, at: now };
        if self.bound.contains_key(&new.hold) {
            return;
        }
        let heard = self.heard.entry(host).or_default();
        heard.retain(|heard| Heard { at: now, ..*heard } != new);
        heard.push(new);
    }

    fn acquired(&mut self, at: Instant, task: TaskId, lock: LockId, guard_id: GuardId, gain: NewGuard) {
        let NewGuard { fence, owner, mode, count, belief, together, .. } = gain;
        let heard = self.heard.entry(task.host).or_default();
        // Another count may be meant after several polls; as a rule it is the newest.
        let unlike = |heard: &Heard| {
            let apart = heard.until.since(belief.until) + belief.until.since(heard.until);
            (heard.count != count, heard.at != at, apart)
        };
        let of_it = heard.iter().rev().filter(|heard| heard.is_of(lock, fence));
        let own = of_it.min_by_key(|heard| unlike(heard)).map(|heard| heard.hold);
        let blocks = self.blocks.get(&task.host).into_iter().flatten();
        let handed_off = || blocks.rev().find(|block| block.is_of(lock, fence)).map(|block| block.hold);
        let hold = own.or_else(handed_off);
        let known_as = hold.filter(|_| own.is_none()).and_then(|hold| {
            let before = self.bound.get(&hold).and_then(|guard_id| self.known.get(guard_id));
            // A task may have held and released it during an acquire of several locks, without a guard.
            let heard = || heard.iter().rfind(|heard| heard.hold == hold).map(|heard| heard.fence);
            before.map(|before| before.known_as).or_else(heard)
        });
        let known_as = known_as.unwrap_or(fence);
        heard.retain(|heard| Some(heard.hold) != hold);
        self.bound.extend(hold.map(|hold| (hold, guard_id)));
        self.known.insert(guard_id, GuardRecord { lock, task, fence, known_as, owner, mode, together, hold });
    }
}
