//! Servers of other products: what is tried there, and which are refused.

use crate::fixture::LONG;
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{FaultKind, FindingKind, Severity, Store, Trial, TrialKind, TrialOutcome};
use leasehold_testkit::{Cluster, Product, ProductServer, Proxy, RedisServer, Warnings};

/// What a product that is no Redis says of itself.
const OTHER: &str = "kvrocks_version:2.9.0";

fn config(url: &str) -> RedisConfig {
    RedisConfig::from_url(url).unwrap()
}

/// A product that differs from Redis in what scripts get.
fn with_prelude(prelude: &'static str) -> Product {
    Product { info: vec![OTHER], prelude, ..Product::default() }
}

async fn trials(config: RedisConfig) -> Vec<Trial> {
    let store = RedisStore::lazy(config.lenient().skip_trials());
    store.diagnose(LONG).await.unwrap().pop().expect("it is a server").trials
}

#[tokio::test]
async fn a_product_that_does_not_exclude_is_refused_whatever_the_trials_say() {
    let server = RedisServer::start().unwrap();
    for (info, text) in [
        (vec!["garnet_version:1.0.61"], "Garnet 1.0.61"),
        (vec!["mvcc_depth:0", "role:active-replica"], "KeyDB"),
        (vec!["module:name=crdt,ver=20201"], "Redis Active-Active"),
    ] {
        let product = ProductServer::start(&server, Product { info, ..Product::default() }).unwrap();
        let fault = RedisStore::connect(config(&product.url())).await.unwrap_err();
        assert!(!fault.is_transient(), "{fault}");
        let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{fault}") };
        assert!(matches!(findings[0].kind, FindingKind::NotExclusive { .. }), "{fault}");
        let shown = fault.to_string();
        assert!(
            shown.contains(text) && shown.contains("?probe=skip") && !shown.contains("strict"),
            "{shown}"
        );
        let skipped = config(&format!("{}?probe=skip", product.url()));
        RedisStore::connect(skipped).await.expect("the user has said so");
    }
}

/// Each by the trial that is named, and by no other.
#[tokio::test]
async fn a_server_that_fails_a_trial_which_exclusion_needs_is_refused() {
    let server = RedisServer::start().unwrap();
    let prelude = |prelude| with_prelude(prelude);
    for (product, trial) in [
        (
            prelude(
                "redis.pcall = function(c, ...) if c == 'TIME' then return { 'now', '0' } end return real.pcall(c, ...) end",
            ),
            TrialKind::Time,
        ),
        (
            prelude(
                "redis.pcall = function(...)\n\
                   local words = { ... }\n\
                   if words[4] == 'NX' then table.remove(words, 4) end\n\
                   return real.pcall(unpack(words))\n\
                 end",
            ),
            TrialKind::SetNx,
        ),
        (
            prelude(
                "redis.pcall = function(c, ...)\n\
                   local reply = real.pcall(c, ...)\n\
                   if c == 'PTTL' and reply > 0 then return math.floor(reply / 1000) end\n\
                   return reply\n\
                 end",
            ),
            TrialKind::Expiry,
        ),
        (
            prelude(
                "redis.pcall = function(c, ...)\n\
                   local reply = real.pcall(c, ...)\n\
                   if c == 'HLEN' then return 0 end\n\
                   return reply\n\
                 end",
            ),
            TrialKind::Hashes,
        ),
        (
            prelude(
                "redis.pcall = function(c, ...)\n\
                   local reply = real.pcall(c, ...)\n\
                   if c == 'HGET' then return false end\n\
                   return reply\n\
                 end",
            ),
            TrialKind::Errors,
        ),
        (
            prelude(
                "redis.pcall = function(c, ...)\n\
                   local reply = real.pcall(c, ...)\n\
                   if c == 'TYPE' then return { ok = 'string' } end\n\
                   return reply\n\
                 end",
            ),
            TrialKind::Kinds,
        ),
        // Another script writes between two reads.
        (
            prelude(
                "local reads = 0\n\
                 redis.call = function(c, ...)\n\
                   if c == 'GET' then reads = reads + 1 end\n\
                   if reads == 100 then real.call('SET', KEYS[1], 'of another', 'PX', '1000') end\n\
                   return real.call(c, ...)\n\
                 end",
            ),
            TrialKind::Atomicity,
        ),
    ] {
        let product = ProductServer::start(&server, product).unwrap();
        let fault = RedisStore::connect(config(&product.url())).await.unwrap_err();
        let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{trial}: {fault}") };
        let of = |kind: &FindingKind| match kind {
            FindingKind::FailedTrial { trial, .. } => Some(*trial),
            _ => None,
        };
        assert_eq!(
            findings.iter().map(|found| of(&found.kind)).collect::<Vec<_>>(),
            [Some(trial)],
            "{fault}"
        );
        assert!(fault.to_string().contains(trial.description()), "{fault}");
        let failed = trials(config(&product.url())).await.into_iter();
        let failed = failed.filter(|trial| matches!(trial.outcome, TrialOutcome::Failed(_)));
        assert_eq!(
            failed.map(|trial| trial.kind).collect::<Vec<_>>(),
            [trial],
            "the diagnosis finds the same"
        );
    }
    assert_eq!(server.cli(&["DBSIZE"]).unwrap().integer(), Some(0), "trials leave no key behind");
}

#[tokio::test]
async fn a_product_without_messages_is_used_and_reported() {
    let server = RedisServer::start().unwrap();
    let product = Product { info: vec![OTHER], loses_messages: true, ..Product::default() };
    let product = ProductServer::start(&server, product).unwrap();
    let warnings = Warnings::record();
    let store = RedisStore::connect(config(&product.url())).await.expect("waiters poll");
    assert_eq!(warnings.containing("Kvrocks 2.9.0, which Leasehold is not tested with").len(), 1);
    let found = store.diagnose(LONG).await.unwrap().pop().expect("it is a server");
    assert_eq!((found.product.as_deref(), found.version.as_deref()), (Some("Kvrocks"), Some("2.9.0")));
    let severities: Vec<_> =
        found.findings.iter().map(|found| (found.kind.as_str(), found.severity)).collect();
    assert!(severities.contains(&("failed_trial", Severity::Notice)), "{severities:?}");
    assert!(severities.contains(&("untested_product", Severity::Warning)), "{severities:?}");
    let strict = RedisStore::connect(config(&product.url()).strict()).await.unwrap_err();
    assert!(matches!(strict.kind, FaultKind::Unsafe(_)), "{strict}");
    let skipped = config(&product.url()).strict().skip_trials();
    RedisStore::connect(skipped).await.expect("strict about its settings, not about the product");
}

/// Scripts of two connections interleave only where something makes them: on Redis and Valkey nothing does.
#[tokio::test]
async fn every_trial_passes_on_redis_and_valkey_and_on_what_dragonfly_does_otherwise() {
    let server = RedisServer::start().unwrap();
    let dragonfly = ProductServer::start(&server, Product::dragonfly()).unwrap();
    for url in [server.url(), dragonfly.url()] {
        for url in [url.clone(), format!("{url}?protocol=resp2")] {
            let tried = trials(config(&url)).await;
            assert_eq!(tried.len(), 9, "{tried:?}");
            assert!(tried.iter().all(|trial| trial.outcome == TrialOutcome::Passed), "{url}: {tried:?}");
        }
    }
    assert_eq!(server.cli(&["DBSIZE"]).unwrap().integer(), Some(0), "trials leave no key behind");
}

/// On a product that is known, by one more round trip on the same connection, and not again after a reconnect.
#[tokio::test]
async fn a_server_is_tried_once_for_each_version() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(config(&proxy.url())).await.unwrap();
    assert_eq!((proxy.count("EVALSHA"), proxy.accepted()), (1, 1));
    let fork = store.fork();
    while fork.diagnose(LONG).await.is_err() {}
    let tried = proxy.count("EVALSHA");
    proxy.disconnect();
    let (other, product) = (RedisServer::start().unwrap(), vec![OTHER]);
    let mut reconnected = store.fork().diagnose(LONG).await;
    while reconnected.is_err() {
        reconnected = store.fork().diagnose(LONG).await;
    }
    // A diagnosis tries on purpose: by one script, and by two connections that run one eight times each.
    assert_eq!(proxy.count("EVALSHA"), tried + 1 + 2 * 8, "and the connection was not tried again");
    let product = ProductServer::start(&other, Product { info: product, ..Product::default() }).unwrap();
    RedisStore::connect(config(&product.url())).await.expect("it passes");
}

/// A user without a right, a replica, and a server whose memory is full say nothing about the server.
#[tokio::test]
async fn what_cannot_be_tried_refuses_no_server() {
    let server = RedisServer::builder().config("maxmemory", "1").start().unwrap();
    let full = RedisStore::connect(config(&server.url())).await.expect("it is full, and used all the same");
    drop(full);
    let not_tried = trials(config(&server.url())).await;
    let why = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::NotTried(why) if why.contains("full"));
    assert!(not_tried.iter().any(|trial| why(&trial.outcome)), "{not_tried:?}");
    let server = RedisServer::start().unwrap();
    let commands = [
        "evalsha", "del", "hdel", "hget", "hgetall", "hlen", "hmget", "hset", "mget", "pexpire", "pttl",
        "set", "time", "type",
    ];
    let sets = ["+@all -publish -subscribe", "+@all -unsubscribe -info", "+@all -@read"].map(str::to_owned);
    let rules = commands.map(|command| format!("+@all -{command}")).into_iter().chain(sets);
    for rules in rules {
        let user = ["ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*"];
        let user: Vec<_> = user.into_iter().chain(rules.split(' ')).collect();
        server.cli(&user).unwrap().ok().unwrap();
        let config = config(&server.url()).username("u").password("p");
        RedisStore::connect(config.clone()).await.expect("the first operation will say what is missing");
        let tried = trials(config).await;
        let failed = tried.iter().find(|trial| matches!(trial.outcome, TrialOutcome::Failed(_)));
        assert_eq!(failed, None, "{rules}");
        let why = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::NotTried(why) if why.contains("may not"));
        let is_harmless = rules.contains("-unsubscribe");
        assert!(is_harmless || tried.iter().any(|trial| why(&trial.outcome)), "{rules}: {tried:?}");
    }
    for missing in ["EVALSHA", "SCRIPT", "SUBSCRIBE"] {
        let product = Product { info: vec![OTHER], missing: vec![missing], ..Product::default() };
        let product = ProductServer::start(&server, product).unwrap();
        let connected = RedisStore::connect(config(&product.url())).await;
        connected.expect("the first operation will say what is missing");
    }
    let renamed = RedisServer::builder().config("rename-command", "HLEN \"\"").start().unwrap();
    RedisStore::connect(config(&renamed.url())).await.expect("a Mutex needs no HLEN");
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]).unwrap().ok().unwrap();
    RedisStore::connect(config(&server.url())).await.expect("it may be promoted");
}

/// By the script, on the node of one slot.
#[tokio::test]
async fn a_cluster_is_tried_when_a_client_connects() {
    let cluster = Cluster::start(3, 0).unwrap();
    let calls = || {
        let calls = (0..3).map(|at| {
            let server = cluster.node(at);
            let stats = server.cli(&["INFO", "commandstats"]).unwrap();
            let text = stats.text().unwrap();
            let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
            let calls = calls.and_then(|calls| calls.split(',').next());
            calls.map_or(0, |calls| calls.parse::<u64>().unwrap())
        });
        calls.sum::<u64>()
    };
    RedisStore::connect(config(&format!("{}?probe=skip", cluster.url()))).await.unwrap();
    assert_eq!(calls(), 0);
    RedisStore::connect(config(&cluster.url())).await.unwrap();
    assert_eq!(calls(), 1);
}

/// A client that waits for replicas needs WAIT, which is tried only then.
#[tokio::test]
async fn without_wait_a_server_is_refused_where_replicas_are_to_acknowledge() {
    let server = RedisServer::start().unwrap();
    let product = Product { info: vec![OTHER], missing: vec!["WAIT"], ..Product::default() };
    let product = ProductServer::start(&server, product).unwrap();
    RedisStore::connect(config(&product.url())).await.expect("WAIT is not needed");
    let waiting = format!("{}?replicas=1", product.url());
    let fault = RedisStore::connect(config(&waiting)).await.unwrap_err();
    let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{fault}") };
    let of = |kind: &FindingKind| matches!(kind, FindingKind::FailedTrial { trial: TrialKind::Replicas, .. });
    assert!(findings.iter().all(|found| of(&found.kind)), "{fault}");
    let tried = trials(config(&waiting)).await.into_iter().find(|trial| trial.kind == TrialKind::Replicas);
    assert!(matches!(tried, Some(Trial { outcome: TrialOutcome::Failed(_), .. })), "{tried:?}");
    let url = format!("{}?replicas=1", server.url());
    RedisStore::connect(config(&url)).await.expect("Redis has WAIT");
    let tried = trials(config(&url)).await.into_iter().find(|trial| trial.kind == TrialKind::Replicas);
    assert!(matches!(tried, Some(Trial { outcome: TrialOutcome::Passed, .. })), "{tried:?}");
}

/// The same for a client whose holds are to be on disk: Redis has WAITAOF since 7.2.
#[tokio::test]
async fn without_waitaof_a_server_is_refused_where_holds_are_to_be_durable() {
    let server = RedisServer::start().unwrap();
    let product = Product { missing: vec!["WAITAOF"], ..Product::default() };
    let server = ProductServer::start(&server, product).unwrap();
    let durable = format!("{}?durable=1", server.url());
    let of = |tried: &Trial| tried.kind == TrialKind::Disk;
    let tried = trials(config(&durable)).await.into_iter().find(of);
    assert!(matches!(tried, Some(Trial { outcome: TrialOutcome::Failed(_), .. })), "{tried:?}");
    let untried = trials(config(&server.url())).await;
    assert!(!untried.iter().any(of), "only where it is needed: {untried:?}");
    let fault = RedisStore::connect(config(&durable)).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unsupported(_) | FaultKind::Unsafe(_)), "{fault}");
}

/// Of a cluster too, by the node of one slot.
#[tokio::test]
async fn without_wait_a_cluster_is_refused_where_replicas_are_to_acknowledge() {
    let cluster = Cluster::start(1, 0).unwrap();
    let relay = ProductServer::start(cluster.node(0), Product::serverless()).unwrap();
    cluster.announce_port(0, relay.port()).unwrap();
    let url = format!("redis+cluster://127.0.0.1:{}", relay.port());
    RedisStore::connect(config(&url)).await.expect("WAIT is not needed");
    let fault = RedisStore::connect(config(&format!("{url}?replicas=1"))).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unsafe(_)), "{fault}");
}

/// The server may take no more clients: then nothing is known about its scripts.
#[tokio::test]
async fn a_second_connection_that_is_refused_leaves_one_trial_out() {
    let server = RedisServer::start().unwrap();
    let product = Product { info: vec![OTHER], ..Product::default() };
    let product = ProductServer::start(&server, product).unwrap();
    // The relay has two connections for each client.
    server.cli(&["CONFIG", "SET", "maxclients", "2"]).unwrap().ok().unwrap();
    let warnings = Warnings::record();
    let store = RedisStore::connect(config(&product.url())).await.expect("one connection suffices");
    assert_eq!(warnings.containing("a second connection failed").len(), 1);
    drop(store);
}

/// A product that reports another name or version is warned about, and tried.
#[tokio::test]
async fn an_unknown_product_is_warned_about_and_tried() {
    let server = RedisServer::start().unwrap();
    let product = ProductServer::start(&server, Product::unknown()).unwrap();
    let warnings = Warnings::record();
    let store = RedisStore::connect(config(&product.url())).await.expect("it passes");
    assert_eq!(warnings.containing("unknown product server_name:store").len(), 1);
    let found = store.diagnose(LONG).await.unwrap().pop().expect("it is a server");
    assert!(found.trials.iter().all(|trial| trial.outcome == TrialOutcome::Passed), "{:?}", found.trials);
    let strict = RedisStore::connect(config(&product.url()).strict()).await.unwrap_err();
    assert!(matches!(strict.kind, FaultKind::Unsafe(_)), "{strict}");
}
