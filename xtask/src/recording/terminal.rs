//! A shell at a terminal of its own, with what is on its screen at each time.

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::path_with;

pub(super) const ROWS: NonZero<u16> = NonZero::new(9).expect("it is not zero");
pub(super) const COLUMNS: NonZero<u16> = NonZero::new(84).expect("it is not zero");

/// The rows of a screen from a moment on, which is counted from the start of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) at: Duration,
    pub(super) rows: Vec<String>,
}

/// A terminal with a shell.
pub(super) struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Screen>>,
    begun: Instant,
}

struct Screen {
    parser: vt100::Parser,
    changes: Vec<Change>,
}

impl Terminal {
    /// Starts a shell on a machine of this name: the name is in a namespace.
    pub(super) fn start(
        host: &str,
        begun: Instant,
        directory: &Path,
        programs: &Path,
        store: &str,
    ) -> Result<Self> {
        let shell = format!(
            "stty rows {ROWS} columns {COLUMNS}; exec unshare --user --map-root-user --uts sh -c \
             'hostname {host}; exec bash --norc --noprofile --noediting -i'"
        );
        let mut command = Command::new("script");
        command.args(["--quiet", "--flush", "--return", "--command", &shell, "/dev/null"]);
        command.current_dir(directory).env("PATH", path_with(programs)?).env("SHELL", "/bin/sh");
        command.env("TERM", "xterm").env("PS1", format!("{host}$ ")).env("LEASEHOLD_STORE", store);
        command.env("LEASEHOLD_STATE_DIR", directory.join("state")).env("HISTFILE", "");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("failed to start `script`, of util-linux")?;
        let keys = child.stdin.take().context("it is a pipe")?;
        let mut output = child.stdout.take().context("it is a pipe")?;
        let parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        let screen = Arc::new(Mutex::new(Screen { parser, changes: Vec::new() }));
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                locked(&shared).process(&bytes[..count], begun.elapsed());
            }
        });
        Ok(Self { child, keys, screen, begun })
    }

    /// Types a line, with a pause after each key, and Enter.
    pub(super) fn enter(&mut self, line: &str, pause: Duration) -> Result<()> {
        for key in line.bytes() {
            self.keys.write_all(&[key])?;
            self.keys.flush()?;
            thread::sleep(pause);
        }
        self.keys.write_all(b"\n")?;
        Ok(self.keys.flush()?)
    }

    /// Waits until the screen shows a text.
    pub(super) fn expect(&self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let shown = locked(&self.screen).parser.screen().contents();
            if shown.contains(text) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("`{text}` does not appear:\n{shown}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The time since the terminals were started.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends the shell. Returns what was on the screen, by the time since a start.
    pub(super) fn end(self, start: Duration) -> Vec<Change> {
        since(&locked(&self.screen).changes, start)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its terminal goes with it, and the shell with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Screen {
    fn process(&mut self, bytes: &[u8], at: Duration) {
        self.parser.process(bytes);
        let rows: Vec<String> =
            self.parser.screen().rows(0, COLUMNS.get()).map(|row| row.trim_end().to_owned()).collect();
        if self.changes.last().is_none_or(|last| last.rows != rows) {
            self.changes.push(Change { at, rows });
        }
    }
}

/// The changes by the time since a start. Of the ones before it the last is left.
fn since(changes: &[Change], start: Duration) -> Vec<Change> {
    let first = changes.iter().rposition(|change| change.at <= start).unwrap_or(0);
    let later = changes.iter().skip(first);
    later.map(|change| Change { at: change.at.saturating_sub(start), rows: change.rows.clone() }).collect()
}

/// A panic of the thread that reads leaves the screen as it was.
fn locked(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_the_start_is_the_first_screen() {
        let change = |at, row: &str| Change { at: Duration::from_secs(at), rows: vec![row.to_owned()] };
        let changes = [change(1, "a"), change(2, "b"), change(5, "c")];
        assert_eq!(since(&changes, Duration::from_secs(3)), [change(0, "b"), change(2, "c")]);
        assert_eq!(since(&changes, Duration::ZERO), changes);
    }
}
