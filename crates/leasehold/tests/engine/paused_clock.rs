//! A client of the machine's clock while tokio's is paused: refused, since its timers would run by another clock.

use crate::environment::{client_in_paused_time, memory};
use leasehold::Client;
use leasehold::error::{AcquireError, ConnectError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const HOUR: Duration = Duration::from_secs(3600);

/// It would connect, and `timeout(guard.lost())` would end without a loss whatever its limit.
#[tokio::test(start_paused = true)]
async fn connecting_is_refused() {
    let url = || Client::builder("memory:");
    for connected in [
        Client::connect("memory:").await,
        url().connect_lazy().await,
        url().connect_within(HOUR).await,
        Client::with_store(memory()).connect().await,
    ] {
        let error = connected.expect_err("a refusal");
        assert!(matches!(error, ConnectError::PausedClock), "{error:?}");
        assert!(
            !error.is_transient() && error.to_string().contains("leasehold::testing::TestStore"),
            "{error}"
        );
    }
    assert!(matches!(url().diagnose().await, Err(ConnectError::PausedClock)));
}

/// It would wait for hours or days of the paused clock until three seconds have passed.
#[tokio::test]
async fn acquiring_is_refused_once_the_clock_is_paused() {
    let client = Client::connect("memory:").await.unwrap();
    let taken = client.mutex("a").unwrap();
    let held = taken.acquire().await.unwrap();
    tokio::time::pause();
    let start = Instant::now();
    let free = client.mutex("b").unwrap();
    let both = client.multi_mutex(["a", "c"]).unwrap();
    for refused in [
        taken.acquire_timeout(Duration::from_secs(3)).await.map(drop),
        taken.acquire().await.map(drop),
        taken.try_acquire().await.map(drop),
        free.try_acquire().await.map(drop),
        both.acquire_timeout(Duration::from_secs(3)).await.map(drop),
        both.try_acquire().await.map(drop),
        client.semaphore("d", 2).unwrap().acquire().await.map(drop),
        free.clone().lease(HOUR).acquire_detached().await.map(drop),
    ] {
        let error = refused.expect_err("a refusal");
        assert!(matches!(error, AcquireError::PausedClock), "{error:?}");
        assert!(error.to_string().contains("leasehold::testing::TestStore"), "{error}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "the clock was not moved");

    tokio::time::resume();
    held.release().await.unwrap();
    taken.acquire_timeout(HOUR).await.unwrap().release().await.unwrap();
}

/// A client whose environment follows the paused clock is not refused.
#[tokio::test(start_paused = true)]
async fn a_client_that_follows_the_paused_clock_connects() {
    let client = client_in_paused_time(memory()).connect().await.unwrap();
    let held = client.mutex("a").unwrap().lease(HOUR).acquire().await.unwrap();
    timeout(2 * HOUR, held.lost()).await.expect("a loss");
}
