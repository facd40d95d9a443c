//! From the failure of an acquire to its error.

use super::LockHandle;
use crate::engine::{AcquireFailure, NotDetached};
use crate::error::{AcquireError, ExtendError, LostHold};
use crate::store::{Fault, FaultKind};
use leasehold_core::{Executed, Lease, Moment};
use std::time::Duration;

impl LockHandle {
    /// The error of an acquisition that began at `start`.
    pub(super) fn error_since(&self, failure: AcquireFailure, once: bool, start: Moment) -> AcquireError {
        match failure {
            AcquireFailure::Taken(status) if once => {
                self.error(AcquireFailure::TimedOut(status), Duration::ZERO)
            }
            failure => self.error(failure, self.engine.environment.now().since(start)),
        }
    }

    pub(super) fn not_detached(&self, not: NotDetached, waited: Duration) -> AcquireError {
        match not {
            NotDetached::NoLease => AcquireError::NoLease,
            NotDetached::AcquireFailure(failure) => self.error(failure, waited),
            NotDetached::Lease(error) => AcquireError::Lease(error),
            NotDetached::NotKept { fence, why } => {
                AcquireError::NotExtended(Box::new(ExtendError::of(why, self.name(), fence)))
            }
        }
    }

    pub(crate) fn error(&self, failure: AcquireFailure, waited: Duration) -> AcquireError {
        let lock = self.name().clone();
        match failure {
            AcquireFailure::TimedOut(status) => {
                AcquireError::TimedOut { lock, waited, contention: Box::new((*status).into()) }
            }
            AcquireFailure::Taken(status) => {
                AcquireError::RetriesExhausted { lock, contention: Box::new((*status).into()) }
            }
            AcquireFailure::Fault { fault: Fault { kind: FaultKind::Refused(refused), .. }, .. }
                if refused.is_permanent() =>
            {
                AcquireError::Impossible(refused)
            }
            AcquireFailure::Fault { fault, .. } if fault.is_unconfirmed() => AcquireError::Unconfirmed(fault),
            AcquireFailure::Fault { fault, executed: Executed::No } => AcquireError::Store(fault),
            AcquireFailure::Fault { fault, executed: Executed::Unknown } => AcquireError::Unknown(fault),
            AcquireFailure::Deadlock(cycle) => AcquireError::Deadlock(cycle),
            AcquireFailure::Closed => AcquireError::Closed,
            AcquireFailure::PausedClock => AcquireError::PausedClock,
            AcquireFailure::Lost(fence, reason) => {
                AcquireError::Lost(LostHold { lock, fence, reason: *reason })
            }
            AcquireFailure::LeaseTooShort => AcquireError::LeaseTooShort { lease: self.shortest_lease() },
        }
    }

    fn shortest_lease(&self) -> Duration {
        let lease = match self.lease {
            Some(lease) => lease.remaining(self.engine.environment.system_time()).unwrap_or(Lease::MIN),
            None => self.engine.timings.watchdog,
        };
        self.max_hold.map_or(lease, |cap| cap.min(lease))
    }
}
