//! Ends a case that needs a feature the store lacks.

use std::sync::OnceLock;
use tokio::sync::Notify;

/// A feature that the store lacks and the case needs.
#[derive(Debug, Default)]
pub(super) struct Unsupported {
    feature: OnceLock<&'static str>,
    reported: Notify,
}

impl Unsupported {
    /// Ends the case: the store lacks the feature.
    pub(super) async fn end_case(&self, feature: &'static str) -> ! {
        // The first report counts.
        let _ = self.feature.set(feature);
        self.reported.notify_one();
        loop {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the case has ended by [`end_case`](Self::end_case). Returns the feature.
    pub(super) async fn reported(&self) -> &'static str {
        self.reported.notified().await;
        self.feature.get().copied().unwrap_or_default()
    }
}
