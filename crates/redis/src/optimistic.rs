//! Optimistic transactions: no lock, but a transaction that fails if the data it was computed from has
//! changed.
//!
//! It owns the loop of WATCH, read, MULTI and EXEC, counts its attempts, and reports the result of the last.
//! It has no lock, no lease and no fencing token, and shares nothing with the engine. It exists for cases
//! that suit it, and for comparison.
//!
//! If conflicts are rare, it costs less than a lock, since no client waits for another. If they are frequent,
//! every loser's work is wasted, and throughput drops as clients are added; then use one
//! `Mutex` per item. It protects only data in that one Redis.
//!
//! 1. Watches belong to a connection. Any other user of the connection could end them by an EXEC of its own,
//!    and a reconnect forgets them: a change would go unnoticed. So the connection must be exclusive and must
//!    not reconnect: the type ensures both.
//! 2. All watches are removed before new keys are watched. A leftover watch can make an EXEC fail, never
//!    succeed.
//! 3. The transaction is sent in one piece, so it is never left half open. An EXEC without a reply is
//!    unknown: it is not treated as a failure, and never retried.
//! 4. For the same reason, a server that rejects MULTI (a user without that command, a proxy) continues, and
//!    executes each command separately: without protection, and reported as such.

use leasehold_core::{Executed, RetryPolicy};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, ToRedisArgs, Value};
use std::fmt;
use std::time::Duration;

/// The time limit for a reply on connections opened here: the same as for calls about locks.
const ANSWER: Duration = Duration::from_secs(2);

/// Commands that are refused while keys are watched: they would end the watches, or change what the
/// connection refers to (1).
const NOT_WHILE_WATCHING: [&str; 8] =
    ["MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SELECT", "RESET", "QUIT"];

/// A connection used only for optimistic transactions.
///
/// It does not reconnect: once it is broken every call fails, and a new one must be opened. It runs one
/// transaction at a time, so concurrent tasks need one connection each.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = leasehold_testkit::RedisServer::start()?;
/// # let url = server.url();
/// use leasehold::{RetryPolicy, optimistic::{Change, Connection}};
/// use redis::AsyncCommands;
/// use std::time::Duration;
///
/// let mut connection = Connection::open(&redis::Client::open(url)?).await?;
/// let retry = RetryPolicy::exponential(Duration::from_millis(1), Duration::from_millis(50)).tries(20);
/// let sold = connection
///     .transact(&["stock:7"], retry, async |watched| {
///         let left: Option<u32> = watched.get("stock:7").await?;
///         let Some(left @ 1..) = left else { return Ok::<_, redis::RedisError>(Change::nothing(false)) };
///         let mut writes = redis::pipe();
///         writes.set("stock:7", left - 1);
///         Ok(Change::new(writes, true))
///     })
///     .await?;
/// println!("sold: {}, after {} attempts", sold.value, sold.tries);
/// # assert!(!sold.value && sold.tries == 1);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Connection {
    inner: MultiplexedConnection,
    /// Set while the server may be watching keys for this connection (2).
    watching: bool,
}

/// The connection for reads while keys are watched: it accepts commands like any connection of the `redis`
/// crate ([`redis::AsyncCommands`]). Commands that would end the watches are refused, transactions
/// (`atomic()`) among them. A write through it takes effect at once, and a write to a watched key makes every
/// attempt fail.
///
/// See [`Connection`] for an example.
#[derive(Debug)]
pub struct Watched<'a>(&'a mut Connection);

/// The commands to execute if no watched key has changed, and the value to return.
///
/// ```
/// use leasehold::optimistic::Change;
///
/// let mut writes = redis::pipe();
/// writes.decr("stock:7", 1).rpush("sold:7", "ann");
/// let change = Change::new(writes, "sold to ann");
/// # let _ = change;
/// ```
#[must_use = "a change takes effect only when it is returned to `transact`"]
pub struct Change<T> {
    writes: Pipeline,
    value: T,
}

/// The result of an executed transaction.
///
/// See [`Connection`] for an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Done<T> {
    /// The value given to [`Change`].
    pub value: T,
    /// How many attempts were made, the last included: before each of the others, another client changed a
    /// watched key.
    pub tries: u32,
    /// The server's replies to the commands, in order.
    pub replies: Vec<Value>,
}

/// Why a transaction was not executed, as far as is known.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = leasehold_testkit::RedisServer::start()?;
/// # let mut connection = leasehold::optimistic::Connection::open(&redis::Client::open(server.url())?).await?;
/// # let retry = leasehold::RetryPolicy::constant(std::time::Duration::from_millis(1)).tries(3);
/// use leasehold::optimistic::{Change, Error};
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("there is no such account")]
/// struct NoAccount;
///
/// let result = connection
///     .transact("account:ann", retry, async |_| Err::<Change<()>, _>(NoAccount))
///     .await;
/// match result {
///     Ok(done) => println!("done at attempt {}", done.tries),
///     Err(Error::OutOfTries { tries }) => println!("another client was faster {tries} times"),
///     Err(Error::Work { error: NoAccount, .. }) => println!("nothing was written, as intended"),
///     // It may have been executed: verify the result.
///     Err(Error::Unknown { source, .. }) => println!("the reply was lost: {source}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// A watched key had changed at every attempt: nothing was written.
    #[error("gave up after {tries} attempts: another client was faster each time")]
    OutOfTries {
        /// How many attempts were made.
        tries: u32,
    },
    /// The caller's closure failed, or decided not to write: nothing was written.
    #[error("{error}")]
    Work {
        /// The error of the closure.
        #[source]
        error: E,
        /// How many attempts were made, this one included.
        tries: u32,
    },
    /// Redis could not be reached, or refused a command: nothing was written.
    #[error("nothing was written (attempt {tries}): {source}")]
    Redis {
        /// The cause.
        source: RedisError,
        /// How many attempts were made, this one included.
        tries: u32,
    },
    /// The transaction was executed, but some of its commands failed: Redis does not roll back the others.
    /// Usually a command did not match the type of its key.
    #[error("the transaction was executed, but one of its commands failed: {source}")]
    Partly {
        /// The first error among the replies.
        source: RedisError,
        /// How many attempts were made, this one included.
        tries: u32,
        /// The server's reply to each command, errors included.
        replies: Vec<Value>,
    },
    /// The server rejected MULTI and executed commands of the transaction separately, whether or not a
    /// watched key had changed: another client's change may have been overwritten. Usually the user may not
    /// run MULTI, or a proxy in between does not support transactions: optimistic transactions do not work
    /// there.
    #[error(
        "the commands were executed without a transaction (attempt {tries}; verify their effect): {source}"
    )]
    Unguarded {
        /// Why MULTI was rejected.
        source: RedisError,
        /// How many attempts were made, this one included.
        tries: u32,
        /// The server's reply to each command, errors included.
        replies: Vec<Value>,
    },
    /// The reply to EXEC was lost: whether anything was written is not known, and it may still be written. A
    /// retry could write it twice.
    #[error(
        "whether the transaction was executed is unknown (attempt {tries}; verify before trying again): {source}"
    )]
    Unknown {
        /// The cause.
        source: RedisError,
        /// How many attempts were made, this one included.
        tries: u32,
    },
}

impl<T> Change<T> {
    /// Executes these commands as one transaction, and returns `value` if they were executed. It makes no
    /// difference whether the pipeline is `atomic()`.
    pub fn new(writes: Pipeline, value: T) -> Self {
        Self { writes, value }
    }

    /// Writes nothing, and returns `value` if no watched key has changed meanwhile, so that all values read
    /// are consistent. Otherwise the read is repeated.
    pub fn nothing(value: T) -> Self {
        Self::new(Pipeline::new(), value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Change<T> {
    /// Shows the number of commands, and none of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("writes", &self.writes.len()).field("value", &self.value).finish()
    }
}

impl Connection {
    /// Opens an exclusive connection with a reply timeout of 2 s.
    ///
    /// Fails if the server cannot be reached, or rejects the user.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn open(client: &redis::Client) -> Result<Self, RedisError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER));
        Ok(Self::dedicated(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    /// Uses an existing connection, for example one with another timeout. It must be **exclusive**: if a
    /// clone of it is in use, changes may go unnoticed. And it must not serve reads from a client-side cache,
    /// which may be older than the watches.
    pub fn dedicated(connection: MultiplexedConnection) -> Self {
        // The connection's earlier use is unknown.
        Self { inner: connection, watching: true }
    }

    /// Watches keys (at least one), lets `work` read what it needs and return what to write, and writes that
    /// unless a watched key has changed. In that case everything is repeated after a pause, as often as
    /// `retry` allows. So `work` may run several times, and so do its side effects. In a spawned task it must own what it
    /// uses (`async move |watched| …`): the compiler cannot tell yet that a borrow in it may cross threads.
    ///
    /// Fails as described at [`Error`]. Each reply of the server is awaited for the connection's own timeout;
    /// the total time depends on `retry` and `work`.
    ///
    /// Cancel safety: if the future is dropped before the transaction was sent, nothing is written; if later,
    /// it may have been written, or may still be. The keys stay watched on this connection until its next use
    /// or its end, which does no harm: the next transaction removes the watches first.
    pub async fn transact<T, E>(
        &mut self,
        keys: impl ToRedisArgs,
        retry: RetryPolicy,
        mut work: impl AsyncFnMut(&mut Watched<'_>) -> Result<Change<T>, E>,
    ) -> Result<Done<T>, Error<E>> {
        let mut watch = redis::cmd("WATCH");
        watch.arg(keys);
        let mut tries = 0;
        loop {
            tries += 1;
            self.watch(&watch).await.map_err(|source| Error::Redis { source, tries })?;
            let Change { writes, value } = match work(&mut Watched(self)).await {
                Ok(change) => change,
                Err(error) => {
                    self.unwatch().await;
                    return Err(Error::Work { error, tries });
                }
            };
            match self.execute(&writes).await {
                Transaction::Done(replies) => return Ok(Done { value, tries, replies }),
                Transaction::Partly(source, replies) => return Err(Error::Partly { source, tries, replies }),
                Transaction::Unguarded(source, replies) => {
                    return Err(Error::Unguarded { source, tries, replies });
                }
                Transaction::Failed(Executed::No, source) => return Err(Error::Redis { source, tries }),
                Transaction::Failed(Executed::Unknown, source) => {
                    return Err(Error::Unknown { source, tries });
                }
                Transaction::Overtaken => {}
            }
            let Some(pause) = retry.backoff_after(tries, rand::random()) else {
                return Err(Error::OutOfTries { tries });
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Watches these keys, and no others (2).
    async fn watch(&mut self, watch: &Cmd) -> Result<(), RedisError> {
        let mut sent = Pipeline::new();
        if self.watching {
            sent.cmd("UNWATCH");
        }
        sent.add_command(watch.clone());
        self.watching = true;
        let replies = self.inner.send_packed_commands(&sent, 0, sent.len()).await?;
        first_error(&replies).map_or(Ok(()), Err)
    }

    /// Removes all watches, if possible now.
    async fn unwatch(&mut self) {
        let unwatched = self.inner.send_packed_command(&redis::cmd("UNWATCH")).await;
        // If not, it is done before keys are watched again.
        self.watching = !matches!(unwatched, Ok(Value::Okay));
    }

    /// Sends the transaction in one piece (3).
    async fn execute(&mut self, writes: &Pipeline) -> Transaction {
        let mut sent = Pipeline::new();
        sent.cmd("MULTI");
        for write in writes.cmd_iter() {
            sent.add_command(write.clone());
        }
        sent.cmd("EXEC");
        let mut replies = match self.inner.send_packed_commands(&sent, 0, sent.len()).await {
            Ok(replies) => replies,
            Err(error) => return Transaction::Failed(Executed::Unknown, error),
        };
        let executed = replies.pop();
        if let Some(refused) = not_begun(&replies) {
            // EXEC had no transaction to end, so the watches remain (4).
            replies.remove(0);
            let written = replies.iter().any(|reply| !matches!(reply, Value::ServerError(_)));
            return if written {
                Transaction::Unguarded(refused, replies)
            } else {
                Transaction::Failed(Executed::No, refused)
            };
        }
        let executed = match executed {
            Some(Value::Nil) => Transaction::Overtaken,
            Some(Value::Array(results)) if results.len() == writes.len() => match first_error(&results) {
                Some(error) => Transaction::Partly(error, results),
                None => Transaction::Done(results),
            },
            // The error of the rejected command explains more than the resulting abort.
            Some(Value::ServerError(error)) => {
                Transaction::Failed(Executed::No, first_error(&replies).unwrap_or_else(|| error.into()))
            }
            _ => {
                return Transaction::Failed(
                    Executed::Unknown,
                    (ErrorKind::UnexpectedReturnType, "unexpected reply to EXEC").into(),
                );
            }
        };
        // EXEC ends the watches, also if it fails.
        self.watching = false;
        executed
    }
}

/// What became of a transaction.
enum Transaction {
    Done(Vec<Value>),
    Partly(RedisError, Vec<Value>),
    /// Executed, but not as a transaction (4).
    Unguarded(RedisError, Vec<Value>),
    /// A watched key has changed.
    Overtaken,
    Failed(Executed, RedisError),
}

/// Why no transaction was started, from the replies to MULTI and the commands; `None` if one was (4).
fn not_begun(replies: &[Value]) -> Option<RedisError> {
    match replies.first()? {
        Value::Okay => None,
        Value::ServerError(error) => Some(error.clone().into()),
        _ => Some((ErrorKind::UnexpectedReturnType, "unexpected reply to MULTI").into()),
    }
}

fn first_error(replies: &[Value]) -> Option<RedisError> {
    replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    })
}

impl ConnectionLike for Watched<'_> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            admit(cmd)?;
            self.0.inner.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            if pipeline.is_transaction() {
                return Err(refused("MULTI"));
            }
            pipeline.cmd_iter().try_for_each(admit)?;
            self.0.inner.req_packed_commands(pipeline, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        self.0.inner.get_db()
    }
}

/// Fails for commands that would end the watches (1).
fn admit(cmd: &Cmd) -> Result<(), RedisError> {
    let Some(redis::Arg::Simple(name)) = cmd.args_iter().next() else { return Ok(()) };
    let found = NOT_WHILE_WATCHING.iter().find(|refused| name.eq_ignore_ascii_case(refused.as_bytes()));
    found.map_or(Ok(()), |name| Err(refused(name)))
}

fn refused(name: &str) -> RedisError {
    let text = "not sent: it would end the watches; put writes into the returned `Change`";
    (ErrorKind::Client, text, name.to_owned()).into()
}
