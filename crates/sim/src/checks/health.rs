//! Whether a process can be expected to react, and since when.

use crate::event::HostEvent;
use crate::world::time::Instant;
use std::time::Duration;

/// The longest pause after a fault, and a little more.
const PAUSE: Duration = Duration::from_millis(1050);

/// The longest interval between two polls of a waiter.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(3300);

/// The health of a process: whether it can be expected to react, and since when.
#[derive(Debug)]
pub struct Health {
    stopped: Option<Instant>,
    links_down: [bool; 2],
    /// Since when it is neither stopped nor without a connection.
    since: Instant,
    /// Until when the effect of a late or lost message of the process may be unknown to it.
    delayed_until: Instant,
    /// Until when it may pause because an operation failed.
    paused_until: Instant,
    /// The same, except that a new subscription ends it.
    waiters_paused_until: Instant,
    /// Until when it certainly takes its session for alive; `None` without a session.
    session_until: Option<Instant>,
    /// Set from then on, until its session is alive again.
    is_without_session: bool,
    /// Since when it has certainly been in a session.
    in_session_since: Instant,
}

impl Health {
    pub(super) fn new(at: Instant, links_down: [bool; 2], session_until: Option<Instant>) -> Self {
        Self {
            stopped: None,
            links_down,
            since: at,
            delayed_until: at,
            paused_until: at,
            waiters_paused_until: at,
            session_until,
            is_without_session: false,
            in_session_since: at,
        }
    }

    /// Time has advanced to `at`.
    pub(super) fn advance(&mut self, at: Instant) {
        self.is_without_session |= self.session_until.is_some_and(|until| at >= until);
    }

    /// Its session is alive. The process takes it for alive until then at least.
    pub(super) fn session_alive_until(&mut self, at: Instant, until: Instant) {
        self.session_until = self.session_until.max(Some(until));
        if self.is_without_session && at < until {
            self.is_without_session = false;
            self.in_session_since = at;
        }
    }

    /// It knows that its session has lapsed.
    pub(super) fn session_lapsed(&mut self, at: Instant) {
        self.session_until = Some(at);
        self.is_without_session = true;
    }

    /// Until when it certainly takes its session for alive; `None` without a session.
    pub const fn session_until(&self) -> Option<Instant> {
        self.session_until
    }

    pub(super) fn observe(&mut self, at: Instant, what: HostEvent) {
        match what {
            HostEvent::Stopped => self.stopped = Some(at),
            HostEvent::Resumed => {
                self.since = at;
                // It has yet to poll for notifications that it missed while it was stopped.
                if self.stopped.take().is_some_and(|stopped| self.delayed_until > stopped) {
                    self.delayed_until = self.delayed_until.max(at + POLL_INTERVAL);
                }
            }
            HostEvent::LinkDown { keeper } => self.links_down[usize::from(keeper)] = true,
            HostEvent::LinkUp { keeper } => {
                self.links_down[usize::from(keeper)] = false;
                self.since = at;
                if !keeper {
                    // A poll follows each new subscription, without a pause.
                    self.waiters_paused_until = at;
                }
            }
            HostEvent::Delayed(until) => self.delayed_until = self.delayed_until.max(until),
            HostEvent::OperationFailed => {
                self.paused_until = at + PAUSE;
                self.waiters_paused_until = at + PAUSE;
            }
            HostEvent::Crashed | HostEvent::Ended => {}
        }
    }

    /// Since when its waiters react at once.
    pub fn waiters_healthy_since(&self) -> Option<Instant> {
        let healthy = self.is_healthy() && !self.is_without_session;
        healthy.then(|| {
            self.since.max(self.delayed_until).max(self.waiters_paused_until).max(self.in_session_since)
        })
    }

    /// Since when the whole process does.
    pub fn healthy_since(&self) -> Option<Instant> {
        let in_session = (!self.is_without_session).then_some(self.in_session_since)?;
        Some(self.background_healthy_since()?.max(in_session))
    }

    /// Since when its background work does, with or without a session.
    pub fn background_healthy_since(&self) -> Option<Instant> {
        self.is_healthy().then(|| self.since.max(self.delayed_until).max(self.paused_until))
    }

    fn is_healthy(&self) -> bool {
        self.stopped.is_none() && self.links_down == [false; 2]
    }
}
