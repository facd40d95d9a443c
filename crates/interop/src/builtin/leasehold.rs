//! A client of Leasehold's in a process of its own, with as much of the protocol as counting together with others needs.

use std::fmt::Write;
use std::io::stdin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold::{Client, Guard, Mutex, ReentrantGuard, ReentrantMutex};
use leasehold_testkit::RespConnection;

use super::port_of;

/// Every so many releases leave the lock free, for clients of libraries that do not queue.
const YIELD_EVERY: u32 = 4;
/// How long a section may wait for the lock.
const WAIT_LIMIT: Duration = Duration::from_secs(90);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The server.
    url: String,
    kind: Kind,
    /// The longest pause after each section.
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
    /// Acquired twice.
    Reentrant(ReentrantGuard, ReentrantGuard),
}

impl Lock {
    fn new(client: &Client, kind: Kind, name: &str, lease: Duration) -> Result<Self> {
        Ok(match kind {
            Kind::Mutex => Self::Mutex(client.mutex(name)?.lease(lease).yield_every(YIELD_EVERY)),
            Kind::Reentrant => {
                let lock = client.reentrant_mutex(name)?.owned_by(&client.new_owner());
                Self::Reentrant(lock.lease(lease).yield_every(YIELD_EVERY))
            }
        })
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Self::Mutex(lock) => Held::Mutex(lock.acquire_timeout(WAIT_LIMIT).await?),
            Self::Reentrant(lock) => {
                let outer = lock.acquire_timeout(WAIT_LIMIT).await?;
                Held::Reentrant(outer, lock.acquire_timeout(WAIT_LIMIT).await?)
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

async fn count(options: &Options, client: &Client, words: &[&str]) -> Result<String> {
    let &[name, key, times, lease_ms] = words else { bail!("`count` has four arguments") };
    let lock = Lock::new(client, options.kind, name, Duration::from_millis(lease_ms.parse()?))?;
    let mut redis = RespConnection::open(port_of(&options.url)?, Duration::from_secs(5))?;
    let (mut numbers, mut longest) = (String::new(), Duration::ZERO);
    for _ in 0..times.parse()? {
        let called = Instant::now();
        let held = lock.acquire().await?;
        longest = longest.max(called.elapsed());
        let number = redis.call(&["GET", key]).context("to read the number")?.ok()?.integer().unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(1)).await;
        redis.call(&["SET", key, &(number + 1).to_string()]).context("to write the number")?.ok()?;
        held.release().await?;
        write!(numbers, " {number}")?;
        tokio::time::sleep(Duration::from_micros(rand::random_range(0..=options.pause_ms * 1_000))).await;
    }
    Ok(format!("counted {}{numbers}", longest.as_millis()))
}

/// Answers requests until the end of the input.
pub(super) fn serve(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::connect(&options.url))?;
    for line in stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["hello"] => Ok("hello leasehold 0".to_owned()),
            ["count", ref words @ ..] => runtime.block_on(count(options, &client, words)),
            _ => Ok("error there is no such request".to_owned()),
        };
        match answer {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error:#}"),
        }
    }
    Ok(())
}
