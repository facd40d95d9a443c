//! What a race takes place in: a world, a server, and clients of it; and what has to hold when all is over.

use super::wire::Server;
use super::world::Still;
use crate::engine::{Engine, Timings};
use crate::owner::Owners;
use crate::{Client, Guard, Mutex, ReleaseError};
use leasehold_core::{About, Label, Lock};
use shuttle::thread;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The lock that all want.
const NAME: &str = "orders/42";

/// Longer than the first lease of 3 s: the keeper has to extend it.
const LEASE: Duration = Duration::from_secs(30);

/// How long a session lives without a beat. Longer than any test lets the clock go on at once.
const SESSION: Duration = Duration::from_secs(10);

pub(super) struct Scene {
    pub(super) world: Still,
    pub(super) server: Server,
}

impl Scene {
    /// A new one. What the server executes is printed if it is to be shown.
    pub(super) fn new(shown: bool) -> Self {
        let world = Still::new();
        let server = Server::new(&world, shown);
        Self { world, server }
    }

    /// A client with a connection of its own, and one more for its keeper.
    pub(super) async fn client(&self) -> Client {
        let timings = Timings {
            call: Duration::from_secs(2),
            outage: Duration::from_secs(30),
            watchdog: LEASE,
            session: Some(SESSION),
        };
        let about = About {
            label: Label::new("a client").expect("a plain text"),
            host: String::new(),
            pid: 0,
            program: String::new(),
            version: String::new(),
            started_ms: 0,
            labels: BTreeMap::new(),
        };
        let store = Arc::new(self.server.connect());
        let engine = Engine::start(store, Arc::new(self.world.clone()), about, timings).await;
        let engine = engine.expect("nothing keeps it from starting");
        let owners = Owners::new(None, engine.world.clone()).expect("no name can be too long");
        Client { engine, owners: Arc::new(owners) }
    }

    /// Has time go by, whenever the schedule says so.
    pub(super) fn pass(&self, times: u32, by: Duration) {
        let world = self.world.clone();
        thread::spawn(move || (0..times).for_each(|_| world.advance(by)));
    }

    /// Releases, after which nothing may be sent about the hold.
    pub(super) async fn release(&self, guard: Guard) -> Result<(), ReleaseError> {
        release(&self.server, guard).await
    }

    /// Fails if anything is left of anybody. All clients have to be gone.
    pub(super) fn end(self) {
        self.world.join_keepers();
        self.server.join_lines();
        assert!(self.server.is_free(&lock()), "the lock is held by nobody, or waited for by nobody");
    }
}

/// The lock that all want, as a client knows it: held with a watchdog, which does nothing before time passes.
pub(super) fn watched(client: &Client) -> Mutex {
    client.mutex(NAME).expect("a plain name")
}

/// The same, held for so long that the keeper extends it at once.
pub(super) fn leased(client: &Client) -> Mutex {
    watched(client).lease(LEASE)
}

pub(super) fn lock() -> Lock {
    Lock::mutex(NAME.parse().expect("a plain name"))
}

/// Releases, after which nothing may be sent about the hold, unless the process hands it on.
pub(super) async fn release(server: &Server, guard: Guard) -> Result<(), ReleaseError> {
    let hold = guard.claim().hold;
    let released = guard.release().await;
    server.let_go_if_given_up(hold);
    released
}
