//! The environment of a client: tokio's paused clock.

use crate::quorum::world::World;
use futures_util::future::BoxFuture;
use leasehold::Moment;
use leasehold::store::Environment;
use leasehold_testkit::Random;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The environment of one client.
pub(crate) struct ClientEnvironment {
    pub(crate) world: Arc<World>,
    pub(crate) random: Random,
}

impl fmt::Debug for ClientEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientEnvironment").finish_non_exhaustive()
    }
}

impl Environment for ClientEnvironment {
    fn now(&self) -> Moment {
        self.world.moment()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.now().as_micros())
    }

    fn random(&self) -> u64 {
        self.random.bits()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}
