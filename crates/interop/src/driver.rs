//! A driver: one client of another library, in a process of its own, that answers requests line by line.
//!
//! Owns the requesting side of the interop protocol of `drivers/README.md`.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::Worker;

use crate::library::Library;

/// How long a request may take that does not wait for a lock. node-redlock reports a lost lock after 2 s; the rest is for
/// busy machines.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A running driver, killed on drop.
#[derive(Debug)]
pub(crate) struct Driver {
    worker: Worker,
    /// Answers of its threads that arrived before they were read.
    unread: Vec<(Option<String>, Answer)>,
}

/// An answer of a driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Hello(String),
    Got,
    Taken,
    Ok,
    Lost,
    /// The library does not report whether it succeeded.
    Unreported,
    Counted(Count),
    /// The owner that the thread is at the key.
    Owner(String),
    State(State),
    Yes,
    No,
}

/// A lock as a thread of the library sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// The thread's hold count.
    pub(crate) count: u32,
    /// Whether any owner holds it.
    pub(crate) is_locked: bool,
    /// Whether the thread holds it.
    pub(crate) is_mine: bool,
    /// The remaining lease; negative as in the reply of PTTL.
    pub(crate) remaining_ms: i64,
}

/// What a client observed while it counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// The longest wait for the lock.
    pub(crate) longest_wait: Duration,
    /// The number before each of its steps.
    pub(crate) numbers: Vec<u64>,
}

impl Driver {
    /// Starts a driver and returns when it is ready. `watchdog` is the lease of locks that are requested without one.
    pub(crate) fn start(library: &Library, url: &str, watchdog: Duration) -> Result<Self> {
        let worker = Worker::of_command(library.command(url, watchdog)?).start()?;
        let mut driver = Self { worker, unread: Vec::new() };
        match driver
            .request("hello")
            .with_context(|| format!("the driver of {} does not start", library.name))?
        {
            Answer::Hello(_) => Ok(driver),
            other => bail!("`hello` was answered {other:?}"),
        }
    }

    /// Sends a request and returns the answer.
    pub(crate) fn request(&mut self, request: &str) -> Result<Answer> {
        self.send(request)?;
        self.answer_to(request, REQUEST_TIMEOUT).with_context(|| format!("`{request}`"))
    }

    /// Sends a request, and fails if the answer is another one.
    pub(crate) fn expect(&mut self, request: &str, expected: &Answer) -> Result<()> {
        let answer = self.request(request)?;
        ensure!(
            answer == *expected,
            "the library's `{request}` was answered {answer:?} and not {expected:?}"
        );
        Ok(())
    }

    /// Sends a request without waiting for the answer.
    pub(crate) fn send(&mut self, request: &str) -> Result<()> {
        self.worker.send(request).with_context(|| format!("failed to send `{request}` to the driver"))
    }

    /// The answer to the last request, of a driver without threads.
    pub(crate) fn answer(&mut self, within: Duration) -> Result<Answer> {
        self.answer_to("", within)
    }

    /// The answer to the last request to the thread that `request` names.
    pub(crate) fn answer_to(&mut self, request: &str, within: Duration) -> Result<Answer> {
        let (thread, _) = split_thread(request);
        if let Some(at) = self.unread.iter().position(|(of, _)| of.as_deref() == thread) {
            return Ok(self.unread.remove(at).1);
        }
        let deadline = Instant::now() + within;
        loop {
            let line = self.worker.line(deadline.saturating_duration_since(Instant::now()))?;
            let (of, answer) = split_thread(&line);
            let answer = Answer::parse(answer)?;
            if of == thread {
                return Ok(answer);
            }
            self.unread.push((of.map(str::to_owned), answer));
        }
    }

    /// Fails if an answer of any thread arrives within that time.
    pub(crate) fn expect_no_answer(&mut self, time: Duration) -> Result<()> {
        ensure!(self.unread.is_empty(), "the library answered {:?} too early", self.unread);
        match self.worker.line(time) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(error.into()),
            Ok(line) => bail!("the library answered `{line}` too early"),
        }
    }

    /// Kills it at once.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.worker.kill()?)
    }
}

/// The thread of a request or an answer, and the rest of the line.
fn split_thread(line: &str) -> (Option<&str>, &str) {
    match line.strip_prefix("as ").and_then(|named| named.split_once(' ')) {
        Some((thread, rest)) => (Some(thread), rest),
        None => (None, line),
    }
}

impl Answer {
    fn parse(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["hello", library, version] => Self::Hello(format!("{library} {version}")),
            ["got"] => Self::Got,
            ["taken"] => Self::Taken,
            ["ok"] => Self::Ok,
            ["lost"] => Self::Lost,
            ["unreported"] => Self::Unreported,
            ["owner", owner] => Self::Owner(owner.to_owned()),
            ["state", count, locked, mine, remaining_ms] => Self::State(State {
                count: count.parse()?,
                is_locked: locked == "locked",
                is_mine: mine == "mine",
                remaining_ms: remaining_ms.parse()?,
            }),
            ["yes"] => Self::Yes,
            ["no"] => Self::No,
            ["counted", longest_ms, ref numbers @ ..] => Self::Counted(Count {
                longest_wait: Duration::from_millis(longest_ms.parse()?),
                numbers: numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>()?,
            }),
            _ => bail!("the driver answers `{line}`"),
        })
    }
}
