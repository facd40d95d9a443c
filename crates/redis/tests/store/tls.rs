//! TLS with certificates of both sides: what is trusted, and the error for each mismatch.

use crate::fixture::{LONG, SHORT, acquire, claim, found, granted, refused, release};
use leasehold::Client;
use leasehold_core::HoldStatus;
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{Fault, FaultKind, TlsFault};
use leasehold_testkit::{CertificateAuthority, RedisServer, RedisServerBuilder, ReservedPort, Warnings};
use std::fs;
use std::net::TcpListener;

const LOOPBACK: &str = "IP:127.0.0.1";
/// A validity period in the past.
const LAST_YEARS: (&str, &str) = ("20200101000000Z", "20200201000000Z");

/// A server that serves TLS beside plain text.
struct TlsServer {
    server: RedisServer,
    _port: ReservedPort,
}

/// A server with that certificate, and its TLS port. It requires a client certificate if `wants_one`.
fn server(authority: &CertificateAuthority, name: &str, wants_one: bool) -> (TlsServer, u16) {
    let port = ReservedPort::new().unwrap();
    let number = port.number();
    let settings = settings(authority, RedisServer::builder(), name, number);
    let wants_one = if wants_one { "yes" } else { "no" };
    let server = settings.config("tls-auth-clients", wants_one).start().unwrap();
    (TlsServer { server, _port: port }, number)
}

fn settings(
    authority: &CertificateAuthority,
    server: RedisServerBuilder,
    name: &str,
    port: u16,
) -> RedisServerBuilder {
    server.certificate(authority, name).config("tls-port", port.to_string())
}

fn by_tls(port: u16) -> RedisConfig {
    RedisConfig::from_url(&format!("rediss://127.0.0.1:{port}")).unwrap()
}

async fn fault(config: RedisConfig) -> Fault {
    tokio::time::timeout(LONG, RedisStore::connect(config))
        .await
        .expect("connecting ends without a timeout")
        .unwrap_err()
}

#[track_caller]
fn disagreement(fault: &Fault) -> &TlsFault {
    let FaultKind::Tls(what) = &fault.kind else { panic!("{fault}: {fault:?}") };
    what
}

/// Failure row 46.
#[tokio::test]
async fn tls_never_falls_back_to_plain_text() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url().replace("redis:", "rediss:")).unwrap();
    let config = config.password("hunter2").connect_timeout(SHORT);
    let fault = fault(config).await;
    assert_eq!(disagreement(&fault), &TlsFault::NoResponse, "{fault}");
    assert!(fault.to_string().contains("`tls-port`") && fault.is_transient(), "{fault}");
    assert_eq!(server.command_counts().unwrap().get("hello"), None, "nothing was understood");
}

#[tokio::test]
async fn tls_goes_to_servers_that_are_trusted_and_to_no_others() {
    let (authority, other) = (CertificateAuthority::new().unwrap(), CertificateAuthority::new().unwrap());
    authority.sign("leaf", LOOPBACK).unwrap();
    let (_server, port) = server(&authority, "leaf", false);
    for config in [by_tls(port), by_tls(port).root_certificate(other.read("root.pem").unwrap())] {
        let fault = fault(config).await;
        assert_eq!(disagreement(&fault), &TlsFault::UnknownIssuer, "{fault}");
        assert!(fault.to_string().contains("`?ca=FILE`") && !fault.is_transient(), "{fault}");
    }
    let both = [other.read("root.pem").unwrap(), authority.read("root.pem").unwrap()].concat();
    let ways = [
        by_tls(port).root_certificate(authority.read("root.pem").unwrap()),
        by_tls(port).root_certificate(both.clone()),
        by_tls(port).root_certificate(both).resp2(),
    ];
    for (n, config) in (1..).zip(ways) {
        let store = RedisStore::connect(config).await.unwrap();
        granted(acquire(&store, &claim(n), None).await);
        assert_eq!(found(release(&store, &claim(n)).await), HoldStatus::Held);
    }
}

#[tokio::test]
async fn errors_of_the_servers_certificate_are_reported() {
    let authority = CertificateAuthority::new().unwrap();
    authority.sign("elsewhere", "DNS:locks.example,IP:192.0.2.1").unwrap();
    authority.sign_for_period("old", LOOPBACK, LAST_YEARS).unwrap();
    authority.sign_for_period("early", LOOPBACK, ("20980101000000Z", "20990101000000Z")).unwrap();
    for (name, wanted, expected) in [
        ("elsewhere", TlsFault::WrongName(Vec::new()), "names (locks.example, 192.0.2.1): "),
        ("old", TlsFault::Expired, "its certificate has expired"),
        ("early", TlsFault::NotYetValid, "not valid yet"),
        // A self-signed certificate, as `openssl req -x509` makes it.
        ("root", TlsFault::BadCertificate(String::new()), "cannot be accepted: CaUsedAsEndEntity"),
    ] {
        let (_server, port) = server(&authority, name, false);
        let fault = fault(by_tls(port).root_certificate(authority.read("root.pem").unwrap())).await;
        let found = disagreement(&fault);
        assert_eq!(std::mem::discriminant(found), std::mem::discriminant(&wanted), "{fault}");
        assert!(fault.to_string().contains(expected) && !fault.is_transient(), "{fault}");
        assert!(fault.to_string().starts_with(&format!("handshake with 127.0.0.1:{port}: ")), "{fault}");
    }
}

#[tokio::test]
async fn a_client_shows_its_certificate_where_it_has_to() {
    let (authority, other) = (CertificateAuthority::new().unwrap(), CertificateAuthority::new().unwrap());
    for name in ["leaf", "ours"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    authority.sign_for_period("old", LOOPBACK, LAST_YEARS).unwrap();
    other.sign("ours", LOOPBACK).unwrap();
    let (_server, port) = server(&authority, "leaf", true);
    let config = || by_tls(port).root_certificate(authority.read("root.pem").unwrap());
    let with = |authority: &CertificateAuthority, name: &str| {
        let own = ["pem", "key"].map(|ext| authority.read(&format!("{name}.{ext}")).unwrap());
        let [own, key] = own;
        config().client_certificate(own, key)
    };
    // With TLS 1.3 the server reports this only after the handshake, in reply to the first command: every time, not
    // only now and then.
    for _ in 0..20 {
        let fault = fault(config()).await;
        assert_eq!(disagreement(&fault), &TlsFault::ClientCertificateMissing, "{fault}");
        assert!(fault.to_string().contains("`?cert=FILE&key=FILE`") && !fault.is_transient(), "{fault}");
    }
    let refused = fault(with(&other, "ours")).await;
    assert_eq!(disagreement(&refused), &TlsFault::ClientCertificateRefused, "{refused}");
    assert!(refused.to_string().contains("`tls-ca-cert-file`") && !refused.is_transient(), "{refused}");
    let old = fault(with(&authority, "old")).await;
    assert_eq!(disagreement(&old), &TlsFault::ClientCertificateExpired, "{old}");
    assert!(old.to_string().contains("client certificate has expired") && !old.is_transient(), "{old}");
    let store = RedisStore::connect(with(&authority, "ours")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
}

/// Both connections of a client, including the keeper's.
#[tokio::test]
async fn a_client_is_built_with_certificates() {
    let authority = CertificateAuthority::new().unwrap();
    for name in ["leaf", "ours"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    let (tls, port) = server(&authority, "leaf", true);
    let certified = |url: &str| {
        let client = Client::builder(url).root_certificate(authority.read("root.pem").unwrap());
        client.client_certificate(authority.read("ours.pem").unwrap(), authority.read("ours.key").unwrap())
    };
    let client = certified(&format!("rediss://127.0.0.1:{port}")).connect().await.unwrap();
    let guard = client.mutex("job").unwrap().acquire().await.unwrap();
    let connections = || {
        let clients = tls.server.cli(&["CLIENT", "LIST"]).unwrap();
        clients.text().unwrap().matches("name=leasehold").count()
    };
    let both = async {
        while connections() < 2 {
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    tokio::time::timeout(LONG, both).await.expect("the keeper connects when something is to be renewed");
    guard.release().await.unwrap();
    let plain = certified(&tls.server.url()).connect().await.unwrap_err();
    assert!(plain.to_string().contains("write `rediss`"), "{plain}");
    let memory = certified("memory:").connect().await.unwrap_err();
    assert!(memory.to_string().contains("no certificates"), "{memory}");
}

#[tokio::test]
async fn plain_text_to_a_server_that_requires_tls_is_reported() {
    let authority = CertificateAuthority::new().unwrap();
    authority.sign("leaf", LOOPBACK).unwrap();
    let (_server, port) = server(&authority, "leaf", false);
    let config = RedisConfig::from_url(&format!("redis://:hunter2@127.0.0.1:{port}")).unwrap();
    let fault = fault(config).await;
    assert_eq!(disagreement(&fault), &TlsFault::ConnectionClosed, "{fault}");
    assert!(fault.to_string().contains("write `rediss`") && fault.is_transient(), "{fault}");
    assert!(!format!("{fault} {fault:?}").contains("hunter2"));
}

/// A server that replies to TLS in plain text: a web server, say, or a Redis with too many clients.
#[tokio::test]
async fn a_server_that_answers_tls_in_plain_text_is_reported() {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        assert!(client.read(&mut [0; 4096]).unwrap() > 0);
        client.write_all(b"-ERR max number of clients reached\r\n").unwrap();
        let _ = client.read(&mut [0; 4096]);
    });
    let fault = fault(by_tls(port)).await;
    assert_eq!(disagreement(&fault), &TlsFault::NotTls, "{fault}");
    assert!(!fault.is_transient(), "{fault}");
    server.join().unwrap();
}

#[tokio::test]
async fn unusable_certificates_are_reported_and_no_key_is_shown() {
    let authority = CertificateAuthority::new().unwrap();
    for name in ["leaf", "ours"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    let (tls, port) = server(&authority, "leaf", true);
    let config = || by_tls(port).root_certificate(authority.read("root.pem").unwrap());
    let (own, key, another) = (
        authority.read("ours.pem").unwrap(),
        authority.read("ours.key").unwrap(),
        authority.read("leaf.key").unwrap(),
    );
    let files = |query: &str| {
        let query = query.replace("DIR", &authority.dir().display().to_string());
        RedisConfig::from_url(&format!("rediss://127.0.0.1:{port}?{query}")).unwrap()
    };
    fs::write(authority.path("empty"), "").unwrap();
    let plain = || RedisConfig::from_url(&tls.server.url()).unwrap();
    for (config, expected) in [
        (by_tls(port).root_certificate("no PEM"), "the root certificate is no PEM"),
        (by_tls(port).root_certificate(&*key), "the root certificate is no PEM"),
        (config().client_certificate("no PEM", &*key), "the client's certificate is no PEM"),
        (config().client_certificate(&*own, "no PEM"), "the client's key is no PEM"),
        (config().client_certificate(&*own, &*own), "the client's key is no PEM"),
        (config().client_certificate(&*own, &*another), "the client's key does not fit"),
        (files("ca=DIR/missing"), "the root certificate, `DIR/missing`, cannot be read: No such file"),
        (files("ca=DIR/empty"), "the root certificate, `DIR/empty`, is no PEM"),
        (files("ca=DIR/root.pem&cert=DIR/gone&key=DIR/ours.key"), "certificate, `DIR/gone`, cannot be read"),
        (files("ca=DIR/root.pem&cert=DIR/ours.pem&key=DIR"), "key, `DIR`, cannot be read"),
        (files("ca=DIR/root.pem&cert=DIR/ours.pem&key=DIR/leaf.key"), "`DIR/leaf.key`, does not fit"),
        (plain().root_certificate(authority.read("root.pem").unwrap()), "write `rediss`"),
        (plain().client_certificate(&*own, &*key), "write `rediss`"),
    ] {
        let expected = expected.replace("DIR", &authority.dir().display().to_string());
        let fault = fault(config.clone()).await;
        assert!(
            matches!(&fault.kind, FaultKind::Unusable(text) if text.contains(&expected)),
            "{expected}: {fault}"
        );
        assert!(!fault.is_transient());
        let shown = format!("{fault} {fault:?} {config:?}");
        for line in String::from_utf8_lossy(&[&*key, &*another, &*own].concat()).lines() {
            assert!(!shown.contains(line), "{shown}");
        }
    }
    assert_eq!(tls.server.command_counts().unwrap().get("hello"), None, "no handshake reached the server");
}

/// Files are read for each connection, so certificates renewed on disk are used without a restart.
#[tokio::test]
async fn certificates_that_are_renewed_on_the_disk_are_used() {
    let authority = CertificateAuthority::new().unwrap();
    for name in ["leaf", "ours"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    authority.sign_for_period("old", LOOPBACK, LAST_YEARS).unwrap();
    let copy = |from: &str| {
        for ext in ["pem", "key"] {
            fs::copy(authority.path(&format!("{from}.{ext}")), authority.path(&format!("used.{ext}")))
                .unwrap();
        }
    };
    copy("old");
    let (_server, port) = server(&authority, "leaf", true);
    let dir = authority.dir().display();
    let url = format!("rediss://127.0.0.1:{port}?ca={dir}/root.pem&cert={dir}/used.pem&key={dir}/used.key");
    let store = RedisStore::lazy(url.parse().unwrap());
    let fault = refused(acquire(&store, &claim(1), None).await);
    assert_eq!(disagreement(&fault), &TlsFault::ClientCertificateExpired, "{fault}");
    copy("ours");
    let renewed = async {
        loop {
            let outcome = acquire(&store, &claim(1), None).await;
            if matches!(outcome, leasehold_store::Outcome::Done(_)) {
                break granted(outcome);
            }
            tokio::time::sleep(SHORT / 10).await;
        }
    };
    tokio::time::timeout(LONG, renewed).await.expect("the next attempt reads the files again");
}

/// A file that is read while it is being written cannot be used: the connection uses what it contained before.
#[tokio::test]
async fn certificates_that_are_being_written_do_not_replace_usable_ones() {
    let authority = CertificateAuthority::new().unwrap();
    for name in ["leaf", "ours", "next"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    let (_server, port) = server(&authority, "leaf", true);
    let write = |name: &str, bytes: &[u8]| fs::write(authority.path(name), bytes).unwrap();
    let [own, key, next, next_key, root] = ["ours.pem", "ours.key", "next.pem", "next.key", "root.pem"]
        .map(|name| authority.read(name).unwrap());
    let reset = || {
        write("used.pem", &own);
        write("used.key", &key);
        write("ca.pem", &root);
    };
    reset();
    let dir = authority.dir().display();
    let url = format!("rediss://127.0.0.1:{port}?ca={dir}/ca.pem&cert={dir}/used.pem&key={dir}/used.key");
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(config.clone()).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    let warnings = Warnings::record();
    let mut expected = 0;
    for (name, bytes) in [
        ("used.pem", &own[..own.len() / 2]),
        ("used.pem", b""),
        // The certificate is written, and the key is not yet.
        ("used.pem", &*next),
        ("used.key", &key[..key.len() / 2]),
        ("ca.pem", b"half"),
    ] {
        write(name, bytes);
        let other = RedisStore::connect(config.clone()).await.expect(name);
        drop(other);
        expected += 1;
        assert_eq!(warnings.containing("that could be used before").len(), expected, "{name}");
        // A configuration that has never used them fails.
        let unusable = fault(url.parse().unwrap()).await;
        assert!(matches!(unusable.kind, FaultKind::Unusable(_)), "{name}: {unusable}");
        reset();
    }
    for line in String::from_utf8_lossy(&key).lines() {
        assert!(warnings.containing(line).is_empty());
    }
    // Once both files are written, the next connection uses them, and no earlier ones.
    write("used.pem", &next);
    write("used.key", &next_key);
    let other = RedisStore::connect(config.clone()).await.unwrap();
    granted(crate::fixture::acquire_of(&other, "other", &claim(2)).await);
    assert_eq!(warnings.containing("that could be used before").len(), expected);
    let replaced = config.client_certificate("no PEM", &*key);
    assert!(matches!(fault(replaced).await.kind, FaultKind::Unusable(_)), "others are no substitute");
}

/// Sentinels are verified and authenticated like the server.
#[tokio::test]
async fn sentinels_are_shown_the_certificate_too() {
    let authority = CertificateAuthority::new().unwrap();
    for name in ["leaf", "ours"] {
        authority.sign(name, LOOPBACK).unwrap();
    }
    let (_server, port) = server(&authority, "leaf", true);
    let reserved = ReservedPort::new().unwrap();
    let theirs = reserved.number();
    let sentinel = settings(&authority, RedisServer::builder().sentinel(), "leaf", theirs);
    let sentinel = sentinel
        .config("tls-replication", "yes")
        .config("sentinel", format!("monitor main 127.0.0.1 {port} 1"));
    let _sentinel = sentinel.start().unwrap();
    let dir = authority.dir().display();
    let url = format!("rediss+sentinel://127.0.0.1:{theirs}/main?ca={dir}/root.pem");
    let fault = fault(url.parse().unwrap()).await;
    assert_eq!(disagreement(&fault), &TlsFault::ClientCertificateMissing, "{fault}");
    assert!(fault.to_string().contains(&format!("the Sentinel 127.0.0.1:{theirs}")), "{fault}");
    let url = format!("{url}&cert={dir}/ours.pem&key={dir}/ours.key");
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
}
