//! `cargo xtask shuttle`: the engine's races, explored.

use anyhow::{Context, Result, bail};

use crate::shell;

/// Builds the library with stand-ins for what its threads share, into a directory of its own, and tries its races, or
/// the one whose name is given. `--iterations` says under how many schedules, `--seed` under which, and `--schedule`
/// runs one again that a failure has printed.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    // Optimised, but with the checks that tests have. Where schedules are to be many, all of it is; else to compile all
    // of it would take far longer than to run them.
    let is_long = arguments.iter().any(|argument| argument == "--iterations");
    let profile = if is_long { "release" } else { "races" };
    let mut test = shell::cargo(["test", "--package", "leasehold", "--lib", "--no-default-features"]);
    test.args(["--profile", profile, "--target-dir", "target/shuttle"])
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    let mut race = "engine::races".to_owned();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--iterations" => test.env("LEASEHOLD_ITERATIONS", value()?),
            "--seed" => test.env("LEASEHOLD_SEED", value()?),
            "--schedule" => test.env("LEASEHOLD_SCHEDULE", value()?),
            "--locked" => test.arg("--locked"),
            option if option.starts_with('-') => bail!("there is no option `{option}`"),
            name => {
                race = format!("engine::races::{name}");
                &mut test
            }
        };
    }
    test.arg(race);
    shell::run(test)
}
