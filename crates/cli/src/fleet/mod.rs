//! What is known of all locks of a fleet, kept up to date for a screen or a scrape that stays open.
//!
//! It is read from the sessions' reports, and lock by lock in turns, within a [budget](pace) of the server's time. It does not
//! show locks that no session reports: those of other libraries, detached ones, and holds of less than about a second.

mod known;
pub(crate) mod order;
mod pace;
mod reader;

pub(crate) use reader::{FleetWatch, watch};

use leasehold::core::Lock;
use leasehold::inspect::{SessionInfo, Status, WaitGraph};
use std::sync::Arc;
use std::time::SystemTime;

/// What is known of the locks of a fleet at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fleet {
    /// When the list of sessions was last read, by the clock of this machine.
    pub(crate) read_at: Option<SystemTime>,
    /// All sessions, dead ones included.
    pub(crate) sessions: Vec<Arc<SessionInfo>>,
    /// The locks that are held or waited for, by name and kind.
    pub(crate) locks: Vec<LockView>,
    /// What waits for what. Read if anything waits at all.
    pub(crate) graph: Arc<WaitGraph>,
    pub(crate) totals: Totals,
    /// Why the store cannot be read at present. The rest is what it was before.
    pub(crate) trouble: Option<String>,
    /// What is left out because it cannot be read.
    pub(crate) incomplete: Option<String>,
}

/// Numbers of a whole fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Totals {
    /// Locks that are held.
    pub(crate) held: usize,
    /// Waits for locks.
    pub(crate) waiting: u64,
    /// Live sessions.
    pub(crate) alive: usize,
    /// Dead sessions whose locks are not all freed yet.
    pub(crate) dead: usize,
    /// How many changes of a holder are seen in a second: at least so many there are.
    pub(crate) changes_per_second: f64,
}

/// One lock.
#[derive(Debug, Clone)]
pub(crate) struct LockView {
    pub(crate) lock: Lock,
    /// Its state when it was last looked at; `None` if it has not been yet.
    pub(crate) status: Option<Arc<Status>>,
    /// The session of its holder. While it has not been looked at: of the session that reports it.
    pub(crate) session: Option<Arc<SessionInfo>>,
    /// How many wait for it: the waits that sessions report, and those in its queue when it was looked at.
    pub(crate) waiting: u64,
    /// Since when the longest reported wait lasts.
    pub(crate) waiting_since: Option<SystemTime>,
    /// How often its holder is seen to change in a second: at least so often it does. A look sees one change at most.
    pub(crate) changes_per_second: Option<f64>,
}

impl LockView {
    /// Whether it is held: when it was last looked at, or else as a session reports.
    pub(crate) fn is_held(&self) -> bool {
        self.status.as_ref().map_or(self.session.is_some(), |status| status.held)
    }
}
