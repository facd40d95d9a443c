//! `cargo xtask shuttle`: explores the races between a client's threads.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Runs all races, or the one that is named. `--iterations` sets the number of schedules, `--seed` which ones, and
/// `--schedule` repeats the one that a failure has printed.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    shell::run(command(arguments)?)
}

/// Builds the library, with shuttle's replacements for what its threads share, into a directory of its own.
pub(crate) fn command(arguments: &[String]) -> Result<Command> {
    // For few schedules a whole optimised build takes far longer than the runs it speeds up.
    let is_long = arguments.iter().any(|argument| argument == "--iterations");
    let profile = if is_long { "release" } else { "races" };
    let mut test = shell::cargo(["test", "--package", "leasehold-race", "--lib"]);
    test.args(["--profile", profile, "--target-dir", "target/shuttle"])
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    let mut race = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--iterations" => test.env("LEASEHOLD_ITERATIONS", value()?),
            "--seed" => test.env("LEASEHOLD_SEED", value()?),
            "--schedule" => test.env("LEASEHOLD_SCHEDULE", value()?),
            option @ ("--locked" | "--offline" | "--frozen") => test.arg(option),
            option if option.starts_with('-') => bail!("there is no option `{option}`"),
            name => {
                race = Some(name);
                &mut test
            }
        };
    }
    test.args(race);
    Ok(test)
}
