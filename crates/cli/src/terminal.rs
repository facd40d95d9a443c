//! The terminal, as far as it is ours to lend.
//!
//! The command's group starts in the background, where Ctrl-C reaches us and is passed on, and where the
//! neighbours in a pipeline keep what is theirs. The kernel stops it when it wants to read or set the
//! terminal: then it gets the terminal, if we have it.
//!
//! Nobody would wake us who had stopped as a process without a shell above: then we do not stop.

use nix::sys::signal::{SigSet, Signal as Masked};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, getppid, getsid, kill_current_process_group, kill_process,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::os::fd::OwnedFd;

/// Our controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: OwnedFd,
    /// The group that has it instead of ours.
    lent_to: Option<Pid>,
}

impl Terminal {
    /// The terminal, if we have one.
    pub(crate) fn of_process() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self { tty, lent_to: None })
    }

    /// Lends the terminal to a group, if our own group has it. Says whether it did.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let ours = tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == getpgrp());
        if ours && tcsetpgrp(&self.tty, group).is_ok() {
            self.lent_to = Some(group);
            return true;
        }
        false
    }

    /// Takes the terminal back from the group that has it by our leave. Says whether one did.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(group) = self.lent_to.take() else { return false };
        if tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group) {
            // The kernel stops a background process that sets the terminal, unless this is blocked.
            let mut mask = SigSet::empty();
            mask.add(Masked::SIGTTOU);
            let blocked = mask.thread_block();
            let taken = tcsetpgrp(&self.tty, getpgrp());
            if blocked.is_ok() {
                // It can only fail for a mask that is none.
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

/// Stops us as the command was stopped, and returns when we go on; at once, if nobody could wake us.
pub(crate) fn suspend(whole_group: bool) {
    let shell = getsid(getppid()).ok();
    if getppid().is_none() || shell != getsid(None).ok() {
        return;
    }
    // Ctrl-Z reached our own group already, unless the command's had the terminal.
    let stopped = if whole_group {
        kill_current_process_group(Signal::STOP)
    } else {
        kill_process(getpid(), Signal::STOP)
    };
    if let Err(error) = stopped {
        tracing::debug!(%error, "not stopped");
    }
}
