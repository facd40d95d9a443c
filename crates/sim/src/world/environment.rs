//! The environment of one process: its clock, its randomness, its timers.

use crate::mutants::Mutant;
use crate::world::Sim;
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use futures_util::future::BoxFuture;
use leasehold::Moment;
use leasehold::store::Environment;
use leasehold_testkit::Random;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The environment of one process.
#[derive(Clone)]
pub(crate) struct ProcessEnvironment {
    pub(crate) sim: Arc<Sim>,
    pub(crate) host: HostId,
    pub(crate) random: Arc<Random>,
}

impl ProcessEnvironment {
    /// By how much this process's clock has fallen behind while it was stopped: zero without a mutant.
    fn clock_lag(&self) -> Duration {
        if self.sim.mutant == Some(Mutant::ClockStopsWithProcess) {
            self.sim.stopped_for(self.host)
        } else {
            Duration::ZERO
        }
    }

    /// When, in true time, this process's clock shows a moment.
    pub(crate) fn shows_at(&self, moment: Moment) -> Instant {
        self.sim.scheduler.clock(self.host).shows_at((moment + self.clock_lag()).as_micros())
    }

    pub(crate) fn now(&self) -> Moment {
        let reading_us = self.sim.scheduler.clock(self.host).reading_us(self.sim.scheduler.now());
        Moment::from_micros(reading_us) - self.clock_lag()
    }
}

impl fmt::Debug for ProcessEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessEnvironment({})", self.host)
    }
}

impl Environment for ProcessEnvironment {
    fn now(&self) -> Moment {
        Self::now(self)
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(Self::now(self).as_micros())
    }

    fn random(&self) -> u64 {
        self.random.bits()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let late = match self.sim.mutant {
            Some(Mutant::TimersAreLate) => Duration::from_secs(1),
            _ => Duration::ZERO,
        };
        Box::pin(self.sim.scheduler.sleep_until(self.shows_at(at) + late))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        self.sim.scheduler.spawn(self.host, keeper);
        Ok(())
    }
}
