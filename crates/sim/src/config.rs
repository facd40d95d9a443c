//! What a run draws from its seed before it starts.

use crate::event::LockId;
use leasehold_testkit::Random;
use std::time::Duration;

/// How a run uses locks, drawn from its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadConfig {
    pub(crate) tasks: u32,
    /// How many of a thousand holds last longer than their leases.
    pub(crate) long_holds: u64,
    /// How many of a thousand acquires and releases are dropped half-method.
    pub(crate) drops: u64,
    /// Set if every k-th release leaves the lock to strangers.
    pub(crate) free_every: Option<u32>,
    /// How many of a thousand acquires have a value of their own.
    pub(crate) own_values: u64,
    /// How many of a thousand uses are of several Mutexes at once.
    pub(crate) several: u64,
    /// How many of a thousand holds of a ReentrantMutex are entered again, each time that there is something to do.
    pub(crate) enters: u64,
    /// How many of a thousand processes share the owner of their tasks with other processes.
    pub(crate) travels: u64,
    /// Set if the store acquires several locks in one step.
    pub(crate) in_one_step: bool,
    pub(crate) watchdog: Duration,
    /// How many of a thousand processes have no session.
    pub(crate) without_session: u64,
    pub(crate) call: Duration,
    /// The longest pause between two uses.
    pub(crate) idle: Duration,
}

impl WorkloadConfig {
    pub(crate) fn draw(chance: &Random) -> Self {
        let ms = |least, most| Duration::from_millis(chance.between(least, most));
        Self {
            tasks: u32::try_from(chance.between(1, 3)).unwrap_or(1),
            long_holds: chance.between(0, 150),
            drops: chance.between(0, 250),
            free_every: chance.chance(200).then(|| u32::try_from(chance.between(1, 4)).unwrap_or(1)),
            own_values: if chance.chance(200) { 300 } else { 0 },
            several: *chance.pick(&[0, 300, 600]),
            enters: chance.between(100, 600),
            travels: *chance.pick(&[0, 1000, 1000]),
            in_one_step: chance.chance(800),
            watchdog: ms(300, 9_000),
            without_session: *chance.pick(&[0, 250, 250, 1000]),
            call: ms(200, 2_000),
            idle: ms(1, 1_500),
        }
    }
}

/// Numbers that all users of a lock must agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedLimits {
    /// The permits of a Semaphore that was not resized.
    pub(crate) permits: u32,
    /// How many arrivals open a Latch.
    pub(crate) arrivals: u32,
    /// How many meet at a Barrier.
    pub(crate) parties: u32,
}

impl SharedLimits {
    pub(crate) fn draw(chance: &Random) -> Self {
        let number = |least, most| u32::try_from(chance.between(least, most)).unwrap_or(1);
        Self { permits: number(1, 5), arrivals: number(1, 6), parties: number(1, 4) }
    }
}

/// How the tasks of a run hand locks on, drawn from its seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandoffConfig {
    /// How many of a thousand uses of a Mutex let the process keep it for a while.
    pub(crate) sticky: u64,
    /// How long a hold is cached at most.
    pub(crate) keep_for: Duration,
    /// The largest burst; 0 if there are none.
    pub(crate) crowd: u32,
}

impl HandoffConfig {
    pub(crate) fn draw(chance: &Random) -> Self {
        let crowd = if chance.chance(120) { chance.between(3, 24) } else { 0 };
        Self {
            sticky: *chance.pick(&[0, 0, 300, 800, 1000]),
            // From less than a task takes to return, to more than a session lives without a heartbeat.
            keep_for: Duration::from_millis(*chance.pick(&[20, 400, 3_000, 20_000])),
            crowd: u32::try_from(crowd).unwrap_or(0),
        }
    }
}

/// The parameters that all processes of a run agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    /// The lock.
    pub(crate) lock: LockId,
    pub(crate) length: Duration,
    pub(crate) at_most: Duration,
}

impl Period {
    /// Of the first lock, whichever that is.
    pub(crate) fn draw(chance: &Random) -> Self {
        let length =
            Duration::from_millis(*chance.pick(&[chance.between(50, 1_000), chance.between(1_000, 6_000)]));
        let longer = if chance.chance(300) { 2 } else { 0 };
        Self { lock: LockId(0), length, at_most: length * longer }
    }
}
