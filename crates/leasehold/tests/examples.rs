//! Every example runs: without arguments, unless it needs a server, and with `LEASEHOLD_STORE` on Redis.
//!
//! Each runs in a process of its own, as users run it. The process is this executable again, which contains the
//! examples: cargo builds no examples if one test is selected, and builds them as tests with `--all-targets`.

use leasehold_testkit::{RedisServer, Worker};
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
#[path = "../examples/read_write.rs"]
mod read_write;
#[path = "../examples/reentrant.rs"]
mod reentrant;
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
    leader says "no leader yet", "leads", "leads", "leads", "numbers [1, 2, 3, 4, 5, 6]; the late one was rejected";
    lottery says "1 drew";
    marketplace says "came too late: rejected", "6 bought, and 6 sold";
    n_at_once says "all 10 are done", "at most 3 at a time: true";
    once_per_hour says "sent 1 times", "the cooldown lasts 55 minutes more";
    owner_over_http says "the shop received: 200 OK, paid; hold 2 of its owner",
        "another client received: 423 Locked", "later it received: 200 OK, paid; hold 1 of its owner";
    read_write says "two have read at the same time", "no reader is admitted during the write: held by", "written, as hold",
        "read again, beside another reader", "nothing to write";
    reentrant says "the account is still held 3 times", "the account is still held 1 times",
        "another owner does not get in: held by", "for good", "another owner waited", "inside at the same time";
    web_service says "alone: 200 OK, order 1 is shipped", "while another instance works: 409 Conflict, another request changes this order",
        "under way: 200 OK, order 3 is shipped", "the service has ended, and its lock is free: true";
    ;
    fred_connection says "held with the fencing token", "a second attempt: taken", "released";
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
