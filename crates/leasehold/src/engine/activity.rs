//! What a client reports of its waits and holds, so that others see what waits for what: the units that wait, and the
//! text that a session's record carries.
//!
//! [`keeper::activity`](super::keeper) decides when it is reported; [`wait_graph`](super::wait_graph) and the client's
//! `session_info` read it.
//!
//! 1. The text of an owner allows to enter its locks, so only its hash is reported.
//! 2. The text has a bounded size: what does not fit is counted.
//! 3. An actor with several waits goes on when one of them ends, so all of them are reported, or none.

use leasehold_core::{Fingerprint, Heartbeat, Kind, Lock, LockName, OwnValue, SessionId};
use serde::{Deserialize, Serialize};
use std::thread::ThreadId;

/// How long a wait lasts before it is reported.
pub(crate) const REPORT_WAIT_AFTER: std::time::Duration = std::time::Duration::from_millis(300);
/// The largest numbers of waits and holds in one text.
const MAX_WAITS: usize = 64;
const MAX_HOLDS: usize = 256;
/// The length of an owner's hash, in hexadecimal digits.
const OWNER_DIGITS: usize = 24;

/// The unit that waits for a lock and holds others meanwhile. Made with each guard, so it is named only when it is reported.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Actor {
    /// All that is done for an owner, on any host: it was in the scope of one.
    Owner(OwnValue),
    /// A tokio task.
    Task(tokio::task::Id),
    /// A thread, outside of tasks.
    Thread(ThreadId),
}

impl Actor {
    /// The unit that runs this code, in the scope of that owner, if any.
    pub(crate) fn current(scope: Option<OwnValue>) -> Self {
        match (scope, tokio::task::try_id()) {
            (Some(owner), _) => Self::Owner(owner),
            (None, Some(task)) => Self::Task(task),
            (None, None) => Self::Thread(std::thread::current().id()),
        }
    }

    /// Whether it is the same one in every process.
    pub(crate) const fn is_owner(&self) -> bool {
        matches!(self, Self::Owner(_))
    }

    /// Its name in a report (1).
    pub(crate) fn to_report(&self) -> String {
        match self {
            Self::Owner(owner) => {
                // Not the hash of the text alone, which others may know for another reason.
                let hash = Fingerprint::of(&format!("leasehold owner {}", owner.as_str())).to_string();
                format!("o{}", &hash[..OWNER_DIGITS])
            }
            Self::Task(id) => format!("t{id}"),
            // No other method shows its number.
            Self::Thread(id) => format!("h{}", format!("{id:?}").replace(|c: char| !c.is_ascii_digit(), "")),
        }
    }
}

/// A hold of another process, during which this process runs and for which it works: a command under a lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct EnclosingHold {
    pub(crate) lock: String,
    pub(crate) fence: u64,
}

/// A wait, as reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReportedWait {
    /// The number of the wait in its client: no other wait has it.
    pub(crate) id: u64,
    pub(crate) kind: String,
    pub(crate) lock: String,
    /// The mode, [encoded](leasehold_core::LockMode::encode).
    pub(crate) mode: String,
    pub(crate) actor: String,
    /// When it began, by the wall clock of its machine, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    /// Set if the wait ends rather than be part of a cycle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) refuses: bool,
}

impl ReportedWait {
    /// The lock; `None` if another version wrote what this one cannot read.
    pub(crate) fn lock(&self) -> Option<Lock> {
        parse_lock(&self.kind, &self.lock)
    }
}

/// A hold, as reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ReportedHold {
    pub(crate) kind: String,
    pub(crate) lock: String,
    /// The token by which the store knows it.
    pub(crate) fence: u64,
    /// Its own token, if it was handed off inside the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own_fence: Option<u64>,
    pub(crate) actor: String,
}

/// What the text of a session's record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActivityReport {
    /// The client: names of tasks and threads are its own.
    pub(crate) client: SessionId,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits: Vec<ReportedWait>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) holds: Vec<ReportedHold>,
    /// The holds of other processes under which the client runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) within: Vec<EnclosingHold>,
    /// How many waits and holds are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) omitted: u64,
}

/// The lock of a report.
pub(crate) fn parse_lock(kind: &str, name: &str) -> Option<Lock> {
    Some(Lock { kind: Kind::parse(kind)?, name: LockName::new(name).ok()? })
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl ActivityReport {
    /// The text, empty if there is nothing to report (2).
    pub(crate) fn into_text(mut self) -> String {
        if self.waits.is_empty() && self.holds.is_empty() {
            return String::new();
        }
        let mut left_out =
            |kept: usize, of: usize| self.omitted += u64::try_from(of.saturating_sub(kept)).unwrap_or(0);
        left_out(MAX_WAITS, self.waits.len());
        left_out(MAX_HOLDS, self.holds.len());
        self.waits.truncate(MAX_WAITS);
        self.holds.truncate(MAX_HOLDS);
        loop {
            // Cannot fail: all keys are texts.
            let text = serde_json::to_string(&self).unwrap_or_default();
            if text.len() <= Heartbeat::MAX_ACTIVITY {
                return text;
            }
            // A hold without its wait is of no use, so waits go last.
            match (self.waits.len(), self.holds.len()) {
                // An enclosing hold has a name of any length.
                (0, 0) => return String::new(),
                (waits, 0) => self.truncate(waits * 3 / 4, 0),
                (waits, holds) => self.truncate(waits, holds * 3 / 4),
            }
        }
    }

    /// Leaves some out. Of an actor either all waits are left or none (3).
    fn truncate(&mut self, waits: usize, holds: usize) {
        let before = self.waits.len() + self.holds.len();
        if let Some(cut) = self.waits.get(waits).map(|wait| wait.actor.clone()) {
            self.waits.truncate(waits);
            self.waits.retain(|wait| wait.actor != cut);
        }
        self.holds.truncate(holds);
        let after = self.waits.len() + self.holds.len();
        self.omitted += u64::try_from(before - after).unwrap_or(0);
    }

    /// Parses the texts of a record: a line for each session of the client. Returns also whether a line cannot be read.
    pub(crate) fn parse(text: &str) -> (Vec<Self>, bool) {
        let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).map(serde_json::from_str).collect();
        let has_unreadable = lines.iter().any(Result::is_err);
        (lines.into_iter().flatten().collect(), has_unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(waits: usize, holds: usize, name: &str) -> ActivityReport {
        let (kind, lock) = ("mutex".to_owned(), name.to_owned());
        let wait = |id: u64| ReportedWait {
            id,
            kind: kind.clone(),
            lock: lock.clone(),
            mode: "-".into(),
            actor: format!("t{}", id / 2),
            since_ms: 1_762_000_000_123,
            refuses: false,
        };
        let hold = |fence| ReportedHold {
            kind: kind.clone(),
            lock: lock.clone(),
            fence,
            own_fence: None,
            actor: "t1".into(),
        };
        ActivityReport {
            client: SessionId::from_random([7; 12]),
            waits: (0..).map(wait).take(waits).collect(),
            holds: (0..).map(hold).take(holds).collect(),
            within: Vec::new(),
            omitted: 0,
        }
    }

    #[test]
    fn a_text_is_bounded_and_says_what_is_left_out() {
        for (waits, holds, name) in
            [(1, 0, "a"), (1, 1, "a"), (1000, 10, "a"), (10, 9000, "a"), (70, 300, &*"x".repeat(500))]
        {
            let text = report(waits, holds, name).into_text();
            assert!(text.len() <= Heartbeat::MAX_ACTIVITY, "{}", text.len());
            let (parsed, false) = ActivityReport::parse(&text) else { panic!("{text}") };
            let [parsed] = &parsed[..] else { panic!("{text}") };
            let kept = parsed.waits.len() + parsed.holds.len();
            assert_eq!(
                u64::try_from(kept).expect("few") + parsed.omitted,
                u64::try_from(waits + holds).expect("few")
            );
            assert!(!parsed.waits.is_empty(), "waits go last");
            assert_eq!(parsed.waits.len() % 2, waits % 2, "all of an actor or none");
        }
        assert_eq!(report(0, 0, "a").into_text(), "");
    }

    #[test]
    fn lines_of_another_version_do_not_hide_the_others() {
        let text =
            format!("{}\n{{\"later\":1}}\n{}", report(1, 0, "a").into_text(), report(0, 1, "b").into_text());
        let (parsed, has_unreadable) = ActivityReport::parse(&text);
        assert_eq!((parsed.len(), has_unreadable), (2, true));
    }

    #[test]
    fn an_owner_is_reported_by_a_hash_that_is_the_same_everywhere() {
        let owner = |text: &str| Actor::Owner(OwnValue::new(text).expect("an owner"));
        let report = owner("trace-4711").to_report();
        assert_eq!(report, owner("trace-4711").to_report());
        assert_ne!(report, owner("trace-4712").to_report());
        assert!(report.len() == 1 + OWNER_DIGITS && !report.contains("4711"), "{report}");
    }

    #[tokio::test]
    async fn tasks_are_told_apart() {
        let current = || Actor::current(None);
        let here = current();
        let (one, other) = (tokio::spawn(async move { current() }), tokio::spawn(async move { current() }));
        let (one, other) = (one.await.expect("no panic"), other.await.expect("no panic"));
        assert!(
            matches!((&here, &one, &other), (Actor::Thread(_), Actor::Task(_), Actor::Task(_))),
            "{here:?} {one:?}"
        );
        assert_ne!(one, other);
        assert_eq!(here, current());
    }
}
