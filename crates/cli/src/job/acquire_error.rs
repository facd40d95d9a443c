//! What a failed acquire means to the user: the exit status, and advice.

use anyhow::anyhow;
use leasehold::store::{Fault, FaultKind};
use leasehold::{AcquireError, ExtendError};

use crate::look::stands_there;
use crate::output::exit::{Exit, Failure};

/// The failure that an acquire ended with. `conflict` is the exit status if another client holds the lock.
pub(crate) fn not_acquired(error: AcquireError, conflict: Exit) -> Failure {
    let exit = match &error {
        AcquireError::TimedOut { .. } | AcquireError::OutOfTries { .. } => {
            return Failure::taken(conflict, error);
        }
        AcquireError::NotKept(why) => match &**why {
            ExtendError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
            _ => Exit::UNAVAILABLE,
        },
        AcquireError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
        // Waiting cannot help, whatever the other holders do.
        AcquireError::Lease(_)
        | AcquireError::NoLease
        | AcquireError::LeaseTooShort { .. }
        | AcquireError::Impossible(_) => Exit::USAGE,
        AcquireError::Store(fault) if matches!(fault.kind, FaultKind::Unusable(_)) => Exit::USAGE,
        AcquireError::Store(fault) => match other_kind(fault) {
            Some(advice) => return Failure::new(Exit::UNAVAILABLE, anyhow!("{error}; {advice}")),
            None => Exit::UNAVAILABLE,
        },
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, error)
}

/// Advice for a name that belongs to a lock of another kind.
fn other_kind(fault: &Fault) -> Option<&'static str> {
    match stands_there(fault)? {
        "hash" => Some(
            "if it is a reentrant lock (`leasehold show` says so), use `run --reentrant`; if several clients can \
             share it, use --shared, --exclusive or --permits",
        ),
        "string" => Some(
            "if it is a plain lock (`leasehold show` says so), leave out --reentrant and --owner, and --shared, \
             --exclusive and --permits",
        ),
        _ => None,
    }
}
