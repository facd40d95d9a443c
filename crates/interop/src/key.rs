//! A lock's key, seen from outside: its value, its expiry, and the messages about it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use leasehold_testkit::{RedisServer, RespConnection, Value};

/// A connection, and the key that it inspects.
pub(crate) struct Key {
    name: String,
    redis: RespConnection,
}

/// The value at a lock's key. It has no `Debug`: tokens are secret.
#[derive(PartialEq, Eq)]
pub(crate) struct Token(Vec<u8>);

/// A connection that receives every message on the server.
pub(crate) struct Messages {
    messages: RespConnection,
}

impl Key {
    pub(crate) fn connect(server: &RedisServer, name: &str) -> Result<Self> {
        Ok(Self { name: name.to_owned(), redis: server.connect()? })
    }

    /// Sends a command about the key.
    pub(crate) fn call(&mut self, command: &str, arguments: &[&str]) -> Result<Value> {
        let words: Vec<&str> = [command, &self.name].into_iter().chain(arguments.iter().copied()).collect();
        Ok(self.redis.call(&words)?.ok()?)
    }

    /// The value of a lock that is a string.
    pub(crate) fn token(&mut self) -> Result<Token> {
        let value = self.call("GET", &[])?;
        let bytes = value.bytes().ok_or_else(|| self.missing())?;
        Ok(Token(bytes.to_vec()))
    }

    /// Fails if the key has another value: then the hold of `holder` was ended.
    pub(crate) fn expect_token(&mut self, token: &Token, holder: &str) -> Result<()> {
        let is_same = self.token().with_context(|| format!("the hold of {holder} was ended"))? == *token;
        ensure!(is_same, "the hold of {holder} was replaced by another");
        Ok(())
    }

    /// The fields of a lock that is a hash; none if it is free.
    pub(crate) fn hash(&mut self) -> Result<BTreeMap<String, String>> {
        let reply = self.call("HGETALL", &[])?;
        let words: Option<Vec<_>> = reply.elements().iter().map(Value::text).collect();
        let words = words.with_context(|| format!("the hash at `{}` is no text", self.name))?;
        Ok(words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
    }

    /// Fails unless the hash has exactly these fields.
    pub(crate) fn expect_hash(&mut self, expected: &[(&str, &str)]) -> Result<()> {
        let found = self.hash()?;
        let expected =
            expected.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        ensure!(found == expected, "`{}` holds {found:?} and not {expected:?}", self.name);
        Ok(())
    }

    /// Fails if the lock is not free.
    pub(crate) fn expect_free(&mut self) -> Result<()> {
        ensure!(self.call("EXISTS", &[])?.integer() == Some(0), "the key `{}` was not removed", self.name);
        Ok(())
    }

    /// The time until the key expires; `None` without an expiry.
    pub(crate) fn remaining(&mut self) -> Result<Option<Duration>> {
        match self.call("PTTL", &[])?.integer() {
            Some(-1) => Ok(None),
            Some(ms @ 0..) => Ok(Some(Duration::from_millis(ms.unsigned_abs()))),
            _ => Err(self.missing()),
        }
    }

    /// Fails unless the key expires within that time, and not before half of it.
    pub(crate) fn expect_expiry(&mut self, lease: Duration) -> Result<()> {
        let remaining = self.remaining()?;
        let is_right = remaining.is_some_and(|left| left > lease / 2 && left <= lease);
        ensure!(is_right, "`{}` expires in {remaining:?} and not in {lease:?}", self.name);
        Ok(())
    }

    /// Publishes a message.
    pub(crate) fn publish(&mut self, channel: &str, message: &str) -> Result<()> {
        self.redis.call(&["PUBLISH", channel, message])?.ok()?;
        Ok(())
    }

    fn missing(&self) -> anyhow::Error {
        anyhow!("the key `{}` does not exist, but the lock should be held", self.name)
    }
}

impl Messages {
    /// The channel of the last message in [`received`](Self::received): no client publishes on it.
    const END: &str = "end of the messages";

    pub(crate) fn connect(server: &RedisServer) -> Result<Self> {
        let mut messages = server.connect()?;
        messages.call(&["PSUBSCRIBE", "*"])?.ok()?;
        Ok(Self { messages })
    }

    /// All messages since the last call, each as `CHANNEL MESSAGE`.
    pub(crate) fn received(&mut self, key: &mut Key) -> Result<Vec<String>> {
        key.publish(Self::END, "")?;
        let mut received = Vec::new();
        loop {
            let message = match self.messages.receive() {
                Ok(message) => message,
                Err(error) if error.kind() == ErrorKind::TimedOut => bail!("no more message arrives"),
                Err(error) => return Err(error.into()),
            };
            match message.elements() {
                [_, _, channel, _] if channel.text() == Some(Self::END) => return Ok(received),
                [_, _, channel, text] => {
                    received.push(format!(
                        "{} {}",
                        channel.text().unwrap_or("?"),
                        text.text().unwrap_or("?")
                    ));
                }
                _ => bail!("{message:?} is no message"),
            }
        }
    }
}
