//! A program at a terminal, and what is on its screen.

use super::fixture::{Fixture, LIMIT};
use super::terminal::terminal;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const ROWS: NonZero<u16> = NonZero::new(24).expect("it is not zero");
const COLUMNS: NonZero<u16> = NonZero::new(80).expect("it is not zero");

/// A terminal of 80 columns with a program.
pub(crate) struct Pty {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Pty {
    /// Runs a shell script at a terminal; `None` if there is no `script` here.
    pub(crate) fn start(fixture: &Fixture, script: &str) -> Option<Self> {
        let script = format!("stty rows {ROWS} columns {COLUMNS}; {script}");
        let mut command = terminal(fixture, &script)?;
        command.env_remove("NO_COLOR").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("`script` starts");
        let keys = child.stdin.take().expect("it is a pipe");
        let mut output = child.stdout.take().expect("it is a pipe");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(ROWS, COLUMNS, 0)));
        let shared = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shared.lock().expect("no thread panics with it").process(&bytes[..count]);
            }
        });
        Some(Self { child, keys, screen })
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("it reads");
    }

    /// What is on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().expect("no thread panics with it").screen().contents()
    }

    /// Whether anything on the screen has a colour.
    pub(crate) fn has_colours(&self) -> bool {
        let parser = self.screen.lock().expect("no thread panics with it");
        let (rows, columns) = parser.screen().size();
        let mut cells = (0..rows.get()).flat_map(|row| (0..columns.get()).map(move |column| (row, column)));
        cells.any(|(row, column)| {
            let cell = parser.screen().cell(row, column);
            cell.is_some_and(|cell| {
                (cell.fgcolor(), cell.bgcolor()) != (vt100::Color::Default, vt100::Color::Default)
            })
        })
    }

    /// Whether the program has taken the whole screen.
    pub(crate) fn is_full_screen(&self) -> bool {
        self.screen.lock().expect("no thread panics with it").screen().alternate_screen()
    }

    /// Waits until the screen shows what is wanted.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl FnMut(&str) -> bool) {
        self.until_within(LIMIT, what, holds);
    }

    /// The same, for what takes longer.
    #[track_caller]
    pub(crate) fn until_within(&self, limit: Duration, what: &str, mut holds: impl FnMut(&str) -> bool) {
        let deadline = Instant::now() + limit;
        while !holds(&self.text()) {
            assert!(Instant::now() < deadline, "never: {what}:\n{}", self.text());
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the screen shows a text.
    #[track_caller]
    pub(crate) fn expect(&self, text: &str) {
        self.until(text, |screen| screen.contains(text));
    }

    /// Waits until the program has ended. Returns its exit status.
    #[track_caller]
    pub(crate) fn status(&mut self) -> Option<i32> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child of ours") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it did not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Its terminal goes with it, and the program with that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
