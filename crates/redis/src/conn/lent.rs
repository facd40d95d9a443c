//! Connections that the application lends: its own connection, one that reconnects by itself, or a pool.
//!
//! Owns the interface of these, and what sends calls on them. Nothing here connects, and nothing is sent twice.
//!
//! 1. Calls run in the runtime in which the connection was lent. A pool, or a connection that reconnects, may start a
//!    connection during any call, and its task should not end with the client's own runtime.

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::error::Error;
use std::fmt;
use std::io;
use std::ops::DerefMut;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A connection, or a pool of connections, that the application lends to
/// [`RedisStore::from_connection`](crate::RedisStore::from_connection).
///
/// Implemented for [`MultiplexedConnection`], for [`LentPool`], and with the feature `connection-manager` for
/// `redis::aio::ConnectionManager`. Implement it for a connection of another kind: all commands of a call go to the same
/// server, in order, each exactly once.
///
/// ```
/// use futures_util::future::BoxFuture;
/// use leasehold::redis::aio::MultiplexedConnection;
/// use leasehold::redis::{Pipeline, Value};
/// use leasehold::store::{LentConnection, LentError};
///
/// /// Counts the calls of the store.
/// struct Counted(MultiplexedConnection, std::sync::atomic::AtomicU64);
///
/// impl LentConnection for Counted {
///     fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>> {
///         self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         self.0.call_all(pipeline)
///     }
/// }
/// ```
pub trait LentConnection: Send + Sync + 'static {
    /// Sends the commands, and returns a reply for each, in order. An error that the server replies to a command is the
    /// [`Value::ServerError`] in its place, and not an error of the call.
    ///
    /// Nothing may be sent a second time, also if the reply to it is lost: the store judges what such a command may have
    /// done. So `redis::cluster_async::ClusterConnection`, which sends again by itself, cannot be lent.
    ///
    /// Cancel safety: the store drops the future when the time of a call is over. The connection must not give the replies to
    /// these commands to a later call.
    fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>>;

    /// The connection, if this is just one, which is never replaced. The store then sends on it directly, can receive
    /// messages on it, and reports its loss as final
    /// ([`LentConnectionLost`](leasehold_store::FaultKind::LentConnectionLost)).
    fn as_multiplexed(&self) -> Option<&MultiplexedConnection> {
        None
    }
}

/// Why a call on a lent connection has no replies.
///
/// ```
/// use leasehold::store::LentError;
///
/// let error = LentError::NotSent("all connections of the pool are in use".into());
/// assert_eq!(error.to_string(), "no connection was lent");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LentError {
    /// Nothing was sent: for example, the pool gave no connection. The operation counts as not executed.
    #[error("no connection was lent")]
    NotSent(#[source] Box<dyn Error + Send + Sync>),
    /// The commands may have been sent. Whether the operation was executed is unknown.
    #[error("the lent connection gave no reply")]
    NoReply(#[from] RedisError),
}

impl LentConnection for MultiplexedConnection {
    fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>> {
        let mut conn = self.clone();
        Box::pin(async move { Ok(conn.send_packed_commands(pipeline, 0, pipeline.len()).await?) })
    }

    fn as_multiplexed(&self) -> Option<&MultiplexedConnection> {
        Some(self)
    }
}

#[cfg(feature = "connection-manager")]
impl LentConnection for redis::aio::ConnectionManager {
    fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>> {
        let mut conn = self.clone();
        Box::pin(async move { Ok(conn.send_packed_commands(pipeline, 0, pipeline.len()).await?) })
    }
}

/// A pool that lends a connection for each call, such as those of `deadpool-redis` and `bb8-redis`.
///
/// `F` is a function that gets a connection from the pool. If it fails, the operation was not executed, and is tried again
/// like after any other transient fault, unless the server rejected the login. Let it fail before the time of a call is over
/// (`ClientBuilder::call_timeout`): after that, the operation counts as unknown, although nothing was sent.
///
/// ```
/// use leasehold::redis::Client;
/// use leasehold::redis::aio::MultiplexedConnection;
/// use leasehold::store::{LentPool, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// // With `deadpool-redis`:
/// let pool = deadpool_redis::Config::from_url("redis://localhost")
///     .create_pool(Some(deadpool_redis::Runtime::Tokio1))?;
/// let lent = LentPool::new(move || {
///     let pool = pool.clone();
///     async move { pool.get().await }
/// });
/// let store = RedisStore::from_connection(lent, "app:", None)?;
///
/// // With `bb8-redis`:
/// let manager = bb8_redis::RedisConnectionManager::new("redis://localhost")?;
/// let pool = bb8_redis::bb8::Pool::builder().max_size(4).build(manager).await?;
/// let lent = LentPool::new(move || {
///     let pool = pool.clone();
///     async move { pool.get_owned().await }
/// });
/// let store = RedisStore::from_connection(lent, "app:", None)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct LentPool<F>(F);

impl<F> LentPool<F> {
    /// Lends the connections that `get` returns, each for one call.
    pub const fn new(get: F) -> Self {
        Self(get)
    }
}

impl<F, Getting, C, E> LentConnection for LentPool<F>
where
    F: Fn() -> Getting + Send + Sync + 'static,
    Getting: Future<Output = Result<C, E>> + Send + 'static,
    C: DerefMut + Send,
    C::Target: ConnectionLike + Send,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>> {
        let getting = (self.0)();
        Box::pin(async move {
            let mut conn = getting.await.map_err(|error| LentError::NotSent(error.into()))?;
            Ok(conn.req_packed_commands(pipeline, 0, pipeline.len()).await?)
        })
    }
}

/// A lent connection that is not just one, and the runtime that its calls run in (1).
#[derive(Clone)]
pub(crate) struct Lent {
    connection: Arc<dyn LentConnection>,
    /// `None` if it was lent outside of a runtime: then calls run where they are made.
    runtime: Option<Handle>,
}

impl Lent {
    fn new(connection: impl LentConnection) -> Self {
        Self { connection: Arc::new(connection), runtime: Handle::try_current().ok() }
    }

    async fn call_all(&self, pipeline: Pipeline) -> Result<Vec<Value>, LentError> {
        let count = pipeline.len();
        let here = Handle::try_current().ok().map(|handle| handle.id());
        let elsewhere = self.runtime.as_ref().filter(|runtime| here != Some(runtime.id()));
        let replies = if let Some(runtime) = elsewhere {
            let connection = Arc::clone(&self.connection);
            let call = runtime.spawn(async move { connection.call_all(&pipeline).await });
            // The runtime has ended, or the call panicked.
            let ended = |_| Err(RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe)).into());
            AbortOnDropHandle::new(call).await.unwrap_or_else(ended)
        } else {
            self.connection.call_all(&pipeline).await
        };
        match replies {
            Ok(replies) if replies.len() == count => Ok(replies),
            Ok(_) => {
                let text = "the lent connection did not return one reply for each command";
                Err(RedisError::from((ErrorKind::UnexpectedReturnType, text)).into())
            }
            Err(LentError::NoReply(error)) if count == 1 => match server_error(&error) {
                Some(reply) => Ok(vec![reply]),
                None => Err(error.into()),
            },
            Err(error) => Err(error),
        }
    }
}

/// The server's reply, if an error is one: some connections return it so.
fn server_error(error: &RedisError) -> Option<Value> {
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| Value::ServerError(error.clone()))
}

/// What sends calls: a connection of ours or of the application, or what the application lends for each call.
#[derive(Clone)]
pub(crate) enum Carrier {
    Multiplexed(MultiplexedConnection),
    Lent(Lent),
}

/// A [`Carrier`] that is cloned only if it is needed.
#[derive(Clone, Copy)]
pub(crate) enum CarrierRef<'a> {
    Multiplexed(&'a MultiplexedConnection),
    Lent(&'a Lent),
}

impl CarrierRef<'_> {
    pub(crate) fn to_carrier(self) -> Carrier {
        match self {
            Self::Multiplexed(conn) => Carrier::Multiplexed(conn.clone()),
            Self::Lent(lent) => Carrier::Lent(lent.clone()),
        }
    }
}

impl Carrier {
    pub(crate) fn lent(connection: impl LentConnection) -> Self {
        match connection.as_multiplexed() {
            Some(conn) => Self::Multiplexed(conn.clone()),
            None => Self::Lent(Lent::new(connection)),
        }
    }

    pub(crate) const fn by_ref(&self) -> CarrierRef<'_> {
        match self {
            Self::Multiplexed(conn) => CarrierRef::Multiplexed(conn),
            Self::Lent(lent) => CarrierRef::Lent(lent),
        }
    }

    /// The connection, if there is just one.
    pub(crate) const fn multiplexed(&self) -> Option<&MultiplexedConnection> {
        match self {
            Self::Multiplexed(conn) => Some(conn),
            Self::Lent(_) => None,
        }
    }

    /// Sends one command.
    pub(crate) async fn call(&mut self, cmd: &Cmd) -> Result<Value, LentError> {
        match self {
            Self::Multiplexed(conn) => Ok(conn.send_packed_command(cmd).await?),
            Self::Lent(lent) => {
                let mut pipeline = Pipeline::with_capacity(1);
                pipeline.add_command(cmd.clone());
                // In a box, because it is large, and most clients do not need it.
                let replies = Box::pin(lent.call_all(pipeline)).await?;
                Ok(replies.into_iter().next().unwrap_or_default())
            }
        }
    }

    /// Sends several commands. Each reply may be an error of its own.
    pub(crate) async fn call_all(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, LentError> {
        match self {
            Self::Multiplexed(conn) => {
                let replies: RedisResult<_> = conn.send_packed_commands(pipeline, 0, pipeline.len()).await;
                Ok(replies?)
            }
            Self::Lent(lent) => Box::pin(lent.call_all(pipeline.clone())).await,
        }
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Multiplexed(_) => "Multiplexed",
            Self::Lent(_) => "Lent",
        })
    }
}
