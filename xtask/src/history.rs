//! `cargo xtask history [FILE…]`: Porcupine, a judge that is not ours, over histories that `leasehold verify` has recorded.
//!
//! Without a file it judges planted histories, and must agree with our checks on each. With files it judges their Mutexes, and
//! draws a picture beside each file. What a history is, is in `docs/reference/history.md`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::{driver, shell};

/// Builds the judge, and runs it.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if let Some(option) = arguments.iter().find(|argument| argument.starts_with('-')) {
        bail!("there is no option `{option}`: history takes files");
    }
    if shell::find("go").is_none() {
        bail!("Porcupine cannot be built: there is no `go` on the path");
    }
    let judge = driver::porcupine()?;
    if arguments.is_empty() {
        return compare(&judge);
    }
    let mut failed = Vec::new();
    for file in arguments {
        let mut command = Command::new(&judge);
        command.arg(file).arg(picture(file));
        if !shell::status(command)?.success() {
            failed.push(file.as_str());
        }
        println!("{}", picture(file).display());
    }
    if !failed.is_empty() {
        bail!("not linearizable, or not judged: {}", failed.join(", "));
    }
    Ok(())
}

/// Compares it with our checks on planted histories.
fn compare(judge: &Path) -> Result<()> {
    let mut cargo = shell::cargo(["test", "--locked", "--package", "leasehold-history", "--test", "judges"]);
    cargo.args(["--", "--nocapture", "porcupine::"]).env("LEASEHOLD_PORCUPINE", judge);
    shell::run(cargo)
}

/// Where the picture of a history goes.
fn picture(file: &str) -> PathBuf {
    Path::new(file).with_extension("porcupine.html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_stands_beside_the_history() {
        assert_eq!(picture("runs/a.jsonl"), Path::new("runs/a.porcupine.html"));
    }

    #[test]
    fn an_option_is_refused() {
        let error = run(&["--all".to_owned()]).expect_err("a refusal").to_string();
        assert_eq!(error, "there is no option `--all`: history takes files");
    }
}
