//! Errors at the file, and how they are reported to the caller.

use super::location::StoreLocation;
use leasehold_core::FORMAT;
use leasehold_store::{Fault, FaultKind, Phase};
use rusqlite::ErrorCode;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How many files SQLite opens for a database: itself, its log, the index of that, a journal.
const FILES: usize = 4;

/// An error inside a transaction.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// The text of the error is not shown: it can quote the record, in which hold ids are.
    #[error("the record of the lock cannot be read: what is at column {} does not belong there", .0.column())]
    Record(#[from] serde_json::Error),
    #[error("the record of the lock cannot be read: it is not that of a lock of its kind")]
    Implausible,
    #[error(
        "it was written in format {0}, and this version knows format {FORMAT}: use a version of Leasehold that knows both"
    )]
    Format(i64),
    #[error("it is a database of something else: give the store a file of its own")]
    Foreign,
    #[error("its file system cannot share memory between processes: use a local one")]
    NoSharedMemory,
    #[error("another boot of this machine, or another machine, has begun to use it")]
    Boot,
}

/// Maps an error to a fault.
pub(super) fn fault(location: &StoreLocation, phase: Phase, error: StoreError) -> Fault {
    let error = match error {
        StoreError::Sql(error) => error,
        StoreError::Foreign => return location.fault(phase, FaultKind::Unusable(error.to_string())),
        StoreError::Record(_) | StoreError::Implausible => {
            return location.fault(phase, FaultKind::Failed(error.to_string()));
        }
        StoreError::Format(_) | StoreError::Boot | StoreError::NoSharedMemory => {
            return location.fault(phase, FaultKind::Unsupported(error.to_string()));
        }
    };
    let message = match &error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    };
    let kind = match error.sqlite_error_code() {
        _ if is_busy(&error) => FaultKind::TimedOut,
        Some(ErrorCode::NotADatabase) => {
            FaultKind::Unusable("it is not a SQLite database: give the store a file of its own".into())
        }
        Some(ErrorCode::CannotOpen) => match descriptors() {
            Ok(()) => FaultKind::Unusable(message),
            Err(error) => {
                FaultKind::Failed(format!("{message}: raise the limit of open files (`ulimit -n`): {error}"))
            }
        },
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            FaultKind::Forbidden
        }
        Some(ErrorCode::DiskFull) => {
            FaultKind::Failed("the disk is full: free some space; the store needs 8 MB".into())
        }
        _ => FaultKind::Failed(message),
    };
    location.fault(phase, kind).with_source(error)
}

/// Fails if this process may not open the files of a database, which is closed by now. SQLite reports that in the same
/// way as a path that is wrong.
fn descriptors() -> Result<(), Errno> {
    let open = |_| rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    (0..FILES).map(open).collect::<Result<Vec<_>, _>>().map(drop)
}

/// Whether the disk is full, or the database may not grow.
pub(super) fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::Sql(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull))
}

/// Whether another process held the file's lock, so that nothing was done.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
