//! A server that behaves like another product: a real Redis behind a relay that rewrites its commands.
//!
//! Owns the differences of products that speak the protocol of Redis and that tests cannot install: what INFO says, what a
//! script gets from its calls, and commands that are missing. Faults of the network belong to [`Proxy`](crate::Proxy).
//!
//! 1. Replies pass as they are, so a difference is always made by another command: INFO by a script that returns its text
//!    changed, a script by the same script after a prelude.
//! 2. A script is known to clients by the SHA-1 of its own text, and to the server by that of the changed one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::frame::{FrameSplitter, arguments};
use crate::resp::RespConnection;
use crate::server::RedisServer;

/// How long the server may take for a script that is loaded.
const LIMIT: Duration = Duration::from_secs(5);

/// How a product differs from Redis.
#[derive(Debug, Clone, Default)]
pub struct Product {
    /// Lines at the beginning of INFO, each as `field:value`. The first line with a field counts.
    pub info: Vec<&'static str>,
    /// Lua before each script. It may replace the table `redis`, whose original is `real` there.
    pub prelude: &'static str,
    /// Commands that it does not have.
    pub missing: Vec<&'static str>,
    /// Set if messages are lost.
    pub loses_messages: bool,
}

/// A relay to a Redis that makes it another product.
///
/// ```
/// use leasehold_testkit::{Product, ProductServer, RedisServer, RespConnection};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let server = RedisServer::start()?;
/// let prelude = "redis.call = function(...) return 'answer of another product' end";
/// let product = Product { info: vec!["other_version:1.0"], prelude, ..Product::default() };
/// let other = ProductServer::start(&server, product)?;
/// let mut client = RespConnection::open(other.port(), Duration::from_secs(5))?;
/// assert!(client.call(&["INFO"])?.text().is_some_and(|info| info.starts_with("other_version:1.0")));
/// let script = "return redis.call('GET', 'a')";
/// let sha = client.call(&["SCRIPT", "LOAD", script])?;
/// let sha = server.cli(&["SCRIPT", "LOAD", script])?.text().map(str::to_owned).filter(|own| Some(&**own) != sha.text());
/// let reply = client.call(&["EVALSHA", &sha.expect("another text"), "0"])?;
/// assert_eq!(reply.text(), Some("answer of another product"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ProductServer {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: u16,
    product: Product,
    ended: AtomicBool,
    /// The changed script for each SHA-1 that clients know (2).
    scripts: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    streams: Mutex<Vec<TcpStream>>,
}

impl Product {
    /// What Dragonfly does otherwise in scripts: TIME returns integers, and errors begin with the sign of the protocol.
    pub fn dragonfly() -> Self {
        Self {
            info: vec!["redis_version:7.4.0", "dragonfly_version:df-v1.40.1"],
            prelude: "\
                local function time(reply) return { tonumber(reply[1]), tonumber(reply[2]) } end\n\
                redis.call = function(command, ...)\n\
                  local reply = real.call(command, ...)\n\
                  return command == 'TIME' and time(reply) or reply\n\
                end\n\
                redis.pcall = function(command, ...)\n\
                  local reply = real.pcall(command, ...)\n\
                  if type(reply) == 'table' and reply.err then reply.err = '-' .. reply.err end\n\
                  return command == 'TIME' and time(reply) or reply\n\
                end",
            ..Self::default()
        }
    }
}

impl Product {
    /// A product that no client knows, made of Redis.
    pub fn unknown() -> Self {
        Self {
            info: vec!["# Server", "redis_version:7.4.0", "server_name:store", "store_version:3.1"],
            ..Self::default()
        }
    }

    /// What Amazon's serverless cache does otherwise, before a node of a cluster: it has neither `WAIT` nor channels outside
    /// of slots, and no commands of an operator.
    pub fn serverless() -> Self {
        Self {
            prelude: "\
                local missing = { PUBLISH = true, WAIT = true }\n\
                local function refusal(command) return \"ERR unknown command '\" .. command .. \"'\" end\n\
                redis.call = function(command, ...)\n\
                  if missing[command] then error(refusal(command)) end\n\
                  return real.call(command, ...)\n\
                end\n\
                redis.pcall = function(command, ...)\n\
                  if missing[command] then return { err = refusal(command) } end\n\
                  return real.pcall(command, ...)\n\
                end",
            missing: vec![
                "WAIT",
                "WAITAOF",
                "PUBLISH",
                "SUBSCRIBE",
                "PSUBSCRIBE",
                "SELECT",
                "CONFIG",
                "ACL",
                "CLIENT",
                "DEBUG",
                "MIGRATE",
                "MONITOR",
                "ROLE",
                "SWAPDB",
            ],
            ..Self::default()
        }
    }
}

impl ProductServer {
    /// Starts it before a server.
    pub fn start(server: &RedisServer, product: Product) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            server: server.port(),
            product,
            ended: AtomicBool::new(false),
            scripts: Mutex::default(),
            streams: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::Builder::new().name("product".into()).spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                // A client without a server is disconnected, and the test fails.
                let _ = client.and_then(|client| accepting.relay(client));
            }
        })?;
        Ok(Self { port, shared })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:port/`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Drop for ProductServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for stream in self.shared.streams().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // The thread that accepts sees the end at the next connection.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Shared {
    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn relay(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        self.streams().extend([client.try_clone()?, server.try_clone()?]);
        let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
        let shared = Arc::clone(self);
        thread::Builder::new().name("product requests".into()).spawn(move || {
            let _ = shared.forward(&mut requests, &mut to_server);
            let _ = to_server.shutdown(Shutdown::Both);
        })?;
        let (mut replies, mut to_client) = (server, client);
        thread::Builder::new().name("product replies".into()).spawn(move || {
            let _ = io::copy(&mut replies, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        })?;
        Ok(())
    }

    fn forward(&self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut loader = RespConnection::open(self.server, LIMIT)?;
        let (mut frames, mut bytes) = (FrameSplitter::requests(), [0; 16 << 10]);
        loop {
            let read = from.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            frames.push(&bytes[..read]);
            let mut changed = Vec::new();
            while let Some(frame) = frames.next_frame().map_err(io::Error::other)? {
                match self.change(arguments(&frame), &mut loader)? {
                    Some(command) => encode(&command, &mut changed),
                    None => changed.extend(frame),
                }
            }
            to.write_all(&changed)?;
        }
    }

    /// What the server gets in place of a command; `None` for the command itself (1).
    fn change(
        &self,
        mut command: Vec<Vec<u8>>,
        loader: &mut RespConnection,
    ) -> io::Result<Option<Vec<Vec<u8>>>> {
        let Some(name) = command.first().map(|name| name.to_ascii_uppercase()) else { return Ok(None) };
        let is = |argument: Option<&Vec<u8>>, word: &str| {
            argument.is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
        };
        if self.product.missing.iter().any(|missing| name == missing.as_bytes()) {
            command[0] = [b"NO-", &name[..]].concat();
            return Ok(Some(command));
        }
        match &name[..] {
            b"INFO" if !self.product.info.is_empty() => {
                let lines = self.product.info.join("\r\n") + "\r\n";
                let script = "return ARGV[1] .. redis.call('INFO', unpack(ARGV, 2))";
                let mut info = vec![b"EVAL".to_vec(), script.into(), b"0".to_vec(), lines.into_bytes()];
                info.extend(command.drain(1..));
                Ok(Some(info))
            }
            b"SCRIPT"
                if is(command.get(1), "LOAD") && command.len() == 3 && !self.product.prelude.is_empty() =>
            {
                let changed = self.with_prelude(&command[2]);
                let mut load = |text: &[u8]| loader.call::<&[u8]>(&[b"SCRIPT", b"LOAD", text]);
                let (own, other) = (load(&command[2])?, load(&changed)?);
                if let (Some(own), Some(other)) = (own.bytes(), other.bytes()) {
                    let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
                    scripts.insert(own.to_vec(), other.to_vec());
                }
                command[2] = changed;
                Ok(Some(command))
            }
            b"EVALSHA" => {
                let scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(other) = command.get(1).and_then(|sha| scripts.get(sha)) else { return Ok(None) };
                command[1].clone_from(other);
                Ok(Some(command))
            }
            b"PUBLISH" if self.product.loses_messages && command.len() == 3 => {
                command[1] = b"a channel without subscribers".to_vec();
                Ok(Some(command))
            }
            _ => Ok(None),
        }
    }

    fn with_prelude(&self, script: &[u8]) -> Vec<u8> {
        let prelude = [
            "local real = redis\nlocal redis = setmetatable({}, { __index = real })\n",
            self.product.prelude,
            "\n",
        ];
        [prelude.concat().as_bytes(), script].concat()
    }
}

fn encode(command: &[Vec<u8>], to: &mut Vec<u8>) {
    to.extend(format!("*{}\r\n", command.len()).into_bytes());
    for argument in command {
        to.extend(format!("${}\r\n", argument.len()).into_bytes());
        to.extend(argument);
        to.extend(b"\r\n");
    }
}
