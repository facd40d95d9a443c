//! Other programs: finds them, announces them and runs them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

/// Prints a command and runs it, with input and output passed through. A program that fails is an error.
pub(crate) fn run(command: Command) -> Result<()> {
    let line = shown(&command);
    let status = status(command)?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Prints a command and runs it; the caller judges the status.
pub(crate) fn status(mut command: Command) -> Result<ExitStatus> {
    let line = shown(&command);
    eprintln!("xtask: {line}");
    command.status().with_context(|| format!("failed to start `{line}`"))
}

/// The cargo that runs this program, in the workspace's root.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut cargo = in_root(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.args(arguments);
    cargo
}

/// A program in the workspace's root, without what cargo says of xtask.
pub(crate) fn in_root(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    // Cargo describes xtask's own package to xtask. Build scripts that watch these variables would run again.
    for (name, _) in env::vars_os() {
        let is_of_xtask =
            ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|it| name.to_string_lossy().starts_with(it));
        if is_of_xtask {
            command.env_remove(name);
        }
    }
    command
}

/// The same, for what runs long in the profile release: with lines in the traces of panics and in profiles, which the release
/// that is installed does not have.
pub(crate) fn cargo_with_lines<const N: usize>(arguments: [&str; N]) -> Command {
    let mut cargo = cargo(arguments);
    cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    cargo
}

/// The output of a program, which must succeed.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let line = shown(&command);
    let output = command.output().with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` failed ({}): {}", output.status, reason.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}` is not UTF-8"))
}

/// The file of a program on the path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// The workspace's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the workspace's root")
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program()).to_string_lossy();
    let arguments = command.get_args().map(|argument| format!(" {}", argument.to_string_lossy()));
    name.into_owned() + &arguments.collect::<String>()
}
