//! `cargo xtask bench SCENARIO`: the benchmarks, built in release mode.

use anyhow::{Result, bail};

use crate::{install, peers, shell};

/// The scenarios of `bench all`, in the order of docs/reference/benchmarks.md.
const SCENARIOS: [&str; 23] = [
    "uncontended",
    "allocations",
    "calls",
    "names",
    "handoff",
    "grant",
    "herd",
    "local",
    "sticky",
    "renewal",
    "tracking",
    "top",
    "observe",
    "cluster",
    "fairness",
    "memory",
    "rwlock",
    "semaphore",
    "sharing",
    "quorum",
    "sqlite",
    "peers",
    "marketplace",
];

/// Installs what is missing and runs one scenario, or all. Further arguments are passed on.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    install::redis()?;
    match arguments.split_first() {
        Some((scenario, rest)) if scenario == "all" => all(rest),
        Some((scenario, rest)) => measure(scenario, rest),
        None => measure("--help", &[]),
    }
}

/// Runs all scenarios; one that fails stops no other.
fn all(arguments: &[String]) -> Result<()> {
    let mut failed = Vec::new();
    for scenario in SCENARIOS {
        if let Err(error) = measure(scenario, arguments) {
            eprintln!("xtask: {error:#}");
            failed.push(scenario);
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn measure(scenario: &str, arguments: &[String]) -> Result<()> {
    // This one counts in the allocator, so it is a program of its own.
    let is_apart = scenario == "allocations";
    let program = if is_apart { scenario } else { "leasehold-bench" };
    let mut bench = shell::cargo_with_lines([
        "run",
        "--quiet",
        "--release",
        "--package",
        "leasehold-bench",
        "--bin",
        program,
        "--",
    ]);
    if !is_apart {
        bench.arg(scenario);
    }
    match scenario {
        "peers" => bench.args(peers::arguments(arguments)?),
        "top" => bench.args(top_arguments(arguments)?),
        _ => bench.args(arguments),
    };
    shell::run(bench)
}

/// The arguments of the scenario `top`, with the program that it measures, which is built.
fn top_arguments(arguments: &[String]) -> Result<Vec<String>> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return Ok(arguments.to_vec());
    }
    shell::run(shell::cargo_with_lines(["build", "--quiet", "--release", "--package", "leasehold-cli"]))?;
    let program = shell::target_directory().join("release").join("leasehold");
    Ok([vec![format!("--program={}", program.display())], arguments.to_vec()].concat())
}
