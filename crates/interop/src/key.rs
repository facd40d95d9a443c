//! A lock's key, seen from outside: its value, its expiry, and the messages about it.
//!
//! Expects nothing of them but that a lock is held or free.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use leasehold_testkit::{RedisServer, RespConnection, Value};

/// A connection, and the key that it looks at.
pub(crate) struct Key {
    name: String,
    outside: RespConnection,
}

/// The value at a lock's key, without a way to show it.
#[derive(PartialEq, Eq)]
pub(crate) struct Token(Vec<u8>);

/// A connection that receives every message on the server.
pub(crate) struct Messages {
    messages: RespConnection,
}

impl Key {
    pub(crate) fn of(server: &RedisServer, name: &str) -> Result<Self> {
        Ok(Self { name: name.to_owned(), outside: server.connect()? })
    }

    /// Sends a command about the key.
    pub(crate) fn call(&mut self, command: &str, arguments: &[&str]) -> Result<Value> {
        let words: Vec<&str> = [command, &self.name].into_iter().chain(arguments.iter().copied()).collect();
        Ok(self.outside.call(&words)?.ok()?)
    }

    /// What stands at the key of a lock that is a string.
    pub(crate) fn token(&mut self) -> Result<Token> {
        let value = self.call("GET", &[])?;
        let bytes = value.bytes().ok_or_else(|| self.gone())?;
        Ok(Token(bytes.to_vec()))
    }

    /// Fails if the key is not held by the same hold any more.
    pub(crate) fn is_still(&mut self, token: &Token, whose: &str) -> Result<()> {
        let still = self.token().with_context(|| format!("the hold of {whose} was ended"))? == *token;
        ensure!(still, "the hold of {whose} was taken over");
        Ok(())
    }

    /// The fields of a lock that is a hash; none if it is free.
    pub(crate) fn hash(&mut self) -> Result<BTreeMap<String, String>> {
        let reply = self.call("HGETALL", &[])?;
        let words: Option<Vec<_>> = reply.elements().iter().map(Value::text).collect();
        let words = words.with_context(|| format!("the hash at `{}` is no text", self.name))?;
        Ok(words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect())
    }

    /// Fails if the hash holds anything but that.
    pub(crate) fn is_hash(&mut self, expected: &[(&str, &str)]) -> Result<()> {
        let found = self.hash()?;
        let expected =
            expected.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        ensure!(found == expected, "`{}` holds {found:?} and not {expected:?}", self.name);
        Ok(())
    }

    /// Fails if the lock is not free.
    pub(crate) fn is_free(&mut self) -> Result<()> {
        ensure!(self.call("EXISTS", &[])?.integer() == Some(0), "the key `{}` was not removed", self.name);
        Ok(())
    }

    /// How long the key lasts as things stand; `None` without an expiry.
    pub(crate) fn remaining(&mut self) -> Result<Option<Duration>> {
        match self.call("PTTL", &[])?.integer() {
            Some(-1) => Ok(None),
            Some(ms @ 0..) => Ok(Some(Duration::from_millis(ms.unsigned_abs()))),
            _ => Err(self.gone()),
        }
    }

    /// Fails unless the key ends in more than half of that time, and not later.
    pub(crate) fn lasts(&mut self, lease: Duration) -> Result<()> {
        let remaining = self.remaining()?;
        let lasts = remaining.is_some_and(|left| left > lease / 2 && left <= lease);
        ensure!(lasts, "`{}` ends in {remaining:?} and not in {lease:?}", self.name);
        Ok(())
    }

    /// Publishes a message.
    pub(crate) fn publish(&mut self, channel: &str, message: &str) -> Result<()> {
        self.outside.call(&["PUBLISH", channel, message])?.ok()?;
        Ok(())
    }

    fn gone(&self) -> anyhow::Error {
        anyhow!("nothing is at the key `{}`, but it should be held", self.name)
    }
}

impl Messages {
    /// The channel of the last message in [`received`](Self::received): no client publishes on it.
    const END: &str = "end of the messages";

    pub(crate) fn of(server: &RedisServer) -> Result<Self> {
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
                Err(error) if error.kind() == ErrorKind::TimedOut => bail!("no message comes any more"),
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
