//! What the program writes on standard error, as text or as JSON, one line an event.

use crate::args::{LogArgs, LogFormat};
use crate::output::exit::{Exit, Failure};
use std::io::Write;
use std::sync::OnceLock;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Set once the arguments are known; text before that.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// The target of the program's own messages in the log.
const OURS: &str = "leasehold::program";

/// Starts logging as configured.
pub(crate) fn start(args: &LogArgs) {
    let level = match args.verbose {
        // The program reports what matters to its user itself.
        0 => Level::ERROR,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    // Only this project's events: those of other crates were not reviewed for secrets.
    let ours = Targets::new().with_target("leasehold", level).with_target("leasehold_core", level);
    let ours = ours.with_target(OURS, level.max(Level::WARN));
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match args.log_format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    // `main` does both once; a second call would change nothing.
    let _ = tracing_subscriber::registry().with(layer.with_filter(ours)).try_init();
    let _ = FORMAT.set(args.log_format);
}

/// Logs why the program failed. Returns its exit status.
pub(crate) fn failure(failure: &Failure) -> Exit {
    error(&failure.message());
    failure.exit
}

/// Logs an error.
pub(crate) fn error(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::error!(target: OURS, "{text}");
    } else {
        say(text);
    }
}

/// Logs a warning: the user should know, although it is no failure.
pub(crate) fn warning(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::warn!(target: OURS, "{text}");
    } else {
        say(text);
    }
}

/// Writes a line on standard error as it is.
pub(crate) fn line(text: &str) {
    // A closed standard error is no reason to fail.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn say(text: &str) {
    line(&format!("leasehold: {text}\n"));
}
