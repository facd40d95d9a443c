//! The pages that the monitor serves.
//!
//! 1. The metrics are made anew once a second at most, however many requests there are.

use crate::daemon::exposition;
use crate::daemon::listener::{Page, TEXT};
use crate::daemon::metrics;
use crate::daemon::progress::Progress;
use crate::fleet::Fleet;
use hyper::StatusCode;
use hyper::body::Bytes;
use leasehold::inspect::MonitorReport;
use leasehold::telemetry::LockClasses;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// For how long the text of the metrics is used (1).
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What the pages are made from.
pub(crate) struct Pages {
    progress: Mutex<Progress>,
    fleet: watch::Receiver<Arc<Fleet>>,
    classes: LockClasses,
    metrics: Mutex<Option<(Instant, Bytes)>>,
}

impl Pages {
    pub(crate) fn new(every: Duration, fleet: watch::Receiver<Arc<Fleet>>) -> Self {
        let progress = Mutex::new(Progress::new(every, Instant::now()));
        Self { progress, fleet, classes: LockClasses::default(), metrics: Mutex::default() }
    }

    /// Counts a round that has just ended.
    pub(crate) fn add(&self, round: &MonitorReport) {
        locked(&self.progress).add(round, &self.classes, Instant::now());
    }

    /// The page of a path.
    pub(crate) fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => {
                let body = self.metrics();
                Some(Page { status: StatusCode::OK, content_type: exposition::CONTENT_TYPE, body })
            }
            "/healthz" => Some(self.health()),
            _ => None,
        }
    }

    fn metrics(&self) -> Bytes {
        let now = Instant::now();
        let mut kept = locked(&self.metrics);
        if let Some((at, text)) = &*kept
            && now.saturating_duration_since(*at) < KEPT_FOR
        {
            return text.clone();
        }
        let fleet = Arc::clone(&self.fleet.borrow());
        let text = metrics::text(&locked(&self.progress), &fleet, &self.classes, SystemTime::now());
        let text = Bytes::from(text);
        *kept = Some((now, text.clone()));
        text
    }

    fn health(&self) -> Page {
        let (status, text) = match locked(&self.progress).check(Instant::now()) {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(unhealthy) => (StatusCode::SERVICE_UNAVAILABLE, format!("{unhealthy}\n")),
        };
        Page { status, content_type: TEXT, body: Bytes::from(text) }
    }
}

/// No code panics while it holds this mutex.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
