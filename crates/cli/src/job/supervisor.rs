//! Supervises a command under a lock: forwards signals to it, and ends it when the lock ends.
//!
//! 1. Every wake-up polls the kill timer first: a stopped command continues only while the lock is held.
//! 2. This module renews the lock itself only if the grace is so long that the keeper's renewals, at a third of the
//!    lease, would come too late.

use crate::job::CommandEnd;
use crate::job::child::{Child, StateChange};
use crate::job::kill_timer::{KillAction, KillTimer};
use crate::job::release;
use crate::job::signals::{Signals, TERMINATION};
use crate::job::terminal::{self, Terminal};
use crate::job::times::JobTimes;
use crate::lock::guard::AnyGuard;
use crate::output::exit::Exit;
use crate::output::log;
use leasehold::{Client, LostReason};
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::sleep;

/// The longest sleep: timers stand still while the machine is suspended.
const MAX_SLEEP: Duration = Duration::from_millis(250);

/// A running command, and the lock that it runs under.
pub(crate) struct Supervisor<'a> {
    child: Child,
    client: &'a Client,
    guard: &'a AnyGuard,
    times: JobTimes,
    kill_timer: KillTimer,
    terminal: Option<Terminal>,
    /// Set if the command is to continue after a stop.
    resume: Option<Resume>,
    /// The last signal by which the command was asked to end, other than by this program.
    requested: Option<Signal>,
}

/// How a stopped command continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resume {
    /// Set if its group was in the foreground of the terminal.
    in_foreground: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(child: Child, client: &'a Client, guard: &'a AnyGuard, times: &JobTimes) -> Self {
        let kill_timer = KillTimer::new(times.validity(), times.kill_grace, guard.valid_until());
        Self {
            child,
            client,
            guard,
            times: *times,
            kill_timer,
            terminal: Terminal::open(),
            resume: None,
            requested: None,
        }
    }

    /// Waits until the command has ended.
    pub(crate) async fn run(mut self, signals: &mut Signals) -> CommandEnd {
        let renewals = renew_early(self.guard, self.times);
        tokio::pin!(renewals);
        let lost = self.guard.lost_signal();
        loop {
            let pause = self.apply_kill_timer();
            if let Some(exit) = self.poll_child() {
                return self.finish(exit);
            }
            let holds_lock = !self.kill_timer.has_terminated();
            tokio::select! {
                biased;
                signal = signals.next() => self.forward(signal),
                () = lost.cancelled(), if holds_lock => {}
                () = &mut renewals, if holds_lock => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Does what the kill timer requires, and returns how long there is nothing more to do (1).
    fn apply_kill_timer(&mut self) -> Duration {
        loop {
            let now = self.client.now();
            match self.kill_timer.poll(now, self.guard.valid_until()) {
                KillAction::Terminate => self.terminate(),
                KillAction::Kill => self.child.signal(Signal::KILL),
                KillAction::Done => return MAX_SLEEP,
                KillAction::WaitUntil(moment) => {
                    self.resume();
                    return moment.since(now).min(MAX_SLEEP);
                }
            }
        }
    }

    fn terminate(&mut self) {
        let reason = match release::ending(self.guard) {
            Some(LostReason::Capped) => format!("is held for as long as {} allows", self.guard.cap_option()),
            Some(reason) => format!("is lost ({reason})"),
            None => "cannot be renewed in time".to_owned(),
        };
        log::warning(&format!("{} {reason}: ending the command", self.guard.quoted_names()));
        self.child.signal(Signal::TERM);
        // A stopped process could not end by itself.
        self.child.signal(Signal::CONT);
        self.resume = None;
    }

    /// Lets the command continue after a stop.
    fn resume(&mut self) {
        let Some(resume) = self.resume.take() else { return };
        if resume.in_foreground
            && let Some(terminal) = &mut self.terminal
        {
            terminal.set_foreground(self.child.group());
        }
        self.child.signal(Signal::CONT);
    }

    /// Handles changes of the command's state; returns its exit status if it has ended.
    fn poll_child(&mut self) -> Option<Exit> {
        while let Some(change) = self.child.poll() {
            match change {
                StateChange::Ended(exit) => return Some(exit),
                StateChange::Stopped(signal) => self.handle_stop(signal),
            }
        }
        None
    }

    /// The command was stopped. If the terminal stopped it, it is put into the foreground, or this process stops as
    /// well, as a shell expects of a job. A command that was stopped by SIGSTOP keeps its lock.
    fn handle_stop(&mut self, signal: i32) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&signal);
        if wants_terminal && terminal.set_foreground(self.child.group()) {
            self.child.signal(Signal::CONT);
        } else if wants_terminal || signal == Signal::TSTP.as_raw() {
            let was_in_foreground = terminal.restore_foreground();
            terminal::suspend(was_in_foreground);
            self.resume = Some(Resume { in_foreground: was_in_foreground || wants_terminal });
        }
    }

    fn forward(&mut self, signal: Signal) {
        match signal {
            // The kill timer decides whether the command may continue (1).
            Signal::CONT if self.resume.is_none() => self.resume = Some(Resume { in_foreground: false }),
            Signal::CONT | Signal::CHILD => {}
            signal => {
                if TERMINATION.contains(&signal) {
                    self.requested = Some(signal);
                }
                tracing::info!(?signal, "forwarded to the command");
                self.child.signal(signal);
            }
        }
    }

    fn finish(self, exit: Exit) -> CommandEnd {
        let lock_ended = self.kill_timer.has_terminated();
        if lock_ended {
            // What is left of its group no longer holds a lock.
            self.child.signal(Signal::KILL);
        }
        CommandEnd { exit, lock_ended, requested: self.requested }
    }
}

/// Renews often enough for a long grace (2). Never returns.
async fn renew_early(guard: &AnyGuard, times: JobTimes) {
    if times.kill_grace <= times.lease / 3 {
        return std::future::pending().await;
    }
    loop {
        sleep(times.time_to_renew() / 3).await;
        if let Err(error) = guard.extend().await {
            tracing::debug!(%error, "failed to renew early");
        }
    }
}
