//! An observer that writes events down, and one that calls its client.

use crate::environment::{client_in_paused_time, memory};
use leasehold::Client;
use leasehold::store::Store;
use leasehold::telemetry::{
    Acquired, HandedOff, Lost, NotAcquired, Observer, Released, RenewalFailed, Renewed, Requested,
    SessionRenewed, Stalled, Waiting,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Writes each event down as a line, with times in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// Set to write requests down as well.
    requests: bool,
}

impl Log {
    pub(crate) fn with_requests() -> Self {
        Self { requests: true, ..Self::default() }
    }

    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    /// The lines since the last call, but those about heartbeats and renewals.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut *self.lines.lock().unwrap());
        lines.retain(|line| !line.starts_with("session") && !line.starts_with("renewed"));
        lines
    }

    /// All lines since the last call.
    pub(crate) fn take_all(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }

    /// A client with this log, on a store.
    pub(crate) async fn client(&self, store: impl Store) -> Client {
        client_in_paused_time(store).label("its label").observer(self.clone()).connect().await.unwrap()
    }

    /// A client with this log on a memory store of its own.
    pub(crate) async fn client_alone(&self) -> Client {
        self.client(memory()).await
    }
}

fn ms(duration: Duration) -> u128 {
    duration.as_millis()
}

impl Observer for Log {
    fn waiting(&self, event: &Waiting<'_>) {
        let (name, holder) = (event.lock.name, event.holder.unwrap_or("?"));
        self.add(format!("waiting {name} ahead {:?} holder {holder}", event.ahead));
    }

    fn acquired(&self, event: &Acquired<'_>) {
        let (lock, detached) = (&event.lock, if event.detached { " detached" } else { "" });
        self.add(format!(
            "acquired {} {} {} after {}{detached}",
            lock.name,
            lock.kind.as_str(),
            lock.class,
            ms(event.waited)
        ));
    }

    fn not_acquired(&self, event: &NotAcquired<'_>) {
        self.add(format!("{} {} after {}", event.outcome.as_str(), event.lock.name, ms(event.waited)));
    }

    fn handed_off(&self, event: &HandedOff<'_>) {
        self.add(format!("handed off {} {}", event.lock.name, event.from.as_str()));
    }

    fn renewed(&self, event: &Renewed<'_>) {
        self.add(format!("renewed {} slack {}", event.lock.name, ms(event.slack)));
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        self.add(format!("renewal failed {} remaining {}", event.lock.name, ms(event.remaining)));
    }

    fn released(&self, event: &Released<'_>) {
        self.add(format!("{} {} held {}", event.how.as_str(), event.lock.name, ms(event.held)));
    }

    fn lost(&self, event: &Lost<'_>) {
        self.add(format!("lost {} held {}: {}", event.lock.name, ms(event.held), event.reason.as_str()));
    }

    fn stalled(&self, event: &Stalled) {
        self.add(format!("stalled {}", ms(event.late)));
    }

    fn requested(&self, event: &Requested) {
        if self.requests {
            self.add(format!("{} {} took {}", event.operation, event.outcome.as_str(), ms(event.took)));
        }
    }

    fn session_renewed(&self, event: &SessionRenewed) {
        self.add(format!("session renewed margin {}", ms(event.margin)));
    }

    fn session_lapsed(&self) {
        self.add("session lapsed".to_owned());
    }
}
