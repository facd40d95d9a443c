//! The command as a process: how it starts, receives signals, and ends.
//!
//! 1. It leads a process group of its own, which receives all signals.
//! 2. The kernel kills it when this process ends (Linux): see [`die_with`].
//! 3. Polling also reaps all other children of this process (orphans, if it is process 1).

use crate::environment::{FENCE, NAME, OWNER, PASSWORD, STORE};
use crate::job::held::Held;
use crate::output::exit::Exit;
use crate::store::url;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A command that was started. Dropping this does not end it.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// A change of a child's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has ended, and was reaped.
    Ended(Exit),
    /// It was stopped, by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command with `held` in its environment. Must be called on the main thread: the kernel kills the child
    /// when the *thread* that started it ends (2).
    pub(crate) fn start(words: &[OsString], held: &Held) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        let locks = held.tokens();
        // No name contains a line break.
        let names: Vec<_> = locks.iter().map(|(name, _)| name.as_str()).collect();
        let fences: Vec<_> = locks.iter().map(|(_, fence)| fence.to_string()).collect();
        command.env(NAME, names.join("\n")).env(FENCE, fences.join("\n"));
        // A plain run leaves the variable unchanged: nested commands still act for the owner that it names.
        if let Some(owner) = held.owner() {
            command.env(OWNER, owner.as_str());
        }
        command.env_remove(PASSWORD);
        if let Some(url) = std::env::var_os(STORE).as_deref().and_then(url::inherited) {
            // Not removed: a nested command would fall back to another store, where it excludes no other process.
            // Without the password the store refuses it with an error.
            command.env(STORE, url);
        }
        die_with(&mut command, rustix::process::getpid());
        let child = command.spawn()?;
        Ok(Self { pid: Pid::from_child(&child) })
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
                crate::output::log::warning(&format!("failed to send {signal:?} to the command: {error}"));
            }
        }
    }

    /// The change of the child's state since the last call, if any. Reaps what has ended (3).
    pub(crate) fn poll(&self) -> Option<Change> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.pid => {
                    if let Some(change) = change(status) {
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

/// The status that a shell reports for a command that could not be started.
pub(crate) fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    }
}

fn change(status: WaitStatus) -> Option<Change> {
    if let Some(status) = status.exit_status() {
        return Some(Change::Ended(Exit::new(u8::try_from(status & 0xff).unwrap_or(u8::MAX))));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(Change::Ended(Exit::from_raw_signal(signal)));
    }
    status.stopping_signal().map(Change::Stopped)
}

/// Makes the kernel kill the child when `parent` ends, however it ends.
///
/// This applies to the child alone, not to the child's own children. The kernel discards it when the child executes a
/// program that is setuid or has file capabilities.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn die_with(command: &mut Command, parent: Pid) {
    let set = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that ended before the call above has sent no signal.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(Errno::SRCH.raw_os_error()));
        }
        Ok(())
    };
    #[allow(
        unsafe_code,
        reason = "between fork and exec only async-signal-safe calls are allowed: these are two bare system calls, \
                  prctl and getppid, and an error without allocation; nothing else gives the child this signal"
    )]
    unsafe {
        command.pre_exec(set);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn die_with(_command: &mut Command, _parent: Pid) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_have_the_exit_status_of_shells() {
        let check = |errno: Errno, exit| {
            assert_eq!(exit_of(&io::Error::from_raw_os_error(errno.raw_os_error())), exit);
        };
        check(Errno::NOENT, Exit::NOT_FOUND);
        check(Errno::ACCESS, Exit::NOT_EXECUTABLE);
        check(Errno::ISDIR, Exit::NOT_EXECUTABLE);
        check(Errno::NOEXEC, Exit::NOT_EXECUTABLE);
    }
}
