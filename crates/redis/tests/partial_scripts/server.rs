//! A real server under a clock of the test, and its keys, which the test can put back.
//!
//! 1. `keyspace` is what the server must have before the next script or command. Only the keys that differ are written.
//! 2. Keys are written while the clock stands far in the past, because a server deletes a key whose expiry is now.

use crate::fixture::Edit;
use crate::keyspace::Keyspace;
use crate::lua_mutants;
use crate::tap::{Control, How, Ran, Tap, WHOLE};
use leasehold_testkit::{FrozenClock, RedisServer, Value};
use std::io;
use std::sync::{MutexGuard, PoisonError};

/// A server, and the tap in front of it.
pub(crate) struct Server {
    clock: FrozenClock,
    /// The time of the clock.
    shown_us: i64,
    now_us: u64,
    /// The keys that the server must have (1).
    keyspace: Keyspace,
    /// The keys that the server has.
    present: Keyspace,
    /// The commands of the script that ran last.
    executed: Vec<String>,
    tap: Tap,
    /// Last, so that it outlives its clients.
    _process: RedisServer,
}

/// Long before any test, in microseconds.
const LONG_AGO_US: i64 = 1_000_000;

/// Executes commands, each of which is preceded by the number of its words.
const RESTORE: &str = "local at = 1
while ARGV[at] do
  local last = at + tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end";

impl Server {
    /// Starts a server whose scripts are changed by `edits`.
    pub(crate) fn start(edits: &[Edit]) -> io::Result<Self> {
        let clock = FrozenClock::new(LONG_AGO_US)?;
        let process = RedisServer::builder().clock(&clock).lazy_expiry().start()?;
        let tap = Tap::start(process.port(), process.connect()?, edits.to_vec())?;
        Ok(Self {
            clock,
            shown_us: LONG_AGO_US,
            now_us: 0,
            keyspace: Keyspace::default(),
            present: Keyspace::default(),
            executed: Vec::new(),
            tap,
            _process: process,
        })
    }

    /// The port for the store.
    pub(crate) fn port(&self) -> u16 {
        self.tap.port
    }

    /// Sets the keys that are read after each script.
    pub(crate) fn watch(&self, keys: Vec<String>) {
        self.control().watched = keys;
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.tap.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock, backwards too.
    pub(crate) fn set_now_us(&mut self, now_us: u64) {
        self.now_us = now_us;
        self.keyspace.expire(now_us / 1000);
    }

    /// Its keys.
    pub(crate) fn keyspace(&self) -> Keyspace {
        self.keyspace.clone()
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Replaces the keys before the next script or command.
    pub(crate) fn load(&mut self, keyspace: Keyspace) {
        self.keyspace = keyspace;
    }

    /// Takes the messages that were published since the last call.
    pub(crate) fn take_messages(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.keyspace.messages)
    }

    /// The commands of the script that ran last.
    pub(crate) fn executed(&self) -> String {
        self.executed.join(" ")
    }

    /// Prepares for one script, which may execute that many commands.
    pub(crate) fn begin(&mut self, commands: usize) -> io::Result<()> {
        self.synchronise()?;
        let mut control = self.control();
        control.commands = commands;
        control.ran = None;
        Ok(())
    }

    /// What the script has done, if one ran.
    pub(crate) fn end(&mut self) -> Option<Ran> {
        let now_ms = self.now_us / 1000;
        let mut control = self.control();
        control.commands = WHOLE;
        let ran = control.ran.take();
        let keys = ran.as_ref().map(|ran| ran.entries(&control.watched, now_ms));
        drop(control);
        self.executed = ran.as_ref().map_or_else(Vec::new, |ran| ran.executed.clone());
        if let (Some(ran), Some(keys)) = (&ran, keys) {
            self.keyspace.keys.clone_from(&keys);
            self.keyspace.messages.extend(ran.messages.iter().cloned());
            self.present.keys = keys;
        }
        ran
    }

    /// Runs a script that the store has loaded, whole and without the prelude, and returns the reply.
    pub(crate) fn eval(&mut self, name: &str, keys: &[&str], arguments: &[&str]) -> io::Result<Value> {
        self.synchronise()?;
        let mut control = self.control();
        let text = control.script(name).ok_or_else(|| io::Error::other(format!("no script {name}")))?;
        lua_mutants::note(&text);
        let text = lua_mutants::mutated(&text);
        let count = keys.len().to_string();
        let call = [&["EVAL", &text, &count], keys, arguments].concat();
        let reply = control.connection.call(&call)?;
        drop(control);
        // Reads the keys.
        self.command(&["TIME"])?;
        Ok(reply)
    }

    /// Executes a command of the test's own.
    pub(crate) fn command(&mut self, words: &[&str]) -> io::Result<()> {
        self.synchronise()?;
        self.control().connection.call(words)?.ok()?;
        // An empty script dumps the keys.
        let mut control = self.control();
        let watched = control.watched.clone();
        let dump = control.dump()?;
        drop(control);
        let ran =
            Ran { dump, original: "".into(), how: How::Whole, executed: Vec::new(), messages: Vec::new() };
        self.keyspace.keys = ran.entries(&watched, self.now_us / 1000);
        self.present.keys.clone_from(&self.keyspace.keys);
        Ok(())
    }

    /// Writes the keys that differ, and sets the clock.
    fn synchronise(&mut self) -> io::Result<()> {
        let all = self.present.keys.keys().chain(self.keyspace.keys.keys());
        let mut commands = Vec::new();
        for key in all.collect::<std::collections::BTreeSet<_>>() {
            let (present, wanted) = (self.present.keys.get(key), self.keyspace.keys.get(key));
            if present != wanted {
                commands.push(vec![b"DEL".to_vec(), key.as_bytes().to_vec()]);
                commands.extend(wanted.into_iter().flat_map(|entry| entry.commands(key)));
            }
        }
        if !commands.is_empty() {
            self.set_clock(LONG_AGO_US)?;
            // In one call, since there are many.
            let mut call = vec![b"EVAL".to_vec(), RESTORE.as_bytes().to_vec(), b"0".to_vec()];
            for command in commands {
                call.push(command.len().to_string().into_bytes());
                call.extend(command);
            }
            self.control().connection.call(&call)?.ok()?;
            self.present.keys.clone_from(&self.keyspace.keys);
        }
        self.set_clock(self.now_us.cast_signed())
    }

    fn set_clock(&mut self, to_us: i64) -> io::Result<()> {
        if self.shown_us != to_us {
            self.clock.set_us(to_us)?;
            self.shown_us = to_us;
        }
        Ok(())
    }
}
