//! Processes that this one starts: what they inherit, how they end, and what reaps them.
//!
//! Owns helpers, whose output this program reads. The command under a lock is [`job::child`](crate::job::child)'s.
//!
//! 1. That one reaps any child. A helper is registered before anything can reap it, and its status is kept for its owner.
//! 2. A helper leads a process group of its own, which is killed if its output is no longer needed.

use crate::environment::{BOARD_TOKEN, PASSWORD, STORE};
use crate::store::url;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, waitpid};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The helpers by process id, each with its status once it was reaped (1).
static HELPERS: Mutex<BTreeMap<i32, Option<WaitStatus>>> = Mutex::new(BTreeMap::new());

/// A helper that was started. Dropping it kills its group, unless it has ended.
#[derive(Debug)]
pub(crate) struct Helper {
    pid: Pid,
}

/// How a helper has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelperEnd {
    Status(i32),
    Signal(i32),
    /// This process inherited that it ignores the ends of its children, so the kernel keeps no status.
    Unknown,
}

impl Helper {
    /// Starts a helper in a process group of its own (2). The kernel kills it when the thread that called this ends.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, Option<ChildStdout>)> {
        command.process_group(0);
        without_passwords(&mut command);
        kill_with_parent(&mut command, rustix::process::getpid());
        let mut helpers = helpers();
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        helpers.insert(pid.as_raw_nonzero().get(), None);
        Ok((Self { pid }, child.stdout.take()))
    }

    /// How it has ended, if it has. It is reaped then.
    pub(crate) fn poll(&self) -> Option<HelperEnd> {
        self.reap(&mut helpers(), WaitOptions::NOHANG)
    }

    fn reap(
        &self,
        helpers: &mut BTreeMap<i32, Option<WaitStatus>>,
        options: WaitOptions,
    ) -> Option<HelperEnd> {
        let known = helpers.entry(self.pid.as_raw_nonzero().get()).or_default();
        while known.is_none() {
            match waitpid(Some(self.pid), options) {
                Ok(Some((_, status))) => *known = Some(status),
                Err(Errno::INTR) => {}
                Ok(None) => return None,
                Err(_) => return Some(HelperEnd::Unknown),
            }
        }
        known.map(helper_end)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let mut helpers = helpers();
        // Its process id is not used for another process before it was reaped.
        if self.reap(&mut helpers, WaitOptions::NOHANG).is_none() {
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.reap(&mut helpers, WaitOptions::empty());
        }
        helpers.remove(&self.pid.as_raw_nonzero().get());
    }
}

fn helpers() -> MutexGuard<'static, BTreeMap<i32, Option<WaitStatus>>> {
    // No code panics while it holds this lock.
    HELPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn helper_end(status: WaitStatus) -> HelperEnd {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(status), _) => HelperEnd::Status(status),
        (None, Some(signal)) => HelperEnd::Signal(signal),
        (None, None) => HelperEnd::Unknown,
    }
}

/// The next change of the state of any child, as `wait` returns it. The status of a helper that has ended is kept for its
/// owner (1).
pub(crate) fn wait_any(options: WaitOptions) -> rustix::io::Result<Option<(Pid, WaitStatus)>> {
    let mut helpers = helpers();
    let change = rustix::process::wait(options);
    if let Ok(Some((pid, status))) = &change
        && !status.stopped()
        && let Some(helper) = helpers.get_mut(&pid.as_raw_nonzero().get())
    {
        *helper = Some(*status);
    }
    change
}

/// Takes the passwords out of what a process inherits.
pub(crate) fn without_passwords(command: &mut Command) {
    command.env_remove(PASSWORD).env_remove(BOARD_TOKEN);
    if let Some(url) = std::env::var_os(STORE).as_deref().and_then(url::inherited) {
        // Not removed: a nested command would use another store, where it excludes no other process. Without the
        // password the store refuses it with an error.
        command.env(STORE, url);
    }
}

/// Makes the kernel kill the child when `parent` ends, however it ends.
///
/// This applies to the child alone, not to the child's own children. The kernel discards it when the child executes a
/// program that is setuid or has file capabilities.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn kill_with_parent(command: &mut Command, parent: Pid) {
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
pub(crate) fn kill_with_parent(_command: &mut Command, _parent: Pid) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sh(script: &str) -> Helper {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Helper::start(command).expect("there is a shell").0
    }

    fn ended(helper: &Helper) -> HelperEnd {
        let start = Instant::now();
        loop {
            if let Some(end) = helper.poll() {
                return end;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn an_end_is_known_also_if_another_reaps_it() {
        let helper = sh("exit 3");
        let start = Instant::now();
        while !matches!(wait_any(WaitOptions::NOHANG), Ok(Some((pid, _))) if pid == helper.pid) {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(ended(&helper), HelperEnd::Status(3));
        assert_eq!(ended(&helper), HelperEnd::Status(3));
    }

    #[test]
    fn a_helper_that_is_dropped_is_killed_and_reaped() {
        let helper = sh("sleep 1000 & sleep 1000");
        let group = helper.pid;
        drop(helper);
        let reaped = waitpid(Some(group), WaitOptions::NOHANG);
        assert!(matches!(reaped, Err(Errno::CHILD)), "{reaped:?}");
        let start = Instant::now();
        // The grandchildren are reaped by another process.
        while kill_process_group(group, Signal::CONT).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20), "the group lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
