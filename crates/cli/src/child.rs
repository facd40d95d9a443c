//! The command as a process: how it starts, is told something, and ends.
//!
//! 1. It leads a process group of its own, which gets all signals.
//! 2. It is killed when we are (Linux): see [`die_with`].
//! 3. Whatever else has become our child (orphans, where we are process 1) is reaped on the way.

use crate::exit::Exit;
use crate::held::Held;
use crate::owner::OWNER;
use crate::secret::PASSWORD;
use crate::store::{self, STORE};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A command that was started. It is not ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
}

/// What has become of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has ended, and was reaped.
    Ended(Exit),
    /// It was stopped, by this signal.
    Stopped(i32),
}

impl Child {
    /// Starts the command under what is held. Must be called on the main thread: the kernel kills the child when
    /// the *thread* ends that started it (2).
    pub(crate) fn start(words: &[OsString], held: &Held) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        let locks = held.tokens();
        // No name has a line break in it.
        let names: Vec<_> = locks.iter().map(|(name, _)| name.as_str()).collect();
        let fences: Vec<_> = locks.iter().map(|(_, fence)| fence.to_string()).collect();
        command.env("LEASEHOLD_NAME", names.join("\n")).env("LEASEHOLD_FENCE", fences.join("\n"));
        // In a plain run it is left as it is: what the command runs is still run for whoever that is.
        if let Some(owner) = held.owner() {
            command.env(OWNER, owner.as_str());
        }
        command.env_remove(PASSWORD);
        if let Some(url) = std::env::var_os(STORE).as_deref().and_then(store::for_command) {
            // Not removed: what the command runs under a lock of its own would fall back to another store, where
            // it excludes nobody. Without the password it is turned away, and says so.
            command.env(STORE, url);
        }
        die_with(&mut command, rustix::process::getpid());
        let child = command.spawn()?;
        Ok(Self { pid: Pid::from_child(&child) })
    }

    /// The group that the command leads.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the whole group. One that is gone already needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        match kill_process_group(self.pid, signal) {
            Ok(()) | Err(Errno::SRCH) => {}
            // A setuid program may not be signalled by us.
            Err(error) => crate::log::warning(&format!("failed to send {signal:?} to the command: {error}")),
        }
    }

    /// What has become of the child since the last time, if anything. Reaps what has ended (3).
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

/// What a shell would say of a command that could not be started.
pub(crate) fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::NOT_EXECUTABLE,
    }
}

fn change(status: WaitStatus) -> Option<Change> {
    if let Some(status) = status.exit_status() {
        return Some(Change::Ended(Exit::of(u8::try_from(status & 0xff).unwrap_or(u8::MAX))));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(Change::Ended(Exit::of_signal(signal)));
    }
    status.stopping_signal().map(Change::Stopped)
}

/// Has the kernel kill the child when `parent` ends, however it ends.
///
/// It reaches the child alone and not what the child starts, and the kernel forgets it when the child
/// executes a program that is setuid or has file capabilities.
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
    fn failed_starts_are_told_as_by_shells() {
        let check = |errno: Errno, exit| {
            assert_eq!(exit_of(&io::Error::from_raw_os_error(errno.raw_os_error())), exit);
        };
        check(Errno::NOENT, Exit::NOT_FOUND);
        check(Errno::ACCESS, Exit::NOT_EXECUTABLE);
        check(Errno::ISDIR, Exit::NOT_EXECUTABLE);
        check(Errno::NOEXEC, Exit::NOT_EXECUTABLE);
    }
}
