//! The local wait queue: the tasks of this process that want one lock, in order of arrival.
//!
//! Thousands of tasks may wait and give up at once, so nothing scans the queue: each waiter has a number. A task that
//! pauses between two attempts is set aside, behind all others.
//!
//! A task that wants a ReentrantMutex may go straight to the store, past the tasks before it: once on arrival, and
//! again whenever its owner is known to hold the lock. For this the queue indexes its waiters by owner.

use super::reentrant_bypass::ReentrantBypass;
use leasehold_core::OwnValue;
use leasehold_core::machine::contender::AcquireTerms;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Whether a task is set aside, and its number.
type Partition = (bool, u64);

#[derive(Default)]
pub(in crate::engine) struct WaitQueue {
    standers: BTreeMap<Partition, Waiter>,
    /// Waiters that would bypass the queue if their owner held the lock, and do not know yet that it does.
    unaware: BTreeMap<OwnValue, BTreeSet<u64>>,
    last_id: u64,
}

/// A queued task.
struct Waiter {
    terms: Arc<AcquireTerms>,
    signaled: bool,
    waker: Option<Waker>,
    /// Its bypass request, for a ReentrantMutex. Boxed: map nodes move in memory, and few waiters have one.
    straight: Option<Box<ReentrantBypass>>,
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
        straight: Option<ReentrantBypass>,
    ) -> u64 {
        let straight = straight.map(Box::new);
        self.last_id += 1;
        let stander = Waiter { terms, signaled: false, waker: None, straight };
        self.standers.insert((false, self.last_id), stander);
        self.last_id
    }

    /// Removes a task from the queue. Returns its bypass request.
    pub(in crate::engine) fn remove(&mut self, id: u64) -> Option<Box<ReentrantBypass>> {
        let aside = !self.standers.contains_key(&(false, id));
        let stander = self.standers.remove(&(aside, id))?;
        self.make_aware(id, &stander.terms);
        stander.straight
    }

    /// A task's terms and its bypass request, if it has one.
    pub(in crate::engine) fn straight(
        &mut self,
        id: u64,
    ) -> Option<(&Arc<AcquireTerms>, &mut ReentrantBypass)> {
        let stander = self.stander(id)?;
        stander.straight.as_deref_mut().map(|straight| (&stander.terms, straight))
    }

    /// All bypass requests.
    pub(in crate::engine) fn all_straight(&mut self) -> impl Iterator<Item = &mut ReentrantBypass> {
        self.standers.values_mut().filter_map(|stander| stander.straight.as_deref_mut())
    }

    /// The task's request is in flight: if its owner acquires the lock from now on, it sends one more.
    pub(in crate::engine) fn make_unaware(&mut self, id: u64) {
        let owner = self.stander(id).and_then(|stander| stander.terms.value.clone());
        if let Some(owner) = owner {
            self.unaware.entry(owner).or_default().insert(id);
        }
    }

    fn make_aware(&mut self, id: u64, terms: &AcquireTerms) {
        let Some(owner) = &terms.value else { return };
        if let Some(ids) = self.unaware.get_mut(owner) {
            ids.remove(&id);
            if ids.is_empty() {
                self.unaware.remove(owner);
            }
        }
    }

    /// This owner holds the lock: its waiters, except `but`, go straight to the store.
    pub(in crate::engine) fn call(&mut self, owner: &OwnValue, but: u64) {
        let Some(mut ids) = self.unaware.remove(owner) else { return };
        let asks_itself = ids.remove(&but);
        for id in ids {
            let Some(stander) = self.stander(id) else { continue };
            if let Some(straight) = &mut stander.straight {
                straight.call();
                stander.signal();
            }
        }
        if asks_itself {
            self.unaware.entry(owner.clone()).or_default().insert(but);
        }
    }

    /// Sets a task aside, or back to its former position.
    pub(in crate::engine) fn set_aside(&mut self, id: u64, aside: bool) {
        if let Some(stander) = self.standers.remove(&(!aside, id)) {
            self.standers.insert((aside, id), stander);
        }
    }

    /// The number of the latest task.
    pub(in crate::engine) const fn last_id(&self) -> u64 {
        self.last_id
    }

    /// The front.
    pub(in crate::engine) fn front_id(&self) -> Option<u64> {
        self.standers.first_key_value().map(|(place, _)| place.1)
    }

    pub(in crate::engine) fn is_front(&self, id: u64) -> bool {
        self.standers.first_key_value().is_some_and(|(place, _)| place.1 == id)
    }

    /// The terms of the front.
    pub(in crate::engine) fn front(&self) -> Option<&Arc<AcquireTerms>> {
        self.standers.first_key_value().map(|(_, stander)| &stander.terms)
    }

    /// Wakes the front.
    pub(in crate::engine) fn signal_front(&mut self) {
        if let Some(mut front) = self.standers.first_entry() {
            front.get_mut().signal();
        }
    }

    /// Wakes all waiters.
    pub(in crate::engine) fn signal_all(&mut self) {
        self.standers.values_mut().for_each(Waiter::signal);
    }

    /// Marks a task's signals until now as seen.
    pub(in crate::engine) fn quiet(&mut self, id: u64) {
        if let Some(stander) = self.stander(id) {
            stander.signaled = false;
        }
    }

    /// Whether a task has been signaled; registers its waker otherwise. Ready for a task that is not queued.
    pub(in crate::engine) fn poll_signaled(&mut self, id: u64, waker: &Waker) -> Poll<()> {
        let Some(stander) = self.stander(id) else { return Poll::Ready(()) };
        if std::mem::take(&mut stander.signaled) {
            return Poll::Ready(());
        }
        match &mut stander.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        Poll::Pending
    }

    fn stander(&mut self, id: u64) -> Option<&mut Waiter> {
        let aside = !self.standers.contains_key(&(false, id));
        self.standers.get_mut(&(aside, id))
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
            adopt: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            queue: true,
            poll_often: false,
            fresh_hold: false,
            mode: LockMode::Exclusive,
        })
    }

    #[test]
    fn a_waiter_set_aside_is_passed_and_returns_to_its_position() {
        let mut line = WaitQueue::default();
        let ids = [(); 3].map(|()| line.join(terms(), None));
        line.set_aside(ids[0], true);
        assert!(line.is_front(ids[1]));
        line.remove(ids[1]);
        assert!(line.is_front(ids[2]));
        line.set_aside(ids[0], false);
        assert!(line.is_front(ids[0]));
        line.set_aside(ids[2], true);
        line.remove(ids[0]);
        let last = line.join(terms(), None);
        assert!(line.is_front(last));
        line.remove(last);
        assert!(line.is_front(ids[2]));
        line.remove(ids[2]);
        assert!(line.front().is_none());
    }
}
