//! What a chore needs of the machine, installed where it is missing.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Installs `redis-server` if it is not there. The service that the package may start is left alone: it listens on
/// Redis's own port, and the tests boot their servers on free ones.
pub(crate) fn redis() -> Result<()> {
    package("redis-server")
}

/// Installs `openssl`, which a test makes its certificates with, if it is not there.
pub(crate) fn openssl() -> Result<()> {
    package("openssl")
}

/// Installs the Debian package that is called like a program, if the program is not there.
fn package(name: &str) -> Result<()> {
    if shell::find(name).is_some() {
        return Ok(());
    }
    eprintln!("xtask: {name} is not installed; installing it with apt-get");
    if shell::find("apt-get").is_none() {
        bail!("there is no apt-get here: install {name} by hand, then run this again");
    }
    shell::run(apt(["update"]))?;
    shell::run(apt(["install", "-y", "--no-install-recommends", name]))?;
    let installed =
        shell::find(name).with_context(|| format!("apt-get succeeded, but {name} is not on the path"))?;
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
