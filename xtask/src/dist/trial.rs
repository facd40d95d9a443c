//! Installs what was made, uses it, and removes it: in a directory, so that this machine keeps what it has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Plan;
use crate::{install, shell};

/// Runs the program in a directory, with /proc, which each container has. The mount is seen and kept by these processes only.
const IN_DIRECTORY: &str = r#"directory=$1; shift; mount --bind /proc "$directory/proc" && exec chroot "$directory" /leasehold "$@""#;

/// Tries the package, or the static program where nothing else is.
pub(super) fn run(plan: &Plan) -> Result<()> {
    let directory = plan.stage.join("trial");
    fs::create_dir_all(&directory)?;
    let tried = if plan.is_static() { alone(plan, &directory) } else { deb(plan, &directory) };
    // What dpkg has made belongs to root.
    let mut remove = install::as_root("rm");
    remove.args(["--recursive", "--force"]).arg(&directory);
    let removed = shell::run(remove);
    tried?;
    removed
}

/// Installs the package beside the packages of this machine that it depends on, so that it is refused if one is missing or too
/// old.
fn deb(plan: &Plan, directory: &Path) -> Result<()> {
    let (root, list) = (directory.join("root"), directory.join("dpkg"));
    for new in [root.clone(), list.join("info"), list.join("updates"), list.join("triggers")] {
        fs::create_dir_all(new)?;
    }
    fs::copy("/var/lib/dpkg/status", list.join("status"))
        .context("this machine has no packages of Debian's")?;
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = install::as_root("dpkg");
        dpkg.arg("--instdir").arg(&root).arg("--admindir").arg(&list);
        dpkg.args(["--log", "/dev/null"]).args(arguments);
        dpkg
    };
    eprintln!("xtask: installing {} in {}", plan.deb(), root.display());
    let package = plan.directory.join(plan.deb());
    let mut install = dpkg(&["--install"]);
    install.arg(&package);
    shell::output(install)?;
    let state = shell::output(dpkg(&["--status", "leasehold"]))?;
    ensure!(state.contains("\nStatus: install ok installed\n"), "it is not installed: {state}");
    use_program(plan, &root.join("usr/bin/leasehold"), directory)?;
    units(&root)?;
    shell::output(dpkg(&["--purge", "leasehold"]))?;
    let left = left(&root)?;
    ensure!(left.is_empty(), "after the removal there are still {left:?}");
    Ok(())
}

/// Runs a command under a lock by the installed program.
fn use_program(plan: &Plan, program: &Path, directory: &Path) -> Result<()> {
    let leasehold = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.env("LEASEHOLD_STORE", format!("sqlite:{}", directory.join("locks.db").display()));
        command.env("LEASEHOLD_STATE_DIR", directory.join("state")).args(arguments);
        shell::output(command)
    };
    let version = leasehold(&["--version"])?;
    ensure!(version.trim() == format!("leasehold {}", plan.version), "--version prints {version}");
    let fence = leasehold(&["run", "nightly", "--", "sh", "-c", "echo fence $LEASEHOLD_FENCE"])?;
    let has_number = fence.trim().strip_prefix("fence ").is_some_and(|it| it.parse::<u64>().is_ok());
    ensure!(has_number, "a command under a lock prints {fence}");
    Ok(())
}

/// Each unit starts a program that the package has installed.
fn units(root: &Path) -> Result<()> {
    let mut started = 0;
    for file in super::stage::files(&root.join("usr/lib/systemd/system"))? {
        let text = fs::read_to_string(&file)?;
        for line in text.lines().filter_map(|line| line.strip_prefix("ExecStart=/")) {
            let program = line.split(' ').next().unwrap_or_default();
            ensure!(root.join(program).is_file(), "{}: there is no /{program}", file.display());
            started += 1;
        }
    }
    ensure!(started > 0, "no unit starts a program");
    Ok(())
}

/// The files below a directory.
fn left(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() { files.extend(left(&path)?) } else { files.push(path) }
    }
    Ok(files)
}

/// Runs the static program as in a container from scratch: its directory is all that it sees.
fn alone(plan: &Plan, directory: &Path) -> Result<()> {
    fs::copy(plan.stage.join("leasehold"), directory.join("leasehold"))?;
    fs::create_dir_all(directory.join("proc"))?;
    let leasehold = |arguments: &[&str]| {
        let mut unshare = install::as_root("unshare");
        unshare.args(["--mount", "sh", "-c", IN_DIRECTORY, "sh"]).arg(directory).args(arguments);
        unshare.env_remove("LEASEHOLD_STORE").output().context("failed to start unshare")
    };
    let version = leasehold(&["--version"])?;
    ensure!(version.status.success(), "the program does not start with /proc in a directory: {version:?}");
    let printed = String::from_utf8_lossy(&version.stdout).into_owned();
    ensure!(printed.trim() == format!("leasehold {}", plan.version), "--version prints {version:?}");
    let listed = leasehold(&["ls", "--json", "--store", "sqlite:/locks.db"])?;
    ensure!(listed.status.success(), "a store cannot be used: {listed:?}");
    // The health check of the container file, at an address where nothing listens.
    let text = fs::read_to_string(shell::root().join("contrib/container/Containerfile"))?;
    let check =
        text.lines().find_map(|line| line.split_once(" CMD ").filter(|_| line.starts_with("HEALTHCHECK")));
    let (_, check) = check.context("the container file has no health check")?;
    let words: Vec<String> = serde_json::from_str(check).context("the health check is no list of words")?;
    let [program, rest @ .., _port] = &words[..] else { bail!("the health check is empty") };
    ensure!(program == "/leasehold", "the health check runs {program}");
    let rest: Vec<&str> = rest.iter().map(String::as_str).chain(["127.0.0.1:1"]).collect();
    let checked = leasehold(&rest)?;
    ensure!(checked.status.code() == Some(69), "the health check ends with {checked:?}");
    Ok(())
}
