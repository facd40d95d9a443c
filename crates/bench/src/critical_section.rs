//! One critical section as its worker recorded it, by the machine's monotonic clock.

use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::str::FromStr;

/// One critical section. Its text, for a pipe, is its numbers in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CriticalSection {
    /// Which process ran it.
    pub(crate) process: u32,
    /// Which of its tasks.
    pub(crate) task: u32,
    /// Whether it excluded all others.
    pub(crate) exclusive: bool,
    /// Its fencing token. Tokens are in the order of the sections.
    pub(crate) fence: u64,
    /// When the acquire was called, in nanoseconds.
    pub(crate) called_ns: u64,
    /// When the lock was acquired.
    pub(crate) acquired_ns: u64,
    /// When its release was called.
    pub(crate) released_ns: u64,
}

impl CriticalSection {
    /// The wait for the lock.
    pub(crate) fn wait_ns(&self) -> u64 {
        self.acquired_ns - self.called_ns
    }
}

impl fmt::Display for CriticalSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process, task, exclusive, fence, called_ns, acquired_ns, released_ns } = self;
        let exclusive = u8::from(*exclusive);
        write!(f, "{process} {task} {exclusive} {fence} {called_ns} {acquired_ns} {released_ns}")
    }
}

impl FromStr for CriticalSection {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let numbers = line.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [process, task, exclusive, fence, called_ns, acquired_ns, released_ns] = numbers[..] else {
            anyhow::bail!("not a section: {line}");
        };
        let (process, task) = (u32::try_from(process)?, u32::try_from(task)?);
        Ok(Self { process, task, exclusive: exclusive == 1, fence, called_ns, acquired_ns, released_ns })
    }
}

/// Nanoseconds of a clock that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The times from the call of a release to the acquire of the next holder, where that is in another process.
pub(crate) fn handovers_ns(sections: &mut [CriticalSection]) -> Vec<u64> {
    sections.sort_unstable_by_key(|section| section.fence);
    let pairs = sections.windows(2).filter(|pair| pair[0].process != pair[1].process);
    pairs.map(|pair| pair[1].acquired_ns.saturating_sub(pair[0].released_ns)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_goes_through_a_pipe() {
        let section = CriticalSection {
            process: 1,
            task: 2,
            exclusive: true,
            fence: 1_795_319_503_004_331,
            called_ns: 4,
            acquired_ns: 5,
            released_ns: 6,
        };
        assert_eq!(section.to_string().parse::<CriticalSection>().expect("a section"), section);
        assert!("1 2".parse::<CriticalSection>().is_err());
    }
}
