//! The exit status of the program.

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
    /// What was checked for was found.
    pub(crate) const FOUND: Self = Self(1);
    /// The arguments, the name, the URL or another setting cannot be used.
    pub(crate) const USAGE: Self = Self(2);
    /// The name is in use for another kind of lock, or for something else: `EX_DATAERR`.
    pub(crate) const OTHER_KIND: Self = Self(65);
    /// The store cannot be reached, or refuses the request: `EX_UNAVAILABLE`.
    pub(crate) const UNAVAILABLE: Self = Self(69);
    /// The lock was lost: `EX_SOFTWARE`.
    pub(crate) const LOST: Self = Self(70);
    /// The store broke what it has to keep: `EX_PROTOCOL`.
    pub(crate) const VIOLATED: Self = Self(76);
    /// The lock was not acquired, unless the user chose another number: `EX_TEMPFAIL`.
    pub(crate) const CONFLICT: Self = Self(75);
    /// The server has settings that could lose locks: `EX_CONFIG`.
    pub(crate) const UNSAFE_SETTINGS: Self = Self(78);
    /// The command was found, but cannot be executed; the same as in shells.
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    /// There is no such command; the same as in shells.
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// A status that the user or the command has chosen.
    pub(crate) const fn new(status: u8) -> Self {
        Self(status)
    }

    /// The status that shells report for a process that a signal ended.
    pub(crate) fn from_signal(signal: Signal) -> Self {
        Self::from_raw_signal(signal.as_raw())
    }

    /// [`from_signal`](Self::from_signal) for signals that have no name, too.
    pub(crate) fn from_raw_signal(signal: i32) -> Self {
        Self(u8::try_from(signal).unwrap_or(0).saturating_add(128))
    }

    /// The status as a number.
    pub(crate) const fn status(self) -> u8 {
        self.0
    }

    /// Whether it means that the command was not started.
    pub(crate) const fn is_not_started(self) -> bool {
        matches!(self, Self::NOT_EXECUTABLE | Self::NOT_FOUND)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_counted_from_128() {
        assert_eq!(Exit::from_raw_signal(9), Exit(137));
        assert_eq!(Exit::from_raw_signal(64), Exit(192));
        assert_eq!(Exit::from_signal(Signal::TERM), Exit(143));
    }
}
