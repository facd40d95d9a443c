//! The neighbours: which libraries there are, what starts their drivers, and in what they differ.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::planted::Fault;

/// What a client of ours is called among them.
pub(crate) const OURS: &str = "ours";

/// What a library writes at a lock's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `SET key token NX PX`, as our Mutex does.
    String,
    /// A hash of the owner and how often he has the lock, as our ReentrantMutex does.
    Hash,
}

/// A library that locks by the same keys as we do.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// What it is called; its directory, too.
    pub(crate) name: String,
    pub(crate) format: Format,
    /// What runs the driver.
    program: Program,
    /// What the driver is told beside the server.
    arguments: Vec<String>,
    /// Whether it makes locks that have no expiry.
    pub(crate) locks_for_ever: bool,
    /// Whether its release says that the lock was lost.
    pub(crate) release_tells: bool,
    /// What is wrong with ours where they meet, if anything is.
    pub(crate) ours: Option<Fault>,
}

/// What a driver is run by.
#[derive(Debug)]
enum Program {
    /// Nothing: it is a program by itself.
    File(PathBuf),
    /// An interpreter of that name.
    Script(&'static str, PathBuf),
    /// A program that is told the lease of its watchdog.
    Rlock(PathBuf),
    /// A Java machine, which is told so, too; the directory has `classes` and, in `lib`, what they need.
    Java(PathBuf),
}

impl Neighbour {
    /// The neighbour of that name, who meets ours with a fault in them, or with none.
    pub(crate) fn named(name: &str, drivers: &Path, ours: Option<Fault>) -> Result<Self> {
        let home = drivers.join(name);
        let library = |program| Self {
            ours,
            name: name.to_owned(),
            format: Format::String,
            program,
            arguments: Vec::new(),
            locks_for_ever: false,
            release_tells: true,
        };
        Ok(match name {
            "redis-py" => {
                Self { locks_for_ever: true, ..library(Program::Script("python3", home.join("driver.py"))) }
            }
            "redsync" => library(Program::File(home.join("driver"))),
            "node-redlock" => library(Program::Script("node", home.join("driver.mjs"))),
            "rslock" => {
                Self { release_tells: false, ..library(Program::File(home.join("debug/rslock-driver"))) }
            }
            "redisson" => Self { format: Format::Hash, ..library(Program::Java(home)) },
            _ => match name.split_once(':') {
                Some(("plant", fault)) => Self {
                    arguments: vec![fault.to_owned()],
                    locks_for_ever: true,
                    ..library(Program::File(beside("leasehold-interop-plant")?))
                },
                Some(("rlock", fault)) => Self {
                    format: Format::Hash,
                    arguments: vec![fault.to_owned()],
                    ..library(Program::Rlock(beside("leasehold-interop-rlock")?))
                },
                _ => bail!("there is no neighbour `{name}`"),
            },
        })
    }

    /// A client of ours, which only counts, with pauses of so many ms at most.
    pub(crate) fn ours(format: Format, pause_ms: u64) -> Result<Self> {
        let kind = match format {
            Format::String => "mutex",
            Format::Hash => "reentrant",
        };
        Ok(Self {
            name: OURS.to_owned(),
            format,
            program: Program::File(beside("leasehold-interop-ours")?),
            arguments: vec![kind.to_owned(), pause_ms.to_string()],
            locks_for_ever: false,
            release_tells: true,
            ours: None,
        })
    }

    /// What starts the driver. `watchdog` is the lease of its locks that are given none, where it renews those.
    pub(crate) fn command(&self, url: &str, watchdog: Duration) -> Command {
        let mut command = match &self.program {
            Program::File(file) | Program::Rlock(file) => Command::new(file),
            Program::Script(interpreter, file) => {
                let mut command = Command::new(interpreter);
                command.arg(file);
                command
            }
            Program::Java(home) => java(home),
        };
        command.arg(url).args(&self.arguments);
        if matches!(self.program, Program::Rlock(_) | Program::Java(_)) {
            command.arg(watchdog.as_millis().to_string());
        }
        command
    }
}

/// Another program of this package.
fn beside(program: &str) -> Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name(program))
}

/// A Java machine that starts soon and stays small: it is to lock, not to compile.
fn java(home: &Path) -> Command {
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-Xshare:auto", "-classpath"]);
    java.arg(format!("{0}/classes:{0}/lib/*", home.display())).arg("Driver");
    java
}
