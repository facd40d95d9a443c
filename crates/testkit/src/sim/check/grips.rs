//! Which hold a guard is of.
//!
//! Nobody outside of the engine is told a hold's id, since it is a secret. But a process has to have heard of a hold before
//! a task of it has a guard: by an answer, or by a grant's message. So a new guard is of the hold of that token, and that
//! count, whose news fit best what is believed, and which no other guard is of; unless that one is given up while the guard
//! is in use. (A task that is given the lock by its place gives up what it has got on its way past the line.)

use crate::sim::event::{Event, Gain, Grip, HostEvent, Letting, LockId, OwnerId, TaskEvent, TaskId};
use crate::sim::kernel::HostId;
use crate::sim::time::Instant;
use leasehold_core::{Acquire, Acquired, FencingToken, HoldId, Nonce, Op, Portion, Reply, Share, Wake};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The guards that tasks have had.
#[derive(Debug, Default)]
pub struct Grips {
    known: BTreeMap<Grip, Known>,
    /// What was asked by a message, and by the nonce of a look; and when.
    asked: BTreeMap<u64, Vec<Asked>>,
    looks: BTreeMap<Nonce, Asked>,
    /// What processes have heard of, the last at the end, and no guard is of.
    heard: BTreeMap<HostId, Vec<Heard>>,
    bound: BTreeMap<HoldId, Grip>,
    /// Those that are given back, or were.
    let_go: BTreeSet<Grip>,
    /// The one that a task has just begun to give back: what its process sends next is its release, if it can send at
    /// all.
    letting: Option<Grip>,
    owners: BTreeMap<OwnerId, String>,
}

/// A guard.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Of which lock.
    pub lock: LockId,
    /// Whose.
    pub task: TaskId,
    /// Its fencing token.
    pub fence: FencingToken,
    /// For which owner, of a ReentrantMutex or an RwLock.
    pub owner: Option<OwnerId>,
    /// What part of the lock it is.
    pub portion: Portion,
    /// Of which hold; `None` if its process cannot know of any.
    pub hold: Option<HoldId>,
}

/// What a process has heard of a hold of its.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Heard {
    lock: LockId,
    hold: HoldId,
    fence: FencingToken,
    /// How often its owner has the lock with it, as he is told.
    count: u64,
    /// Until when it lasts at least, but for the drift of clocks.
    until: Instant,
}

/// What a process has asked for.
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

impl Grips {
    /// What is known of a guard.
    pub fn get(&self, grip: Grip) -> Option<&Known> {
        self.known.get(&grip)
    }

    /// Of which hold a guard is.
    pub fn hold(&self, grip: Grip) -> Option<HoldId> {
        self.known.get(&grip)?.hold
    }

    /// The guard that is, or was, of a hold.
    pub fn of(&self, hold: &HoldId) -> Option<Grip> {
        self.bound.get(hold).copied()
    }

    /// Whether a process has heard that it has a hold of a lock which no guard is of.
    pub fn has_heard(&self, host: HostId, hold: &HoldId) -> bool {
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|heard| heard.hold == *hold))
    }

    /// Whether a process has heard that it has a hold of this lock which no guard is of.
    pub fn has_heard_of(&self, host: HostId, lock: LockId) -> bool {
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|heard| heard.lock == lock))
    }

    /// An owner's text.
    pub fn owner(&self, owner: OwnerId) -> Option<&str> {
        self.owners.get(&owner).map(String::as_str)
    }

    pub(super) fn observe(&mut self, at: Instant, event: &Event<'_>) {
        let letting = self.letting.take();
        if let (Some(grip), Event::Sent { host, op: Op::Release(release), .. }) = (letting, event) {
            self.is_released_as(grip, *host, release.claim.hold);
        }
        match *event {
            Event::Owner(owner, text) => drop(self.owners.insert(owner, text.to_owned())),
            Event::Sent { host, message, lock, op } => self.sent(at, host, message, lock, op),
            Event::Answered { host, message, reply } => {
                let asked = self.asked.remove(&message);
                let had = match reply {
                    Some(Reply::Acquire(acquired)) => Some(acquired),
                    Some(Reply::Release(released)) => {
                        released.next.as_ref().and_then(|next| next.as_ref().ok())
                    }
                    _ => None,
                };
                for (asked, acquired) in asked.into_iter().flatten().zip(had) {
                    self.had(host, asked, acquired);
                }
            }
            Event::Shared { host, message, shares } => {
                let asked = self.asked.remove(&message).into_iter().flatten();
                for (asked, share) in asked.zip(shares.into_iter().flatten()) {
                    if let Share::Had(acquired) = share {
                        self.had(host, asked, acquired);
                    }
                }
            }
            Event::Woken(host, Wake::Grant { nonce, fence, .. }) => {
                if let Some(asked) = self.looks.get(&nonce).copied() {
                    self.hears(host, asked, fence, 1, asked.lease_ms);
                }
            }
            Event::Task(_, _, TaskEvent::Lets(grip, how)) => {
                self.let_go.insert(grip);
                self.letting = Some(grip).filter(|_| how == Letting::Release);
            }
            Event::Task(task, lock, TaskEvent::Acquired(grip, gain)) => self.acquired(task, lock, grip, gain),
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.heard.remove(&host)),
            _ => {}
        }
    }

    fn sent(&mut self, at: Instant, host: HostId, message: u64, lock: LockId, op: &Op) {
        let asks = match op {
            Op::Acquire(ask) => Some(ask),
            Op::Release(release) => {
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
            // Several are asked for by one message.
            self.asked.entry(message).or_default().push(asked);
            if let Some(queue) = queue {
                self.looks.insert(queue.nonce, asked);
            }
        }
    }

    /// A hold is given up. If a guard in use was taken to be of it, it is of another one of the same token.
    fn gives_up(&mut self, host: HostId, hold: HoldId) {
        let Some(grip) = self.bound.get(&hold).copied().filter(|grip| !self.let_go.contains(grip)) else {
            return;
        };
        let (Some(known), Some(heard)) = (self.known.get(&grip), self.heard.get(&host)) else { return };
        let other = heard.iter().rfind(|heard| heard.is_of(known.lock, known.fence));
        if let Some(right) = other.map(|heard| heard.hold) {
            self.bind(grip, host, right);
        }
    }

    /// A guard is given back as being of this hold, which its process has heard of.
    fn is_released_as(&mut self, grip: Grip, host: HostId, hold: HoldId) {
        let (Some(known), Some(heard)) = (self.known.get(&grip).copied(), self.heard.get(&host)) else {
            return;
        };
        if known.hold == Some(hold) {
            return;
        }
        if heard.iter().any(|heard| heard.hold == hold && heard.is_of(known.lock, known.fence)) {
            return self.bind(grip, host, hold);
        }
        // Two were taken one for the other.
        let other = self.bound.get(&hold).copied().filter(|other| !self.let_go.contains(other));
        let other = other.and_then(|other| Some((other, self.known.get_mut(&other)?)));
        if let (Some((other, theirs)), Some(wrong)) = (other, known.hold)
            && (theirs.lock, theirs.fence, theirs.task.host) == (known.lock, known.fence, host)
        {
            theirs.hold = Some(wrong);
            self.known.insert(grip, Known { hold: Some(hold), ..known });
            self.bound.extend([(hold, grip), (wrong, other)]);
        }
    }

    /// A guard is of this hold, and not of the one that it was taken to be of.
    fn bind(&mut self, grip: Grip, host: HostId, right: HoldId) {
        if let Some(heard) = self.heard.get_mut(&host) {
            heard.retain(|heard| heard.hold != right);
        }
        if let Some(known) = self.known.get_mut(&grip)
            && let Some(wrong) = known.hold.replace(right)
        {
            self.bound.remove(&wrong);
        }
        self.bound.insert(right, grip);
    }

    fn had(&mut self, host: HostId, asked: Asked, acquired: &Acquired) {
        if let Acquired::Granted { fence, entered, remaining_ms, .. } = acquired {
            let count = entered.map_or(1, |entered| entered.count);
            self.hears(host, asked, *fence, count, *remaining_ms);
        }
    }

    fn hears(&mut self, host: HostId, asked: Asked, fence: FencingToken, count: u64, remaining_ms: u64) {
        let Asked { lock, hold, at, .. } = asked;
        let new = Heard { lock, hold, fence, count, until: at + Duration::from_millis(remaining_ms) };
        if self.bound.contains_key(&new.hold) {
            return;
        }
        let heard = self.heard.entry(host).or_default();
        heard.retain(|heard| *heard != new);
        heard.push(new);
    }

    fn acquired(&mut self, task: TaskId, lock: LockId, grip: Grip, gain: Gain) {
        let Gain { fence, owner, portion, count, belief, .. } = gain;
        let heard = self.heard.entry(task.host).or_default();
        // That of another count may be meant where it was looked at more than once.
        let unlike = |heard: &Heard| {
            (heard.count != count, heard.until.since(belief.until) + belief.until.since(heard.until))
        };
        let of_it = heard.iter().rev().filter(|heard| heard.is_of(lock, fence));
        let hold = of_it.min_by_key(|heard| unlike(heard)).map(|heard| heard.hold);
        heard.retain(|heard| Some(heard.hold) != hold);
        self.bound.extend(hold.map(|hold| (hold, grip)));
        self.known.insert(grip, Known { lock, task, fence, owner, portion, hold });
    }
}
