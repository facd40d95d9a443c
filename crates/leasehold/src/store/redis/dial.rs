//! Making one connection: dialled, logged in, checked, its scripts loaded, its mailboxes subscribed.
//!
//! It is handed out only when all of that is done.

use super::config::RedisConfig;
use super::connector::Connector;
use super::mailbox::Mailboxes;
use super::verdict::{judge, unconnected};
use super::{script, version};
use crate::store::{Fault, FaultKind, Phase};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, Pipeline, PushInfo, RedisError, RedisResult, TlsCertificates,
    Value,
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
    /// Moves the bytes of a stream that the user has opened, until the last clone is gone. The client library does so
    /// by itself for those that it opens.
    _driver: Option<Arc<AbortOnDropHandle<()>>>,
}

/// Makes a connection that hands its messages to `on_push`, within the time that one attempt has.
pub(super) async fn dial(
    config: &RedisConfig,
    node: &Arc<str>,
    mailboxes: &Mailboxes,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Dialled, Fault> {
    let attempt = async {
        let mut dialled = connect(config, node, on_push).await?;
        greet(&mut dialled.conn, node).await?;
        subscribe(&mut dialled.conn, node, mailboxes).await?;
        Ok(dialled)
    };
    match tokio::time::timeout(config.patience(), attempt).await {
        Ok(result) => result,
        Err(_) => Err(Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(node))),
    }
}

async fn connect(
    config: &RedisConfig,
    node: &Arc<str>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Dialled, Fault> {
    let unconnected = |error| unconnected(error, config.is_tls(), node);
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
        return connect_through(connector, config, settings).await.map_err(unconnected);
    }
    let client = client(config).map_err(unconnected)?;
    let conn = client.get_multiplexed_async_connection_with_config(&settings).await.map_err(unconnected)?;
    Ok(Dialled { conn, _driver: None })
}

/// Connects over a stream of the user's.
async fn connect_through(
    connector: &Connector,
    config: &RedisConfig,
    settings: AsyncConnectionConfig,
) -> RedisResult<Dialled> {
    if config.is_tls() {
        let text = "a connector brings its own TLS: write `redis://` with it";
        return Err((ErrorKind::InvalidClientConfig, text).into());
    }
    let info = config.connection_info()?;
    let stream = connector.open(config.address()).await?;
    let (conn, driver) =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await?;
    let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver)));
    Ok(Dialled { conn, _driver: Some(driver) })
}

fn client(config: &RedisConfig) -> RedisResult<Client> {
    let info = config.connection_info()?;
    if !config.is_tls() {
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

/// Names the connection, checks the server's version, and loads the scripts.
async fn greet(conn: &mut MultiplexedConnection, node: &Arc<str>) -> Result<(), Fault> {
    let mut greeting = Pipeline::with_capacity(6);
    greeting.cmd("CLIENT").arg("SETNAME").arg("leasehold");
    greeting.cmd("INFO").arg("server");
    script::load_usual(&mut greeting);
    let replies = conn.send_packed_commands(&greeting, 0, greeting.len()).await;
    let replies = replies.map_err(|error| broken(error, node))?;
    // A user may be forbidden to name connections, to ask for the version or to load scripts: if that matters, the
    // first operation says so.
    match replies.get(1) {
        Some(Value::VerbatimString { text, .. }) => version::check(text),
        Some(Value::BulkString(bytes)) => version::check(&String::from_utf8_lossy(bytes)),
        Some(Value::ServerError(error)) if error.code() == "NOAUTH" => Err(FaultKind::Unauthenticated),
        _ => Ok(()),
    }
    .map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))
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
