//! One process of a library, told what to do line by line.
//!
//! Owns the protocol of `benches/peers/README.md`, from the side that asks.

use crate::section::now_ns;
use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::Worker;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long any answer may take, beyond what was asked for: a library that polls may be unlucky for some seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running driver, killed on drop.
pub(crate) struct Driver {
    worker: Worker,
    /// The library's own words of which version it is.
    pub(crate) version: String,
}

/// What a herd in one process did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// How often the lock was held.
    pub(crate) sections: u64,
    /// How often it was had by another task than before.
    pub(crate) handovers: u64,
    /// How many tasks had it at all.
    pub(crate) served: u64,
}

/// When a lock was asked for, and when it was had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) asked_ns: u64,
    pub(crate) got_ns: u64,
}

/// A section: since when a task had the lock, and which.
pub(crate) type Section = (u64, u32);

impl Driver {
    /// Starts a driver on the core of the clients, and returns when it has its connection.
    pub(crate) fn start(library: &str, command: &Command, url: &str) -> Result<Self> {
        let began_ns = now_ns();
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", "1"]).arg(command.get_program()).args(command.get_args()).arg(url);
        let mut worker = Worker::of_command(pinned).start().context("is `taskset` there?")?;
        let (version, ready_ns) = ready(library, &worker.line(PATIENCE)?)?;
        ensure!(
            (began_ns..=now_ns()).contains(&ready_ns),
            "the clock of {library}'s driver is not the machine's monotonic clock"
        );
        Ok(Self { worker, version })
    }

    /// Sends a request, whose answer is fetched by one of the functions below.
    pub(crate) fn tell(&mut self, request: &str) -> Result<()> {
        Ok(self.worker.tell(request)?)
    }

    /// When the lock was asked for, and when it was had.
    pub(crate) fn got(&mut self) -> Result<Got> {
        got(&self.answer(PATIENCE)?)
    }

    /// When its release was called, now that it is released.
    pub(crate) fn gave_ns(&mut self) -> Result<u64> {
        gave(&self.answer(PATIENCE)?)
    }

    /// What a herd has done that was to take so long.
    pub(crate) fn herd(&mut self, took: Duration) -> Result<Count> {
        herd(&self.answer(took + PATIENCE)?)
    }

    /// The sections of a herd that was to take so long, in the order of time.
    pub(crate) fn turns(&mut self, took: Duration) -> Result<Vec<Section>> {
        turns(&self.answer(took + PATIENCE)?)
    }

    /// Has it end by itself.
    pub(crate) fn stop(mut self) {
        // One that does not is killed on drop.
        let deadline = Instant::now() + Duration::from_secs(2);
        if self.tell("stop").is_ok() {
            let _ = self.worker.wait(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn answer(&mut self, within: Duration) -> Result<String> {
        let line = self.worker.line(within)?;
        match line.strip_prefix("error ") {
            Some(error) => bail!("the driver says: {error}"),
            None => Ok(line),
        }
    }
}

/// What starts the driver of a library that was made ready in a directory.
pub(crate) fn command(library: &str, drivers: &Path) -> Result<Command> {
    let home = drivers.join(library);
    let script = |interpreter: &str, file: &str| {
        let mut command = Command::new(interpreter);
        command.arg(home.join(file));
        command
    };
    Ok(match library {
        "rslock" => Command::new(home.join("release/rslock-driver")),
        "redsync" => Command::new(home.join("driver")),
        "redis-py" => script("python3", "driver.py"),
        "node-redlock" => script("node", "driver.mjs"),
        "redisson" => {
            let mut java = Command::new("java");
            java.arg("-classpath").arg(format!("{0}/classes:{0}/lib/*", home.display())).arg("Driver");
            java
        }
        _ => bail!("there is no peer `{library}`"),
    })
}

fn ready(library: &str, line: &str) -> Result<(String, u64)> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["ready", name, version, now_ns] if name == library => Ok((version.to_owned(), now_ns.parse()?)),
        _ => bail!("the driver of {library} begins with `{line}`"),
    }
}

fn got(line: &str) -> Result<Got> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["got", asked_ns, got_ns] => Ok(Got { asked_ns: asked_ns.parse()?, got_ns: got_ns.parse()? }),
        _ => bail!("the driver says `{line}` of what it was to take"),
    }
}

fn gave(line: &str) -> Result<u64> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["gave", gave_ns] => Ok(gave_ns.parse()?),
        _ => bail!("the driver says `{line}` of what it was to give"),
    }
}

fn herd(line: &str) -> Result<Count> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["herd", sections, handovers, served] => {
            Ok(Count { sections: sections.parse()?, handovers: handovers.parse()?, served: served.parse()? })
        }
        _ => bail!("the driver says `{line}` of a herd"),
    }
}

fn turns(line: &str) -> Result<Vec<Section>> {
    let mut words = line.split(' ');
    ensure!(words.next() == Some("turns"), "the driver says `{line:.60}` of turns");
    words
        .map(|word| {
            let (task, got_ns) = word.split_once('@').context("a turn is TASK@NANOSECONDS")?;
            Ok((got_ns.parse()?, task.parse()?))
        })
        .collect()
}

/// What the processes of a crowd did together.
pub(crate) fn together(processes: &[Vec<Section>]) -> Count {
    let mut all: Vec<_> = processes
        .iter()
        .enumerate()
        .flat_map(|(process, sections)| sections.iter().map(move |(got_ns, task)| (*got_ns, process, *task)))
        .collect();
    all.sort_unstable();
    let who = |(_, process, task): &(u64, usize, u32)| (*process, *task);
    let handovers = all.windows(2).filter(|pair| who(&pair[0]) != who(&pair[1])).count();
    let served: std::collections::BTreeSet<_> = all.iter().map(who).collect();
    Count { sections: all.len() as u64, handovers: handovers as u64, served: served.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(ready("redisson", "ready redisson 4.7.0 12").expect("well-formed"), ("4.7.0".into(), 12));
        assert_eq!(got("got 12 15").expect("well-formed"), Got { asked_ns: 12, got_ns: 15 });
        assert_eq!(gave("gave 1762000000123456").expect("well-formed"), 1_762_000_000_123_456);
        let read = herd("herd 5 3 2").expect("well-formed");
        assert_eq!(read, Count { sections: 5, handovers: 3, served: 2 });
        assert_eq!(turns("turns 7@12 0@15").expect("well-formed"), [(12, 7), (15, 0)]);
        assert_eq!(turns("turns").expect("nobody had it"), []);
    }

    #[test]
    fn what_is_no_answer_is_repeated() {
        let texts = [
            ready("redisson", "ready redsync 4.18.1 12").expect_err("another library").to_string(),
            got("got 12").expect_err("too short").to_string(),
            gave("got 12 15").expect_err("another answer").to_string(),
            herd("herd 5 3").expect_err("too short").to_string(),
            turns("turn 7@12").expect_err("another answer").to_string(),
        ];
        for (text, wanted) in
            texts.iter().zip(["ready redsync", "got 12", "got 12 15", "herd 5 3", "turn 7@12"])
        {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(turns("turns 7").is_err());
    }

    #[test]
    fn a_crowd_is_put_in_the_order_of_time() {
        // Task 0 of one process is not task 0 of another.
        let crowd = [vec![(1, 0), (2, 0), (5, 0)], vec![(3, 0), (4, 1)], vec![]];
        assert_eq!(together(&crowd), Count { sections: 5, handovers: 3, served: 3 });
    }
}
