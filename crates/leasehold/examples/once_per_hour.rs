//! Once per hour: a timer starts the same job on every machine, one of them runs it, and the others continue
//! at once; also one whose clock is late, when the job is long done.
//!
//!     cargo run --example once_per_hour
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example once_per_hour

use leasehold::{Attempt, Client};
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A little less than the hour: the next timer may come a moment early.
const PERIOD: Duration = Duration::from_secs(55 * 60);
/// The job never runs twice at once as long as it takes no longer than this; if its machine dies, it does not
/// run again for that long.
const AT_MOST: Duration = Duration::from_secs(3 * 3600);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:example-once".into());
    // A unique name, so that the example can be run again within the hour.
    let name = format!("example/digest/{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());

    let mut machines = tokio::task::JoinSet::new();
    for n in 1..=5 {
        let client = Client::builder(&store).label(format!("machine {n}")).connect().await?;
        machines.spawn(on_the_hour(client, name.clone()));
    }
    let mut sent = 0;
    for done in machines.join_all().await {
        sent += u32::from(done?);
    }

    let late = Client::builder(&store).label("machine 6").connect().await?;
    sent += u32::from(on_the_hour(late.clone(), name.clone()).await?);
    println!("sent {sent} times");

    let status = late.once_per(name, PERIOD)?.inspect().await?;
    if let (true, Some(left)) = (status.in_cooldown, status.remaining) {
        println!("the cooldown lasts {} minutes more", left.as_secs().div_ceil(60));
    }
    Ok(())
}

/// The job of the timer; returns whether this machine ran it.
async fn on_the_hour(client: Client, name: String) -> Result<bool> {
    let hourly = client.once_per(name, PERIOD)?.max_duration(AT_MOST);
    match hourly.try_start().await? {
        Attempt::Granted(turn) => {
            if let Err(error) = send_the_digest().await {
                // The work failed: another machine may try.
                turn.fail().await?;
                return Err(error);
            }
            turn.finish().await?;
            Ok(true)
        }
        Attempt::Taken(contention) => {
            println!("not granted: {contention}");
            Ok(false)
        }
    }
}

async fn send_the_digest() -> Result<()> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    println!("the digest is sent");
    Ok(())
}
