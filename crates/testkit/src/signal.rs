//! Signals to child processes, and waiting until they take effect.

use std::io;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// How long a process may take to stop: the kernel needs microseconds, a busy machine more.
const LIMIT: Duration = Duration::from_secs(60);

/// Stops the process. Returns when *all* of its threads have stopped: the signal alone is only a request.
pub(crate) fn stop(child: &Child) -> io::Result<()> {
    send(child, Signal::STOP)?;
    wait_for(child, WaitIdOptions::STOPPED)
}

/// Resumes a stopped process.
pub(crate) fn resume(child: &Child) -> io::Result<()> {
    send(child, Signal::CONT)
}

/// Kills the process, stopped or not, and reaps it.
pub(crate) fn kill(child: &mut Child) -> io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

/// Sends SIGTERM.
pub(crate) fn terminate(child: &Child) -> io::Result<()> {
    send(child, Signal::TERM)
}

fn pid(child: &Child) -> io::Result<Pid> {
    let raw = i32::try_from(child.id()).map_err(io::Error::other)?;
    Pid::from_raw(raw).ok_or_else(|| io::Error::other("a child has the process id 0"))
}

fn send(child: &Child, signal: Signal) -> io::Result<()> {
    kill_process(pid(child)?, signal).map_err(io::Error::from)
}

/// Waits for a change of state without reaping the child, so that [`Child::wait`] still returns its exit status.
fn wait_for(child: &Child, change: WaitIdOptions) -> io::Result<()> {
    let pid = pid(child)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let options = change | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::Pid(pid), options)?.is_some() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {pid} does not stop")));
        }
        thread::sleep(Duration::from_micros(200));
    }
}
