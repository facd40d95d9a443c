//! Errors at the file, and how they are reported to the caller.

use super::site::Site;
use leasehold_core::FORMAT;
use leasehold_store::{Fault, FaultKind, Phase};
use rusqlite::ErrorCode;

/// An error inside a transaction.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    #[error("the record of the lock cannot be read: {0}")]
    Record(#[from] serde_json::Error),
    #[error(
        "it was written in format {0}, and this version knows format {FORMAT}: use a version of Leasehold that knows both"
    )]
    Format(i64),
    #[error("it is a database of something else: give the store a file of its own")]
    Foreign,
    #[error("its file system cannot share memory between processes: use a local one")]
    NoSharedMemory,
    #[error("it was taken over by another boot of this machine, or by another machine")]
    Boot,
}

/// Maps an error to a fault.
pub(super) fn fault(site: &Site, phase: Phase, trouble: Trouble) -> Fault {
    let error = match trouble {
        Trouble::Sql(error) => error,
        Trouble::Foreign => return site.fault(phase, FaultKind::Unusable(trouble.to_string())),
        Trouble::Record(_) => return site.fault(phase, FaultKind::Failed(trouble.to_string())),
        Trouble::Format(_) | Trouble::Boot | Trouble::NoSharedMemory => {
            return site.fault(phase, FaultKind::Unsupported(trouble.to_string()));
        }
    };
    let said = match &error {
        rusqlite::Error::SqliteFailure(_, Some(said)) => said.clone(),
        other => other.to_string(),
    };
    let kind = match error.sqlite_error_code() {
        _ if is_busy(&error) => FaultKind::TimedOut,
        Some(ErrorCode::NotADatabase) => {
            FaultKind::Unusable("it is not a SQLite database: give the store a file of its own".into())
        }
        Some(ErrorCode::CannotOpen) => FaultKind::Unusable(said),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            FaultKind::Forbidden
        }
        Some(ErrorCode::DiskFull) => FaultKind::Failed("the disk is full: free some space".into()),
        _ => FaultKind::Failed(said),
    };
    site.fault(phase, kind).with_source(error)
}

/// Whether another process held the file's lock, so that nothing was done.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
