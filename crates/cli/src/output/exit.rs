//! How the program ends: its exit status, and the message of a failure.

use anyhow::Error;
use leasehold::{LockName, LostReason};
use rustix::process::Signal;
use std::process::ExitCode;

/// An exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    /// Everything was done.
    pub(crate) const SUCCESS: Self = Self(0);
    /// The user answered no.
    pub(crate) const DECLINED: Self = Self(1);
    /// The arguments, the name, the URL or another setting cannot be used.
    pub(crate) const USAGE: Self = Self(2);
    /// The store cannot be reached, or refuses the request: `EX_UNAVAILABLE`.
    pub(crate) const UNAVAILABLE: Self = Self(69);
    /// The lock was lost: `EX_SOFTWARE`.
    pub(crate) const LOST: Self = Self(70);
    /// The lock was not acquired, unless the user chose another number: `EX_TEMPFAIL`.
    pub(crate) const CONFLICT: u8 = 75;
    /// The server has settings that could lose locks: `EX_CONFIG`.
    pub(crate) const HAZARDOUS: Self = Self(78);
    /// The command was found, but cannot be executed; the same as in shells.
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    /// There is no such command; the same as in shells.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// Whether it means that no command was started.
    pub(crate) const fn says_never_started(self) -> bool {
        matches!(self, Self::NOT_EXECUTABLE | Self::NOT_FOUND)
    }

    /// A status that the user or the command has chosen.
    pub(crate) const fn of(status: u8) -> Self {
        Self(status)
    }

    /// The status as a number.
    pub(crate) const fn status(self) -> u8 {
        self.0
    }

    /// The status that shells report for a process that a signal ended.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(signal).unwrap_or(0).saturating_add(128))
    }

    /// The same as [`of_signal`](Self::of_signal).
    pub(crate) fn of_named(signal: Signal) -> Self {
        Self::of_signal(signal.as_raw())
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.0.into()
    }
}

/// Why the program failed, and its exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) cause: Error,
    /// Set if another client holds the lock: the user can choose that status.
    taken: bool,
    /// Why the lock was lost, if it was.
    lost: Option<LostReason>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, cause: impl Into<Error>) -> Self {
        Self { exit, cause: cause.into(), taken: false, lost: None }
    }

    /// Another client holds the lock.
    pub(crate) fn taken(exit: Exit, cause: impl Into<Error>) -> Self {
        Self { taken: true, ..Self::new(exit, cause) }
    }

    /// The lock was lost.
    pub(crate) fn lost(reason: LostReason, cause: impl Into<Error>) -> Self {
        Self { lost: Some(reason), ..Self::new(Exit::LOST, cause) }
    }

    /// Adds what was attempted with a lock.
    pub(crate) fn doing(self, verb: &str, name: &LockName) -> Self {
        self.doing_to(verb, &format!("`{name}`"))
    }

    /// The same, for one lock or several, as text.
    pub(crate) fn doing_to(self, verb: &str, shown: &str) -> Self {
        Self { cause: self.cause.context(format!("failed to {verb} {shown}")), ..self }
    }

    /// Whether another client holds the lock.
    pub(crate) const fn is_taken(&self) -> bool {
        self.taken
    }

    /// The kind of failure, as a word for programs. These words are stable.
    pub(crate) fn kind(&self) -> &'static str {
        match self.exit {
            _ if self.taken => "taken",
            Exit::USAGE => "usage",
            Exit::UNAVAILABLE => "unavailable",
            Exit::LOST => "lost",
            Exit::NOT_EXECUTABLE | Exit::NOT_FOUND => "not_started",
            _ => "interrupted",
        }
    }

    /// Why the lock was lost, as a word for programs.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        Some(match self.lost.as_ref()? {
            LostReason::Expired => "expired",
            LostReason::TakenOver { .. } => "taken_over",
            LostReason::Removed => "removed",
            LostReason::StoreLostData => "store_lost_data",
            LostReason::Evicted => "evicted",
            LostReason::ForceReleased => "freed",
            LostReason::SessionLapsed => "session_lapsed",
            LostReason::Capped => "capped",
            LostReason::ShutDown => "shut_down",
            LostReason::Released => "released",
            _ => "other",
        })
    }

    /// The whole message, on one line.
    pub(crate) fn message(&self) -> String {
        told(&self.cause)
    }
}

/// An error and its causes on one line. Many messages already contain the text of their cause.
fn told(error: &Error) -> String {
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
    fn signals_are_counted_from_128() {
        assert_eq!(Exit::of_signal(9), Exit(137));
        assert_eq!(Exit::of_signal(64), Exit(192));
        assert_eq!(Exit::of_named(Signal::TERM), Exit(143));
    }

    #[test]
    fn a_cause_is_not_repeated() {
        let error =
            anyhow::anyhow!("refused").context("connecting: refused").context("failed to acquire `a`");
        assert_eq!(told(&error), "failed to acquire `a`: connecting: refused");
    }
}
