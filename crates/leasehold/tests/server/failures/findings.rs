//! Server settings that endanger locks, and the warnings about them: rows 36 to 38.

use super::fixture::{MS, client, mutex, server};
use leasehold::error::ConnectError;
use leasehold::store::{Diagnosis, FaultKind, FindingCode, FindingKind, Severity};
use leasehold::{Client, LostReason};
use leasehold_testkit::{RedisServer, ShiftedClock, Warnings};
use std::time::Duration;

async fn examined(url: &str) -> Diagnosis {
    let mut found = Client::builder(url).diagnose().await.expect("the server answers");
    found.pop().expect("it is a server")
}

fn words(found: &Diagnosis) -> Vec<&str> {
    found.findings.iter().map(|hazard| hazard.kind.as_str()).collect()
}

/// Row 36: a client refuses a server whose eviction policy can remove locks, unless the user has accepted that; and a holder
/// notices a removed lock.
#[tokio::test]
async fn row_36_an_eviction_policy_is_refused_or_accepted() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server =
            RedisServer::builder().config("maxmemory-policy", policy).config("maxmemory", "100mb").start();
        let server = server.expect("redis-server boots");
        let warnings = Warnings::record();
        let refused = Client::connect(&server.url()).await;
        let Err(ConnectError::Store(fault)) = refused else { panic!("{refused:?}") };
        let FaultKind::Unsafe(findings) = &fault.kind else { panic!("{fault}") };
        let eviction = FindingKind::Eviction { policy: policy.to_owned(), maxmemory: 100 << 20 };
        assert!(findings.iter().any(|hazard| hazard.kind == eviction), "{findings:?}");
        assert!(!fault.is_transient());
        assert!(fault.to_string().contains("set `maxmemory-policy noeviction`"), "{fault}");
        let accepted = Client::builder(server.url()).accept([FindingCode::Eviction]).connect().await;
        let accepted = accepted.expect("it is accepted");
        let known = accepted.findings();
        assert!(
            known.iter().any(|known| known.finding.kind == eviction && known.finding.accepted),
            "{known:?}"
        );
        assert!(warnings.containing("removes held locks").is_empty());
        let ours = mutex(&client(&format!("{}?accept=eviction", server.url())).await);
        // A server that would be refused can still be diagnosed.
        let found = examined(&format!("{}?strict=1", server.url())).await;
        assert!(found.findings.iter().any(|hazard| hazard.kind == eviction), "{found:?}");
        // The policy does remove locks: there is hardly room for the server itself.
        let guard = ours.lease(Duration::from_secs(60)).acquire().await.expect("acquired");
        tokio::time::sleep(100 * MS).await;
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]).expect("an answer").ok().expect("set");
        // Any command that can use memory triggers the eviction.
        let _ = server.cli(&["SET", "other", "x", "PX", "1000"]).expect("an answer");
        assert!(server.cli(&["GET", "m"]).expect("an answer").is_nil(), "{policy} has not removed it");
        guard.extend().await.expect_err("it is gone");
        let lost = tokio::time::timeout(2000 * MS, guard.lost()).await.expect("the loss is reported in time");
        assert!(matches!(lost.reason, LostReason::Removed | LostReason::StoreLostData), "{lost:?}");
    }
}

/// Row 37: the diagnosis reports full memory; it is no reason to refuse a connection, which renewals need.
#[tokio::test]
async fn row_37_full_memory_is_found_by_a_diagnosis() {
    let server = server();
    assert!(!words(&examined(&server.url()).await).contains(&"memory_full"));
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).expect("an answer").ok().expect("set");
    let found = examined(&server.url()).await;
    let full =
        found.findings.iter().find(|hazard| hazard.kind.as_str() == "memory_full").expect("it is found");
    assert_eq!(full.severity, Severity::Notice);
    assert!(full.to_string().contains("releases and renewals go on: raise `maxmemory`"), "{full}");
}

/// Row 38: the diagnosis measures the offset between the server's clock and ours, and its uncertainty; a clock jump
/// shows.
#[tokio::test]
async fn row_38_a_clock_difference_is_measured() {
    let clock = ShiftedClock::new(0).expect("a clock");
    let server = RedisServer::builder().clock(&clock).start().expect("redis-server boots");
    for (seconds, apart) in [(0, false), (3600, true), (-90, true), (2, true)] {
        let ahead_us = seconds * 1_000_000;
        clock.set_offset_us(ahead_us).expect("shifted");
        let found = examined(&server.url()).await;
        let seen = found.clock.expect("the server reports its time");
        let uncertain = i64::try_from(seen.uncertainty.as_micros()).expect("a short time");
        // The server reads its clock once per iteration of its event loop.
        assert!((seen.ahead_us - ahead_us).abs() <= uncertain + 20_000, "{seconds} s: {seen}");
        assert_eq!(words(&found).contains(&"clock_differs"), apart, "{seconds} s: {seen}");
        let side = if seconds < 0 { "behind ours" } else { "ahead of ours" };
        assert!(!apart || seen.to_string().contains(side), "{seen}");
    }
}
