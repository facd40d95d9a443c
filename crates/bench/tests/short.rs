//! Each scenario with small numbers, so that none stops working unnoticed. Its figures mean nothing: builds and tests run
//! beside it.

use serde_json::Value;
use std::process::Command;

/// Runs a scenario, and checks that each line of its output is an object of that scenario.
fn check(arguments: &str, objects: usize) -> Vec<Value> {
    let scenario = arguments.split(' ').next().expect("a scenario");
    check_program(env!("CARGO_BIN_EXE_leasehold-bench"), scenario, arguments, objects)
}

fn check_program(program: &str, scenario: &str, arguments: &str, objects: usize) -> Vec<Value> {
    let output =
        Command::new(program).args(arguments.split(' ')).arg("--json").output().expect("the benchmark runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments}: {}{text}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    assert_eq!(lines.len(), objects, "{arguments}: {text}");
    for line in &lines {
        let name = line["scenario"].as_str().expect("the name of the scenario");
        assert!(name.starts_with(scenario), "{arguments}: {line}");
    }
    lines
}

#[test]
fn uncontended() {
    check("uncontended --tasks 4,1 --rounds 1 --round-ms 50", 2);
}

#[test]
fn allocations() {
    check_program(env!("CARGO_BIN_EXE_allocations"), "allocations", "--tasks 1,8 --pairs 20", 2);
}

#[test]
fn calls() {
    check("calls --rounds 2 --repeats 20", 16);
}

#[test]
fn names() {
    check("names --names 200 --tasks 8 --rounds 2 --idle 1", 2);
}

#[test]
fn names_over_time() {
    check("names --for 1s --tasks 8", 9);
}

#[test]
fn grant() {
    check("grant --processes 3 --rounds 1 --round-ms 300", 1);
}

#[test]
fn cluster() {
    check("cluster --locks 100 --lease 6 --rounds 1", 1);
}

#[test]
fn sharing() {
    check("sharing --holders 2,20 --rounds 2 --samples 3", 4);
}

#[test]
fn quorum() {
    check("quorum --servers 3 --clients 4 --rounds 1 --seconds 2", 1);
}

/// R26: coarse and fine-grained locks beside WATCH. The audit of each run finds no item sold twice and no money lost, and
/// every lock sells with every crowd of the book; with WATCH, five sellers leave the buyer next to no chance.
#[test]
fn marketplace() {
    for row in check("marketplace --quick --crowds 1+1,5+1,5+5", 12) {
        let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"));
        assert!(figure("listed_per_s") > 0.0, "{row}");
        assert!(row["way"] == "watch" || figure("bought_per_s") > 0.0, "{row}");
        assert!(figure("retries_per_s") >= 0.0 && figure("mean_wait_ms") >= 0.0, "{row}");
    }
}
