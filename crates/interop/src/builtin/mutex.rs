//! A driver that locks as a Mutex does, `SET key token NX PX`, with one fault or with none.

use std::fmt::Write;
use std::io::stdin;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use leasehold_testkit::{RespConnection, Value};

use super::{choose, port_of};

/// The pause between two tries of a waiter.
const RETRY_DELAY: Duration = Duration::from_millis(50);

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The server.
    url: String,
    #[arg(value_enum)]
    fault: Fault,
}

/// What is wrong with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Nothing.
    None,
    /// Takes a refusal for the lock.
    IgnoresTaken,
    /// Sets the key whether it exists or not.
    OverwritesKey,
    /// Locks another key.
    OtherKey,
    /// Releases without comparing.
    DeletesWithoutComparing,
    /// Extends without comparing.
    ExtendsWithoutComparing,
    /// Reports a release, and sends none.
    ReleasesNothing,
    /// Gives up at the first refusal instead of waiting.
    DoesNotWait,
}

struct Driver {
    redis: RespConnection,
    fault: Fault,
    key: String,
    token: String,
}

impl Driver {
    fn try_acquire(&mut self, name: &str, lease_ms: &str) -> Result<bool> {
        let key = if self.fault == Fault::OtherKey { format!("another {name}") } else { name.to_owned() };
        let token = format!("{:032x}", rand::random::<u128>());
        let mut set = vec!["SET", &key, &token];
        if self.fault != Fault::OverwritesKey {
            set.push("NX");
        }
        if lease_ms != "0" {
            set.extend(["PX", lease_ms]);
        }
        let acquired = !self.redis.call(&set)?.ok()?.is_nil() || self.fault == Fault::IgnoresTaken;
        if acquired {
            (self.key, self.token) = (key, token);
        }
        Ok(acquired)
    }

    fn acquire(&mut self, name: &str, lease_ms: &str, wait: Duration) -> Result<bool> {
        let start = Instant::now();
        loop {
            let acquired = self.try_acquire(name, lease_ms)?;
            if acquired || start.elapsed() >= wait || self.fault == Fault::DoesNotWait {
                return Ok(acquired);
            }
            sleep(RETRY_DELAY);
        }
    }

    fn release(&mut self) -> Result<bool> {
        let reply = match self.fault {
            Fault::ReleasesNothing => return Ok(true),
            Fault::DeletesWithoutComparing => self.redis.call(&["DEL", &self.key])?,
            _ => self.redis.call(&["EVAL", RELEASE, "1", &self.key, &self.token])?,
        };
        Ok(reply.ok()? == Value::Integer(1))
    }

    fn extend(&mut self, lease_ms: &str) -> Result<bool> {
        let reply = match self.fault {
            Fault::ExtendsWithoutComparing => self.redis.call(&["PEXPIRE", &self.key, lease_ms])?,
            _ => self.redis.call(&["EVAL", EXTEND, "1", &self.key, &self.token, lease_ms])?,
        };
        Ok(reply.ok()? == Value::Integer(1))
    }

    fn count(&mut self, name: &str, key: &str, times: u32, lease_ms: &str) -> Result<String> {
        let mut numbers = String::new();
        for _ in 0..times {
            while !self.acquire(name, lease_ms, Duration::from_secs(60))? {}
            let number = self.redis.call(&["GET", key])?.ok()?.integer().unwrap_or(0);
            sleep(Duration::from_millis(1));
            self.redis.call(&["SET", key, &(number + 1).to_string()])?.ok()?;
            // A lost lock is no error here: the case must find the fault.
            self.release()?;
            write!(numbers, " {number}")?;
            sleep(Duration::from_micros(rand::random_range(0..40_000)));
        }
        Ok(format!("counted 0{numbers}"))
    }

    fn answer(&mut self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["hello"] => "hello mutex 0".to_owned(),
            ["try", name, lease_ms] => choose(self.try_acquire(name, lease_ms)?, "got", "taken"),
            ["acquire", name, lease_ms, wait_ms] => {
                choose(self.acquire(name, lease_ms, Duration::from_millis(wait_ms.parse()?))?, "got", "taken")
            }
            ["extend", lease_ms] => choose(self.extend(lease_ms)?, "ok", "lost"),
            ["release"] => choose(self.release()?, "ok", "lost"),
            ["count", name, key, times, lease_ms] => self.count(name, key, times.parse()?, lease_ms)?,
            _ => bail!("there is no such request"),
        })
    }
}

/// Answers requests until the end of the input.
pub(super) fn serve(options: &Options) -> Result<()> {
    let redis = RespConnection::open(port_of(&options.url)?, Duration::from_secs(5))?;
    let mut driver = Driver { redis, fault: options.fault, key: String::new(), token: String::new() };
    for line in stdin().lines() {
        match driver.answer(&line?) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error:#}"),
        }
    }
    Ok(())
}
