//! A name that is in use for another kind of lock than the requested one: which kind that is, and how it is acquired.

use crate::lock::any_lock::{self, FoundLock};
use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::core::Kind;
use leasehold::{Client, LockName};

/// The failure of a request for a lock of a kind, with what the names are in use for instead, if they are. Any other
/// failure is returned as it is.
pub(crate) async fn explain(
    failure: Failure,
    client: &Client,
    names: &[LockName],
    requested: Kind,
) -> Failure {
    if !failure.is_other_kind() {
        return failure;
    }
    let mut is_foreign = false;
    for name in names {
        match any_lock::find(client, name).await {
            Ok(found) if found.details.status.held && found.lock.kind() != requested => {
                return Failure::other_kind(anyhow!(
                    "`{name}` is {}; use that, or another name",
                    description(&found)
                ));
            }
            Err(error) => is_foreign |= error.is_other_kind(),
            // It is free by now.
            Ok(_) => {}
        }
    }
    if is_foreign {
        return Failure::other_kind(anyhow!(
            "{}; use another name, or a prefix of your own (--prefix)",
            failure.message()
        ));
    }
    failure
}

/// What the lock is, and the command that acquires it.
fn description(found: &FoundLock) -> String {
    let limit = found.details.status.limit.map_or_else(|| "N".to_owned(), |limit| limit.to_string());
    match found.lock.kind() {
        Kind::Mutex => {
            "a plain lock (a mutex), which `leasehold run` acquires without --reentrant, --owner, --shared, \
                        --exclusive and --permits"
                .to_owned()
        }
        Kind::Reentrant => {
            "a reentrant lock, which `leasehold run --reentrant` or `--owner ID` acquires".to_owned()
        }
        Kind::RwLock => {
            "a read-write lock, which `leasehold run --shared` or `--exclusive` acquires".to_owned()
        }
        Kind::Semaphore => format!("a semaphore, which `leasehold run --permits {limit}` acquires"),
        Kind::Election => "an election, which `leasehold lead` takes part in".to_owned(),
        kind @ (Kind::Latch | Kind::Barrier) => {
            format!("a {}, which only programs with the library can use", kind.as_str())
        }
        kind => format!("a lock of the kind {}", kind.as_str()),
    }
}
