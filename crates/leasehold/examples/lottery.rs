//! A lottery: of all instances that try, one draws the winner. The others continue at once, also one that
//! starts after the draw is over.
//!
//! If the lock were released after the draw, a late instance would draw again. So each occasion has its own
//! name, and the winner keeps the lock for as long as any instance could still try: as a detached hold that
//! is never released.
//!
//!     cargo run --example lottery
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example lottery

use leasehold::{Attempt, Client};
use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// For how long after the draw no instance draws again. It should exceed the time by which an instance can be
/// late.
const OCCASION: Duration = Duration::from_secs(24 * 3600);

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    // Usually the date. Here it is the current time, so that the example can be run again.
    let occasion = format!("example/lottery/{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());

    // Five instances of the service wake up at the same time.
    let mut instances = tokio::task::JoinSet::new();
    for n in 1..=5 {
        let client = Client::builder(&store).label(format!("instance {n}")).connect().await?;
        instances.spawn(take_part(client, occasion.clone(), n));
    }
    let mut draws = 0;
    for drew in instances.join_all().await {
        draws += u32::from(drew?);
    }

    // One more starts long after the draw.
    let late = Client::builder(&store).label("instance 6").connect().await?;
    draws += u32::from(take_part(late, occasion, 6).await?);
    println!("{draws} drew");
    Ok(())
}

/// Draws if no instance has drawn yet; returns whether it did.
async fn take_part(client: Client, occasion: String, instance: u32) -> Result<bool> {
    let draw = client.mutex(occasion)?.lease(OCCASION);
    match draw.try_acquire_detached().await? {
        Attempt::Granted(hold) => {
            if let Err(error) = draw_the_winner(instance).await {
                // The draw failed: another instance may try.
                hold.release(&client).await?;
                return Err(error);
            }
            // The hold is left to its lease: dropping it releases nothing.
            Ok(true)
        }
        Attempt::Taken(contention) => {
            println!("instance {instance} continues: {contention}");
            Ok(false)
        }
    }
}

async fn draw_the_winner(instance: u32) -> Result<()> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    println!("instance {instance} draws number {}", 1 + rand::random::<u32>() % 49);
    Ok(())
}
