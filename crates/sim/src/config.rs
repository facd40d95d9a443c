//! The parameters that a run draws from its seed.

use crate::event::LockId;
use leasehold_testkit::Random;
use std::time::Duration;

/// How a run uses locks, drawn from its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadConfig {
    pub(crate) tasks: u32,
    /// How many of a thousand holds last longer than their leases.
    pub(crate) long_holds: u64,
    /// How many of a thousand futures of acquires and releases are dropped before they end.
    pub(crate) drops_future: u64,
    /// Set if every k-th release leaves the lock free for foreign clients.
    pub(crate) yield_every: Option<u32>,
    /// How many of a thousand acquires have a value of their own.
    pub(crate) own_values: u64,
    /// How many of a thousand uses are of several Mutexes at once.
    pub(crate) multi_acquires: u64,
    /// How many of a thousand steps with a held ReentrantMutex acquire it again.
    pub(crate) reenters: u64,
    /// How many of a thousand processes share an owner with other processes.
    pub(crate) shares_owner: u64,
    /// Set if the store acquires several locks in one step.
    pub(crate) multi_acquires_in_one_step: bool,
    pub(crate) watchdog: Duration,
    /// How many of a thousand processes have no session.
    pub(crate) without_session: u64,
    pub(crate) call_timeout: Duration,
    /// The longest pause between two uses.
    pub(crate) idle: Duration,
}

impl WorkloadConfig {
    pub(crate) fn draw(random: &Random) -> Self {
        let ms = |least, most| Duration::from_millis(random.between(least, most));
        Self {
            tasks: u32::try_from(random.between(1, 3)).unwrap_or(1),
            long_holds: random.between(0, 150),
            drops_future: random.between(0, 250),
            yield_every: random.chance(200).then(|| u32::try_from(random.between(1, 4)).unwrap_or(1)),
            own_values: if random.chance(200) { 300 } else { 0 },
            multi_acquires: *random.pick(&[0, 300, 600]),
            reenters: random.between(100, 600),
            shares_owner: *random.pick(&[0, 1000, 1000]),
            multi_acquires_in_one_step: random.chance(800),
            watchdog: ms(300, 9_000),
            without_session: *random.pick(&[0, 250, 250, 1000]),
            call_timeout: ms(200, 2_000),
            idle: ms(1, 1_500),
        }
    }
}

/// Numbers on which all users of a lock agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedLimits {
    /// The permits of a Semaphore that was not resized.
    pub(crate) permits: u32,
    /// The arrivals that open a Latch.
    pub(crate) arrivals: u32,
    /// The parties of a Barrier.
    pub(crate) parties: u32,
}

impl SharedLimits {
    pub(crate) fn draw(random: &Random) -> Self {
        let number = |least, most| u32::try_from(random.between(least, most)).unwrap_or(1);
        Self { permits: number(1, 5), arrivals: number(1, 6), parties: number(1, 4) }
    }
}

/// How processes hand off and cache holds, drawn from the seed of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandoffConfig {
    /// How many of a thousand uses of a Mutex let the process cache the hold.
    pub(crate) sticky: u64,
    /// How long a hold is cached at most.
    pub(crate) keep_for: Duration,
    /// The largest burst; 0 if there are none.
    pub(crate) burst: u32,
}

impl HandoffConfig {
    pub(crate) fn draw(random: &Random) -> Self {
        let burst = if random.chance(120) { random.between(3, 24) } else { 0 };
        Self {
            sticky: *random.pick(&[0, 0, 300, 800, 1000]),
            // From less than a task takes to acquire again, to more than a session lives without a heartbeat.
            keep_for: Duration::from_millis(*random.pick(&[20, 400, 3_000, 20_000])),
            burst: u32::try_from(burst).unwrap_or(0),
        }
    }
}

/// The lock delays of a run, drawn from its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockDelays {
    /// How many of a thousand acquires ask for one.
    share: u64,
    /// One for all, as a process hands a hold off only to a task that asks for the same.
    length: Duration,
}

impl LockDelays {
    pub(crate) fn draw(random: &Random, has_delays: bool) -> Self {
        let share = if has_delays { *random.pick(&[0, 0, 0, 300, 1000]) } else { 0 };
        let longest = *random.pick(&[300, 3_000]);
        Self { share, length: Duration::from_millis(random.between(1, longest)) }
    }

    /// The delay of one acquire. Draws nothing in a run without them.
    pub(crate) fn draw_one(self, random: &Random) -> Duration {
        if self.share > 0 && random.chance(self.share) { self.length } else { Duration::ZERO }
    }
}

/// The parameters of `once_per`, on which all processes of a run agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    /// The lock.
    pub(crate) lock: LockId,
    pub(crate) length: Duration,
    pub(crate) at_most: Duration,
}

impl Period {
    /// Draws the parameters, for the first lock.
    pub(crate) fn draw(random: &Random) -> Self {
        let length =
            Duration::from_millis(*random.pick(&[random.between(50, 1_000), random.between(1_000, 6_000)]));
        let longer = if random.chance(300) { 2 } else { 0 };
        Self { lock: LockId(0), length, at_most: length * longer }
    }
}
