//! The signals to this process, as a stream.
//!
//! 1. A signal that was ignored at the start stays ignored, by this process and by the command: `nohup` and `&` in
//!    scripts rely on it.
//! 2. Signals that concern the command alone are caught only once it runs: before that, Ctrl-Z stops this process like
//!    any program.

use rustix::process::Signal;
use std::io;
use std::task::{Context, Poll};
use tokio::signal::unix::{self, SignalKind};

/// End this process while it waits, and are passed on to the command later.
pub(crate) const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Only the command can use these; by default they would end this process.
const FOR_THE_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Signals of the terminal.
const OF_THE_JOB: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];

/// Signals that are caught.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    /// Set once all are caught.
    all: bool,
}

impl Signals {
    /// Catches the signals that may come before the command runs.
    pub(crate) fn catch() -> io::Result<Self> {
        let mut signals = Self { ignored: ignored(), streams: Vec::new(), all: false };
        signals.add(&ENDING)?;
        signals.add(&FOR_THE_COMMAND)?;
        Ok(signals)
    }

    /// Also catches the signals that may come while the command runs (2), including the end of a child.
    pub(crate) fn catch_all(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.all, true) {
            return Ok(());
        }
        self.add(&OF_THE_JOB)?;
        // If SIGCHLD is ignored, the kernel discards the exit status.
        self.streams.push((Signal::CHILD, unix::signal(SignalKind::child())?));
        Ok(())
    }

    /// The next signal. Several pending signals of a kind are reported as one.
    ///
    /// Cancel safety: no signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next signal that asks this process to end.
    ///
    /// Cancel safety: as [`next`](Self::next), except for signals that only the command can use.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
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

/// The signals that this process ignores, as a bit mask. Only procfs reports them without changing them; without it,
/// none counts as ignored.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
