//! What each race starts with: an environment, a server and its clients; and what must hold at the end.

use crate::environment::FrozenTime;
use crate::server::Server;
use leasehold::core::Lock;
use leasehold::error::ReleaseError;
use leasehold::{Client, Guard, Mutex};
use shuttle::thread;
use std::time::Duration;

/// The lock that all clients want.
const NAME: &str = "orders/42";

/// Longer than the first lease of 3 s: the keeper must extend it.
const LEASE: Duration = Duration::from_secs(30);

/// The session lifetime without a heartbeat. Longer than any single step of the clock.
const SESSION: Duration = Duration::from_secs(10);

pub(crate) struct Fixture {
    pub(crate) environment: FrozenTime,
    pub(crate) server: Server,
}

impl Fixture {
    /// A new one. If `is_shown` is set, what the server executes is printed.
    pub(crate) fn new(is_shown: bool) -> Self {
        let environment = FrozenTime::new();
        let server = Server::new(&environment, is_shown);
        Self { environment, server }
    }

    /// A client with its own connection, and one more for its keeper.
    pub(crate) async fn client(&self) -> Client {
        let builder = Client::with_store(self.server.connect()).environment(self.environment.clone());
        let client = builder
            .label("a client")
            .statistics(false)
            .watchdog_lease(LEASE)
            .session_ttl(SESSION)
            .connect()
            .await;
        client.expect("the server has no faults")
    }

    /// Advances the clock `times` times, at points chosen by the schedule.
    pub(crate) fn pass(&self, times: u32, by: Duration) {
        let environment = self.environment.clone();
        thread::spawn(move || (0..times).for_each(|_| environment.advance(by)));
    }

    /// Releases a guard, after which nothing may be sent about its hold.
    pub(crate) async fn release(&self, guard: Guard) -> Result<(), ReleaseError> {
        release(&self.server, guard).await
    }

    /// Fails if any client has left anything behind. All clients must be gone.
    pub(crate) fn end(self) {
        self.environment.join_keepers();
        self.server.join_connections();
        assert!(self.server.is_free(&lock()), "the lock is still held or waited for");
    }
}

/// The lock that all clients want, held with a watchdog, which does nothing before time passes.
pub(crate) fn watched(client: &Client) -> Mutex {
    client.mutex(NAME).expect("a plain name")
}

/// The same with a lease so long that the keeper extends it at once.
pub(crate) fn leased(client: &Client) -> Mutex {
    watched(client).lease(LEASE)
}

pub(crate) fn lock() -> Lock {
    Lock::mutex(NAME.parse().expect("a plain name"))
}

/// Releases a guard, after which nothing may be sent about its hold, unless the process hands it off.
pub(crate) async fn release(server: &Server, guard: Guard) -> Result<(), ReleaseError> {
    let hold = server.claim_of(&guard).hold;
    let released = guard.release().await;
    server.ended_if_given_up(hold);
    released
}
