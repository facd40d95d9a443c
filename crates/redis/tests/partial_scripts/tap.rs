//! A listener between the store and the server: every script of the store runs inside of `prelude.lua`.
//!
//! Owns the connections of the store. SCRIPT LOAD loads the script with the prelude around it, EVALSHA calls that one and
//! passes on the script's own reply; all else goes through unchanged. The store under test notices nothing but a script that
//! fails when it is cut off.

use crate::fixture::Edit;
use crate::keyspace::Entry;
use crate::lua_mutants;
use leasehold_testkit::{FrameSplitter, RespConnection, Value};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

const PRELUDE: &str = include_str!("prelude.lua");
const PLACEHOLDER: &str = "__SCRIPT__\n";

/// As many commands as a script needs.
pub(crate) const WHOLE: usize = usize::MAX;

/// A listener that the store connects to.
pub(crate) struct Tap {
    pub(crate) port: u16,
    pub(crate) control: Arc<Mutex<Control>>,
    closed: Arc<AtomicBool>,
}

/// What the next script may do, and what the last one has done.
pub(crate) struct Control {
    /// The connection to the server, for scripts and the test's own commands.
    pub(crate) connection: RespConnection,
    edits: Vec<Edit>,
    /// The scripts, by the SHA-1 that the store knows.
    scripts: BTreeMap<String, Loaded>,
    /// How many commands the next script may execute.
    pub(crate) commands: usize,
    /// The keys to dump after each script.
    pub(crate) watched: Vec<String>,
    /// What the last script has done.
    pub(crate) ran: Option<Ran>,
}

/// A script that the store has loaded.
#[derive(Clone)]
struct Loaded {
    /// Its text before the edits.
    original: Arc<str>,
    /// Its text with the edits.
    edited: Arc<str>,
    /// The SHA-1 of the text with the prelude and the mutant of a generation.
    sha: String,
    generation: u64,
}

/// What a script has done.
pub(crate) struct Ran {
    pub(crate) original: Arc<str>,
    pub(crate) how: How,
    /// The names of the commands that it executed.
    pub(crate) executed: Vec<String>,
    /// Channel and text, in order.
    pub(crate) messages: Vec<(String, String)>,
    /// The watched keys afterwards, as the prelude dumps them.
    pub(crate) dump: Vec<Value>,
}

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum How {
    Whole,
    /// At the command on this line.
    CutOff(usize),
    Failed(String),
}

impl Ran {
    /// The dumped keys that exist.
    pub(crate) fn entries(&self, watched: &[String], now_ms: u64) -> BTreeMap<String, Entry> {
        let entries = watched.iter().zip(&self.dump);
        entries.filter_map(|(key, dumped)| Some((key.clone(), Entry::of(dumped, now_ms)?))).collect()
    }
}

impl Tap {
    /// A listener in front of a server, with scripts that are changed by `edits`.
    pub(crate) fn start(server: u16, connection: RespConnection, edits: Vec<Edit>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let control = Control {
            connection,
            edits,
            scripts: BTreeMap::new(),
            commands: WHOLE,
            watched: Vec::new(),
            ran: None,
        };
        let control = Arc::new(Mutex::new(control));
        let closed = Arc::new(AtomicBool::new(false));
        let (shared, is_closed) = (Arc::clone(&control), Arc::clone(&closed));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_closed.load(Ordering::Acquire) {
                    return;
                }
                let control = Arc::clone(&shared);
                // The store notices a connection that fails.
                thread::spawn(move || drop(serve(stream, server, &control)));
            }
        });
        Ok(Self { port, control, closed })
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // The connection wakes the listener.
        self.closed.store(true, Ordering::Release);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        drop(TcpStream::connect(address));
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
        let mut answer = Vec::new();
        while let Some(frame) = requests.next_frame().map_err(io::Error::other)? {
            let words = words(&frame);
            let name = words[0].to_ascii_uppercase();
            let script = name == b"SCRIPT" && words[1].eq_ignore_ascii_case(b"LOAD");
            if script || name == b"EVALSHA" {
                let control = &mut *control.lock().unwrap_or_else(PoisonError::into_inner);
                let value = if script { control.load(&words[2])? } else { control.eval(&words)? };
                encode(&value, &mut answer);
                continue;
            }
            upstream.write_all(&frame)?;
            loop {
                if let Some(reply) = replies.next_frame().map_err(io::Error::other)? {
                    answer.extend(reply);
                    break;
                }
                let length = upstream.read(&mut chunk)?;
                if length == 0 {
                    return Ok(());
                }
                replies.push(&chunk[..length]);
            }
        }
        client.write_all(&answer)?;
    }
}

impl Control {
    /// The text of a script that the store has loaded, by the name in its first line.
    pub(crate) fn script(&self, name: &str) -> Option<Arc<str>> {
        let head = format!("-- leasehold {name}\n");
        self.scripts.values().map(|loaded| loaded.original.clone()).find(|text| text.starts_with(&head))
    }

    fn load(&mut self, text: &[u8]) -> io::Result<Value> {
        let original = String::from_utf8(text.to_vec()).map_err(io::Error::other)?;
        let edited =
            self.edits.iter().fold(original.clone(), |text, (from, to)| text.replace(&sent(from), to));
        let known = self.load_text(&original)?;
        let (sha, generation) = (self.load_with_prelude(&edited)?, lua_mutants::generation());
        let loaded = Loaded { original: original.into(), edited: edited.into(), sha, generation };
        self.scripts.insert(known.clone(), loaded);
        Ok(Value::Bulk(known.into_bytes()))
    }

    fn load_text(&mut self, text: &str) -> io::Result<String> {
        let sha = self.connection.call(&["SCRIPT", "LOAD", text])?.ok()?;
        sha.text().map(str::to_owned).ok_or_else(|| io::Error::other("no SHA-1"))
    }

    /// Loads a script with the prelude, and with the present mutant. Returns its SHA-1.
    fn load_with_prelude(&mut self, script: &str) -> io::Result<String> {
        let loaded = self.load_text(&PRELUDE.replace(PLACEHOLDER, &lua_mutants::mutated(script)));
        loaded.inspect_err(|error| lua_mutants::refuse(&error.to_string()))
    }

    /// Loads a script with another mutant than before.
    fn load_again(&mut self, known: &str) -> io::Result<String> {
        let edited = self.scripts.get(known).map(|loaded| Arc::clone(&loaded.edited)).unwrap_or_default();
        let sha = self.load_with_prelude(&edited)?;
        if let Some(loaded) = self.scripts.get_mut(known) {
            loaded.sha.clone_from(&sha);
            loaded.generation = lua_mutants::generation();
        }
        Ok(sha)
    }

    /// The watched keys, as the prelude dumps them after a script that does nothing.
    pub(crate) fn dump(&mut self) -> io::Result<Vec<Value>> {
        let text = PRELUDE.replace(PLACEHOLDER, "");
        let mut call = vec!["EVAL".to_owned(), text, self.watched.len().to_string()];
        call.extend(self.watched.iter().cloned());
        call.extend(["-1".to_owned(), "0".to_owned()]);
        let value = self.connection.call(&call)?.ok()?;
        Ok(value.elements().get(4).map_or_else(Vec::new, |dump| dump.elements().to_vec()))
    }

    fn eval(&mut self, words: &[Vec<u8>]) -> io::Result<Value> {
        let known = String::from_utf8_lossy(&words[1]).into_owned();
        let Some(Loaded { original, edited, sha, generation }) = self.scripts.get(&known).cloned() else {
            return Ok(Value::Error("NOSCRIPT No matching script.".to_owned()));
        };
        lua_mutants::note(&edited);
        let sha = if generation == lua_mutants::generation() { sha } else { self.load_again(&known)? };
        let number = |bytes: &[u8]| String::from_utf8_lossy(bytes).parse::<usize>().map_err(io::Error::other);
        let (keys, arguments) = words[3..].split_at(number(&words[2])?);
        let limit = i64::try_from(self.commands).unwrap_or(-1);
        let text = |text: String| text.into_bytes();
        let mut call =
            vec![b"EVALSHA".to_vec(), text(sha), text((keys.len() + self.watched.len()).to_string())];
        call.extend_from_slice(keys);
        call.extend(self.watched.iter().map(|key| key.clone().into_bytes()));
        call.extend([text(limit.to_string()), text(keys.len().to_string())]);
        call.extend_from_slice(arguments);
        let value = self.connection.call(&call)?.ok()?;
        let [how, line, executed, messages, dump, reply @ ..] = value.elements() else {
            return Err(io::Error::other(format!("the prelude replies {value:?}")));
        };
        let reply = reply.first().cloned().unwrap_or(Value::Nil);
        let plain = |value: &Value| value.text().unwrap_or_default().to_owned();
        let how = match how.text() {
            Some("whole") => How::Whole,
            Some("cut") => {
                let before = PRELUDE.split(PLACEHOLDER).next().map_or(0, |before| before.lines().count());
                let line = line.integer().and_then(|line| usize::try_from(line).ok()).unwrap_or_default();
                How::CutOff(line.saturating_sub(before))
            }
            _ => How::Failed(format!("{reply:?}")),
        };
        let messages = messages.elements().chunks(2).map(|pair| (plain(&pair[0]), plain(&pair[1])));
        let ran = Ran {
            original,
            how: how.clone(),
            executed: executed.elements().iter().map(plain).collect(),
            messages: messages.collect(),
            dump: dump.elements().to_vec(),
        };
        self.ran = Some(ran);
        Ok(match how {
            How::Whole => reply,
            How::CutOff(_) => Value::Error("ERR cut off".to_owned()),
            How::Failed(error) => Value::Error(format!("ERR {error}")),
        })
    }
}

/// Lua as the store sends it, without the indentation. No string in an edit contains such spaces.
fn sent(lua: &str) -> String {
    let is_separator = |c: Option<&char>| c.is_none_or(|c| ",{}=~<>".contains(*c));
    let all: Vec<char> = lua.chars().collect();
    let kept = (0..all.len())
        .filter(|at| all[*at] != ' ' || !(is_separator(all[..*at].last()) || is_separator(all.get(at + 1))));
    kept.map(|at| all[at]).collect()
}

/// The words of a command.
fn words(frame: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut rest) = (Vec::new(), frame);
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let (line, behind) = (&rest[..end], &rest[end + 2..]);
        rest = behind;
        if let Some((b'$', length)) = line.split_first() {
            let length = String::from_utf8_lossy(length).parse().expect("a length");
            let (word, behind) = behind.split_at(length);
            words.push(word.to_vec());
            rest = &behind[2..];
        }
    }
    words
}

/// Encodes a reply of a script, which is the same in both versions of the protocol.
fn encode(value: &Value, bytes: &mut Vec<u8>) {
    let mut line = |kind: char, text: &str| bytes.extend(format!("{kind}{text}\r\n").into_bytes());
    match value {
        Value::Status(text) => line('+', text),
        Value::Error(text) => line('-', text),
        Value::Integer(number) => line(':', &number.to_string()),
        Value::Nil => line('$', "-1"),
        Value::Bulk(text) => {
            line('$', &text.len().to_string());
            bytes.extend_from_slice(text);
            bytes.extend_from_slice(b"\r\n");
        }
        Value::Array(items) => {
            line('*', &items.len().to_string());
            for item in items {
                encode(item, bytes);
            }
        }
    }
}
