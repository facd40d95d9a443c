//! The machine as seen by the store: the current boot and the clock.
//!
//! Tests replace it in order to reboot the machine and to change its clocks.

use leasehold_store::clock;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a store needs to know about its machine.
pub(super) trait Machine: Send + 'static {
    /// Identifies the boot. No process outlives a boot.
    fn boot_id(&self) -> &str;

    /// Microseconds since the boot, the same for all processes of the machine. This clock cannot be set, and runs
    /// during a suspend.
    fn since_boot_us(&self) -> u64;

    /// Microseconds since 1970 by the wall clock, which may be wrong. Read once per boot.
    fn wall_us(&self) -> u64;
}

/// The machine of this process.
#[derive(Debug)]
pub(super) struct ThisMachine {
    boot_id: String,
    /// How far the clock of this process's time namespace is ahead: a container may have a clock of its own, and
    /// share the store with processes that do not.
    ahead_us: i64,
}

impl ThisMachine {
    /// Reads the boot id.
    pub(super) fn new() -> io::Result<Self> {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // Kernels without time namespaces do not have this file.
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

/// Parses how far `CLOCK_BOOTTIME` is ahead from lines `<clock> <seconds> <nanoseconds>`.
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
