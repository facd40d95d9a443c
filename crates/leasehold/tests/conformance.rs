//! The Redis and SQLite stores do what every store must do.

use futures_util::future::{BoxFuture, ready};
use leasehold::KeyError;
use leasehold::store::{
    Fault, FaultKind, Lock, Op, Outcome, Permissions, RedisConfig, RedisStore, ServerVersion, SqliteStore,
    Store,
};
use leasehold_core::{Inspect, Kind, LockName};
use leasehold_testkit::conformance::{self, Subject};
use leasehold_testkit::{FrozenClock, RedisServer, RedisServerBuilder, Sentinels, Value};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The one user of a server that has no other for clients, and the prefix of his locks: full of what a pattern would take for
/// something else than itself.
const LEAST: (&str, &str) = ("locks", "app?[*]\\:");

struct Redis {
    servers: Servers,
    /// What the servers take for the time, if it can be set.
    clock: Option<FrozenClock>,
    /// Where locks begin.
    prefix: &'static str,
}

/// How a server is reached.
enum Servers {
    AtItsAddress(RedisServer),
    BySentinels(Sentinels),
}

impl Redis {
    /// Servers whose clock the suite sets.
    fn new(boot: impl FnOnce(RedisServerBuilder) -> io::Result<Servers>) -> Self {
        let clock = FrozenClock::new(1_762_000_000_000_000).expect("a clock");
        let servers = boot(RedisServer::builder().clock(&clock)).expect("servers that boot");
        Self { servers, clock: Some(clock), prefix: "" }
    }

    fn alone() -> Self {
        Self::new(|settings| settings.start().map(Servers::AtItsAddress))
    }

    fn of_valkey() -> Self {
        // It counts by the processor from one look at the clock to the next, so that its clock cannot be set at once.
        let server = RedisServer::builder().valkey().start().expect("a server that boots");
        Self { servers: Servers::AtItsAddress(server), clock: None, prefix: "" }
    }

    fn by_sentinels() -> Self {
        Self::new(|settings| Sentinels::with(1, &settings).map(Servers::BySentinels))
    }

    /// Clients have the least permissions that the library says are needed.
    async fn by_a_least_user() -> Self {
        let (user, prefix) = LEAST;
        let server = Self { prefix, ..Self::alone() };
        let config = server.config();
        let version = ServerVersion::ask(&config.clone().username("default")).await.expect("a version");
        let permissions = Permissions::of(&config).expect("a good prefix").on(version);
        // The rules of the printed line, and a password in the place of its placeholder.
        let rules = permissions.rules();
        let command = ["ACL", "SETUSER", user, "reset", "on", ">password"].into_iter();
        let command: Vec<_> = command.chain(rules.iter().map(String::as_str)).collect();
        server.told(&command).ok().expect("the server takes the list");
        server
    }

    /// How clients reach it.
    fn config(&self) -> RedisConfig {
        let url = match &self.servers {
            Servers::AtItsAddress(server) => server.url(),
            Servers::BySentinels(sentinels) => sentinels.url(),
        };
        let config = RedisConfig::from_url(&url).expect("a good URL");
        match self.prefix {
            "" => config,
            prefix => config.prefix(prefix).expect("a good prefix").username(LEAST.0).password("password"),
        }
    }

    /// The key of a lock.
    fn key(&self, lock: &Lock) -> String {
        [self.prefix, lock.name.as_str()].concat()
    }

    fn cli(&self, command: &[&str]) {
        self.told(command);
    }

    fn told(&self, command: &[&str]) -> Value {
        let reply = match &self.servers {
            Servers::AtItsAddress(server) => server.cli(command),
            Servers::BySentinels(sentinels) => sentinels.primary().and_then(|server| server.cli(command)),
        };
        reply.expect("a reply")
    }
}

impl Subject for Redis {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            Arc::new(RedisStore::connect(self.config()).await.expect("a server that runs")) as Arc<dyn Store>
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.clock.as_ref()?.advance(by).expect("a clock that moves");
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        self.cli(&["DEL", &self.key(lock)]);
        Some(Box::pin(ready(())))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let name = &*self.key(lock);
        let token = [lock.kind.mark(), value].concat();
        let put = match lock.kind {
            Kind::Reentrant => vec!["HSET", name, value, "1"],
            _ => vec!["SET", name, &token],
        };
        // Whatever stood there before.
        for command in [vec!["DEL", name], put] {
            self.cli(&command);
        }
        if let Some(expiry) = expiry {
            self.cli(&["PEXPIRE", name, &expiry.as_millis().to_string()]);
        }
        Some(Box::pin(ready(())))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        self.cli(&["RPUSH", &self.key(lock), "x"]);
        Some(Box::pin(ready("list".to_owned())))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

struct Sqlite(tempfile::TempDir);

impl Subject for Sqlite {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let path = self.0.path().join("locks");
            Arc::new(SqliteStore::open(path).await.expect("a file")) as Arc<dyn Store>
        })
    }
}

mod redis {
    use super::{Redis, conformance};
    conformance::suite!(Redis::alone());
}

mod valkey {
    use super::{Redis, conformance};
    conformance::suite!(Redis::of_valkey());
}

mod redis_by_sentinels {
    use super::{Redis, conformance};
    conformance::suite!(Redis::by_sentinels());
}

mod redis_by_a_least_user {
    use super::{Redis, conformance};
    conformance::suite!(Redis::by_a_least_user().await);
}

/// What the suite above rests on: its clients are that user, and he may do nothing else.
#[tokio::test]
async fn row_45_the_suite_runs_as_a_user_who_may_do_nothing_else() {
    let server = Redis::by_a_least_user().await;
    let store = server.store().await;
    let clients = server.told(&["CLIENT", "LIST"]);
    let clients = clients.text().expect("a list").lines().filter(|line| line.contains("name=leasehold"));
    let users: Vec<_> = clients.map(|line| line.contains("user=locks ")).collect();
    assert_eq!(users, [true], "one connection, and it is his");
    drop(store);
    let may = |command: &[&str]| {
        let said = server.told(&[&["ACL", "DRYRUN", LEAST.0][..], command].concat());
        said.text() == Some("OK")
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
    let outside = RedisStore::connect(config).await.expect("he may log in");
    let lock = Lock::mutex(LockName::new("job").expect("a good name"));
    let look = Op::Inspect(Inspect { claim: None, in_full: false });
    let outcome = outside.execute(&lock, &look, Duration::from_secs(10)).await;
    assert!(matches!(outcome, Outcome::Refused(Fault { kind: FaultKind::Forbidden, .. })), "{outcome:?}");
}

mod sqlite {
    use super::{Sqlite, conformance};
    conformance::suite!(Sqlite(tempfile::tempdir().expect("a folder")));
}
