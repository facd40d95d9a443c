//! The parameters of a run, drawn from its seed.

use crate::quorum::event::NODES;
use crate::world::faults::FaultProfile;
use crate::world::time::{Clock, Instant};
use leasehold_core::{Lock, LockName};
use leasehold_testkit::Random;
use std::time::Duration;

/// The longest time for which a node is away, or a link is cut.
pub(crate) const LONGEST_AWAY: Duration = Duration::from_secs(8);

/// The faults of messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageFaults {
    /// How long a message takes at most.
    pub(crate) latency_us: u64,
    /// How many of a thousand messages are late.
    pub(crate) late: u64,
    /// How many of a thousand messages are lost.
    pub(crate) lost: u64,
    /// How many of a thousand requests are the first of a new connection.
    pub(crate) reconnects: u64,
    /// When the last fault begins.
    pub(crate) end_at: Instant,
}

impl MessageFaults {
    pub(crate) fn are_active(&self, now: Instant) -> bool {
        now < self.end_at
    }
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) profile: FaultProfile,
    pub(crate) clients: u8,
    /// The tasks of each client.
    pub(crate) tasks: u8,
    pub(crate) locks: Vec<Lock>,
    pub(crate) clocks: [Clock; NODES],
    pub(crate) messages: MessageFaults,
    /// The pause between two faults of nodes, at most.
    pub(crate) fault_pause: Duration,
    /// How many of a thousand of these are nodes that forget.
    pub(crate) forgets: u64,
    pub(crate) node_timeout: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) watchdog: Duration,
    /// Until when tasks acquire locks again and again. No node is away by then.
    pub(crate) work_until: Instant,
    /// How many of a thousand holds last longer than their leases.
    pub(crate) long_holds: u64,
    /// How many of a thousand futures of acquires and releases are dropped before they end.
    pub(crate) drops_future: u64,
    /// The longest pause between two uses.
    pub(crate) idle: Duration,
}

impl Config {
    pub(crate) fn draw(random: &Random) -> Self {
        let ms = |least, most| Duration::from_millis(random.between(least, most));
        let profile = match random.below(10) {
            0 => FaultProfile::None,
            1..6 => FaultProfile::Tolerated,
            _ => FaultProfile::DataLoss,
        };
        let names = u8::try_from(*random.pick(&[1, 2, 2, 3])).unwrap_or(1);
        let locks = (0..names).filter_map(|number| {
            let name = LockName::try_from(char::from(b'A' + number).to_string()).ok()?;
            Some(if random.chance(350) { Lock::reentrant(name) } else { Lock::mutex(name) })
        });
        // The clocks of the nodes differ, or do not. No token grows after a loss of data where a clock is behind.
        let apart_ms = *random.pick(&[0, 0, 5, 4_000]);
        let clocks = std::array::from_fn(|_| {
            let ahead_us = random.below(apart_ms * 1000 + 1);
            let drift = i64::try_from(random.below(10_001)).unwrap_or(0) - 5_000;
            Clock::new(1_760_000_000_000_000 + ahead_us, drift)
        });
        let has_faults = profile != FaultProfile::None;
        let some = |often: u64| if has_faults { random.between(0, often) } else { 0 };
        let messages = MessageFaults {
            latency_us: *random.pick(&[1_000, 4_000, 8_000]),
            late: some(15),
            lost: some(30),
            reconnects: some(10),
            end_at: Instant(0) + if has_faults { ms(8_000, 45_000) } else { Duration::ZERO },
        };
        let work_until = messages.end_at + LONGEST_AWAY + ms(0, 15_000);
        Self {
            profile,
            work_until,
            clients: u8::try_from(random.between(2, 4)).unwrap_or(2),
            tasks: u8::try_from(random.between(1, 2)).unwrap_or(1),
            locks: locks.collect(),
            clocks,
            messages,
            fault_pause: ms(200, 4_000),
            forgets: *random.pick(&[200, 400, 800]),
            node_timeout: ms(30, 60),
            call_timeout: ms(300, 2_000),
            watchdog: ms(600, 9_000),
            long_holds: random.between(0, 300),
            drops_future: random.between(0, 150),
            idle: ms(1, 1_500),
        }
    }
}
