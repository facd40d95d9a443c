//! The locks use the connection of an application that speaks to Redis with `fred`.
//!
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example fred_connection
//!
//! Its values are not those of the `redis` library, so each reply is converted. There are no push messages, so a waiter
//! polls: an application that waits often for its locks gives the client a connection of its own instead
//! (`Client::connect`).

use fred::bytes_utils::Str;
use fred::clients::WithOptions;
use fred::prelude::*;
use fred::types::{ClusterHash, CustomCommand, Resp3Frame};
use futures_util::future::{BoxFuture, try_join_all};
use leasehold::Client as Locks;
use leasehold::redis::{self, Arg, Cmd, ErrorKind, Pipeline, RedisError};
use leasehold::store::{LentConnection, LentError, RedisStore};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let url = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "redis://127.0.0.1/".into());
    // Without a policy, `fred` does not connect again.
    let mut builder = Builder::from_config(Config::from_url(&url)?);
    let client = builder.set_policy(ReconnectPolicy::new_exponential(0, 50, 2_000, 2)).build()?;
    client.init().await?;

    let locks = Locks::with_store(RedisStore::from_connection(Lent(client.clone()), "example:", None)?)
        .connect()
        .await?;
    let nightly = locks.mutex("nightly")?;
    let guard = nightly.acquire().await?;
    println!("held with the fencing token {}", guard.fencing_token());
    println!(
        "a second attempt: {}",
        if nightly.try_acquire().await?.granted().is_some() { "granted" } else { "taken" }
    );
    guard.release().await?;
    println!("released");

    locks.flush().await;
    client.quit().await?;
    Ok(())
}

/// A client of `fred` that is connected to one server.
pub(crate) struct Lent(pub(crate) Client);

impl LentConnection for Lent {
    fn call_all<'a>(
        &'a self,
        pipeline: &'a Pipeline,
    ) -> BoxFuture<'a, std::result::Result<Vec<redis::Value>, LentError>> {
        // Each is sent once, and now or never: the lock decides what to do about a command without a reply.
        let options = Options { max_attempts: Some(1), fail_fast: true, ..Options::default() };
        let once = self.0.with_options(&options);
        Box::pin(async move {
            // Sent in this order, without a wait for the replies in between.
            let replies = pipeline.cmd_iter().map(|command| send(&once, command));
            Ok(try_join_all(replies).await?)
        })
    }
}

async fn send(client: &WithOptions<Client>, command: &Cmd) -> std::result::Result<redis::Value, RedisError> {
    let mut words = command.args_iter().map(|word| match word {
        Arg::Simple(bytes) => bytes.to_vec(),
        // The cursor of a scan, which the locks do not send.
        _ => b"0".to_vec(),
    });
    let name = Str::from(String::from_utf8_lossy(&words.next().unwrap_or_default()).into_owned());
    let words: Vec<Value> = words.map(|word| Value::Bytes(word.into())).collect();
    let reply = client.custom_raw(CustomCommand::new(name, ClusterHash::FirstKey, false), words).await;
    converted(reply.map_err(|error| RedisError::from((ErrorKind::Io, "fred", error.to_string())))?)
}

/// A reply in the values of the `redis` library. An error of the server is a reply too.
fn converted(frame: Resp3Frame) -> std::result::Result<redis::Value, RedisError> {
    let all =
        |frames: Vec<Resp3Frame>| frames.into_iter().map(converted).collect::<std::result::Result<_, _>>();
    let error = |text: &[u8]| redis::parse_redis_value(&[b"-", text, b"\r\n"].concat());
    Ok(match frame {
        Resp3Frame::Null => redis::Value::Nil,
        Resp3Frame::Number { data, .. } => redis::Value::Int(data),
        Resp3Frame::Double { data, .. } => redis::Value::Double(data),
        Resp3Frame::Boolean { data, .. } => redis::Value::Boolean(data),
        Resp3Frame::BlobString { data, .. } | Resp3Frame::VerbatimString { data, .. } => {
            redis::Value::BulkString(data.to_vec())
        }
        Resp3Frame::SimpleString { data, .. } if *data == *b"OK" => redis::Value::Okay,
        Resp3Frame::SimpleString { data, .. } => {
            redis::Value::SimpleString(String::from_utf8_lossy(&data).into_owned())
        }
        Resp3Frame::SimpleError { data, .. } => error(data.as_bytes())?,
        Resp3Frame::BlobError { data, .. } => error(&data)?,
        Resp3Frame::Array { data, .. } => redis::Value::Array(all(data)?),
        Resp3Frame::Set { data, .. } => redis::Value::Set(all(data.into_iter().collect())?),
        Resp3Frame::Map { data, .. } => {
            let pair = |(key, value)| Ok::<_, RedisError>((converted(key)?, converted(value)?));
            redis::Value::Map(data.into_iter().map(pair).collect::<std::result::Result<_, _>>()?)
        }
        _ => return Err((ErrorKind::UnexpectedReturnType, "fred gave a reply of an unknown kind").into()),
    })
}
