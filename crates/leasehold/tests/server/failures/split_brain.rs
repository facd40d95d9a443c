//! Two primaries at once, with a client at each: row 51. A partition cuts a primary and its client off, and the replica on the
//! other side is promoted.
//!
//! `LEASEHOLD_SPLIT_ROUNDS` sets how many partitions there are, all at the same time, and makes them last 18 s, with leases
//! of 5 s.

use super::fixture::{S, until};
use futures_util::future::join_all;
use leasehold::Client;
use leasehold_testkit::RedisServer;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A primary, and a replica that follows it through a relay.
struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    /// Cancelled when nothing passes between the two any more.
    cut: CancellationToken,
}

/// Passes bytes between its clients and a server until it is cut. Then the connections stay open, and nothing passes.
async fn relay(listener: TcpListener, port: u16, cut: CancellationToken) {
    while let Ok((mut client, _)) = listener.accept().await {
        let cut = cut.clone();
        tokio::spawn(async move {
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("the server accepts");
            tokio::select! {
                biased;
                () = cut.cancelled() => std::future::pending().await,
                _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            }
        });
    }
}

/// How long a partition lasts, the leases, and how long a session lives without a heartbeat.
#[derive(Clone, Copy)]
struct Times {
    cut: Duration,
    lease: Duration,
    session: Duration,
}

impl Times {
    /// As above, with a session that ends before the lease, as by default.
    fn with_short_session(self) -> Self {
        Self { cut: 4 * self.lease, lease: 3 * self.lease, session: self.lease }
    }
}

/// How many partitions, and how long they last.
fn scale() -> (usize, Times) {
    match std::env::var("LEASEHOLD_SPLIT_ROUNDS") {
        Err(_) => (2, Times { cut: 12 * S, lease: 3 * S, session: 10 * S }),
        Ok(rounds) => {
            (rounds.parse().expect("a number"), Times { cut: 18 * S, lease: 5 * S, session: 10 * S })
        }
    }
}

impl Pair {
    async fn start(settings: &[(&str, &str)]) -> Self {
        let mut builder = RedisServer::builder().config("repl-diskless-sync-delay", "0");
        for (name, value) in settings {
            builder = builder.config(*name, *value);
        }
        let primary = builder.start().expect("redis-server boots");
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let at = format!("127.0.0.1 {}", listener.local_addr().expect("it is bound").port());
        let cut = CancellationToken::new();
        tokio::spawn(relay(listener, primary.port(), cut.clone()));
        let replica = RedisServer::builder().config("replicaof", at).start().expect("redis-server boots");
        let pair = Self { primary, replica, cut };
        until("the replica has copied all", 20 * S, async || {
            let info = pair.replica.cli(&["INFO", "replication"]).expect("a reply");
            info.text().is_some_and(|text| text.contains("master_link_status:up"))
        })
        .await;
        let mut connection = pair.primary.connect().expect("a connection");
        connection.call(&["SET", "first", "", "PX", "1"]).expect("a reply");
        assert_eq!(connection.call(&["WAIT", "1", "4000"]).expect("a reply").integer(), Some(1));
        pair
    }

    /// Nothing passes between the two any more, though their connections stay open. Each is a primary.
    fn cut(&self) {
        self.cut.cancel();
        self.replica.cli(&["REPLICAOF", "NO", "ONE"]).expect("a reply").ok().expect("promoted");
    }
}

/// What became of a lock during a partition.
#[derive(Debug)]
struct Overlap {
    /// For how long two clients held it.
    both: Duration,
    /// How long the second one waited.
    waited: Duration,
    /// Whether the first one lost it before the partition was over.
    is_lost: bool,
}

async fn overlap(options: &str, settings: &[(&str, &str)], times: Times) -> Overlap {
    let pair = Pair::start(settings).await;
    let connect = async |server: &RedisServer, options: &str| {
        let builder = Client::builder(format!("{}{options}", server.url()));
        let builder = builder.watchdog_lease(times.lease).session_ttl(times.session);
        builder.connect().await.expect("the server can be reached")
    };
    let first = connect(&pair.primary, options).await;
    let guard = first.mutex("job").expect("a good name").acquire().await.expect("acquired");
    // So that it is somewhere between two renewals, and its session between two heartbeats.
    tokio::time::sleep(times.lease + times.lease / 7).await;
    guard.check().expect("it is renewed");
    pair.cut();
    let cut_at = Instant::now();
    // The client on the other side is at the promoted server, whatever its settings.
    let second = connect(&pair.replica, "").await;
    let second = second.mutex("job").expect("a good name").max_wait(times.cut);
    let held = second.acquire().await.expect("the lease at the promoted server ends");
    let acquired_at = Instant::now();
    let mut both = Duration::ZERO;
    while guard.check().is_ok() && cut_at.elapsed() < times.cut {
        tokio::time::sleep(Duration::from_millis(1)).await;
        both = acquired_at.elapsed();
    }
    assert!(held.fencing_token() > guard.fencing_token());
    Overlap { both, waited: acquired_at.duration_since(cut_at), is_lost: guard.check().is_err() }
}

async fn overlaps(
    what: &str,
    options: &str,
    settings: &[(&str, &str)],
    (rounds, times): (usize, Times),
) -> Vec<Overlap> {
    let rounds = (0..rounds).map(async |_| overlap(options, settings, times).await);
    let overlaps = join_all(rounds).await;
    let both: Vec<_> = overlaps.iter().map(|overlap| overlap.both).collect();
    let waited: Vec<_> = overlaps.iter().map(|overlap| overlap.waited).collect();
    println!(
        "{what}: lease {:?}, session {:?}, cut of {:?}: two holders for {both:?}, waited {waited:?}",
        times.lease, times.session, times.cut
    );
    overlaps
}

/// Row 51: what only the old primary has does not lengthen the hold, so it ends before the promoted server grants its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_with_replicas_confirmed_a_lease_ends_at_its_client_first() {
    let (rounds, times) = scale();
    for overlap in overlaps("?replicas=1", "?replicas=1", &[], (rounds, times)).await {
        assert_eq!(overlap.both, Duration::ZERO, "{overlap:?}");
    }
}

/// Row 51: nor does a heartbeat that only the old primary has keep the session alive at its client, so that no hold outlives
/// its session at the promoted server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_with_replicas_confirmed_a_session_ends_at_its_client_first() {
    let (rounds, times) = scale();
    let times = times.with_short_session();
    for overlap in overlaps("?replicas=1", "?replicas=1", &[], (rounds, times)).await {
        assert_eq!(overlap.both, Duration::ZERO, "{overlap:?}");
    }
}

/// As documented: without confirmation, the old primary renews for as long as the partition lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_confirmation_the_partition_bounds_two_holders() {
    let (_, times) = scale();
    for overlap in overlaps("no setting", "", &[], scale()).await {
        assert!(overlap.both > times.lease && !overlap.is_lost, "{overlap:?}");
    }
}

/// As documented: with this setting the old primary refuses writes once the replica has been silent for a while. It counts its
/// replicas once a second, and a primary that was held up counts them after it has executed what has arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_needs_replicas_to_write_bounds_two_holders() {
    let settings = [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "2")];
    for overlap in overlaps("min-replicas-to-write 1, max-lag 2", "", &settings, scale()).await {
        assert!(overlap.is_lost, "{overlap:?}");
    }
}
