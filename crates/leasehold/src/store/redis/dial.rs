//! Making one connection: dialled, logged in, checked, its scripts loaded, its mailboxes subscribed.
//!
//! It is handed out only when all of that is done.

use super::config::{Address, RedisConfig, Site};
use super::connector::Connector;
use super::hazard;
use super::mailbox::Mailboxes;
use super::sentinel::Sighting;
use super::verdict::{judge, unconnected};
use super::{script, version};
use crate::store::{Fault, FaultKind, Phase};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, Pipeline, PushInfo, RedisError, RedisResult,
    TlsCertificates,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::convert::Infallible;
use std::sync::Arc;
use tokio_util::task::AbortOnDropHandle;

/// A connection that is ready.
#[derive(Debug, Clone)]
pub(super) struct Dialled {
    pub(super) conn: MultiplexedConnection,
    /// Where Sentinels have seen the server, if it was they who said so.
    pub(super) sighting: Option<Sighting>,
    _driver: Driver,
}

/// A connection to somebody who let us in.
pub(super) struct Opened {
    pub(super) conn: MultiplexedConnection,
    driver: Driver,
}

/// Moves the bytes of a stream that the user has opened, until the last clone is gone. The client library does so by
/// itself for those that it opens.
type Driver = Option<Arc<AbortOnDropHandle<()>>>;

/// Makes a connection that hands its messages to `on_push`, within the time that one attempt has. A `hint` is where
/// Sentinels have seen the server lately.
pub(super) async fn dial(
    config: &RedisConfig,
    node: &Arc<str>,
    mailboxes: &Mailboxes,
    hint: Option<Sighting>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Dialled, Fault> {
    let attempt = async {
        let mut dialled = match config.site() {
            Site::At(address) => connect(config, address, None, node, on_push).await?,
            Site::Named(group) => {
                let sighting = group.find(config, hint).await?;
                let (address, node) =
                    (sighting.address.clone(), format!("{} ({node})", sighting.address).into());
                connect(config, &address, Some(sighting), &node, on_push).await?
            }
        };
        subscribe(&mut dialled.conn, node, mailboxes).await?;
        Ok(dialled)
    };
    match tokio::time::timeout(config.patience(), attempt).await {
        Ok(result) => result,
        Err(_) => Err(Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(node))),
    }
}

/// Connects to the server at an address, and greets it.
async fn connect(
    config: &RedisConfig,
    address: &Address,
    sighting: Option<Sighting>,
    node: &Arc<str>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Dialled, Fault> {
    let unconnected = |error| unconnected(error, address.is_tls(), node);
    let info = config.connection_info(address).map_err(unconnected)?;
    let Opened { mut conn, driver } = open(config, address, info, on_push).await.map_err(unconnected)?;
    let info = greet(&mut conn, node).await?;
    judge_server(&info, config, sighting.is_some(), node)
        .map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    Ok(Dialled { conn, sighting, _driver: driver })
}

/// Opens a connection to an address, and logs in.
pub(super) async fn open(
    config: &RedisConfig,
    address: &Address,
    info: ConnectionInfo,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> RedisResult<Opened> {
    let push = move |push| {
        on_push(push);
        Ok::<(), Infallible>(())
    };
    // The time limits are ours: the client library's would end a call whose reply is still to come.
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(push);
    if let Some(connector) = config.opener() {
        return open_through(connector, address, &info, settings).await;
    }
    let client = client(config, address, info)?;
    let conn = client.get_multiplexed_async_connection_with_config(&settings).await?;
    Ok(Opened { conn, driver: None })
}

/// The same over a stream of the user's.
async fn open_through(
    connector: &Connector,
    address: &Address,
    info: &ConnectionInfo,
    settings: AsyncConnectionConfig,
) -> RedisResult<Opened> {
    if address.is_tls() {
        let text = "a connector brings its own TLS: write `redis` in place of `rediss` with it";
        return Err((ErrorKind::InvalidClientConfig, text).into());
    }
    let stream = connector.open(address.to_string()).await?;
    let (conn, driver) =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await?;
    let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver)));
    Ok(Opened { conn, driver: Some(driver) })
}

fn client(config: &RedisConfig, address: &Address, info: ConnectionInfo) -> RedisResult<Client> {
    if !address.is_tls() {
        return Client::open(info);
    }
    // The TLS library panics where two providers of cryptography are compiled in and the program has chosen none; if
    // it has chosen one meanwhile, that one stays.
    if CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let Some(root) = config.trusted_root() else { return Client::open(info) };
    // The client library would trust nobody, and say of each server that it is unknown.
    if !matches!(CertificateDer::pem_slice_iter(root).next(), Some(Ok(_))) {
        return Err((ErrorKind::InvalidClientConfig, "the root certificate is no PEM").into());
    }
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(root.to_vec()) })
}

/// Names the connection, loads the scripts, and gives what the server says of itself.
async fn greet(conn: &mut MultiplexedConnection, node: &Arc<str>) -> Result<String, Fault> {
    let mut greeting = Pipeline::with_capacity(20);
    greeting.cmd("CLIENT").arg("SETNAME").arg("leasehold");
    hazard::ask(&mut greeting);
    script::load_usual(&mut greeting);
    let replies = conn.send_packed_commands(&greeting, 0, greeting.len()).await;
    let replies = replies.map_err(|error| broken(error, node))?;
    // A user may be forbidden to name connections, to ask for the version or to load scripts: if that matters, the
    // first operation says so.
    let told = replies.get(1..=hazard::ASKED).unwrap_or_default();
    hazard::read(told).map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))
}

/// Checks the version of a server and its hazards, and whether it is the `primary` that others say it is.
fn judge_server(info: &str, config: &RedisConfig, primary: bool, node: &Arc<str>) -> Result<(), FaultKind> {
    version::check(info)?;
    let hazards = hazard::judge(info);
    if let Some(refusal) = hazard::refusal(&hazards, primary, config.is_strict()) {
        return Err(refusal);
    }
    config.told().tell(node, &hazards);
    Ok(())
}

async fn subscribe(
    conn: &mut MultiplexedConnection,
    node: &Arc<str>,
    mailboxes: &Mailboxes,
) -> Result<(), Fault> {
    let open = mailboxes.all();
    if !open.is_empty() {
        let channels: Vec<_> = open.iter().map(|(session, _)| mailboxes.channel(*session)).collect();
        conn.subscribe(channels).await.map_err(|error| unsubscribed(error, node))?;
    }
    let others = mailboxes.others().all();
    if others.is_empty() {
        return Ok(());
    }
    match conn.subscribe(others).await {
        // A user that may not listen to others has his waiters look by themselves.
        Err(error) if error.clone().into_server_errors().is_none() => Err(unsubscribed(error, node)),
        _ => Ok(()),
    }
}

/// The fault of a subscription that was not made.
pub(super) fn unsubscribed(error: RedisError, node: &Arc<str>) -> Fault {
    let refusal = error.clone().into_server_errors().and_then(|errors| errors.first().cloned());
    match refusal {
        Some((_, refusal)) => Fault::new(judge(&refusal).kind, Phase::Handshake, Arc::clone(node)),
        None => broken(error, node),
    }
}

fn broken(error: RedisError, node: &Arc<str>) -> Fault {
    Fault::new(FaultKind::Disconnected, Phase::Handshake, Arc::clone(node)).because(error)
}
