//! A built-in driver with the protocol of `drivers/README.md`, with one fault in it or with none.
//!
//! It shows that the cases can fail: each fault is found by one of them (`tests/mutants.rs`).

use std::fmt::Write;
use std::io::stdin;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use leasehold_testkit::{RespConnection, Value};

/// How often it tries while it waits.
const TRY_EVERY: Duration = Duration::from_millis(50);

const RELEASE: &str =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('DEL', KEYS[1])";
const EXTEND: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

#[derive(Parser)]
struct Args {
    /// The server.
    url: String,
    #[arg(value_enum)]
    fault: Fault,
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Nothing.
    None,
    /// Takes a refusal for the lock.
    IgnoresTaken,
    /// Sets the key whether it is there or not.
    Barges,
    /// Locks another key.
    OtherKey,
    /// Releases without comparing.
    DeletesAny,
    /// Extends without comparing.
    ExtendsAny,
    /// Says that it has released, and has not.
    Keeps,
    /// Does not wait, but gives up at the first refusal.
    GivesUp,
}

struct Driver {
    redis: RespConnection,
    fault: Fault,
    key: String,
    token: String,
}

impl Driver {
    fn take(&mut self, name: &str, lease_ms: &str) -> Result<bool> {
        let key = if self.fault == Fault::OtherKey { format!("{name} of ours") } else { name.to_owned() };
        let token = format!("{:032x}", rand::random::<u128>());
        let mut set = vec!["SET", &key, &token];
        if self.fault != Fault::Barges {
            set.push("NX");
        }
        if lease_ms != "0" {
            set.extend(["PX", lease_ms]);
        }
        let got = !self.redis.call(&set)?.ok()?.is_nil() || self.fault == Fault::IgnoresTaken;
        if got {
            (self.key, self.token) = (key, token);
        }
        Ok(got)
    }

    fn acquire(&mut self, name: &str, lease_ms: &str, wait: Duration) -> Result<bool> {
        let start = Instant::now();
        loop {
            let got = self.take(name, lease_ms)?;
            if got || start.elapsed() >= wait || self.fault == Fault::GivesUp {
                return Ok(got);
            }
            sleep(TRY_EVERY);
        }
    }

    fn release(&mut self) -> Result<bool> {
        let reply = match self.fault {
            Fault::Keeps => return Ok(true),
            Fault::DeletesAny => self.redis.call(&["DEL", &self.key])?,
            _ => self.redis.call(&["EVAL", RELEASE, "1", &self.key, &self.token])?,
        };
        Ok(reply.ok()? == Value::Integer(1))
    }

    fn extend(&mut self, lease_ms: &str) -> Result<bool> {
        let reply = match self.fault {
            Fault::ExtendsAny => self.redis.call(&["PEXPIRE", &self.key, lease_ms])?,
            _ => self.redis.call(&["EVAL", EXTEND, "1", &self.key, &self.token, lease_ms])?,
        };
        Ok(reply.ok()? == Value::Integer(1))
    }

    fn count(&mut self, name: &str, key: &str, times: u32, lease_ms: &str) -> Result<String> {
        let mut seen = String::new();
        for _ in 0..times {
            while !self.acquire(name, lease_ms, Duration::from_secs(60))? {}
            let number = self.redis.call(&["GET", key])?.ok()?.integer().unwrap_or(0);
            sleep(Duration::from_millis(1));
            self.redis.call(&["SET", key, &(number + 1).to_string()])?.ok()?;
            // The other clients are to find the fault.
            self.release()?;
            write!(seen, " {number}")?;
            sleep(Duration::from_micros(rand::random_range(0..40_000)));
        }
        Ok(format!("counted 0{seen}"))
    }

    fn answer(&mut self, line: &str) -> Result<String> {
        let choose = |done, yes: &str, no: &str| if done { yes.to_owned() } else { no.to_owned() };
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["hello"] => "hello plant 0".to_owned(),
            ["try", name, lease_ms] => choose(self.take(name, lease_ms)?, "got", "taken"),
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

fn main() -> Result<()> {
    let Args { url, fault } = Args::parse();
    let port = url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
    let redis = RespConnection::open(port.context("the URL has no port")?, Duration::from_secs(5))?;
    let mut driver = Driver { redis, fault, key: String::new(), token: String::new() };
    for line in stdin().lines() {
        match driver.answer(&line?) {
            Ok(answer) => println!("{answer}"),
            Err(error) => println!("error {error:#}"),
        }
    }
    Ok(())
}
