//! The other libraries: which there are, how their drivers start, and in what they differ.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::mutants::Mutant;

/// The name of Leasehold's own clients in the report.
pub(crate) const LEASEHOLD: &str = "leasehold";

/// What a library stores at a lock's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// `SET key token NX PX`, as Leasehold's Mutex does.
    String,
    /// A hash of the owner and the hold count, as Leasehold's ReentrantMutex does.
    Hash,
}

/// A library that locks with the same keys as Leasehold.
#[derive(Debug)]
pub(crate) struct Library {
    /// Its name, and the name of its directory.
    pub(crate) name: String,
    pub(crate) format: Format,
    /// How the driver starts.
    program: Program,
    /// Arguments of the driver after the server's URL.
    arguments: Vec<String>,
    /// Whether it has locks without an expiry.
    pub(crate) has_locks_without_expiry: bool,
    /// Whether its release reports that the lock was lost.
    pub(crate) reports_lost_release: bool,
    /// The mutant of Leasehold's clients that it is tested against, if any.
    pub(crate) mutant: Option<Mutant>,
}

/// What a driver is run by.
#[derive(Debug)]
enum Program {
    /// A built-in driver of this program, by its name.
    Builtin(&'static str),
    /// A library's driver that is a program by itself.
    File(PathBuf),
    /// A library's driver that an interpreter of that name runs.
    Script(&'static str, PathBuf),
    /// A library's driver for a Java machine. The directory has `classes` and their libraries in `lib`.
    Java(PathBuf),
}

impl Library {
    /// The library of that name, tested against Leasehold's clients or a mutant of them.
    pub(crate) fn named(name: &str, drivers: &Path, mutant: Option<Mutant>) -> Result<Self> {
        let directory = drivers.join(name);
        let library = |program| Self {
            mutant,
            name: name.to_owned(),
            format: Format::String,
            program,
            arguments: Vec::new(),
            has_locks_without_expiry: false,
            reports_lost_release: true,
        };
        Ok(match name {
            "redis-py" => Self {
                has_locks_without_expiry: true,
                ..library(Program::Script("python3", directory.join("driver.py")))
            },
            "redsync" => library(Program::File(directory.join("driver"))),
            "node-redlock" => library(Program::Script("node", directory.join("driver.mjs"))),
            "rslock" => Self {
                reports_lost_release: false,
                ..library(Program::File(directory.join("release/rslock-driver")))
            },
            "redisson" => Self { format: Format::Hash, ..library(Program::Java(directory)) },
            _ => match name.split_once(':') {
                Some(("mutex", fault)) => Self {
                    arguments: vec![fault.to_owned()],
                    has_locks_without_expiry: true,
                    ..library(Program::Builtin("mutex"))
                },
                Some(("rlock", fault)) => Self {
                    format: Format::Hash,
                    arguments: vec![fault.to_owned()],
                    ..library(Program::Builtin("rlock"))
                },
                _ => bail!("there is no library `{name}`"),
            },
        })
    }

    /// A client of Leasehold's that only counts, with pauses of up to `pause_ms`.
    pub(crate) fn leasehold(format: Format, pause_ms: u64) -> Self {
        let kind = match format {
            Format::String => "mutex",
            Format::Hash => "reentrant",
        };
        Self {
            name: LEASEHOLD.to_owned(),
            format,
            program: Program::Builtin("leasehold"),
            arguments: vec![kind.to_owned(), pause_ms.to_string()],
            has_locks_without_expiry: false,
            reports_lost_release: true,
            mutant: None,
        }
    }

    /// The command that starts the driver. `watchdog` is the lease of locks that are requested without one, where the
    /// driver renews these.
    pub(crate) fn command(&self, url: &str, watchdog: Duration) -> Result<Command> {
        let mut command = match &self.program {
            Program::Builtin(driver) => {
                let mut command = Command::new(env::current_exe()?);
                command.args(["serve", driver]);
                command
            }
            Program::File(file) => Command::new(file),
            Program::Script(interpreter, file) => {
                let mut command = Command::new(interpreter);
                command.arg(file);
                command
            }
            Program::Java(directory) => java(directory),
        };
        if !matches!(self.program, Program::Builtin(_)) {
            command.arg("interop");
        }
        command.arg(url).args(&self.arguments);
        if matches!(self.program, Program::Builtin("rlock") | Program::Java(_)) {
            command.arg(watchdog.as_millis().to_string());
        }
        Ok(command)
    }
}

/// A Java machine that starts soon and stays small.
fn java(directory: &Path) -> Command {
    let mut java = Command::new("java");
    java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-Xshare:auto", "-classpath"]);
    java.arg(format!("{0}/classes:{0}/lib/*", directory.display())).arg("Driver");
    java
}
