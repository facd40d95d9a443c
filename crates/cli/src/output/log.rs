//! What the program writes on standard error, as text or as JSON, one line for each event.
//!
//! While the terminal shows a full screen, what would go there is held back until that ends.

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::live_line;
use crate::output::printable::printable_lines;
use clap::{ArgAction, Args, ValueEnum};
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

#[derive(Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Log more on standard error; up to three times
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,

    /// Print only failures: no advice about servers, and nothing if another client holds the lock
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,

    /// Format of the messages on standard error: lines of text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    // Lines of text.
    Text,
    // One JSON object per line. A description for clap would make each help of a command the long form.
    Json,
}

/// Set once the arguments are known; text before that.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Set once the arguments are known: whether warnings of the library are logged.
static IS_VERBOSE: OnceLock<bool> = OnceLock::new();

/// Set once the arguments are known: whether advice, and that another client holds the lock, are not logged.
static IS_QUIET: OnceLock<bool> = OnceLock::new();

/// The target of the program's own messages in the log.
const TARGET: &str = "leasehold::program";

/// Starts logging as configured.
pub(crate) fn start(args: &LogArgs) {
    let level = match args.verbose {
        // The program reports what matters to its user itself.
        0 => Level::ERROR,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    // Only events of this project's crates, all of which have this prefix: those of others were not reviewed for secrets.
    let targets = Targets::new().with_target("leasehold", level);
    let targets = targets.with_target(TARGET, level.max(Level::WARN));
    let layer = match args.log_format {
        LogFormat::Text => fmt::layer().with_ansi(false).with_writer(|| PrintableStderr).boxed(),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(|| Stderr).boxed(),
    };
    // A second call would change nothing.
    let _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
    let _ = FORMAT.set(args.log_format);
    let _ = IS_VERBOSE.set(args.verbose > 0);
    let _ = IS_QUIET.set(args.quiet);
}

/// Whether nothing but failures is shown.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.get() == Some(&true)
}

/// Whether messages are lines of text.
pub(crate) fn is_text() -> bool {
    FORMAT.get() != Some(&LogFormat::Json)
}

/// Whether the log shows what the program does.
pub(crate) fn shows_info() -> bool {
    IS_VERBOSE.get() == Some(&true)
}

/// Whether the log shows the library's warnings.
pub(crate) fn shows_warnings_of_library() -> bool {
    IS_VERBOSE.get() == Some(&true)
}

/// Logs why the program failed. Returns its exit status.
pub(crate) fn failure(failure: &Failure) -> Exit {
    // That another client holds the lock is what the exit status says.
    if !(is_quiet() && failure.is_taken()) {
        error(&failure.message());
    }
    failure.exit
}

/// Logs an error.
pub(crate) fn error(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::error!(target: TARGET, "{text}");
    } else {
        write_message(text);
    }
}

/// Logs what the user should know, although it is no failure.
pub(crate) fn warning(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::warn!(target: TARGET, "{text}");
    } else {
        write_message(text);
    }
}

/// Writes a line on standard error as it is.
pub(crate) fn line(text: &str) {
    live_line::clear();
    // A closed standard error is no reason to fail.
    let _ = Stderr.write_all(text.as_bytes());
}

/// What is held back; `None` while nothing is.
static HELD_BACK: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// How many bytes are held back at most. What comes later is left out.
const MAX_HELD_BACK: usize = 64 * 1024;

/// Messages are held back until this is dropped, if they would go to the terminal.
#[derive(Debug)]
#[must_use]
pub(crate) struct HeldBack(());

impl HeldBack {
    /// Holds messages back from now on.
    pub(crate) fn begin() -> Self {
        if io::stderr().is_terminal() {
            *held_back() = Some(Vec::new());
        }
        Self(())
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if let Some(bytes) = held_back().take() {
            let _ = io::stderr().write_all(&bytes);
        }
    }
}

fn held_back() -> std::sync::MutexGuard<'static, Option<Vec<u8>>> {
    HELD_BACK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Standard error, or what is held back.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *held_back() {
            Some(held) if held.len() + bytes.len() <= MAX_HELD_BACK => held.extend_from_slice(bytes),
            Some(_) => {}
            None => return io::stderr().write(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn write_message(text: &str) {
    line(&format!("leasehold: {}\n", printable_lines(text)));
}

/// Standard error for events as text, whose fields contain texts of other clients.
struct PrintableStderr;

impl Write for PrintableStderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        live_line::clear();
        // An event is written as a whole.
        Stderr.write_all(printable_lines(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
