//! The password from a command, which runs anew for each connection.
//!
//! 1. The shell runs it: tokens are usually picked out of the output of another program. Its text comes from the command
//!    line alone, never from the environment, so it runs only what the user of the program asks for.
//! 2. It has no standard input, which belongs to the command under the lock, and its standard error is this program's.
//! 3. Connections that are opened at the same time share a run that began after they asked for it: a quorum of five would
//!    start ten at once.

use crate::children::{Helper, HelperEnd};
use crate::store::secret::{Secret, first_line};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{self, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// How long it may run.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often its output is read, and it is checked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// More output than this is not read to its end: it is no password.
const MAX_OUTPUT: usize = 64 * 1024;

/// A command that prints the password.
pub(crate) struct PasswordCommand {
    text: OsString,
    /// When the last run that succeeded began, and what it printed (3).
    last: Mutex<Option<(Instant, Secret)>>,
}

impl PasswordCommand {
    pub(crate) fn new(text: OsString) -> Self {
        Self { text, last: Mutex::default() }
    }

    /// Runs the command, unless a run began after this call.
    ///
    /// Cancel safety: the command is killed, with its group.
    pub(crate) async fn password(&self) -> Result<Secret> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((start, secret)) = &*last
            && *start >= asked
        {
            return Ok(secret.clone());
        }
        let start = Instant::now();
        let secret = match timeout(TIMEOUT, self.run()).await {
            Ok(secret) => secret?,
            Err(_) => bail!("the password command did not end within {TIMEOUT:?}, and was killed"),
        };
        *last = Some((start, secret.clone()));
        Ok(secret)
    }

    async fn run(&self) -> Result<Secret> {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&self.text).stdin(Stdio::null()).stdout(Stdio::piped());
        let (helper, stdout) = Helper::start(command).context("failed to start the password command")?;
        let mut output = Output::of(stdout.context("the password command has no standard output")?)?;
        let end = loop {
            output.read()?;
            if let Some(end) = helper.poll() {
                // What it wrote before its end; a process that it left behind may keep the pipe open.
                output.read()?;
                break end;
            }
            sleep(POLL_INTERVAL).await;
        };
        match end {
            // Without a status, its output decides.
            HelperEnd::Status(0) | HelperEnd::Unknown => {}
            HelperEnd::Status(status) => bail!("the password command ended with status {status}"),
            HelperEnd::Signal(signal) => bail!("signal {signal} ended the password command"),
        }
        first_line(&*output.text).context("the password command printed no password")
    }
}

/// The output of a command, up to now.
struct Output {
    pipe: ChildStdout,
    text: Vec<u8>,
}

impl Output {
    fn of(pipe: ChildStdout) -> Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true).context("failed to read from the password command")?;
        Ok(Self { pipe, text: Vec::new() })
    }

    /// Reads what is there, without waiting for more.
    fn read(&mut self) -> Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(bytes) => self.text.extend_from_slice(buffer.get(..bytes).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("failed to read from the password command"),
            }
            if self.text.len() > MAX_OUTPUT {
                bail!("the password command printed more than {MAX_OUTPUT} bytes, so that is no password");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    fn run(text: &str) -> Result<Secret> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(PasswordCommand::new(text.into()).password())
    }

    #[test]
    fn the_first_line_of_its_output_is_the_password() {
        for text in
            ["echo hunter2", "printf hunter2", "echo hunter2; echo for another", "echo hunter2; sleep 60 &"]
        {
            assert_eq!(run(text).expect("it succeeds").reveal(), "hunter2", "{text}");
        }
    }

    #[test]
    fn a_command_that_gives_none_is_an_error_without_its_output() {
        for (text, expected) in [
            ("echo hunter2; exit 3", "the password command ended with status 3"),
            ("echo hunter2; kill -9 $$", "signal 9 ended the password command"),
            ("true", "printed no password: its first line is empty"),
            ("echo; echo hunter2", "printed no password: its first line is empty"),
            ("no-such-program hunter2 2>/dev/null", "ended with status 127"),
            ("yes hunter2 | head -c 100000", "more than 65536 bytes"),
        ] {
            let error = format!("{:#}", run(text).expect_err("it is an error"));
            assert!(error.contains(expected) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn those_that_ask_at_the_same_time_share_a_run() {
        let dir = tempfile::TempDir::new().expect("there is a directory for temporary files");
        let log = dir.path().join("runs");
        let text = format!("echo run >> '{}'; sleep 0.2; echo hunter2", log.display());
        let command = PasswordCommand::new(text.into());
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let asked = runtime.block_on(futures(&command));
        assert!(asked.iter().all(|secret| secret.as_ref().is_ok_and(|secret| secret.reveal() == "hunter2")));
        let runs = || std::fs::read_to_string(&log).expect("it was written").lines().count();
        assert!(runs() <= 2, "{} runs", runs());
        let before = runs();
        runtime.block_on(command.password()).expect("it succeeds");
        assert_eq!(runs(), before + 1, "a later one runs it again");
    }

    async fn futures(command: &PasswordCommand) -> [Result<Secret>; 4] {
        let (a, b, c, d) =
            tokio::join!(command.password(), command.password(), command.password(), command.password());
        [a, b, c, d]
    }
}
