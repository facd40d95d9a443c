//! `cargo xtask recording`: the program in two terminals, recorded as an animated picture for the front page.
//!
//! Owns what is typed and when. The terminals are `terminal`, the picture is `picture`.

mod picture;
mod terminal;

use std::env;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{install, shell};
use terminal::Terminal;

/// Where the picture is, from the repository's root.
const PICTURE: &str = "docs/pictures/run.svg";
/// The host names of the two terminals.
const HOSTS: [&str; 2] = ["web-1", "web-2"];
/// For how long a text may not appear.
const LIMIT: Duration = Duration::from_secs(30);
/// The time between two keys.
const KEY: Duration = Duration::from_millis(45);
/// For how long the end is shown.
const END: Duration = Duration::from_secs(4);

/// What the two terminals run.
const BACKUP: &str =
    "#!/bin/sh\necho \"backing up, with fencing token $LEASEHOLD_FENCE\"\nsleep 8\necho finished\n";
const RUN: &str = "leasehold run nightly -- ./backup.sh";

/// Records the picture, of this program or of the one in a directory that is given.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let programs = match arguments {
        [] => {
            shell::run(shell::cargo(["build", "--locked", "--package", "leasehold-cli"]))?;
            shell::target_directory().join("debug")
        }
        [option, directory] if option == "--programs" => env::current_dir()?.join(directory),
        _ => bail!("recording takes no arguments but `--programs DIRECTORY`, where `leasehold` is"),
    };
    let file = shell::root().join(PICTURE);
    install::redis()?;
    let directory = shell::target_directory().join("recording");
    if directory.is_dir() {
        fs::remove_dir_all(&directory)?;
    }
    fs::create_dir_all(&directory)?;
    let recorded = record(&directory, &programs);
    let removed = fs::remove_dir_all(&directory);
    let picture = picture::draw(HOSTS, &recorded?);
    removed?;
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(&file, picture).with_context(|| format!("failed to write {}", file.display()))?;
    println!("{}", file.display());
    Ok(())
}

/// What was on the screens, and how long it took.
struct Recording {
    /// The changes of each terminal, in order.
    screens: [Vec<terminal::Change>; 2],
    length: Duration,
}

fn record(directory: &Path, programs: &Path) -> Result<Recording> {
    let script = directory.join("backup.sh");
    fs::write(&script, BACKUP)?;
    let mut executable = Command::new("chmod");
    executable.arg("+x").arg(&script);
    shell::run(executable)?;
    let server = Server::start(directory)?;
    let begun = Instant::now();
    let start = |host| Terminal::start(host, begun, directory, programs, &server.url());
    let (mut first, mut second) = (start(HOSTS[0])?, start(HOSTS[1])?);
    first.expect("$ ", LIMIT)?;
    second.expect("$ ", LIMIT)?;
    // What the shells needed to start is left out.
    let begun = begun.elapsed();
    pause(800);
    first.enter(RUN, KEY)?;
    first.expect("with fencing token", LIMIT)?;
    pause(700);
    second.enter(RUN, KEY)?;
    second.expect("waiting for nightly", LIMIT)?;
    first.expect("finished", LIMIT)?;
    second.expect("with fencing token", LIMIT)?;
    pause(1500);
    first.enter("leasehold run nightly --try -- ./backup.sh; echo status $?", KEY)?;
    first.expect("status 75", LIMIT)?;
    pause(1000);
    first.enter("leasehold ls", KEY)?;
    first.expect("PROGRAM", LIMIT)?;
    second.expect("finished", LIMIT)?;
    let length = first.elapsed().saturating_sub(begun) + END;
    Ok(Recording { screens: [first.end(begun), second.end(begun)], length })
}

/// The pauses are part of the recording: they give a reader time.
fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// A Redis server, ended with this.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--maxmemory-policy", "noeviction"]);
        command.args(["--port", &port.to_string(), "--appendonly", "yes", "--dir"]).arg(directory);
        let child = command.stdout(Stdio::null()).spawn().context("failed to start redis-server")?;
        let server = Self { child, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begun.elapsed() > LIMIT {
                bail!("redis-server does not listen on its port");
            }
            pause(20);
        }
        Ok(server)
    }

    /// Its URL. It accepts a finding about some versions, which the picture is not about.
    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}?accept=lua_vulnerabilities", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a program's directory before the others.
fn path_with(programs: &Path) -> Result<std::ffi::OsString> {
    let others = env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(PathBuf::from(programs)).chain(env::split_paths(&others));
    env::join_paths(all).context("a directory of the path has a colon")
}
