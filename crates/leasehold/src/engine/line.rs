//! The tasks of this process that stand in line for one lock, in the order in which they came.
//!
//! Ten thousand may stand here and give up at once, so nothing looks through the line: each stands under
//! its number. A task that polls, and pauses between two tries, stands aside, behind all others.

use leasehold_core::contend::Terms;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Whether a task stands aside, and its number.
type Place = (bool, u64);

#[derive(Default)]
pub(super) struct Line {
    standers: BTreeMap<Place, Stander>,
    last_id: u64,
}

/// A task in line.
struct Stander {
    terms: Arc<Terms>,
    signaled: bool,
    waker: Option<Waker>,
}

impl Line {
    /// Puts a task at the end of the line, before those who stand aside.
    pub(super) fn join(&mut self, terms: Arc<Terms>) -> u64 {
        self.last_id += 1;
        self.standers.insert((false, self.last_id), Stander { terms, signaled: false, waker: None });
        self.last_id
    }

    /// Takes a task out of the line.
    pub(super) fn remove(&mut self, id: u64) {
        if self.standers.remove(&(false, id)).is_none() {
            self.standers.remove(&(true, id));
        }
    }

    /// Puts a task aside, or back to where it stood before.
    pub(super) fn set_aside(&mut self, id: u64, aside: bool) {
        if let Some(stander) = self.standers.remove(&(!aside, id)) {
            self.standers.insert((aside, id), stander);
        }
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
        let Some(mut front) = self.standers.first_entry() else { return };
        let front = front.get_mut();
        front.signaled = true;
        if let Some(waker) = front.waker.take() {
            waker.wake();
        }
    }

    /// Tells everybody, not only the front.
    pub(super) fn signal_all(&mut self) {
        for stander in self.standers.values_mut() {
            stander.signaled = true;
            if let Some(waker) = stander.waker.take() {
                waker.wake();
            }
        }
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
    use leasehold_core::Label;
    use leasehold_core::Life;
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
        })
    }

    #[test]
    fn who_stands_aside_is_passed_and_comes_back_to_his_place() {
        let mut line = Line::default();
        let ids = [line.join(terms()), line.join(terms()), line.join(terms())];
        line.set_aside(ids[0], true);
        assert!(line.is_front(ids[1]));
        line.remove(ids[1]);
        assert!(line.is_front(ids[2]));
        line.set_aside(ids[0], false);
        assert!(line.is_front(ids[0]));
        line.set_aside(ids[2], true);
        line.remove(ids[0]);
        let last = line.join(terms());
        assert!(line.is_front(last));
        line.remove(last);
        assert!(line.is_front(ids[2]));
        line.remove(ids[2]);
        assert!(line.front().is_none());
    }
}
