//! The signals that we get, as a stream.
//!
//! 1. A signal that was ignored when we were started stays ignored, by us and by the command: `nohup`
//!    and `&` in scripts rely on it.
//! 2. Signals that concern the command alone are caught only once it runs: before, Ctrl-Z stops us as it
//!    stops any program.

use rustix::process::Signal;
use std::io;
use std::task::{Context, Poll};
use tokio::signal::unix::{self, SignalKind};

/// Those that ask us to end while we wait, and are passed on later.
pub(crate) const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Those that only the command can have a use for, and whose default would end us.
const FOR_THE_COMMAND: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Those of the terminal.
const OF_THE_JOB: [Signal; 3] = [Signal::WINCH, Signal::CONT, Signal::TSTP];

/// Signals that are caught.
pub(crate) struct Signals {
    ignored: u64,
    streams: Vec<(Signal, unix::Signal)>,
    /// Set once all are caught.
    all: bool,
}

impl Signals {
    /// Catches what may come before the command runs.
    pub(crate) fn catch() -> io::Result<Self> {
        let mut signals = Self { ignored: ignored(), streams: Vec::new(), all: false };
        signals.add(&ENDING)?;
        signals.add(&FOR_THE_COMMAND)?;
        Ok(signals)
    }

    /// Catches also what may come while the command runs (2), the news of its end included.
    pub(crate) fn catch_all(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.all, true) {
            return Ok(());
        }
        self.add(&OF_THE_JOB)?;
        // Where it was ignored, the kernel would throw the exit status away.
        self.streams.push((Signal::CHILD, unix::signal(SignalKind::child())?));
        Ok(())
    }

    /// The next signal. Signals of a kind that come together are one.
    ///
    /// Cancel safety: no signal is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next signal that asks us to end.
    ///
    /// Cancel safety: as [`next`](Self::next), except for signals that nobody but the command wants.
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

/// The signals that this process ignores, a bit each. Only the kernel's own account of it can be read
/// without touching them; where there is none, nothing is taken for ignored.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
