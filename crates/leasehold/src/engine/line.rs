//! The tasks of this process that stand in line for one lock, in the order in which they came.
//!
//! Ten thousand may stand here and give up at once, so nothing looks through the line: each stands under
//! its number. A task that polls, and pauses between two tries, stands aside, behind all others.
//!
//! Whoever wants a ReentrantMutex may go straight to the store, past those before him, once when he comes and then
//! whenever his owner is known to have the lock. For that the line knows its standers by their owners.

use super::straight::Straight;
use leasehold_core::OwnValue;
use leasehold_core::contend::Terms;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Whether a task stands aside, and its number.
type Place = (bool, u64);

#[derive(Default)]
pub(super) struct Line {
    standers: BTreeMap<Place, Stander>,
    /// Those who would go straight if their owner had the lock, and have not been told that he has.
    unaware: BTreeMap<OwnValue, BTreeSet<u64>>,
    last_id: u64,
}

/// A task in line.
struct Stander {
    terms: Arc<Terms>,
    signaled: bool,
    waker: Option<Waker>,
    /// Its own way to the store, of a ReentrantMutex. In a box, since a line is moved about in memory, and few have one.
    straight: Option<Box<Straight>>,
}

impl Stander {
    fn signal(&mut self) {
        self.signaled = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Line {
    /// Puts a task at the end of the line, before those who stand aside.
    pub(super) fn join(&mut self, terms: Arc<Terms>, straight: Option<Straight>) -> u64 {
        let straight = straight.map(Box::new);
        self.last_id += 1;
        let stander = Stander { terms, signaled: false, waker: None, straight };
        self.standers.insert((false, self.last_id), stander);
        self.last_id
    }

    /// Takes a task out of the line. What is returned is its own way to the store.
    pub(super) fn remove(&mut self, id: u64) -> Option<Box<Straight>> {
        let aside = !self.standers.contains_key(&(false, id));
        let stander = self.standers.remove(&(aside, id))?;
        self.make_aware(id, &stander.terms);
        stander.straight
    }

    /// What a task wants, and its own way to the store, if it has one.
    pub(super) fn straight(&mut self, id: u64) -> Option<(&Arc<Terms>, &mut Straight)> {
        let stander = self.stander(id)?;
        stander.straight.as_deref_mut().map(|straight| (&stander.terms, straight))
    }

    /// All ways of their own.
    pub(super) fn all_straight(&mut self) -> impl Iterator<Item = &mut Straight> {
        self.standers.values_mut().filter_map(|stander| stander.straight.as_deref_mut())
    }

    /// A task's question is on its way: if its owner gets the lock from now on, it asks once more.
    pub(super) fn make_unaware(&mut self, id: u64) {
        let owner = self.stander(id).and_then(|stander| stander.terms.value.clone());
        if let Some(owner) = owner {
            self.unaware.entry(owner).or_default().insert(id);
        }
    }

    fn make_aware(&mut self, id: u64, terms: &Terms) {
        let Some(owner) = &terms.value else { return };
        if let Some(ids) = self.unaware.get_mut(owner) {
            ids.remove(&id);
            if ids.is_empty() {
                self.unaware.remove(owner);
            }
        }
    }

    /// This owner has the lock: whoever stands here in his name, but for `but`, is to go straight to the store.
    pub(super) fn call(&mut self, owner: &OwnValue, but: u64) {
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

    /// Puts a task aside, or back to where it stood before.
    pub(super) fn set_aside(&mut self, id: u64, aside: bool) {
        if let Some(stander) = self.standers.remove(&(!aside, id)) {
            self.standers.insert((aside, id), stander);
        }
    }

    /// The number of the task that came last.
    pub(super) const fn last_id(&self) -> u64 {
        self.last_id
    }

    /// The front.
    pub(super) fn front_id(&self) -> Option<u64> {
        self.standers.first_key_value().map(|(place, _)| place.1)
    }

    pub(super) fn is_front(&self, id: u64) -> bool {
        self.standers.first_key_value().is_some_and(|(place, _)| place.1 == id)
    }

    /// What the front wants.
    pub(super) fn front(&self) -> Option<&Arc<Terms>> {
        self.standers.first_key_value().map(|(_, stander)| &stander.terms)
    }

    /// Tells the front that something has happened.
    pub(super) fn signal_front(&mut self) {
        if let Some(mut front) = self.standers.first_entry() {
            front.get_mut().signal();
        }
    }

    /// Tells everybody, not only the front.
    pub(super) fn signal_all(&mut self) {
        self.standers.values_mut().for_each(Stander::signal);
    }

    /// Takes note that a task has seen what was signalled until now.
    pub(super) fn quiet(&mut self, id: u64) {
        if let Some(stander) = self.stander(id) {
            stander.signaled = false;
        }
    }

    /// Whether a task has been signalled; wakes it when it is. One that is not in line need not wait.
    pub(super) fn poll_signaled(&mut self, id: u64, waker: &Waker) -> Poll<()> {
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

    fn stander(&mut self, id: u64) -> Option<&mut Stander> {
        let aside = !self.standers.contains_key(&(false, id));
        self.standers.get_mut(&(aside, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Label, Life, Portion};
    use std::time::Duration;

    fn terms() -> Arc<Terms> {
        let label = Label::new("").expect("an empty label is a label");
        let lease = Duration::from_secs(1);
        Arc::new(Terms {
            lease,
            label,
            value: None,
            adopt: None,
            life: Life::Session { alive_ms: 10_000 },
            queue: true,
            look_often: false,
            fresh: false,
            portion: Portion::Whole,
        })
    }

    #[test]
    fn who_stands_aside_is_passed_and_comes_back_to_his_place() {
        let mut line = Line::default();
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
