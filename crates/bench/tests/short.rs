//! Each scenario with small numbers, so that none stops working unnoticed. Its figures mean nothing: builds and tests run
//! beside it.

use serde_json::Value;
use std::fs;
use std::path::Path;
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
fn tracking() {
    check("tracking --locks 100 --rounds 1 --deletions 5", 1);
}

#[test]
fn observe() {
    check("observe --deadlocks 1 --classes 2 --clients 2 --rounds 1", 1);
}

#[test]
fn top() {
    // Cargo builds the programs of a workspace into one directory, this one if the package is built at all.
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold-bench")).with_file_name("leasehold");
    if !program.exists() {
        eprintln!("not tested: there is no {}", program.display());
        return;
    }
    let lines = check(&format!("top --program {} --locks 100 --rounds 1 --seconds 3", program.display()), 1);
    assert!(lines[0]["requests_per_s"].as_f64().expect("a number") > 0.0, "{lines:?}");
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
/// every lock sells with every crowd of the book; with WATCH, five sellers leave the buyers next to no chance.
#[test]
fn marketplace() {
    const WAYS: [&str; 4] = ["watch", "one lock", "lock per item", "rslock per item"];
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("marketplace.md");
    fs::copy("../../docs/explanation/marketplace.md", &page).expect("the page of the docs");
    let (page, draw) = (page.display(), folder.path().display());
    let command = format!("marketplace --quick --crowds 1+1,5+1,5+5 --page {page} --draw {draw}");
    let rows = check(&command, 3 * WAYS.len());
    for chart in ["marketplace", "marketplace-wait", "marketplace-choice"] {
        assert!(folder.path().join(chart).with_extension("svg").exists(), "{chart}");
    }
    let text = fs::read_to_string(folder.path().join("marketplace.md")).expect("the page");
    let lines = text
        .lines()
        .filter(|line| WAYS.iter().any(|way| line.to_lowercase().contains(&format!(" | {way} | "))));
    assert_eq!(lines.count(), rows.len(), "{text}");
    for (row, way) in rows.iter().zip(WAYS.iter().cycle()) {
        assert_eq!(row["way"], *way, "{row}");
        let figure = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"));
        let (retries, requests) = (figure("retries_per_s"), figure("lock_requests_per_section"));
        assert!(figure("listed_per_s") > 0.0, "{row}");
        match *way {
            "watch" => assert!(retries > 0.0 && requests == 0.0, "{row}"),
            // One request to acquire and one to release, however many wait.
            "one lock" | "lock per item" => {
                assert!(retries == 0.0 && figure("gave_up") == 0.0, "{row}");
                assert!((1.8..2.2).contains(&requests), "{row}");
            }
            _ => assert!(requests > 1.8, "{row}"),
        }
        // With WATCH there may be no purchase, and so no mean.
        let has_sold = figure("bought_per_s") > 0.0;
        assert!(has_sold || *way == "watch", "{row}");
        assert!(!has_sold || figure("mean_wait_ms") > 0.0, "{row}");
        // 50 times as much without other load.
        let crowd_is_large = row["sellers"] == 5;
        assert!(!crowd_is_large || *way == "watch" || figure("bought_to_watch") > 2.0, "{row}");
    }
}
