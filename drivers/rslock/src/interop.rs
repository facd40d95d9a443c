//! rslock beside Leasehold's Mutex.

use std::fmt::Write;
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use rslock::{Lock, LockError, LockManager};

use crate::{Answer, Error, version};

/// How long a section of `count` may wait for the lock.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// rslock's default; it pauses a random part of it between two tries.
const RETRY_DELAY: Duration = Duration::from_millis(200);

pub(crate) struct Interop {
    redis: MultiplexedConnection,
    manager: LockManager,
    lock: Option<Lock>,
}

impl Interop {
    pub(crate) async fn connect(url: String) -> Result<Self, Error> {
        let redis = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;
        Ok(Self { redis, manager: LockManager::new(vec![url]), lock: None })
    }

    async fn acquire_by(&mut self, name: &str, lease: Duration, tries: u32) -> Answer {
        let mut manager = self.manager.clone();
        manager.set_retry(tries, RETRY_DELAY);
        match manager.lock(name, lease).await {
            Ok(lock) => {
                self.lock = Some(lock);
                Ok("got".into())
            }
            // The library reports a fault the same way.
            Err(LockError::Unavailable) => Ok("taken".into()),
            Err(error) => Err(error.into()),
        }
    }

    async fn acquire(&mut self, name: &str, lease: Duration, wait: Duration) -> Answer {
        let tries = wait.as_millis() / (RETRY_DELAY / 2).as_millis() + 1;
        self.acquire_by(name, lease, u32::try_from(tries)?).await
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
        Ok("unreported".into())
    }

    async fn count(&mut self, name: &str, key: &str, times: u64, lease: Duration) -> Answer {
        let (mut seen, mut longest) = (String::new(), Duration::ZERO);
        for _ in 0..times {
            let called = Instant::now();
            if self.acquire(name, lease, WAIT_LIMIT).await? != "got" {
                return Err("timed out waiting for the lock".into());
            }
            longest = longest.max(called.elapsed());
            let number = self.redis.get::<_, Option<u64>>(key).await?.unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(1)).await;
            let () = self.redis.set(key, number + 1).await?;
            self.release().await?;
            write!(seen, " {number}")?;
            tokio::time::sleep(Duration::from_micros(rand::random_range(0..40_000))).await;
        }
        Ok(format!("counted {}{seen}", longest.as_millis()))
    }

    pub(crate) async fn answer(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["hello"] => Ok(format!("hello rslock {}", version()?)),
            ["try", name, lease] => self.acquire_by(name, ms(lease)?, 1).await,
            ["acquire", name, lease, wait] => self.acquire(name, ms(lease)?, ms(wait)?).await,
            ["extend", lease] => self.extend(ms(lease)?).await,
            ["release"] => self.release().await,
            ["count", name, key, times, lease] => self.count(name, key, times.parse()?, ms(lease)?).await,
            _ => Err("there is no such request".into()),
        }
    }
}

fn ms(word: &str) -> Result<Duration, Error> {
    Ok(Duration::from_millis(word.parse()?))
}
