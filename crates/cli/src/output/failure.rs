//! Why the program failed: the exit status, the message, and the words for programs.

use crate::output::exit::Exit;
use crate::output::printable::quoted;
use anyhow::Error;
use leasehold::{LockName, LostReason};

/// Why the program failed, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    cause: Error,
    /// The kind of failure if another client holds the lock. The user can choose the exit status for that.
    taken: Option<&'static str>,
    /// Why the lock was lost, if it was.
    lost: Option<LostReason>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, cause: impl Into<Error>) -> Self {
        Self { exit, cause: cause.into(), taken: None, lost: None }
    }

    /// The arguments, the name, the URL or another setting cannot be used.
    pub(crate) fn usage(cause: impl Into<Error>) -> Self {
        Self::new(Exit::USAGE, cause)
    }

    /// The store, or something on this machine, is not available.
    pub(crate) fn unavailable(cause: impl Into<Error>) -> Self {
        Self::new(Exit::UNAVAILABLE, cause)
    }

    /// Another client holds the lock.
    pub(crate) fn taken(exit: Exit, cause: impl Into<Error>) -> Self {
        Self { taken: Some("taken"), ..Self::new(exit, cause) }
    }

    /// The wait was part of a cycle of waits, and gave up.
    pub(crate) fn deadlock(exit: Exit, cause: impl Into<Error>) -> Self {
        Self { taken: Some("deadlock"), ..Self::new(exit, cause) }
    }

    /// The lock was lost.
    pub(crate) fn lost(reason: LostReason, cause: impl Into<Error>) -> Self {
        Self { lost: Some(reason), ..Self::new(Exit::LOST, cause) }
    }

    /// Adds what was attempted: "failed to VERB `NAME`".
    pub(crate) fn failed_to(self, verb: &str, name: &LockName) -> Self {
        self.failed_to_all(verb, &quoted([name]))
    }

    /// [`failed_to`](Self::failed_to) for several locks, as [`quoted`] writes them.
    pub(crate) fn failed_to_all(self, verb: &str, quoted: &str) -> Self {
        Self { cause: self.cause.context(format!("failed to {verb} {quoted}")), ..self }
    }

    /// The name is in use for another kind of lock, or for something else.
    pub(crate) fn other_kind(cause: impl Into<Error>) -> Self {
        Self::new(Exit::OTHER_KIND, cause)
    }

    /// Whether the name is in use for another kind of lock, or for something else.
    pub(crate) fn is_other_kind(&self) -> bool {
        // The user may have chosen the same number for a lock that is taken.
        self.exit == Exit::OTHER_KIND && self.taken.is_none()
    }

    /// Whether another client holds the lock.
    pub(crate) const fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// The kind of failure, as a word for programs. These words are stable.
    pub(crate) fn kind(&self) -> &'static str {
        if let Some(kind) = self.taken {
            return kind;
        }
        match self.exit {
            Exit::USAGE => "usage",
            Exit::OTHER_KIND => "other_kind",
            Exit::UNAVAILABLE => "unavailable",
            Exit::LOST => "lost",
            Exit::NOT_EXECUTABLE | Exit::NOT_FOUND => "not_started",
            _ => "interrupted",
        }
    }

    /// Why the lock was lost, as a word for programs. These words are stable.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        Some(match self.lost.as_ref()? {
            LostReason::Expired => "expired",
            LostReason::TakenOver { .. } => "taken_over",
            LostReason::Removed => "removed",
            LostReason::StoreLostData => "store_lost_data",
            LostReason::Evicted => "evicted",
            LostReason::ForceReleased => "force_released",
            LostReason::SessionLapsed => "session_lapsed",
            LostReason::Capped => "capped",
            LostReason::ShutDown => "shut_down",
            LostReason::Released => "released",
            _ => "other",
        })
    }

    /// The whole message, on one line.
    pub(crate) fn message(&self) -> String {
        one_line(&self.cause)
    }
}

/// An error and its causes on one line. Many messages already contain the text of their cause.
fn one_line(error: &Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_not_repeated() {
        let error =
            anyhow::anyhow!("refused").context("connecting: refused").context("failed to acquire `a`");
        assert_eq!(one_line(&error), "failed to acquire `a`: connecting: refused");
    }
}
