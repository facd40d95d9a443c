//! The other way: no lock, and a transaction that fails if what it was made from has changed since.
//!
//! It owns the round of WATCH, reading, MULTI and EXEC, counts how often it was gone through, and says what became of the
//! last one. It has no lock, no lease and no fencing token, and shares nothing with the engine: it is here for those who
//! need it, and to be compared with.
//!
//! Where conflicts are rare it costs less than a lock: nobody waits for anybody. Where they are not, every loser has
//! worked for nothing, and the more there are the less gets done; then a `Mutex` an item is the better
//! way. And it guards only what lies in that one Redis.
//!
//! 1. What is watched belongs to a connection. Whoever else used it could end the watching by an EXEC of his own, and one
//!    that is made anew has forgotten it: a change would go unnoticed. So it has to be a connection of one's own, that
//!    does not reconnect: the type sees to both.
//! 2. Watching is over before anything new is watched. What is left of it by mistake makes an EXEC fail, never succeed.
//! 3. The transaction is sent in one piece, so it is never left open half-way. An EXEC without an answer is unknown:
//!    it is never taken for a failure, and never tried again.
//! 4. For the same reason the server goes on where it does not let MULTI in (a user without that command, a proxy), and
//!    executes each command by itself: unguarded, and told as that.

use leasehold_core::{Executed, RetryPolicy};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, ToRedisArgs, Value};
use std::fmt;
use std::time::Duration;

/// How long an answer is waited for, on connections that are opened here: as long as calls about locks.
const ANSWER: Duration = Duration::from_secs(2);

/// What cannot be asked for while keys are watched: it would end the watching, or the connection's place (1).
const NOT_WHILE_WATCHING: [&str; 8] =
    ["MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SELECT", "RESET", "QUIT"];

/// A connection on which nothing but optimistic transactions is done.
///
/// It does not reconnect: once it is broken every call fails, and a new one is to be opened. It has one transaction at a
/// time, so tasks that work at the same time have one each.
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
/// println!("sold: {}, after {} tries", sold.value, sold.tries);
/// # assert!(!sold.value && sold.tries == 1);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Connection {
    inner: MultiplexedConnection,
    /// Set while the server may be watching keys for it (2).
    watching: bool,
}

/// What reads, while keys are watched: commands are sent to it as to any connection of the `redis` crate
/// ([`redis::AsyncCommands`]). Those that would end the watching are refused, transactions (`atomic()`) among them. What is
/// written here is written at once, and a write to a watched key makes every try fail.
///
/// [`Connection`] shows it in use.
#[derive(Debug)]
pub struct Watched<'a>(&'a mut Connection);

/// What is to be written if nothing that is watched has changed, and what comes of it.
///
/// ```
/// use leasehold::optimistic::Change;
///
/// let mut writes = redis::pipe();
/// writes.decr("stock:7", 1).rpush("sold:7", "ann");
/// let change = Change::new(writes, "sold to ann");
/// # let _ = change;
/// ```
#[must_use = "a change is written by the transaction that it is returned to"]
pub struct Change<T> {
    writes: Pipeline,
    value: T,
}

/// A transaction that was done.
///
/// [`Connection`] shows it in use.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Done<T> {
    /// What came of it.
    pub value: T,
    /// How often it was tried, the last time included: each time but the last somebody else was faster.
    pub tries: u32,
    /// What the server replied to the commands that were written, in their order.
    pub replies: Vec<Value>,
}

/// Why a transaction was not done, as far as is known.
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
///     Ok(done) => println!("done at try {}", done.tries),
///     Err(Error::OutOfTries { tries }) => println!("{tries} times somebody else was faster"),
///     Err(Error::Work { error: NoAccount, .. }) => println!("nothing was written, as was wished"),
///     // It must be looked at: it may have been done.
///     Err(Error::Unknown { source, .. }) => println!("the answer was lost: {source}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error<E> {
    /// What was watched had changed at every try: nothing was written.
    #[error("gave up after {tries} tries, at each of which somebody else was faster")]
    OutOfTries {
        /// How often it was tried.
        tries: u32,
    },
    /// What reads has failed, or does not want to write: nothing was written.
    #[error("{error}")]
    Work {
        /// Why, in its own words.
        #[source]
        error: E,
        /// How often it was tried, this time included.
        tries: u32,
    },
    /// Redis could not be asked, or refused: nothing was written.
    #[error("nothing was written (try {tries}): {source}")]
    Redis {
        /// What went wrong.
        source: RedisError,
        /// How often it was tried, this time included.
        tries: u32,
    },
    /// The transaction was executed, and some of its commands failed: Redis takes back none of the others. As a rule a
    /// command was for another type than its key has.
    #[error("the transaction was executed, but a command of it failed: {source}")]
    Partly {
        /// The first error among the replies.
        source: RedisError,
        /// How often it was tried, this time included.
        tries: u32,
        /// What the server replied to each command, errors included.
        replies: Vec<Value>,
    },
    /// The server did not let MULTI in, and executed commands of the transaction each by itself, whether or not anything
    /// that was watched had changed: another's change may have been overwritten. As a rule the user may not use MULTI, or
    /// a proxy is in between that has no transactions: this way is none there.
    #[error(
        "the commands were executed without a transaction (try {tries}; look at what they did): {source}"
    )]
    Unguarded {
        /// Why MULTI was not let in.
        source: RedisError,
        /// How often it was tried, this time included.
        tries: u32,
        /// What the server replied to each command, errors included.
        replies: Vec<Value>,
    },
    /// The reply to EXEC was lost: whether anything was written is not known, and it may be written yet. Trying again
    /// could write it twice.
    #[error(
        "it is not known whether the transaction was executed (try {tries}; look before trying again): {source}"
    )]
    Unknown {
        /// What went wrong.
        source: RedisError,
        /// How often it was tried, this time included.
        tries: u32,
    },
}

impl<T> Change<T> {
    /// Writes these commands, as one transaction, and gives `value` if they were. Whether the pipeline is `atomic()`
    /// makes no difference.
    pub fn new(writes: Pipeline, value: T) -> Self {
        Self { writes, value }
    }

    /// Writes nothing, and gives `value` if all that was read belongs together: if nothing that is watched has changed
    /// meanwhile. Otherwise it is read again.
    pub fn nothing(value: T) -> Self {
        Self::new(Pipeline::new(), value)
    }
}

impl<T: fmt::Debug> fmt::Debug for Change<T> {
    /// Shows how much is to be written, and none of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("writes", &self.writes.len()).field("value", &self.value).finish()
    }
}

impl Connection {
    /// Opens a connection of its own, on which answers are waited for 2 s at most.
    ///
    /// Fails if the server cannot be reached, or does not let the user in.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn open(client: &redis::Client) -> Result<Self, RedisError> {
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER));
        Ok(Self::dedicated(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    /// Takes a connection of the user's, for a time limit of his own, say. It must be **nobody else's**: no clone of it
    /// may be in use, or what is written meanwhile may go unnoticed. And it must answer no reads from a cache of the
    /// client's, which may be older than the watching.
    pub fn dedicated(connection: MultiplexedConnection) -> Self {
        // Nothing is known of what was done with it.
        Self { inner: connection, watching: true }
    }

    /// Watches keys (one at least), has `work` read what it needs and say what is to be written, and writes that unless a
    /// key has changed since. In that case all of it is done again, after a pause, as often as `retry` says. So `work` may
    /// run several times, and what it does besides reading is done each time.
    ///
    /// Fails as [`Error`] tells. Each answer of the server is waited for as long as the connection's own time limit says;
    /// in all it takes as long as `retry` and `work` do.
    ///
    /// Cancel safety: if the future is dropped before the transaction was sent nothing is written; if later, it may be
    /// written, or may be yet. The keys stay watched on this connection until it is used again or closed, which
    /// costs nobody anything: the next transaction ends that first.
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
            let Some(pause) = retry.pause_after(tries, rand::random()) else {
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

    /// Watches nothing any more, if that can be done now.
    async fn unwatch(&mut self) {
        let unwatched = self.inner.send_packed_command(&redis::cmd("UNWATCH")).await;
        // Otherwise it is done before anything is watched again.
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
            // EXEC had nothing to end, and the watching goes on (4).
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
            // Why a command was not let in says more than that the whole was therefore given up.
            Some(Value::ServerError(error)) => {
                Transaction::Failed(Executed::No, first_error(&replies).unwrap_or_else(|| error.into()))
            }
            _ => {
                return Transaction::Failed(
                    Executed::Unknown,
                    (ErrorKind::UnexpectedReturnType, "EXEC was answered oddly").into(),
                );
            }
        };
        // Whatever EXEC says, it ends the watching.
        self.watching = false;
        executed
    }
}

/// What became of a transaction.
enum Transaction {
    Done(Vec<Value>),
    Partly(RedisError, Vec<Value>),
    /// Not as a transaction (4).
    Unguarded(RedisError, Vec<Value>),
    /// Something that is watched has changed.
    Overtaken,
    Failed(Executed, RedisError),
}

/// Why there was no transaction, by the replies to MULTI and to the commands, if there was none (4).
fn not_begun(replies: &[Value]) -> Option<RedisError> {
    match replies.first()? {
        Value::Okay => None,
        Value::ServerError(error) => Some(error.clone().into()),
        _ => Some((ErrorKind::UnexpectedReturnType, "MULTI was answered oddly").into()),
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

/// Fails for commands that would end the watching (1).
fn admit(cmd: &Cmd) -> Result<(), RedisError> {
    let Some(redis::Arg::Simple(name)) = cmd.args_iter().next() else { return Ok(()) };
    let found = NOT_WHILE_WATCHING.iter().find(|refused| name.eq_ignore_ascii_case(refused.as_bytes()));
    found.map_or(Ok(()), |name| Err(refused(name)))
}

fn refused(name: &str) -> RedisError {
    let text =
        "not sent: it would end the watching; what is to be written belongs into the change that is returned";
    (ErrorKind::Client, text, name.to_owned()).into()
}
