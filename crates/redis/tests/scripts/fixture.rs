//! A server with a controlled clock, the store that connects to it, and the record of the cases that occurred.

use crate::lua_mutants;
use crate::sequence::Sequence;
use crate::tap::Tap;
use leasehold_core::model::{LockState, Sessions};
use leasehold_core::{KeySpace, Kind};
use leasehold_redis::RedisStore;
use leasehold_store::Lock;
use leasehold_testkit::conformance::Workload;
use leasehold_testkit::{FrozenClock, RedisServer, RespConnection, Value};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const STEPS: u64 = 20;
pub(crate) const START_US: u64 = 1_762_000_000_123_456;

pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// Everything stored at some keys, in one reply: type, content and remaining lifetime of each. A server returns the
/// fields of a hash in any order, so this script sorts them.
pub(crate) const DUMP: &str = "local dump = {}
local function hash(key)
  local fields = redis.call('HKEYS', key)
  table.sort(fields)
  local pairs_of = {}
  for i, field in ipairs(fields) do
    pairs_of[2 * i - 1], pairs_of[2 * i] = field, redis.call('HGET', key, field)
  end
  return pairs_of
end
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local content = kind == 'string' and redis.call('GET', key) or kind == 'hash' and hash(key)
    or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or ''
  dump[i] = {kind, content, redis.call('PTTL', key)}
end
return dump";

/// A server with a controlled clock, and the connections that observe it.
pub(crate) struct Fixture {
    pub(crate) clock: FrozenClock,
    pub(crate) now_us: u64,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) store: RedisStore,
    pub(crate) keys: KeySpace,
    /// Reads the keys, with this script.
    pub(crate) reader: RespConnection,
    pub(crate) dump: String,
    /// Receives all messages.
    pub(crate) subscriber: RespConnection,
    /// Set to flush all scripts before each operation.
    pub(crate) flush_scripts: bool,
    /// How often each case occurred.
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// Set while mutants are run.
    _tap: Option<Tap>,
    /// Last, so that it outlives its clients.
    pub(crate) _server: RedisServer,
}

/// What replaces the scripts by those of a mutant, while mutants are run.
pub(crate) fn tap(server: &RedisServer) -> Option<Tap> {
    lua_mutants::is_enabled().then(|| Tap::start(server.port(), server.connect().unwrap()).unwrap())
}

/// Where a store connects to.
pub(crate) fn url(server: &RedisServer, tap: Option<&Tap>) -> String {
    tap.map_or_else(|| server.url(), |tap| format!("redis://127.0.0.1:{}/", tap.port()))
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let clock = FrozenClock::new(i64::try_from(START_US).unwrap()).unwrap();
        let server = RedisServer::builder().clock(&clock).lazy_expiry().start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tap = tap(&server);
        let config = format!("{}?prefix=m:", url(&server, tap.as_ref())).parse().unwrap();
        let store = runtime.block_on(RedisStore::connect(config)).unwrap();
        let mut reader = server.connect().unwrap();
        let dump = reader.call(&["SCRIPT", "LOAD", DUMP]).unwrap().text().unwrap().to_owned();
        let mut subscriber = server.connect().unwrap();
        subscriber.call(&["PSUBSCRIBE", "m:leasehold:mailbox:*"]).unwrap();
        subscriber.call(&["PSUBSCRIBE", "redisson_lock__channel:*"]).unwrap();
        subscriber.call(&["PSUBSCRIBE", "m:leasehold:{*}:leader:*"]).unwrap();
        subscriber.call(&["PSUBSCRIBE", "m:leasehold:{*}:release:*"]).unwrap();
        Self {
            clock,
            now_us: START_US,
            runtime,
            store,
            keys: KeySpace::new("m:").unwrap(),
            reader,
            dump,
            subscriber,
            flush_scripts: false,
            seen: BTreeMap::new(),
            _tap: tap,
            _server: server,
        }
    }

    pub(crate) fn begin(&mut self, kind: Kind, seed: u64) -> Sequence<'_> {
        let lock = Lock { kind, name: format!("lock {seed}").parse().unwrap() };
        let keys = self.keys.lock(&lock).unwrap();
        Sequence {
            fixture: self,
            lock,
            keys,
            state: LockState::new(kind),
            sessions: Sessions::default(),
            index: None,
            has_index: true,
            workload: Workload::of(kind, seed),
            trace: format!("LEASEHOLD_SEED={seed}\n"),
        }
    }

    pub(crate) fn sequence(&mut self, kind: Kind, seed: u64) {
        let mut sequence = self.begin(kind, seed);
        for _ in 0..STEPS {
            sequence.random_step();
        }
        sequence.spoil_record();
        let keys = [vec!["DEL".to_owned()], sequence.all_keys()].concat();
        sequence.raw(&keys);
    }
}

/// The content of a key.
pub(crate) struct Found {
    pub(crate) kind: String,
    pub(crate) content: Value,
    pub(crate) expires_ms: Option<u64>,
}

impl Found {
    pub(crate) fn of(dumped: &Value, now_ms: u64) -> Option<Self> {
        let [kind, content, ttl] = dumped.elements() else { panic!("{dumped:?}") };
        let kind = kind.text().unwrap().to_owned();
        let expires_ms = u64::try_from(ttl.integer().unwrap()).ok().map(|ttl| now_ms + ttl);
        (kind != "none").then(|| Self { kind, content: content.clone(), expires_ms })
    }
}
