//! The setting of a race: an environment, a server and its clients; and what must hold at the end.

use super::environment::Still;
use super::wire::Server;
use crate::engine::{Engine, Timings};
use crate::guard::owner::Owners;
use crate::{Client, Guard, Mutex, ReleaseError};
use leasehold_core::{Label, Lock, SessionMetadata};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The lock that all clients want.
const NAME: &str = "orders/42";

/// Longer than the first lease of 3 s: the keeper must extend it.
const LEASE: Duration = Duration::from_secs(30);

/// The session lifetime without a heartbeat. Longer than any single step of the clock.
const SESSION: Duration = Duration::from_secs(10);

pub(super) struct Scene {
    pub(super) environment: Still,
    pub(super) server: Server,
}

impl Scene {
    /// A new one. If `shown` is set, what the server executes is printed.
    pub(super) fn new(shown: bool) -> Self {
        let environment = Still::new();
        let server = Server::new(&environment, shown);
        Self { environment, server }
    }

    /// A client with its own connection, and one more for its keeper.
    pub(super) async fn client(&self) -> Client {
        let timings = Timings {
            call: Duration::from_secs(2),
            outage: Duration::from_secs(30),
            watchdog: LEASE,
            session: Some(SESSION),
        };
        let about = SessionMetadata {
            label: Label::new("a client").expect("a plain text"),
            host: String::new(),
            pid: 0,
            program: String::new(),
            version: String::new(),
            started_ms: 0,
            labels: BTreeMap::new(),
        };
        let store = Arc::new(self.server.connect());
        let engine = Engine::start(store, Arc::new(self.environment.clone()), about, timings).await;
        let engine = engine.expect("nothing keeps it from starting");
        let owners = Owners::new(None, engine.environment.clone()).expect("no name can be too long");
        Client { engine, owners: Arc::new(owners) }
    }

    /// Advances the clock `times` times, at points chosen by the schedule.
    pub(super) fn pass(&self, times: u32, by: Duration) {
        let environment = self.environment.clone();
        thread::spawn(move || (0..times).for_each(|_| environment.advance(by)));
    }

    /// Releases a guard, after which nothing may be sent about its hold.
    pub(super) async fn release(&self, guard: Guard) -> Result<(), ReleaseError> {
        release(&self.server, guard).await
    }

    /// Fails if any client has left anything behind. All clients must be gone.
    pub(super) fn end(self) {
        self.environment.join_keepers();
        self.server.join_lines();
        assert!(self.server.is_free(&lock()), "the lock is still held or waited for");
    }
}

/// The lock that all clients want, held with a watchdog, which does nothing before time passes.
pub(super) fn watched(client: &Client) -> Mutex {
    client.mutex(NAME).expect("a plain name")
}

/// The same with a lease so long that the keeper extends it at once.
pub(super) fn leased(client: &Client) -> Mutex {
    watched(client).lease(LEASE)
}

pub(super) fn lock() -> Lock {
    Lock::mutex(NAME.parse().expect("a plain name"))
}

/// Releases a guard, after which nothing may be sent about its hold, unless the process hands it on.
pub(super) async fn release(server: &Server, guard: Guard) -> Result<(), ReleaseError> {
    let hold = guard.claim().hold;
    let released = guard.release().await;
    server.ended_if_given_up(hold);
    released
}
