//! A driver that locks as Redisson's `RLock` does, as far as the cases define that, with one fault or with none.
//!
//! Its protocol has threads. Without a fault it passes the cases that Redisson passes. It shares no code with Leasehold's
//! stores.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{ErrorKind, stdin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use leasehold_testkit::{RespConnection, Value};

use super::{choose, port_of};

/// How long the server may take to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest sleep of a waiter without a limit.
const NO_LIMIT: Duration = Duration::from_secs(3_600);

/// KEYS: the lock; ARGV: owner, lease in ms, channel. Returns nothing if it was acquired, otherwise the key's PTTL.
const ACQUIRE: &str = "
local count = redis.call('HGET', KEYS[1], ARGV[1])
if not count and redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], (count or 0) + 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return false";
/// The same arguments. Returns the owner's remaining hold count, or -1 if it did not hold the lock.
const RELEASE: &str = "
local count = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
if count == 0 then return -1 end
if count > 1 then
  redis.call('HSET', KEYS[1], ARGV[1], count - 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[3], '0')
end
return count - 1";
/// The same arguments. Returns 1 if the owner holds the lock.
const RENEW: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
/// The same arguments. Returns 1 if the lock was held.
const FORCE_RELEASE: &str = "
local gone = redis.call('DEL', KEYS[1])
if gone == 1 then redis.call('PUBLISH', ARGV[3], '0') end
return gone";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The server.
    url: String,
    #[arg(value_enum)]
    fault: Fault,
    /// The lease of locks that are requested without one.
    watchdog_ms: u64,
}

/// What is wrong with the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Nothing.
    None,
    /// Takes a refusal for the lock.
    IgnoresTaken,
    /// Does not count re-entries.
    CountsOnce,
    /// Puts braces around every name in a channel's.
    OtherChannel,
    /// Publishes nothing.
    PublishesNothing,
    /// Publishes at a release that keeps the lock, too.
    PublishesEarly,
    /// Ignores all messages.
    IgnoresMessages,
    /// Polls while it waits.
    Polls,
    /// Wakes all waiters at any message.
    WakesAll,
    /// Does not renew.
    NoRenewal,
    /// Renews when hardly anything is left.
    RenewsLate,
    /// Renews a lease that was given.
    RenewsGivenLease,
    /// Lets no lease be shorter than the remaining one.
    KeepsLongestLease,
    /// Removes unknown fields when it re-enters.
    DropsFields,
    /// Removes a key that is no hash.
    OverwritesOtherTypes,
    /// Sets the expiry of a lock that it is refused.
    ExtendsWhenRefused,
    /// Releases without comparing.
    ReleasesWithoutComparing,
    /// Reports a forced release, and changes nothing.
    ForceReleasesNothing,
}

impl Fault {
    /// A script with the fault in it.
    fn apply_to(self, script: &str) -> String {
        let (old, new) = match self {
            Self::CountsOnce => ("(count or 0) + 1", "1"),
            Self::PublishesNothing => ("redis.call('PUBLISH', ARGV[3], '0')", ""),
            Self::PublishesEarly => {
                ("if count > 1 then", "if count > 1 then redis.call('PUBLISH', ARGV[3], '0')")
            }
            Self::KeepsLongestLease => (
                "redis.call('PEXPIRE', KEYS[1], ARGV[2])",
                "redis.call('PEXPIRE', KEYS[1], math.max(ARGV[2], redis.call('PTTL', KEYS[1])))",
            ),
            Self::DropsFields => {
                ("redis.call('HSET', KEYS[1]", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1]")
            }
            Self::OverwritesOtherTypes => (
                "local count =",
                "if redis.call('TYPE', KEYS[1]).ok == 'string' then redis.call('DEL', KEYS[1]) end local count =",
            ),
            Self::ExtendsWhenRefused => {
                ("== 1 then return", "== 1 then redis.call('PEXPIRE', KEYS[1], 60000) return")
            }
            Self::ReleasesWithoutComparing => {
                ("if count == 0 then return -1 end", "if count == 0 then count = 1 end")
            }
            Self::ForceReleasesNothing => ("redis.call('DEL', KEYS[1])\nif gone", "1\nif gone"),
            _ => return script.to_owned(),
        };
        script.replace(old, new)
    }
}

/// What all threads of the driver share.
struct Client {
    port: u16,
    fault: Fault,
    id: String,
    watchdog: Duration,
    scripts: Scripts,
    /// The waiters of each subscribed channel.
    channels: Mutex<HashMap<String, Arc<Channel>>>,
}

/// The server's digests of the scripts.
struct Scripts {
    acquire: String,
    release: String,
    renew: String,
    force_release: String,
}

/// The threads that wait for a message.
#[derive(Default)]
struct Channel {
    waiters: Mutex<Waiters>,
    received: Condvar,
}

#[derive(Default)]
struct Waiters {
    waiting: u32,
    /// How many of them a message has woken.
    woken: u32,
}

impl Channel {
    fn receive(&self, message: Option<&str>, fault: Fault) {
        let mut waiters = locked(&self.waiters);
        match message {
            _ if fault == Fault::IgnoresMessages => {}
            Some("0") if fault != Fault::WakesAll => waiters.woken += 1,
            Some("0" | "1") => waiters.woken += waiters.waiting,
            _ => {}
        }
        self.received.notify_all();
    }

    /// Waits for a message, for that long at most.
    fn wait(&self, time: Duration) {
        let mut waiters = locked(&self.waiters);
        waiters.waiting += 1;
        let (mut waiters, _) = self
            .received
            .wait_timeout_while(waiters, time, |waiters| waiters.woken == 0)
            .unwrap_or_else(PoisonError::into_inner);
        waiters.waiting -= 1;
        waiters.woken = waiters.woken.saturating_sub(1);
    }
}

impl Client {
    fn new(port: u16, fault: Fault, watchdog: Duration) -> Result<Self> {
        let mut redis = RespConnection::open(port, CALL_TIMEOUT)?;
        let mut load = |script: &str| -> Result<String> {
            let digest = redis.call(&["SCRIPT", "LOAD", &fault.apply_to(script)])?.ok()?;
            Ok(digest.text().context("a script has no digest")?.to_owned())
        };
        let scripts = Scripts {
            acquire: load(ACQUIRE)?,
            release: load(RELEASE)?,
            renew: load(RENEW)?,
            force_release: load(FORCE_RELEASE)?,
        };
        let digits = format!("{:032x}", rand::random::<u128>());
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        Ok(Self { port, fault, id: groups.join("-"), watchdog, scripts, channels: Mutex::default() })
    }

    fn channel_name(&self, lock: &str) -> String {
        if lock.contains('{') && self.fault != Fault::OtherChannel {
            format!("redisson_lock__channel:{lock}")
        } else {
            format!("redisson_lock__channel:{{{lock}}}")
        }
    }

    /// Subscribes to a lock's channel, from the first call on.
    fn subscribe(&self, lock: &str) -> Result<Arc<Channel>> {
        let name = self.channel_name(lock);
        let mut channels = locked(&self.channels);
        if let Some(channel) = channels.get(&name) {
            return Ok(Arc::clone(channel));
        }
        let mut messages = RespConnection::open(self.port, CALL_TIMEOUT)?;
        messages.call(&["SUBSCRIBE", &name])?.ok()?;
        let channel = Arc::new(Channel::default());
        channels.insert(name, Arc::clone(&channel));
        let (subscribed, fault) = (Arc::clone(&channel), self.fault);
        thread::spawn(move || {
            loop {
                match messages.receive() {
                    Ok(message) => subscribed.receive(message.elements().get(2).and_then(Value::text), fault),
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(_) => return,
                }
            }
        });
        Ok(channel)
    }
}

/// A thread of the driver, which owns locks.
struct Holder {
    client: Arc<Client>,
    redis: RespConnection,
    owner: String,
    /// The lock that was acquired last.
    lock: String,
    /// Set to end the renewal of a lock.
    renewed: HashMap<String, Arc<AtomicBool>>,
}

impl Holder {
    fn new(client: Arc<Client>) -> Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(20);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let redis = RespConnection::open(client.port, CALL_TIMEOUT)?;
        let owner = format!("{}:{number}", client.id);
        Ok(Self { client, redis, owner, lock: String::new(), renewed: HashMap::new() })
    }

    /// Calls a script.
    fn run(&mut self, script: impl Fn(&Scripts) -> &String, lock: &str, lease: Duration) -> Result<Value> {
        let (lease_ms, channel) = (lease.as_millis().to_string(), self.client.channel_name(lock));
        let words = ["EVALSHA", script(&self.client.scripts), "1", lock, &self.owner, &lease_ms, &channel];
        Ok(self.redis.call(&words)?.ok()?)
    }

    /// Tries to acquire. On failure, returns the remaining lease, or `None` without an expiry.
    fn try_acquire(&mut self, lock: &str, lease_ms: u64) -> Result<Result<(), Option<Duration>>> {
        let lease = if lease_ms == 0 { self.client.watchdog } else { Duration::from_millis(lease_ms) };
        let remaining = self.run(|scripts| &scripts.acquire, lock, lease)?;
        if !remaining.is_nil() && self.client.fault != Fault::IgnoresTaken {
            let remaining_ms = remaining.integer().and_then(|ms| u64::try_from(ms).ok());
            return Ok(Err(remaining_ms.map(Duration::from_millis)));
        }
        lock.clone_into(&mut self.lock);
        if lease_ms == 0 || self.client.fault == Fault::RenewsGivenLease {
            self.renew(lock)?;
        }
        Ok(Ok(()))
    }

    /// Waits for the lock, for that long at most.
    fn acquire(&mut self, lock: &str, lease_ms: u64, wait: Duration) -> Result<bool> {
        let start = Instant::now();
        if self.try_acquire(lock, lease_ms)?.is_ok() {
            return Ok(true);
        }
        let channel = self.client.subscribe(lock)?;
        loop {
            let Err(expires_in) = self.try_acquire(lock, lease_ms)? else { return Ok(true) };
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let pause = if self.client.fault == Fault::Polls { Duration::from_millis(100) } else { NO_LIMIT };
            channel.wait(left.min(expires_in.unwrap_or(NO_LIMIT)).min(pause));
        }
    }

    /// Renews a lock until it is released.
    fn renew(&mut self, lock: &str) -> Result<()> {
        if self.client.fault == Fault::NoRenewal || self.renewed.contains_key(lock) {
            return Ok(());
        }
        let is_over = Arc::new(AtomicBool::new(false));
        self.renewed.insert(lock.to_owned(), Arc::clone(&is_over));
        let mut watchdog = Self::new(Arc::clone(&self.client))?;
        watchdog.owner.clone_from(&self.owner);
        let (lock, lease) = (lock.to_owned(), self.client.watchdog);
        let period = if self.client.fault == Fault::RenewsLate { lease * 9 / 10 } else { lease / 3 };
        thread::spawn(move || {
            loop {
                sleep(period);
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                match watchdog.run(|scripts| &scripts.renew, &lock, lease) {
                    Ok(renewed) if renewed.integer() == Some(1) => {}
                    _ => return,
                }
            }
        });
        Ok(())
    }

    fn release(&mut self, lock: &str) -> Result<bool> {
        let count = self.run(|scripts| &scripts.release, lock, self.client.watchdog)?.integer();
        if count.is_none_or(|count| count < 1)
            && let Some(is_over) = self.renewed.remove(lock)
        {
            is_over.store(true, Ordering::SeqCst);
        }
        Ok(count.is_some_and(|count| count >= 0))
    }

    fn state(&mut self, lock: &str) -> Result<String> {
        let count = self.redis.call(&["HGET", lock, &self.owner])?.ok()?.integer().unwrap_or(0);
        let remaining_ms = self.redis.call(&["PTTL", lock])?.ok()?.integer().unwrap_or(-2);
        let locked = choose(remaining_ms == -2, "free", "locked");
        let mine = choose(count > 0, "mine", "not-mine");
        Ok(format!("state {count} {locked} {mine} {remaining_ms}"))
    }

    fn count(&mut self, lock: &str, key: &str, times: u32, lease_ms: u64) -> Result<String> {
        let (mut numbers, mut longest) = (String::new(), Duration::ZERO);
        for _ in 0..times {
            let called = Instant::now();
            if !self.acquire(lock, lease_ms, Duration::from_secs(60))? {
                bail!("timed out waiting for the lock");
            }
            longest = longest.max(called.elapsed());
            let number = self.redis.call(&["GET", key])?.ok()?.integer().unwrap_or(0);
            sleep(Duration::from_millis(1));
            self.redis.call(&["SET", key, &(number + 1).to_string()])?.ok()?;
            // A lost lock is no error here: the case must find the fault.
            self.release(lock)?;
            write!(numbers, " {number}")?;
            sleep(Duration::from_micros(rand::random_range(0..40_000)));
        }
        Ok(format!("counted {}{numbers}", longest.as_millis()))
    }

    fn answer(&mut self, words: &[&str]) -> Result<String> {
        Ok(match *words {
            ["hello"] => "hello rlock 0".to_owned(),
            ["owner"] => format!("owner {}", self.owner),
            ["try", lock, lease_ms] => {
                choose(self.try_acquire(lock, lease_ms.parse()?)?.is_ok(), "got", "taken")
            }
            ["acquire", lock, lease_ms, wait_ms] => {
                let wait = Duration::from_millis(wait_ms.parse()?);
                choose(self.acquire(lock, lease_ms.parse()?, wait)?, "got", "taken")
            }
            ["lock", lock, lease_ms] => {
                choose(self.acquire(lock, lease_ms.parse()?, NO_LIMIT)?, "got", "taken")
            }
            ["release"] => choose(self.release(&self.lock.clone())?, "ok", "lost"),
            ["release", lock] => choose(self.release(lock)?, "ok", "lost"),
            ["free", lock] => {
                let freed = self.run(|scripts| &scripts.force_release, lock, self.client.watchdog)?;
                choose(freed.integer() == Some(1), "ok", "lost")
            }
            ["state", lock] => self.state(lock)?,
            ["held-by", lock, thread] => {
                let owner = format!("{}:{thread}", self.client.id);
                choose(self.redis.call(&["HEXISTS", lock, &owner])?.ok()?.integer() == Some(1), "yes", "no")
            }
            ["count", lock, key, times, lease_ms] => {
                self.count(lock, key, times.parse()?, lease_ms.parse()?)?
            }
            _ => bail!("there is no such request"),
        })
    }

    /// Answers one request after the other. `prefix` precedes each answer.
    fn serve(mut self, requests: &Receiver<String>, prefix: &str) {
        while let Ok(request) = requests.recv() {
            let words: Vec<&str> = request.split(' ').collect();
            match self.answer(&words) {
                Ok(answer) => println!("{prefix}{answer}"),
                Err(error) => println!("{prefix}error {error:#}"),
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers requests until the end of the input, each in the thread that it names.
pub(super) fn serve(options: &Options) -> Result<()> {
    let watchdog = Duration::from_millis(options.watchdog_ms);
    let client = Arc::new(Client::new(port_of(&options.url)?, options.fault, watchdog)?);
    let mut threads: HashMap<String, Sender<String>> = HashMap::new();
    for line in stdin().lines() {
        let line = line?;
        let (prefix, request) = match line.strip_prefix("as ").and_then(|named| named.split_once(' ')) {
            Some((thread, request)) => (format!("as {thread} "), request),
            None => (String::new(), line.as_str()),
        };
        if !threads.contains_key(&prefix) {
            let (requests, received) = channel();
            let (holder, answer_prefix) = (Holder::new(Arc::clone(&client))?, prefix.clone());
            thread::spawn(move || holder.serve(&received, &answer_prefix));
            threads.insert(prefix.clone(), requests);
        }
        threads[&prefix].send(request.to_owned())?;
    }
    Ok(())
}
