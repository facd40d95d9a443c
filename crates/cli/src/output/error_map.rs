//! What the library's errors mean to the user: the exit status, and advice.

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::LostReason;
use leasehold::core::Refused;
use leasehold::error::{AcquireError, ConnectError, ExtendError, ReleaseError};
use leasehold::store::{Fault, FaultKind};

/// The failure to acquire a lock. `conflict` is the exit status if another client holds the lock.
pub(crate) fn acquire_failure(error: AcquireError, conflict: Exit) -> Failure {
    let exit = match &error {
        AcquireError::TimedOut { .. } | AcquireError::RetriesExhausted { .. } => {
            return Failure::taken(conflict, error);
        }
        AcquireError::Deadlock(_) => return Failure::deadlock(conflict, error),
        AcquireError::NotExtended(cause) => match &**cause {
            ExtendError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
            _ => Exit::UNAVAILABLE,
        },
        AcquireError::Lost(lost) => return Failure::lost(lost.reason.clone(), error),
        AcquireError::Impossible(Refused::Disagreement { requested, known, .. }) => {
            let advice = format!(
                "the name is used with --permits {known} now: use that, or --resize to make it {requested} for all"
            );
            return Failure::new(Exit::USAGE, anyhow::Error::new(error).context(advice));
        }
        // Waiting cannot help, whatever the other holders do.
        AcquireError::Lease(_)
        | AcquireError::NoLease
        | AcquireError::LeaseTooShort { .. }
        | AcquireError::Impossible(_) => Exit::USAGE,
        AcquireError::Store(fault) => fault_exit(fault),
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, error)
}

/// The failure to open a store. `is_default`: the user has named none.
pub(crate) fn connect_failure(error: ConnectError, is_default: bool) -> Failure {
    let exit = match &error {
        ConnectError::Url(_) | ConnectError::Setting(_) => Exit::USAGE,
        ConnectError::Store(fault) => fault_exit(fault),
        _ => Exit::UNAVAILABLE,
    };
    let which =
        if is_default { " (the default, since neither --store nor LEASEHOLD_STORE is given)" } else { "" };
    Failure::new(exit, anyhow::Error::new(error).context(format!("failed to open the store{which}")))
}

/// The failure to extend a detached hold.
pub(crate) fn extend_failure(error: ExtendError) -> Failure {
    match &error {
        ExtendError::Lost(lost) => loss_failure(lost.reason.clone(), error),
        ExtendError::Lease(_) => Failure::usage(error),
        ExtendError::Store(fault) => Failure::new(fault_exit(fault), error),
        _ => Failure::unavailable(error),
    }
}

/// The failure to release a detached hold.
pub(crate) fn release_failure(error: ReleaseError) -> Failure {
    match &error {
        ReleaseError::Lost(reason) => loss_failure(reason.clone(), error),
        ReleaseError::Store { fault, .. } => Failure::new(fault_exit(fault), error),
        ReleaseError::Impossible(_) => Failure::usage(error),
        _ => Failure::unavailable(error),
    }
}

/// The exit status for a fault of the store.
pub(crate) fn fault_exit(fault: &Fault) -> Exit {
    match fault.kind {
        FaultKind::Unusable(_) => Exit::USAGE,
        FaultKind::Refused(Refused::WrongKind { .. }) => Exit::OTHER_KIND,
        _ => Exit::UNAVAILABLE,
    }
}

/// The type of the value at a lock's key, if it is not that of the lock's kind.
pub(crate) fn unexpected_type(fault: &Fault) -> Option<&str> {
    match &fault.kind {
        FaultKind::Refused(Refused::WrongKind { found }) => Some(found),
        _ => None,
    }
}

fn loss_failure(reason: LostReason, error: impl Into<anyhow::Error>) -> Failure {
    let error = error.into();
    if reason == LostReason::StoreLostData {
        let advice = anyhow!("{error}; or was the lock acquired in another store, or with another prefix?");
        return Failure::lost(reason, advice);
    }
    Failure::lost(reason, error)
}
