//! Ten uploads, three at a time, across any number of processes; a large one counts for two. Then all wait
//! for one another.
//!
//!     cargo run --example n_at_once
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example n_at_once

use leasehold::{Client, Semaphore};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const UPLOADS: u32 = 10;
const AT_ONCE: u32 = 3;
const MAX_WAIT: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    // A latch is for one occasion, so its name must be unique.
    let occasion = format!("example/n_at_once/{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());

    let (line, mut uploads) = (Arc::new(Line::default()), tokio::task::JoinSet::new());
    for n in 1..=UPLOADS {
        // Each as if it were a process of its own.
        let client = Client::connect(&store).await?;
        let (permits, done) =
            (client.semaphore("example/n_at_once/line", AT_ONCE)?, client.latch(&*occasion, UPLOADS)?);
        let line = line.clone();
        uploads.spawn(async move {
            // Every fifth is a large one.
            upload(&permits.max_wait(MAX_WAIT), if n % 5 == 0 { 2 } else { 1 }, &line).await?;
            done.arrive().await?;
            done.wait_timeout(MAX_WAIT).await?;
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        });
    }
    for upload in uploads.join_all().await {
        upload?;
    }
    println!("all {UPLOADS} are done, and each knows that all are");
    let most = line.most.load(SeqCst);
    println!("the line carried {most} at its busiest; at most {AT_ONCE} at a time: {}", most <= AT_ONCE);
    Ok(())
}

/// A resource that must not be used by too many at once.
#[derive(Default)]
struct Line {
    used: AtomicU32,
    most: AtomicU32,
}

async fn upload(permits: &Semaphore, weight: u32, line: &Line) -> Result<()> {
    let permit = permits.acquire_many(weight).await?;
    line.most.fetch_max(line.used.fetch_add(weight, SeqCst) + weight, SeqCst);
    tokio::time::sleep(Duration::from_millis(5)).await;
    permit.check()?; // still held? before the step that matters
    line.used.fetch_sub(weight, SeqCst);
    Ok(permit.release().await?)
}
