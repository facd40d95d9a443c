//! The example `job_queue`, on a PostgreSQL server that this test boots: in a temporary folder, on a Unix socket.
//!
//! Without PostgreSQL the test fails. `cargo xtask test --all` installs it.

use leasehold_testkit::RedisServer;
use rustix::process::{Pid, Signal, getuid, kill_process};
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The time limit of the server's start.
const LIMIT: Duration = Duration::from_secs(60);
/// The name of the socket: the server's default port.
const SOCKET: &str = ".s.PGSQL.5432";

#[test]
fn each_job_has_one_result() {
    let postgres = Postgres::start().expect("PostgreSQL boots; `cargo xtask test --all` installs it");
    let redis = RedisServer::start().expect("redis-server boots");
    for store in ["memory:example-jobs", &redis.url()] {
        let mut example = Command::new(env!("CARGO_BIN_EXE_job_queue"));
        example.arg(postgres.url()).env("LEASEHOLD_STORE", store);
        let output = example.output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{store}: {text}{}", String::from_utf8_lossy(&output.stderr));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("is lost: "), "{store}: {text}");
        let expected: Vec<String> = ["two workers have finished 6 jobs", "the late result changed 0 rows"]
            .map(String::from)
            .into_iter()
            .chain((1..=6).map(|n| format!("mail {n}: mail {n} is sent")))
            .collect();
        assert_eq!(lines[1..], expected, "{store}: {text}");
    }
}

/// A server, ended on drop.
struct Postgres {
    process: Child,
    folder: TempDir,
}

impl Postgres {
    fn start() -> io::Result<Self> {
        let (programs, folder) = (programs()?, tempfile::tempdir()?);
        let account = account()?;
        if let Some((user, group)) = account {
            chown(folder.path(), Some(user), Some(group))?;
        }
        let command = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(folder.path()).stdin(Stdio::null());
            if let Some((user, group)) = account {
                command.uid(user).gid(group);
            }
            command
        };
        let data = folder.path().join("data");
        let mut init = command("initdb");
        init.arg("--pgdata").arg(&data).args([
            "--username=test",
            "--auth=trust",
            "--no-sync",
            "--no-instructions",
            // Whatever locale this machine names, it may not have it.
            "--no-locale",
            "--encoding=UTF8",
        ]);
        let made = init.output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let mut server = command("postgres");
        server.arg("-D").arg(&data).arg("-k").arg(folder.path());
        server.args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "logging_collector=off"]);
        let log = std::fs::File::create(folder.path().join("log"))?;
        let process = server.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut postgres = Self { process, folder };
        postgres.wait_ready()?;
        Ok(postgres)
    }

    /// The parameters of a connection.
    fn url(&self) -> String {
        format!("host={} user=test dbname=postgres", self.folder.path().display())
    }

    /// Waits until the server reports in its own file that it accepts connections.
    fn wait_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + LIMIT;
        let state = self.folder.path().join("data/postmaster.pid");
        loop {
            let text = std::fs::read_to_string(&state).unwrap_or_default();
            if text.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
                assert!(self.folder.path().join(SOCKET).exists(), "a socket in the folder");
                return Ok(());
            }
            if self.process.try_wait()?.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(io::Error::other(format!("PostgreSQL does not start: {log}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // At once, but with its own processes. If it has ended, its process id may be that of another one.
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.process), Signal::QUIT);
        }
        let _ = self.process.wait();
    }
}

/// The folder with the server's programs. Debian keeps them off the path.
fn programs() -> io::Result<PathBuf> {
    let has_them = |folder: &PathBuf| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = Path::new("/usr/lib/postgresql").read_dir() {
        folders.extend(versions.filter_map(|version| Some(version.ok()?.path().join("bin"))));
    }
    folders
        .into_iter()
        .find(has_them)
        .ok_or_else(|| io::Error::other("no initdb on the path or in /usr/lib/postgresql"))
}

/// The account to run as: PostgreSQL refuses root, and its Debian package makes this one.
fn account() -> io::Result<Option<(u32, u32)>> {
    if !getuid().is_root() {
        return Ok(None);
    }
    let accounts = std::fs::read_to_string("/etc/passwd")?;
    let ids = accounts.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.map(Some).ok_or_else(|| io::Error::other("root needs an account `postgres`"))
}
