//! `verify`: an honest store passes, one that is not fails and it is said why, and nothing is left.

use super::fixture::{Fixture, Outcome, signal, until};
use leasehold_history::{FaultKind, History, What};
use leasehold_testkit::{Cluster, Product, ProductServer, Quorum, RedisServer, Sentinels, ShiftedClock};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// How long a run may take on a busy machine, beyond the time that it was given.
const GRACE: Duration = Duration::from_secs(90);

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

fn collect(mut child: Child) -> Outcome {
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            let _ = pipe.read_to_string(&mut text);
            text
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("a pipe")));
    let stderr = read(Box::new(child.stderr.take().expect("a pipe")));
    let deadline = Instant::now() + GRACE;
    let status = loop {
        match child.try_wait().expect("a child of ours") {
            Some(status) => break status,
            None if Instant::now() < deadline => sleep(Duration::from_millis(20)),
            None => {
                child.kill().expect("a child of ours");
                panic!("it does not end: {}", stderr.join().expect("a text"));
            }
        }
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("a reader does not panic");
    Outcome { status, stdout: text(stdout), stderr: text(stderr) }
}

/// A run with its JSON.
fn verify(fixture: &Fixture, arguments: &[&str]) -> (Outcome, Value) {
    let words =
        [&["verify", "--json", "--history", "history.jsonl", "--html", "page.html"], arguments].concat();
    let outcome = collect(spawn(fixture.command(&words)));
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    (outcome, json)
}

fn history(fixture: &Fixture) -> History {
    History::read(fixture.read("history.jsonl").as_bytes()).expect("it is a history")
}

fn keys(server: &RedisServer) -> Option<i64> {
    server.cli(&["DBSIZE"]).expect("it answers").integer()
}

/// Which part of the time between the beginning of the first fault and the end of the last one is in a fault. What a busy
/// machine adds is none that the run has caused.
fn share_in_caused_faults(history: &History) -> f64 {
    let (mut caused, mut since, mut span, mut in_faults) = (Vec::new(), 0, None, 0);
    for event in history.events() {
        match &event.what {
            What::FaultBegan { fault, detail, .. } if !detail.starts_with("not caused") => {
                if caused.is_empty() {
                    since = event.at_us;
                }
                caused.push(*fault);
                span.get_or_insert((event.at_us, event.at_us));
            }
            What::FaultEnded { fault } if caused.contains(fault) => {
                caused.retain(|other| other != fault);
                if caused.is_empty() {
                    in_faults += event.at_us - since;
                    span = span.map(|(from_us, _)| (from_us, event.at_us));
                }
            }
            _ => {}
        }
    }
    let (from_us, to_us) = span.expect("there is a fault");
    Duration::from_micros(in_faults).as_secs_f64() / Duration::from_micros(to_us - from_us).as_secs_f64()
}

/// Checks that a run passed, with at least one of each of these faults, and that most of its time is in faults.
#[track_caller]
fn assert_passed(fixture: &Fixture, outcome: &Outcome, json: &Value, faults: &[&str]) {
    outcome.check(0, "");
    assert_eq!(
        (&json["passed"], &json["violations"]),
        (&true.into(), &Value::Array(Vec::new())),
        "{outcome:?}"
    );
    for fault in faults {
        assert!(json["measured"]["faults"][fault].as_u64().is_some_and(|count| count > 0), "{fault}: {json}");
    }
    // The time before the first fault, and what a busy machine adds to it, is a large part of so short a run.
    let share = share_in_caused_faults(&history(fixture));
    assert!(share > 2.0 / 3.0, "{share} of the time was in faults");
}

/// Checks that a run ended with a violation of one of these checks.
#[track_caller]
fn assert_violated(outcome: &Outcome, json: &Value, checks: &[&str]) {
    outcome.check(76, "");
    let violations = json["violations"].as_array().expect("a list");
    let is_named = |violation: &&Value| checks.iter().any(|check| violation["check"] == *check);
    let said = violations.iter().find(is_named);
    assert!(
        said.is_some_and(|violation| !violation["what"].as_str().unwrap_or_default().is_empty()),
        "{json}"
    );
}

const NETWORK: [&str; 6] = ["kill", "stop", "cut", "delay", "swallow_replies", "partition"];

#[test]
fn one_server_passes_with_faults_of_each_kind_and_nothing_is_left() {
    let server = RedisServer::start().expect("there is a server");
    server.cli(&["SET", "theirs", "1"]).expect("a reply");
    let fixture = Fixture::redis(&server);
    let (outcome, json) = verify(&fixture, &["--for", "9s", "--seed", "1"]);
    assert_passed(&fixture, &outcome, &json, &NETWORK);
    assert_eq!(keys(&server), Some(1), "the user's key alone is left");
    assert_eq!((&json["store"], &json["seed"]), (&"redis".into(), &1.into()));
    assert!(json["measured"]["calls"].as_u64().is_some_and(|calls| calls > 100), "{json}");
    for check in ["exclusion", "tokens", "counter", "answers", "left_behind"] {
        let checks = json["checks"].as_array().expect("a list");
        let judged = checks.iter().find(|found| found["name"] == check).map(|found| found["judged"].as_u64());
        assert!(judged.flatten().is_some_and(|judged| judged > 0), "{check}: {json}");
    }
    assert!(fixture.read("page.html").contains("<html"), "it is a page");
    let history = history(&fixture);
    assert!(history.has_ended());
    let kinds = history.events().iter().filter(|event| matches!(event.what, What::FaultBegan { .. }));
    assert!(kinds.count() >= 6);
}

#[test]
fn a_file_passes_and_no_file_is_left() {
    let fixture = Fixture::sqlite();
    let (outcome, json) = verify(&fixture, &["--for", "6s", "--seed", "2"]);
    assert_passed(&fixture, &outcome, &json, &["kill", "stop"]);
    // What is stopped may have the file locked, which excuses the calls of others.
    let stopped = longest_fault(&history(&fixture), "may have the file locked");
    assert!(stopped.is_some_and(|stopped| stopped > Duration::from_secs(1)), "{stopped:?}");
    let files = std::fs::read_dir(fixture.path("")).expect("a directory");
    let left: Vec<_> = files.map(|file| file.expect("a file").file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("locks.db")), "{left:?}");
}

#[test]
fn a_cluster_passes() {
    let cluster = Cluster::start(3, 0).expect("nodes that agree");
    let fixture = Fixture::at(cluster.url());
    let (outcome, json) = verify(&fixture, &["--for", "8s", "--seed", "3"]);
    assert_passed(&fixture, &outcome, &json, &NETWORK);
    assert_eq!(json["store"], "cluster");
    for node in 0..3 {
        assert_eq!(keys(cluster.node(node)), Some(0));
    }
}

#[test]
fn a_primary_behind_sentinels_passes() {
    let mut sentinels = Sentinels::start(1).expect("there are servers");
    let fixture = Fixture::at(sentinels.url());
    let (outcome, json) = verify(&fixture, &["--for", "8s", "--seed", "4"]);
    assert_passed(&fixture, &outcome, &json, &NETWORK);
    assert_eq!(json["store"], "sentinel");
    assert_eq!(keys(&sentinels.servers()[0]), Some(0));
}

#[test]
fn a_quorum_passes() {
    let quorum = Quorum::start(5).expect("there are servers");
    let fixture = Fixture::at(quorum.url() + "?min_uptime=0s");
    let (outcome, json) = verify(&fixture, &["--for", "8s", "--seed", "5"]);
    assert_passed(&fixture, &outcome, &json, &NETWORK);
    assert_eq!(json["store"], "quorum");
}

#[test]
fn a_run_that_is_interrupted_leaves_nothing_and_no_process() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    for (name, status) in [("INT", 130), ("TERM", 143)] {
        let child = spawn(fixture.command(&["verify", "--for", "60s"]));
        until("it is at work", || keys(&server).is_some_and(|keys| keys > 10));
        let workers = children(child.id());
        // One of the four may have just been killed.
        assert!(workers.len() >= 3, "{workers:?}");
        signal(child.id(), name);
        collect(child).check(status, "interrupted");
        assert_eq!(keys(&server), Some(0), "nothing is left");
        until("all workers are gone", || workers.iter().all(|pid| !super::fixture::runs(pid)));
    }
}

#[test]
fn workers_end_with_a_coordinator_that_is_killed() {
    let fixture = Fixture::sqlite();
    let mut child = spawn(fixture.command(&["verify", "--for", "60s"]));
    until("it is at work", || children(child.id()).len() >= 3);
    let workers = children(child.id());
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    until("all workers are gone", || workers.iter().all(|pid| !super::fixture::runs(pid)));
}

/// The children of a process.
fn children(pid: u32) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_password_is_in_no_argument_no_environment_of_a_worker_and_no_output() {
    let server = RedisServer::builder().password("s3cr3t").start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let words =
        ["verify", "--for", "5s", "--history", "history.jsonl", "--html", "page.html", "--json", "-vvv"];
    let mut command = fixture.command(&words);
    command.env("LEASEHOLD_PASSWORD", "s3cr3t");
    let mut by_url = fixture.command(&words);
    by_url.env("LEASEHOLD_STORE", server.url().replace("//", "//:s3cr3t@") + "?accept=lua_vulnerabilities");
    for command in [command, by_url] {
        let child = spawn(command);
        until("it is at work", || children(child.id()).len() >= 3);
        // Until a process executes its program, it has the memory of its parent.
        let executes = |pid: &String| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.is_empty() || String::from_utf8_lossy(&words).contains("verify-worker")
        };
        until("they have started", || children(child.id()).iter().all(executes));
        for pid in children(child.id()) {
            for file in ["cmdline", "environ"] {
                let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                assert!(!String::from_utf8_lossy(&text).contains("s3cr3t"), "{file}");
            }
        }
        let outcome = collect(child);
        outcome.check(0, "");
        for text in [outcome.stdout, outcome.stderr, fixture.read("history.jsonl"), fixture.read("page.html")]
        {
            assert!(!text.contains("s3cr3t"), "{text}");
        }
    }
}

#[test]
fn what_cannot_be_tried_is_refused_before_it_is_written() {
    let fixture = Fixture::sqlite();
    let run = |words: &[&str]| fixture.run(&[&["verify"], words].concat());
    run(&["--for", "1s"]).check(2, "3s at least");
    run(&["--allow-restart", "true"]).check(2, "are for servers");
    run(&["--store", "memory:"]).check(2, "ends with this program");
    run(&["--html", "no/such/directory.html"]).check(69, "failed to write");
    let by_hand = fixture.run(&["verify-worker"]);
    by_hand.check(2, "is not for use by hand");
}

/// A server that answers OK to each command, also to those that ask for something else.
#[test]
fn a_proxy_that_answers_ok_to_everything_is_refused() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut splitter = leasehold_testkit::FrameSplitter::requests();
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    splitter.push(&bytes[..read]);
                    while let Ok(Some(_)) = splitter.next_frame() {
                        let _ = stream.write_all(b"+OK\r\n");
                    }
                }
            });
        }
    });
    let fixture = Fixture::at(format!("redis://127.0.0.1:{port}/"));
    let (outcome, _) = verify(&fixture, &["--for", "5s"]);
    assert_eq!(outcome.status.code(), Some(69), "{outcome:?}");
    assert!(outcome.stderr.contains("failed to open the store"), "{outcome:?}");
}

/// What a client does that takes a lock by SET without NX, and releases it by DEL without looking.
#[test]
fn a_server_on_which_each_acquire_finds_the_lock_free_fails() {
    let server = RedisServer::start().expect("there is a server");
    let prelude = "\
        local is_lock = KEYS[1] and string.find(KEYS[1], 'leasehold-verify:', 1, true) and string.find(KEYS[1], ':mutex', 1, true)\n\
        local acquires = is_lock and ARGV[9]\n\
        local function lying(call)\n\
          return function(command, ...)\n\
            local arguments = { ... }\n\
            local is_its_key = acquires and arguments[1] == KEYS[1]\n\
            if is_its_key and command == 'SET' and arguments[3] == 'NX' then table.remove(arguments, 3) end\n\
            local reply = call(command, unpack(arguments))\n\
            if is_its_key and command == 'GET' then return false end\n\
            if is_its_key and command == 'MGET' then reply[1] = false end\n\
            return reply\n\
          end\n\
        end\n\
        redis.call, redis.pcall = lying(real.call), lying(real.pcall)";
    let product = ProductServer::start(&server, Product { prelude, ..Product::default() }).expect("a relay");
    let fixture = Fixture::at(product.url() + "?probe=skip");
    let (outcome, json) = verify(&fixture, &["--for", "6s", "--seed", "6"]);
    assert_violated(&outcome, &json, &["exclusion"]);
}

/// A server that has no persistence forgets its holds when it is restarted, while their holders cannot reach it.
#[test]
fn a_server_that_forgets_on_restart_fails() {
    let mut server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    // The command asks this test for the restart, and waits for it.
    let command = "touch wanted; while [ -e wanted ]; do sleep 0.01; done";
    let words = ["verify", "--json", "--for", "10s", "--seed", "7", "--allow-restart", command];
    let child = spawn(fixture.command(&words));
    let outcome = restarting(child, || {
        if fixture.path("wanted").exists() {
            server.restart().expect("it starts");
            std::fs::remove_file(fixture.path("wanted")).expect("it is there");
        }
    });
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_violated(&outcome, &json, &["exclusion"]);
    assert!(json["measured"]["faults"]["restart"].as_u64().is_some_and(|count| count > 0), "{json}");
}

/// The same with a file that is synced before each answer passes.
#[test]
fn a_server_that_remembers_over_a_restart_passes() {
    let mut server =
        RedisServer::builder().appendonly().config("appendfsync", "always").start().expect("a server");
    let fixture = Fixture::redis(&server);
    let command = "touch wanted; while [ -e wanted ]; do sleep 0.01; done";
    let words = [
        "verify",
        "--json",
        "--history",
        "history.jsonl",
        "--for",
        "10s",
        "--seed",
        "7",
        "--allow-restart",
        command,
    ];
    let child = spawn(fixture.command(&words));
    let outcome = restarting(child, || {
        if fixture.path("wanted").exists() {
            server.restart().expect("it starts");
            std::fs::remove_file(fixture.path("wanted")).expect("it is there");
        }
    });
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_passed(&fixture, &outcome, &json, &["restart", "kill", "partition"]);
}

/// Does something again and again until the program ends.
fn restarting(child: Child, mut step: impl FnMut()) -> Outcome {
    let reader = thread::spawn(move || collect(child));
    while !reader.is_finished() {
        step();
        sleep(Duration::from_millis(5));
    }
    reader.join().expect("it ends")
}

/// Whether a replica receives what its primary does.
fn is_linked(replica: &RedisServer) -> bool {
    let info = replica.cli(&["INFO", "replication"]).expect("a reply");
    info.text().is_some_and(|info| info.contains("master_link_status:up"))
}

/// A replica that has lost its link to the primary is promoted, as by an operator who does not look how far it is behind.
#[test]
fn a_replica_that_is_promoted_without_the_last_holds_fails() {
    let primary = RedisServer::start().expect("there is a server");
    let replica = RedisServer::builder().config("replicaof", format!("127.0.0.1 {}", primary.port()));
    let replica = replica.start().expect("there is a server");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("it listens").port();
    let current = std::sync::Arc::new(std::sync::Mutex::new((primary.port(), Vec::new())));
    let accepting = std::sync::Arc::clone(&current);
    // The name that always leads to the primary.
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let mut current = accepting.lock().expect("no panic");
            let Ok(server) = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, current.0)) else { continue };
            for (mut from, mut to) in [
                (client.try_clone().expect("a stream"), server.try_clone().expect("a stream")),
                (server.try_clone().expect("a stream"), client.try_clone().expect("a stream")),
            ] {
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
            current.1.extend([client, server]);
        }
    });
    let fixture = Fixture::at(format!("redis://127.0.0.1:{port}/"));
    until("the replica is in step", || is_linked(&replica));
    let command = "touch wanted; while [ -e wanted ]; do sleep 0.01; done";
    let words = ["verify", "--json", "--for", "10s", "--seed", "8", "--allow-failover", command];
    let child = spawn(fixture.command(&words));
    let mut servers = (&primary, &replica);
    let mut is_in_step = true;
    let outcome = restarting(child, || {
        let (old, new) = servers;
        if !fixture.path("wanted").exists() {
            // It loses its link as soon as it is in step.
            if is_in_step || is_linked(new) {
                new.cli(&["REPLICAOF", "NO", "ONE"]).expect("a reply");
                is_in_step = false;
            }
            return;
        }
        new.cli(&["REPLICAOF", "NO", "ONE"]).expect("a reply");
        let mut current = current.lock().expect("no panic");
        current.0 = new.port();
        for stream in current.1.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).expect("a reply");
        servers = (new, old);
        std::fs::remove_file(fixture.path("wanted")).expect("it is there");
    });
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_violated(&outcome, &json, &["exclusion"]);
    assert!(json["measured"]["faults"]["failover"].as_u64().is_some_and(|count| count > 0), "{json}");
}

#[test]
fn a_clock_that_is_set_forward_by_a_lease_fails() {
    let clock = ShiftedClock::new(0).expect("a clock");
    let server = RedisServer::builder().clock(&clock).start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let child = spawn(fixture.command(&["verify", "--json", "--for", "12s", "--seed", "9"]));
    let begin = Instant::now();
    let mut steps = 0;
    let outcome = restarting(child, || {
        let due = u64::try_from(begin.elapsed().as_millis() / 1000).expect("a few") * 3_000_000;
        if due > steps {
            steps = due;
            clock.set_offset_us(i64::try_from(due).expect("a few")).expect("set");
        }
    });
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_violated(&outcome, &json, &["exclusion", "tokens", "counter"]);
    let steps = json["measured"]["clocks"][0]["steps"].as_array().map(Vec::len);
    assert!(steps.is_some_and(|steps| steps > 0), "{json}");
}

#[test]
fn a_server_that_evicts_keys_is_refused() {
    let server =
        RedisServer::builder().config("maxmemory", "100mb").config("maxmemory-policy", "allkeys-lru");
    let server = server.start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (outcome, _) = verify(&fixture, &["--for", "5s"]);
    outcome.check(69, "allkeys-lru");
    assert_eq!(keys(&server), Some(0), "nothing was written");
}

/// The same server, accepted, whose memory others fill.
#[test]
fn a_server_that_evicts_keys_under_memory_pressure_fails() {
    let server = RedisServer::builder().config("maxmemory", "4mb").config("maxmemory-policy", "allkeys-lru");
    let server = server.start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let url = server.url() + "?accept=eviction,lua_vulnerabilities";
    let child =
        spawn(fixture.command(&["verify", "--json", "--for", "10s", "--seed", "11", "--store", &url]));
    let fill = "for i = 1, 200 do redis.call('SET', KEYS[1] .. ':' .. i, string.rep('x', 4000)) end";
    let mut round = 0;
    let outcome = restarting(child, || {
        round += 1;
        // It may be out of memory for a moment.
        let _ = server.cli(&["EVAL", fill, "1", &format!("theirs-{}", round % 1000)]);
    });
    let json = serde_json::from_str(&outcome.stdout).unwrap_or_default();
    assert_violated(&outcome, &json, &["exclusion", "periods"]);
}

/// The time in which a fault with this in its detail went on.
fn longest_fault(history: &History, part: &str) -> Option<Duration> {
    let events = || history.events().iter();
    let lasted = events().filter_map(|event| match &event.what {
        What::FaultBegan { fault, detail, .. } if detail.contains(part) => {
            let ended =
                events().find(|ended| matches!(ended.what, What::FaultEnded { fault: it } if it == *fault));
            Some(Duration::from_micros(ended?.at_us - event.at_us))
        }
        _ => None,
    });
    lasted.max()
}

/// Calls fail meanwhile. That is no violation, and the history says why.
#[test]
fn a_server_that_stands_still_for_a_while_is_a_fault_of_which_the_run_knows() {
    const STOPPED: Duration = Duration::from_millis(2500);
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let words = ["verify", "--json", "--history", "history.jsonl", "--for", "9s", "--seed", "12"];
    let child = spawn(fixture.command(&words));
    until("the workers use it", || keys(&server) > Some(3));
    server.stop().expect("it runs");
    sleep(STOPPED);
    server.resume().expect("it is stopped");
    let outcome = collect(child);
    outcome.check(0, "");
    let stopped = longest_fault(&history(&fixture), "not caused: a server did not answer");
    assert!(stopped.is_some_and(|stopped| stopped > STOPPED * 3 / 4), "{stopped:?}");
    let json: Value = serde_json::from_str(&outcome.stdout).expect("it is JSON");
    let excused = |check: &Value| check["excused"].as_u64().expect("a number");
    let checks = json["checks"].as_array().expect("a list");
    assert!(checks.iter().map(excused).sum::<u64>() > 0, "{json}");
}

#[test]
fn an_event_of_each_fault_says_which_worker_it_hits() {
    let server = RedisServer::start().expect("there is a server");
    let fixture = Fixture::redis(&server);
    let (outcome, _) = verify(&fixture, &["--for", "5s", "--seed", "10", "--rate", "20"]);
    outcome.check(0, "");
    let history = history(&fixture);
    for event in history.events() {
        if let What::FaultBegan { kind, worker, detail, .. } = &event.what {
            // A machine that stands still hits all.
            let may_hit_all = matches!(kind, FaultKind::Delay);
            assert!((worker.is_some() || may_hit_all) && !detail.is_empty(), "{event:?}");
        }
    }
    let asked = history.events().iter().filter(|event| matches!(event.what, What::Asked { .. })).count();
    assert!(asked <= 20 * 7 + 40, "{asked} calls are more than 20 in a second");
}
