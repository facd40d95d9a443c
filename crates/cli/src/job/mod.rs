//! A command that runs under a lock: forwards signals to it, and ends it when the lock ends.
//!
//! 1. Every wake-up polls the watch first: a stopped command continues only while the lock is held.
//! 2. This module renews the lock itself only if the grace is so long that the keeper's renewals, at a third of the
//!    lease, would come too late.

pub(crate) mod child;
pub(crate) mod held;
pub(crate) mod owner;
pub(crate) mod share;
pub(crate) mod signals;
pub(crate) mod terminal;
pub(crate) mod terms;
pub(crate) mod watch;

use crate::job::child::{Change, Child};
use crate::job::held::Held;
use crate::job::signals::{ENDING, Signals};
use crate::job::terminal::Terminal;
use crate::job::terms::AcquireTerms;
use crate::job::watch::{Step, Watch};
use crate::output::exit::Exit;
use leasehold::Client;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::sleep;

/// The longest sleep: timers do not notice that the machine was suspended.
const NAP: Duration = Duration::from_millis(250);

/// A command under a lock.
pub(crate) struct Job<'a> {
    child: Child,
    client: &'a Client,
    held: &'a Held,
    watch: Watch,
    terms: AcquireTerms,
    terminal: Option<Terminal>,
    pause: Pause,
    /// The signal by which the command was asked to end, other than by this program.
    asked: Option<Signal>,
}

/// How a command that was started has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit status of the command.
    pub(crate) exit: Exit,
    /// Set if it was made to end, because its lock was lost or could not be renewed.
    pub(crate) stopped: bool,
    /// The signal by which a user or another program asked it to end.
    pub(crate) asked: Option<Signal>,
}

/// Whether the command is to continue after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    None,
    /// The command and this process were stopped, and this process now continues. `lent`: the command had the terminal.
    Over {
        lent: bool,
    },
}

impl<'a> Job<'a> {
    pub(crate) fn new(child: Child, client: &'a Client, held: &'a Held, terms: &AcquireTerms) -> Self {
        let watch = Watch::new(terms.bound(), terms.grace, held.valid_until());
        Self {
            child,
            client,
            held,
            watch,
            terms: *terms,
            terminal: Terminal::named(),
            pause: Pause::None,
            asked: None,
        }
    }
}

/// Waits until the command has ended.
pub(crate) async fn watch(mut job: Job<'_>, signals: &mut Signals) -> Ended {
    let renewals = renew(job.held, job.terms);
    tokio::pin!(renewals);
    let lost = job.held.lost_signal();
    loop {
        let nap = job.obey();
        if let Some(exit) = job.news() {
            return job.ended(exit);
        }
        let told = job.watch.has_ended_it();
        tokio::select! {
            biased;
            signal = signals.next() => job.pass_on(signal),
            () = lost.cancelled(), if !told => {}
            () = &mut renewals, if !told => {}
            () = sleep(nap) => {}
        }
    }
}

impl Job<'_> {
    /// Does what the watch requires, and returns how long there is nothing more to do (1).
    fn obey(&mut self) -> Duration {
        loop {
            let now = self.client.now();
            match self.watch.poll(now, self.held.valid_until()) {
                Step::Terminate => {
                    let locks = held::shown(self.held.tokens().into_iter().map(|(name, _)| name));
                    let why = if self.held.is_capped() {
                        format!("is held for as long as {} allows", self.held.cap())
                    } else {
                        "is lost or cannot be renewed".to_owned()
                    };
                    crate::output::log::warning(&format!("{locks} {why}: ending the command"));
                    self.child.signal(Signal::TERM);
                    // A stopped process could not end by itself.
                    self.child.signal(Signal::CONT);
                    self.pause = Pause::None;
                }
                Step::Kill => self.child.signal(Signal::KILL),
                Step::Done => return NAP,
                Step::Rest(until) => {
                    self.go_on();
                    return until.since(now).min(NAP);
                }
            }
        }
    }

    /// Lets the command continue after a pause.
    fn go_on(&mut self) {
        let Pause::Over { lent } = std::mem::replace(&mut self.pause, Pause::None) else { return };
        if lent && let Some(terminal) = &mut self.terminal {
            terminal.lend(self.child.group());
        }
        self.child.signal(Signal::CONT);
    }

    /// Handles a change of the child's state; returns its status if it has ended.
    fn news(&mut self) -> Option<Exit> {
        while let Some(change) = self.child.poll() {
            match change {
                Change::Ended(exit) => return Some(exit),
                Change::Stopped(by) => self.stopped(by),
            }
        }
        None
    }

    /// The command was stopped. If the terminal stopped it, it gets the terminal, or this process stops as well, as a
    /// shell expects of a job. A command that was stopped by SIGSTOP keeps its lock.
    fn stopped(&mut self, by: i32) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = [Signal::TTIN.as_raw(), Signal::TTOU.as_raw()].contains(&by);
        if wants_terminal && terminal.lend(self.child.group()) {
            self.child.signal(Signal::CONT);
        } else if wants_terminal || by == Signal::TSTP.as_raw() {
            let lent = terminal.take_back();
            terminal::suspend(lent);
            self.pause = Pause::Over { lent: lent || wants_terminal };
        }
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            // The watch decides whether it may continue (1).
            Signal::CONT if self.pause == Pause::None => self.pause = Pause::Over { lent: false },
            Signal::CONT | Signal::CHILD => {}
            signal => {
                if ENDING.contains(&signal) {
                    self.asked = Some(signal);
                }
                tracing::info!(?signal, "passed on to the command");
                self.child.signal(signal);
            }
        }
    }

    fn ended(self, exit: Exit) -> Ended {
        let stopped = self.watch.has_ended_it();
        if stopped {
            // The rest of its group no longer has a lock.
            self.child.signal(Signal::KILL);
        }
        Ended { exit, stopped, asked: self.asked }
    }
}

/// Renews often enough for a long grace (2). Never returns.
async fn renew(held: &Held, terms: AcquireTerms) {
    if terms.grace <= terms.lease / 3 {
        return std::future::pending().await;
    }
    loop {
        sleep(terms.room() / 3).await;
        if let Err(error) = held.extend().await {
            tracing::debug!(%error, "not renewed yet");
        }
    }
}
