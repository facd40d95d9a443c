//! Leader election: of three instances one leads and hands out numbers. When it resigns, or dies, the next
//! one leads; an observer follows along.
//!
//!     cargo run --example leader
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example leader

use leasehold::{Client, FencingToken};
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The resource that leaders write to. It rejects every leader older than the newest it has seen.
#[derive(Default)]
struct Journal {
    newest: Option<FencingToken>,
    numbers: Vec<u32>,
}

impl Journal {
    fn append(&mut self, fence: FencingToken, number: u32) -> bool {
        if self.newest > Some(fence) {
            return false;
        }
        self.newest = Some(fence);
        self.numbers.push(number);
        true
    }
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:example-leader".into());
    // A unique name, so that the example can be run again at once.
    let name = format!("example/leader/{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros());
    let journal = Arc::new(Mutex::new(Journal::default()));

    let observer = Client::builder(&store).label("the observer").connect().await?;
    let mut leaders = observer.election(name.as_str())?.observe();
    if leaders.next().await?.is_none() {
        println!("no leader yet");
    }

    let mut instances = tokio::task::JoinSet::new();
    for n in 1..=3 {
        let client = Client::builder(&store).label(format!("instance {n}")).connect().await?;
        instances.spawn(take_part(client, name.clone(), journal.clone()));
    }
    let mut led = 0;
    while led < 3 {
        match leaders.next().await? {
            Some(leader) => {
                led += 1;
                println!("{} leads", leader.label);
            }
            None => println!("no leader"),
        }
    }
    let mut tokens = Vec::new();
    for token in instances.join_all().await {
        tokens.push(token?);
    }

    // An old leader that was suspended, and has not noticed its loss yet, is rejected by its token.
    tokens.sort_unstable();
    let mut journal = journal.lock().map_err(|_| "an instance panicked")?;
    let late = journal.append(tokens[0], 99);
    println!(
        "numbers {:?}; the late one was {}",
        journal.numbers,
        if late { "accepted" } else { "rejected" }
    );
    Ok(())
}

/// Leads once, and writes two numbers.
async fn take_part(client: Client, name: String, journal: Arc<Mutex<Journal>>) -> Result<FencingToken> {
    let leadership = client.election(name)?.campaign().await?;
    let fence = leadership.fencing_token();
    for _ in 0..2 {
        // Still the leader? A local check; and the journal verifies the token.
        leadership.check()?;
        let mut journal = journal.lock().map_err(|_| "an instance panicked")?;
        let next = journal.numbers.last().map_or(1, |last| last + 1);
        if !journal.append(fence, next) {
            return Err("another instance leads".into());
        }
    }
    // Long enough for the observer to notice.
    tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    leadership.resign().await?;
    Ok(fence)
}
