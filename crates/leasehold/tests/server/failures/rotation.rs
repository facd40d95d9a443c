//! Passwords that change every second, and connections that are cut every three: row 55.
//!
//! `LEASEHOLD_ROTATION_SECONDS` sets how long that goes on.

use super::fixture::{MS, S, within};
use leasehold::store::{Credentials, CredentialsProvider};
use leasehold::{Client, ClientBuilder};
use leasehold_testkit::{Proxy, RedisServer};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often the password changes, and how often all connections are cut.
const ROTATION: Duration = S;
const CUT: Duration = Duration::from_secs(3);
/// How long after the server the provider knows the new password.
const DELAY: Duration = Duration::from_millis(50);

/// The current password, as far as the provider knows.
#[derive(Clone, Default)]
struct Vault {
    password: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn provider(&self) -> impl CredentialsProvider + use<> {
        let vault = self.clone();
        move || {
            vault.asked.fetch_add(1, Ordering::Relaxed);
            let password = vault.password.lock().expect("no panic").clone();
            async move { Ok::<_, Infallible>(Credentials::new(password).with_user("locks")) }
        }
    }

    /// Replaces the password at these servers, where the old one is not valid any more, and then here.
    async fn rotate(&self, servers: &[&RedisServer], number: usize) {
        let password = format!("password-{number}");
        for server in servers {
            let rule = format!(">{password}");
            let words = ["ACL", "SETUSER", "locks", "on", "resetpass", &rule, "~*", "&*", "+@all"];
            server.cli(&words).expect("a reply").ok().expect("set");
        }
        tokio::time::sleep(DELAY).await;
        *self.password.lock().expect("no panic") = password;
    }
}

/// How long it goes on.
fn duration() -> Duration {
    match std::env::var("LEASEHOLD_ROTATION_SECONDS") {
        Err(_) => 8 * S,
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("a number")),
    }
}

/// Acquires and releases a lock until it is over. Returns how often.
async fn work(client: Client, name: &str, over: CancellationToken) -> usize {
    let mutex = client.mutex(name).expect("a good name");
    let mut turns = 0;
    while !over.is_cancelled() {
        let guard = mutex.acquire().await.expect("no acquire fails");
        tokio::time::sleep(5 * MS).await;
        guard.check().expect("it is held");
        guard.release().await.expect("no release fails");
        turns += 1;
    }
    turns
}

/// Changes the password and cuts connections, while locks are held, waited for, acquired and released.
async fn rotated(servers: &[&RedisServer], cut: impl Fn(), connect: impl Fn() -> ClientBuilder) {
    let vault = Vault::default();
    vault.rotate(servers, 0).await;
    let client = async || {
        let builder = connect().credentials(vault.provider()).watchdog_lease(3 * S);
        builder.connect().await.expect("the server can be reached")
    };
    let (holder, other) = (client().await, client().await);
    let held = holder.mutex("held").expect("a good name").acquire().await.expect("acquired");
    let read = holder.rwlock("read").expect("a good name").read().await.expect("acquired");
    let semaphore = |client: &Client| client.semaphore("permit", 1).expect("a good name");
    let permit = semaphore(&holder).acquire().await.expect("acquired");
    let waiting = other.mutex("held").expect("a good name");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    let waiting_permit = semaphore(&other);
    let waiting_permit = tokio::spawn(async move { waiting_permit.acquire().await });
    let over = CancellationToken::new();
    let workers = [holder.clone(), other.clone(), other.clone()]
        .map(|client| tokio::spawn(work(client, "work", over.clone())));

    let start = Instant::now();
    let (mut rotations, mut cuts) = (0, 0);
    while start.elapsed() < duration() {
        let (rotate_at, cut_at) = (ROTATION * (rotations + 1), CUT * (cuts + 1));
        let at = rotate_at.min(cut_at);
        tokio::time::sleep(at.saturating_sub(start.elapsed())).await;
        // At the same moment every third time: the connections are made with what was just replaced.
        if cut_at == at {
            cut();
            cuts += 1;
        }
        if rotate_at == at {
            rotations += 1;
            vault.rotate(servers, rotations as usize).await;
        }
        for result in [held.check(), read.check(), permit.check()] {
            result.unwrap_or_else(|lost| panic!("after {:?}: {lost}", start.elapsed()));
        }
        assert!(!waiting.is_finished() && !waiting_permit.is_finished(), "the holder has the locks");
    }
    over.cancel();
    let mut turns = 0;
    for worker in workers {
        turns += within(20 * S, worker).await.expect("no panic");
    }
    held.release().await.expect("it is held");
    let granted = within(20 * S, waiting).await.expect("no panic").expect("the waiter has kept its place");
    granted.release().await.expect("it is held");
    permit.release().await.expect("it is held");
    let granted =
        within(20 * S, waiting_permit).await.expect("no panic").expect("the waiter has kept its place");
    granted.release().await.expect("it is held");
    read.release().await.expect("it is held");
    let asked = vault.asked.load(Ordering::Relaxed);
    println!(
        "{rotations} passwords and {cuts} cuts in {:?}: {turns} turns, the provider was asked {asked} times",
        start.elapsed()
    );
    // Two clients, each with a connection for calls and one for renewals.
    assert!(asked >= 4 * (1 + cuts as usize), "asked {asked} times after {cuts} cuts");
    assert!(turns > 10, "{turns} turns");
}

/// Row 55: no hold is lost, no waiter loses its place, and no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_55_passwords_that_change_and_connections_that_are_cut_lose_no_lock() {
    let server = super::fixture::server();
    let proxy = Proxy::to_server(&server).expect("a free port");
    rotated(&[&server], || proxy.disconnect(), || Client::builder(proxy.url())).await;
}

/// Row 55, in a cluster, whose nodes cut the connections themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_55_passwords_that_change_lose_no_lock_in_a_cluster() {
    let cluster = leasehold_testkit::Cluster::start(3, 0).expect("servers that boot");
    let nodes = [cluster.node(0), cluster.node(1), cluster.node(2)];
    let cut = || {
        for node in nodes {
            node.cli(&["CLIENT", "KILL", "USER", "locks"]).expect("a reply");
        }
    };
    rotated(&nodes, cut, || Client::builder(cluster.url())).await;
}
