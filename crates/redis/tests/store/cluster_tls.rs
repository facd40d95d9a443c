//! A cluster whose nodes use TLS only, with clients and with one another.

use crate::fixture::{LONG, eventually};
use leasehold::{Client, Mutex};
use leasehold_redis::RedisStore;
use leasehold_store::{Fault, FaultKind, TlsFault};
use leasehold_testkit::{CertificateAuthority, Cluster, RedisServer, RedisServerBuilder};
use std::time::{Duration, Instant};

/// The limit for a waiter to be woken by a message: polling takes up to a second.
const BY_MESSAGE: Duration = Duration::from_millis(700);
/// A lease that ends soon unless it is renewed.
const LEASE: Duration = Duration::from_millis(1500);

/// An authority that has signed a certificate for those hosts, and a client's certificate.
fn authority(hosts: &str) -> CertificateAuthority {
    let authority = CertificateAuthority::new().unwrap();
    authority.sign("node", hosts).unwrap();
    authority.sign("ours", "DNS:client").unwrap();
    authority
}

/// Three primaries that present that certificate and require one of their clients.
fn cluster(
    authority: &CertificateAuthority,
    with: impl FnOnce(RedisServerBuilder) -> RedisServerBuilder,
) -> Cluster {
    let settings = with(RedisServer::builder().tls(authority, "node"));
    tokio::task::block_in_place(|| Cluster::with(3, 0, &settings)).unwrap()
}

/// A URL with the certificates.
fn certified(url: &str, authority: &CertificateAuthority) -> String {
    let dir = authority.dir().display();
    format!("{url}?ca={dir}/root.pem&cert={dir}/ours.pem&key={dir}/ours.key")
}

async fn client(url: &str) -> Client {
    Client::builder(url).watchdog_lease(LEASE).connect().await.unwrap()
}

async fn refused(url: &str) -> Fault {
    let connected = RedisStore::connect(url.parse().unwrap());
    tokio::time::timeout(LONG, connected).await.expect("connecting ends without a timeout").unwrap_err()
}

/// Makes a node present another certificate.
fn show(cluster: &Cluster, node: usize, authority: &CertificateAuthority, name: &str) {
    let [own, key] = ["pem", "key"].map(|ext| authority.path(&format!("{name}.{ext}")).display().to_string());
    let settings = ["CONFIG", "SET", "tls-cert-file", &own, "tls-key-file", &key];
    cluster.node(node).cli(&settings).unwrap().ok().unwrap();
}

#[track_caller]
fn disagreement(fault: &Fault) -> &TlsFault {
    let FaultKind::Tls(what) = &fault.kind else { panic!("{fault}: {fault:?}") };
    what
}

/// Hands the lock over between two clients while `during` runs: the holder keeps it, and the waiter acquires it by a
/// message.
async fn hand_off(cluster: &Cluster, [ours, theirs]: [&Mutex; 2], during: impl AsyncFnOnce()) {
    let guard = ours.acquire().await.unwrap();
    let theirs = theirs.clone();
    let waiter = tokio::spawn(async move { theirs.acquire().await.unwrap() });
    let waits = async {
        while ours.inspect().await.unwrap().waiting != 1 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waits).await.expect("it waits");
    during().await;
    guard.check().unwrap();
    let token = guard.fencing_token();
    let owner = cluster.owner_of("m").unwrap();
    eventually(|| {
        let channels = cluster.node(owner).cli(&["PUBSUB", "SHARDCHANNELS"]).unwrap();
        channels.elements().len() == 2
    })
    .await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(BY_MESSAGE, waiter).await.expect("woken in time").unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}

/// Calls, messages and the keeper's renewals: the nodes accept no plain text, and require a certificate on each
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_grants_extends_and_hands_over_locks() {
    let authority = authority("IP:127.0.0.1");
    let cluster = cluster(&authority, |settings| settings);
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let ours = client(&certified(&cluster.url(), &authority)).await;
    let [root, own, key] = ["root.pem", "ours.pem", "ours.key"].map(|name| authority.read(name).unwrap());
    let theirs = Client::builder(cluster.url()).root_certificate(root).client_certificate(own, key);
    let theirs = theirs.connect().await.unwrap();
    let [ours, theirs] = [&ours, &theirs].map(|client| client.mutex("m").unwrap());
    hand_off(&cluster, [&ours, &theirs], async || {}).await;
    hand_off(&cluster, [&ours, &theirs], async || {
        let acquired = Instant::now();
        let (slot, old) = (cluster.slot("m").unwrap(), cluster.owner_of("m").unwrap());
        cluster.move_slot(slot, (old + 1) % 3).unwrap();
        // Past the end of the lease that the hold had when the slot moved.
        tokio::time::sleep(LEASE + LEASE / 3).await;
        println!("held for {:?} while its slot moved", acquired.elapsed());
    })
    .await;
    let published: u64 = (0..3)
        .map(|at| cluster.node(at).command_counts().unwrap().get("spublish").copied().unwrap_or(0))
        .sum();
    assert_eq!(published, 2, "each was notified once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_errors_of_a_cluster_are_reported() {
    let (authority, other) = (authority("IP:127.0.0.1"), authority("IP:127.0.0.1"));
    let cluster = cluster(&authority, |settings| settings);
    let wrong = refused(&certified(&cluster.url(), &other)).await;
    assert_eq!(disagreement(&wrong), &TlsFault::UnknownIssuer, "{wrong}");
    let unknown = refused(&cluster.url()).await;
    assert_eq!(disagreement(&unknown), &TlsFault::UnknownIssuer, "{unknown}");
    let bare = refused(&format!("{}?ca={}", cluster.url(), authority.path("root.pem").display())).await;
    assert_eq!(disagreement(&bare), &TlsFault::ClientCertificateMissing, "{bare}");
    let plain = refused(&cluster.url().replace("rediss", "redis")).await;
    assert_eq!(disagreement(&plain), &TlsFault::ConnectionClosed, "{plain}");
    for fault in [wrong, unknown, bare, plain] {
        println!("{fault}");
        let named = (0..3).any(|at| fault.node.contains(&cluster.node(at).port().to_string()));
        assert!(named, "the fault names the node: {fault}");
    }
    // A store that connects only with its first call gets the same error: waiting would not help.
    let started = Instant::now();
    let lazy = RedisStore::lazy(certified(&cluster.url(), &other).parse().unwrap());
    let fault =
        crate::fixture::refused(crate::fixture::acquire(&lazy, &crate::fixture::claim(1), None).await);
    assert_eq!(disagreement(&fault), &TlsFault::UnknownIssuer, "{fault}");
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
}

/// A node is verified by the name that it announces, not by the name of the node that was contacted first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_cluster_are_verified_by_the_names_that_they_announce() {
    let authority = authority("DNS:localhost");
    authority.sign("first", "IP:127.0.0.1,DNS:localhost").unwrap();
    let cluster = cluster(&authority, |settings| {
        settings
            .config("cluster-announce-hostname", "localhost")
            .config("cluster-preferred-endpoint-type", "hostname")
    });
    show(&cluster, 0, &authority, "first");
    // Nodes exchange their names some time after they have met.
    let named = |at| {
        let map = cluster.node(at).cli(&["CLUSTER", "SLOTS"]).unwrap();
        map.elements().iter().all(|range| range.elements()[2].elements()[0].text() == Some("localhost"))
    };
    eventually(|| (0..3).all(named)).await;
    let at = |host: &str, node: usize| {
        certified(&format!("rediss+cluster://{host}:{}", cluster.node(node).port()), &authority)
    };
    for url in [at("127.0.0.1", 0), at("localhost", 1)] {
        let (ours, theirs) = (client(&url).await, client(&url).await);
        let [ours, theirs] = [&ours, &theirs].map(|client| client.mutex("m").unwrap());
        for round in 0..2 {
            hand_off(&cluster, [&ours, &theirs], async || {
                let (slot, old) = (cluster.slot("m").unwrap(), cluster.owner_of("m").unwrap());
                cluster.move_slot(slot, (old + round) % 3).unwrap();
            })
            .await;
        }
    }
    let fault = refused(&at("127.0.0.1", 1)).await;
    assert_eq!(disagreement(&fault), &TlsFault::WrongName(vec!["localhost".to_owned()]), "{fault}");
    // Nodes that announce no names are verified by their addresses.
    for at in 0..3 {
        let settings = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "ip"];
        cluster.node(at).cli(&settings).unwrap().ok().unwrap();
    }
    let fault = refused(&at("localhost", 1)).await;
    println!("{fault}");
    assert_eq!(disagreement(&fault), &TlsFault::WrongName(vec!["localhost".to_owned()]), "{fault}");
}

/// Nodes that announce no endpoint are at the host of the node that replied, on another port; this applies to the
/// slot map and to `MOVED` and `ASK` redirects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_without_an_announced_host_are_at_the_host_of_the_url() {
    let authority = authority("DNS:localhost");
    let cluster = cluster(&authority, |settings| {
        settings.config("cluster-preferred-endpoint-type", "unknown-endpoint")
    });
    let map = cluster.node(0).cli(&["CLUSTER", "SLOTS"]).unwrap();
    assert!(map.elements()[0].elements()[2].elements()[0].is_nil(), "{map:?}");
    let url = certified(&format!("rediss+cluster://localhost:{}", cluster.node(0).port()), &authority);
    let clients = [client(&url).await, client(&url).await, client(&url).await];
    // The third client receives no redirect yet, and still has the old slot map.
    let [ours, theirs, late] = clients.each_ref().map(|client| client.mutex("m").unwrap());
    hand_off(&cluster, [&ours, &theirs], async || {}).await;
    let (slot, old) = (cluster.slot("m").unwrap(), cluster.owner_of("m").unwrap());
    let new = (old + 1) % 3;
    let rejected = || {
        let info = cluster.node(old).cli(&["INFO", "errorstats"]).unwrap();
        let text = info.text().unwrap().to_owned();
        ["MOVED", "ASK"].map(|word| text.contains(&format!("errorstat_{word}:")))
    };
    assert_eq!(rejected(), [false, false]);
    hand_off(&cluster, [&ours, &theirs], async || {
        cluster.begin_move(slot, old, new).unwrap();
        cluster.move_keys(&cluster.keys(slot, old).unwrap(), old, new).unwrap();
        // From here on requests go to the new node.
        assert!(ours.inspect().await.unwrap().held);
        assert_eq!(rejected(), [false, true]);
        cluster.end_move(slot, old, new).unwrap();
        assert!(late.inspect().await.unwrap().held);
        assert_eq!(rejected(), [true, true]);
    })
    .await;
}

/// A node that has met no other node does not know its own address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_one_node_is_at_the_address_of_the_url() {
    let authority = authority("DNS:localhost");
    let settings = RedisServer::builder().tls(&authority, "node");
    let cluster = tokio::task::block_in_place(|| Cluster::with(1, 0, &settings)).unwrap();
    let map = cluster.node(0).cli(&["CLUSTER", "SLOTS"]).unwrap();
    assert_eq!(map.elements()[0].elements()[2].elements()[0].text(), Some(""), "{map:?}");
    let url = certified(&format!("rediss+cluster://localhost:{}", cluster.node(0).port()), &authority);
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let [ours, theirs] = [&ours, &theirs].map(|client| client.mutex("m").unwrap());
    hand_off(&cluster, [&ours, &theirs], async || {}).await;
}

/// Where nodes are identified by their names, a node without a name (as each is until its name has spread) is
/// reached at its own address, not at the host of the node that replied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_a_cluster_whose_names_are_not_known_are_at_their_addresses() {
    let authority = authority("IP:127.0.0.1");
    authority.sign("first", "IP:127.0.0.1,DNS:localhost").unwrap();
    let cluster =
        cluster(&authority, |settings| settings.config("cluster-preferred-endpoint-type", "hostname"));
    show(&cluster, 0, &authority, "first");
    let map = cluster.node(0).cli(&["CLUSTER", "SLOTS"]).unwrap();
    assert_eq!(map.elements()[0].elements()[2].elements()[0].text(), Some("?"), "{map:?}");
    let url = certified(&format!("rediss+cluster://localhost:{}", cluster.node(0).port()), &authority);
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let [ours, theirs] = [&ours, &theirs].map(|client| client.mutex("m").unwrap());
    for round in [0, 1, 1] {
        hand_off(&cluster, [&ours, &theirs], async || {
            let (slot, old) = (cluster.slot("m").unwrap(), cluster.owner_of("m").unwrap());
            cluster.move_slot(slot, (old + round) % 3).unwrap();
            let moved = Instant::now();
            assert!(ours.inspect().await.unwrap().held);
            println!("found {:?} after a move of {round}", moved.elapsed());
        })
        .await;
    }
}
