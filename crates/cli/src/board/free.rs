//! Takes a lock from its holder, as `leasehold free` does, on a request of the page.
//!
//! The request names the hold by its fencing token: a client that has acquired the lock since then keeps it.

use crate::lock::any_lock::{self, FoundLock};
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::printable::printable;
use crate::store::client::flush;
use axum::http::StatusCode;
use leasehold::error::ForceReleaseError;
use leasehold::inspect::{ObservedHolder, SharedHolder};
use leasehold::{Client, LockName};
use serde::Deserialize;

/// A request to end a hold.
#[derive(Debug, Deserialize)]
pub(super) struct FreeRequest {
    name: String,
    /// The fencing token of the hold that was shown.
    fence: u64,
}

/// Why a hold was not ended, or perhaps not.
#[derive(Debug)]
pub(super) struct NotFreed {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

/// Ends the hold.
///
/// Cancel safety: whether the hold was ended is unknown if the future is dropped.
pub(super) async fn free(client: &Client, request: &FreeRequest) -> Result<(), NotFreed> {
    let name = LockName::new(request.name.as_str())
        .map_err(|error| NotFreed { status: StatusCode::BAD_REQUEST, message: error.to_string() })?;
    let found = any_lock::find(client, &name).await.map_err(|failure| NotFreed::from_failure(&failure))?;
    let Some(seen) = observed(&found, request.fence) else {
        return Err(NotFreed {
            status: StatusCode::CONFLICT,
            message: "that hold has ended already: nothing was done".to_owned(),
        });
    };
    let released = found.lock.force_release(seen).await;
    flush(client, &name).await;
    released.map_err(|error| NotFreed {
        status: match error {
            ForceReleaseError::Changed { .. } => StatusCode::CONFLICT,
            _ => StatusCode::BAD_GATEWAY,
        },
        message: printable(&Failure::unavailable(error).message()),
    })
}

/// The hold with this fencing token, if there is one.
fn observed(found: &FoundLock, fence: u64) -> Option<ObservedHolder> {
    let shared = found.details.status.shared_holders.iter().filter_map(SharedHolder::observed);
    let mut all = found.details.observed.into_iter().chain(shared);
    all.find(|seen| matches!(seen, ObservedHolder::Hold(token) if token.as_u64() == fence))
}

impl NotFreed {
    fn from_failure(failure: &Failure) -> Self {
        let status =
            if failure.exit == Exit::UNAVAILABLE { StatusCode::BAD_GATEWAY } else { StatusCode::BAD_REQUEST };
        Self { status, message: printable(&failure.message()) }
    }
}
