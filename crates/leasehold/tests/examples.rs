//! Every example runs: without arguments, unless it needs a server, and with `LEASEHOLD_STORE` on Redis.
//!
//! Each runs in a process of its own, as users run it. The process is this executable again, which contains the
//! examples: cargo builds no examples if one test is selected, and builds them as tests with `--all-targets`.

use leasehold_testkit::{Quorum, RedisServer, Worker};
use std::process::Command;
use std::time::{Duration, Instant};

#[path = "../examples/blocking.rs"]
mod blocking;
#[path = "../examples/fred_connection.rs"]
mod fred_connection;
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
#[path = "../examples/web_service.rs"]
mod web_service;

/// Selects the example that a process runs.
const WHICH: &str = "LEASEHOLD_EXAMPLE";
/// The time limit of an example.
const LIMIT: Duration = Duration::from_secs(60);

/// Each example, and parts of its output, in this order; after a `;` those that need a server.
macro_rules! examples {
    (
        $($name:ident says $($said:literal),+;)*
        ; $($alone:ident says $($said_alone:literal),+;)*
    ) => {
        /// The entry point of the processes: one example.
        #[test]
        fn example() {
            let ended = match std::env::var(WHICH).as_deref() {
                Err(_) => return,
                $(Ok(stringify!($name)) => $name::main().map_err(|error| error.to_string()),)*
                $(Ok(stringify!($alone)) => $alone::main().map_err(|error| error.to_string()),)*
                Ok("quorum") => quorum::main().map_err(|error| error.to_string()),
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
    fred_connection says "held with the fencing token", "a second attempt: taken", "released";
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
    let mut command = example_of(name);
    match store {
        Some(store) => command.env("LEASEHOLD_STORE", store),
        None => command.env_remove("LEASEHOLD_STORE"),
    };
    let mut process = Worker::of_command(command).start().expect("it starts");
    let deadline = Instant::now() + LIMIT;
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
