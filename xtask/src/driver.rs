//! Small programs around other libraries, each in its library's own language, made ready with that language's tools.
//!
//! Owns which of them can run on a machine, and how each is installed or built outside of the sources. What they are
//! for is their chores': `interop` and `bench peers`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A program around another library.
pub(crate) struct Driver {
    /// What the library is called; the program's directory, too.
    pub(crate) name: &'static str,
    /// The programs that there must be.
    pub(crate) tools: &'static [&'static str],
    /// Whether it may be left out where one of them is missing.
    pub(crate) needed: Need,
    /// Makes it ready to run, from its sources in a directory. Quick if it is already.
    pub(crate) prepare: fn(&Path, &Path) -> Result<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Without it nothing is proved.
    Always,
    /// Others show the same, or the rest counts without it.
    WhereItCan,
}

/// Who takes part.
pub(crate) struct Chosen {
    pub(crate) tried: Vec<&'static Driver>,
    /// With the tool that is missing.
    pub(crate) skipped: Vec<(&'static Driver, &'static str)>,
}

/// Whom to try of all. Who is named may not be skipped, and not everybody may. `noun` is what each of them is.
pub(crate) fn choose(
    all: &'static [Driver],
    noun: &str,
    names: &[String],
    is_there: impl Fn(&str) -> bool,
) -> Result<Chosen> {
    let known: Vec<&str> = all.iter().map(|driver| driver.name).collect();
    if let Some(stranger) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no {noun} `{stranger}`: there are {}", known.join(", "));
    }
    let mut chosen = Chosen { tried: Vec::new(), skipped: Vec::new() };
    for driver in all {
        if !names.is_empty() && !names.iter().any(|name| name == driver.name) {
            continue;
        }
        match driver.tools.iter().find(|tool| !is_there(tool)) {
            None => chosen.tried.push(driver),
            Some(tool) if names.is_empty() && driver.needed == Need::WhereItCan => {
                chosen.skipped.push((driver, tool));
            }
            Some(tool) => bail!(
                "{} cannot be tried: there is no `{tool}` on the path, and it needs {}",
                driver.name,
                driver.tools.join(", ")
            ),
        }
    }
    if chosen.tried.is_empty() {
        bail!("no {noun} can be tried: none of their tools is on the path");
    }
    Ok(chosen)
}

impl Chosen {
    /// Makes the drivers ready: their sources are in a directory of the repository, and they themselves will be in
    /// another one below the directory of what is built. Says where that is.
    pub(crate) fn prepare(&self, sources: &str, home: &str) -> Result<PathBuf> {
        let drivers = shell::target_directory().join(home);
        for driver in &self.tried {
            let (source, home) = (shell::root().join(sources).join(driver.name), drivers.join(driver.name));
            fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
            (driver.prepare)(&source, &home)
                .with_context(|| format!("the driver of {} cannot be made ready", driver.name))?;
        }
        Ok(drivers)
    }
}

pub(crate) fn redis_py(source: &Path, home: &Path) -> Result<()> {
    python_packages(source, home)?;
    copy(source, home, "driver.py")
}

/// What `requirements.txt` in a directory lists, into another one.
pub(crate) fn python_packages(source: &Path, home: &Path) -> Result<()> {
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
        pip.args(["--upgrade", "--require-hashes", "--requirement"]).arg(source.join("requirements.txt"));
        // Python looks for modules beside the program first.
        shell::run(with(pip, "--target", home))
    })
}

pub(crate) fn redsync(source: &Path, home: &Path) -> Result<()> {
    let mut go = Command::new("go");
    go.current_dir(source).args(["build", "-mod=readonly", "-o"]).arg(home.join("driver")).arg(".");
    shell::run(go)
}

pub(crate) fn node_redlock(source: &Path, home: &Path) -> Result<()> {
    copy(source, home, "package.json")?;
    copy(source, home, "driver.mjs")?;
    once(source, home, &["package-lock.json"], || {
        copy(source, home, "package-lock.json")?;
        let mut npm = Command::new("npm");
        npm.current_dir(home).args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        shell::run(npm)
    })
}

/// In this profile of cargo's.
pub(crate) fn rslock(source: &Path, home: &Path, profile: &str) -> Result<()> {
    let mut cargo = shell::cargo(["build", "--quiet", "--locked", "--profile", profile, "--manifest-path"]);
    cargo.arg(source.join("Cargo.toml"));
    shell::run(with(cargo, "--target-dir", home))
}

/// Builds the class path: `classes`, and in `lib` what they need. Only the first build of a version needs the network.
pub(crate) fn redisson(source: &Path, home: &Path, sources: &[&str]) -> Result<()> {
    once(source, home, &[&["pom.xml"], sources].concat(), || {
        // A library of an earlier version would still be on the class path.
        fs::remove_dir_all(home).and_then(|()| fs::create_dir(home))?;
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet", "--strict-checksums", "-Dstyle.color=never", "--file"]);
        maven.arg(source.join("pom.xml")).arg(format!("-Dhome={}", home.display())).arg("compile");
        // What it has to say is no result of ours.
        maven.stdout(io::stderr());
        shell::run(maven)
    })
}

/// Installs or builds from these files, unless that was done from the same ones.
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
    // Last, so that an installation that was cut off is done again.
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
