//! One critical section as its worker saw it, on the machine's monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::str::FromStr;

/// One critical section. As a text it is its numbers in this order, for a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Section {
    /// Which process ran it.
    pub(crate) process: u32,
    /// Which of its tasks.
    pub(crate) task: u32,
    /// Whether it excluded all others.
    pub(crate) alone: bool,
    /// Its fencing token: sections are in the order of their tokens.
    pub(crate) fence: u64,
    /// When the acquire was called, in nanoseconds.
    pub(crate) asked_ns: u64,
    /// When it was acquired.
    pub(crate) got_ns: u64,
    /// When its release was called.
    pub(crate) released_ns: u64,
}

impl Section {
    /// How long it was waited for.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.got_ns - self.asked_ns
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, task, alone, fence, asked_ns, got_ns, released_ns } = self;
        let alone = u8::from(*alone);
        write!(f, "{process} {task} {alone} {fence} {asked_ns} {got_ns} {released_ns}")
    }
}

impl FromStr for Section {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [process, task, alone, fence, asked_ns, got_ns, released_ns] = numbers[..] else {
            anyhow::bail!("no section: {line}");
        };
        let (process, task) = (u32::try_from(process)?, u32::try_from(task)?);
        Ok(Self { process, task, alone: alone == 1, fence, asked_ns, got_ns, released_ns })
    }
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// From the call of a release to the next holder running, where that is in another process.
pub(crate) fn handovers_ns(sections: &mut [Section]) -> Vec<u64> {
    sections.sort_unstable_by_key(|section| section.fence);
    let pairs = sections.windows(2).filter(|pair| pair[0].process != pair[1].process);
    pairs.map(|pair| pair[1].got_ns.saturating_sub(pair[0].released_ns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_goes_through_a_pipe() {
        let section = Section {
            process: 1,
            task: 2,
            alone: true,
            fence: 1_795_319_503_004_331,
            asked_ns: 4,
            got_ns: 5,
            released_ns: 6,
        };
        assert_eq!(section.to_string().parse::<Section>().expect("a section"), section);
        assert!("1 2".parse::<Section>().is_err());
    }
}
