//! The terminal, and lending it to the command.
//!
//! The command's group starts in the background, so that this process receives Ctrl-C and passes it on, and the other
//! processes of a pipeline keep their terminal. The kernel stops the command when it reads from or configures the
//! terminal: then it gets the terminal, if this process has it.
//!
//! Without a shell above, nothing would continue this process after a stop: then it does not stop.

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, getppid, getsid, kill_current_process_group, kill_process,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::os::fd::OwnedFd;

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: OwnedFd,
    /// The group that has the terminal in place of the group of this process.
    lent_to: Option<Pid>,
}

impl Terminal {
    /// The terminal, if there is one.
    pub(crate) fn named() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty, lent_to: None })
    }

    /// Lends the terminal to a group, if this process's group has it. Returns whether it did.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let ours = tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == getpgrp());
        if ours && tcsetpgrp(&self.tty, group).is_ok() {
            self.lent_to = Some(group);
            return true;
        }
        false
    }

    /// Takes the terminal back from the group to which it was lent. Returns whether it did.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(group) = self.lent_to.take() else { return false };
        if tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group) {
            // The kernel stops a background process that configures the terminal, unless SIGTTOU is blocked.
            let mut mask = SigSet::empty();
            mask.add(Masked::SIGTTOU);
            let blocked = mask.thread_block();
            let taken = tcsetpgrp(&self.tty, getpgrp());
            if blocked.is_ok() {
                // Fails only for an invalid mask.
                let _ = mask.thread_unblock();
            }
            if let Err(error) = taken {
                tracing::debug!(%error, "the terminal was not taken back");
            }
        }
        true
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Stops this process as the command was stopped, and returns when it continues; returns at once if nothing could
/// continue it.
pub(crate) fn suspend(whole_group: bool) {
    let shell = getsid(getppid()).ok();
    if getppid().is_none() || shell != getsid(None).ok() {
        return;
    }
    // Ctrl-Z has already reached this process's group, unless the command's group had the terminal.
    let stopped = if whole_group {
        kill_current_process_group(Signal::STOP)
    } else {
        kill_process(getpid(), Signal::STOP)
    };
    if let Err(error) = stopped {
        tracing::debug!(%error, "not stopped");
    }
}
