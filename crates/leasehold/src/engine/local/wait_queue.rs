//! The local wait queue: the tasks of this process that want one lock, in order of arrival.
//!
//! Thousands of tasks may wait and give up at once, so nothing scans the queue: each waiter has a number. A task that
//! pauses between two attempts is set aside, behind all others.
//!
//! A task that wants a ReentrantMutex may bypass the queue: once on arrival, and again whenever its owner is known to
//! hold the lock. For this the queue indexes its waiters by owner.

use super::reentrant_bypass::ReentrantBypass;
use leasehold_core::OwnValue;
use leasehold_core::machine::contender::AcquireTerms;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A position in the queue: whether the task is set aside, and its number.
type Position = (bool, u64);

#[derive(Default)]
pub(in crate::engine) struct WaitQueue {
    waiters: BTreeMap<Position, Waiter>,
    /// Waiters that will bypass the queue once their owner is known to hold the lock.
    by_owner: BTreeMap<OwnValue, BTreeSet<u64>>,
    last_id: u64,
}

/// A queued task.
struct Waiter {
    terms: Arc<AcquireTerms>,
    signaled: bool,
    waker: Option<Waker>,
    /// Its bypass request, for a ReentrantMutex. Boxed: map nodes move in memory, and few waiters have one.
    bypass: Option<Box<ReentrantBypass>>,
}

impl Waiter {
    fn signal(&mut self) {
        self.signaled = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl WaitQueue {
    /// Appends a task to the queue, before those that are set aside.
    pub(in crate::engine) fn join(
        &mut self,
        terms: Arc<AcquireTerms>,
        bypass: Option<ReentrantBypass>,
    ) -> u64 {
        let bypass = bypass.map(Box::new);
        self.last_id += 1;
        let waiter = Waiter { terms, signaled: false, waker: None, bypass };
        self.waiters.insert((false, self.last_id), waiter);
        self.last_id
    }

    /// Removes a task from the queue. Returns its bypass request.
    pub(in crate::engine) fn remove(&mut self, id: u64) -> Option<Box<ReentrantBypass>> {
        let aside = !self.waiters.contains_key(&(false, id));
        let waiter = self.waiters.remove(&(aside, id))?;
        self.forget_owner(id, &waiter.terms);
        waiter.bypass
    }

    /// A task's terms.
    pub(in crate::engine) fn terms(&self, id: u64) -> Option<&Arc<AcquireTerms>> {
        let waiter = self.waiters.get(&(false, id)).or_else(|| self.waiters.get(&(true, id)));
        waiter.map(|waiter| &waiter.terms)
    }

    /// A task's bypass request, if it has one.
    pub(in crate::engine) fn bypass(&mut self, id: u64) -> Option<&mut ReentrantBypass> {
        self.waiter(id)?.bypass.as_deref_mut()
    }

    /// All bypass requests.
    pub(in crate::engine) fn bypasses(&mut self) -> impl Iterator<Item = &mut ReentrantBypass> {
        self.waiters.values_mut().filter_map(|waiter| waiter.bypass.as_deref_mut())
    }

    /// The task's request is in flight: if its owner acquires the lock from now on, it sends one more.
    pub(in crate::engine) fn await_owner(&mut self, id: u64) {
        let owner = self.waiter(id).and_then(|waiter| waiter.terms.value.clone());
        if let Some(owner) = owner {
            self.by_owner.entry(owner).or_default().insert(id);
        }
    }

    fn forget_owner(&mut self, id: u64, terms: &AcquireTerms) {
        let Some(owner) = &terms.value else { return };
        if let Some(ids) = self.by_owner.get_mut(owner) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_owner.remove(owner);
            }
        }
    }

    /// This owner holds the lock: its waiters, except this one, bypass the queue.
    pub(in crate::engine) fn notify_owner(&mut self, owner: &OwnValue, except: Option<u64>) {
        let Some(mut ids) = self.by_owner.remove(owner) else { return };
        let kept = except.filter(|id| ids.remove(id));
        for id in ids {
            let Some(waiter) = self.waiter(id) else { continue };
            if let Some(bypass) = &mut waiter.bypass {
                bypass.retry_now();
                waiter.signal();
            }
        }
        if let Some(id) = kept {
            self.by_owner.entry(owner.clone()).or_default().insert(id);
        }
    }

    /// Sets a task aside, or back to its former position.
    pub(in crate::engine) fn set_aside(&mut self, id: u64, aside: bool) {
        if let Some(waiter) = self.waiters.remove(&(!aside, id)) {
            self.waiters.insert((aside, id), waiter);
        }
    }

    /// The number of the latest task.
    pub(in crate::engine) const fn last_id(&self) -> u64 {
        self.last_id
    }

    /// The front.
    pub(in crate::engine) fn front_id(&self) -> Option<u64> {
        self.waiters.first_key_value().map(|((_, id), _)| *id)
    }

    pub(in crate::engine) fn is_front(&self, id: u64) -> bool {
        self.waiters.first_key_value().is_some_and(|((_, front), _)| *front == id)
    }

    /// The terms of the front.
    pub(in crate::engine) fn front(&self) -> Option<&Arc<AcquireTerms>> {
        self.waiters.first_key_value().map(|(_, waiter)| &waiter.terms)
    }

    /// Wakes the front.
    pub(in crate::engine) fn signal_front(&mut self) {
        if let Some(mut front) = self.waiters.first_entry() {
            front.get_mut().signal();
        }
    }

    /// Wakes all waiters.
    pub(in crate::engine) fn signal_all(&mut self) {
        self.waiters.values_mut().for_each(Waiter::signal);
    }

    /// Marks a task's signals until now as seen.
    pub(in crate::engine) fn clear_signal(&mut self, id: u64) {
        if let Some(waiter) = self.waiter(id) {
            waiter.signaled = false;
        }
    }

    /// Whether a task has been signaled; registers its waker otherwise. Ready for a task that is not queued.
    pub(in crate::engine) fn poll_signaled(&mut self, id: u64, waker: &Waker) -> Poll<()> {
        let Some(waiter) = self.waiter(id) else { return Poll::Ready(()) };
        if std::mem::take(&mut waiter.signaled) {
            return Poll::Ready(());
        }
        match &mut waiter.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    fn waiter(&mut self, id: u64) -> Option<&mut Waiter> {
        let aside = !self.waiters.contains_key(&(false, id));
        self.waiters.get_mut(&(aside, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Label, Liveness, LockMode};
    use std::time::Duration;

    fn terms() -> Arc<AcquireTerms> {
        let label = Label::new("").expect("an empty label is a label");
        let lease = Duration::from_secs(1);
        Arc::new(AcquireTerms {
            lease,
            label,
            value: None,
            expire_foreign: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            queue: true,
            poll_often: false,
            margin: Duration::ZERO,
            history: 0,
            fresh_hold: false,
            mode: LockMode::Exclusive,
        })
    }

    #[test]
    fn a_waiter_set_aside_is_passed_and_returns_to_its_position() {
        let mut queue = WaitQueue::default();
        let ids = [(); 3].map(|()| queue.join(terms(), None));
        queue.set_aside(ids[0], true);
        assert!(queue.is_front(ids[1]));
        queue.remove(ids[1]);
        assert!(queue.is_front(ids[2]));
        queue.set_aside(ids[0], false);
        assert!(queue.is_front(ids[0]));
        queue.set_aside(ids[2], true);
        queue.remove(ids[0]);
        let last = queue.join(terms(), None);
        assert!(queue.is_front(last));
        queue.remove(last);
        assert!(queue.is_front(ids[2]));
        queue.remove(ids[2]);
        assert!(queue.front().is_none());
    }
}
