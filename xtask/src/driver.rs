//! The drivers: one small program for each other library, in the library's own language.
//!
//! Owns which of them can run on a machine, and how each is installed or built outside of the sources, with its language's
//! tools. What they do is in `drivers/`; `interop` and `bench peers` run them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// The program around another library.
pub(crate) struct Driver {
    /// The library's name, and the directory of the driver.
    pub(crate) name: &'static str,
    /// The programs that it is built or run with.
    pub(crate) tools: &'static [&'static str],
    /// Makes it ready to run, from its sources in a directory. Quick if it is ready.
    prepare: fn(&Path, &Path) -> Result<()>,
}

/// All drivers.
pub(crate) static DRIVERS: [Driver; 5] = [
    Driver { name: "rslock", tools: &["cargo"], prepare: rslock },
    Driver { name: "redisson", tools: &["java", "javac", "mvn"], prepare: redisson },
    Driver { name: "redsync", tools: &["go"], prepare: redsync },
    Driver { name: "redis-py", tools: &["python3", "pip3"], prepare: redis_py },
    Driver { name: "node-redlock", tools: &["node", "npm"], prepare: node_redlock },
];

/// The drivers that a command runs.
pub(crate) struct Chosen {
    pub(crate) run: Vec<&'static Driver>,
    /// With the tool that is missing.
    pub(crate) skipped: Vec<(&'static Driver, &'static str)>,
}

/// Chooses the named drivers, or all. One that is named, or `required`, is not skipped where its tools are missing.
pub(crate) fn choose(names: &[String], required: &[&str], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    let known: Vec<&str> = DRIVERS.iter().map(|driver| driver.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no driver `{unknown}`: there are {}", known.join(", "));
    }
    let mut chosen = Chosen { run: Vec::new(), skipped: Vec::new() };
    for driver in &DRIVERS {
        if !names.is_empty() && !names.iter().any(|name| name == driver.name) {
            continue;
        }
        match driver.tools.iter().find(|tool| !is_there(tool)) {
            None => chosen.run.push(driver),
            Some(tool) if names.is_empty() && !required.contains(&driver.name) => {
                chosen.skipped.push((driver, tool));
            }
            Some(tool) => bail!(
                "{} cannot run: there is no `{tool}` on the path, and it needs {}",
                driver.name,
                driver.tools.join(", ")
            ),
        }
    }
    if chosen.run.is_empty() {
        bail!("no driver can run: none of their tools is on the path");
    }
    Ok(chosen)
}

/// Where the drivers are.
pub(crate) struct Drivers {
    /// Contains a directory for each driver.
    pub(crate) directory: PathBuf,
    /// The drivers that could not be installed or built.
    pub(crate) failed: Vec<(&'static Driver, anyhow::Error)>,
}

impl Chosen {
    /// Makes the drivers ready. One that fails stops no other.
    pub(crate) fn prepare_each(&self) -> Result<Drivers> {
        let directory = shell::target_directory().join("drivers");
        let mut failed = Vec::new();
        for driver in &self.run {
            let (source, home) =
                (shell::root().join("drivers").join(driver.name), directory.join(driver.name));
            fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
            let prepared = (driver.prepare)(&source, &home);
            failed.extend(prepared.err().map(|error| (*driver, error)));
        }
        Ok(Drivers { directory, failed })
    }

    /// Makes all drivers ready, and returns the directory that contains them.
    pub(crate) fn prepare(&self) -> Result<PathBuf> {
        let Drivers { directory, failed } = self.prepare_each()?;
        match failed.into_iter().next() {
            Some((driver, error)) => Err(error.context(format!("failed to prepare {}", driver.name))),
            None => Ok(directory),
        }
    }
}

fn redis_py(source: &Path, home: &Path) -> Result<()> {
    python_packages(source, home, &[])?;
    ["driver.py", "interop.py", "bench.py"].into_iter().try_for_each(|file| copy(source, home, file))
}

/// Installs the packages of a directory's `requirements.txt` into another directory, with options of pip's.
pub(crate) fn python_packages(source: &Path, home: &Path, options: &[&str]) -> Result<()> {
    once(source, home, &["requirements.txt"], || {
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--root-user-action=ignore",
        ]);
        pip.args(options)
            .args(["--upgrade", "--require-hashes", "--requirement"])
            .arg(source.join("requirements.txt"));
        // Python looks for modules first in the directory of the program.
        shell::run(with(pip, "--target", home))
    })
}

/// Builds `drivers/porcupine`, which judges histories and is no driver of locks, and returns its program.
pub(crate) fn porcupine() -> Result<PathBuf> {
    let home = shell::target_directory().join("drivers/porcupine");
    fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
    go_program(&shell::root().join("drivers/porcupine"), &home)?;
    Ok(home.join("driver"))
}

fn redsync(source: &Path, home: &Path) -> Result<()> {
    go_program(source, home)
}

fn go_program(source: &Path, home: &Path) -> Result<()> {
    let mut go = Command::new("go");
    go.current_dir(source).args(["build", "-mod=readonly", "-o"]).arg(home.join("driver")).arg(".");
    shell::run(go)
}

fn node_redlock(source: &Path, home: &Path) -> Result<()> {
    let files = ["package.json", "driver.mjs", "library.mjs", "interop.mjs", "bench.mjs"];
    files.into_iter().try_for_each(|file| copy(source, home, file))?;
    once(source, home, &["package-lock.json"], || {
        copy(source, home, "package-lock.json")?;
        let mut npm = Command::new("npm");
        npm.current_dir(home).args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        shell::run(npm)
    })
}

/// Optimised, since `bench` measures it.
fn rslock(source: &Path, home: &Path) -> Result<()> {
    let mut cargo = shell::cargo(["build", "--quiet", "--locked", "--release", "--manifest-path"]);
    cargo.arg(source.join("Cargo.toml"));
    shell::run(with(cargo, "--target-dir", home))
}

/// Builds the class path: `classes`, and their libraries in `lib`. Only the first build of a version needs the network.
fn redisson(source: &Path, home: &Path) -> Result<()> {
    let classes = ["Driver", "Interop", "Holder", "Bench"].map(|class| format!("src/main/java/{class}.java"));
    let files: Vec<&str> = ["pom.xml"].into_iter().chain(classes.iter().map(String::as_str)).collect();
    once(source, home, &files, || {
        // A library of an earlier version would stay on the class path.
        fs::remove_dir_all(home).and_then(|()| fs::create_dir(home))?;
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet", "--strict-checksums", "-Dstyle.color=never", "--file"]);
        maven.arg(source.join("pom.xml")).arg(format!("-Dhome={}", home.display())).arg("compile");
        // Standard output is for results.
        maven.stdout(io::stderr());
        shell::run(maven)
    })
}

/// Installs or builds from these files, unless that was done from the same contents.
fn once(source: &Path, home: &Path, files: &[&str], install: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut wanted = Vec::new();
    for file in files {
        wanted.extend(fs::read(source.join(file)).with_context(|| format!("failed to read {file}"))?);
    }
    let done = home.join("installed");
    if fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install()?;
    // Last, so that an interrupted installation is repeated.
    fs::write(&done, wanted).with_context(|| format!("failed to write {}", done.display()))
}

fn copy(source: &Path, home: &Path, file: &str) -> Result<()> {
    fs::copy(source.join(file), home.join(file)).with_context(|| format!("failed to copy {file}"))?;
    Ok(())
}

fn with(mut command: Command, option: &str, path: &Path) -> Command {
    command.arg(option).arg(path);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: &Chosen) -> (Vec<&str>, Vec<&str>) {
        let skipped = chosen.skipped.iter().map(|(driver, _)| driver.name);
        (chosen.run.iter().map(|driver| driver.name).collect(), skipped.collect())
    }

    #[test]
    fn only_a_driver_without_its_tools_is_skipped() {
        let all = choose(&[], &[], |_| true).expect("a choice");
        assert_eq!(names(&all), (vec!["rslock", "redisson", "redsync", "redis-py", "node-redlock"], vec![]));
        let no_npm = choose(&[], &[], |tool| tool != "npm").expect("a choice");
        assert_eq!(names(&no_npm), (vec!["rslock", "redisson", "redsync", "redis-py"], vec!["node-redlock"]));
        assert!(choose(&[], &[], |_| false).is_err());
    }

    #[test]
    fn a_named_driver_is_not_skipped() {
        let named = |name: &str| [name.to_owned()];
        let chosen = choose(&named("redsync"), &[], |tool| tool == "go").expect("a choice");
        assert_eq!(names(&chosen), (vec!["redsync"], vec![]));
        let error = choose(&named("redsync"), &[], |tool| tool != "go").err().expect("a refusal").to_string();
        assert!(error.starts_with("redsync cannot run: there is no `go`"), "{error}");
        let error = choose(&named("redlock"), &[], |_| true).err().expect("a refusal").to_string();
        assert!(error.starts_with("there is no driver `redlock`: there are rslock, "), "{error}");
    }
}
