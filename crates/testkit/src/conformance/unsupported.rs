//! Ends a case that needs a feature the store lacks.

use std::sync::OnceLock;
use tokio::sync::Notify;

/// A feature that the store lacks and the case needs.
#[derive(Debug, Default)]
pub(super) struct Unsupported {
    what: OnceLock<&'static str>,
    reported: Notify,
}

impl Unsupported {
    /// Ends the case: the store lacks the feature.
    pub(super) async fn leave(&self, what: &'static str) -> ! {
        // The first report counts.
        let _ = self.what.set(what);
        self.reported.notify_one();
        loop {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the case has ended by [`leave`](Self::leave), and returns the feature.
    pub(super) async fn reached(&self) -> &'static str {
        self.reported.notified().await;
        self.what.get().copied().unwrap_or_default()
    }
}
