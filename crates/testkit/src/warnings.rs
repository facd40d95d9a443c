//! The warnings that a test's thread logs.
//!
//! Owns a `tracing` subscriber for one thread. Other threads, and other tests, keep their own.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// A second, unused subscriber. With a single one, `tracing` asks only the thread that first reaches a log statement
/// whether it is enabled, and caches that for all threads; that thread may belong to another test, without a
/// subscriber.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Log::default()));

/// Records the warnings and errors that this thread logs, until it is dropped.
///
/// ```
/// use leasehold_testkit::Warnings;
///
/// let warnings = Warnings::record();
/// tracing::warn!(policy = "allkeys-lru", "the server may evict locks");
/// assert_eq!(warnings.containing("allkeys-lru").len(), 1);
/// ```
#[derive(Debug)]
pub struct Warnings {
    log: Log,
    _guard: DefaultGuard,
}

/// The lines recorded so far.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Starts to record.
    pub fn record() -> Self {
        LazyLock::force(&ANOTHER);
        let log = Log::default();
        Self { _guard: set_default(log.clone()), log }
    }

    /// The recorded lines that contain this text.
    pub fn containing(&self, text: &str) -> Vec<String> {
        let lines = self.log.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("writing to a string cannot fail");
    }
}
