//! Which hold a guard is of.
//!
//! Nobody outside of the engine is told a hold's id, since it is a secret. But a process has to have heard of a hold before
//! a task of it has a guard: by an answer, or by a grant's message. So a new guard is of the hold of that token which its
//! process heard of last, and which no other guard is of; unless that one is given up while the guard is in use. (A task that
//! is given the lock by its place gives up what it has got on its way past the line.)

use crate::sim::event::{Event, Gain, Grip, HostEvent, LockId, OwnerId, TaskEvent, TaskId};
use crate::sim::kernel::HostId;
use leasehold_core::{Acquire, Acquired, FencingToken, HoldId, Nonce, Op, Reply, Share, Wake};
use std::collections::{BTreeMap, BTreeSet};

/// The guards that tasks have had.
#[derive(Debug, Default)]
pub struct Grips {
    known: BTreeMap<Grip, Known>,
    /// What was asked by a message, and by the nonce of a look.
    asked: BTreeMap<u64, Vec<(LockId, HoldId)>>,
    looks: BTreeMap<Nonce, (LockId, HoldId)>,
    /// What processes have heard of, the last at the end, and no guard is of.
    heard: BTreeMap<HostId, Vec<(LockId, HoldId, FencingToken)>>,
    bound: BTreeMap<HoldId, Grip>,
    /// Those that are given back, or were.
    let_go: BTreeSet<Grip>,
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
    /// For which owner, of a ReentrantMutex.
    pub owner: Option<OwnerId>,
    /// Of which hold; `None` if its process cannot know of any.
    pub hold: Option<HoldId>,
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
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|(_, heard, _)| heard == hold))
    }

    /// Whether a process has heard that it has a hold of this lock which no guard is of.
    pub fn has_heard_of(&self, host: HostId, lock: LockId) -> bool {
        self.heard.get(&host).is_some_and(|heard| heard.iter().any(|(of, ..)| *of == lock))
    }

    /// An owner's text.
    pub fn owner(&self, owner: OwnerId) -> Option<&str> {
        self.owners.get(&owner).map(String::as_str)
    }

    pub(super) fn observe(&mut self, event: &Event<'_>) {
        match *event {
            Event::Owner(owner, text) => drop(self.owners.insert(owner, text.to_owned())),
            Event::Sent { host, message, lock, op } => self.sent(host, message, lock, op),
            Event::Answered { host, message, reply } => {
                let asked = self.asked.remove(&message);
                let had = match reply {
                    Some(Reply::Acquire(acquired)) => Some(acquired),
                    Some(Reply::Release(released)) => {
                        released.next.as_ref().and_then(|next| next.as_ref().ok())
                    }
                    _ => None,
                };
                for ((lock, hold), acquired) in asked.into_iter().flatten().zip(had) {
                    self.had(host, lock, hold, acquired);
                }
            }
            Event::Shared { host, message, shares } => {
                let asked = self.asked.remove(&message).into_iter().flatten();
                for ((lock, hold), share) in asked.zip(shares.into_iter().flatten()) {
                    if let Share::Had(acquired) = share {
                        self.had(host, lock, hold, acquired);
                    }
                }
            }
            Event::Woken(host, Wake::Grant { nonce, fence, .. }) => {
                if let Some((lock, hold)) = self.looks.get(&nonce).copied() {
                    self.hears(host, lock, hold, fence);
                }
            }
            Event::Task(_, _, TaskEvent::Lets(grip, _)) => drop(self.let_go.insert(grip)),
            Event::Task(task, lock, TaskEvent::Acquired(grip, gain)) => self.acquired(task, lock, grip, gain),
            Event::Host(host, HostEvent::Crashed | HostEvent::Ended) => drop(self.heard.remove(&host)),
            _ => {}
        }
    }

    fn sent(&mut self, host: HostId, message: u64, lock: LockId, op: &Op) {
        let asks = match op {
            Op::Acquire(ask) => Some(ask),
            Op::Release(release) => {
                self.gives_up(host, release.claim.hold);
                if let Some(heard) = self.heard.get_mut(&host) {
                    // It is given up, and no guard will be of it.
                    heard.retain(|(_, hold, _)| *hold != release.claim.hold);
                }
                release.next.as_ref()
            }
            _ => None,
        };
        if let Some(Acquire { claim, queue, .. }) = asks {
            // Several are asked for by one message.
            self.asked.entry(message).or_default().push((lock, claim.hold));
            if let Some(queue) = queue {
                self.looks.insert(queue.nonce, (lock, claim.hold));
            }
        }
    }

    /// A hold is given up. If a guard in use was taken to be of it, it is of another one of the same token.
    fn gives_up(&mut self, host: HostId, hold: HoldId) {
        let Some(grip) = self.bound.get(&hold).copied().filter(|grip| !self.let_go.contains(grip)) else {
            return;
        };
        let (Some(known), Some(heard)) = (self.known.get_mut(&grip), self.heard.get_mut(&host)) else {
            return;
        };
        let (lock, fence) = (known.lock, known.fence);
        let Some(at) = heard.iter().rposition(|(of, _, token)| (*of, *token) == (lock, fence)) else {
            return;
        };
        let right = heard.remove(at).1;
        known.hold = Some(right);
        self.bound.remove(&hold);
        self.bound.insert(right, grip);
    }

    fn had(&mut self, host: HostId, lock: LockId, hold: HoldId, acquired: &Acquired) {
        if let Acquired::Granted { fence, .. } = acquired {
            self.hears(host, lock, hold, *fence);
        }
    }

    fn hears(&mut self, host: HostId, lock: LockId, hold: HoldId, fence: FencingToken) {
        if self.bound.contains_key(&hold) {
            return;
        }
        let heard = self.heard.entry(host).or_default();
        heard.retain(|(_, known, token)| (*known, *token) != (hold, fence));
        heard.push((lock, hold, fence));
    }

    fn acquired(&mut self, task: TaskId, lock: LockId, grip: Grip, gain: Gain) {
        let Gain { fence, owner, .. } = gain;
        let heard = self.heard.entry(task.host).or_default();
        let last = heard.iter().rposition(|(of, _, token)| (*of, *token) == (lock, fence));
        let hold = last.map(|at| heard.remove(at).1);
        self.bound.extend(hold.map(|hold| (hold, grip)));
        self.known.insert(grip, Known { lock, task, fence, owner, hold });
    }
}
