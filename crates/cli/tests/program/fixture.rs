//! What a test starts with: a directory, a store, and the program configured for both.

use leasehold_testkit::{RedisServer, Worker};
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any step takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Fixture {
    dir: TempDir,
    url: String,
}

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Checks exit status and standard error. The status is `None` if a signal ended the program.
    #[track_caller]
    pub(crate) fn check(&self, status: i32, stderr: &str) {
        assert_eq!(self.status.code(), Some(status), "{self:?}");
        assert!(self.stderr.contains(stderr), "missing: {stderr}: {self:?}");
    }
}

impl Fixture {
    /// With the locks in a file of the directory.
    pub(crate) fn sqlite() -> Self {
        let dir = TempDir::with_prefix("leasehold-cli-").expect("there is a directory for temporary files");
        let url = format!("sqlite:{}", dir.path().join("locks.db").display());
        Self { dir, url }
    }

    /// With the locks on a server.
    pub(crate) fn redis(server: &RedisServer) -> Self {
        Self::at(server.url())
    }

    /// With the locks at the URL of servers. Which version these have is not what is tested.
    pub(crate) fn at(mut url: String) -> Self {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str("accept=lua_vulnerabilities");
        Self { url, ..Self::sqlite() }
    }

    /// The URL of the store.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The content of a file; empty if it does not exist.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The program with arguments. Its environment contains the store and no other variable of this project.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        for name in ["PASSWORD", "USERNAME", "NAME", "FENCE", "OWNER", "STATISTICS"] {
            command.env_remove(format!("LEASEHOLD_{name}"));
        }
        command.args(arguments).current_dir(self.dir.path());
        command.env("LEASEHOLD_STORE", &self.url).env("LEASEHOLD_STATE_DIR", self.path("state"));
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        finish(self.command(arguments), "")
    }

    /// `run` with a shell script as the command.
    pub(crate) fn script(&self, options: &[&str], script: &str) -> Outcome {
        self.run(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat())
    }

    /// The same, in the background.
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Worker {
        start(self.command(&[&["run", "job"], options, &["--", "sh", "-c", script]].concat()))
    }

    /// The state of the lock, as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let shown = self.run(&["show", "job", "--json"]);
        shown.check(0, "");
        serde_json::from_str(&shown.stdout).expect("it is JSON")
    }

    /// Checks that the lock can be acquired at once.
    #[track_caller]
    pub(crate) fn assert_free(&self) {
        let outcome = self.script(&["--try"], "echo free");
        outcome.check(0, "");
        assert_eq!(outcome.stdout, "free\n");
    }
}

/// Starts a command whose lines of output the test reads; its standard error goes to that of the test.
pub(crate) fn start(command: Command) -> Worker {
    Worker::of_command(command).start().expect("the program starts")
}

/// Starts the program with its standard error on standard output, where the test reads it.
pub(crate) fn start_with_errors(fixture: &Fixture, arguments: &[&str]) -> Worker {
    let program = fixture.command(arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(program.get_program()).args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    start(shell)
}

/// Runs a command to its end, and kills it if it takes too long.
pub(crate) fn finish(command: Command, input: &str) -> Outcome {
    finish_with(command, input, drop)
}

/// The same, of a program at a terminal, where nothing is typed. `script` reads the end of its own input as a key that is pressed, and on
/// a busy machine then ends before it has passed on what the terminal shows.
pub(crate) fn finish_at_terminal(command: Command) -> Outcome {
    let mut open = None;
    finish_with(command, "", |stdin| open = Some(stdin))
}

fn finish_with(mut command: Command, input: &str, after: impl FnOnce(ChildStdin)) -> Outcome {
    use std::io::Write;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // The program may end without reading it.
    let _ = stdin.write_all(input.as_bytes());
    after(stdin);
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait().expect("it is a child of ours") {
            Some(status) => break status,
            None if Instant::now() < deadline => sleep(Duration::from_millis(2)),
            None => {
                child.kill().expect("it is a child of ours");
                panic!("{command:?} did not end");
            }
        }
    };
    let text = |reader: thread::JoinHandle<String>| reader.join().expect("a reader does not panic");
    Outcome { status, stdout: text(stdout), stderr: text(stderr) }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let mut pipe = pipe.expect("it is a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Whether a process exists, and not only as a zombie.
pub(crate) fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The next line that a worker prints.
#[track_caller]
pub(crate) fn expect(worker: &mut Worker, prefix: &str) -> String {
    worker.expect(prefix, LIMIT).expect("the expected line follows")
}

/// The exit status of a program that ends by itself.
#[track_caller]
pub(crate) fn status(worker: &mut Worker) -> Option<i32> {
    worker.wait(LIMIT).expect("the program ends").code()
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: impl std::fmt::Display, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("there is a `kill`").success(), "{pid} {name}");
}
