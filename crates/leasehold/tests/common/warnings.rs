//! The warnings logged on the thread of a test.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// A second, unused subscriber. With a single one, `tracing` asks only the thread that first reaches a log statement
/// whether it is enabled, and caches that for all threads; that thread may belong to another test, without a
/// subscriber.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(ObservedHolder::default()));

/// The warnings logged during this value's lifetime.
pub(crate) struct Warnings {
    seen: ObservedHolder,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct ObservedHolder(Arc<Mutex<Vec<String>>>);

impl Warnings {
    pub(crate) fn listen() -> Self {
        LazyLock::force(&ANOTHER);
        let seen = ObservedHolder::default();
        Self { _guard: set_default(seen.clone()), seen }
    }

    /// The warnings that contain this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let seen = self.seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl Subscriber for ObservedHolder {
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
