//! The Redis and SQLite stores do what every store must do.

use futures_util::future::{BoxFuture, ready};
use leasehold::KeyError;
use leasehold::store::{Lock, RedisConfig, RedisStore, SqliteStore, Store};
use leasehold_core::{Kind, LockName};
use leasehold_testkit::conformance::{self, Subject};
use leasehold_testkit::{FrozenClock, RedisServer, RedisServerBuilder, Sentinels};
use std::io;
use std::sync::Arc;
use std::time::Duration;

struct Redis {
    servers: Servers,
    /// What the servers take for the time, if it can be set.
    clock: Option<FrozenClock>,
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
        Self { servers, clock: Some(clock) }
    }

    fn alone() -> Self {
        Self::new(|settings| settings.start().map(Servers::AtItsAddress))
    }

    fn of_valkey() -> Self {
        // It counts by the processor from one look at the clock to the next, so that its clock cannot be set at once.
        let server = RedisServer::builder().valkey().start().expect("a server that boots");
        Self { servers: Servers::AtItsAddress(server), clock: None }
    }

    fn by_sentinels() -> Self {
        Self::new(|settings| Sentinels::with(1, &settings).map(Servers::BySentinels))
    }

    fn cli(&self, command: &[&str]) {
        let reply = match &self.servers {
            Servers::AtItsAddress(server) => server.cli(command),
            Servers::BySentinels(sentinels) => sentinels.primary().and_then(|server| server.cli(command)),
        };
        reply.expect("a reply");
    }
}

impl Subject for Redis {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let url = match &self.servers {
                Servers::AtItsAddress(server) => server.url(),
                Servers::BySentinels(sentinels) => sentinels.url(),
            };
            let config = RedisConfig::from_url(&url).expect("a good URL");
            Arc::new(RedisStore::connect(config).await.expect("a server that runs")) as Arc<dyn Store>
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        self.clock.as_ref()?.advance(by).expect("a clock that moves");
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
        self.cli(&["RPUSH", lock.name.as_str(), "x"]);
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

mod sqlite {
    use super::{Sqlite, conformance};
    conformance::suite!(Sqlite(tempfile::tempdir().expect("a folder")));
}
