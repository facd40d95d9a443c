//! In which order locks and sessions are listed, and which are shown.

use crate::fleet::{Fleet, LockView};
use crate::glob::Glob;
use clap::ValueEnum;
use leasehold::inspect::{SessionId, SessionInfo};
use std::cmp::{Ordering, Reverse};
use std::sync::Arc;
use std::time::SystemTime;

/// The order of the locks. What is not known comes last. Descriptions for clap would make each help the long form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockOrder {
    // The most first.
    #[default]
    Waiters,
    // The longest first.
    Wait,
    // The longest first.
    Hold,
    // The most in a second first.
    Changes,
    Name,
}

impl LockOrder {
    const ALL: [Self; 5] = [Self::Waiters, Self::Wait, Self::Hold, Self::Changes, Self::Name];

    /// What comes first, in words.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Waiters => "most waiters first",
            Self::Wait => "longest wait first",
            Self::Hold => "longest hold first",
            Self::Changes => "most changes first",
            Self::Name => "by name",
        }
    }

    /// The order after this one, or before it.
    pub(crate) fn next(self, is_forward: bool) -> Self {
        next(&Self::ALL, self, is_forward)
    }

    /// Compares locks. Those that are equal stay in the order of their names.
    pub(crate) fn compare(self, one: &LockView, other: &LockView) -> Ordering {
        let (one, other) = (self.key(one), self.key(other));
        // Neither is NaN: both are quotients by a time that has passed.
        other.0.total_cmp(&one.0).then(one.1.cmp(&other.1))
    }

    /// A number, of which the greatest comes first, and an instant, of which the earliest does.
    fn key(self, lock: &LockView) -> (f64, (Reverse<u64>, bool, Option<SystemTime>)) {
        let most = |since: Option<SystemTime>| (Reverse(0), since.is_none(), since);
        match self {
            Self::Waiters => (0.0, (Reverse(lock.waiting), lock.waiting_since.is_none(), lock.waiting_since)),
            Self::Wait => (0.0, most(lock.waiting_since)),
            Self::Hold => (0.0, most(held_since(lock))),
            Self::Changes => (lock.changes_per_second.unwrap_or(-1.0), most(None)),
            Self::Name => (0.0, most(None)),
        }
    }
}

/// Since when a lock is held, if it is and that is known.
pub(crate) fn held_since(lock: &LockView) -> Option<SystemTime> {
    lock.status.as_ref().filter(|status| status.held)?.since
}

/// The order of the sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionOrder {
    Locks,
    Oldest,
    Host,
}

impl SessionOrder {
    const ALL: [Self; 3] = [Self::Locks, Self::Oldest, Self::Host];

    /// What comes first, in words.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Locks => "most locks first",
            Self::Oldest => "oldest first",
            Self::Host => "by host",
        }
    }

    /// The order after this one, or before it.
    pub(crate) fn next(self, is_forward: bool) -> Self {
        next(&Self::ALL, self, is_forward)
    }

    fn compare(self, one: &SessionInfo, other: &SessionInfo) -> Ordering {
        let since = |session: &SessionInfo| (session.since().is_none(), session.since());
        let host =
            |session: &SessionInfo| session.metadata.as_ref().map(|about| (about.host.clone(), about.pid));
        let first = match self {
            Self::Locks => other.locks.len().cmp(&one.locks.len()),
            Self::Oldest => Ordering::Equal,
            Self::Host => host(one).cmp(&host(other)),
        };
        // The id last, so that the order does not depend on that of the reply.
        first.then_with(|| since(one).cmp(&since(other))).then_with(|| one.id.cmp(&other.id))
    }
}

fn next<T: Copy + PartialEq>(all: &[T], current: T, is_forward: bool) -> T {
    let at = all.iter().position(|one| *one == current).unwrap_or(0);
    let by = if is_forward { 1 } else { all.len() - 1 };
    all[(at + by) % all.len()]
}

/// Which locks and sessions are shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// Only locks with such a name, and the sessions that hold one.
    pub(crate) pattern: Option<(String, Glob)>,
    /// Only the locks of a session, and what to call it.
    pub(crate) session: Option<(SessionId, String)>,
}

impl Selection {
    /// Whether a name is shown.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.pattern.as_ref().is_none_or(|(_, glob)| glob.matches(name))
    }

    /// The locks to show, in their order.
    pub(crate) fn locks(&self, fleet: &Fleet, order: LockOrder) -> Vec<LockView> {
        let of_session = |lock: &LockView| {
            let Some((id, _)) = self.session else { return true };
            lock.session.as_ref().is_some_and(|session| session.id == id)
                || lock.status.as_ref().is_some_and(|status| {
                    status.session == Some(id)
                        || status.shared_holders.iter().any(|holder| holder.session == Some(id))
                })
        };
        let is_shown = |lock: &&LockView| self.has_name(lock.lock.name.as_str()) && of_session(lock);
        let mut locks: Vec<_> = fleet.locks.iter().filter(is_shown).cloned().collect();
        // They come in the order of their names, which stays where the keys are equal.
        locks.sort_by(|one, other| order.compare(one, other));
        locks
    }

    /// The sessions to show, in their order.
    pub(crate) fn sessions(&self, fleet: &Fleet, order: SessionOrder) -> Vec<Arc<SessionInfo>> {
        let is_shown = |session: &&Arc<SessionInfo>| {
            self.pattern.is_none() || session.locks.iter().any(|lock| self.has_name(lock.name.as_str()))
        };
        let mut sessions: Vec<_> = fleet.sessions.iter().filter(is_shown).cloned().collect();
        sessions.sort_by(|one, other| order.compare(one, other));
        sessions
    }
}
