//! The tests that `docs/how-to/test-your-code.md` shows, of an application that it shows, too.

use leasehold::error::LostHold;
use leasehold::{Client, Error};
use std::time::Duration;

/// Sends the reports of the night, in one process at a time.
async fn send_reports(client: &Client, sent: &mut Vec<u32>) -> Result<(), Error> {
    let nightly = client.mutex("nightly")?;
    let guard = nightly.acquire_timeout(Duration::from_secs(60)).await?;
    for report in 1..=3 {
        guard.check()?; // a lost lock ends the work
        tokio::time::sleep(Duration::from_secs(10)).await; // takes its time
        sent.push(report);
    }
    Ok(guard.release().await?)
}

/// Answers a request with a status of HTTP.
fn status(error: &Error) -> u16 {
    match error {
        _ if error.is_contended() => 409,
        _ if error.is_lost() => 500,
        _ if error.is_transient() => 503,
        _ => 400,
    }
}

/// Ends as soon as the lock is lost.
async fn watch(guard: &leasehold::Guard) -> LostHold {
    guard.lost().await
}

mod overlap {
    use super::*;
    use leasehold::testing::TestStore;

    #[tokio::test(start_paused = true)]
    async fn two_processes_do_not_overlap() {
        let store = TestStore::new();
        let (one, two) = (store.client().connect().await.unwrap(), store.client().connect().await.unwrap());
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let (first_ended, second_ended) =
            tokio::join!(send_reports(&one, &mut first), send_reports(&two, &mut second));

        assert!(first_ended.is_ok() && second_ended.is_ok());
        assert_eq!(store.clock().elapsed(), Duration::from_secs(60)); // one after the other: 30 s each
    }
}

mod limits {
    use super::*;
    use leasehold::testing::TestStore;

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_a_minute() {
        let store = TestStore::new();
        let (ours, other) =
            (store.client().connect().await.unwrap(), store.client().connect().await.unwrap());
        let _held = other.mutex("nightly").unwrap().acquire().await.unwrap();

        let error = send_reports(&ours, &mut Vec::new()).await.unwrap_err();

        assert!(error.is_contended());
        assert_eq!(store.clock().elapsed(), Duration::from_secs(60)); // and next to none in reality
    }
}

mod loss {
    use super::*;
    use leasehold::testing::{Data, TestStore};

    #[tokio::test(start_paused = true)]
    async fn stops_when_the_lock_is_lost() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        let mut sent = Vec::new();
        let working = send_reports(&client, &mut sent);
        let accident = async {
            store.clock().advance(Duration::from_secs(15)).await;
            store.lose_lock("nightly"); // or store.restart(Data::Lost)
        };

        let (ended, ()) = tokio::join!(working, accident);

        assert!(ended.unwrap_err().is_lost());
        assert_eq!(sent, [1, 2]); // the second one was on its way
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_stopped_has_lost_its_lock() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        let guard = client.mutex("nightly").unwrap().acquire().await.unwrap();

        store.clock().suspend_clients(Duration::from_secs(11)); // its session lives for 10 s

        assert!(guard.check().is_err());
        println!("{}", watch(&guard).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_persistence_forgets() {
        let store = TestStore::new();
        let guard =
            store.client().connect().await.unwrap().mutex("nightly").unwrap().acquire().await.unwrap();
        store.restart(Data::Lost);
        watch(&guard).await;
    }
}

mod outage {
    use super::*;
    use leasehold::error::ReleaseError;
    use leasehold::testing::TestStore;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_down_is_an_error_that_may_pass() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        store.down();
        assert_eq!(status(&send_reports(&client, &mut Vec::new()).await.unwrap_err()), 503);

        store.up();
        send_reports(&client, &mut Vec::new()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_in_the_middle_of_the_work_is_survived() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        let mut sent = Vec::new();
        let outage = async {
            store.clock().advance(Duration::from_secs(15)).await;
            store.down();
            store.clock().advance(Duration::from_secs(5)).await; // shorter than the session
            store.up();
        };

        let (ended, ()) = tokio::join!(send_reports(&client, &mut sent), outage);

        ended.unwrap();
        assert_eq!(sent, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_without_a_reply_is_neither_yes_nor_no() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        let guard = client.mutex("nightly").unwrap().acquire().await.unwrap();
        store.lose_next_reply();
        assert!(matches!(guard.release().await, Err(ReleaseError::Unknown { .. })));
    }
}

mod mapping {
    use super::*;
    use leasehold::error::AcquireError;
    use leasehold::inspect::Contention;
    use leasehold::store::{Fault, FaultKind, Phase};
    use leasehold::{FencingToken, LockName, LostReason};

    #[test]
    fn errors_become_statuses() {
        let lock = LockName::new("nightly").unwrap();
        let lost = LostHold::new(lock.clone(), FencingToken::new(7), LostReason::Expired);
        let down = AcquireError::Store(Fault::new(FaultKind::Unreachable, Phase::Connect, "locks:6379"));
        let contention = Box::new(Contention::new(None, Some(3)));
        let taken = AcquireError::TimedOut { lock, waited: Duration::from_secs(60), contention };

        assert_eq!(status(&lost.into()), 500);
        assert_eq!(status(&down.into()), 503);
        assert_eq!(status(&taken.into()), 409);
        assert_eq!(status(&AcquireError::Closed.into()), 400);
    }
}

mod threads {
    use leasehold::testing::{TestClock, TestStore};
    use std::time::Duration;

    #[test]
    fn a_lease_ends_in_no_time() {
        let clock = TestClock::manual();
        let store = TestStore::with_clock(clock.clone());
        let client = store.client().connect_blocking().unwrap();
        let guard = client.mutex("nightly").unwrap().lease(Duration::from_secs(60)).acquire().unwrap();

        clock.advance_blocking(Duration::from_secs(60));

        assert!(guard.check().is_err());
    }
}

mod requests {
    use super::*;
    use leasehold::testing::TestStore;

    #[tokio::test(start_paused = true)]
    async fn one_acquire_is_sent_however_long_the_work_takes() {
        let store = TestStore::new();
        let client = store.client().connect().await.unwrap();
        send_reports(&client, &mut Vec::new()).await.unwrap();
        assert_eq!(store.requests().acquires, 1);
        assert!(!store.is_held("nightly"));
    }
}
