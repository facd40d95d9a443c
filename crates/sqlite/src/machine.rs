//! The machine as the store sees it: which boot it is in, and how late it is.
//!
//! Tests put another machine in its place, to reboot it and to turn its clocks.

use leasehold_store::clock;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a store has to know of the machine that it runs on.
pub(super) trait Machine: Send + 'static {
    /// Which boot this is. No process outlives a boot.
    fn boot_id(&self) -> &str;

    /// Microseconds since the boot, the same for all processes of the machine. Nobody can set this clock,
    /// and it goes on during a suspend.
    fn since_boot_us(&self) -> u64;

    /// Microseconds since 1970 by the wall clock, which may be wrong. It is asked once a boot.
    fn wall_us(&self) -> u64;
}

/// The machine that this process runs on.
#[derive(Debug)]
pub(super) struct ThisMachine {
    boot_id: String,
    /// How far the clock of this process's time namespace is ahead: a container may have a clock of its
    /// own, and shares the store with processes that do not.
    ahead_us: i64,
}

impl ThisMachine {
    /// Reads the boot id.
    pub(super) fn new() -> io::Result<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Kernels without time namespaces do not have this file, and nothing to tell.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Self { boot_id: boot_id.trim().to_owned(), ahead_us: ahead_us(&offsets) })
    }
}

impl Machine for ThisMachine {
    fn boot_id(&self) -> &str {
        &self.boot_id
    }

    fn since_boot_us(&self) -> u64 {
        clock::boottime().as_micros().saturating_add_signed(-self.ahead_us)
    }

    fn wall_us(&self) -> u64 {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(wall.as_micros()).unwrap_or(u64::MAX)
    }
}

/// How far `CLOCK_BOOTTIME` is ahead, by the lines `<clock> <seconds> <nanoseconds>`.
fn ahead_us(offsets: &str) -> i64 {
    let line = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    let mut numbers = line.unwrap_or_default().split_whitespace().map(str::parse::<i64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(s)), Some(Ok(ns))) => s.saturating_mul(1_000_000).saturating_add(ns / 1000),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        assert_eq!(ahead_us("monotonic  0  0\nboottime  86400  5000\n"), 86_400_000_005);
        assert_eq!(ahead_us("monotonic  7  0\nboottime  -1  0\n"), -1_000_000);
        assert_eq!(ahead_us(""), 0);
    }
}
