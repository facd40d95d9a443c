//! A job that every instance starts each night, and one of them runs.

use leasehold::{Client, Error};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static SENT: AtomicU32 = AtomicU32::new(0);

async fn send_reports() -> u32 {
    tokio::time::sleep(Duration::from_millis(1)).await;
    SENT.fetch_add(1, Ordering::SeqCst) + 1
}

/// The main function of an instance. Returns how many reports it sent.
async fn nightly(url: &str) -> Result<Option<u32>, Error> {
    let client = Client::connect(url).await?;
    let job = client.once_per("nightly-reports", Duration::from_secs(20 * 3600))?;
    Ok(job.run(|_period| send_reports()).await?)
}

#[tokio::test]
async fn one_instance_of_three_runs_the_job() {
    let url = "memory:adopt-cron";
    // The store lives as long as a client of it.
    let _operator = Client::connect(url).await.unwrap();
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(nightly(url).await.unwrap());
    }
    assert_eq!(sent, [Some(1), None, None]);
}
