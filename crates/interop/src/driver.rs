//! A driver: one client of a neighbour, in a process of its own, told what to do line by line.
//!
//! Owns the protocol of `interop/README.md`, from the side that asks.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

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
    /// What one of its threads has answered before it was asked for.
    early: Vec<(Option<String>, Answer)>,
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
    /// Who the thread is, as it stands at the key.
    Owner(String),
    State(State),
    Yes,
    No,
}

/// What a thread is told of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State {
    /// How often the thread has it.
    pub(crate) count: u32,
    /// Whether anybody has it.
    pub(crate) locked: bool,
    /// Whether the thread has it.
    pub(crate) mine: bool,
    /// How long it lasts; negative as PTTL answers.
    pub(crate) remaining_ms: i64,
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
    /// Starts a driver, and returns when it is ready. `watchdog` is the lease of its locks that are given none.
    pub(crate) fn start(neighbour: &Neighbour, url: &str, watchdog: Duration) -> Result<Self> {
        let worker = Worker::of_command(neighbour.command(url, watchdog)).start()?;
        let mut driver = Self { worker, early: Vec::new() };
        match driver.ask("hello").context("the driver does not start")? {
            Answer::Hello(_) => Ok(driver),
            other => bail!("`hello` was answered {other:?}"),
        }
    }

    /// The answer to a request.
    pub(crate) fn ask(&mut self, request: &str) -> Result<Answer> {
        self.tell(request)?;
        self.answer_to(request, PATIENCE).with_context(|| format!("`{request}`"))
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

    /// The answer to what was told, where the driver has no threads.
    pub(crate) fn answer(&mut self, within: Duration) -> Result<Answer> {
        self.answer_to("", within)
    }

    /// The answer to the last request that was told to the thread which this one is for.
    pub(crate) fn answer_to(&mut self, request: &str, within: Duration) -> Result<Answer> {
        let (thread, _) = addressed(request);
        if let Some(at) = self.early.iter().position(|(of, _)| of.as_deref() == thread) {
            return Ok(self.early.remove(at).1);
        }
        let deadline = Instant::now() + within;
        loop {
            let line = self.worker.line(deadline.saturating_duration_since(Instant::now()))?;
            let (of, answer) = addressed(&line);
            let answer = Answer::parse(answer)?;
            if of == thread {
                return Ok(answer);
            }
            self.early.push((of.map(str::to_owned), answer));
        }
    }

    /// Fails if an answer comes within that time, whoever gives it.
    pub(crate) fn silent_for(&mut self, time: Duration) -> Result<()> {
        ensure!(self.early.is_empty(), "they answered {:?} too early", self.early);
        match self.worker.line(time) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) => Err(error.into()),
            Ok(line) => bail!("they answered `{line}` too early"),
        }
    }

    /// Kills it at once.
    pub(crate) fn kill(mut self) -> Result<()> {
        Ok(self.worker.kill()?)
    }
}

/// The thread that a request is for, or an answer from, and the rest.
fn addressed(line: &str) -> (Option<&str>, &str) {
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
            ["unsaid"] => Self::Unsaid,
            ["owner", owner] => Self::Owner(owner.to_owned()),
            ["state", count, locked, mine, remaining_ms] => Self::State(State {
                count: count.parse()?,
                locked: locked == "locked",
                mine: mine == "mine",
                remaining_ms: remaining_ms.parse()?,
            }),
            ["yes"] => Self::Yes,
            ["no"] => Self::No,
            ["counted", longest_ms, ref numbers @ ..] => Self::Counted(Count {
                longest: Duration::from_millis(longest_ms.parse()?),
                seen: numbers.iter().map(|number| number.parse()).collect::<Result<_, _>>()?,
            }),
            _ => bail!("the driver says `{line}`"),
        })
    }
}
