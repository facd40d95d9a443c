//! Opening a connection: the stream (of the user's connector, with TLS, or plain) and the login.

use super::bounded::{BoundedStream, Confirmations};
use super::messages::{self, Messages};
use crate::config::RedisConfig;
use crate::config::address::{Address, Protocol};
use crate::config::connector::BoxStream;
use crate::config::tls;
use crate::error_map::classify;
use leasehold_store::{Fault, FaultKind, Phase};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, ConnectionInfo, ErrorKind, PushInfo, RedisError, RedisResult};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

/// A connection that is logged in.
pub(crate) struct Opened {
    pub(crate) conn: MultiplexedConnection,
    pub(crate) driver: Driver,
}

/// The task that reads and writes a stream, until the last clone is dropped.
pub(crate) type Driver = Arc<AbortOnDropHandle<()>>;

/// Whether the server may end subscriptions without a request, as a node of a cluster does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndsSubscriptions {
    Never,
    MayDo,
}

/// Opens a connection to an address, and logs in. A TLS handshake takes a little less than `within`; the caller limits
/// the rest.
pub(crate) async fn open(
    config: &RedisConfig,
    address: &Address,
    info: &ConnectionInfo,
    within: Duration,
) -> RedisResult<Opened> {
    let stream = stream(config, address, within).await?;
    log_in(stream, info, settings(), Some(Arc::default()), || {}).await
}

/// Same as [`open`], and also receives messages.
pub(crate) async fn open_with_messages(
    config: &RedisConfig,
    address: &Address,
    info: &ConnectionInfo,
    within: Duration,
    ends: EndsSubscriptions,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> RedisResult<(Opened, Messages)> {
    if config.protocol() == Protocol::Resp2 {
        return open_both(config, address, info, within, Arc::new(on_push)).await;
    }
    let push = move |push| {
        on_push(push);
        Ok::<(), Infallible>(())
    };
    let confirmations = Arc::<Confirmations>::default();
    let expected = (ends == EndsSubscriptions::Never).then(|| Arc::clone(&confirmations));
    let stream = stream(config, address, within).await?;
    let opened = log_in(stream, info, settings().set_push_sender(push), expected, || {}).await?;
    let messages = Messages::Shared(opened.conn.clone(), confirmations);
    Ok((opened, messages))
}

/// Opens one connection for calls and one for messages, which RESP2 requires.
async fn open_both(
    config: &RedisConfig,
    address: &Address,
    info: &ConnectionInfo,
    within: Duration,
    on_push: Arc<impl Fn(PushInfo) + Send + Sync + 'static>,
) -> RedisResult<(Opened, Messages)> {
    let calls = stream(config, address, within).await?;
    let on_end = {
        let on_push = Arc::clone(&on_push);
        move || on_push(messages::ended())
    };
    let opened = log_in(calls, info, settings(), None, on_end).await?;
    let messages = BoundedStream::new(stream(config, address, within).await?, None);
    let connection = PubSub::new(info.redis_settings(), messages).await?;
    Ok((opened, Messages::separate(connection, on_push)))
}

/// Turns off the client library's timeouts: callers have their own, and a reply may arrive later.
fn settings() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}

/// Opens a stream to an address: by the user's connector, with TLS, or plain.
async fn stream(config: &RedisConfig, address: &Address, within: Duration) -> RedisResult<BoxStream> {
    if !address.is_tls() {
        config.certificates().for_plain_text()?;
    }
    if let Some(connector) = config.custom_connector() {
        if address.is_tls() {
            let text = "a connector brings its own TLS: write `redis` in place of `rediss` with it";
            return Err((ErrorKind::InvalidClientConfig, text).into());
        }
        return Ok(connector.open(address.to_string()).await?);
    }
    Ok(match address {
        // A shorter limit, so that a TLS timeout is reported as such and not as the end of the attempt.
        Address::Tcp { host, port, tls: true } => {
            Box::new(tls::open(config, host, *port, within / 8 * 7).await?)
        }
        Address::Tcp { host, port, tls: false } => Box::new(tls::connect(config, host, *port).await?),
        Address::Unix(path) => match config.relay() {
            Some(relay) => Box::new(tls::connect_through(relay, &format!("unix {}", path.display())).await?),
            None => unix_socket(path).await?,
        },
    })
}

#[cfg(unix)]
async fn unix_socket(path: &Path) -> RedisResult<BoxStream> {
    Ok(Box::new(tokio::net::UnixStream::connect(path).await?))
}

/// Fails: tokio has no such sockets here.
#[cfg(not(unix))]
async fn unix_socket(_: &Path) -> RedisResult<BoxStream> {
    let text = "a socket's path needs Unix: write `redis://` with a host and a port";
    Err((ErrorKind::InvalidClientConfig, text).into())
}

/// Logs in over an open stream, which is read with [limits](super::bounded). `on_end` is called when the connection ends, unless the driver was dropped before.
async fn log_in(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    info: &ConnectionInfo,
    settings: AsyncConnectionConfig,
    confirmations: Option<Arc<Confirmations>>,
    on_end: impl FnOnce() + Send + 'static,
) -> RedisResult<Opened> {
    let stream = BoundedStream::new(stream, confirmations);
    let (conn, driver) =
        MultiplexedConnection::new_with_config(info.redis_settings(), stream, settings).await?;
    let driver = async move {
        driver.await;
        on_end();
    };
    let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver)));
    Ok(Opened { conn, driver })
}

/// The fault of a subscription that failed.
pub(crate) fn unsubscribed(error: RedisError, node: &Arc<str>) -> Fault {
    let refusal = error.clone().into_server_errors().and_then(|errors| errors.first().cloned());
    match refusal {
        Some((_, refusal)) => Fault::new(classify(&refusal).kind, Phase::Handshake, Arc::clone(node)),
        None => broken(error, node),
    }
}

pub(crate) fn broken(error: RedisError, node: &Arc<str>) -> Fault {
    Fault::new(FaultKind::Disconnected, Phase::Handshake, Arc::clone(node)).with_source(error)
}
