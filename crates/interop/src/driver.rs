//! A driver: one client of a neighbour, in a process of its own, told what to do line by line.
//!
//! Owns the protocol of `interop/README.md`, from the side that asks.

use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::Worker;

use crate::neighbour::Neighbour;

/// How long a request may take that waits for nothing: node-redlock tells of a lost lock after 2 s, and a machine is
/// busy.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running driver, killed on drop.
#[derive(Debug)]
pub(crate) struct Driver {
    worker: Worker,
}

/// What a driver answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Hello(String),
    Got,
    Taken,
    Ok,
    Lost,
    /// It was done, or not: the library does not say.
    Unsaid,
    Counted(Count),
}

/// What a client saw that counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// The longest time that it waited for the lock.
    pub(crate) longest: Duration,
    /// The numbers before each of its steps.
    pub(crate) seen: Vec<u64>,
}

impl Driver {
    /// Starts a driver, and returns when it is ready.
    pub(crate) fn start(neighbour: &Neighbour, url: &str) -> Result<Self> {
        let worker = Worker::of_command(neighbour.command(url)).start()?;
        let mut driver = Self { worker };
        match driver.ask("hello").context("the driver does not start")? {
            Answer::Hello(_) => Ok(driver),
            other => bail!("`hello` was answered {other:?}"),
        }
    }

    /// The answer to a request.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Answer> {
        self.tell(request)?;
        self.answer(PATIENCE).with_context(|| format!("`{request}`"))
    }

    /// Asks, and fails if the answer is another one.
    pub(crate) fn expect(&mut self, request: &str, expected: &Answer) -> Result<()> {
        let answer = self.ask(request)?;
        ensure!(answer == *expected, "their `{request}` was answered {answer:?} and not {expected:?}");
        Ok(())
    }

    /// Asks without waiting for the answer.
    pub(crate) fn tell(&mut self, request: &str) -> Result<()> {
        self.worker.tell(request).with_context(|| format!("to tell the driver `{request}`"))
    }

    /// The answer to what was told.
    pub(crate) fn answer(&mut self, within: Duration) -> Result<Answer> {
        Answer::parse(&self.worker.line(within)?)
    }

    /// Fails if an answer comes within that time.
    pub(crate) fn silent_for(&mut self, time: Duration) -> Result<()> {
        match self.worker.line(time) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(error.into()),
            Ok(line) => bail!("they answered `{line}` too early"),
        }
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
            ["unsaid"] => Self::Unsaid,
            ["counted", longest_ms, ref numbers @ ..] => Self::Counted(Count {
                longest: Duration::from_millis(longest_ms.parse()?),
                seen: numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>()?,
            }),
            _ => bail!("the driver says `{line}`"),
        })
    }
}
