//! The history of a run, as the coordinator collects it.

use super::clock::RunClock;
use leasehold_history::{Event, What};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The process number of the coordinator.
const COORDINATOR: u32 = 0;

/// The events so far, in the order in which they arrived.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: RunClock,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub(crate) const fn new(clock: RunClock) -> Self {
        Self { clock, events: Mutex::new(Vec::new()) }
    }

    pub(crate) const fn clock(&self) -> RunClock {
        self.clock
    }

    /// Records what the coordinator does or sees now.
    pub(crate) fn record(&self, what: What) {
        self.add(Event { at_us: self.clock.now_us(), process: COORDINATOR, what });
    }

    /// Adds an event of a worker.
    pub(crate) fn add(&self, event: Event) {
        self.events().push(event);
    }

    /// What a terminal shows: the number of calls, of grants and of faults so far.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let events = self.events();
        let count = |is: fn(&What) -> bool| events.iter().filter(|event| is(&event.what)).count();
        (
            count(|what| matches!(what, What::Asked { .. })),
            count(|what| matches!(what, What::FaultBegan { .. })),
        )
    }

    /// All events, by their times.
    pub(crate) fn take(&self) -> Vec<Event> {
        let mut events = std::mem::take(&mut *self.events());
        events.sort_by_key(|event| event.at_us);
        events
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        // No code panics while it holds this lock.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
