//! Workers in any number of processes that call a service at most three times in any 200 ms.
//!
//! A semaphore limits how many calls run at once. If each permit is kept until 200 ms after the start of its call,
//! it limits the rate too: the next call with that permit starts later than that.
//!
//! What this is not: it saves up nothing for bursts, and it gives no average, only a bound. Each call costs two
//! requests at the store, so it is for tens of calls a second, not for thousands. A worker that is shut down, or
//! killed and found dead, gives its permits back early: the workers that follow can exceed the limit once. If
//! exceeding it costs money, the service itself must refuse.
//!
//!     cargo run --example rate_limited_workers
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example rate_limited_workers

use leasehold::{Attempt, Client};
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const CALLS: u32 = 3;
const PER: Duration = Duration::from_millis(200);
const WORKERS: u32 = 4;
const CALLS_EACH: u32 = 3;
const MAX_WAIT: Duration = Duration::from_secs(30);

/// When each call started. Stands for a service that is paid by the call.
type Service = Arc<Mutex<Vec<Instant>>>;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    // A unique name, so that the example can be run again at once.
    let run = format!("example/rate/{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());
    let (service, mut workers) = (Service::default(), tokio::task::JoinSet::new());
    for n in 1..=WORKERS {
        // Each as if it were a process of its own.
        let client = Client::builder(&store).label(format!("worker {n}")).connect().await?;
        workers.spawn(work(client, run.clone(), service.clone()));
    }
    let mut reports = 0;
    for reported in workers.join_all().await {
        reports += u32::from(reported?);
    }

    let starts = service.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{} calls by {WORKERS} workers", starts.len());
    // The first and the last of one more than that.
    let in_time = |few: &[Instant]| few[few.len() - 1] - few[0] >= PER;
    println!("at most {CALLS} in any {PER:?}: {}", starts.windows(CALLS as usize + 1).all(in_time));
    println!("{reports} report");
    Ok(())
}

/// Makes its calls; returns whether it has reported.
async fn work(client: Client, run: String, service: Service) -> Result<bool> {
    let rate = client.semaphore(format!("{run}/service"), CALLS)?.max_wait(MAX_WAIT);
    for _ in 0..CALLS_EACH {
        let permit = rate.acquire().await?;
        // From here, and not from the grant, whose reply can be late.
        let start = Instant::now();
        call(&service, start).await;
        tokio::time::sleep_until(start + PER).await;
        permit.release().await?;
    }

    // Once in a period, whichever worker comes first: this is not what a semaphore is for.
    match client.once_per(format!("{run}/report"), Duration::from_secs(3600))?.try_start().await? {
        Attempt::Granted(turn) => {
            println!("the hourly report is sent");
            turn.finish().await?;
            Ok(true)
        }
        Attempt::Taken(_) => Ok(false),
    }
}

async fn call(service: &Service, start: Instant) {
    service.lock().unwrap_or_else(PoisonError::into_inner).push(start);
    tokio::time::sleep(Duration::from_millis(5)).await;
}
