//! What each command costs the server inside a script.
//!
//! The scripts of a lock consist of few commands, so this shows where the time of an acquire and a release goes
//! (docs/explanation/performance.md). A script repeats one command in a loop; the server counts its own time.

use crate::chart::Spread;
use crate::launch::start_server;
use crate::meter::{Machine, ServerStats};
use crate::report::{Output, per};
use anyhow::{Context, Result, ensure};
use leasehold_testkit::{RedisServer, RespConnection};
use serde::Serialize;

/// A lock's value, as long as a hold, and its record.
const HOLD: &str = "AQEBAQEBAQEBAQEB.AQEBAQEBAQEBAQEBAQEBAQ";
const RECORD: &str = "1\n1762000000000000\n\n\nAQEBAQEBAQEBAQEB.AQEBAQEBAQEBAQEBAQEBAQ\n1762000000000\ns10000\n\nweb-3/4711/billing";

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    output: Output,
    /// How many rounds alternate.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// How often a script repeats its command.
    #[arg(long, default_value_t = 20_000)]
    repeats: u64,
}

/// A command, as scripts call it. `KEYS` are a lock, its record and the watermark; `ARGV[2]` is the hold, `ARGV[3]` the record.
struct Call {
    name: &'static str,
    lua: &'static str,
    /// What runs beside it in each repetition, and is not counted.
    beside: Option<&'static str>,
}

const fn call(name: &'static str, lua: &'static str) -> Call {
    Call { name, lua, beside: None }
}

const SET_LOCK: &str = "redis.call('SET', KEYS[1], ARGV[2], 'PX', 30000)";

/// A script that does nothing, and fifteen commands.
const NO_COMMAND: &str = "script";
const CALLS: [Call; 15] = [
    call("MGET of 3 keys", "redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])"),
    call("GET", "redis.call('GET', KEYS[1])"),
    call("TIME", "redis.call('TIME')"),
    call("SET with PX", SET_LOCK),
    call("SET with KEEPTTL", "redis.call('SET', KEYS[2], ARGV[3], 'KEEPTTL')"),
    call("SET with PXAT", "redis.call('SET', KEYS[3], '1762000000000000', 'PXAT', '4000000000000')"),
    Call { name: "DEL", lua: "redis.call('DEL', KEYS[1])", beside: Some(SET_LOCK) },
    call(
        "HMGET of 7 fields",
        "redis.call('HMGET', KEYS[4], 'format', 'last', 'holder', 'ended', 'queue', 'w:', 'reserved')",
    ),
    call("HMGET of 5 fields", "redis.call('HMGET', KEYS[4], 'last', 'reserved', 'w:', 'n:', 'w:x')"),
    call("HGET", "redis.call('HGET', KEYS[4], 'holder')"),
    call(
        "HSET of 3 fields",
        "redis.call('HSET', KEYS[4], 'last', '1762000000000000', 'holder', ARGV[3], 'queue', ARGV[2])",
    ),
    call("HDEL", "redis.call('HDEL', KEYS[4], 'none')"),
    call("PTTL", "redis.call('PTTL', KEYS[1])"),
    call("PEXPIRE", "redis.call('PEXPIRE', KEYS[1], 30000)"),
    call("PUBLISH", "redis.call('PUBLISH', 'a channel without subscribers', ARGV[2])"),
];

/// What the scenario measured. Every field is documented in docs/reference/benchmarks.md.
#[derive(Debug, Serialize)]
struct CallsReport {
    scenario: &'static str,
    call: &'static str,
    /// Microseconds of the server for each.
    us: f64,
    us_spread: [f64; 2],
    rounds: usize,
    repeats: u64,
    #[serde(flatten)]
    machine: Machine,
}

/// Runs the scenario.
pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.repeats > 0, "nothing to repeat");
    let server = start_server()?;
    let mut connection = server.connect()?;
    let mut script_us = Vec::new();
    let mut all_us: Vec<Vec<f64>> = CALLS.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds {
        script_us.push(empty_scripts(&server, &mut connection, options.repeats)?);
        for (call, us) in CALLS.iter().zip(&mut all_us) {
            let beside = call.beside.map(|lua| repeated(&server, &mut connection, lua, options.repeats));
            let beside_us = beside.transpose()?.unwrap_or(0.0);
            let lua = [call.beside.unwrap_or_default(), " ", call.lua].concat();
            us.push(repeated(&server, &mut connection, &lua, options.repeats)? - beside_us);
        }
    }
    let names = [NO_COMMAND].into_iter().chain(CALLS.iter().map(|call| call.name));
    for (name, us) in names.zip([script_us].into_iter().chain(all_us)) {
        let us = Spread::over(&us, |us| *us);
        let report = CallsReport {
            scenario: "calls",
            call: name,
            us: us.median,
            us_spread: us.ends(),
            rounds: options.rounds,
            repeats: options.repeats,
            machine: Machine::with(&server)?,
        };
        options.output.print(&report, || report.sentence())?;
    }
    Ok(())
}

/// Loads a script, and returns its digest.
fn load(connection: &mut RespConnection, script: &str) -> Result<String> {
    let sha = connection.call(&["SCRIPT", "LOAD", script])?.ok()?;
    Ok(sha.text().context("no digest")?.to_owned())
}

/// Microseconds for each repetition of a piece of Lua in one script.
fn repeated(server: &RedisServer, connection: &mut RespConnection, lua: &str, repeats: u64) -> Result<f64> {
    let script = format!("for _ = 1, tonumber(ARGV[1]) do {lua} end");
    let sha = load(connection, &script)?;
    let before = ServerStats::read(server)?;
    let count = repeats.to_string();
    connection
        .call(&["EVALSHA", &sha, "4", "lock", "record", "watermark", "hash", &count, HOLD, RECORD])?
        .ok()?;
    Ok(per(ServerStats::read(server)?.since(before).scripts_us, repeats))
}

/// Microseconds for each call of a script without commands, with the keys and as many arguments as an acquire has.
fn empty_scripts(server: &RedisServer, connection: &mut RespConnection, repeats: u64) -> Result<f64> {
    let sha = load(connection, "return 1")?;
    let before = ServerStats::read(server)?;
    for _ in 0..repeats {
        let request = ["EVALSHA", &sha, "3", "lock", "record", "watermark", HOLD, "", "", "30000", "a label"];
        connection.call(&[&request[..], &["", "", "", "s10000"]].concat())?.ok()?;
    }
    Ok(per(ServerStats::read(server)?.since(before).scripts_us, repeats))
}

impl CallsReport {
    fn sentence(&self) -> String {
        let [least, most] = self.us_spread;
        format!("calls: {} takes the server {:.2} us ({least:.2} to {most:.2})", self.call, self.us)
    }
}
