//! `cargo xtask interop [NEIGHBOUR…]`: the locks of other libraries against ours, with the libraries installed first.
//!
//! A neighbour is skipped only if a program is missing that its library cannot be installed or run without. That is said
//! when it happens, and counted in the last line. Redisson is never skipped: no other neighbour has its format, and ours
//! is made after it.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{install, shell};

/// Another library, by its driver in `interop/`.
struct Neighbour {
    /// What it is called; its directory, too.
    name: &'static str,
    /// The programs that there must be.
    tools: &'static [&'static str],
    /// Whether it may be left out where one of them is missing.
    needed: Need,
    /// Makes the driver ready to run in a directory. Quick if it is already.
    prepare: fn(&Path, &Path) -> Result<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Without it nothing is proved.
    Always,
    /// Others show the same.
    WhereItCan,
}

const NEIGHBOURS: [Neighbour; 5] = [
    Neighbour { name: "redis-py", tools: &["python3", "pip3"], needed: Need::WhereItCan, prepare: redis_py },
    Neighbour { name: "redsync", tools: &["go"], needed: Need::WhereItCan, prepare: redsync },
    Neighbour {
        name: "node-redlock",
        tools: &["node", "npm"],
        needed: Need::WhereItCan,
        prepare: node_redlock,
    },
    Neighbour { name: "rslock", tools: &["cargo"], needed: Need::WhereItCan, prepare: rslock },
    Neighbour { name: "redisson", tools: &["java", "javac", "mvn"], needed: Need::Always, prepare: redisson },
];

/// Installs what is missing, and tries the neighbours that are named, or all.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Chosen { tried, skipped } = choose(arguments, |tool| shell::find(tool).is_some())?;
    for (neighbour, tool) in &skipped {
        eprintln!("xtask: SKIPPED {}: there is no `{tool}` on the path", neighbour.name);
    }
    install::redis()?;
    let drivers = drivers();
    for neighbour in &tried {
        let (source, home) =
            (shell::root().join("interop").join(neighbour.name), drivers.join(neighbour.name));
        fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
        (neighbour.prepare)(&source, &home)
            .with_context(|| format!("the driver of {} cannot be made ready", neighbour.name))?;
    }
    let mut interop = shell::cargo(["run", "--quiet", "--package", "leasehold-interop", "--", "--drivers"]);
    interop.arg(drivers).args(tried.iter().map(|neighbour| neighbour.name));
    let status = shell::status(interop)?;
    println!("interop: {} neighbours tried, {} skipped", tried.len(), skipped.len());
    if !status.success() {
        bail!("a lock was not exclusive, or could not be tried: see VIOLATION above");
    }
    Ok(())
}

struct Chosen {
    tried: Vec<&'static Neighbour>,
    /// With the tool that is missing.
    skipped: Vec<(&'static Neighbour, &'static str)>,
}

/// Whom to try. Who is named may not be skipped, and not everybody may.
fn choose(names: &[String], is_there: impl Fn(&str) -> bool) -> Result<Chosen> {
    let known = NEIGHBOURS.each_ref().map(|neighbour| neighbour.name);
    if let Some(stranger) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no neighbour `{stranger}`: there are {}", known.join(", "));
    }
    let mut chosen = Chosen { tried: Vec::new(), skipped: Vec::new() };
    for neighbour in &NEIGHBOURS {
        if !names.is_empty() && !names.iter().any(|name| name == neighbour.name) {
            continue;
        }
        match neighbour.tools.iter().find(|tool| !is_there(tool)) {
            None => chosen.tried.push(neighbour),
            Some(tool) if names.is_empty() && neighbour.needed == Need::WhereItCan => {
                chosen.skipped.push((neighbour, tool));
            }
            Some(tool) => bail!(
                "{} cannot be tried: there is no `{tool}` on the path, and it needs {}",
                neighbour.name,
                neighbour.tools.join(", ")
            ),
        }
    }
    if chosen.tried.is_empty() {
        bail!("no neighbour can be tried: none of their tools is on the path");
    }
    Ok(chosen)
}

/// Where the drivers are made ready.
fn drivers() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    shell::root().join(target).join("interop")
}

fn redis_py(source: &Path, home: &Path) -> Result<()> {
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
    })?;
    copy(source, home, "driver.py")
}

fn redsync(source: &Path, home: &Path) -> Result<()> {
    let mut go = Command::new("go");
    go.current_dir(source).args(["build", "-mod=readonly", "-o"]).arg(home.join("driver")).arg(".");
    shell::run(go)
}

fn node_redlock(source: &Path, home: &Path) -> Result<()> {
    copy(source, home, "package.json")?;
    copy(source, home, "driver.mjs")?;
    once(source, home, &["package-lock.json"], || {
        copy(source, home, "package-lock.json")?;
        let mut npm = Command::new("npm");
        npm.current_dir(home).args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        shell::run(npm)
    })
}

fn rslock(source: &Path, home: &Path) -> Result<()> {
    let mut cargo = shell::cargo(["build", "--quiet", "--locked", "--manifest-path"]);
    cargo.arg(source.join("Cargo.toml"));
    shell::run(with(cargo, "--target-dir", home))
}

/// Builds the class path: `classes`, and in `lib` what they need. Only the first build of a version needs the network.
fn redisson(source: &Path, home: &Path) -> Result<()> {
    let sources = ["pom.xml", "src/main/java/Driver.java", "src/main/java/Holder.java"];
    once(source, home, &sources, || {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(chosen: &Chosen) -> (Vec<&str>, Vec<&str>) {
        let skipped = chosen.skipped.iter().map(|(neighbour, _)| neighbour.name);
        (chosen.tried.iter().map(|neighbour| neighbour.name).collect(), skipped.collect())
    }

    #[test]
    fn only_who_lacks_a_tool_is_skipped() {
        let all = choose(&[], |_| true).expect("a choice");
        assert_eq!(names(&all), (vec!["redis-py", "redsync", "node-redlock", "rslock", "redisson"], vec![]));
        let no_npm = choose(&[], |tool| tool != "npm").expect("a choice");
        assert_eq!(names(&no_npm), (vec!["redis-py", "redsync", "rslock", "redisson"], vec!["node-redlock"]));
    }

    #[test]
    fn redisson_is_never_skipped() {
        for missing in ["java", "javac", "mvn"] {
            let error = choose(&[], |tool| tool != missing).err().expect("a refusal").to_string();
            assert!(
                error.starts_with(&format!("redisson cannot be tried: there is no `{missing}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn who_is_named_is_not_skipped() {
        let named = |name: &str| [name.to_owned()];
        let chosen = choose(&named("redsync"), |tool| tool == "go").expect("a choice");
        assert_eq!(names(&chosen), (vec!["redsync"], vec![]));
        assert!(choose(&named("redsync"), |tool| tool != "go").is_err());
        assert!(choose(&named("redlock"), |_| true).is_err());
        assert!(choose(&[], |_| false).is_err());
    }
}
