//! One connection: its commands and its output.

use super::call::Call;
use super::reply::{self, Failure, Value};
use super::script::{self, Script};
use super::{ModelServer, ServerObservation};
use leasehold_core::SessionOp;
use leasehold_testkit::{FrameSplitter, arguments};
use std::borrow::Cow;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The reply to INFO.
const INFO: &str = "# Server\r\nredis_version:8.8.2\r\nredis_mode:standalone\r\n";

/// A connection. Dropping it ends its subscriptions.
pub(super) struct Connection<'a> {
    server: &'a ModelServer,
    number: u64,
    outbox: UnboundedSender<Vec<u8>>,
}

/// Serves a connection until its client ends it.
pub(super) async fn serve(server: &ModelServer, stream: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let (mut input, mut output) = tokio::io::split(stream);
    let (outbox, mut written) = unbounded_channel();
    let connection = Connection::open(server, outbox);
    let reading = async {
        let mut requests = FrameSplitter::requests();
        let mut chunk = [0; 4096];
        loop {
            let length = input.read(&mut chunk).await?;
            if length == 0 {
                return Ok(());
            }
            requests.push(&chunk[..length]);
            while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
                connection.answer(&arguments(&frame));
            }
        }
    };
    let writing = async {
        while let Some(bytes) = written.recv().await {
            output.write_all(&bytes).await?;
        }
        Ok(())
    };
    tokio::select! {
        biased;
        read = reading => read,
        wrote = writing => wrote,
    }
}

impl<'a> Connection<'a> {
    fn open(server: &'a ModelServer, outbox: UnboundedSender<Vec<u8>>) -> Self {
        let number = {
            let mut state = server.state();
            state.connections += 1;
            state.connections
        };
        server.notify_observer(ServerObservation::Connected(number));
        Self { server, number, outbox }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Executes one command and writes its reply.
    fn answer(&self, arguments: &[Vec<u8>]) {
        let words: Vec<_> = arguments.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let Some(command) = words.first() else { return };
        let command = command.to_ascii_uppercase();
        let first = words.get(1).map_or("", |word| &**word);
        let mut bytes = Vec::new();
        match command.as_str() {
            "SUBSCRIBE" | "UNSUBSCRIBE" => {
                for channel in words.iter().skip(1) {
                    self.change_subscription(&command, channel).write(&mut bytes);
                }
            }
            "EVALSHA" => Value::from(self.call(first, arguments)).write(&mut bytes),
            "TIME" | "DEL" | "ZREM" => {
                Value::from(self.execute_session(&command, first, &words)).write(&mut bytes);
            }
            "SCRIPT" => Value::from(self.load(first, words.get(2))).write(&mut bytes),
            _ => Value::from(plain(&command, first)).write(&mut bytes),
        }
        if command != "EVALSHA" {
            let logged = if command == "HELLO" || command == "AUTH" {
                &command
            } else {
                &format!("{command} {first}")
            };
            self.server
                .notify_observer(ServerObservation::Command { connection: self.number, command: logged });
        }
        // Fails if the connection is closing.
        let _ = self.outbox.send(bytes);
    }

    fn call(&self, sha: &str, arguments: &[Vec<u8>]) -> Result<Value, Failure> {
        let known = self.server.state().scripts.get(sha).copied();
        let (script, kind) = known.ok_or_else(|| Failure::new("NOSCRIPT No matching script."))?;
        let call = Call::parse(script, kind, arguments.get(2..).unwrap_or_default())?;
        Ok(self.server.execute(self, &call))
    }

    /// The commands that end sessions, and the clock.
    fn execute_session(&self, command: &str, key: &str, words: &[Cow<'_, str>]) -> Result<Value, Failure> {
        let unknown = || Failure::new(format!("ERR this model server does not support this {command}"));
        let of_key = || key.rsplit_once(':').and_then(|(index, id)| Some((index, id.parse().ok()?)));
        match (command, words.len()) {
            ("TIME", 1) => Ok(reply::time(self.server.now_us(&self.server.state()))),
            ("DEL", 2) => {
                let (index, session) = of_key().ok_or_else(unknown)?;
                Ok(reply::of_sessions(&self.server.execute_session(self, index, &SessionOp::End(session))))
            }
            // The model's index has no session without a record.
            ("ZREM", 3) => Ok(Value::Integer(0)),
            _ => Err(unknown()),
        }
    }

    fn load(&self, subcommand: &str, text: Option<&impl AsRef<str>>) -> Result<Value, Failure> {
        let ("LOAD", Some(text)) = (subcommand, text) else {
            return Err(Failure::new("ERR this model server supports only SCRIPT LOAD"));
        };
        let script = Script::of(text.as_ref())?;
        let sha = script::sha(text.as_ref());
        self.server.state().scripts.insert(sha.clone(), script);
        Ok(Value::bulk(sha))
    }

    /// Subscribes to a channel, or unsubscribes.
    fn change_subscription(&self, command: &str, channel: &str) -> Value {
        let mut state = self.server.state();
        if command == "SUBSCRIBE" {
            let subscribers = state.channels.entry(channel.to_owned()).or_default();
            subscribers.insert(self.number, self.outbox.clone());
        } else if let Some(subscribers) = state.channels.get_mut(channel) {
            subscribers.remove(&self.number);
        }
        state.channels.retain(|_, subscribers| !subscribers.is_empty());
        let open =
            state.channels.values().filter(|subscribers| subscribers.contains_key(&self.number)).count();
        let open = Value::Integer(i64::try_from(open).unwrap_or(i64::MAX));
        Value::Push(vec![Value::bulk(command.to_ascii_lowercase()), Value::bulk(channel), open])
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let mut state = self.server.state();
        for subscribers in state.channels.values_mut() {
            subscribers.remove(&self.number);
        }
        state.channels.retain(|_, subscribers| !subscribers.is_empty());
        drop(state);
        self.server.notify_observer(ServerObservation::Ended(self.number));
    }
}

/// The commands that concern neither locks nor channels.
fn plain(command: &str, first: &str) -> Result<Value, Failure> {
    match (command, first) {
        ("HELLO", "3") => {
            let server = (Value::bulk("server"), Value::bulk("redis"));
            Ok(Value::Map(vec![server, (Value::bulk("proto"), Value::Integer(3))]))
        }
        ("HELLO", _) => Err(Failure::new("NOPROTO this server supports only RESP3")),
        ("INFO", _) => Ok(Value::Verbatim(INFO.to_owned())),
        ("PING", "") => Ok(Value::Status("PONG")),
        ("CLIENT" | "SELECT", _) => Ok(Value::Status("OK")),
        _ => Err(Failure::new(format!("ERR unknown command '{command}'"))),
    }
}
