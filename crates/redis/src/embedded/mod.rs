//! A Redis inside the test: Lua 5.1, as Redis has it, and a [`Keyspace`]. It is there to be stopped: after any number of
//! its `redis.call`s a script does nothing more, as if it had been killed or the server had died, and nothing of what it
//! did is rolled back.
//!
//! Owns what a script sees: `KEYS` and `ARGV`, `redis.call` and `redis.pcall`, and how values become replies. It is
//! stricter than a server: a key that was not declared, an argument that is no text, and a command that is not known here
//! are panics.
//!
//! It deliberately has no sockets, no other clients, no limits of memory, no permissions and no libraries such as cjson.
//! That it does what a server does is said by `cut_off/agreement.rs`.

mod keyspace;

pub(super) use keyspace::{Content, Entry, Keyspace, crc64};

use leasehold_core::Fingerprint;
use leasehold_testkit::Value;
use mlua::debug::Debug;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An embedded Redis.
pub(super) struct EmbeddedRedis {
    lua: Lua,
    /// Runs a script, and gives what it raises as its reply.
    run: Function,
    /// The functions of the scripts that were run before. Texts are long, and to hash one costs more than to compare it.
    functions: RefCell<BTreeMap<String, Function>>,
    server: Rc<RefCell<Server>>,
}

/// What a running script changes.
#[derive(Default)]
struct Server {
    keyspace: Keyspace,
    /// The keys that the script declared.
    declared: Vec<Vec<u8>>,
    /// How many commands it may still execute.
    left: usize,
    /// The names of those that it has executed.
    executed: Vec<String>,
    /// Set once it was stopped.
    stopped: bool,
    /// The line of the first command that it did not execute.
    stopped_at: Option<usize>,
}

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    /// By itself, with this reply.
    Whole(Value),
    /// It wanted to execute one more command than it was let.
    CutOff,
}

/// What a script is called in what it raises, as at a server.
const SCRIPT: &str = "user_script";

/// As many commands as it likes.
pub(super) const WHOLE: usize = usize::MAX;

impl EmbeddedRedis {
    pub(super) fn new() -> Self {
        Self::with_lua().expect("Lua is made with what is in this file only")
    }

    fn with_lua() -> mlua::Result<Self> {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE | StdLib::MATH, LuaOptions::default())?;
        let server = Rc::new(RefCell::new(Server::default()));
        let host = Rc::clone(&server);
        let execute = lua.create_function(move |lua, args: MultiValue| {
            let reply = host.borrow_mut().execute(lua, &args)?;
            lua_value(lua, &reply)
        })?;
        let sha1hex =
            lua.create_function(|_, text: mlua::LuaString| Ok(Fingerprint::of(&text.to_str()?).to_string()))?;
        let run = lua.load(include_str!("prelude.lua")).call((execute, sha1hex))?;
        Ok(Self { lua, run, functions: RefCell::default(), server })
    }

    /// What stands at its keys now.
    pub(super) fn keyspace(&self) -> Keyspace {
        self.server.borrow().keyspace.clone()
    }

    /// Puts other keys there.
    pub(super) fn load(&self, keyspace: Keyspace) {
        self.server.borrow_mut().keyspace = keyspace;
    }

    /// Looks at the keys, or changes them.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Keyspace) -> T) -> T {
        f(&mut self.server.borrow_mut().keyspace)
    }

    /// The commands of the script that ran last.
    pub(super) fn executed(&self) -> Vec<String> {
        self.server.borrow().executed.clone()
    }

    /// Where the script that ran last was stopped: the line of the first command that it did not execute.
    pub(super) fn stopped_at(&self) -> Option<usize> {
        self.server.borrow().stopped_at
    }

    /// Runs a script, for so many commands at most. What it raises is an error reply, as at a server.
    pub(super) fn eval(&self, text: &str, keys: &[Vec<u8>], args: &[Vec<u8>], commands: usize) -> Ran {
        self.begin(keys, commands);
        let reply = self.call(text, keys, args);
        if self.server.borrow().stopped {
            return Ran::CutOff;
        }
        Ran::Whole(reply.unwrap_or_else(|error| panic!("a script that is no Lua: {error}")))
    }

    fn begin(&self, keys: &[Vec<u8>], commands: usize) {
        let server = &mut *self.server.borrow_mut();
        server.declared = keys.to_vec();
        server.left = commands;
        server.executed.clear();
        server.stopped = false;
        server.stopped_at = None;
    }

    fn call(&self, text: &str, keys: &[Vec<u8>], args: &[Vec<u8>]) -> mlua::Result<Value> {
        let globals = self.lua.globals();
        for (name, texts) in [("KEYS", keys), ("ARGV", args)] {
            let texts = texts.iter().map(|text| self.lua.create_string(text));
            let texts = texts.collect::<mlua::Result<Vec<_>>>()?;
            globals.raw_set(name, self.lua.create_sequence_from(texts)?)?;
        }
        reply(&self.run.call(self.function(text)?)?)
    }

    fn function(&self, text: &str) -> mlua::Result<Function> {
        if let Some(function) = self.functions.borrow().get(text) {
            return Ok(function.clone());
        }
        let function = self.lua.load(text).set_name(format!("={SCRIPT}")).into_function()?;
        self.functions.borrow_mut().insert(text.to_owned(), function.clone());
        Ok(function)
    }
}

impl Server {
    /// Executes a command of a script, unless it was stopped. After that every further one fails as well: a script that
    /// catches the error does nothing any more.
    fn execute(&mut self, lua: &Lua, args: &MultiValue) -> mlua::Result<Value> {
        if self.left == 0 {
            if !self.stopped {
                self.stopped_at = line_of_script(lua);
            }
            self.stopped = true;
            return Err(mlua::Error::runtime("cut off"));
        }
        self.left -= 1;
        let command: Vec<Vec<u8>> = args.iter().map(argument).collect();
        for key in Keyspace::keys_of(&command) {
            assert!(self.declared.contains(key), "`{}` was not declared", String::from_utf8_lossy(key));
        }
        self.executed.push(String::from_utf8_lossy(&command[0]).into_owned());
        Ok(self.keyspace.execute(&command))
    }
}

/// The line at which a script calls what runs now.
fn line_of_script(lua: &Lua) -> Option<usize> {
    let line = |function: &Debug<'_>| {
        let script = function.source().short_src.is_some_and(|name| name == SCRIPT);
        script.then(|| function.current_line()).flatten()
    };
    // The command itself, and `redis.call` around it, are before the script.
    (0..3).find_map(|level| lua.inspect_stack(level, line).flatten())
}

fn argument(value: &mlua::Value) -> Vec<u8> {
    match value {
        mlua::Value::String(text) => text.as_bytes().to_vec(),
        // Redis takes numbers too, and writes them in a way of its own. Ours are texts before they come here.
        other => panic!("an argument of a command is a {}", other.type_name()),
    }
}

/// A reply of a command as Lua sees it.
fn lua_value(lua: &Lua, reply: &Value) -> mlua::Result<mlua::Value> {
    let tagged = |field: &str, text: &str| {
        let table = lua.create_table()?;
        table.raw_set(field, text)?;
        Ok(mlua::Value::Table(table))
    };
    match reply {
        Value::Status(text) => tagged("ok", text),
        Value::Error(text) => tagged("err", text),
        // A number of Lua 5.1 is a double: exact up to 53 bits, as at a server.
        #[allow(clippy::cast_precision_loss, reason = "this is what a server does")]
        Value::Integer(number) => Ok(mlua::Value::Number(*number as f64)),
        Value::Bulk(text) => Ok(mlua::Value::String(lua.create_string(text)?)),
        Value::Nil => Ok(mlua::Value::Boolean(false)),
        Value::Array(items) => {
            let items = items.iter().map(|item| lua_value(lua, item)).collect::<mlua::Result<Vec<_>>>()?;
            Ok(mlua::Value::Table(lua.create_sequence_from(items)?))
        }
    }
}

/// What a script returns, as a reply.
fn reply(value: &mlua::Value) -> mlua::Result<Value> {
    Ok(match value {
        mlua::Value::String(text) => Value::Bulk(text.as_bytes().to_vec()),
        mlua::Value::Integer(number) => Value::Integer(*number),
        #[allow(clippy::cast_possible_truncation, reason = "a server cuts the fraction off")]
        mlua::Value::Number(number) => Value::Integer(*number as i64),
        mlua::Value::Boolean(true) => Value::Integer(1),
        mlua::Value::Table(table) => table_reply(table)?,
        _ => Value::Nil,
    })
}

fn table_reply(table: &Table) -> mlua::Result<Value> {
    if let mlua::Value::String(text) = table.raw_get("err")? {
        return Ok(Value::Error(text.to_string_lossy()));
    }
    if let mlua::Value::String(text) = table.raw_get("ok")? {
        return Ok(Value::Status(text.to_string_lossy()));
    }
    // Up to the first nil: what follows is lost, as at a server.
    table
        .sequence_values::<mlua::Value>()
        .map(|item| reply(&item?))
        .collect::<mlua::Result<_>>()
        .map(Value::Array)
}
