//! Worker processes that a test kills and stops.
//!
//! Owns the child process, its output and its end. A worker is usually the test executable itself, started again with
//! a role.

use std::collections::VecDeque;
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::signal;

/// Selects the role of a test executable.
const ROLE: &str = "LEASEHOLD_WORKER";

/// Precedes each line of a worker's output, since the test harness prints to the same stream.
const MARK: &str = "@@worker ";

/// How many lines are buffered before the worker blocks.
const LINES: usize = 1024;

/// How many recent lines an error about a missing line repeats.
const RECENT: usize = 8;

/// A child process of the test, killed and reaped on drop.
///
/// ```no_run
/// use leasehold_testkit::Worker;
/// use std::time::Duration;
///
/// // The entry: an ordinary test, which does nothing when it runs as one.
/// fn worker() {
///     match Worker::role().as_deref() {
///         Some("holder") => {
///             Worker::report("held");
///             while let Some(line) = Worker::receive() {
///                 Worker::report(&line);
///             }
///         }
///         _ => {}
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut holder = Worker::of_test("worker", "holder").start()?;
/// holder.expect("held", Duration::from_secs(10))?;
/// holder.kill()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Worker {
    child: Child,
    lines: Receiver<String>,
    /// `None` once closed.
    stdin: Option<ChildStdin>,
    /// The last lines, for messages.
    recent: VecDeque<String>,
}

/// How a [`Worker`] is started.
#[derive(Debug)]
#[must_use = "a worker runs only after `start`"]
pub struct WorkerBuilder {
    command: Command,
    output: Output,
}

#[derive(Debug, Clone, Copy)]
enum Output {
    /// Only lines of [`Worker::report`] count.
    Marked,
    /// Every line counts.
    Plain,
}

impl Worker {
    /// This test executable, with `role`. It runs only the test function `entry`, which is given with its module path.
    pub fn of_test(entry: &str, role: &str) -> WorkerBuilder {
        // `/proc/self/exe` is the running file, also after cargo has replaced it.
        let mut command = Command::new("/proc/self/exe");
        if let Ok(path) = env::current_exe() {
            command = Command::new(path);
        }
        command
            .args([entry, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role);
        WorkerBuilder { command, output: Output::Marked }
    }

    /// Another program. Each line of its standard output counts.
    pub fn of_command(command: Command) -> WorkerBuilder {
        WorkerBuilder { command, output: Output::Plain }
    }

    /// In a worker: the role it was started for. `None` in the test itself.
    pub fn role() -> Option<String> {
        env::var(ROLE).ok()
    }

    /// In a worker: prints a line for the test. Exits if the test is gone.
    pub fn report(line: &str) {
        let mut stdout = io::stdout().lock();
        // The harness leaves its own line open ("test worker ... "), hence the leading line feed.
        if writeln!(stdout, "\n{MARK}{line}").and_then(|()| stdout.flush()).is_err() {
            std::process::exit(1);
        }
    }

    /// In a worker: waits for the next line from the test; `None` if the test has closed the channel or is gone.
    pub fn receive() -> Option<String> {
        io::stdin().lines().next()?.ok()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next line. Fails at the time limit, or when the worker has ended.
    pub fn line(&mut self, within: Duration) -> io::Result<String> {
        match self.lines.recv_timeout(within) {
            Ok(line) => {
                if self.recent.len() == RECENT {
                    self.recent.pop_front();
                }
                self.recent.push_back(line.clone());
                Ok(line)
            }
            Err(RecvTimeoutError::Timeout) => {
                let text =
                    format!("worker {} printed nothing for {within:?} after {:?}", self.pid(), self.recent);
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            Err(RecvTimeoutError::Disconnected) => {
                let text = format!("worker {} ended after {:?}", self.pid(), self.recent);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
            }
        }
    }

    /// Waits for a line that begins with `prefix`, skipping others. Returns the rest of the line.
    pub fn expect(&mut self, prefix: &str, within: Duration) -> io::Result<String> {
        let deadline = Instant::now() + within;
        loop {
            let line = self.line(deadline.saturating_duration_since(Instant::now())).map_err(|error| {
                io::Error::new(error.kind(), format!("no line starts with `{prefix}`: {error}"))
            })?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.trim_start().to_owned());
            }
        }
    }

    /// Sends a line to the worker's standard input.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let closed = || io::Error::new(io::ErrorKind::BrokenPipe, "the worker's input was closed");
        let stdin = self.stdin.as_mut().ok_or_else(closed)?;
        writeln!(stdin, "{line}")?;
        stdin.flush()
    }

    /// Closes the worker's standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Kills the worker with SIGKILL and reaps it. Succeeds if it has ended already.
    pub fn kill(&mut self) -> io::Result<()> {
        signal::kill(&mut self.child)
    }

    /// Sends SIGTERM to the worker.
    pub fn terminate(&self) -> io::Result<()> {
        signal::terminate(&self.child)
    }

    /// Stops the worker with SIGSTOP. Returns when all of its threads have stopped.
    pub fn stop(&self) -> io::Result<()> {
        signal::stop(&self.child)
    }

    /// Resumes a stopped worker.
    pub fn resume(&self) -> io::Result<()> {
        signal::resume(&self.child)
    }

    /// Waits until the worker has ended. Fails at the time limit, and then leaves it running.
    pub fn wait(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let text = format!(
                    "worker {} still runs after {within:?}; its last lines are {:?}",
                    self.pid(),
                    self.recent
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}

impl WorkerBuilder {
    /// Sets an environment variable of the worker.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts the process.
    pub fn start(mut self) -> io::Result<Worker> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = self.command.spawn().map_err(|error| {
            let program = self.command.get_program().to_string_lossy();
            io::Error::new(error.kind(), format!("failed to start the worker `{program}`: {error}"))
        })?;
        let stdout = child.stdout.take().expect("stdout was set to a pipe above");
        let stdin = child.stdin.take();
        let (sender, lines) = sync_channel(LINES);
        // Not joined: a grandchild that outlives the worker keeps the pipe open.
        thread::spawn(move || read_lines(BufReader::new(stdout), self.output, &sender));
        Ok(Worker { child, lines, stdin, recent: VecDeque::new() })
    }
}

fn read_lines(stdout: impl BufRead, output: Output, lines: &SyncSender<String>) {
    for line in stdout.lines() {
        let Ok(line) = line else { return };
        let line = match output {
            Output::Plain => Some(line),
            Output::Marked => line.strip_prefix(MARK).map(str::to_owned),
        };
        if let Some(line) = line
            && lines.send(line).is_err()
        {
            return;
        }
    }
}
