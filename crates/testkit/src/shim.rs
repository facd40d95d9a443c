//! C code that is preloaded into a server.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

/// A shim: its name, its source, and its bytes, compiled once in a process. They are kept in memory, since no file would be
/// removed at exit.
#[derive(Debug)]
pub(crate) struct Shim {
    name: &'static str,
    source: &'static str,
    compiled: OnceLock<Result<Vec<u8>, String>>,
}

impl Shim {
    pub(crate) const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, compiled: OnceLock::new() }
    }

    /// Makes `command` load it, after those that it loads already. It is put into `dir`, which must outlive the process.
    pub(crate) fn preload(&self, command: &mut Command, dir: &Path) -> io::Result<()> {
        let object = dir.join(self.name).with_extension("so");
        fs::write(&object, self.bytes()?)?;
        let before = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
        let all = match before {
            None => object.into_os_string(),
            Some(before) => {
                let mut all = before.to_owned();
                all.push(":");
                all.push(object);
                all
            }
        };
        command.env("LD_PRELOAD", all);
        Ok(())
    }

    fn bytes(&self) -> io::Result<&[u8]> {
        match self.compiled.get_or_init(|| self.compile().map_err(|error| error.to_string())) {
            Ok(bytes) => Ok(bytes),
            Err(text) => Err(io::Error::other(text.clone())),
        }
    }

    fn compile(&self) -> io::Result<Vec<u8>> {
        let name = self.name;
        let dir = TempDir::with_prefix("leasehold-shim-")?;
        let source = dir.path().join(name).with_extension("c");
        let object = dir.path().join(name).with_extension("so");
        fs::write(&source, self.source)?;
        let compiler = env::var_os("CC").map_or_else(|| PathBuf::from("cc"), PathBuf::from);
        let output = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&object, &source])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| {
                let text = format!("the {name} shim needs a C compiler, `{}`: {error}", compiler.display());
                io::Error::new(error.kind(), text)
            })?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("failed to compile the {name} shim: {text}")));
        }
        fs::read(&object)
    }
}
