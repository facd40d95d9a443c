//! A relay between Leasehold's clients and a server, which plants a fault into what they send.
//!
//! Owns a port on loopback, and the digests of the changed scripts: a client calls a script by the digest of the text that it
//! loaded, and the server has another text. Replies pass unchanged.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use leasehold_testkit::{RedisServer, Splitter};
use sha1_smol::Sha1;

use crate::planted::Fault;

/// A port that leads to a server, with a fault on the way. Its threads end with the process: each of their connections
/// ends with its client.
#[derive(Debug)]
pub(crate) struct Wire {
    port: u16,
}

/// What all connections of a wire know.
#[derive(Debug)]
struct Planted {
    server: SocketAddr,
    fault: Fault,
    /// What the server calls a script that the client calls so.
    names: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Wire {
    /// Lays a wire to a server.
    pub(crate) fn to(server: &RedisServer, fault: Fault) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let planted = Arc::new(Planted { server, fault, names: Mutex::default() });
        thread::Builder::new().name("wire".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                // The client reports a connection that fails.
                let _ = planted.connect(client);
            }
        })?;
        Ok(Self { port })
    }

    /// The server's URL, by way of the wire.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Planted {
    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from, to, planted) = (client.try_clone()?, server.try_clone()?, Arc::clone(self));
        thread::Builder::new().spawn(move || {
            let _ = planted.requests(from, &to);
            let _ = to.shutdown(Shutdown::Both);
        })?;
        thread::Builder::new().spawn(move || {
            let _ = io::copy(&mut &server, &mut &client);
            let _ = client.shutdown(Shutdown::Both);
        })?;
        Ok(())
    }

    /// Passes on what a client sends, until it has nothing more to say.
    fn requests(&self, mut from: TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let (mut requests, mut chunk) = (Splitter::requests(), [0; 16_384]);
        loop {
            match from.read(&mut chunk)? {
                0 => return Ok(()),
                length => requests.push(&chunk[..length]),
            }
            while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
                to.write_all(&self.changed(frame))?;
            }
        }
    }

    /// A request with the fault in it.
    fn changed(&self, frame: Vec<u8>) -> Vec<u8> {
        let mut words = words(&frame).unwrap_or_default();
        let verb = words.first().map(|verb| verb.to_ascii_uppercase()).unwrap_or_default();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match (verb.as_slice(), &mut words[..]) {
            (b"SCRIPT", [_, _, script]) => {
                let Some(planted) = self.fault.planted(&String::from_utf8_lossy(script)) else {
                    return frame;
                };
                names.insert(name_of(script), name_of(planted.as_bytes()));
                *script = planted.into_bytes();
            }
            (b"EVALSHA", [_, name, ..]) => {
                let Some(planted) = names.get(name) else { return frame };
                name.clone_from(planted);
            }
            (b"SUBSCRIBE", [_, channels @ ..]) => {
                for channel in channels {
                    *channel = self.fault.channel(&String::from_utf8_lossy(channel)).into_bytes();
                }
            }
            _ => return frame,
        }
        request(&words)
    }
}

/// What the server calls a script.
fn name_of(script: &[u8]) -> Vec<u8> {
    Sha1::from(script).digest().to_string().into_bytes()
}

/// The words of a request, or `None` if it is no array of strings.
fn words(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (count, mut rest) = number(frame, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, body) = number(rest, b'$')?;
        words.push(body.get(..length)?.to_vec());
        rest = body.get(length + 2..)?;
    }
    Some(words)
}

/// The number on the first line, which begins with that sign, and what is behind the line.
fn number(bytes: &[u8], sign: u8) -> Option<(usize, &[u8])> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let digits = bytes[..end].strip_prefix(&[sign])?;
    Some((std::str::from_utf8(digits).ok()?.parse().ok()?, &bytes[end + 2..]))
}

fn request(words: &[Vec<u8>]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        frame.extend_from_slice(word);
        frame.extend_from_slice(b"\r\n");
    }
    frame
}
