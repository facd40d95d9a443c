//! How a process fares: whether it can be expected to react, and since when.

use crate::event::HostEvent;
use crate::world::time::Instant;
use std::time::Duration;

/// The longest pause after a fault, and a little more.
const PAUSE: Duration = Duration::from_millis(1050);

/// The longest interval between two polls of a waiter.
pub(crate) const LOOK: Duration = Duration::from_millis(3300);

/// How a process fares.
#[derive(Debug)]
pub struct Health {
    stopped: Option<Instant>,
    links_down: [bool; 2],
    /// Since when none of these is so.
    since: Instant,
    /// Until when a message of the process is late or lost.
    hindered: Instant,
    /// Until when it may pause since an operation failed.
    pausing: Instant,
    /// The same, except that a new subscription ends it.
    waiters_pausing: Instant,
    /// Until when it certainly believes its session alive; `None` where it has none that could lapse.
    session_until: Option<Instant>,
    /// Set from then on, until it is in a session again.
    is_adrift: bool,
    /// Since when it has been in its session without a doubt.
    in_session_since: Instant,
}

impl Health {
    pub(super) fn new(at: Instant, links_down: [bool; 2], session_until: Option<Instant>) -> Self {
        Self {
            stopped: None,
            links_down,
            since: at,
            hindered: at,
            pausing: at,
            waiters_pausing: at,
            session_until,
            is_adrift: false,
            in_session_since: at,
        }
    }

    /// Time has gone on.
    pub(super) fn pass(&mut self, at: Instant) {
        self.is_adrift |= self.session_until.is_some_and(|until| at >= until);
    }

    /// Its session is alive, and believed so until then at least.
    pub(super) fn lives_until(&mut self, at: Instant, until: Instant) {
        self.session_until = self.session_until.max(Some(until));
        if self.is_adrift && at < until {
            self.is_adrift = false;
            self.in_session_since = at;
        }
    }

    /// It knows that its session has lapsed.
    pub(super) fn lapses(&mut self, at: Instant) {
        self.session_until = Some(at);
        self.is_adrift = true;
    }

    /// Until when it certainly believes its session alive; `None` where it has none that could lapse.
    pub const fn session_until(&self) -> Option<Instant> {
        self.session_until
    }

    pub(super) fn observe(&mut self, at: Instant, what: HostEvent) {
        match what {
            HostEvent::Stopped => self.stopped = Some(at),
            HostEvent::WentOn => {
                self.since = at;
                // What it missed while it was stopped, it has yet to poll for.
                if self.stopped.take().is_some_and(|stopped| self.hindered > stopped) {
                    self.hindered = self.hindered.max(at + LOOK);
                }
            }
            HostEvent::LinkDown { keeper } => self.links_down[usize::from(keeper)] = true,
            HostEvent::LinkUp { keeper } => {
                self.links_down[usize::from(keeper)] = false;
                self.since = at;
                if !keeper {
                    // A poll follows each new subscription, whatever pause there was.
                    self.waiters_pausing = at;
                }
            }
            HostEvent::Delayed(until) => self.hindered = self.hindered.max(until),
            HostEvent::OperationFailed => {
                self.pausing = at + PAUSE;
                self.waiters_pausing = at + PAUSE;
            }
            HostEvent::Crashed | HostEvent::Ended => {}
        }
    }

    /// Since when its waiters react at once.
    pub fn waiters_well_since(&self) -> Option<Instant> {
        let well = self.well() && !self.is_adrift;
        well.then(|| self.since.max(self.hindered).max(self.waiters_pausing).max(self.in_session_since))
    }

    /// Since when all of it does.
    pub fn well_since(&self) -> Option<Instant> {
        let in_session = (!self.is_adrift).then_some(self.in_session_since)?;
        Some(self.stirs_since()?.max(in_session))
    }

    /// The same, with or without a session: for background work.
    pub fn stirs_since(&self) -> Option<Instant> {
        self.well().then(|| self.since.max(self.hindered).max(self.pausing))
    }

    fn well(&self) -> bool {
        self.stopped.is_none() && self.links_down == [false; 2]
    }
}
