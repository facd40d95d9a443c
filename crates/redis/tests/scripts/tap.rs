//! A listener between the store and the server that replaces the scripts by those of a mutant.
//!
//! SCRIPT LOAD goes on as it is. EVALSHA calls the script of the present mutant, which the tap loads. All else goes through
//! unchanged.

use crate::lua_mutants;
use leasehold_testkit::{FrameSplitter, RespConnection};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A listener that the store connects to.
pub(crate) struct Tap {
    port: u16,
    is_closed: Arc<AtomicBool>,
}

/// What the connections share.
struct Control {
    connection: RespConnection,
    /// The scripts of the store, by their SHA-1.
    scripts: BTreeMap<Vec<u8>, Loaded>,
}

/// A script of the store: its text, and what stands for it while a mutant is present.
struct Loaded {
    text: Arc<str>,
    generation: u64,
    sha: Vec<u8>,
}

impl Tap {
    /// A listener in front of a server on this port.
    pub(crate) fn start(server: u16, connection: RespConnection) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let control = Control { connection, scripts: BTreeMap::new() };
        let (control, is_closed) = (Arc::new(Mutex::new(control)), Arc::new(AtomicBool::new(false)));
        let closed = Arc::clone(&is_closed);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::Acquire) {
                    return;
                }
                let control = Arc::clone(&control);
                // The store notices a connection that fails.
                thread::spawn(move || drop(serve(stream, server, &control)));
            }
        });
        Ok(Self { port, is_closed })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The connection wakes the listener.
        self.is_closed.store(true, Ordering::Release);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

fn serve(mut client: TcpStream, server: u16, control: &Mutex<Control>) -> io::Result<()> {
    let mut upstream = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    for stream in [&client, &upstream] {
        stream.set_nodelay(true)?;
    }
    let (mut requests, mut replies) = (FrameSplitter::requests(), FrameSplitter::replies());
    let mut chunk = [0; 16 << 10];
    loop {
        let length = client.read(&mut chunk)?;
        if length == 0 {
            return Ok(());
        }
        requests.push(&chunk[..length]);
        let (mut sent, mut count) = (Vec::new(), 0);
        while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
            let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
            sent.extend(control.passed_on(frame)?);
            count += 1;
        }
        upstream.write_all(&sent)?;
        let mut answer = Vec::new();
        while count > 0 {
            if let Some(reply) = replies.next_frame().map_err(io::Error::other)? {
                answer.extend(reply);
                count -= 1;
                continue;
            }
            let length = upstream.read(&mut chunk)?;
            if length == 0 {
                return Ok(());
            }
            replies.push(&chunk[..length]);
        }
        client.write_all(&answer)?;
    }
}

/// `EVALSHA`, and `SCRIPT LOAD`, as the store sends them.
const CALL: &[u8] = b"$7\r\nEVALSHA\r\n$40\r\n";
const LOAD: &[u8] = b"$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$";
const SHA_LENGTH: usize = 40;

impl Control {
    /// A request of the store, as the server gets it.
    fn passed_on(&mut self, mut frame: Vec<u8>) -> io::Result<Vec<u8>> {
        let behind = |frame: &[u8], words: &[u8]| {
            let head = frame.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            frame[head..].starts_with(words).then_some(head + words.len())
        };
        if let Some(at) = behind(&frame, LOAD) {
            let length = frame[at..].iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let text = String::from_utf8_lossy(&frame[at + length..frame.len() - 2]).into_owned();
            let sha = redis::Script::new(&text).get_hash().as_bytes().to_vec();
            // No generation: the first call looks for the mutant.
            let loaded = Loaded { text: text.into(), generation: u64::MAX, sha: sha.clone() };
            self.scripts.insert(sha, loaded);
        } else if let Some(at) = behind(&frame, CALL)
            && let Some(loaded) = self.scripts.get_mut(&frame[at..at + SHA_LENGTH])
        {
            lua_mutants::note(&loaded.text);
            let generation = lua_mutants::generation();
            if loaded.generation != generation {
                loaded.sha = load(&mut self.connection, &loaded.text)?;
                loaded.generation = generation;
            }
            frame[at..at + SHA_LENGTH].copy_from_slice(&loaded.sha);
        }
        Ok(frame)
    }
}

/// Loads a script with the present mutant. Returns its SHA-1.
fn load(connection: &mut RespConnection, script: &str) -> io::Result<Vec<u8>> {
    let reply = connection.call(&["SCRIPT", "LOAD", &lua_mutants::mutated(script)])?.ok();
    let sha = reply.inspect_err(|error| lua_mutants::refuse(&error.to_string()))?;
    Ok(sha.text().unwrap_or_default().as_bytes().to_vec())
}
