//! A line on the terminal that is rewritten in place.
//!
//! 1. Whatever else this program writes to standard error clears the line first.
//! 2. The line is never longer than the terminal is wide, as only then can it be rewritten.

use crate::output::screen;
use crate::output::table::shorten;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the line is on the terminal.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// A line that is cleared when this is dropped.
#[derive(Debug)]
pub(crate) struct LiveLine {
    terminal: io::Stderr,
}

impl LiveLine {
    /// The line, if standard error can show one.
    pub(crate) fn new() -> Option<Self> {
        let terminal = io::stderr();
        screen::can_move_cursor(&terminal).then_some(Self { terminal })
    }

    /// Shows a text, which is safe for a terminal.
    pub(crate) fn draw(&self, text: &str) {
        let width = screen::width(&self.terminal).unwrap_or(80).saturating_sub(1);
        IS_DRAWN.store(true, Ordering::Relaxed);
        // A closed standard error is no reason to fail.
        let _ = self.terminal.lock().write_all(format!("\r{}\x1b[K", shorten(text, width)).as_bytes());
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        clear();
    }
}

/// Clears the line, if there is one (1).
pub(crate) fn clear() {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        let _ = io::stderr().write_all(b"\r\x1b[K");
    }
}
