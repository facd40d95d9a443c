//! A server that comes back with data of some seconds ago, as a promoted replica that lagged has it: rows 47 and 48.

use super::fixture::{MS, S, client, mutex, server, until, until_free, until_waiting, within};
use leasehold::{Client, ClientBuilder, LostReason, Mutex};
use leasehold_testkit::{Proxy, RedisServer, Stopwatch};
use std::time::Duration;

/// How soon a client compares the server with what it knows, once it is connected.
const SOON: Duration = Duration::from_secs(1);

/// A server, and a client that can be cut off from it.
struct Cut {
    server: RedisServer,
    proxy: Proxy,
    ours: Client,
    theirs: Mutex,
}

impl Cut {
    async fn start() -> Self {
        Self::start_with(|builder| builder).await
    }

    /// The same with other settings of our client.
    async fn start_with(configure: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        let server = server();
        let proxy = Proxy::to_server(&server).expect("a proxy");
        let ours = configure(Client::builder(proxy.url())).connect().await.expect("it can be reached");
        let theirs = mutex(&client(&server.url()).await);
        Self { server, proxy, ours, theirs }
    }

    /// From now on the server comes back with its data of this moment.
    fn save(&self) {
        self.server.cli(&["SAVE"]).expect("a reply").ok().expect("saved");
    }

    /// Restarts the server with its data of the last [`save`](Self::save). Our client is not connected then.
    fn fall_back(&mut self) {
        self.proxy.refuse_connections(true);
        self.proxy.disconnect();
        self.server.restart().expect("restarted");
    }

    /// Waits until our client is connected.
    async fn connect(&self) {
        let before = self.proxy.accepted();
        self.proxy.refuse_connections(false);
        until("a connection", 20 * S, async || self.proxy.accepted() > before).await;
    }
}

/// Row 48: a lock was released, by its guard or because the guard was dropped, and the server does not know of it any
/// more. Its client releases it again when it is connected, so that no waiter waits for the lease.
#[tokio::test]
async fn row_48_what_was_released_is_released_again_at_a_server_with_older_data() {
    for dropped in [false, true] {
        let mut cut = Cut::start().await;
        let guard = mutex(&cut.ours).acquire().await.expect("acquired");
        guard.extend().await.expect("extended");
        cut.save();
        if dropped {
            drop(guard);
            cut.ours.flush().await;
        } else {
            guard.release().await.expect("released");
        }
        cut.fall_back();
        let waits = tokio::spawn({
            let theirs = cut.theirs.clone();
            async move { theirs.acquire_timeout(60 * S).await }
        });
        until("the lock of before, with a waiter", 10 * S, async || {
            let status = cut.theirs.inspect().await;
            status.is_ok_and(|status| status.held && status.waiting == 1)
        })
        .await;
        cut.connect().await;
        let connected = Stopwatch::start();
        let guard = within(60 * S, waits).await.expect("no panic").expect("granted");
        connected.assert_below(SOON, "the lock was released late");
        guard.release().await.expect("released");
    }
}

/// Row 48: the client was cut off for so long that its session lapsed.
#[tokio::test]
async fn row_48_what_was_released_is_released_again_by_the_next_session() {
    let mut cut = Cut::start_with(|builder| builder.session_ttl(S)).await;
    let long = cut.ours.mutex("m").expect("a name").lease(60 * S);
    let guard = long.acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    cut.save();
    guard.release().await.expect("released");
    let lapsed = cut.ours.session_lost_signal();
    cut.fall_back();
    within(20 * S, lapsed.cancelled()).await;
    assert!(cut.theirs.inspect().await.expect("a reply").held, "the data of before");
    cut.connect().await;
    // Without a waiter, nothing else ends what a dead session held.
    until_free(&cut.theirs, 10 * S).await;
}

/// Row 48: many at once are released in batches.
#[tokio::test]
async fn row_48_hundreds_of_locks_are_released_again() {
    const LOCKS: usize = 600;
    let mut cut = Cut::start().await;
    let mut guards = Vec::new();
    for n in 0..LOCKS {
        let guard = cut.ours.mutex(format!("m{n}")).expect("a name").acquire().await.expect("acquired");
        guard.extend().await.expect("extended");
        guards.push(guard);
    }
    cut.save();
    drop(guards);
    cut.ours.flush().await;
    cut.fall_back();
    let theirs = client(&cut.server.url()).await;
    let held = async || {
        let mut held = 0;
        for n in 0..LOCKS {
            let status = theirs.mutex(format!("m{n}")).expect("a name").inspect().await;
            held += usize::from(status.expect("a reply").held);
        }
        held
    };
    assert_eq!(held().await, LOCKS);
    cut.connect().await;
    until("all are free", 10 * S, async || held().await == 0).await;
}

/// Row 47: the server comes back without a hold, but with the session. The loss is found at once, and not at the next
/// renewal, which is up to 10 s later.
#[tokio::test]
async fn row_47_a_hold_that_is_missing_at_a_server_with_older_data_is_lost_at_once() {
    let mut cut = Cut::start().await;
    cut.save();
    let guard = mutex(&cut.ours).acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    let kept = cut.ours.mutex("kept").expect("a name").acquire().await.expect("acquired");
    cut.fall_back();
    let other = within(10 * S, cut.theirs.acquire()).await.expect("the server does not have the hold");
    guard.check().expect("a client without a connection cannot know");
    cut.connect().await;
    let connected = Stopwatch::start();
    let lost = within(20 * S, guard.lost()).await;
    connected.assert_below(SOON, "the loss is reported late");
    assert!(matches!(lost.reason, LostReason::TakenOver { .. }), "{lost}");
    within(20 * S, kept.lost()).await;
    other.check().expect("it was granted since");
    other.release().await.expect("released");
    assert_eq!(cut.theirs.inspect().await.expect("a reply").waiting, 0);
}

/// Row 48: a hold that is in use is kept, and its waiters too.
#[tokio::test]
async fn row_48_what_is_held_stays_held_at_a_server_with_older_data() {
    let mut cut = Cut::start().await;
    let guard = mutex(&cut.ours).acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    let waits = tokio::spawn({
        let theirs = cut.theirs.clone();
        async move { theirs.acquire_timeout(60 * S).await }
    });
    until_waiting(&cut.theirs, 1).await;
    cut.save();
    cut.fall_back();
    cut.connect().await;
    tokio::time::sleep(SOON + 500 * MS).await;
    guard.check().expect("held");
    assert!(!waits.is_finished());
    guard.release().await.expect("released");
    within(60 * S, waits).await.expect("no panic").expect("granted").release().await.expect("released");
}
