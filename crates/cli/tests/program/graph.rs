//! What waits for what, and processes that wait for each other.

use super::fixture::{Fixture, LIMIT, Outcome, expect, start, status, until};
use leasehold_testkit::{Cluster, RedisServer, Worker};
use serde_json::Value;
use std::time::Instant;

/// `run` of a command that waits for a line, and then runs under a second lock.
fn nested(fixture: &Fixture, first: &str, second: &str, wait: &str) -> Worker {
    nested_with(fixture, first, &[second, "--wait", wait])
}

/// [`nested`], with the options of the second `run`.
fn nested_with(fixture: &Fixture, first: &str, second: &[&str]) -> Worker {
    let script = "echo held; read line; exec \"$LEASEHOLD\" run \"$@\" -- echo both 2>&1";
    let mut command = fixture.command(&[&["run", first, "--", "sh", "-c", script, "sh"], second].concat());
    command.env("LEASEHOLD", env!("CARGO_BIN_EXE_leasehold"));
    let mut worker = start(command);
    expect(&mut worker, "held");
    worker
}

fn graph(fixture: &Fixture) -> Value {
    let shown = fixture.run(&["graph", "--json"]);
    shown.check(0, "");
    serde_json::from_str(&shown.stdout).expect("it is JSON")
}

fn count(graph: &Value, field: &str) -> usize {
    graph[field].as_array().expect("an array").len()
}

/// The graph once it has a cycle.
fn deadlock(fixture: &Fixture) -> Outcome {
    let start = Instant::now();
    loop {
        let shown = fixture.run(&["graph", "--check"]);
        if shown.status.code() == Some(1) {
            return shown;
        }
        shown.check(0, "");
        assert!(!shown.stdout.contains("DEADLOCK"), "{shown:?}");
        assert!(start.elapsed() < LIMIT, "{shown:?}");
    }
}

fn processes_that_wait_for_each_other_are_named(fixture: &Fixture) {
    let mut one = nested(fixture, "a", "b", "60s");
    let mut other = nested(fixture, "b", "a", "60s");
    one.send("go").expect("it reads");
    until("the first one waits", || count(&graph(fixture), "waits") == 1);
    for _ in 0..3 {
        let early = graph(fixture);
        assert_eq!(count(&early, "cycles"), 0, "{early}");
    }
    other.send("go").expect("it reads");
    let shown = deadlock(fixture);
    let text = &shown.stdout;
    assert!(text.starts_with("DEADLOCK 1 of 1"), "{text}");
    for part in ["waits for `a`", "waits for `b`", "held by ", &format!("/{} (", one.pid()), " since "] {
        assert!(text.contains(part), "missing: {part}: {text}");
    }
    let json = graph(fixture);
    let waits = json["cycles"][0]["waits"].as_array().expect("an array");
    let names: Vec<_> = waits.iter().map(|wait| wait["name"].as_str().expect("a text")).collect();
    assert_eq!(names, ["b", "a"], "the oldest wait comes first: {json}");
    let pids: Vec<_> =
        waits.iter().map(|wait| wait["holders"][0]["pid"].as_u64().expect("a number")).collect();
    assert_eq!(pids, [other.pid(), one.pid()].map(u64::from), "{json}");
    let dot = fixture.run(&["graph", "--dot"]);
    assert_eq!(dot.stdout.matches("color=red, fontcolor=red").count(), 4, "{dot:?}");
    let mermaid = fixture.run(&["graph", "--mermaid"]);
    assert!(mermaid.stdout.contains("linkStyle 0,1,2,3 stroke:red"), "{mermaid:?}");
    // The end of one of them ends the cycle.
    one.terminate().expect("it runs");
    expect(&mut other, "both");
    assert_eq!(status(&mut other), Some(0));
    until("nothing waits", || count(&graph(fixture), "waits") == 0);
    fixture.run(&["graph", "--check"]).check(0, "");
}

#[test]
fn two_processes_that_wait_for_each_other_are_named_on_a_server() {
    let server = RedisServer::start().expect("there is a server");
    processes_that_wait_for_each_other_are_named(&Fixture::redis(&server));
}

#[test]
fn two_processes_that_wait_for_each_other_are_named_in_a_file() {
    processes_that_wait_for_each_other_are_named(&Fixture::sqlite());
}

/// The slots of `a` and `b` are on different primaries.
#[test]
fn two_processes_that_wait_for_each_other_are_named_in_a_cluster() {
    let cluster = Cluster::start(3, 0).expect("nodes that agree");
    processes_that_wait_for_each_other_are_named(&Fixture::at(cluster.url()));
}

fn a_run_that_refuses_a_deadlock_ends_with_the_cycle(fixture: &Fixture) {
    let mut one = nested(fixture, "a", "b", "60s");
    let mut other = nested_with(fixture, "b", &["a", "c", "--refuse-deadlock", "--json"]);
    one.send("go").expect("it reads");
    until("the first one waits", || count(&graph(fixture), "waits") == 1);
    other.send("go").expect("it reads");
    let line = other.expect("{", LIMIT).expect("a report");
    let report: Value = serde_json::from_str(&format!("{{{line}")).expect("it is JSON");
    assert_eq!(report["error"]["kind"], "deadlock", "{line}");
    assert_eq!(status(&mut other), Some(75));
    let message = report["error"]["message"].as_str().expect("a text");
    assert!(message.contains("a deadlock: ") && message.contains("`b`"), "{message}");
    expect(&mut one, "both");
    assert_eq!(status(&mut one), Some(0));
}

#[test]
fn a_run_that_refuses_a_deadlock_ends_with_the_cycle_on_a_server() {
    let server = RedisServer::start().expect("there is a server");
    a_run_that_refuses_a_deadlock_ends_with_the_cycle(&Fixture::redis(&server));
}

#[test]
fn a_run_that_refuses_a_deadlock_ends_with_the_cycle_in_a_file() {
    a_run_that_refuses_a_deadlock_ends_with_the_cycle(&Fixture::sqlite());
}

#[test]
fn a_run_that_refuses_a_deadlock_ends_with_the_cycle_in_a_cluster() {
    let cluster = Cluster::start(3, 0).expect("nodes that agree");
    a_run_that_refuses_a_deadlock_ends_with_the_cycle(&Fixture::at(cluster.url()));
}

#[test]
fn a_command_that_waits_for_the_lock_around_it_is_named() {
    let fixture = Fixture::sqlite();
    let mut worker = nested(&fixture, "a", "a", "60s");
    worker.send("go").expect("it reads");
    let shown = deadlock(&fixture);
    assert!(shown.stdout.contains("waits for `a`"), "{shown:?}");
    worker.terminate().expect("it runs");
    status(&mut worker);
}

#[test]
fn names_stay_names_in_every_form() {
    let fixture = Fixture::sqlite();
    let name = "a\"]; b --> c; <b>`\\";
    let mut holder = nested(&fixture, name, "other", "1s");
    let mut waiter = start(fixture.command(&["run", name, "--wait", "60s", "--", "echo", "both"]));
    until("it waits", || count(&graph(&fixture), "waits") == 1);
    assert_eq!(graph(&fixture)["waits"][0]["name"], name);
    let dot = fixture.run(&["graph", "--dot"]).stdout;
    assert!(dot.contains("label=\"a\\\"]; b --> c; <b>`\\\\\"]"), "{dot}");
    let mermaid = fixture.run(&["graph", "--mermaid"]).stdout;
    assert!(mermaid.contains("[\"a#34;#93;#59; b --#62; c#59; #60;b#62;#96;#92;\"]"), "{mermaid}");
    let text = fixture.run(&["graph"]).stdout;
    assert!(text.starts_with(&format!("`{name}` (mutex)\n  held by ")), "{text}");
    holder.send("go").expect("it reads");
    status(&mut holder);
    expect(&mut waiter, "both");
    assert_eq!(fixture.run(&["graph"]).stdout, "nothing waits\n");
}

#[test]
fn a_name_does_not_change_the_text_around_it() {
    let fixture = Fixture::sqlite();
    let name = "a\u{202e}b";
    let mut holder = nested(&fixture, name, "other", "1s");
    let mut waiter = start(fixture.command(&["run", name, "--wait", "60s", "--", "echo", "both"]));
    until("it waits", || count(&graph(&fixture), "waits") == 1);
    for form in [&["graph"][..], &["graph", "--dot"], &["graph", "--mermaid"]] {
        let shown = fixture.run(form).stdout;
        assert!(shown.contains("202e") && !shown.contains('\u{202e}'), "{form:?}: {shown}");
    }
    holder.send("go").expect("it reads");
    status(&mut holder);
    expect(&mut waiter, "both");
}

/// Otherwise each process of a deadlock would be named after this program, and no job.
#[test]
fn a_job_has_the_name_that_the_lists_give_it() {
    let fixture = Fixture::sqlite();
    let label = "the \u{202e}invoices";
    let mut holder = fixture.start(&["--label", label], "echo held; read line");
    expect(&mut holder, "held");
    let mut waiter = start(fixture.command(&["run", "job", "--wait", "60s", "--", "echo", "both"]));
    until("it waits", || count(&graph(&fixture), "waits") == 1);
    let name = |pid: u32, command: &str| format!("/{pid} ({command})");
    let text = fixture.run(&["graph"]).stdout;
    let names = [name(holder.pid(), "the \\u{202e}invoices"), name(waiter.pid(), "echo")];
    assert!(text.contains(&format!("{} since ", names[0])), "{text}");
    assert!(text.contains(&format!("{} waits (since ", names[1])), "{text}");
    let shown = fixture.run(&["show", "job"]).stdout;
    assert!(shown.contains(&names[1]), "the same text: {shown}");
    let dot = fixture.run(&["graph", "--dot"]).stdout;
    for name in [&names[0].replace('\\', "\\\\"), &names[1]] {
        assert!(dot.contains(name), "{name}: {dot}");
    }
    let mermaid = fixture.run(&["graph", "--mermaid"]).stdout;
    for name in ["#40;the #92;u#123;202e#125;invoices#41;", "#40;echo#41;"] {
        assert!(mermaid.contains(name), "{name}: {mermaid}");
    }
    let (json, status_json) = (graph(&fixture), fixture.status());
    let wait = &json["waits"][0];
    assert_eq!(wait["labels"], serde_json::json!({ "command": "echo" }));
    assert_eq!(wait["labels"], status_json["queue"][0]["behind"]["labels"]);
    assert_eq!(wait["holders"][0]["labels"], serde_json::json!({ "command": label }));
    assert_eq!(wait["holders"][0]["labels"], status_json["behind"]["labels"]);
    assert_eq!(wait["program"], "leasehold");
    holder.send("go").expect("it reads");
    assert_eq!(status(&mut holder), Some(0));
    expect(&mut waiter, "both");
}

#[test]
fn a_store_without_sessions_has_no_graph() {
    let fixture = Fixture::at("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3".to_owned());
    let shown = fixture.run(&["graph"]);
    assert_eq!(shown.status.code(), Some(69), "{shown:?}");
}
