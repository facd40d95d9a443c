//! What operators see of several holds of one session, on the memory store.

use crate::cases::admin::{dying_with, labelled};
use crate::cases::store::TestStore;
use leasehold::core::{Lock, LockMode};
use leasehold::inspect::Ended;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// Once, the first release removed the other holds from the list, and from the monitor's view.
#[tokio::test]
async fn a_session_that_releases_one_of_several_holds_is_still_listed() {
    let store = TestStore::memory();
    let (client, operator) = (labelled(&store, "billing").await, store.client_of_leases("ops").await);
    let uploads = client.semaphore("uploads", 3).unwrap();
    let (one, other) = (uploads.acquire().await.unwrap(), uploads.acquire().await.unwrap());
    let listed = async |name: &str| {
        let locks = operator.locks().await.unwrap();
        locks.iter().any(|lock| lock.name.as_str() == name)
    };
    let soon_listed = async |name: &str| {
        timeout(10 * S, async {
            while !listed(name).await {
                sleep(5 * MS).await;
            }
        })
        .await
        .expect("it is reported");
    };
    one.extend().await.unwrap();
    other.extend().await.unwrap();
    soon_listed("uploads").await;
    one.release().await.unwrap();
    // A lock that is acquired later is reported by that heartbeat, or by a later one.
    let later = client.mutex("later").unwrap().acquire().await.unwrap();
    later.extend().await.unwrap();
    soon_listed("later").await;
    assert!(listed("uploads").await);
    let sessions = operator.sessions().await.unwrap();
    assert!(sessions[0].locks.iter().any(|lock| lock.name.as_str() == "uploads"), "{sessions:?}");
    other.release().await.unwrap();
}

/// On a server, scripts do the same; with SQLite a session is dead once its process has ended.
#[tokio::test]
async fn a_monitor_frees_all_shared_holds_of_a_dead_session() {
    let store = TestStore::memory();
    let (live, operator) = (labelled(&store, "alive").await, store.client_of_leases("ops").await);
    let kept = live.semaphore("uploads", 4).unwrap().acquire().await.unwrap();
    let two = LockMode::Permits { count: 1, total: 4 };
    let session = dying_with(&store, Lock::semaphore("uploads".parse().unwrap()), &[two, two]).await;
    let semaphore = operator.semaphore("uploads", 4).unwrap();
    let mut monitor = operator.monitor();
    let mut evicted = Vec::new();
    timeout(10 * S, async {
        while semaphore.inspect().await.unwrap().taken() > 1 {
            let round = monitor.run_once().await;
            assert!(round.fault.is_none(), "{round:?}");
            evicted.extend(round.evicted);
            sleep(20 * MS).await;
        }
    })
    .await
    .expect("long before the lease ends");
    let [eviction] = evicted.as_slice() else { panic!("one: {evicted:?}") };
    assert_eq!((eviction.name.as_str(), eviction.session), ("uploads", session));
    let audit = semaphore.inspect_full().await.unwrap().audit;
    assert!(audit.len() == 2 && audit.iter().all(|entry| entry.ended == Ended::Evicted), "{audit:?}");
    kept.release().await.expect("its session lives");
}
