//! Credentials from a provider, which is asked for each connection.

use crate::fixture::{LONG, SHORT, acquire, acquire_of, claim, eventually, execute, granted, refused, take};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{Credentials, CredentialsFault, CredentialsProvider, Fault, FaultKind, Shards};
use leasehold_testkit::{Cluster, Quorum, RedisServer, Sentinels};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);

type BoxError = Box<dyn Error + Send + Sync>;

/// A provider whose password the test changes.
#[derive(Clone, Default)]
struct Vault(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    password: String,
    user: Option<String>,
    /// How often it was asked about each server.
    asked: BTreeMap<String, usize>,
}

impl Vault {
    fn with(password: &str) -> Self {
        let vault = Self::default();
        vault.set(password);
        vault
    }

    fn set(&self, password: &str) {
        password.clone_into(&mut self.0.lock().unwrap().password);
    }

    fn asked(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().asked.clone()
    }

    fn total(&self) -> usize {
        self.asked().values().sum()
    }
}

impl CredentialsProvider for Vault {
    fn credentials<'a>(
        &'a self,
        server: &'a str,
    ) -> futures_util::future::BoxFuture<'a, Result<Credentials, BoxError>> {
        Box::pin(async move {
            let mut inner = self.0.lock().unwrap();
            *inner.asked.entry(server.to_owned()).or_default() += 1;
            let credentials = Credentials::new(&*inner.password);
            Ok(match &inner.user {
                Some(user) => credentials.with_user(user),
                None => credentials,
            })
        })
    }
}

/// A server with these users, besides the default one without a password.
fn server_with(users: &[(&str, &str)]) -> RedisServer {
    let server = RedisServer::start().unwrap();
    for (user, password) in users {
        allow(&server, user, password);
    }
    server
}

/// Gives the user this password alone.
fn allow(server: &RedisServer, user: &str, password: &str) {
    let password = format!(">{password}");
    let rules = ["ACL", "SETUSER", user, "reset", "on", &password, "~*", "&*", "+@all"];
    server.cli(&rules).unwrap().ok().unwrap();
}

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig::from_url(&server.url()).unwrap().username("locks")
}

fn address(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

async fn fault(config: RedisConfig) -> Fault {
    tokio::time::timeout(LONG, RedisStore::connect(config)).await.expect("it ends").unwrap_err()
}

#[track_caller]
fn check(fault: &Fault, expected: &CredentialsFault) {
    assert_eq!(fault.kind, FaultKind::Credentials(expected.clone()), "{fault}");
    assert!(fault.is_transient() && !format!("{fault} {fault:?}").contains("hunter2"), "{fault:?}");
}

#[tokio::test]
async fn the_provider_is_asked_for_each_connection() {
    let server = server_with(&[("locks", "hunter2"), ("others", "hunter2")]);
    let vault = Vault::with("hunter2");
    let config = config(&server).credentials(vault.clone());
    assert!(!format!("{config:?}").contains("hunter2"));
    let store = RedisStore::connect(config.clone()).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(vault.asked(), [(address(&server), 1)].into());
    let clients = || server.cli(&["CLIENT", "LIST"]).unwrap().text().unwrap().to_owned();
    assert!(clients().contains("user=locks"), "{}", clients());
    // An open connection stays as it is. The next one needs the new password.
    allow(&server, "locks", "hunter2-new");
    vault.set("hunter2-new");
    assert_eq!(vault.total(), 1);
    server.cli(&["CLIENT", "KILL", "USER", "locks"]).unwrap();
    eventually(|| vault.total() == 2).await;
    granted(acquire_of(&store, "other", &claim(2)).await);
    assert_eq!(vault.total(), 2);
    // The user of the answer takes precedence.
    vault.0.lock().unwrap().user = Some("others".to_owned());
    vault.set("hunter2");
    let other = RedisStore::connect(config).await.unwrap();
    assert!(clients().contains("user=others"), "{}", clients());
    drop(other);
}

async fn panics() -> Result<Credentials, BoxError> {
    panic!("a defect of the provider")
}

fn panics_at_once() -> std::future::Ready<Result<Credentials, BoxError>> {
    panic!("a defect of the provider")
}

#[tokio::test]
async fn a_provider_that_gives_nothing_is_a_transient_fault_with_its_reason() {
    let server = server_with(&[("locks", "hunter2")]);
    let fails = || async { Err::<Credentials, _>(io::Error::other("the vault is sealed")) };
    let failed = fault(config(&server).credentials(fails)).await;
    check(&failed, &CredentialsFault::Failed);
    assert_eq!(failed.source().unwrap().to_string(), "the vault is sealed");
    assert_eq!(*failed.node, *address(&server));

    check(&fault(config(&server).credentials(panics)).await, &CredentialsFault::Panicked);
    check(&fault(config(&server).credentials(panics_at_once)).await, &CredentialsFault::Panicked);

    let never = || std::future::pending::<Result<Credentials, BoxError>>();
    let within = 60 * MS;
    let late = config(&server).credentials(never).credentials_timeout(within);
    check(&fault(late).await, &CredentialsFault::TimedOut { within });
    assert_eq!(server.command_counts().unwrap().get("hello"), None, "no handshake without credentials");
}

#[tokio::test]
async fn a_call_whose_time_is_over_names_the_provider_that_has_not_answered() {
    let server = server_with(&[]);
    let never = || std::future::pending::<Result<Credentials, BoxError>>();
    let store = RedisStore::lazy(config(&server).credentials(never));
    let fault = refused(execute(&store, &take(&claim(1), None), SHORT).await);
    check(&fault, &CredentialsFault::Pending);
}

/// A provider that is slow takes no time of the attempt, and none that blocks its thread stops other tasks of the runtime.
#[tokio::test]
async fn the_time_of_the_provider_is_not_that_of_the_attempt() {
    let server = server_with(&[("locks", "hunter2")]);
    let blocks = || async {
        std::thread::sleep(SHORT);
        Ok::<_, BoxError>(Credentials::new("hunter2"))
    };
    let mut ticks = 0;
    let connecting =
        RedisStore::connect(config(&server).credentials(blocks).connect_timeout(SHORT / 2 + SHORT / 4));
    tokio::pin!(connecting);
    let store = loop {
        tokio::select! {
            store = &mut connecting => break store.unwrap(),
            () = tokio::time::sleep(10 * MS) => ticks += 1,
        }
    };
    assert!(ticks > 5, "{ticks} ticks");
    granted(acquire(&store, &claim(1), None).await);
}

/// A rotation may happen between the answer and its use.
#[tokio::test]
async fn rejected_credentials_are_asked_for_again() {
    let server = server_with(&[("locks", "hunter2-new")]);
    let vault = Vault::with("hunter2");
    let rotate = async {
        while vault.total() < 2 {
            tokio::time::sleep(MS).await;
        }
        vault.set("hunter2-new");
    };
    let connecting = RedisStore::connect(config(&server).credentials(vault.clone()).connect_timeout(LONG));
    let (store, ()) = tokio::join!(connecting, rotate);
    granted(acquire(&store.unwrap(), &claim(1), None).await);
    // Until the limit.
    vault.set("hunter2-wrong");
    let (before, start) = (vault.total(), Instant::now());
    let config = config(&server).credentials(vault.clone()).connect_timeout(2 * SHORT);
    check(&fault(config.clone()).await, &CredentialsFault::Rejected);
    assert!(vault.total() > before + 1 && start.elapsed() >= SHORT, "{:?}", start.elapsed());
    // A call waits for better ones, too.
    let store = RedisStore::lazy(config);
    let rotate = async {
        tokio::time::sleep(SHORT).await;
        vault.set("hunter2-new");
    };
    let claim = claim(2);
    let (outcome, ()) = tokio::join!(acquire_of(&store, "other", &claim), rotate);
    granted(outcome);
}

/// A provider that fails once is asked again, by the task that reconnects: it lives on after a panic.
#[tokio::test]
async fn a_reconnection_outlives_failures_of_the_provider() {
    let server = server_with(&[("locks", "hunter2")]);
    let asked = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&asked);
    let provider = move || {
        let number = {
            let mut asked = counted.lock().unwrap();
            *asked += 1;
            *asked
        };
        async move {
            match number {
                2 => Err("the vault is sealed".into()),
                3 => panic!("a defect of the provider"),
                4 => std::future::pending().await,
                5 => Ok(Credentials::new("wrong")),
                _ => Ok::<_, BoxError>(Credentials::new("hunter2")),
            }
        }
    };
    let config = config(&server).credentials(provider).credentials_timeout(50 * MS);
    let store = RedisStore::connect(config).await.unwrap();
    server.cli(&["CLIENT", "KILL", "USER", "locks"]).unwrap();
    eventually(|| *asked.lock().unwrap() > 1).await;
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(*asked.lock().unwrap(), 6);
}

#[tokio::test]
async fn a_password_and_a_provider_are_one_too_many() {
    let server = server_with(&[]);
    let vault = Vault::with("hunter2");
    let fault = fault(config(&server).password("hunter2").credentials(vault.clone())).await;
    let FaultKind::Unusable(text) = &fault.kind else { panic!("{fault}") };
    assert!(text.contains("leave out one of them") && !fault.is_transient(), "{fault}");
    assert_eq!(vault.total(), 0);
}

/// The attempt is over, and so is the provider's future.
#[tokio::test]
async fn a_provider_that_is_late_is_dropped() {
    struct Dropped(Arc<Mutex<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = true;
        }
    }
    let server = server_with(&[]);
    let is_dropped = Arc::new(Mutex::new(false));
    let flag = Arc::clone(&is_dropped);
    let provider = move || {
        let dropped = Dropped(Arc::clone(&flag));
        async move {
            let _dropped = dropped;
            std::future::pending::<Result<Credentials, BoxError>>().await
        }
    };
    let store = RedisStore::lazy(config(&server).credentials(provider));
    refused(execute(&store, &take(&claim(1), None), 50 * MS).await);
    assert!(!*is_dropped.lock().unwrap());
    drop(store);
    eventually(|| *is_dropped.lock().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_quorum_and_every_shard_is_asked_about() {
    let settings = RedisServer::builder().password("hunter2");
    let vault = Vault::with("hunter2");
    let quorum = Quorum::with(3, &settings).unwrap();
    let url = format!("{}?min_uptime=0s", quorum.url());
    let with_vault = |config: RedisConfig| Ok::<_, BoxError>(config.credentials(vault.clone()));
    let config = url.parse::<leasehold_redis::QuorumConfig>().unwrap().try_map(with_vault).unwrap();
    let store = RedisStore::connect_quorum(config).await.unwrap();
    eventually(|| vault.asked().len() == 3).await;
    drop(store);

    let vault = Vault::with("hunter2");
    let servers =
        quorum.iter().map(|server| RedisConfig::from_url(&server.url()).unwrap().credentials(vault.clone()));
    let shards: Shards = RedisStore::connect_shards(servers).await.unwrap();
    assert_eq!(vault.asked().len(), 3);
    drop(shards);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_is_asked_about() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).unwrap();
    for node in 0..3 {
        allow(cluster.node(node), "locks", "hunter2");
    }
    let vault = Vault::with("hunter2");
    let config = RedisConfig::from_url(&cluster.url()).unwrap().username("locks").credentials(vault.clone());
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(vault.asked().len(), 3, "{:?}", vault.asked());
}

/// Sentinels have credentials of their own, which only the URL has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_not_asked_about() {
    let sentinels = tokio::task::block_in_place(|| Sentinels::start(0)).unwrap();
    allow(sentinels.primary().unwrap(), "locks", "hunter2");
    let vault = Vault::with("hunter2");
    let config =
        RedisConfig::from_url(&sentinels.url()).unwrap().username("locks").credentials(vault.clone());
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(vault.asked(), [(address(sentinels.primary().unwrap()), 1)].into());
}
