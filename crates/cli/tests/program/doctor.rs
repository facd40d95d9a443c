//! The findings of `doctor`, and its exit status.

use super::fixture::Fixture;
use leasehold_testkit::{CertificateAuthority, Cluster, RedisServer, Sentinels};

/// Its output as JSON.
#[track_caller]
fn diagnosis(fixture: &Fixture, arguments: &[&str], status: i32) -> serde_json::Value {
    let outcome = fixture.run(&[&["doctor", "--json"], arguments].concat());
    outcome.check(status, "");
    assert_eq!((outcome.stdout.lines().count(), &*outcome.stderr), (1, ""));
    serde_json::from_str(&outcome.stdout).expect("it is JSON")
}

fn words(json: &serde_json::Value, severity: &str) -> Vec<String> {
    let findings = json["hazards"].as_array().expect("a list");
    let those = findings.iter().filter(|hazard| hazard["severity"] == severity);
    those.map(|hazard| hazard["hazard"].as_str().expect("a word").to_owned()).collect()
}

#[test]
fn a_server_that_could_lose_locks_ends_with_78_and_a_remedy() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .unix_socket()
        .password("hunter2")
        .start()
        .expect("there is a server");
    let fixture = Fixture::redis(&server);
    std::fs::write(fixture.path("secret"), "hunter2\n").expect("written");
    for url in [server.url(), format!("{}?strict=1", server.url()), server.unix_url().expect("a socket")] {
        let arguments = ["--store", &url, "--password-file", "secret"];
        let json = diagnosis(&fixture, &arguments, 78);
        assert!(words(&json, "critical").contains(&"eviction".to_owned()), "{json}");
        assert!(words(&json, "notice").contains(&"not_persistent".to_owned()), "{json}");
        assert_eq!((&json["maxmemory"], &json["role"]), (&(100 << 20).into(), &"primary".into()), "{json}");
        assert_eq!((&json["replicas"], &json["append_only"]), (&0.into(), &false.into()), "{json}");
        assert_eq!((&json["eviction_policy"], &json["user"]), (&"allkeys-lru".into(), &"default".into()));
        assert!(json["clock_ahead_us"].is_i64() && json["clock_uncertainty_us"].is_u64(), "{json}");
        let outcome = fixture.run(&[&["doctor"], &arguments[..]].concat());
        outcome.check(78, "");
        for text in [
            "role     primary, without replicas\n",
            "persists no append-only file",
            "critical eviction: its eviction policy is `allkeys-lru`",
            "to do: set `maxmemory-policy noeviction`\n",
            "user     default\n",
            "ours, give or take ",
        ] {
            assert!(outcome.stdout.contains(text), "{text}: {outcome:?}");
        }
        assert!(!format!("{outcome:?} {json}").contains("hunter2"));
    }
    assert_eq!(server.cli(&["DBSIZE"]).expect("it answers").integer(), Some(0), "nothing was written");
}

/// A finding about the version depends on the server, and is accepted here; there is no other warning.
#[test]
fn a_server_in_order_has_no_warning_but_of_its_version() {
    let server = RedisServer::builder().appendonly().start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let outcome = fixture.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("it is JSON");
    let warnings = words(&json, "warning");
    assert!(warnings.iter().all(|word| word == "lua_vulnerabilities"), "{json}");
    outcome.check(0, "");
    assert!(words(&json, "notice").iter().all(|word| word == "restore_vulnerabilities"), "{json}");
}

/// Notices do not change the status: a user that may not run INFO gets nothing else.
#[test]
fn a_user_that_may_not_run_info_gets_a_notice_and_0() {
    let server = RedisServer::start().expect("there is a server");
    let rules = ["ACL", "SETUSER", "mute", "on", "nopass", "~*", "&*", "+@all", "-info"];
    server.cli(&rules).expect("it answers").ok().expect("set");
    let fixture = Fixture::redis(&server);
    let url = server.url().replace("//", "//mute@");
    let json = diagnosis(&fixture, &["--store", &url], 0);
    assert_eq!(words(&json, "notice"), ["info_denied"]);
    assert!(json["version"].is_null() && json["user"] == "mute", "{json}");
}

#[test]
fn a_replica_and_the_primary_that_sentinels_name() {
    let mut sentinels = Sentinels::start(1).expect("there are servers");
    let url = sentinels.url();
    let replica = sentinels.servers()[1].url();
    let fixture = Fixture::sqlite();
    let json = diagnosis(&fixture, &["--store", &replica], 78);
    assert_eq!(json["role"], "replica");
    assert!(words(&json, "warning").contains(&"replica".to_owned()), "{json}");
    let outcome = fixture.run(&["doctor", "--json", "--store", &url]);
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("it is JSON");
    assert_eq!((&json["role"], &json["replicas"]), (&"primary".into(), &1.into()), "{json}");
    let is_reported = words(&json, "notice").contains(&"writes_without_replicas".to_owned());
    assert!(is_reported, "it takes writes without its replica: {json}");
    assert!(json["store"].as_str().expect("it is known").starts_with("main of 127.0.0.1:"), "{json}");
}

/// All primaries, one line each, even if the nodes accept only TLS.
#[test]
fn each_primary_of_a_cluster_is_diagnosed() {
    let authority = CertificateAuthority::new().expect("an authority");
    for name in ["node", "ours"] {
        authority.sign(name, "IP:127.0.0.1").expect("signed");
    }
    let settings = RedisServer::builder().tls(&authority, "node");
    let cluster = Cluster::with(3, 0, &settings).expect("nodes that agree");
    let evicts = ["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"];
    cluster.node(2).cli(&evicts).expect("it answers").ok().expect("set");
    let dir = authority.dir().display();
    let own = format!("cert={dir}/ours.pem&key={dir}/ours.key");
    let fixture = Fixture::at(format!("{}?ca={dir}/root.pem&{own}", cluster.url()));
    let outcome = fixture.run(&["doctor", "--json"]);
    outcome.check(78, "");
    let reports: Vec<serde_json::Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    assert_eq!(reports.len(), 3, "{outcome:?}");
    for at in 0..3 {
        let node = format!("127.0.0.1:{}", cluster.node(at).port());
        let json = reports.iter().find(|json| json["store"] == *node).expect("it is reported");
        assert_eq!(words(json, "critical").contains(&"eviction".to_owned()), at == 2, "{json}");
    }
    // One node is enough to be refused.
    let refused = fixture.script(&[], "echo held");
    refused.check(69, "add `accept=eviction");
    assert!(refused.stderr.contains(&format!("127.0.0.1:{}", cluster.node(2).port())), "{refused:?}");
    fixture.run(&["doctor", "--accept", "eviction"]).check(0, "eviction of ");
    let held = fixture.script(&[], "echo held");
    held.check(0, "");
    assert_eq!(held.stderr, "");
    let other = Fixture::at(format!("{}?ca={dir}/node.pem&{own}", cluster.url()));
    other.run(&["doctor"]).check(69, "signed by an untrusted authority");
    other.script(&[], "echo held").check(69, "signed by an untrusted authority");
}

#[test]
fn a_file_has_no_findings() {
    let fixture = Fixture::sqlite();
    let outcome = fixture.run(&["doctor"]);
    outcome.check(0, "");
    assert!(outcome.stdout.contains("there is no server"), "{outcome:?}");
    let json = diagnosis(&fixture, &[], 0);
    assert!(json["store"].is_null() && json["hazards"].as_array().is_some_and(Vec::is_empty), "{json}");
}

/// Other commands honor `?strict=1`.
#[test]
fn a_strict_store_is_refused_with_69() {
    let server =
        RedisServer::builder().config("maxmemory", "100mb").config("maxmemory-policy", "volatile-lru");
    let server = server.start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    // It is refused without that setting as well, unless it is accepted.
    for url in [server.url(), format!("{}?strict=1", server.url())] {
        let outcome = fixture.run(&["run", "job", "--store", &url, "--", "echo", "ran"]);
        outcome.check(69, "set `maxmemory-policy noeviction`");
        assert_eq!(outcome.stdout, "");
        fixture.run(&["show", "job", "--store", &url]).check(69, "add `accept=eviction");
    }
    let accepting = format!("{}?accept=eviction", server.url());
    fixture.run(&["show", "job", "--store", &accepting]).check(0, "");
    fixture
        .run(&["show", "job", "--store", &format!("{}?strict=yes", server.url())])
        .check(2, "`strict` is 1 or 0");
    fixture
        .run(&["show", "job", "--store", &format!("{}?accept=evictions", server.url())])
        .check(2, "findings that can be accepted are `eviction`, ");
    let replica = RedisServer::builder().config("replicaof", format!("127.0.0.1 {}", server.port()));
    let replica = replica.start().expect("there is a server");
    let url = format!("{}?accept=lua_vulnerabilities", replica.url());
    let strict = fixture.run(&["show", "job", "--store", &format!("{url}&strict=1")]);
    strict.check(69, "replica");
    // It is in the log at a higher verbosity.
    let outcome = fixture.run(&["show", "job", "-v", "--store", &url]);
    assert!(outcome.stderr.contains("it is a replica, and accepts no writes"), "{outcome:?}");
}
