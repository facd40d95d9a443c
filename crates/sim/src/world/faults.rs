//! The faults of a run, drawn from its seed before it begins.

use crate::checks::Promises;
use crate::world::time::Instant;
use leasehold_testkit::Random;
use std::time::Duration;

/// The kind of faults in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultProfile {
    /// None.
    None,
    /// Faults that the documentation promises to tolerate: messages are lost, late, duplicated and out of order; processes
    /// stop and crash; the server restarts with its data; clocks drift.
    Tolerated,
    /// In addition, the store loses data: restarts without data, failovers to a lagging replica, deleted keys.
    DataLoss,
    /// In addition, clocks jump, or drift by more than the allowance.
    ClockFaults,
    /// The faults that are tolerated, and partitions that cut the primary off with some of the clients, while its replica takes
    /// over for the others. All clients wait for the replica.
    TwoPrimaries,
}

/// A fault at one point in time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Break { process_index: usize, keeper: bool },
    CutOff { process_index: usize, lasts: Duration },
    Stop { process_index: usize, lasts: Duration },
    Crash { process_index: usize, back_after: Duration },
    Restart { lasts: Duration, with_data: bool },
    FailOver { lasts: Duration, lag: Duration },
    IsolatePrimary(PrimaryIsolation),
    Jump { by_us: i64 },
    Delete { lock: u8 },
}

/// A partition that cuts the primary off from its replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrimaryIsolation {
    /// The machines whose processes are cut off with it, one bit for each; and those whose confirmations are.
    pub(crate) machines: [u8; 2],
    /// How long it takes until the replica takes over.
    pub(crate) outage: Duration,
    /// How long both are primaries.
    pub(crate) lasts: Duration,
}

/// The faults of one run.
#[derive(Debug)]
pub(crate) struct FaultPlan {
    pub(crate) profile: FaultProfile,
    pub(crate) faults: Vec<(Instant, Fault)>,
    /// When the last fault is over.
    pub(crate) faults_end_at: Instant,
    /// How long a message takes.
    pub(crate) latency_us: (u64, u64),
    /// Whether the messages of a connection keep their order.
    pub(crate) in_order: bool,
    /// How many of a thousand messages are lost, delayed or duplicated.
    pub(crate) lost: u64,
    pub(crate) delayed: u64,
    pub(crate) duplicated: u64,
    /// The largest rate error of a client's clock, in millionths.
    pub(crate) drift_ppm: i64,
    /// How far behind the replica is that clients wait for, if they do.
    pub(crate) replica_lag: Option<Duration>,
}

impl FaultPlan {
    pub(crate) fn draw(random: &Random, processes: usize, locks: u8) -> Self {
        let profile = match random.below(100) {
            0..10 => FaultProfile::None,
            10..70 => FaultProfile::Tolerated,
            70..87 => FaultProfile::DataLoss,
            _ => FaultProfile::ClockFaults,
        };
        let faults_end_at = Instant(random.between(3_000_000, 15_000_000));
        let has_none = profile == FaultProfile::None;
        // Some runs have only message faults, some only other faults, most have both.
        let rate = |most: u64| if has_none || random.chance(300) { 0 } else { random.between(0, most) };
        let (lost, delayed, duplicated) = (rate(60), rate(60), rate(60));
        let count = if has_none || random.chance(100) { 0 } else { random.between(1, 8) };
        let mut fault_plan = Self {
            profile,
            faults: Vec::new(),
            faults_end_at,
            latency_us: (20, random.between(50, 3_000)),
            in_order: random.chance(700),
            lost,
            delayed,
            duplicated,
            drift_ppm: match profile {
                // The allowance is 1 %, and has to cover the difference of two clocks.
                FaultProfile::None => 0,
                FaultProfile::ClockFaults => 60_000,
                _ => 4_500,
            },
            replica_lag: None,
        };
        for _ in 0..count {
            let at = Instant(random.between(200_000, faults_end_at.0));
            let fault = fault_plan.fault(random, processes, locks);
            fault_plan.faults.push((at, fault));
        }
        fault_plan
    }

    /// Faults with partitions that leave two primaries.
    pub(crate) fn draw_two_primaries(random: &Random, processes: usize, locks: u8) -> Self {
        let faults_end_at = Instant(random.between(8_000_000, 30_000_000));
        let rate = |most: u64| if random.chance(500) { 0 } else { random.between(0, most) };
        let mut fault_plan = Self {
            profile: FaultProfile::TwoPrimaries,
            faults: Vec::new(),
            faults_end_at,
            latency_us: (20, random.between(50, 3_000)),
            in_order: random.chance(700),
            lost: rate(60),
            delayed: rate(60),
            duplicated: rate(60),
            drift_ppm: 4_500,
            replica_lag: Some(Duration::from_micros(random.between(0, 300_000))),
        };
        let at = || Instant(random.between(200_000, faults_end_at.0));
        for _ in 0..random.between(1, 3) {
            let mask = || u8::try_from(random.between(0, 15)).unwrap_or(0);
            let machines = mask();
            let machines = [machines, if random.chance(600) { machines } else { mask() }];
            let (outage, lasts) = (random.between(1_000, 3_000_000), random.between(500_000, 20_000_000));
            let (outage, lasts) = (Duration::from_micros(outage), Duration::from_micros(lasts));
            fault_plan
                .faults
                .push((at(), Fault::IsolatePrimary(PrimaryIsolation { machines, outage, lasts })));
        }
        for _ in 0..random.between(0, 4) {
            let fault = (at(), fault_plan.fault(random, processes, locks));
            fault_plan.faults.push(fault);
        }
        fault_plan
    }

    fn fault(&self, random: &Random, processes: usize, locks: u8) -> Fault {
        let process_index = usize::try_from(random.below(processes as u64)).unwrap_or(0);
        let lasts = |most_ms: u64| Duration::from_micros(random.between(1_000, most_ms * 1000));
        let special = random.below(12);
        match (self.profile, special) {
            (FaultProfile::DataLoss, 0..2) => Fault::Restart { lasts: lasts(2_000), with_data: false },
            (FaultProfile::DataLoss, 2..4) => Fault::FailOver { lasts: lasts(3_000), lag: lasts(300) },
            (FaultProfile::DataLoss, 4) => {
                Fault::Delete { lock: u8::try_from(random.below(locks.into())).unwrap_or(0) }
            }
            (FaultProfile::ClockFaults, 0..5) => {
                let by = i64::try_from(random.between(1_000, 40_000_000)).unwrap_or(0);
                Fault::Jump { by_us: if random.chance(500) { by } else { -by } }
            }
            _ => match random.below(12) {
                0..3 => Fault::Break { process_index, keeper: random.chance(400) },
                3..5 => Fault::CutOff { process_index, lasts: lasts(4_000) },
                5..8 => Fault::Stop { process_index, lasts: lasts(6_000) },
                8..10 => Fault::Crash { process_index, back_after: lasts(3_000) },
                _ => Fault::Restart { lasts: lasts(3_000), with_data: true },
            },
        }
    }

    /// By how much the server's clock is set back in total. Its leases last longer by as much.
    pub(crate) fn set_back(&self) -> Duration {
        let back = self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::Jump { by_us } if *by_us < 0 => Some(Duration::from_micros(by_us.unsigned_abs())),
            _ => None,
        });
        back.sum()
    }

    /// What the documentation promises under these faults.
    pub(crate) fn promises(&self) -> Promises {
        let clocks = self.profile != FaultProfile::ClockFaults;
        Promises { exclusion: clocks, clocks }
    }
}
