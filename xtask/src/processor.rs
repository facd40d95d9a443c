//! How much processor time a process and its children took.
//!
//! Where a lane is bound by its two cores, that says which part to shorten, and the time that passed does not.

use std::fs;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Waits until the child ends, and reads its processor time before its process id is given back.
pub(crate) fn wait_and_measure(mut child: Child) -> Result<(ExitStatus, Duration)> {
    let mut processor = Duration::ZERO;
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
            .context("failed to wait for a child")?;
        // Linux only. Elsewhere nothing is measured.
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        let ticks = ticks_used(&stat).unwrap_or(0);
        processor = Duration::from_millis(ticks.saturating_mul(1_000) / clock_ticks_per_second().max(1));
    }
    Ok((child.wait().context("failed to wait for a child")?, processor))
}

/// The sum of `utime`, `stime`, `cutime` and `cstime`, fields 14 to 17 of `/proc/PID/stat` (proc(5)).
///
/// Field 2 is the name of the program in parentheses, and may contain anything.
fn ticks_used(stat: &str) -> Option<u64> {
    let after_name = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_times_of_a_process_and_its_children_are_added() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 200 0 0 10 20 300 4000 20 0 1 0 99";
        assert_eq!(ticks_used(stat), Some(4_330));
        assert_eq!(ticks_used("7 (a) S 1"), None);
    }

    #[test]
    fn the_time_of_a_child_of_the_child_counts() {
        let busy = "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done'; exit 3";
        let child = Command::new("sh").arg("-c").arg(busy).spawn().expect("a shell starts");
        let (status, processor) = wait_and_measure(child).expect("it ends");
        assert_eq!(status.code(), Some(3));
        assert!(processor > Duration::ZERO);
    }
}
