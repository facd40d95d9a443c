//! One process of a library, which answers requests line by line.
//!
//! Owns the requesting side of the bench protocol of `drivers/README.md`.

use crate::critical_section::now_ns;
use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::Worker;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long an answer may take beyond the requested time: a library that polls may wait for some seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A running driver, killed on drop.
pub(crate) struct Driver {
    worker: Worker,
    /// The library's version.
    pub(crate) version: String,
}

/// Acquisitions of the tasks of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Count {
    /// How often the lock was acquired.
    pub(crate) sections: u64,
    /// How often by another task than the last one.
    pub(crate) handovers: u64,
    /// How many tasks acquired it.
    pub(crate) served: u64,
}

/// When an acquire was called, and when it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcquireTimes {
    pub(crate) called_ns: u64,
    pub(crate) returned_ns: u64,
}

/// One acquisition: when, and by which task.
pub(crate) type Acquisition = (u64, u32);

impl Driver {
    /// Starts a driver on the core of the clients, and returns when it is connected.
    pub(crate) fn start(library: &str, command: &Command, url: &str) -> Result<Self> {
        let began_ns = now_ns();
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", "1"]).arg(command.get_program()).args(command.get_args()).arg(url);
        let mut worker = Worker::of_command(pinned).start().context("is `taskset` there?")?;
        let (version, ready_ns) = ready(library, &worker.line(ANSWER_TIMEOUT)?)?;
        ensure!(
            (began_ns..=now_ns()).contains(&ready_ns),
            "the clock of {library}'s driver is not the machine's monotonic clock"
        );
        Ok(Self { worker, version })
    }

    /// Sends a request. Its answer is read by one of the functions below.
    pub(crate) fn send(&mut self, request: &str) -> Result<()> {
        Ok(self.worker.send(request)?)
    }

    /// The answer to `acquire`.
    pub(crate) fn acquired(&mut self) -> Result<AcquireTimes> {
        acquired(&self.answer(ANSWER_TIMEOUT)?)
    }

    /// The answer to `release`: when it was called.
    pub(crate) fn released_ns(&mut self) -> Result<u64> {
        released(&self.answer(ANSWER_TIMEOUT)?)
    }

    /// The answer to a `contend` of that length.
    pub(crate) fn contended(&mut self, took: Duration) -> Result<Count> {
        contended(&self.answer(took + ANSWER_TIMEOUT)?)
    }

    /// The answer to a `trace` of that length: its acquisitions in the order of time.
    pub(crate) fn trace(&mut self, took: Duration) -> Result<Vec<Acquisition>> {
        trace(&self.answer(took + ANSWER_TIMEOUT)?)
    }

    /// Stops it in order.
    pub(crate) fn stop(mut self) {
        // A process that does not stop is killed on drop.
        let deadline = Instant::now() + Duration::from_secs(2);
        if self.send("stop").is_ok() {
            let _ = self.worker.wait(deadline.saturating_duration_since(Instant::now()));
        }
    }

    fn answer(&mut self, within: Duration) -> Result<String> {
        let line = self.worker.line(within)?;
        match line.strip_prefix("error ") {
            Some(error) => bail!("the driver answers: {error}"),
            None => Ok(line),
        }
    }
}

/// Starts the driver of a library, which `cargo xtask` has prepared in a directory.
pub(crate) fn command(library: &str, drivers: &Path) -> Result<Command> {
    let directory = drivers.join(library);
    let script = |interpreter: &str, file: &str| {
        let mut command = Command::new(interpreter);
        command.arg(directory.join(file));
        command
    };
    let mut command = match library {
        "rslock" => Command::new(directory.join("release/rslock-driver")),
        "redsync" => Command::new(directory.join("driver")),
        "redis-py" => script("python3", "driver.py"),
        "node-redlock" => script("node", "driver.mjs"),
        "redisson" => {
            let mut java = Command::new("java");
            java.arg("-classpath").arg(format!("{0}/classes:{0}/lib/*", directory.display())).arg("Driver");
            java
        }
        _ => bail!("there is no peer `{library}`"),
    };
    command.arg("bench");
    Ok(command)
}

fn ready(library: &str, line: &str) -> Result<(String, u64)> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["ready", name, version, now_ns] if name == library => Ok((version.to_owned(), now_ns.parse()?)),
        _ => bail!("the driver of {library} begins with `{line}`"),
    }
}

fn acquired(line: &str) -> Result<AcquireTimes> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["acquired", called_ns, returned_ns] => {
            Ok(AcquireTimes { called_ns: called_ns.parse()?, returned_ns: returned_ns.parse()? })
        }
        _ => bail!("the driver answers `{line}` to acquire"),
    }
}

fn released(line: &str) -> Result<u64> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["released", called_ns] => Ok(called_ns.parse()?),
        _ => bail!("the driver answers `{line}` to release"),
    }
}

fn contended(line: &str) -> Result<Count> {
    match line.split(' ').collect::<Vec<_>>()[..] {
        ["contended", sections, handovers, served] => {
            Ok(Count { sections: sections.parse()?, handovers: handovers.parse()?, served: served.parse()? })
        }
        _ => bail!("the driver answers `{line}` to contend"),
    }
}

fn trace(line: &str) -> Result<Vec<Acquisition>> {
    let mut words = line.split(' ');
    ensure!(words.next() == Some("trace"), "the driver answers `{line:.60}` to trace");
    words
        .map(|word| {
            let (task, acquired_ns) = word.split_once('@').context("a trace has TASK@NANOSECONDS")?;
            Ok((acquired_ns.parse()?, task.parse()?))
        })
        .collect()
}

/// The counts of several processes together.
pub(crate) fn merge(processes: &[Vec<Acquisition>]) -> Count {
    let mut all: Vec<_> = processes
        .iter()
        .enumerate()
        .flat_map(|(process, sections)| {
            sections.iter().map(move |(acquired_ns, task)| (*acquired_ns, process, *task))
        })
        .collect();
    all.sort_unstable();
    let holder = |(_, process, task): &(u64, usize, u32)| (*process, *task);
    let handovers = all.windows(2).filter(|pair| holder(&pair[0]) != holder(&pair[1])).count();
    let served: std::collections::BTreeSet<_> = all.iter().map(holder).collect();
    Count { sections: all.len() as u64, handovers: handovers as u64, served: served.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(ready("redisson", "ready redisson 4.7.0 12").expect("well-formed"), ("4.7.0".into(), 12));
        assert_eq!(
            acquired("acquired 12 15").expect("well-formed"),
            AcquireTimes { called_ns: 12, returned_ns: 15 }
        );
        assert_eq!(released("released 1762000000123456").expect("well-formed"), 1_762_000_000_123_456);
        let read = contended("contended 5 3 2").expect("well-formed");
        assert_eq!(read, Count { sections: 5, handovers: 3, served: 2 });
        assert_eq!(trace("trace 7@12 0@15").expect("well-formed"), [(12, 7), (15, 0)]);
        assert_eq!(trace("trace").expect("no acquisition"), []);
    }

    #[test]
    fn an_error_quotes_the_wrong_answer() {
        let texts = [
            ready("redisson", "ready redsync 4.18.1 12").expect_err("another library").to_string(),
            acquired("acquired 12").expect_err("too short").to_string(),
            released("acquired 12 15").expect_err("another answer").to_string(),
            contended("contended 5 3").expect_err("too short").to_string(),
            trace("traces 7@12").expect_err("another answer").to_string(),
        ];
        for (text, wanted) in texts.iter().zip([
            "ready redsync",
            "acquired 12",
            "acquired 12 15",
            "contended 5 3",
            "traces 7@12",
        ]) {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(trace("trace 7").is_err());
    }

    #[test]
    fn several_processes_are_merged_in_the_order_of_time() {
        // Task 0 of one process is not task 0 of another.
        let processes = [vec![(1, 0), (2, 0), (5, 0)], vec![(3, 0), (4, 1)], vec![]];
        assert_eq!(merge(&processes), Count { sections: 5, handovers: 3, served: 3 });
    }
}
