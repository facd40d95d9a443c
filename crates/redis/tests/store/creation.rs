//! What servers do with a script that creates a hash and then sets its expiry: the claims of `create_hash.lua`.

use leasehold_testkit::{RedisServer, Value};
use std::time::{Duration, Instant};

/// The fragment, called for one key.
const SCRIPT: &str =
    concat!(include_str!("../../src/lua/create_hash.lua"), "create_hash(KEYS[1], '60000', 'format', '1')\n");

/// What a script does after it has written: it takes much longer than [`BUSY_MS`].
const RUNS: &str = "local sum = 0 for i = 1, 100000000 do sum = sum + i end\n";

/// After this time of a script, the server accepts SCRIPT KILL.
const BUSY_MS: &str = "20";

fn keys(server: &RedisServer) -> usize {
    server.cli(&["KEYS", "*"]).unwrap().elements().len()
}

/// The text of a reply that is an error.
fn error(reply: &Value) -> &str {
    let Value::Error(text) = reply else { panic!("{reply:?}") };
    text
}

#[test]
fn without_the_permission_for_pexpire_nothing_is_written() {
    let server = RedisServer::start().unwrap();
    server
        .cli(&["ACL", "SETUSER", "locks", "on", ">pw", "~*", "+eval", "+hset", "+set"])
        .unwrap()
        .ok()
        .unwrap();
    let mut client = server.connect().unwrap();
    client.call(&["AUTH", "locks", "pw"]).unwrap().ok().unwrap();
    let reply = client.call(&["EVAL", SCRIPT, "1", "record"]).unwrap();
    let refused = error(&reply);
    assert!(refused.contains("can't run") || refused.contains("no permissions"), "{refused}");
    assert_eq!(keys(&server), 0);
    // With it, the same user writes both.
    server.cli(&["ACL", "SETUSER", "locks", "+pexpire"]).unwrap().ok().unwrap();
    client.call(&["EVAL", SCRIPT, "1", "record"]).unwrap().ok().unwrap();
    assert!(server.cli(&["PTTL", "record"]).unwrap().integer() > Some(0));
}

#[test]
fn a_script_that_has_written_is_not_killed() {
    let server = RedisServer::builder().config("lua-time-limit", BUSY_MS).start().unwrap();
    let runs = SCRIPT.replacen(
        "redis.call('HSET', key, ...)\n",
        &format!("redis.call('HSET', key, ...)\n{RUNS}"),
        1,
    );
    assert_ne!(runs, SCRIPT);
    let mut client = server.connect().unwrap();
    client.send(&["EVAL", &runs, "1", "record"]).unwrap();
    let mut other = server.connect().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let killed = loop {
        let reply = other.call(&["SCRIPT", "KILL"]).unwrap();
        // NOTBUSY: the script has not run for that long yet.
        if !error(&reply).starts_with("NOTBUSY") || Instant::now() > deadline {
            break reply;
        }
    };
    assert!(error(&killed).starts_with("UNKILLABLE"), "{killed:?}");
    client.receive().unwrap().ok().unwrap();
    assert!(server.cli(&["PTTL", "record"]).unwrap().integer() > Some(0));
}

#[test]
fn full_memory_refuses_both_or_neither() {
    let server = RedisServer::start().unwrap();
    server.cli(&["HSET", "present", "a", "b"]).unwrap().ok().unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    let pexpire = server.cli(&["PEXPIRE", "present", "60000"]).unwrap();
    assert_eq!(pexpire.integer(), Some(1), "PEXPIRE is not refused");
    let reply = server.cli(&["EVAL", SCRIPT, "1", "record"]).unwrap();
    assert!(error(&reply).contains("OOM"), "{reply:?}");
    assert_eq!(keys(&server), 1, "only the one that was there");
    // A script that has written goes on: here DEL, which full memory does not refuse.
    let after_write = format!("redis.call('DEL', KEYS[2])\n{SCRIPT}");
    server.cli(&["EVAL", &after_write, "2", "record", "present"]).unwrap().ok().unwrap();
    assert!(server.cli(&["PTTL", "record"]).unwrap().integer() > Some(0));
}

/// The append-only file has what replicas receive.
#[test]
fn both_commands_reach_the_append_only_file_in_one_transaction() {
    let server = RedisServer::builder().appendonly().start().unwrap();
    server.cli(&["EVAL", SCRIPT, "1", "record"]).unwrap().ok().unwrap();
    let commands = server.append_only_file().unwrap();
    let at = |word: &str| commands.find(word).unwrap_or_else(|| panic!("{word} in {commands}"));
    let (begin, write, expiry, end) = (at("MULTI"), at("HSET"), at("PEXPIRE"), at("EXEC"));
    assert!(begin < write && write < expiry && expiry < end, "{commands}");
}
