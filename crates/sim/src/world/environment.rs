//! The world as one process sees it: its clock, its chance, its timers.

use crate::world::Sim;
use crate::mutants::Bug;
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_testkit::Random;
use futures_util::future::BoxFuture;
use leasehold::{Moment, World};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// What one process has of the world.
#[derive(Clone)]
pub(crate) struct SimWorld {
    pub(crate) sim: Arc<Sim>,
    pub(crate) host: HostId,
    pub(crate) chance: Arc<Random>,
}

impl SimWorld {
    /// By how much this process's clock has fallen behind while it stood still: not at all, if it is as it should be.
    fn behind(&self) -> Duration {
        if self.sim.bug == Some(Bug::ClockStandsStill) {
            self.sim.stood_still(self.host)
        } else {
            Duration::ZERO
        }
    }

    /// When, in true time, this process's clock shows a moment.
    pub(crate) fn shows_at(&self, moment: Moment) -> Instant {
        self.sim.kernel.clock(self.host).shows_at((moment + self.behind()).as_micros())
    }

    pub(crate) fn now(&self) -> Moment {
        let reading_us = self.sim.kernel.clock(self.host).reading_us(self.sim.kernel.now());
        Moment::from_micros(reading_us) - self.behind()
    }
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimWorld({})", self.host)
    }
}

impl World for SimWorld {
    fn now(&self) -> Moment {
        Self::now(self)
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(Self::now(self).as_micros())
    }

    fn random(&self) -> u64 {
        self.chance.bits()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(self.sim.kernel.sleep_until(self.shows_at(at)))
    }

    fn host(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        self.sim.kernel.spawn(self.host, keeper);
        Ok(())
    }
}
