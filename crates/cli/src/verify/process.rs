//! A worker process, as the coordinator sees it.

use super::protocol::{FromWorker, Setup, ToWorker, line};
use crate::children::{kill_with_parent, without_passwords};
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use tokio::sync::mpsc::UnboundedSender;

/// The hidden subcommand that a worker runs.
pub(crate) const SUBCOMMAND: &str = "verify-worker";

/// A line of a worker; `None` once it has written its last one.
pub(crate) type Line = (u32, Option<FromWorker>);

/// A worker. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    number: u32,
    child: Child,
    stdin: ChildStdin,
}

impl WorkerProcess {
    /// Starts a worker, whose lines go to `lines`. Must be called on the main thread: the kernel kills the worker when the
    /// thread that started it ends.
    pub(crate) fn start(setup: &Setup, lines: UnboundedSender<Line>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SUBCOMMAND).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        without_passwords(&mut command);
        kill_with_parent(&mut command, getpid());
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the worker has no pipes"));
        };
        let number = setup.process;
        let mut worker = Self { number, child, stdin };
        worker.stdin.write_all(line(setup).as_bytes())?;
        let read = move || {
            // What is not a whole line was cut off by the end of the process.
            for line in BufReader::new(stdout).lines() {
                if let Some(message) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) {
                    let _ = lines.send((number, Some(message)));
                }
            }
            let _ = lines.send((number, None));
        };
        std::thread::Builder::new().name("leasehold-worker".to_owned()).spawn(read)?;
        Ok(worker)
    }

    /// The number in the history.
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line, which is short. A worker that is gone does not get it.
    pub(crate) fn send(&mut self, message: &ToWorker) {
        let _ = self.stdin.write_all(line(message).as_bytes());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // The process id is not used for another process before it was reaped.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills it, and waits for its end, which comes at once.
    pub(crate) fn kill(&mut self) -> String {
        let _ = self.child.kill();
        self.child.wait().map_or_else(|error| error.to_string(), how)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    }
}
