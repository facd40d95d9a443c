//! Findings about a server: logged once per store, refused by strict settings, and reported by a diagnosis.

use crate::fixture::{LONG, acquire, claim, connect, granted, job, release, take};
use leasehold_redis::{QuorumConfig, RedisConfig, RedisStore};
use leasehold_sim::ModelServer;
use leasehold_store::{
    Diagnosis, FaultKind, Finding, FindingCode, FindingKind, MemoryStore, Role, Severity, Store,
};
use leasehold_testkit::{Quorum, RedisServer, Warnings};
use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A server that may evict locks.
fn evicting(policy: &str) -> RedisServer {
    let server =
        RedisServer::builder().config("maxmemory", "100mb").config("maxmemory-policy", policy).start();
    server.unwrap()
}

fn strict(server: &RedisServer) -> RedisConfig {
    RedisConfig::from_url(&server.url()).unwrap().strict()
}

async fn diagnosed(store: &RedisStore) -> Diagnosis {
    store.diagnose(LONG).await.unwrap().pop().expect("it is a server")
}

fn found<'a>(findings: &'a [Finding], word: &str) -> Option<&'a Finding> {
    findings.iter().find(|finding| finding.kind.as_str() == word)
}

/// Breaks all connections but the test's own.
fn cut_all(server: &RedisServer) {
    let cut = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"].map(String::from);
    let killed = server.cli(&cut).unwrap().integer();
    assert!(killed > Some(0), "there was none");
}

/// Waits until the store is connected: a call may have used a connection that was broken.
async fn answers(store: &dyn Store) {
    let waited = Instant::now();
    while let Err(fault) = store.diagnose(LONG).await {
        assert!(fault.is_transient() && waited.elapsed() < LONG, "{fault}");
    }
}

/// The findings for which strict settings refuse the connection.
async fn refusal(config: RedisConfig) -> Vec<Finding> {
    let fault = RedisStore::connect(config).await.unwrap_err();
    assert!(!fault.is_transient(), "{fault}");
    let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{fault}") };
    for finding in findings {
        assert!(fault.to_string().contains(&finding.to_string()), "{fault}");
    }
    findings.clone()
}

/// Once, although the keeper connects, too, and connections are replaced.
#[tokio::test]
async fn a_finding_is_logged_once_per_store() {
    let primary = RedisServer::start().unwrap();
    let at = format!("127.0.0.1 {}", primary.port());
    let server = RedisServer::builder().config("replicaof", &at).start().unwrap();
    let warnings = Warnings::record();
    let store = connect(&server).await;
    let logged = warnings.containing("accepts no writes");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(logged[0].contains("replica") && logged[0].contains("connect to its primary"), "{logged:?}");
    assert!(logged[0].contains(&server.port().to_string()), "{logged:?}");
    let fork = store.fork();
    answers(&*fork).await;
    cut_all(&server);
    answers(&store).await;
    answers(&*fork).await;
    assert_eq!(warnings.containing("accepts no writes"), logged);
    // Another finding is logged separately, and so is the same finding of another store.
    server.cli(&["CONFIG", "SET", "replica-read-only", "no"]).unwrap().ok().unwrap();
    cut_all(&server);
    answers(&*fork).await;
    assert_eq!(warnings.containing("a replica that accepts writes").len(), 1);
    let found = store.findings().into_iter().find(|found| found.finding.kind.as_str() == "replica");
    assert_eq!(found.unwrap().finding.kind, FindingKind::Replica { writes: true }, "the latest");
    drop(connect(&server).await);
    assert_eq!(warnings.containing("a replica that accepts writes").len(), 2);
}

/// The error names the setting, and the code to accept; what was accepted is neither an error nor a warning.
#[tokio::test]
async fn a_server_that_can_evict_locks_is_refused_unless_that_is_accepted() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = evicting(policy);
        let plain = || RedisConfig::from_url(&server.url()).unwrap();
        let warnings = Warnings::record();
        for config in [plain(), plain().skip_trials(), plain().resp2()] {
            let fault = RedisStore::connect(config).await.unwrap_err();
            assert!(matches!(&fault.kind, FaultKind::Unsafe(_)) && !fault.is_transient(), "{fault}");
            let text = fault.to_string();
            for part in [policy, "set `maxmemory-policy noeviction`", "add `accept=eviction` to its URL"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(warnings.containing("eviction").is_empty(), "{:?}", warnings.containing("eviction"));
        let by_url = RedisConfig::from_url(&format!("{}?accept=eviction", server.url())).unwrap();
        for (n, config) in [(1, by_url), (2, plain().accept([FindingCode::Eviction]))] {
            let store = RedisStore::connect(config).await.unwrap();
            granted(acquire(&store, &claim(n), None).await);
            release(&store, &claim(n)).await;
            answers(&*store.fork()).await;
            cut_all(&server);
            answers(&store).await;
            let found = store.findings();
            let found = found.iter().find(|found| found.finding.kind.as_str() == "eviction").unwrap();
            assert!(found.finding.accepted && found.finding.severity == Severity::Critical, "{found:?}");
            assert_eq!(found.node, format!("127.0.0.1:{}", server.port()));
            let findings = diagnosed(&store).await.findings;
            assert!(findings.iter().find(|found| found.kind.as_str() == "eviction").unwrap().accepted);
        }
        assert!(warnings.containing("eviction").is_empty(), "{:?}", warnings.containing("eviction"));
        // Other findings are not accepted with it.
        let strict = plain().strict().accept([FindingCode::Eviction]);
        if let Err(fault) = RedisStore::connect(strict).await {
            let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{fault}") };
            assert!(found(findings, "eviction").is_none(), "{fault}");
        }
    }
}

/// Each node of a quorum counts for itself: what is refused there is a node less.
#[tokio::test]
async fn a_node_of_a_quorum_that_can_evict_locks_grants_none() {
    let mut quorum = Quorum::with(3, &RedisServer::builder()).unwrap();
    let url = format!("{}?min_uptime=0s&node_timeout=1s", quorum.url());
    let evict = |server: &RedisServer| {
        // Redis 6.2 sets one at a time.
        for (setting, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")] {
            server.cli(&["CONFIG", "SET", setting, value]).unwrap().ok().unwrap();
        }
    };
    evict(&quorum.servers()[0]);
    let config = || QuorumConfig::from_url(&url).unwrap();
    let store = RedisStore::connect_quorum(config()).await.unwrap();
    let evicting = format!("127.0.0.1:{}", quorum.servers()[0].port());
    let start = Instant::now();
    let reports = || {
        let mut found = store.findings().into_iter();
        found.any(|found| found.node == evicting && found.finding.kind.as_str() == "eviction")
    };
    while !reports() {
        assert!(start.elapsed() < LONG, "{:?}", store.findings());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    granted(store.execute(&job(), &take(&claim(1), None), LONG).await);
    assert!(quorum.servers()[0].cli(&["GET", "job"]).unwrap().is_nil());
    evict(&quorum.servers()[1]);
    let fault = RedisStore::connect_quorum(config()).await.unwrap_err();
    assert!(fault.to_string().contains("add `accept=eviction` to its URL"), "{fault}");
    let accepting = config().try_map(|node| Ok::<_, ()>(node.accept([FindingCode::Eviction]))).unwrap();
    RedisStore::connect_quorum(accepting).await.unwrap();
}

#[tokio::test]
async fn a_server_without_a_limit_removes_nothing_yet() {
    let server = RedisServer::builder().config("maxmemory-policy", "allkeys-lru").start().unwrap();
    let warnings = Warnings::record();
    let store = connect(&server).await;
    assert!(warnings.containing("eviction").is_empty());
    let findings = diagnosed(&store).await.findings;
    let finding = found(&findings, "eviction").expect("the eviction policy is reported");
    assert_eq!(finding.severity, Severity::Notice);
    assert_eq!(finding.kind, FindingKind::Eviction { policy: "allkeys-lru".into(), maxmemory: 0 });
}

#[tokio::test]
async fn a_server_without_persistence_gets_a_notice() {
    let server = RedisServer::start().unwrap();
    let warnings = Warnings::record();
    let store = connect(&server).await;
    assert!(warnings.containing("not_persistent").is_empty());
    let diagnosis = diagnosed(&store).await;
    assert_eq!(diagnosis.append_only, Some(false));
    assert_eq!(
        found(&diagnosis.findings, "not_persistent").map(|finding| finding.severity),
        Some(Severity::Notice)
    );
    let server = RedisServer::builder().appendonly().start().unwrap();
    let diagnosis = diagnosed(&connect(&server).await).await;
    assert_eq!(diagnosis.append_only, Some(true));
    assert_eq!(found(&diagnosis.findings, "not_persistent"), None);
}

#[tokio::test]
async fn a_primary_that_takes_writes_without_its_replicas_gets_a_notice() {
    let primary = RedisServer::start().unwrap();
    let store = connect(&primary).await;
    let word = "writes_without_replicas";
    assert_eq!(found(&diagnosed(&store).await.findings, word), None, "it has no replica");
    let at = format!("127.0.0.1 {}", primary.port());
    let _replica = RedisServer::builder().config("replicaof", &at).start().unwrap();
    let connected = async {
        while diagnosed(&store).await.replicas != Some(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), connected).await.expect("it connects");
    let findings = diagnosed(&store).await.findings;
    assert_eq!(found(&findings, word).map(|finding| finding.severity), Some(Severity::Notice));
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap().ok().unwrap();
    assert_eq!(found(&diagnosed(&store).await.findings, word), None);
}

#[tokio::test]
async fn a_replica_is_reported_and_refused_in_strict_mode() {
    let primary = RedisServer::start().unwrap();
    let at = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder().config("replicaof", &at).start().unwrap();
    let warnings = Warnings::record();
    let store = connect(&replica).await;
    assert_eq!(warnings.containing("it is a replica, and accepts no writes").len(), 1);
    let diagnosis = diagnosed(&store).await;
    assert_eq!(diagnosis.role, Some(Role::Replica));
    assert_eq!(
        found(&diagnosis.findings, "replica").map(|finding| finding.severity),
        Some(Severity::Warning)
    );
    let store = connect(&primary).await;
    let waited = Instant::now();
    while diagnosed(&store).await.replicas != Some(1) {
        assert!(waited.elapsed() < LONG, "the replica does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(diagnosed(&store).await.role, Some(Role::Primary));
    // A writable replica is worse: what is written there is lost.
    replica.cli(&["CONFIG", "SET", "replica-read-only", "no"]).unwrap().ok().unwrap();
    let findings = refusal(strict(&replica)).await;
    assert_eq!(
        findings.iter().filter(|finding| finding.kind.as_str() == "replica").count(),
        1,
        "{findings:?}"
    );
    drop(connect(&replica).await);
    assert_eq!(warnings.containing("it is a replica that accepts writes").len(), 1);
}

/// Only the version that the server reports counts, so this server reports whatever the test sets.
#[tokio::test]
async fn a_vulnerable_version_is_reported_and_refused_in_strict_mode() {
    let reporting = |text: &'static str| {
        move |_| async move {
            let (near, far) = tokio::io::duplex(65536);
            tokio::spawn(fake_server::serve(far, text));
            Ok::<_, std::io::Error>(near)
        }
    };
    let config = || RedisConfig::from_url("redis://fake").unwrap();
    let warnings = Warnings::record();
    RedisStore::connect(config().connector(reporting("redis_version:7.0.15\r\n"))).await.unwrap();
    let logged = warnings.containing("lua_vulnerabilities");
    assert_eq!(logged.len(), 1, "{logged:?}");
    for part in ["Redis 7.0.15", "CVE-2025-49844", "distributions may have fixed them", "Redis 7.2.14"] {
        assert!(logged[0].contains(part), "{part}: {logged:?}");
    }
    let findings = refusal(config().strict().connector(reporting("redis_version:7.0.15\r\n"))).await;
    assert_eq!(
        findings.iter().map(|finding| finding.kind.as_str()).collect::<Vec<_>>(),
        ["lua_vulnerabilities"]
    );
    // For a user without permission for INFO nothing is logged and nothing refused.
    RedisStore::connect(config().strict().connector(reporting(""))).await.unwrap();
    RedisStore::connect(config().strict().connector(reporting("redis_version:8.8.2\r\n"))).await.unwrap();
    assert_eq!(warnings.containing("lua_vulnerabilities").len(), 1);
    // What a distribution has mended can be accepted.
    let accepting = config().strict().accept([FindingCode::LuaVulnerabilities]);
    let store =
        RedisStore::connect(accepting.connector(reporting("redis_version:7.0.15\r\n"))).await.unwrap();
    let found: Vec<_> = store.findings().into_iter().map(|found| found.finding).collect();
    let words: Vec<_> = found.iter().map(|finding| (finding.kind.as_str(), finding.accepted)).collect();
    assert_eq!(words, [("lua_vulnerabilities", true), ("restore_vulnerabilities", false)]);
    assert_eq!(warnings.containing("lua_vulnerabilities").len(), 1);
}

/// Replies to a client's handshake, and reports a given text in INFO.
mod fake_server {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// Reads commands in sequence: arrays of bulk strings.
    pub(super) async fn serve(mut stream: DuplexStream, text: &str) {
        let (mut read, mut chunk) = (Vec::new(), vec![0; 16384]);
        while let Ok(size @ 1..) = stream.read(&mut chunk).await {
            read.extend_from_slice(&chunk[..size]);
            while let Some((words, rest)) = command(&read) {
                let reply = match (words[0].as_str(), text) {
                    ("HELLO", _) => "%1\r\n+proto\r\n:3\r\n".to_owned(),
                    ("INFO", "") | ("SCRIPT" | "EVALSHA", _) => {
                        "-NOPERM this user has no permissions\r\n".to_owned()
                    }
                    ("INFO", text) => format!("${}\r\n{text}\r\n", text.len()),
                    _ => "+OK\r\n".to_owned(),
                };
                read = rest;
                if stream.write_all(reply.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }

    fn command(bytes: &[u8]) -> Option<(Vec<String>, Vec<u8>)> {
        let line = |at: usize| {
            let end = bytes[at..].windows(2).position(|pair| pair == b"\r\n")? + at;
            Some((std::str::from_utf8(&bytes[at + 1..end]).ok()?.parse::<usize>().ok()?, end + 2))
        };
        let (count, mut at) = line(0)?;
        let mut words = Vec::new();
        for _ in 0..count {
            let (len, start) = line(at)?;
            words.push(String::from_utf8_lossy(bytes.get(start..start + len)?).into_owned());
            at = start + len + 2;
        }
        (at <= bytes.len()).then(|| (words, bytes[at..].to_vec()))
    }
}

#[tokio::test]
async fn a_user_without_permissions_gets_no_warnings() {
    let server = evicting("allkeys-lru");
    let rules = ["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all", "-info", "-acl", "-time"];
    server.cli(&rules).unwrap().ok().unwrap();
    let warnings = Warnings::record();
    let store = RedisStore::connect(strict(&server).username("mute").password("x")).await.unwrap();
    assert!(warnings.containing("").is_empty(), "{:?}", warnings.containing(""));
    let diagnosis = diagnosed(&store).await;
    let words: Vec<_> = diagnosis.findings.iter().map(|finding| finding.kind.as_str()).collect();
    assert_eq!(words, ["info_denied"]);
    assert_eq!(
        (diagnosis.version, diagnosis.eviction_policy, diagnosis.clock, diagnosis.user),
        (None, None, None, None)
    );
    assert!(diagnosis.round_trip > Duration::ZERO);
}

#[tokio::test]
async fn a_diagnosis_contains_what_the_server_reports() {
    let server = evicting("volatile-lru");
    server.cli(&["ACL", "SETUSER", "locks", "on", ">x", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("locks").password("x");
    let diagnosis = diagnosed(&RedisStore::connect(config.for_diagnosis()).await.unwrap()).await;
    assert_eq!(diagnosis.node, format!("127.0.0.1:{}", server.port()));
    assert_eq!((diagnosis.role, diagnosis.replicas), (Some(Role::Primary), Some(0)));
    assert_eq!(diagnosis.maxmemory, Some(100 << 20));
    assert!(diagnosis.used_memory.is_some_and(|used| used > 0));
    assert_eq!(diagnosis.eviction_policy.as_deref(), Some("volatile-lru"));
    assert_eq!(diagnosis.user.as_deref(), Some("locks"));
    assert!(diagnosis.product.is_some() && diagnosis.version.is_some());
    let clock = diagnosis.clock.expect("the server reports its time");
    assert!(clock.uncertainty <= diagnosis.round_trip, "{clock:?}");
    // Both read the same clock.
    let uncertain = i64::try_from(clock.uncertainty.as_micros()).unwrap();
    assert!(clock.ahead_us.abs() <= uncertain + 1000, "{clock:?}");
    assert_eq!(found(&diagnosis.findings, "clock_differs"), None);
    let mut severities = diagnosis.findings.iter().map(|finding| finding.severity);
    assert_eq!(severities.next(), Some(Severity::Critical), "the most serious first");
}

/// With a server without findings strict settings change nothing; and a store without a server has no diagnosis.
#[tokio::test]
async fn a_server_in_order_serves_in_strict_mode() {
    let server = ModelServer::new(|| 1_762_000_000_000_000);
    let config = RedisConfig::from_url("redis://simulated?strict=1").unwrap();
    let config = config.connector(move |_| {
        let server = server.clone();
        async move {
            let (near, far) = tokio::io::duplex(65536);
            tokio::spawn(async move { server.serve(far).await });
            Ok::<_, std::io::Error>(near)
        }
    });
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert!(MemoryStore::new().diagnose(LONG).await.unwrap().is_empty());
}

/// A server that becomes unsafe during use is refused from the next connection on, and calls report that at once;
/// after the setting is corrected it serves again.
#[tokio::test]
async fn strict_settings_are_checked_with_each_connection() {
    const IN_ORDER: &str = "redis_version:8.8.2\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n";
    const EVICTING: &str = "redis_version:8.8.2\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";
    let (reported, serving) = (Arc::new(Mutex::new(IN_ORDER)), Arc::new(Mutex::new(Vec::new())));
    let reporting = |text| {
        *reported.lock().unwrap() = text;
        serving.lock().unwrap().drain(..).for_each(|served: JoinHandle<()>| served.abort());
    };
    let (answer, served) = (Arc::clone(&reported), Arc::clone(&serving));
    let config = RedisConfig::from_url("redis://fake?strict=1").unwrap().connector(move |_| {
        let (near, far) = tokio::io::duplex(65536);
        let text = *answer.lock().unwrap();
        served.lock().unwrap().push(tokio::spawn(fake_server::serve(far, text)));
        ready(Ok::<_, std::io::Error>(near))
    });
    let store = RedisStore::connect(config).await.unwrap();
    answers(&store).await;
    reporting(EVICTING);
    let waited = Instant::now();
    let fault = loop {
        match store.diagnose(LONG).await {
            Err(fault) if !fault.is_transient() => break fault,
            _ => assert!(waited.elapsed() < LONG, "it is not refused"),
        }
    };
    assert!(matches!(&fault.kind, FaultKind::Unsafe(findings) if findings.len() == 1), "{fault}");
    // The store checks again with each connection: a new store is not needed.
    reporting(IN_ORDER);
    let waited = Instant::now();
    while let Err(fault) = store.diagnose(LONG).await {
        assert!(waited.elapsed() < LONG, "{fault}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A borrowed connection is not checked; an explicit diagnosis works.
#[tokio::test]
async fn a_borrowed_connection_can_be_diagnosed() {
    let server = evicting("allkeys-lru");
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let warnings = Warnings::record();
    let store = RedisStore::from_connection(connection, "", None).unwrap();
    let diagnosis = diagnosed(&store).await;
    assert!(found(&diagnosis.findings, "eviction").is_some(), "{diagnosis:?}");
    assert!(diagnosis.clock.is_some() && warnings.containing("").is_empty());
}
