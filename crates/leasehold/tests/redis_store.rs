//! The Redis store against real servers: connecting and being refused, breaking and mending, messages, and what the
//! server says when it cannot.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "an outcome that was judged is done with")]

use leasehold::store::{
    Fault, FaultKind, Lock, Op, Outcome, Postbox, RedisConfig, RedisStore, Reply, SessionKeeping, SessionOp,
    SessionReply, Store, UrlError, Wake,
};
use leasehold_core::{
    Acquire, Acquired, Beat, Beaten, Claim, Ended, Enqueue, Evict, Evicted, Extend, Extended, Fate,
    Fingerprint, Free, Freed, HoldId, Inspect, Label, Life, Nonce, OwnValue, Pass, Refused, Release,
    Released, Seen, SessionEntry, SessionId, Share,
};
use leasehold_testkit::{Proxy, RedisServer, Then, command};
use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Long enough on a busy machine.
const LONG: Duration = Duration::from_secs(10);
/// A time that a call has to keep.
const SHORT: Duration = Duration::from_millis(400);
/// What may be added to that by a busy machine.
const LATE: Duration = Duration::from_millis(600);

// Connecting and being refused.

#[tokio::test]
async fn a_url_says_what_is_wrong_with_it() {
    for (url, error) in [
        ("localhost", UrlError::Scheme),
        ("http://localhost", UrlError::Scheme),
        ("redis://", UrlError::Host),
        ("redis://localhost:hunter2", UrlError::Port),
        ("redis://localhost/one", UrlError::Database),
        ("redis://localhost?hunter2=hunter2", UrlError::Setting),
        ("redis+unix://redis.sock", UrlError::SocketPath),
    ] {
        let found = url.parse::<RedisConfig>().unwrap_err();
        assert_eq!(found, error, "{url}");
        assert!(!found.to_string().contains("hunter2"), "{found}");
    }
}

#[tokio::test]
async fn a_wrong_password_shows_at_once_and_is_not_shown() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let config = || RedisConfig::from_url(&server.url()).unwrap();
    for config in [config(), config().password("hunter2"), config().username("nobody").password("right")] {
        let fault = RedisStore::connect(config.clone()).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
        assert!(!format!("{fault} {fault:?} {config:?}").contains("hunter2"));
        // A call does not wait for what will not change.
        let started = Instant::now();
        let fault = refused(acquire(&RedisStore::lazy(config), &claim(1), None).await);
        assert_eq!(fault.kind, FaultKind::Unauthenticated);
        assert!(started.elapsed() < LONG / 2);
    }
    let store = RedisStore::connect(config().password("right")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
}

/// Failure row 46.
#[tokio::test]
async fn a_user_that_fails_to_log_in_never_goes_on_as_the_default_user() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap();
    for config in [config.clone().username("nobody"), config.clone().username("nobody").password("x")] {
        let fault = RedisStore::connect(config).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
    }
    server.cli(&["ACL", "SETUSER", "open", "on", "nopass", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config.username("open")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert!(server.cli(&["CLIENT", "LIST"]).unwrap().text().unwrap().contains("user=open"));
}

/// Failure row 46.
#[tokio::test]
async fn tls_never_falls_back_to_plain_text() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url().replace("redis:", "rediss:")).unwrap();
    let config = config.password("hunter2").connect_timeout(SHORT);
    let fault = in_time(RedisStore::connect(config)).await.unwrap_err();
    assert_ne!(fault.kind, FaultKind::Unauthenticated, "{fault}");
    assert_eq!(server.command_counts().unwrap().get("hello"), None, "nothing was understood");
}

#[tokio::test]
async fn tls_goes_to_servers_that_are_trusted_and_to_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let certify = |name: &str, settings: &[&str]| {
        let openssl = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-subj", "/CN=leasehold test"])
            .args(["-keyout", &path(&format!("{name}.key")), "-out", &path(&format!("{name}.pem"))])
            .args(settings)
            .output()
            .expect("the test needs openssl");
        assert!(openssl.status.success(), "{}", String::from_utf8_lossy(&openssl.stderr));
    };
    certify("root", &[]);
    let (root, root_key) = (path("root.pem"), path("root.key"));
    let leaf = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    certify("leaf", &[&["-CA", &root, "-CAkey", &root_key], &leaf[..]].concat());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = RedisServer::builder()
        .config("tls-port", port.to_string())
        .config("tls-cert-file", path("leaf.pem"))
        .config("tls-key-file", path("leaf.key"))
        .config("tls-auth-clients", "no");
    let _server = server.start().unwrap();
    let config = RedisConfig::from_url(&format!("rediss://127.0.0.1:{port}")).unwrap();
    let fault = RedisStore::connect(config.clone()).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Failed(text) if text.contains("certificate")), "{fault}");
    let fault = RedisStore::connect(config.clone().root_certificate("no PEM")).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unusable(_)), "{fault}");
    let config = config.root_certificate(std::fs::read(root).unwrap());
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_within_the_time() {
    let mut server = RedisServer::start().unwrap();
    let url = server.url();
    server.kill().unwrap();
    let fault = RedisStore::connect(url.parse().unwrap()).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
    assert_eq!(*fault.node, url[8..url.len() - 1]);
    let store = RedisStore::lazy(url.parse().unwrap());
    let fault = refused(in_time(execute(&store, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
    let missing = RedisStore::lazy("redis+unix:///nowhere/redis.sock".parse().unwrap());
    let fault = refused(in_time(execute(&missing, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_what_is_needed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut chunk = vec![0; 65536];
        assert!(client.read(&mut chunk).unwrap() > 0);
        client.write_all(b"%1\r\n+server\r\n+redis\r\n+OK\r\n+OK\r\n").unwrap();
        assert!(client.read(&mut chunk).unwrap() > 0);
        client.write_all(b"+OK\r\n$22\r\nredis_version:6.0.16\r\n\r\n").unwrap();
        // One for each script that is loaded.
        client.write_all(&b"+OK\r\n".repeat(15)).unwrap();
        while client.read(&mut chunk).is_ok_and(|read| read > 0) {}
    });
    let fault = RedisStore::connect(url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unsupported(_)), "{fault}");
    assert!(fault.to_string().contains("6.0.16") && fault.to_string().contains("6.2"), "{fault}");
    server.join().unwrap();
}

#[tokio::test]
async fn a_unix_socket_a_database_and_a_prefix() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    let url = format!("{}?db=3&prefix=app:", server.unix_url().unwrap());
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    let mut connection = server.connect().unwrap();
    assert!(connection.call(&["GET", "app:job"]).unwrap().is_nil());
    connection.call(&["SELECT", "3"]).unwrap();
    let token = connection.call(&["GET", "app:job"]).unwrap();
    assert_eq!(token.text(), Some(&*claim(1).token()));
    let record = connection.call(&["HGET", "leasehold:{app:job}:record:mutex:app:job", "format"]).unwrap();
    assert!(record.is_nil());
    let record =
        connection.call(&["HGET", "app:leasehold:{app:job}:record:mutex:app:job", "format"]).unwrap();
    assert_eq!(record.text(), Some("1"));
}

// What the server says.

#[tokio::test]
async fn something_else_at_the_key_is_named() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["LPUSH", "job", "x"]).unwrap();
    let outcome = acquire(&store, &claim(1), None).await;
    let Outcome::Done(Reply::Refused(Refused::WrongKind { found })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(found, "list");
    assert_eq!(server.cli(&["KEYS", "*"]).unwrap().elements().len(), 1, "nothing was written");
}

/// Failure row 37.
#[tokio::test]
async fn with_full_memory_nobody_acquires_but_the_holder_extends_and_releases() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let waiting = acquire(&store, &claim(2), Some(nonce(7))).await;
    assert!(matches!(waiting, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{waiting:?}");
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    assert_eq!(refused(acquire_of(&store, "other", &claim(3)).await).kind, FaultKind::OutOfMemory);
    assert_eq!(refused(acquire(&store, &claim(3), Some(nonce(8))).await).kind, FaultKind::OutOfMemory);
    let extend = Op::Extend(Extend { claim: claim(1), lease_ms: 60_000, keep_record: true });
    let extended = execute(&store, &extend, LONG).await;
    assert!(matches!(extended, Outcome::Done(Reply::Extend(Extended::Extended))), "{extended:?}");
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(2).token()), "and hands over");
    assert_eq!(found(release(&store, &claim(2)).await), Fate::Held);
    assert_eq!(refused(acquire(&store, &claim(3), None).await).kind, FaultKind::OutOfMemory);
    assert!(server.cli(&["GET", "job"]).unwrap().is_nil());
}

/// Failure row 34.
#[tokio::test]
async fn a_connection_to_a_replica_is_replaced_and_works_after_the_promotion() {
    let primary = RedisServer::start().unwrap();
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let port = primary.port().to_string();
    server.cli(&["REPLICAOF", "127.0.0.1", &port]).unwrap().ok().unwrap();
    let fault = refused(acquire_of(&store, "other", &claim(2)).await);
    assert!(matches!(fault.kind, FaultKind::ReadOnly | FaultKind::Busy), "{fault}");
    server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap().ok().unwrap();
    granted(acquire_of(&store, "other", &claim(2)).await);
    assert_eq!(connections(&server), 1, "the old one is closed");
}

#[tokio::test]
async fn a_user_that_may_not_is_told_so() {
    let server = RedisServer::start().unwrap();
    let config = || RedisConfig::from_url(&server.url()).unwrap();
    let rules = ["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all"];
    server.cli(&rules).unwrap().ok().unwrap();
    server.cli(&["ACL", "SETUSER", "mute", "-evalsha"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    assert_eq!(refused(acquire(&store, &claim(1), None).await).kind, FaultKind::Forbidden);
    server.cli(&["ACL", "SETUSER", "mute", "+evalsha", "-set"]).unwrap().ok().unwrap();
    let fault = unknown(acquire(&store, &claim(1), None).await);
    assert_eq!(fault.kind, FaultKind::Forbidden, "stopped half-way: {fault}");
    // A user that may not publish hands over all the same, and one that may not ask for INFO connects.
    server.cli(&["ACL", "SETUSER", "mute", "+set", "-publish", "-info", "-client"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(1))).await;
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    granted(acquire(&store, &claim(2), Some(nonce(2))).await);
    server.cli(&["ACL", "SETUSER", "mute", "resetchannels"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    let (_, post) = Box::new_post();
    let fault = store.open_mailbox(session(1), post, LONG).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Forbidden, "{fault}");
}

/// A lock that was asked for in the same step as a release, and could not be written, is not said to be granted.
#[tokio::test]
async fn a_grant_that_was_not_written_is_not_told() {
    let server = RedisServer::start().unwrap();
    server.cli(&["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("mute").password("x");
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    server.cli(&["ACL", "SETUSER", "mute", "-set"]).unwrap().ok().unwrap();
    let Op::Acquire(next) = take(&claim(3), Some(nonce(1))) else { panic!("another operation") };
    let op = Op::Release(Release { claim: claim(1), pass: Pass::Grant, next: Some(next) });
    let fault = unknown(execute(&store, &op, LONG).await);
    assert_eq!(fault.kind, FaultKind::Forbidden, "{fault}");
    assert!(server.cli(&["GET", "job"]).unwrap().is_nil(), "but the release is done");
}

#[tokio::test]
async fn a_server_that_turns_the_connection_away_says_why() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&format!("{}99", server.url())).unwrap();
    let fault = RedisStore::connect(config).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Failed(text) if text.contains("range")), "{fault}");
    let mut connection = server.connect().unwrap();
    connection.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap().ok().unwrap();
    let fault = RedisStore::connect(server.url().parse().unwrap()).await.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::Busy | FaultKind::Disconnected), "{fault}");
}

#[tokio::test]
async fn no_fault_and_no_log_of_the_server_shows_a_token() {
    let server = RedisServer::builder().config("rename-command", "EVALSHA \"\"").start().unwrap();
    let store = connect(&server).await;
    let mut claim = claim(1);
    claim.value = OwnValue::new("hunter2").ok();
    let fault = refused(acquire(&store, &claim, None).await);
    assert!(fault.to_string().contains("unknown command"), "{fault}");
    let secret = claim.hold.token();
    assert!(!format!("{fault} {fault:?}").contains("hunter2"));
    assert!(!format!("{fault} {fault:?}").contains(&secret[20..]));
}

#[tokio::test]
async fn a_batch_has_an_outcome_for_each() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["LPUSH", "list", "x"]).unwrap();
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    let lock = |name: &str| Lock::mutex(name.parse().unwrap());
    let ops = [
        (lock("a"), take(&claim(1), None)),
        (lock("list"), take(&claim(2), None)),
        (lock("b}"), take(&claim(3), None)),
        (lock("a"), take(&claim(4), None)),
        (lock("a"), Op::Inspect(Inspect { claim: Some(claim(1)), in_full: false })),
    ];
    for _ in 0..2 {
        let outcomes = store.execute_all(&ops, LONG).await;
        let [first, second, third, fourth, fifth] = &outcomes[..] else { panic!("{outcomes:?}") };
        assert!(matches!(first, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{first:?}");
        assert!(matches!(second, Outcome::Done(Reply::Refused(Refused::WrongKind { .. }))), "{second:?}");
        assert!(matches!(third, Outcome::Refused(Fault { kind: FaultKind::Unusable(_), .. })), "{third:?}");
        assert!(matches!(fourth, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{fourth:?}");
        assert!(matches!(fifth, Outcome::Done(Reply::Inspect(seen)) if seen.fate == Some(Fate::Held)));
    }
    assert!(store.execute_all(&[], LONG).await.is_empty());
}

/// Holds that are told by their tokens are extended together, and all others by themselves.
#[tokio::test]
async fn extends_that_follow_one_another_are_one_call() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let lock = |n: u8| Lock::mutex(format!("job/{n}").parse().unwrap());
    let extend = |n: u8| Extend { claim: claim(n), lease_ms: 90_000, keep_record: false };
    for n in 0..100 {
        if n % 10 != 3 {
            let taken = store.execute(&lock(n), &take(&claim(n), None), LONG).await;
            assert!(matches!(taken, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{taken:?}");
        }
    }
    server.cli(&["DEL", "job/7"]).unwrap().ok().unwrap();
    server.cli(&["LPUSH", "job/7", "x"]).unwrap().ok().unwrap();
    let mut ops: Vec<_> = (0..100).map(|n| (lock(n), Op::Extend(extend(n)))).collect();
    let kept = Extend { keep_record: true, ..extend(80) };
    ops[80].1 = Op::Extend(kept);
    ops[90].0 = Lock::mutex("b}".parse().unwrap());
    for (flushed, requests) in [(false, 4), (true, 4)] {
        if flushed {
            server.cli(&["SCRIPT", "FLUSH"]).unwrap();
        }
        server.reset_counts().unwrap();
        let outcomes = store.execute_all(&ops, LONG).await;
        assert_eq!(outcomes.len(), ops.len());
        for (n, outcome) in outcomes.iter().enumerate() {
            let expected = match n {
                7 => Extended::NotHeld,
                90 => {
                    assert!(matches!(outcome, Outcome::Refused(Fault { kind: FaultKind::Unusable(_), .. })));
                    continue;
                }
                n if n % 10 == 3 => Extended::NotHeld,
                _ => Extended::Extended,
            };
            let right = matches!(outcome, Outcome::Done(Reply::Extend(extended)) if *extended == expected);
            assert!(right, "{n}: {outcome:?}");
        }
        // 64, those up to the one that keeps its record, that one, those behind it; the last of these once more behind
        // a name that is refused.
        let counts = server.command_counts().unwrap();
        let calls = counts["evalsha"];
        assert!(if flushed { calls > requests + 1 } else { calls == requests + 1 }, "{calls}");
    }
    let left_ms = server.cli(&["PTTL", "job/99"]).unwrap().integer().unwrap();
    assert!((30_001..=90_000).contains(&left_ms), "{left_ms}");
}

/// An uncontended lock is cheap: this many commands inside the scripts, and no more.
#[tokio::test]
async fn the_commands_of_an_uncontended_lock_are_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    let mut counted = Vec::new();
    for what in ["acquire", "extend", "release"] {
        server.reset_counts().unwrap();
        match what {
            "acquire" => granted(acquire(&store, &claim(2), Some(nonce(1))).await),
            "extend" => {
                let op = Op::Extend(Extend { claim: claim(2), lease_ms: 30_000, keep_record: false });
                drop(execute(&store, &op, LONG).await);
            }
            _ => assert_eq!(found(release(&store, &claim(2)).await), Fate::Held),
        }
        let mut counts = server.command_counts().unwrap();
        assert_eq!(counts.remove("evalsha"), Some(1), "one request");
        counts.retain(|name, _| !name.starts_with("config") && name != "info");
        counted.push(format!("{what}: {}", counts.values().sum::<u64>()));
    }
    assert_eq!(counted, ["acquire: 6", "extend: 2", "release: 4"]);
}

// Breaking and mending.

/// Failure row 40.
#[tokio::test]
async fn a_server_that_stands_still_costs_a_call_its_own_time_and_no_more() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.stop().unwrap();
    let fault = unknown(in_time(execute(&store, &take(&claim(2), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    // The silent connection is given up, and no other comes about.
    let fault = refused(in_time(execute(&store, &take(&claim(2), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    let outcomes = in_time(store.execute_all(&[(job(), take(&claim(2), None))], SHORT)).await;
    assert!(matches!(outcomes[..], [Outcome::Refused(_)]), "{outcomes:?}");
    let (_, post) = Box::new_post();
    let fault = in_time(store.open_mailbox(session(1), post, SHORT)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    server.cont().unwrap();
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
}

#[tokio::test]
async fn a_slow_call_does_not_cost_a_lively_connection() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    proxy.delay_replies(Duration::from_millis(80));
    for _ in 0..3 {
        let fault = unknown(execute(&store, &take(&claim(1), None), Duration::from_millis(20)).await);
        assert_eq!(fault.kind, FaultKind::TimedOut);
        granted(acquire(&store, &claim(1), None).await);
    }
    assert_eq!(proxy.accepted(), 1);
}

#[tokio::test]
async fn a_connection_that_died_after_the_answer_to_another_call_is_given_up() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    proxy.delay_replies(Duration::from_millis(80));
    proxy.swallow_requests(1, Then::Stall, |words| words.iter().any(|word| word == b"dead"));
    let claim = claim(1);
    let (lively, dead) = tokio::join!(
        acquire_of(&store, "lively", &claim),
        execute_on(&store, "dead", take(&claim, None), SHORT)
    );
    granted(lively);
    assert_eq!(unknown(dead).kind, FaultKind::TimedOut);
    granted(execute(&store, &take(&claim, None), SHORT).await);
}

/// Failure rows 1 and 3.
#[tokio::test]
async fn a_lost_reply_is_unknown_and_nothing_is_sent_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    proxy.reset_counts();
    proxy.swallow_replies(1, Then::Cut, command("EVALSHA"));
    let fault = unknown(acquire(&store, &claim(1), None).await);
    assert_eq!(fault.kind, FaultKind::Disconnected, "{fault}");
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(1).token()));
    assert_eq!(proxy.count("EVALSHA"), 1);
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(proxy.count("EVALSHA"), 2);
}

#[tokio::test]
async fn it_connects_again_after_a_restart() {
    let mut server = RedisServer::builder().appendonly().start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.restart().unwrap();
    // Whether the break was noticed before the call was sent is open.
    let outcome =
        execute(&store, &Op::Inspect(Inspect { claim: Some(claim(1)), in_full: false }), LONG).await;
    assert!(matches!(outcome, Outcome::Done(_) | Outcome::Unknown(_)), "{outcome:?}");
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
}

/// Failure row 39.
#[tokio::test]
async fn attempts_to_connect_are_shared_and_paced() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    // This one finds the connection broken.
    drop(acquire(&store, &claim(1), None).await);
    let before = proxy.accepted();
    let calls = (0..200).map(|_| execute_on(&store, "job", take(&claim(1), None), Duration::from_secs(2)));
    let outcomes = futures_util::future::join_all(calls).await;
    let attempts = proxy.accepted() - before;
    assert!((3..=12).contains(&attempts), "{attempts} attempts in two seconds, of 200 callers");
    assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Done(_))));
    proxy.refuse(false);
    granted(acquire(&store, &claim(1), None).await);
}

#[test]
fn it_goes_on_when_the_runtime_that_connected_has_ended() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime().block_on(connect(&server));
    let (_, post) = Box::new_post();
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let post = post.clone();
        outcomes.push(runtime().block_on(async {
            // The dead connection is found by the first call.
            drop(execute(&store, &Op::Inspect(Inspect { claim: None, in_full: false }), LONG).await);
            store.open_mailbox(session(1), post, LONG).await.unwrap();
            acquire(&store, &claim(1), None).await
        }));
    }
    outcomes.into_iter().for_each(granted);
}

#[test]
fn a_sibling_has_a_connection_of_its_own_and_its_own_runtime() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let here = runtime();
    let store = here.block_on(connect(&server));
    let sibling = store.sibling();
    let there = std::thread::spawn(move || {
        runtime().block_on(async move { sibling.execute(&job(), &take(&claim(1), None), LONG).await })
    });
    granted(there.join().unwrap());
    let outcome = here.block_on(acquire(&store, &claim(2), None));
    assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{outcome:?}");
}

#[tokio::test]
async fn a_store_that_is_dropped_leaves_no_connection() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let other = store.clone();
    drop(store);
    granted(acquire(&other, &claim(1), None).await);
    drop(other);
    eventually(|| connections(&server) == 0).await;
}

// Messages.

#[tokio::test]
async fn a_grant_arrives_in_the_mailbox() {
    let server = RedisServer::start().unwrap();
    let (holder, waiter) = (connect(&server).await, connect(&server).await);
    let (mut hear, post) = Box::new_post();
    waiter.open_mailbox(session(2), post, LONG).await.unwrap();
    granted(acquire(&holder, &claim(1), None).await);
    acquire(&waiter, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&holder, &claim(1)).await), Fate::Held);
    let wake = heard(&mut hear).await;
    let Some(Heard::Wake(wake)) = wake else { panic!("{wake:?}") };
    assert_eq!((wake.to(), wake.nonce()), (session(2), Some(nonce(7))));
    assert!(server.cli(&["GET", "job"]).unwrap().text() == Some(&*claim(2).token()));
    waiter.close_mailbox(session(2));
    eventually(|| server.cli(&["PUBSUB", "CHANNELS"]).unwrap().elements().is_empty()).await;
    // A mailbox on the connection that publishes.
    let (mut hear, post) = Box::new_post();
    holder.open_mailbox(session(3), post, LONG).await.unwrap();
    acquire(&holder, &claim(3), Some(nonce(8))).await;
    assert_eq!(found(release(&holder, &claim(2)).await), Fate::Held);
    assert!(matches!(heard(&mut hear).await, Some(Heard::Wake(wake)) if wake.nonce() == Some(nonce(8))));
}

/// Failure row 44.
#[tokio::test]
async fn what_is_no_grant_is_ignored() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(1), post, LONG).await.unwrap();
    let channel = format!("leasehold:mailbox:{}", session(1));
    let grant = format!("grant {} 17", nonce(3));
    for message in
        ["", "grant", "released", "grant x y", &format!("{grant} more"), "\u{0}", &"x".repeat(1 << 20)]
    {
        server.cli(&["PUBLISH", &channel, message]).unwrap().ok().unwrap();
    }
    server.cli(&["PUBLISH", "leasehold:mailbox:", &grant]).unwrap().ok().unwrap();
    // One that looks right is handed on: whether it is believed is for the nonce to say.
    server.cli(&["PUBLISH", &channel, &grant]).unwrap().ok().unwrap();
    assert!(matches!(heard(&mut hear).await, Some(Heard::Wake(wake)) if wake.fence().as_u64() == 17));
    assert!(hear.try_recv().is_err());
    granted(acquire(&store, &claim(1), None).await);
}

/// Failure row 21.
#[tokio::test]
async fn a_mailbox_is_open_again_after_a_restart_and_is_told() {
    let mut server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(1), post, LONG).await.unwrap();
    for round in 0..3 {
        server.restart().unwrap();
        let told = heard(&mut hear).await;
        assert!(matches!(told, Some(Heard::Renewed)), "{told:?}");
        let channel = format!("leasehold:mailbox:{}", session(1));
        let hearers = server.cli(&["PUBLISH", &channel, &format!("grant {} 1", nonce(round))]).unwrap();
        assert_eq!(hearers.integer(), Some(1));
        assert!(
            matches!(heard(&mut hear).await, Some(Heard::Wake(wake)) if wake.nonce() == Some(nonce(round)))
        );
    }
}

#[tokio::test]
async fn mailboxes_are_subscribed_before_anybody_calls() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let store = RedisStore::connect(proxy.url().parse().unwrap()).await.unwrap();
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(1), post, LONG).await.unwrap();
    proxy.hold(1, command("SUBSCRIBE"));
    proxy.cut();
    proxy.until_held(1, LONG).await.unwrap();
    let fault = refused(in_time(execute(&store, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    let _late = proxy.release_held();
    granted(acquire(&store, &claim(1), None).await);
    assert!(matches!(heard(&mut hear).await, Some(Heard::Renewed)));
}

// Sessions, and locks that are taken from others.

#[tokio::test]
async fn a_session_begins_beats_is_listed_and_ends() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(store.sessions(), SessionKeeping::ByBeat);
    assert_eq!(listed(&store).await, []);
    assert_eq!(beat(&store, 1, None, vec![]).await, Beaten::Lapsed);
    for n in [2, 1] {
        assert_eq!(beat(&store, n, Some("{\"host\": \"web-1\"}"), vec![]).await, Beaten::Alive);
    }
    // More than fit into one command of a script, and a store that has lost its scripts.
    let held: Vec<_> = (0..2_500).map(|n| Lock::mutex(format!("job: {n}").parse().unwrap())).collect();
    server.cli(&["SCRIPT", "FLUSH"]).unwrap().ok().unwrap();
    assert_eq!(beat(&store, 1, None, held.clone()).await, Beaten::Alive);
    let entries = listed(&store).await;
    assert_eq!(entries.iter().map(|entry| entry.session).collect::<Vec<_>>(), [session(1), session(2)]);
    let alive = entries[0].alive_ms.unwrap();
    assert!((50_000..=60_000).contains(&alive), "{alive}");
    assert_eq!(entries[0].about, "{\"host\": \"web-1\"}");
    assert_eq!((entries[0].held.len(), entries[1].held.len()), (2_500, 0));
    assert!(held.iter().all(|lock| entries[0].held.contains(lock)));
    // A member of the index that has no record, and what stands in its place, are none.
    server.cli(&["ZADD", "leasehold:{sessions}", "1", "what", "2", &session(7).to_string()]).unwrap();
    assert_eq!(attend(&store, &SessionOp::End(session(1))).await, SessionReply::End);
    let entries = listed(&store).await;
    assert_eq!(entries.iter().map(|entry| entry.session).collect::<Vec<_>>(), [session(2)]);
    assert_eq!(beat(&store, 1, None, vec![]).await, Beaten::Lapsed);
    for key in ["leasehold:{sessions}".to_owned(), format!("leasehold:{{sessions}}:{}", session(2))] {
        let ttl = server.cli(&["PTTL", &key]).unwrap().integer().unwrap();
        assert!((100_000..=125_000).contains(&ttl), "{key}: {ttl}");
    }
}

#[tokio::test]
async fn a_full_memory_lets_no_session_lapse() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(beat(&store, 1, Some("{}"), vec![]).await, Beaten::Alive);
    granted(acquire(&store, &claim(2), None).await);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    let begin = Beat { begin: Some("{}".to_owned()), ..alive(3) };
    let outcome = store.attend(&SessionOp::Beat(begin), LONG).await;
    assert!(
        matches!(&outcome, Outcome::Refused(fault) if fault.kind == FaultKind::OutOfMemory),
        "{outcome:?}"
    );
    let ends = |key: &str| server.cli(&["PTTL", key]).unwrap().integer().unwrap();
    let record = format!("leasehold:{{sessions}}:{}", session(1));
    server.cli(&["PEXPIRE", &record, "60000"]).unwrap().ok().unwrap();
    assert_eq!(beat(&store, 1, None, vec![job()]).await, Beaten::Alive);
    assert!(ends(&record) > 100_000);
    assert_eq!(listed(&store).await[0].held, [job()]);
    // Nor does it keep a lock with the dead.
    tokio::time::sleep(Duration::from_millis(2)).await;
    let evict = Op::Evict(Evict { dead: session(2), by: label() });
    let outcome = execute(&store, &evict, LONG).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::Evict(Evicted::Gone { hold: Some(_), .. }))),
        "{outcome:?}"
    );
    assert_eq!(ends("job"), -2);
}

#[tokio::test]
async fn what_is_no_session_of_ours_is_left_alone() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let record = format!("leasehold:{{sessions}}:{}", session(1));
    let begin = SessionOp::Beat(Beat { begin: Some("{}".to_owned()), ..alive(1) });
    let look = Op::Acquire(Acquire { ahead: Some(session(1)), ..ask(&claim(2), Some(nonce(1))) });
    for spoil in [&["SET", &record, "x"][..], &["HSET", &record, "format", "2"]] {
        server.cli(&["DEL", &record]).unwrap().ok().unwrap();
        server.cli(spoil).unwrap().ok().unwrap();
        let fault = match store.attend(&begin, LONG).await {
            Outcome::Refused(fault) => fault,
            other => panic!("{other:?}"),
        };
        assert!(matches!(fault.kind, FaultKind::Unusable(_)), "{fault}");
        // Of a session that cannot be looked at nobody knows that it is dead.
        let outcome = execute(&store, &look, LONG).await;
        assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{outcome:?}");
        let outcome = execute(&store, &Op::Evict(Evict { dead: session(1), by: label() }), LONG).await;
        assert!(!matches!(outcome, Outcome::Done(Reply::Evict(_))), "{outcome:?}");
    }
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(1).token()));
    // An index that is none lets a session live, unlisted.
    server.cli(&["DEL", &record]).unwrap().ok().unwrap();
    server.cli(&["SET", "leasehold:{sessions}", "x"]).unwrap().ok().unwrap();
    assert_eq!(attend(&store, &begin).await, SessionReply::Beat(Beaten::Alive));
    assert_eq!(beat(&store, 1, None, vec![]).await, Beaten::Alive);
    assert_eq!(attend(&store, &SessionOp::End(session(1))).await, SessionReply::End);
}

/// However many there are, and whatever else stands among them.
#[tokio::test]
async fn all_sessions_are_listed_but_what_is_none() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(beat(&store, 1, Some("{}"), vec![job()]).await, Beaten::Alive);
    let index = "leasehold:{sessions}";
    let mut connection = server.connect().unwrap();
    for n in 0..600_u32 {
        let mut bytes = [9; 12];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        let id = SessionId::from_random(bytes).to_string();
        let record = format!("{index}:{id}");
        connection.call(&["ZADD", index, "1762000000000", &id]).unwrap().ok().unwrap();
        match n % 3 {
            0 => drop(connection.call(&["SET", &record, "x"]).unwrap().ok().unwrap()),
            1 => {
                drop(connection.call(&["HSET", &record, "format", "1", "until", "1"]).unwrap().ok().unwrap());
            }
            _ => {}
        }
    }
    let listed = listed(&store).await;
    assert_eq!(listed.len(), 201);
    let ours = listed.iter().find(|entry| entry.session == session(1)).expect("ours is one of them");
    assert_eq!((ours.held.clone(), ours.alive_ms.is_some()), (vec![job()], true));
}

#[tokio::test]
async fn who_loses_a_lock_by_force_is_told() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(1), post, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    let seen = inspect(&store).await;
    let holder = seen.holder.unwrap();
    assert_eq!((holder.session, seen.stranger), (Some(session(1)), None));
    let fence = holder.fence.unwrap();
    let free = Op::Free(Free { seen: Seen::Hold(fence), by: label() });
    let outcome = execute(&store, &free, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::Free(Freed::Freed))), "{outcome:?}");
    let wake = heard(&mut hear).await;
    assert!(matches!(wake, Some(Heard::Wake(Wake::Freed { fence: told, .. })) if told == fence), "{wake:?}");
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Ended(Ended::Freed));
    // It is another's by now, who keeps it.
    let outcome = execute(&store, &free, LONG).await;
    let Outcome::Done(Reply::Free(Freed::Changed { holder: Some(holder) })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(holder.session, Some(session(2)));
    let audit = inspect(&store).await.audit;
    assert_eq!((audit.len(), audit[0].fence, audit[0].whose.clone()), (1, Some(fence), Some(label())));
    assert_eq!(found(release(&store, &claim(2)).await), Fate::Held);
}

#[tokio::test]
async fn a_strangers_lock_is_freed_as_it_was_seen() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["SET", "job", "theirs"]).unwrap().ok().unwrap();
    let seen = inspect(&store).await.stranger;
    assert_eq!(seen, Some(Fingerprint::of("theirs")));
    let free = Op::Free(Free { seen: Seen::Stranger(seen.unwrap()), by: label() });
    server.cli(&["SET", "job", "another's"]).unwrap().ok().unwrap();
    let outcome = execute(&store, &free, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::Free(Freed::Changed { holder: Some(_) }))), "{outcome:?}");
    server.cli(&["SET", "job", "theirs"]).unwrap().ok().unwrap();
    let outcome = execute(&store, &free, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::Free(Freed::Freed))), "{outcome:?}");
    let audit = inspect(&store).await.audit;
    assert_eq!((audit[0].fence, audit[0].whose.clone()), (None, None));
}

/// The list in docs/redis-layout.md.
#[tokio::test]
async fn the_permissions_that_the_docs_name_suffice() {
    const DOCS: &str = include_str!("../../../docs/redis-layout.md");
    let (_, list) = DOCS.split_once("ACL SETUSER locks on >password ").unwrap();
    let (list, _) = list.split_once("```").unwrap();
    let server = RedisServer::start().unwrap();
    let command: Vec<_> =
        ["ACL", "SETUSER", "locks", "on", ">password"].into_iter().chain(list.split_whitespace()).collect();
    server.cli(&command).unwrap().ok().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("locks").password("password");
    let store = RedisStore::connect(config).await.unwrap();
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(1), post, LONG).await.unwrap();
    for n in [1, 2] {
        assert_eq!(beat(&store, n, Some("{}"), vec![]).await, Beaten::Alive);
    }
    assert_eq!(beat(&store, 1, None, vec![job()]).await, Beaten::Alive);
    assert_eq!(listed(&store).await.len(), 2);
    let lock = Lock::mutex("jobs:1".parse().unwrap());
    let done = async |op: Op| match store.execute(&lock, &op, LONG).await {
        Outcome::Done(reply) => reply,
        other => panic!("{op:?}: {other:?}"),
    };
    let reply = done(take(&claim(1), Some(nonce(1)))).await;
    let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
    let together = [(Lock::mutex("jobs:3".parse().unwrap()), ask(&claim(4), None))];
    let shares = store.acquire_all(&together, LONG).await;
    assert!(matches!(shares, Some(Outcome::Done(shares)) if matches!(shares[..], [Share::Had(_)])));
    for keep_record in [false, true] {
        let extend = Extend { claim: claim(1), lease_ms: 40_000, keep_record };
        assert_eq!(done(Op::Extend(extend)).await, Reply::Extend(Extended::Extended));
    }
    done(take(&claim(2), Some(nonce(2)))).await;
    let free = Free { seen: Seen::Hold(fence), by: label() };
    assert_eq!(done(Op::Free(free)).await, Reply::Free(Freed::Freed));
    assert!(matches!(heard(&mut hear).await, Some(Heard::Wake(Wake::Freed { .. }))));
    assert_eq!(attend(&store, &SessionOp::End(session(2))).await, SessionReply::End);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let look = Acquire { ahead: Some(session(2)), ..ask(&claim(3), Some(nonce(3))) };
    let reply = done(Op::Acquire(look)).await;
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
    tokio::time::sleep(Duration::from_millis(2)).await;
    let reply = done(Op::Evict(Evict { dead: session(3), by: label() })).await;
    assert!(matches!(reply, Reply::Evict(Evicted::Gone { hold: Some(_), .. })), "{reply:?}");
    let reply = done(Op::Inspect(Inspect { claim: None, in_full: true })).await;
    assert!(matches!(reply, Reply::Inspect(seen) if seen.audit.len() == 3));
    a_reentrant_mutex_is_permitted(&store).await;
}

async fn a_reentrant_mutex_is_permitted(store: &RedisStore) {
    let lock = Lock::reentrant("jobs:2".parse().unwrap());
    let owned = |n: u8| Claim { value: OwnValue::new("ours").ok(), ..claim(n) };
    let release = |n: u8| Op::Release(Release { claim: owned(n), pass: Pass::Grant, next: None });
    let mut listening = store.listen(&lock, LONG).await.unwrap().unwrap();
    listening.heard().await;
    let take = |n: u8| Op::Acquire(Acquire { claim: owned(n), ..ask(&claim(n), Some(nonce(4))) });
    let extend = Op::Extend(Extend { claim: owned(1), lease_ms: 40_000, keep_record: true });
    let inspect = Op::Inspect(Inspect { claim: Some(owned(1)), in_full: true });
    for op in [take(1), take(2), extend, inspect, release(1), release(2)] {
        let outcome = store.execute(&lock, &op, LONG).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{op:?}: {outcome:?}");
    }
    tokio::time::timeout(LONG, listening.heard()).await.expect("it may publish");
}

/// What stands in the audit's place is no reason not to take a lock from the dead: it is a hint for people.
#[tokio::test]
async fn an_audit_that_cannot_be_written_keeps_no_lock() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.cli(&["LPUSH", "leasehold:{job}:audit:mutex:job", "x"]).unwrap().ok().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    let evict = Op::Evict(Evict { dead: session(1), by: label() });
    let outcome = execute(&store, &evict, LONG).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::Evict(Evicted::Gone { hold: Some(_), .. }))),
        "{outcome:?}"
    );
    assert_eq!(inspect(&store).await.audit.len(), 1);
}

// A connection of the user's.

#[tokio::test]
async fn a_connection_of_the_users_carries_messages_if_he_hands_them_on() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let (sender, pushes) = tokio::sync::broadcast::channel(16);
    let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let store = RedisStore::over(connection, "app:", Some(pushes)).unwrap();
    let (mut hear, post) = Box::new_post();
    store.open_mailbox(session(2), post, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    assert!(matches!(heard(&mut hear).await, Some(Heard::Wake(wake)) if wake.nonce() == Some(nonce(7))));
    assert_eq!(server.cli(&["GET", "app:job"]).unwrap().text(), Some(&*claim(2).token()));
    let outcome = store.sibling().execute(&job(), &take(&claim(2), None), LONG).await;
    granted(outcome);
    assert_eq!(connections(&server), 1);
}

#[tokio::test]
async fn a_connection_of_the_users_without_messages_works_by_looks() {
    let mut server = RedisServer::start().unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    assert!(RedisStore::over(connection.clone(), "{", None).is_err());
    let store = RedisStore::over(connection, "", None).unwrap();
    let (_, post) = Box::new_post();
    store.open_mailbox(session(2), post, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), Fate::Held);
    granted(acquire(&store, &claim(2), Some(nonce(8))).await);
    assert_eq!(beat(&store, 1, Some("{}"), vec![job()]).await, Beaten::Alive);
    assert_eq!(listed(&store).await[0].held, [job()]);
    server.kill().unwrap();
    assert_eq!(unknown(acquire(&store, &claim(3), None).await).kind, FaultKind::Disconnected);
}

// What the tests are made of.

/// What came to a mailbox.
#[derive(Debug)]
enum Heard {
    Wake(Wake),
    Renewed,
}

struct Box(mpsc::UnboundedSender<Heard>);

impl Box {
    fn new_post() -> (mpsc::UnboundedReceiver<Heard>, Arc<dyn Postbox>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (receiver, Arc::new(Self(sender)))
    }
}

impl Postbox for Box {
    fn deliver(&self, wake: Wake) {
        let _ = self.0.send(Heard::Wake(wake));
    }

    fn renewed(&self) {
        let _ = self.0.send(Heard::Renewed);
    }
}

async fn heard(hear: &mut mpsc::UnboundedReceiver<Heard>) -> Option<Heard> {
    tokio::time::timeout(LONG, hear.recv()).await.expect("nothing came")
}

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(server.url().parse().unwrap()).await.unwrap()
}

fn connections(server: &RedisServer) -> usize {
    let clients = server.cli(&["CLIENT", "LIST"]).unwrap();
    clients.text().unwrap().lines().filter(|client| !client.contains("cmd=client|list")).count()
}

async fn eventually(mut it_is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !it_is_so() {
        assert!(Instant::now() < deadline, "it does not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a call that has `SHORT`.
async fn in_time<T>(call: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let result = call.await;
    assert!(started.elapsed() < SHORT + LATE, "{:?}", started.elapsed());
    result
}

fn job() -> Lock {
    Lock::mutex("job".parse().unwrap())
}

fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

fn claim(n: u8) -> Claim {
    Claim::new(HoldId::from_random(session(n), [n; 16]))
}

fn nonce(n: u64) -> Nonce {
    Nonce::new(0, n)
}

fn take(claim: &Claim, nonce: Option<Nonce>) -> Op {
    Op::Acquire(ask(claim, nonce))
}

fn ask(claim: &Claim, nonce: Option<Nonce>) -> Acquire {
    let queue = nonce.map(|nonce| Enqueue { nonce, kept_ms: 20_000 });
    Acquire {
        claim: claim.clone(),
        lease_ms: 20_000,
        label: label(),
        queue,
        adopt_ms: None,
        // The store may not know the session, and is to take from it all the same: two milliseconds later.
        life: Life::Session { alive_ms: 0 },
        ahead: None,
    }
}

fn label() -> Label {
    Label::new("test").unwrap()
}

/// A beat of the `n`th session.
fn alive(n: u8) -> Beat {
    Beat { session: session(n), alive_ms: 60_000, begin: None, held: vec![], left: vec![] }
}

async fn beat(store: &RedisStore, n: u8, begin: Option<&str>, held: Vec<Lock>) -> Beaten {
    let begin = begin.map(str::to_owned);
    match attend(store, &SessionOp::Beat(Beat { begin, held, ..alive(n) })).await {
        SessionReply::Beat(beaten) => beaten,
        other => panic!("{other:?}"),
    }
}

async fn listed(store: &RedisStore) -> Vec<SessionEntry> {
    match attend(store, &SessionOp::List).await {
        SessionReply::List(entries) => entries,
        other => panic!("{other:?}"),
    }
}

async fn attend(store: &RedisStore, op: &SessionOp) -> SessionReply {
    match store.attend(op, LONG).await {
        Outcome::Done(reply) => reply,
        other => panic!("{other:?}"),
    }
}

async fn inspect(store: &RedisStore) -> leasehold_core::Inspection {
    match execute(store, &Op::Inspect(Inspect { claim: None, in_full: true }), LONG).await {
        Outcome::Done(Reply::Inspect(seen)) => seen,
        other => panic!("{other:?}"),
    }
}

async fn execute(store: &RedisStore, op: &Op, within: Duration) -> Outcome {
    store.execute(&job(), op, within).await
}

async fn execute_on(store: &RedisStore, name: &str, op: Op, within: Duration) -> Outcome {
    store.execute(&Lock::mutex(name.parse().unwrap()), &op, within).await
}

async fn acquire(store: &RedisStore, claim: &Claim, nonce: Option<Nonce>) -> Outcome {
    execute(store, &take(claim, nonce), LONG).await
}

async fn acquire_of(store: &RedisStore, name: &str, claim: &Claim) -> Outcome {
    execute_on(store, name, take(claim, None), LONG).await
}

async fn release(store: &RedisStore, claim: &Claim) -> Outcome {
    let op = Op::Release(Release { claim: claim.clone(), pass: Pass::Grant, next: None });
    execute(store, &op, LONG).await
}

#[track_caller]
fn granted(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{outcome:?}");
}

#[track_caller]
fn found(outcome: Outcome) -> Fate {
    let Outcome::Done(Reply::Release(Released { found, .. })) = outcome else { panic!("{outcome:?}") };
    found
}

#[track_caller]
fn refused(outcome: Outcome) -> Fault {
    let Outcome::Refused(fault) = outcome else { panic!("{outcome:?}") };
    fault
}

#[track_caller]
fn unknown(outcome: Outcome) -> Fault {
    let Outcome::Unknown(fault) = outcome else { panic!("{outcome:?}") };
    fault
}

/// A runtime without IO or timers cannot have a connection: that is told, and nothing hangs.
#[test]
fn a_runtime_without_io_or_timers_is_told_apart() {
    let server = RedisServer::start().unwrap();
    for (io, timers) in [(false, false), (true, false), (false, true)] {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        if io {
            builder.enable_io();
        }
        if timers {
            builder.enable_time();
        }
        let config = RedisConfig::from_url(&server.url()).unwrap();
        let fault = builder.build().unwrap().block_on(RedisStore::connect(config)).unwrap_err();
        assert!(fault.to_string().contains("enable_all"), "{fault}");
    }
}
