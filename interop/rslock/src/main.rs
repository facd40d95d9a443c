//! Speaks the protocol of `../README.md` for rslock.

use std::error::Error;
use std::fmt::Write;
use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rslock::{Lock, LockError, LockManager};

type Answer = Result<String, Box<dyn Error>>;

/// How long a section of `count` may wait for the lock.
const PATIENCE: Duration = Duration::from_secs(60);
/// rslock's own: it leaves a random part of it between two tries.
const RETRY_DELAY: Duration = Duration::from_millis(200);

struct Driver {
    redis: MultiplexedConnection,
    manager: LockManager,
    lock: Option<Lock>,
}

impl Driver {
    fn hello() -> Answer {
        let lock_file = include_str!("../Cargo.lock");
        let package =
            lock_file.split_once("name = \"rslock\"\nversion = \"").ok_or("it is in the lock file")?.1;
        Ok(format!("hello rslock {}", package.split('"').next().unwrap_or_default()))
    }

    async fn take(&mut self, name: &str, lease: Duration, tries: u32) -> Answer {
        let mut manager = self.manager.clone();
        manager.set_retry(tries, RETRY_DELAY);
        match manager.lock(name, lease).await {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok("got".into())
            }
            // It says so of a fault, too.
            Err(LockError::Unavailable) => Ok("taken".into()),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&mut self, name: &str, lease: Duration, wait: Duration) -> Answer {
        let tries = wait.as_millis() / (RETRY_DELAY / 2).as_millis() + 1;
        self.take(name, lease, u32::try_from(tries)?).await
    }

    async fn extend(&mut self, lease: Duration) -> Answer {
        let lock = self.lock.as_ref().ok_or("nothing is held")?;
        match self.manager.extend(lock, lease).await {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok("ok".into())
            }
            Err(LockError::Unavailable) => Ok("lost".into()),
            Err(error) => Err(error.into()),
        }
    }

    async fn release(&mut self) -> Answer {
        self.lock.take().ok_or("nothing is held")?.release().await;
        Ok("unsaid".into())
    }

    async fn count(&mut self, name: &str, key: &str, times: u64, lease: Duration) -> Answer {
        let (mut seen, mut longest) = (String::new(), Duration::ZERO);
        for _ in 0..times {
            let asked = Instant::now();
            if self.acquire(name, lease, PATIENCE).await? != "got" {
                return Err("waited in vain".into());
            }
            longest = longest.max(asked.elapsed());
            let number = self.redis.get::<_, Option<u64>>(key).await?.unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(1)).await;
            let () = self.redis.set(key, number + 1).await?;
            self.release().await?;
            write!(seen, " {number}")?;
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..40_000))).await;
        }
        Ok(format!("counted {}{seen}", longest.as_millis()))
    }

    async fn answer(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["hello"] => Self::hello(),
            ["try", name, lease] => self.take(name, ms(lease)?, 1).await,
            ["acquire", name, lease, wait] => self.acquire(name, ms(lease)?, ms(wait)?).await,
            ["extend", lease] => self.extend(ms(lease)?).await,
            ["release"] => self.release().await,
            ["count", name, key, times, lease] => self.count(name, key, times.parse()?, ms(lease)?).await,
            _ => Err("there is no such request".into()),
        }
    }
}

fn ms(word: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_millis(word.parse()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("which server?")?;
    let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
    let mut driver = Driver { redis, manager: LockManager::new(vec![url]), lock: None };
    for line in io::stdin().lock().lines() {
        match driver.answer(&line?).await {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error}"),
        }
    }
    Ok(())
}
