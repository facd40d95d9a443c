//! The Redis store passes the conformance suite: on a server alone and behind Sentinels, in shards, in a cluster and by
//! quorum, and as a user with minimal permissions. `LEASEHOLD_TEST_SERVER` names the server: `xtask/src/parts.rs` has the
//! versions.

use futures_util::future::{BoxFuture, ready};
use leasehold_core::{Inspect, KeyError, Kind, LockName};
use leasehold_redis::{Permissions, QuorumConfig, RedisConfig, RedisStore, ServerVersion};
use leasehold_store::{Executed, Fault, FaultKind, Lock, Op, Outcome, Store};
use leasehold_testkit::conformance::{self, StoreUnderTest};
use leasehold_testkit::{
    Cluster, FrozenClock, Product, ProductServer, Quorum, RedisServer, RedisServerBuilder, Sentinels, Value,
};
use redis::AsyncConnectionConfig;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The only client user of a server, and the prefix of its locks, which is full of characters that are special in a
/// pattern.
const MINIMAL_USER: (&str, &str) = ("locks", "app?[*]\\:");

struct Redis {
    running: Borrowed<RunningServers>,
    /// Where locks begin: no other server has this prefix.
    prefix: String,
    /// Set if clients log in as that user.
    minimal_user: bool,
    /// Set if clients use RESP2.
    resp2: bool,
    /// Set if clients are on connections of the application.
    lent: bool,
}

/// Running servers.
struct RunningServers {
    servers: Servers,
    /// Their clock, if the suite sets it.
    clock: Option<FrozenClock>,
}

/// How clients reach a server.
enum Servers {
    Single(RedisServer),
    /// A server behind a relay that makes it another product.
    Product(ProductServer, RedisServer),
    Sentinels(Sentinels),
    Shards(Vec<RedisServer>),
    Cluster(Arc<Cluster>),
    /// A cluster of one node, behind a relay that makes it another product.
    Serverless(ProductServer, Cluster),
}

/// A pool of servers that cases reuse, because they boot slowly: as many as cases that run concurrently. It ends with
/// the last case that runs.
struct Pool<T>(Mutex<Weak<Mutex<Vec<T>>>>);

impl<T> Pool<T> {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn borrow(&self, boot: impl FnOnce() -> T) -> Borrowed<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = shared.upgrade().unwrap_or_default();
        *shared = Arc::downgrade(&idle);
        drop(shared);
        let free = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Borrowed { idle, it: Some(free.unwrap_or_else(boot)) }
    }
}

/// A server of the pool, for one case. After a failed case it is not reused.
struct Borrowed<T> {
    idle: Arc<Mutex<Vec<T>>>,
    it: Option<T>,
}

impl<T> Deref for Borrowed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.it.as_ref().expect("it is present until it is returned")
    }
}

impl<T> Drop for Borrowed<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.it.take());
        }
    }
}

/// A cluster that cases share, even concurrently: its nodes take seconds to form it. It ends with the last case that
/// runs.
struct Shared(Mutex<Weak<Cluster>>);

impl Shared {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self) -> Arc<Cluster> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = shared.upgrade() {
            return cluster;
        }
        let cluster = Arc::new(Cluster::start(3, 1).expect("nodes that agree"));
        *shared = Arc::downgrade(&cluster);
        cluster
    }
}

impl Redis {
    fn at(running: Borrowed<RunningServers>) -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("case-{}:", CASES.fetch_add(1, Ordering::Relaxed));
        Self { running, prefix, minimal_user: false, resp2: false, lent: false }
    }

    /// Servers whose clock the suite sets.
    fn of(pool: &Pool<RunningServers>, boot: impl FnOnce(RedisServerBuilder) -> io::Result<Servers>) -> Self {
        Self::at(pool.borrow(|| {
            let clock = FrozenClock::new(1_762_000_000_000_000).expect("a clock");
            let servers =
                boot(RedisServer::builder().clock(&clock).lazy_expiry()).expect("servers that boot");
            RunningServers { servers, clock: Some(clock) }
        }))
    }

    fn alone(pool: &Pool<RunningServers>) -> Self {
        Self::of(pool, |settings| settings.start().map(Servers::Single))
    }

    /// Three primaries with a replica each, by the real clock.
    fn in_cluster(pool: &Pool<RunningServers>, shared: &Shared) -> Self {
        Self::at(pool.borrow(|| RunningServers { servers: Servers::Cluster(shared.get()), clock: None }))
    }

    fn by_sentinels(pool: &Pool<RunningServers>) -> Self {
        Self::of(pool, |settings| Sentinels::with(1, &settings).map(Servers::Sentinels))
    }

    fn of_shards(pool: &Pool<RunningServers>) -> Self {
        Self::of(pool, |settings| {
            let servers = (0..3).map(|_| settings.clone().start());
            servers.collect::<io::Result<_>>().map(Servers::Shards)
        })
    }

    /// A server that does what another product does otherwise.
    fn like(product: &Product, pool: &Pool<RunningServers>) -> Self {
        Self::of(pool, |settings| {
            let server = settings.start()?;
            Ok(Servers::Product(ProductServer::start(&server, product.clone())?, server))
        })
    }

    /// A cluster of one node that does what Amazon's serverless cache does otherwise.
    fn like_serverless(pool: &Pool<RunningServers>) -> Self {
        Self::at(pool.borrow(|| {
            let clock = FrozenClock::new(1_762_000_000_000_000).expect("a clock");
            let cluster = Cluster::frozen(1, 0, &clock, &RedisServer::builder()).expect("a node");
            let relay = ProductServer::start(cluster.node(0), Product::serverless()).expect("a relay");
            cluster.announce_port(0, relay.port()).expect("the node takes it");
            RunningServers { servers: Servers::Serverless(relay, cluster), clock: Some(clock) }
        }))
    }

    /// Messages arrive on a connection of their own.
    fn by_resp2(pool: &Pool<RunningServers>) -> Self {
        Self { resp2: true, ..Self::alone(pool) }
    }

    /// Clients are on connections of the application.
    fn lent(pool: &Pool<RunningServers>) -> Self {
        Self { lent: true, ..Self::alone(pool) }
    }

    async fn store_on_a_lent_connection(&self) -> RedisStore {
        let (sender, pushes) = tokio::sync::broadcast::channel(4096);
        // The calls have limits of their own.
        let config = AsyncConnectionConfig::new().set_push_sender(sender).set_response_timeout(None);
        let Servers::Single(server) = &self.running.servers else { unreachable!("it is one server") };
        let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).expect("a good URL");
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await.expect("a server that runs");
        RedisStore::from_connection(connection, &self.prefix, Some(pushes)).expect("a good prefix")
    }

    /// Clients have the minimal permissions that the library prints.
    async fn by_a_least_user(resp2: bool) -> Self {
        let (user, prefix) = MINIMAL_USER;
        // All cases have the same prefix, so each has a server of its own.
        let mut server = Self { prefix: prefix.to_owned(), resp2, ..Self::alone(&Pool::new()) };
        server.minimal_user = true;
        let config = server.config();
        let version = ServerVersion::query(&config.clone().username("default")).await.expect("a version");
        let permissions = Permissions::of(&config).expect("a good prefix").on(version);
        // The rules of the printed line, with a password in place of its placeholder.
        let rules = permissions.rules();
        let command = ["ACL", "SETUSER", user, "reset", "on", ">password"].into_iter();
        let command: Vec<_> = command.chain(rules.iter().map(String::as_str)).collect();
        server.execute(&command).ok().expect("the server takes the list");
        server
    }

    /// The configuration of its clients.
    fn config(&self) -> RedisConfig {
        let url = match &self.running.servers {
            Servers::Single(server) => server.url(),
            Servers::Product(product, _) => product.url(),
            Servers::Sentinels(sentinels) => sentinels.url(),
            Servers::Shards(_) => unreachable!("it is not one server"),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Serverless(relay, _) => format!("redis+cluster://127.0.0.1:{}", relay.port()),
        };
        let config = RedisConfig::from_url(&url).expect("a good URL");
        let config = config.prefix(&self.prefix).expect("a good prefix");
        let config = if self.resp2 { config.resp2() } else { config };
        if self.minimal_user { config.username(MINIMAL_USER.0).password("password") } else { config }
    }

    /// The key of a lock.
    fn key(&self, lock: &Lock) -> String {
        [&self.prefix, lock.name.as_str()].concat()
    }

    /// Connects, and tries again: a relay before the server is a thread of this process, which a busy machine runs late.
    async fn connect(&self) -> RedisStore {
        for _ in 0..4 {
            match RedisStore::connect(self.config()).await {
                Err(fault) if fault.is_transient() => {}
                connected => return connected.expect("a server that runs"),
            }
        }
        RedisStore::connect(self.config()).await.expect("a server that runs")
    }

    /// The configurations of the servers, if there are several.
    fn shards(&self) -> Option<Vec<RedisConfig>> {
        let Servers::Shards(shards) = &self.running.servers else { return None };
        let addresses: Vec<_> = shards.iter().map(|shard| format!("127.0.0.1:{}", shard.port())).collect();
        let url = format!("redis+shard://{}?prefix={}", addresses.join(","), self.prefix);
        Some(RedisConfig::shards_from_url(&url).expect("a good URL"))
    }

    /// Runs a command at the server of a lock that clients would not send.
    async fn cli(&self, lock: &Lock, command: &[&str]) {
        let Servers::Shards(servers) = &self.running.servers else {
            self.execute(command);
            return;
        };
        let shards =
            RedisStore::connect_shards(self.shards().expect("several")).await.expect("servers that run");
        let at = |server: &&RedisServer| shards.shard_of(lock).ends_with(&format!(":{}", server.port()));
        servers.iter().find(at).expect("one of them").cli(command).expect("a reply");
    }

    fn execute(&self, command: &[&str]) -> Value {
        let reply = match &self.running.servers {
            Servers::Single(server) | Servers::Product(_, server) => server.cli(command),
            Servers::Sentinels(sentinels) => sentinels.primary().and_then(|server| server.cli(command)),
            Servers::Shards(_) => unreachable!("it is not one server"),
            Servers::Serverless(_, cluster) => cluster.node(0).cli(command),
            // Every command that is sent to one node has a key.
            Servers::Cluster(cluster) => cluster.cli_at(command[1], command),
        };
        reply.expect("a reply")
    }
}

impl StoreUnderTest for Redis {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            if self.lent {
                return Arc::new(self.store_on_a_lent_connection().await) as Arc<dyn Store>;
            }
            match self.shards() {
                Some(shards) => Arc::new(RedisStore::connect_shards(shards).await.expect("servers that run")),
                None => Arc::new(self.connect().await),
            }
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.running.clock.as_ref()?.advance(by).expect("a clock that moves");
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async { self.cli(lock, &["DEL", &self.key(lock)]).await }))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        Some(Box::pin(async move {
            let name = &*self.key(lock);
            let token = [lock.kind.token_prefix(), value].concat();
            let put = match lock.kind {
                Kind::Reentrant => vec!["HSET", name, value, "1"],
                _ => vec!["SET", name, &token],
            };
            // Whatever the key contained before.
            for command in [vec!["DEL", name], put] {
                self.cli(lock, &command).await;
            }
            if let Some(expiry) = expiry {
                self.cli(lock, &["PEXPIRE", name, &expiry.as_millis().to_string()]).await;
            }
        }))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        Some(Box::pin(async {
            self.cli(lock, &["RPUSH", &self.key(lock), "x"]).await;
            "list".to_owned()
        }))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

/// A quorum of five servers with one clock, which the suite sets.
struct RedisQuorum(Borrowed<(Quorum, FrozenClock)>);

impl RedisQuorum {
    fn of(pool: &Pool<(Quorum, FrozenClock)>) -> Self {
        Self(pool.borrow(|| {
            let clock = FrozenClock::new(1_762_000_000_000_000).expect("a clock");
            let servers = Quorum::with(5, &RedisServer::builder().clock(&clock)).expect("servers that boot");
            (servers, clock)
        }))
    }

    /// Runs a command on each.
    fn cli(&self, command: &[&str]) {
        for server in self.0.0.iter() {
            server.cli(command).expect("a reply");
        }
    }
}

impl StoreUnderTest for RedisQuorum {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            // They vote from the start, and have time enough on a busy machine.
            let url = format!("{}?min_uptime=0s&node_timeout=10s", self.0.0.url());
            let config = QuorumConfig::from_url(&url).expect("a good URL");
            Arc::new(RedisStore::connect_quorum(config).await.expect("servers that run")) as Arc<dyn Store>
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.0.1.advance(by).expect("a clock that moves");
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        self.cli(&["DEL", lock.name.as_str()]);
        Some(Box::pin(ready(())))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let name = lock.name.as_str();
        let put = match lock.kind {
            Kind::Reentrant => vec!["HSET", name, value, "1"],
            _ => vec!["SET", name, value],
        };
        for command in [vec!["DEL", name], put] {
            self.cli(&command);
        }
        if let Some(expiry) = expiry {
            self.cli(&["PEXPIRE", name, &expiry.as_millis().to_string()]);
        }
        Some(Box::pin(ready(())))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        self.cli(&["RPUSH", lock.name.as_str(), "x"]);
        Some(Box::pin(ready("list".to_owned())))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

mod alone {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::alone(&POOL));
}

mod dragonfly {
    use super::{Pool, Product, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::like(&Product::dragonfly(), &POOL));
}

mod serverless {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::like_serverless(&POOL));
}

mod unknown_product {
    use super::{Pool, Product, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::like(&Product::unknown(), &POOL));
}

mod by_resp2 {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::by_resp2(&POOL));
}

/// With its messages, which a pool does not have.
mod on_a_lent_connection {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::lent(&POOL));
}

mod by_sentinels {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::by_sentinels(&POOL));
}

mod by_shards {
    use super::{Pool, Redis, RunningServers, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    conformance::suite!(Redis::of_shards(&POOL));
}

mod in_cluster {
    use super::{Pool, Redis, RunningServers, Shared, conformance};
    static POOL: Pool<RunningServers> = Pool::new();
    static SHARED: Shared = Shared::new();
    conformance::suite!(Redis::in_cluster(&POOL, &SHARED));
}

/// The cases that a quorum supports; the others are refused.
mod by_quorum {
    use super::{FrozenClock, Pool, Quorum, RedisQuorum, conformance};
    static POOL: Pool<(Quorum, FrozenClock)> = Pool::new();
    conformance::suite!(mutex: RedisQuorum::of(&POOL));
    conformance::suite!(reentrant: RedisQuorum::of(&POOL));
}

mod by_a_least_user {
    use super::{Redis, conformance};
    conformance::suite!(Redis::by_a_least_user(false).await);
}

/// The same with messages on a connection of their own: no command of it is denied.
mod by_a_least_user_and_resp2 {
    use super::{Redis, conformance};
    conformance::suite!(election: Redis::by_a_least_user(true).await);
}

#[tokio::test]
async fn row_45_a_user_with_minimal_permissions_is_denied_nothing_by_resp2() {
    let server = Redis::by_a_least_user(true).await;
    let store = server.store().await;
    // Longer than the interval of the ping on the message connection.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let lock = Lock::mutex(LockName::new("job").expect("a good name"));
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let outcome = store.execute(&lock, &inspect, Duration::from_secs(10)).await;
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    assert!(server.execute(&["ACL", "LOG"]).elements().is_empty());
}

/// The premise of the suite above: its clients are that user, and the user has no other permissions.
#[tokio::test]
async fn row_45_the_suite_runs_as_a_user_with_minimal_permissions() {
    let server = Redis::by_a_least_user(false).await;
    let store = server.store().await;
    let clients = server.execute(&["CLIENT", "LIST"]);
    let clients = clients.text().expect("a list").lines().filter(|line| line.contains("name=leasehold"));
    let users: Vec<_> = clients.map(|line| line.contains("user=locks ")).collect();
    assert_eq!(users, [true], "one connection, and it belongs to that user");
    drop(store);
    let may = |command: &[&str]| {
        let reply = server.execute(&[&["ACL", "DRYRUN", MINIMAL_USER.0][..], command].concat());
        reply.text() == Some("OK")
    };
    let (own, beside) = ("app?[*]\\:job", "appx*:job");
    assert!(may(&["SET", own, "x"]) && may(&["GET", own]) && may(&["HGETALL", own]));
    for forbidden in [
        &["SET", beside, "x"][..],
        &["GET", "job"],
        &["GET", "leasehold:{sessions}"],
        &["KEYS", "*"],
        &["SCAN", "0"],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
        &["SCRIPT", "FLUSH"],
        &["CLIENT", "LIST"],
        &["CLIENT", "KILL", "ID", "1"],
        &["EVAL", "return 1", "0"],
        &["SUBSCRIBE", "news"],
        &["PUBLISH", "leasehold:mailbox:x", "x"],
        &["PSUBSCRIBE", "*"],
        &["ACL", "WHOAMI"],
        &["SELECT", "1"],
    ] {
        assert!(!may(forbidden), "{forbidden:?}");
    }
    let config = server.config().prefix("").expect("no prefix");
    let outside = RedisStore::connect(config).await.expect("the user may log in");
    let lock = Lock::mutex(LockName::new("job").expect("a good name"));
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let outcome = outside.execute(&lock, &inspect, Duration::from_secs(10)).await;
    assert!(
        matches!(outcome, Outcome::Failed(Executed::No, Fault { kind: FaultKind::Forbidden, .. })),
        "{outcome:?}"
    );
}
