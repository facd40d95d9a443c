//! What a store still has once all is released and all leases have ended.

use super::nodes::{Key, Nodes};
use super::plan::{LEASE, PERIOD, SESSION};
use leasehold::Client;
use leasehold::error::InspectError;
use leasehold::inspect::Status;
use leasehold_history::{LockKind, LockSpec};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How much longer than the longest lease it may take until nothing is held.
const GRACE: Duration = Duration::from_secs(3);

/// How long the first look, and each further one, is apart.
const INTERVAL: Duration = Duration::from_millis(200);

/// How long a lock that is free may take to be acquired.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(3);

/// Waits until nothing is held any more, or should not be, and returns what is wrong then.
pub(crate) async fn find(client: &Client, nodes: &Nodes, locks: &[LockSpec]) -> Vec<String> {
    let limit = LEASE.max(SESSION).max(PERIOD) + GRACE;
    let begin = Instant::now();
    let wrong = loop {
        let wrong = held(client, locks).await;
        if wrong.is_empty() || begin.elapsed() > limit {
            break wrong;
        }
        sleep(INTERVAL).await;
    };
    if !wrong.is_empty() {
        return wrong;
    }
    let mut wrong = Vec::new();
    for lock in locks {
        wrong.extend(not_acquired(client, lock).await);
    }
    match nodes.keys().await {
        Ok(keys) => wrong.extend(keys.into_iter().filter(|key| !key.expires).map(without_expiry)),
        Err(fault) => wrong.push(format!("the keys could not be listed: {fault}")),
    }
    wrong
}

/// The locks that are held.
async fn held(client: &Client, locks: &[LockSpec]) -> Vec<String> {
    let mut wrong = Vec::new();
    for lock in locks {
        match inspect(client, lock).await {
            Some(Ok(status)) if status.held => {
                let holder = status.holder.unwrap_or_else(|| "a client without a label".to_owned());
                wrong.push(format!("`{}` is held by {holder}, after all leases have ended", lock.name));
            }
            None | Some(Ok(_)) => {}
            Some(Err(error)) => wrong.push(format!("`{}` could not be inspected: {error}", lock.name)),
        }
    }
    wrong
}

/// The state of a lock that can be held.
async fn inspect(client: &Client, lock: &LockSpec) -> Option<Result<Status, InspectError>> {
    let name = lock.name.as_str();
    // The names are valid.
    Some(match lock.kind {
        LockKind::Mutex | LockKind::OncePer => client.mutex(name).ok()?.inspect().await,
        LockKind::Reentrant => client.reentrant_mutex(name).ok()?.inspect().await,
        LockKind::RwLock => client.rwlock(name).ok()?.inspect().await,
        LockKind::Semaphore => client.semaphore(name, lock.permits?).ok()?.inspect().await,
        LockKind::Election => client.election(name).ok()?.inspect().await,
        // Arrivals stay, and exclude no client.
        LockKind::Latch | LockKind::Barrier => return None,
    })
}

/// Why a lock that is free cannot be acquired; `None` if it can. Waiters that are gone must not be waited for.
async fn not_acquired(client: &Client, lock: &LockSpec) -> Option<String> {
    let name = lock.name.as_str();
    let acquired = match lock.kind {
        LockKind::Mutex => release(client.mutex(name).ok()?.acquire_timeout(ACQUIRE_LIMIT).await).await,
        LockKind::Reentrant => {
            release(client.reentrant_mutex(name).ok()?.acquire_timeout(ACQUIRE_LIMIT).await).await
        }
        LockKind::RwLock => release(client.rwlock(name).ok()?.write_timeout(ACQUIRE_LIMIT).await).await,
        LockKind::Semaphore => {
            let permits = lock.permits?;
            let semaphore = client.semaphore(name, permits).ok()?;
            release(semaphore.acquire_many_timeout(permits, ACQUIRE_LIMIT).await).await
        }
        LockKind::Election => {
            release(client.election(name).ok()?.campaign_timeout(ACQUIRE_LIMIT).await).await
        }
        LockKind::OncePer | LockKind::Latch | LockKind::Barrier => Ok(()),
    };
    acquired.err().map(|error| format!("`{name}` is free, and cannot be acquired: {error}"))
}

async fn release<G: leasehold::LockGuard + 'static>(
    acquired: Result<G, leasehold::error::AcquireError>,
) -> Result<(), leasehold::error::AcquireError> {
    // What is not released is removed with all else.
    let _ = Box::new(acquired?).release().await;
    Ok(())
}

fn without_expiry(Key { name, kind, .. }: Key) -> String {
    format!("the key `{name}` ({kind}) has no expiry")
}
