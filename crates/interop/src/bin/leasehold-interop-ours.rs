//! One of Leasehold's clients in a process of its own, with as much of the protocol of `drivers/README.md` as it takes to
//! count together with others.

use std::fmt::Write;
use std::io::stdin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use leasehold::{Client, Guard, Mutex, ReentrantGuard, ReentrantMutex};
use leasehold_testkit::RespConnection;

/// After how many of our releases the lock is left free once, for the clients that do not queue.
const FREE_EVERY: u32 = 4;
/// How long a section may wait for the lock.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Parser)]
struct Args {
    /// The server.
    url: String,
    kind: Kind,
    /// How long it pauses at most after each section.
    pause_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Mutex,
    Reentrant,
}

enum Lock {
    Mutex(Mutex),
    Reentrant(ReentrantMutex),
}

enum Held {
    Mutex(Guard),
    /// Entered twice.
    Reentrant(ReentrantGuard, ReentrantGuard),
}

impl Lock {
    fn of(client: &Client, kind: Kind, name: &str, lease: Duration) -> Result<Self> {
        Ok(match kind {
            Kind::Mutex => Self::Mutex(client.mutex(name)?.lease(lease).yield_every(FREE_EVERY)),
            Kind::Reentrant => {
                let lock = client.reentrant_mutex(name)?.owned_by(&client.new_owner());
                Self::Reentrant(lock.lease(lease).yield_every(FREE_EVERY))
            }
        })
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Self::Mutex(lock) => Held::Mutex(lock.acquire_timeout(PATIENCE).await?),
            Self::Reentrant(lock) => {
                let outer = lock.acquire_timeout(PATIENCE).await?;
                Held::Reentrant(outer, lock.acquire_timeout(PATIENCE).await?)
            }
        })
    }
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Self::Mutex(guard) => guard.release().await?,
            Self::Reentrant(outer, inner) => {
                inner.release().await?;
                outer.release().await?;
            }
        }
        Ok(())
    }
}

async fn count(args: &Args, client: &Client, words: &[&str]) -> Result<String> {
    let &[name, key, times, lease_ms] = words else { bail!("`count` has four arguments") };
    let lock = Lock::of(client, args.kind, name, Duration::from_millis(lease_ms.parse()?))?;
    let port = args.url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
    let mut redis = RespConnection::open(port.context("the URL has no port")?, Duration::from_secs(5))?;
    let (mut seen, mut longest) = (String::new(), Duration::ZERO);
    for _ in 0..times.parse()? {
        let asked = Instant::now();
        let held = lock.acquire().await?;
        longest = longest.max(asked.elapsed());
        let number = redis.call(&["GET", key]).context("to read the number")?.ok()?.integer().unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(1)).await;
        redis.call(&["SET", key, &(number + 1).to_string()]).context("to write the number")?.ok()?;
        held.release().await?;
        write!(seen, " {number}")?;
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..=args.pause_ms * 1_000))).await;
    }
    Ok(format!("counted {}{seen}", longest.as_millis()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let client = Client::connect(&args.url).await?;
    for line in stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["hello"] => Ok("hello leasehold 0".to_owned()),
            ["count", ref words @ ..] => count(&args, &client, words).await,
            _ => Ok("error there is no such request".to_owned()),
        };
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error:#}"),
        }
    }
    Ok(())
}
