//! `cargo xtask fuzz`: the targets of `crates/fuzz` under libFuzzer, guided by coverage.
//!
//! The compiler's flags for coverage are stable, so no other toolchain is needed: only a C++ compiler, for libFuzzer itself. It is
//! built into a directory of its own, with all checks of arithmetic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{cargo, shell};

/// How long each target runs, unless it is given.
const TIME: Duration = Duration::from_secs(60);
/// The targets, those that take most first. A test compares them with those of the crate.
const TARGETS: [&str; 9] =
    ["server", "replies", "sqlite", "urls", "names", "durations", "detached", "owners", "statistics"];
/// How many parts of the time a target gets that runs the whole client, for one of a parser.
const SHARE_OF_CLIENT: u32 = 4;
/// What LLVM adds to each edge and each comparison, for libFuzzer.
const FLAGS: &str = "-C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
     -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
     -C llvm-args=-sanitizer-coverage-trace-compares";
/// What to do.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    target: Option<String>,
    time: Duration,
    /// Set if the time is for all targets together.
    is_total: bool,
    repeat: Option<PathBuf>,
    merge: bool,
    rest: Vec<String>,
}

/// `cargo xtask fuzz [TARGET] [--for 60s] [--total] [--repeat FILE] [--merge] [-- LIBFUZZER…]`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let options = parse(arguments)?;
    let program = build()?;
    if let Some(file) = &options.repeat {
        let target = options.target.as_deref().context("--repeat needs the name of the target")?;
        let mut command = fuzzer(&program, target);
        command.arg(std::path::absolute(file)?);
        return shell::run(command);
    }
    let targets: Vec<&str> =
        options.target.as_deref().map_or_else(|| TARGETS.to_vec(), |target| vec![target]);
    let mut failed = Vec::new();
    for target in &targets {
        let time = if options.is_total { share(options.time, target, &targets) } else { options.time };
        if let Err(error) = fuzz(&program, target, time, &options) {
            eprintln!("xtask: {target}: {error:#}");
            failed.push(*target);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// The part of the time that a target gets.
fn share(time: Duration, target: &str, of: &[&str]) -> Duration {
    let weight = |target: &str| if matches!(target, "server" | "replies") { SHARE_OF_CLIENT } else { 1 };
    time * weight(target) / of.iter().map(|target| weight(target)).sum::<u32>().max(1)
}

fn parse(arguments: &[String]) -> Result<Options> {
    let mut options =
        Options { target: None, time: TIME, is_total: false, repeat: None, merge: false, rest: Vec::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--for" => options.time = seconds(value()?)?,
            "--total" => options.is_total = true,
            "--repeat" => options.repeat = Some(value()?.into()),
            "--merge" => options.merge = true,
            "--" => options.rest = arguments.by_ref().cloned().collect(),
            option if option.starts_with('-') => bail!("there is no option `{option}`"),
            name if TARGETS.contains(&name) && options.target.is_none() => {
                options.target = Some(name.to_owned());
            }
            name => bail!("there is no target `{name}`; there are {}", TARGETS.join(", ")),
        }
    }
    Ok(options)
}

/// A time such as `60s`, `5m` or `1h`.
fn seconds(text: &str) -> Result<Duration> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found =
        units.iter().find_map(|(unit, each)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * each));
    Ok(Duration::from_secs(found.with_context(|| format!("`{text}` is no time: write 60s, 5m or 1h"))?))
}

/// Builds the fuzzer, and returns its path.
fn build() -> Result<PathBuf> {
    let directory = shell::target_directory().join("fuzz");
    // Without a named target, the build scripts would be built with the flags, too.
    let host = cargo::host()?;
    let mut build =
        shell::cargo(["build", "--locked", "--package", "leasehold-fuzz", "--bin", "leasehold-fuzz"]);
    build
        .args(["--features", "coverage", "--profile", "fuzz", "--target", &host, "--target-dir"])
        .arg(&directory)
        .env("RUSTFLAGS", FLAGS);
    shell::run(build)?;
    Ok(directory.join(host).join("fuzz/leasehold-fuzz"))
}

/// The fuzzer of a target, with limits for one input. Its own limit of memory is behind the target's.
fn fuzzer(program: &Path, target: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LEASEHOLD_FUZZ_TARGET", target).current_dir(shell::root()).args([
        "-timeout=60",
        "-rss_limit_mb=2560",
        "-print_final_stats=1",
    ]);
    command
}

/// Fuzzes a target: from the corpus in the repository, and what earlier runs on this machine have found.
fn fuzz(program: &Path, target: &str, time: Duration, options: &Options) -> Result<()> {
    let directory = shell::target_directory().join("fuzz");
    let kept = shell::root().join("crates/fuzz/corpus").join(target);
    let found = directory.join("corpus").join(target);
    let findings = directory.join("findings");
    for directory in [&found, &findings] {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let prefix = findings.join(format!("{target}-"));
    let mut command = fuzzer(program, target);
    command.arg(format!("-artifact_prefix={}", prefix.display()));
    if options.merge {
        // Into the corpus of the repository: what adds coverage, and as little as that takes.
        command.arg("-merge=1").args([&kept, &found]);
        return shell::run(command);
    }
    command.arg(format!("-max_total_time={}", time.as_secs().max(1))).args(&options.rest);
    let status = shell::status({
        command.args([&found, &kept]);
        command
    })?;
    if !status.success() {
        bail!(
            "a property does not hold. Repeat it with `cargo xtask fuzz {target} --repeat FILE`, for the newest FILE of {}*",
            prefix.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_target_and_a_time_can_be_given() {
        let options = parsed("server --for 5m -- -jobs=2").expect("a command");
        assert_eq!((options.target.as_deref(), options.time), (Some("server"), Duration::from_secs(300)));
        assert_eq!(options.rest, ["-jobs=2"]);
        assert_eq!(parsed("").expect("all").time, TIME);
        for (line, error) in
            [("sever", "no target `sever`"), ("--for 5", "no time"), ("--of", "no option `--of`")]
        {
            let found = parsed(line).expect_err("it is refused").to_string();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn each_target_has_a_corpus_and_a_share_of_the_time() {
        let mut of_repository: Vec<_> = fs::read_dir(shell::root().join("crates/fuzz/corpus"))
            .expect("the corpus is there")
            .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
            .collect();
        let mut targets = TARGETS.map(str::to_owned).to_vec();
        of_repository.sort();
        targets.sort();
        assert_eq!(of_repository, targets);
        let time = Duration::from_secs(3600);
        let all: Duration = TARGETS.iter().map(|target| share(time, target, &TARGETS)).sum();
        assert!(time.abs_diff(all) < Duration::from_secs(1), "{all:?}");
    }
}
