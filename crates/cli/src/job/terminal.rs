//! The controlling terminal, and which process group is in its foreground.
//!
//! The command's group starts in the background, so that this process receives Ctrl-C and forwards it, and the other
//! processes of a pipeline keep their terminal. The kernel stops the command when it reads from or configures the
//! terminal: then its group becomes the foreground group, if this process's group was.
//!
//! Without a shell above, nothing would continue this process after a stop: then it does not stop.

use nix::sys::signal::{SigSet, Signal as Masked};
use nix::unistd::{getpgrp, getppid, getsid};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, getpid, kill_current_process_group, kill_process};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::os::fd::OwnedFd;

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: OwnedFd,
    /// The group that was put into the foreground in place of the group of this process.
    foreground: Option<Pid>,
}

impl Terminal {
    /// The terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty, foreground: None })
    }

    /// Puts a group into the foreground, if this process's group is there. Returns whether it did.
    pub(crate) fn set_foreground(&mut self, group: Pid) -> bool {
        let own = own_group();
        let is_ours = own.is_some() && tcgetpgrp(&self.tty).ok() == own;
        if is_ours && tcsetpgrp(&self.tty, group).is_ok() {
            self.foreground = Some(group);
            return true;
        }
        false
    }

    /// Puts this process's group back into the foreground. Returns whether another group was there in its place.
    pub(crate) fn restore_foreground(&mut self) -> bool {
        let Some(group) = self.foreground.take() else { return false };
        if let Some(own) = own_group()
            && tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
        {
            // The kernel stops a background process that configures the terminal, unless SIGTTOU is blocked.
            let mut mask = SigSet::empty();
            mask.add(Masked::SIGTTOU);
            let blocked = mask.thread_block();
            let restored = tcsetpgrp(&self.tty, own);
            if blocked.is_ok() {
                // Fails only for an invalid mask.
                let _ = mask.thread_unblock();
            }
            if let Err(error) = restored {
                tracing::debug!(%error, "failed to put this process back into the foreground");
            }
        }
        true
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore_foreground();
    }
}

/// Stops this process as the command was stopped, and returns when it continues; returns at once if nothing could
/// continue it.
pub(crate) fn suspend(whole_group: bool) {
    // A parent outside of this process's namespace has the number 0, and its session may be anything.
    let parent = getppid();
    if parent.as_raw() == 0 || getsid(Some(parent)).ok() != getsid(None).ok() {
        return;
    }
    // Ctrl-Z has already reached this process's group, unless the command's group was in the foreground.
    let stopped = if whole_group {
        kill_current_process_group(Signal::STOP)
    } else {
        kill_process(getpid(), Signal::STOP)
    };
    if let Err(error) = stopped {
        tracing::debug!(%error, "failed to stop this process");
    }
}

/// This process's group, unless it began outside of the process's namespace, where it has no number: the system calls
/// then answer 0, for which rustix panics.
fn own_group() -> Option<Pid> {
    Pid::from_raw(getpgrp().as_raw())
}
