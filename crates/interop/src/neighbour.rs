//! The neighbours: which libraries there are, what starts their drivers, and in what they differ.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// A library that locks as our plain Mutex does: `SET key token NX PX`.
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// What it is called; its directory, too.
    pub(crate) name: String,
    /// Set if the driver is not a program by itself.
    interpreter: Option<&'static str>,
    /// The driver.
    file: PathBuf,
    /// Set if the driver is one of ours: what is wrong with it.
    fault: Option<String>,
    /// Whether it makes locks that have no expiry.
    pub(crate) locks_for_ever: bool,
    /// Whether its release says that the lock was lost.
    pub(crate) release_tells: bool,
}

impl Neighbour {
    /// The neighbour of that name.
    pub(crate) fn named(name: &str, drivers: &Path) -> Result<Self> {
        let library = |interpreter, file| Self {
            name: name.to_owned(),
            interpreter,
            file: drivers.join(name).join(file),
            fault: None,
            locks_for_ever: false,
            release_tells: true,
        };
        Ok(match name {
            "redis-py" => Self { locks_for_ever: true, ..library(Some("python3"), "driver.py") },
            "redsync" => library(None, "driver"),
            "node-redlock" => library(Some("node"), "driver.mjs"),
            "rslock" => Self { release_tells: false, ..library(None, "debug/rslock-driver") },
            _ => match name.strip_prefix("plant:") {
                Some(fault) => Self {
                    file: env::current_exe()?.with_file_name("leasehold-interop-plant"),
                    fault: Some(fault.to_owned()),
                    locks_for_ever: true,
                    ..library(None, "")
                },
                None => bail!("there is no neighbour `{name}`"),
            },
        })
    }

    /// What starts the driver.
    pub(crate) fn command(&self, url: &str) -> Command {
        let mut command = match self.interpreter {
            Some(interpreter) => {
                let mut command = Command::new(interpreter);
                command.arg(&self.file);
                command
            }
            None => Command::new(&self.file),
        };
        command.arg(url).args(&self.fault);
        command
    }
}
