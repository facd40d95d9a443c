//! A proxy between Leasehold's clients and a server that applies a mutant to their requests.
//!
//! Owns a port on loopback, and the digests of the changed scripts: a client calls a script by the digest of the text that it
//! loaded, and the server has another text. Replies pass unchanged.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use leasehold_testkit::{FrameSplitter, RedisServer};
use sha1_smol::Sha1;

use crate::mutants::Mutant;

/// The port of a proxy. Its threads end with the process: each of their connections ends with its client.
#[derive(Debug)]
pub(crate) struct MutantProxy {
    port: u16,
}

/// What all connections of a proxy share.
#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    mutant: Mutant,
    /// The digest of a changed script, by the digest that the client knows.
    digests: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
}

impl MutantProxy {
    /// Starts a proxy in front of a server.
    pub(crate) fn start(server: &RedisServer, mutant: Mutant) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let shared = Arc::new(Shared { server, mutant, digests: Mutex::default() });
        thread::Builder::new().name("mutant-proxy".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                // The client reports a connection that fails.
                let _ = shared.connect(client);
            }
        })?;
        Ok(Self { port })
    }

    /// The server's URL, through the proxy.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.server)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from, to, shared) = (client.try_clone()?, server.try_clone()?, Arc::clone(self));
        thread::Builder::new().spawn(move || {
            let _ = shared.forward_requests(from, &to);
            let _ = to.shutdown(Shutdown::Both);
        })?;
        thread::Builder::new().spawn(move || {
            let _ = io::copy(&mut &server, &mut &client);
            let _ = client.shutdown(Shutdown::Both);
        })?;
        Ok(())
    }

    /// Forwards a client's requests until the end of its output.
    fn forward_requests(&self, mut from: TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let (mut requests, mut chunk) = (FrameSplitter::requests(), [0; 16_384]);
        loop {
            match from.read(&mut chunk)? {
                0 => return Ok(()),
                length => requests.push(&chunk[..length]),
            }
            while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
                to.write_all(&self.apply_mutant(frame))?;
            }
        }
    }

    /// A request with the mutant's changes.
    fn apply_mutant(&self, frame: Vec<u8>) -> Vec<u8> {
        let mut words = words(&frame).unwrap_or_default();
        let verb = words.first().map(|verb| verb.to_ascii_uppercase()).unwrap_or_default();
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        match (verb.as_slice(), &mut words[..]) {
            (b"SCRIPT", [_, _, script]) => {
                let Some(changed) = self.mutant.apply_to(&String::from_utf8_lossy(script)) else {
                    return frame;
                };
                digests.insert(digest(script), digest(changed.as_bytes()));
                *script = changed.into_bytes();
            }
            (b"EVALSHA", [_, known, ..]) => {
                let Some(changed) = digests.get(known) else { return frame };
                known.clone_from(changed);
            }
            (b"SUBSCRIBE", [_, channels @ ..]) => {
                for channel in channels {
                    *channel = self.mutant.channel(&String::from_utf8_lossy(channel)).into_bytes();
                }
            }
            _ => return frame,
        }
        request(&words)
    }
}

/// The server's name of a script.
fn digest(script: &[u8]) -> Vec<u8> {
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

/// The number on the first line, which begins with that sign, and the bytes after the line.
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
