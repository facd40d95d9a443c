//! The command as a process: how it starts, receives signals, and ends.
//!
//! 1. It leads a process group of its own, which receives all signals.
//! 2. The kernel kills it when this process ends (Linux): see [`children::kill_with_parent`].
//! 3. Polling also reaps all other children of this process (orphans, if it is process 1); [`children`] keeps the status
//!    of helpers.

use crate::children::{self, kill_with_parent, without_passwords};
use crate::environment::{FENCE, NAME, OWNER};
use crate::lock::guard::AnyGuard;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, Command};

/// A command that was started. Dropping this does not end it.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// A change of the command's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateChange {
    /// It has ended, and was reaped.
    Ended(Exit),
    /// It was stopped, by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command. Must be called on the main thread: the kernel kills the child when the *thread* that started
    /// it ends (2).
    pub(crate) fn start(words: &[OsString], guard: &AnyGuard) -> Result<Self, Failure> {
        let child = Self::spawn(words, guard).map_err(|error| start_failure(words, error))?;
        Ok(Self { pid: Pid::from_child(&child) })
    }

    fn spawn(words: &[OsString], guard: &AnyGuard) -> io::Result<process::Child> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        set_environment(&mut command, guard);
        kill_with_parent(&mut command, rustix::process::getpid());
        command.spawn()
    }

    /// The process group of the command.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the whole group, if it still exists.
    pub(crate) fn signal(&self, signal: Signal) {
        match kill_process_group(self.pid, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            // This process may not signal a setuid program.
            Err(error) => {
                log::warning(&format!("failed to send {signal:?} to the command: {error}"));
            }
        }
    }

    /// The change of the child's state since the last call, if any. Reaps what has ended (3).
    pub(crate) fn poll(&self) -> Option<StateChange> {
        loop {
            match children::wait_any(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.pid => {
                    if let Some(change) = state_change(status) {
                        return Some(change);
                    }
                }
                Ok(Some((orphan, _))) => tracing::trace!(pid = orphan.as_raw_nonzero(), "orphan reaped"),
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// Passes the locks and their owner on to the command, and no password.
fn set_environment(command: &mut Command, guard: &AnyGuard) {
    let tokens = guard.tokens();
    // No name contains a line break.
    let names: Vec<_> = tokens.iter().map(|(name, _)| name.as_str()).collect();
    let fences: Vec<_> = tokens.iter().map(|(_, fence)| fence.to_string()).collect();
    command.env(NAME, names.join("\n")).env(FENCE, fences.join("\n"));
    // Without an owner the variable stays unchanged: nested commands still act for the owner that it names.
    if let Some(owner) = guard.owner() {
        command.env(OWNER, owner.as_str());
    }
    without_passwords(command);
}

fn start_failure(words: &[OsString], error: io::Error) -> Failure {
    let program = words.first().map(|word| word.to_string_lossy()).unwrap_or_default();
    let advice = match error.kind() {
        io::ErrorKind::NotFound => "there is no such program: check its path, or PATH",
        io::ErrorKind::PermissionDenied => "it is not executable: check its mode",
        _ => "it cannot be executed",
    };
    let text = format!("failed to start the command `{program}`: {advice}");
    Failure::new(start_exit(&error), anyhow::Error::new(error).context(text))
}

/// The status that a shell reports for a command that could not be started.
fn start_exit(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    }
}

fn state_change(status: WaitStatus) -> Option<StateChange> {
    if let Some(status) = status.exit_status() {
        return Some(StateChange::Ended(Exit::new(u8::try_from(status & 0xff).unwrap_or(u8::MAX))));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(StateChange::Ended(Exit::from_raw_signal(signal)));
    }
    status.stopping_signal().map(StateChange::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_have_the_exit_status_of_shells() {
        let check = |errno: Errno, exit| {
            assert_eq!(start_exit(&io::Error::from_raw_os_error(errno.raw_os_error())), exit);
        };
        check(Errno::NOENT, Exit::NOT_FOUND);
        check(Errno::ACCESS, Exit::NOT_EXECUTABLE);
        check(Errno::ISDIR, Exit::NOT_EXECUTABLE);
        check(Errno::NOEXEC, Exit::NOT_EXECUTABLE);
    }
}
