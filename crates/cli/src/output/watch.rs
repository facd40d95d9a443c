//! A report that is printed again and again.
//!
//! 1. On a terminal it is redrawn in place; elsewhere, and as JSON, it is appended.
//! 2. Between two reports there is a pause, however long one takes: the store gets no more than the requests of one report at
//!    a time.
//! 3. A store that fails for a while is reported, and does not end the program. At the start it does.

use crate::duration;
use crate::job::signals::Signals;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::printable::printable;
use crate::output::report::printed;
use crate::output::screen;
use crate::output::table::shorten;
use clap::Args;
use std::io::{self, Write};
use std::time::Duration;
use tokio::time::sleep;

#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Print it again and again, in place on a terminal, until a signal ends it (Ctrl-C)
    #[arg(long)]
    pub(crate) watch: bool,

    /// Pause between two times, at least 500ms
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_interval, requires = "watch")]
    #[arg(default_value = "2s")]
    interval: Duration,
}

impl WatchArgs {
    /// Prints what `report` makes, once or again and again. The report gets the number of columns that it has, if it is for a
    /// terminal.
    pub(crate) async fn print(
        &self,
        json: bool,
        mut report: impl AsyncFnMut(Option<usize>) -> Result<String, Failure>,
    ) -> Result<Exit, Failure> {
        let columns = || if json { None } else { screen::width(io::stdout()) };
        if !self.watch {
            return write(&report(columns()).await?).map(|_| Exit::SUCCESS);
        }
        let mut signals = Signals::catch()?;
        let in_place = !json && screen::can_move_cursor(io::stdout());
        let (mut drawn, mut has_begun) = (0, false);
        loop {
            let Ok(made) = signals.interruptible(report(columns())).await else { return Ok(Exit::SUCCESS) };
            let text = match made {
                Ok(text) => text,
                Err(failure) if has_begun && failure.exit == Exit::UNAVAILABLE => {
                    let message = format!("{}; trying again", failure.message());
                    if in_place {
                        format!("leasehold: {}\n", printable(&message))
                    } else {
                        log::warning(&message);
                        String::new()
                    }
                }
                Err(failure) => return Err(failure),
            };
            has_begun = true;
            let is_read = if in_place {
                let (screen, lines) = frame(&text, drawn, screen::size(io::stdout()));
                drawn = lines;
                write(&screen)?
            } else {
                write(&text)?
            };
            if !is_read || signals.interruptible(sleep(self.interval)).await.is_err() {
                return Ok(Exit::SUCCESS);
            }
        }
    }
}

/// Writes to standard output. Returns whether it is still read.
fn write(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => printed(written).map(|()| true),
    }
}

/// What draws a text over the last one, which had so many lines, and the number of its lines. What does not fit the screen is
/// cut: a screen that scrolls cannot be drawn over.
fn frame(text: &str, drawn: usize, (columns, rows): (Option<usize>, Option<usize>)) -> (String, usize) {
    let mut lines: Vec<_> =
        text.lines().map(|line| columns.map_or_else(|| line.to_owned(), |max| shorten(line, max))).collect();
    // The cursor is on a line of its own.
    let most = rows.unwrap_or(24).saturating_sub(1).max(2);
    if lines.len() > most {
        let left = lines.len() - (most - 1);
        lines.truncate(most - 1);
        lines.push(format!("… {left} more lines"));
    }
    let mut screen = if drawn == 0 { String::new() } else { format!("\x1b[{drawn}A\r") };
    for line in &lines {
        screen.push_str(line);
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    (screen, lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_drawn_over_the_last_one_and_fits_the_screen() {
        let unknown = (None, None);
        assert_eq!(frame("a\nb\n", 0, unknown), ("a\x1b[K\nb\x1b[K\n\x1b[J".to_owned(), 2));
        assert_eq!(frame("a\n", 2, unknown), ("\x1b[2A\ra\x1b[K\n\x1b[J".to_owned(), 1));
        let (screen, lines) = frame("one\ntwo\nthree\nfour\n", 0, (Some(3), Some(4)));
        assert_eq!((screen.as_str(), lines), ("one\x1b[K\ntwo\x1b[K\n… 2 more lines\x1b[K\n\x1b[J", 3));
    }
}
