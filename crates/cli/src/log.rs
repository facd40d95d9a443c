//! What the program says on standard error, as text or as JSON, one line an event.

use crate::args::{LogArgs, LogFormat};
use std::io::Write;
use std::sync::OnceLock;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Set once the user's wish is known; text before.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Where the program's own words are found in the log.
const OURS: &str = "leasehold::program";

/// Begins to log as asked.
pub(crate) fn start(args: &LogArgs) {
    let level = match args.verbose {
        // What matters to the user of a program, it says by itself.
        0 => Level::ERROR,
        1 => Level::INFO,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    // Ours alone: what other crates log has not been read for secrets.
    let ours = Targets::new().with_target("leasehold", level).with_target("leasehold_core", level);
    let ours = ours.with_target(OURS, level.max(Level::WARN));
    let layer = fmt::layer().with_writer(std::io::stderr);
    let layer = match args.log_format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    // Both are done once, by `main`; a second time would change nothing.
    let _ = tracing_subscriber::registry().with(layer.with_filter(ours)).try_init();
    let _ = FORMAT.set(args.log_format);
}

/// Says what went wrong.
pub(crate) fn error(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::error!(target: OURS, "{text}");
    } else {
        say(text);
    }
}

/// Says what the user should know although it is no failure.
pub(crate) fn warning(text: &str) {
    if FORMAT.get() == Some(&LogFormat::Json) {
        tracing::warn!(target: OURS, "{text}");
    } else {
        say(text);
    }
}

/// Writes a line on standard error as it is.
pub(crate) fn line(text: &str) {
    // A standard error that is closed is nothing to fail for.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn say(text: &str) {
    line(&format!("leasehold: {text}\n"));
}
