//! The signals to this process, as a stream.
//!
//! 1. A signal that was ignored at the start stays ignored, by this process and by the command: `nohup` and `&` in
//!    scripts rely on it.
//! 2. Signals that concern the command alone are caught only once it runs: before that, Ctrl-Z stops this process like
//!    any program. While a `lead` campaigns again, they are caught and do the same.

use crate::job::terminal;
use crate::output::failure::Failure;
use rustix::process::Signal;
use std::io;
use std::task::{Context, Poll};
use tokio::signal::unix::{self, SignalKind};

/// Signals that end this process while it waits, and are forwarded to the command later.
pub(crate) const TERMINATION: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Signals that only the command can use; by default they would end this process.
const USER_DEFINED: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Signals of the terminal.
const JOB_CONTROL: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];

/// Signals that are caught.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    /// Set once all are caught.
    all: bool,
}

impl Signals {
    /// Catches the signals that may come before the command runs.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let mut signals = Self { ignored: ignored(), streams: Vec::new(), all: false };
        signals.add(&TERMINATION).and_then(|()| signals.add(&USER_DEFINED)).map_err(catch_failure)?;
        Ok(signals)
    }

    /// Also catches the signals that may come while the command runs (2), including the end of a child.
    pub(crate) fn catch_all(&mut self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.all, true) {
            return Ok(());
        }
        self.add(&JOB_CONTROL).map_err(catch_failure)?;
        // If SIGCHLD is ignored, the kernel discards the exit status.
        let children = unix::signal(SignalKind::child()).map_err(catch_failure)?;
        self.streams.push((Signal::CHILD, children));
        Ok(())
    }

    /// Awaits a future, unless a signal asks this process to end first: then the future is dropped, and the signal is
    /// the error.
    pub(crate) async fn interruptible<T>(&mut self, future: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.termination() => Err(signal),
            output = future => Ok(output),
        }
    }

    /// The next signal. Several pending signals of a kind are reported as one.
    ///
    /// Cancel safety: no signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next signal that asks this process to end. Stops this process at Ctrl-Z (2), and discards all others.
    async fn termination(&mut self) -> Signal {
        loop {
            match self.next().await {
                // Nothing can uncatch it once it was caught for a command.
                Signal::TSTP => terminal::suspend(false),
                signal if TERMINATION.contains(&signal) => return signal,
                _ => {}
            }
        }
    }

    fn add(&mut self, signals: &[Signal]) -> io::Result<()> {
        for &signal in signals {
            let ignored = self.ignored >> (signal.as_raw() - 1) & 1 == 1;
            if !ignored {
                self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
            }
        }
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Signal> {
        for (signal, stream) in &mut self.streams {
            if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                return Poll::Ready(*signal);
            }
        }
        Poll::Pending
    }
}

fn catch_failure(error: io::Error) -> Failure {
    Failure::unavailable(anyhow::Error::new(error).context("failed to catch signals"))
}

/// The signals that this process ignores, as a bit mask. Only procfs reports them without changing them; without it,
/// none counts as ignored.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
