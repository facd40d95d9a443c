//! The other libraries: which there are, how their drivers start, and in what they differ.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::planted::Fault;

/// The name of Leasehold's own clients in the report.
pub(crate) const OURS: &str = "ours";

/// What a library stores at a lock's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `SET key token NX PX`, as our Mutex does.
    String,
    /// A hash of the owner and the hold count, as our ReentrantMutex does.
    Hash,
}

/// A library that locks with the same keys as Leasehold.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Its name, and the name of its directory.
    pub(crate) name: String,
    pub(crate) format: Format,
    /// How the driver starts.
    program: Program,
    /// Arguments of the driver after the server's URL.
    arguments: Vec<String>,
    /// Whether it has locks without an expiry.
    pub(crate) locks_for_ever: bool,
    /// Whether its release reports that the lock was lost.
    pub(crate) release_tells: bool,
    /// The fault planted into Leasehold's clients beside it, if any.
    pub(crate) ours: Option<Fault>,
}

/// What a driver is run by.
#[derive(Debug)]
enum Program {
    /// A program of this package.
    Own(PathBuf),
    /// A program of this package whose second argument is the watchdog's lease.
    OwnRlock(PathBuf),
    /// A library's driver that is a program by itself.
    File(PathBuf),
    /// A library's driver that an interpreter of that name runs.
    Script(&'static str, PathBuf),
    /// A library's driver for a Java machine, with the watchdog's lease as an argument. The directory has `classes` and
    /// their libraries in `lib`.
    Java(PathBuf),
}

impl Neighbour {
    /// The library of that name, beside Leasehold's clients with a fault in them, or with none.
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
                Self { release_tells: false, ..library(Program::File(home.join("release/rslock-driver"))) }
            }
            "redisson" => Self { format: Format::Hash, ..library(Program::Java(home)) },
            _ => match name.split_once(':') {
                Some(("plant", fault)) => Self {
                    arguments: vec![fault.to_owned()],
                    locks_for_ever: true,
                    ..library(Program::Own(beside("leasehold-interop-plant")?))
                },
                Some(("rlock", fault)) => Self {
                    format: Format::Hash,
                    arguments: vec![fault.to_owned()],
                    ..library(Program::OwnRlock(beside("leasehold-interop-rlock")?))
                },
                _ => bail!("there is no neighbour `{name}`"),
            },
        })
    }

    /// One of Leasehold's clients, which only counts, with pauses of up to `pause_ms`.
    pub(crate) fn ours(format: Format, pause_ms: u64) -> Result<Self> {
        let kind = match format {
            Format::String => "mutex",
            Format::Hash => "reentrant",
        };
        Ok(Self {
            name: OURS.to_owned(),
            format,
            program: Program::Own(beside("leasehold-interop-ours")?),
            arguments: vec![kind.to_owned(), pause_ms.to_string()],
            locks_for_ever: false,
            release_tells: true,
            ours: None,
        })
    }

    /// Starts the driver. `watchdog` is the lease of locks that are given none, where the driver renews these.
    pub(crate) fn command(&self, url: &str, watchdog: Duration) -> Command {
        let mut command = match &self.program {
            Program::Own(file) | Program::OwnRlock(file) | Program::File(file) => Command::new(file),
            Program::Script(interpreter, file) => {
                let mut command = Command::new(interpreter);
                command.arg(file);
                command
            }
            Program::Java(home) => java(home),
        };
        if matches!(self.program, Program::File(_) | Program::Script(..) | Program::Java(_)) {
            command.arg("interop");
        }
        command.arg(url).args(&self.arguments);
        if matches!(self.program, Program::OwnRlock(_) | Program::Java(_)) {
            command.arg(watchdog.as_millis().to_string());
        }
        command
    }
}

/// Another program of this package.
fn beside(program: &str) -> Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name(program))
}

/// A Java machine that starts soon and stays small.
fn java(home: &Path) -> Command {
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-Xshare:auto", "-classpath"]);
    java.arg(format!("{0}/classes:{0}/lib/*", home.display())).arg("Driver");
    java
}
