//! Every example runs: without arguments, unless it needs a server, and with `LEASEHOLD_STORE` on Redis.
//!
//! Each runs in a process of its own, as users run it. The process is this executable again, which contains the
//! examples: cargo builds no examples if one test is selected, and builds them as tests with `--all-targets`.

use leasehold_testkit::{Quorum, RedisServer, Worker};
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "../examples/blocking.rs"]
mod blocking;
#[path = "../examples/change_a_prefix.rs"]
mod change_a_prefix;
#[path = "../examples/fred_connection.rs"]
mod fred_connection;
#[path = "../examples/from_setnx/main.rs"]
mod from_setnx;
#[path = "../examples/graceful_stop.rs"]
mod graceful_stop;
#[path = "../examples/guarded_over_http.rs"]
mod guarded_over_http;
#[path = "../examples/guarded_writes.rs"]
mod guarded_writes;
#[path = "../examples/inspect_and_free.rs"]
mod inspect_and_free;
#[path = "../examples/leader.rs"]
mod leader;
#[path = "../examples/lottery.rs"]
mod lottery;
#[path = "../examples/marketplace.rs"]
mod marketplace;
#[path = "../examples/migrate.rs"]
mod migrate;
#[path = "../examples/n_at_once.rs"]
mod n_at_once;
#[path = "../examples/once_per_hour.rs"]
mod once_per_hour;
#[path = "../examples/owner_over_http.rs"]
mod owner_over_http;
#[path = "../examples/quorum.rs"]
mod quorum;
#[path = "../examples/rate_limited_workers.rs"]
mod rate_limited_workers;
#[path = "../examples/read_write.rs"]
mod read_write;
#[path = "../examples/reentrant.rs"]
mod reentrant;
#[path = "../examples/retry_policies.rs"]
mod retry_policies;
#[path = "../examples/stopped_instance.rs"]
mod stopped_instance;
#[path = "../examples/two_instances.rs"]
mod two_instances;
#[path = "../examples/web_service.rs"]
mod web_service;

/// Selects the example that a process runs.
const WHICH: &str = "LEASEHOLD_EXAMPLE";
/// The time limit of an example.
const LIMIT: Duration = Duration::from_secs(60);

/// Each example, and parts of its output, in this order; after a `;` those that need a server, and after another those
/// that have a test of their own below.
macro_rules! examples {
    (
        $($name:ident says $($said:literal),+;)*
        ; $($alone:ident says $($said_alone:literal),+;)*
        ; $($other:ident;)*
    ) => {
        /// The entry point of the processes: one example.
        #[test]
        fn example() {
            let ended = match std::env::var(WHICH).as_deref() {
                Err(_) => return,
                $(Ok(stringify!($name)) => $name::main().map_err(|error| error.to_string()),)*
                $(Ok(stringify!($alone)) => $alone::main().map_err(|error| error.to_string()),)*
                $(Ok(stringify!($other)) => $other::main().map_err(|error| error.to_string()),)*
                Ok(other) => panic!("there is no example `{other}`"),
            };
            ended.expect("the example ends well");
        }

        mod without_arguments {
            $(#[test]
            fn $name() {
                super::check(stringify!($name), None, &[$($said),+]);
            })*
        }

        mod on_redis {
            $(#[test]
            fn $name() {
                let server = super::RedisServer::start().expect("redis-server boots");
                super::check(stringify!($name), Some(&server.url()), &[$($said),+]);
            })*

            $(#[test]
            fn $alone() {
                let server = super::RedisServer::start().expect("redis-server boots");
                super::check(stringify!($alone), Some(&server.url()), &[$($said_alone),+]);
            })*
        }
    };
}

examples! {
    blocking says "counted to 100";
    graceful_stop says "working, as hold", "the work has ended", "the lock is free for the next worker: true";
    guarded_over_http says "rejected the late writes";
    guarded_writes says "the stale write changed 0", "the late write was rejected";
    inspect_and_free says "held by deploy, step 1, for 60 minutes, 0 waiting; with a session: false",
        "adopted by step 2, and renewed from now on; still held: true", "held: false", "freed from hold",
        "not freed a second time: it has another holder",
        "audit: the hold of deploy, step 1 ended, ForceReleased by operator";
    leader says "no leader yet", "leads", "leads", "leads", "numbers [1, 2, 3, 4, 5, 6]; the late one was rejected";
    lottery says "1 drew";
    marketplace says "came too late: rejected", "6 bought, and 6 sold";
    n_at_once says "all 10 are done", "at most 3 at a time: true";
    once_per_hour says "sent 1 times", "the cooldown lasts 55 minutes more";
    owner_over_http says "the shop received: 200 OK, paid; hold 2 of its owner",
        "another client received: 423 Locked", "later it received: 200 OK, paid; hold 1 of its owner";
    rate_limited_workers says "the hourly report is sent", "12 calls by 4 workers", "at most 3 in any 200ms: true", "1 report";
    read_write says "two have read at the same time", "no reader is admitted during the write: held by", "written, as hold",
        "read again, beside another reader", "nothing to write";
    reentrant says "the account is still held 3 times", "the account is still held 1 times",
        "another owner does not get in: held by", "for good", "another owner waited", "inside at the same time";
    retry_policies says "one try: held by holder", "the longest pauses: [10ms, 20ms, 40ms]", "four tries: held by holder",
        "200 ms of tries: held by holder", "200 ms in the queue: held by holder", "in the queue: granted",
        "by a policy without a limit: granted";
    stopped_instance says "holder: I hold the lock, and am about to write", "the holder is stopped",
        "the successor holds the lock, and its write changed 1 row", "holder: my late write changed 0 rows",
        "is lost: ", "in the database: written by the successor";
    web_service says "alone: 200 OK, order 1 is shipped", "while another instance works: 409 Conflict, another request changes this order",
        "under way: 200 OK, order 3 is shipped", "the service has ended, and its lock is free: true";
    ;
    change_a_prefix says "[Old, Both]: at most 1 at once", "[Both, Both]: at most 1 at once",
        "[Both, New]: at most 1 at once", "[Old, New]: both hold it: true",
        "the token under the new prefix is greater: true";
    fred_connection says "held with the fencing token", "a second attempt: taken", "released";
    migrate says "by hand: true", "redsync: true", "rslock: true", "Redisson: true", "ShedLock: true",
        "ShedLock, again: false", "while a migrated client holds the lock, SET NX acquires it: false",
        "SET NX acquires it: true, and a migrated client is refused: true",
        "after its DEL, a migrated client acquires it: true";
    ;
    from_setnx;
    quorum;
    two_instances;
}

/// Each step fails by hand, and not with Leasehold. It starts servers of its own.
#[test]
fn from_setnx_fails_by_hand_and_not_here() {
    let said = [
        "step 1:",
        "by hand: A holds the lock: true, B holds the lock: true",
        "Leasehold: 1 of the two holds the lock",
        "step 2:",
        "by hand: A held the lock: true, and died. B holds it: false. Time to live: -1, for ever",
        "Leasehold: taken while A lived: true. A was killed, and B holds it: true",
        "step 3:",
        "by hand: A died between the two. B holds the lock: false. Time to live: -1, for ever",
        "Leasehold: keys without an expiry: 0. The lock has one, of a lease: true",
        "step 4:",
        "by hand: A deleted the lock of B. B holds it: true, C holds it: true",
        "Leasehold: the release of A says that the lock was lost: true. B holds it: true, C holds it: false",
        "step 5:",
        "by hand: a late release of A ended the hold of B: false",
        "by hand: an error: true; the second try acquires it: false. The holder is \"A, first try\"",
        "Leasehold: A acquires it by a resend, B is refused: true. One release frees it: true",
        "step 6:",
        "by hand: an error: true. Sent again: count 2. After the release: count 1",
        "by hand: A is done, and B enters: false",
        "Leasehold: count 1. One release ends it: true. B enters: true",
        "step 7:",
        "by hand: A hangs, and its lock was renewed 12 times. B holds it: false",
        "Leasehold: the hold of A ended by its cap: true. B holds it: true",
        "step 8:",
        "by hand: A was dead, and B lost its lock. B holds it: true, C holds it: true",
        "Leasehold: freed from the dead A: 1, from the living B: 0",
        "Leasehold: to free what A held is refused: true. B holds it: true",
        "step 9:",
        "by hand: a node restarted. A holds the lock: true, B holds the lock: true",
        "Leasehold: two of three nodes restarted. A holds the lock: false, B holds the lock: true",
        "step 10:",
        "by hand, without a token: the value is \"of A, late\"",
        "by hand, with INCR: A has 2, and after a restart B has 1. B can write: false",
        "Leasehold: after a restart B can write: true, A can write: false",
        "Leasehold: the value is \"of B\"",
        "step 11:",
        "by hand: B came first, and was overtaken 3 times",
        "Leasehold: A overtakes: false. The order of the others: B, C, D",
    ];
    let page = include_str!("../../../docs/explanation/from-setnx.md");
    for line in said {
        assert!(page.contains(line), "the page does not show this: {line}");
    }
    // Eleven steps, two dozen servers.
    check_within(3 * LIMIT, "from_setnx", None, &said);
}

/// One instance is killed, and the other takes over. That one is stopped while it works: the first takes over, and the
/// late write is refused.
#[test]
fn two_instances_take_over_and_refuse_a_late_write() {
    let server = RedisServer::start().expect("redis-server boots");
    let start = |instance: &str, work_seconds: &str| {
        let mut command = example_of("two_instances");
        command
            .env("LEASEHOLD_STORE", server.url())
            .env("INSTANCE", instance)
            .env("WORK_SECONDS", work_seconds);
        Worker::of_command(command).start().expect("it starts")
    };
    let deadline = Instant::now() + LIMIT;
    let mut one = start("one", "0.1");
    hear(&mut one, "one: wrote invoice 1", deadline);
    // It works for so long that it is stopped meanwhile.
    let mut two = start("two", "10");
    hear(&mut two, "two: waits for the lock", deadline);
    one.kill().expect("killed");
    hear(&mut two, "two: works on invoice", deadline);
    two.stop().expect("stopped");
    let mut one = start("one", "0.1");
    hear(&mut one, "one: wrote invoice", deadline);
    two.resume().expect("it continues");
    hear(&mut two, "two: refused: a later holder", deadline);
    hear(&mut one, "one: wrote invoice", deadline);
    one.kill().expect("killed");
    two.kill().expect("killed");
}

/// It boots five nodes, since it is given no store.
#[test]
fn a_quorum_of_five_loses_two_nodes() {
    let said = [
        "held on 5 of 5 nodes; lost if 3 of these forget it",
        "two nodes are lost",
        "held on 3 of 5 nodes; lost if 1 of these forget it",
        "another client does not get it",
        "the other client has the lock",
        "a third node is lost",
        "no lock: ",
    ];
    check("quorum", None, &said);
}

/// It kills none of them.
#[test]
fn a_quorum_of_the_user_loses_no_node() {
    let nodes = Quorum::start(5).expect("five servers boot");
    let store = format!("{}?min_uptime=0s&node_timeout=1s", nodes.url());
    check("quorum", Some(&store), &["held on 5 of 5 nodes", "released"]);
}

/// What only Redis has: a client of another library.
#[test]
fn a_key_without_an_expiry_is_adopted() {
    let server = RedisServer::start().expect("redis-server boots");
    let said = [
        "held by a client of another library, without an expiry",
        "the key has got an expiry, which is over: the lock is held by this client",
    ];
    check("inspect_and_free", Some(&server.url()), &said);
}

/// The statements in the docs are those that the example runs.
#[test]
fn the_docs_show_what_is_run() {
    let (docs, example) =
        (include_str!("../../../docs/how-to/guard-writes.md"), include_str!("../examples/guarded_writes.rs"));
    let section = docs.split("## The statements").nth(1).expect("there is such a section");
    let section = section.split("\n## ").next().expect("a split gives something");
    let blocks: Vec<_> = section.split("```").skip(1).step_by(2).collect();
    assert_eq!(blocks.len(), 2, "one for SQL, and one for Lua");
    for block in blocks {
        let (_, code) = block.split_once('\n').expect("a language stands in the first line");
        assert!(example.contains(code.trim_end()), "the example does not contain this:\n{code}");
    }
}

/// The second process of `owner_over_http` detects the end of the first one by its input alone, even if that one was
/// killed.
#[test]
fn the_till_ends_with_the_shop() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = example_of("owner_over_http");
    command.env("LEASEHOLD_EXAMPLE_TILL", format!("sqlite:{}", folder.path().join("locks.db").display()));
    let mut till = Worker::of_command(command).start().expect("it starts");
    let deadline = Instant::now() + LIMIT;
    hear(&mut till, "the till listens at", deadline);
    assert!(till.wait(Duration::ZERO).is_err(), "it ended before the shop");
    till.close_input();
    end(&mut till, deadline);
}

/// Runs an example as a process, and checks its exit status and output.
fn check(name: &str, store: Option<&str>, said: &[&str]) {
    check_within(LIMIT, name, store, said);
}

fn check_within(limit: Duration, name: &str, store: Option<&str>, said: &[&str]) {
    let mut command = example_of(name);
    match store {
        Some(store) => command.env("LEASEHOLD_STORE", store),
        None => command.env_remove("LEASEHOLD_STORE"),
    };
    let mut process = Worker::of_command(command).start().expect("it starts");
    let deadline = Instant::now() + limit;
    for said in said {
        hear(&mut process, said, deadline);
    }
    end(&mut process, deadline);
}

fn example_of(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test is a file"));
    command.args(["example", "--exact", "--nocapture"]).env(WHICH, name);
    command
}

fn hear(process: &mut Worker, said: &str, deadline: Instant) {
    while !process.line(left(deadline)).expect("the expected output follows").contains(said) {}
}

fn end(process: &mut Worker, deadline: Instant) {
    let status = process.wait(left(deadline)).expect("it ends");
    assert!(status.success(), "{status}");
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
