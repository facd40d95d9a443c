//! How a process fares: whether it can be expected to react, and since when.

use crate::sim::event::HostEvent;
use crate::sim::time::Instant;
use std::time::Duration;

/// The longest pause after a fault, and a little more.
const PAUSE: Duration = Duration::from_millis(1050);

/// How long it takes at most until a waiter looks by itself.
pub(in crate::sim) const LOOK: Duration = Duration::from_millis(3300);

/// How a process fares.
#[derive(Debug)]
pub struct Health {
    stopped: Option<Instant>,
    links_down: [bool; 2],
    /// Since when none of these is so.
    since: Instant,
    /// Until when a message of its is under way that is late, or will never come.
    hindered: Instant,
    /// Until when it may pause since an operation failed.
    pausing: Instant,
    /// The same, but for what a new subscription ends.
    waiters_pausing: Instant,
}

impl Health {
    pub(super) fn new(at: Instant) -> Self {
        Self {
            stopped: None,
            links_down: [false; 2],
            since: at,
            hindered: at,
            pausing: at,
            waiters_pausing: at,
        }
    }

    pub(super) fn observe(&mut self, at: Instant, what: HostEvent) {
        match what {
            HostEvent::Stopped => self.stopped = Some(at),
            HostEvent::WentOn => {
                self.since = at;
                // What it was kept from knowing when it was stopped it has yet to look for.
                if self.stopped.take().is_some_and(|stopped| self.hindered > stopped) {
                    self.hindered = self.hindered.max(at + LOOK);
                }
            }
            HostEvent::LinkDown { keeper } => self.links_down[usize::from(keeper)] = true,
            HostEvent::LinkUp { keeper } => {
                self.links_down[usize::from(keeper)] = false;
                self.since = at;
                if !keeper {
                    // A look follows each new subscription, whatever pause there was.
                    self.waiters_pausing = at;
                }
            }
            HostEvent::Hindered(until) => self.hindered = self.hindered.max(until),
            HostEvent::Rebuffed => {
                self.pausing = at + PAUSE;
                self.waiters_pausing = at + PAUSE;
            }
            HostEvent::Crashed | HostEvent::Ended => {}
        }
    }

    /// Since when its waiters react at once to what concerns them.
    pub fn waiters_well_since(&self) -> Option<Instant> {
        self.well().then(|| self.since.max(self.hindered).max(self.waiters_pausing))
    }

    /// Since when all of it does.
    pub fn well_since(&self) -> Option<Instant> {
        self.well().then(|| self.since.max(self.hindered).max(self.pausing))
    }

    fn well(&self) -> bool {
        self.stopped.is_none() && self.links_down == [false; 2]
    }
}
