//! A built-in driver that locks as Redisson's `RLock` does, as far as the cases define that, with one fault in it or with
//! none.
//!
//! It has the protocol of `drivers/README.md` with threads. Without a fault it passes the cases that Redisson passes; with
//! one it shows that they can fail (`tests/mutants.rs`). It shares no code with Leasehold's stores.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{ErrorKind, stdin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use leasehold_testkit::{RespConnection, Value};

/// How long the server may take to answer.
const CALL: Duration = Duration::from_secs(5);
/// How long a waiter without a limit sleeps at most.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// KEYS: the lock; ARGV: owner, lease in ms, channel. Nothing where it was entered, else the key's PTTL.
const ENTER: &str = "
local count = redis.call('HGET', KEYS[1], ARGV[1])
if not count and redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
redis.call('HSET', KEYS[1], ARGV[1], (count or 0) + 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return false";
/// The same arguments. The owner's hold count that is left, or -1 if it did not hold the lock.
const LEAVE: &str = "
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
/// The same arguments. 1 if the owner has it.
const RENEW: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
/// The same arguments. 1 if it was held.
const FREE: &str = "
local gone = redis.call('DEL', KEYS[1])
if gone == 1 then redis.call('PUBLISH', ARGV[3], '0') end
return gone";

#[derive(Parser)]
struct Args {
    /// The server.
    url: String,
    #[arg(value_enum)]
    fault: Fault,
    /// The lease of what is given none.
    watchdog_ms: u64,
}

/// What is wrong with it.
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
    Silent,
    /// Publishes at a release that keeps the lock, too.
    PublishesEarly,
    /// Does not receive messages.
    Deaf,
    /// Looks for itself while it waits.
    Polls,
    /// Has a message wake all that wait.
    WakesAll,
    /// Does not renew.
    NoRenewal,
    /// Renews when hardly anything is left.
    RenewsLate,
    /// Renews a lease that was given.
    RenewsGiven,
    /// Lets no lease be shorter than what was left.
    KeepsLongest,
    /// Removes the fields that it does not know when it enters again.
    DropsFields,
    /// Removes what is no hash.
    Overwrites,
    /// Sets the end of a lock that it is refused.
    LengthensOurs,
    /// Releases without comparing.
    ReleasesAny,
    /// Says that it has freed the lock by force, and has not.
    FreesNothing,
}

impl Fault {
    /// A script with the fault in it.
    fn plant(self, script: &str) -> String {
        let (old, new) = match self {
            Self::CountsOnce => ("(count or 0) + 1", "1"),
            Self::Silent => ("redis.call('PUBLISH', ARGV[3], '0')", ""),
            Self::PublishesEarly => {
                ("if count > 1 then", "if count > 1 then redis.call('PUBLISH', ARGV[3], '0')")
            }
            Self::KeepsLongest => (
                "redis.call('PEXPIRE', KEYS[1], ARGV[2])",
                "redis.call('PEXPIRE', KEYS[1], math.max(ARGV[2], redis.call('PTTL', KEYS[1])))",
            ),
            Self::DropsFields => {
                ("redis.call('HSET', KEYS[1]", "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1]")
            }
            Self::Overwrites => (
                "local count =",
                "if redis.call('TYPE', KEYS[1]).ok == 'string' then redis.call('DEL', KEYS[1]) end local count =",
            ),
            Self::LengthensOurs => {
                ("== 1 then return", "== 1 then redis.call('PEXPIRE', KEYS[1], 60000) return")
            }
            Self::ReleasesAny => ("if count == 0 then return -1 end", "if count == 0 then count = 1 end"),
            Self::FreesNothing => ("redis.call('DEL', KEYS[1])\nif gone", "1\nif gone"),
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
    /// Where the messages of a channel arrive.
    gates: Mutex<HashMap<String, Arc<Gate>>>,
}

/// The names that the server has for the scripts.
struct Scripts {
    enter: String,
    leave: String,
    renew: String,
    free: String,
}

/// The threads that wait for a message.
#[derive(Default)]
struct Gate {
    crowd: Mutex<Crowd>,
    opened: Condvar,
}

#[derive(Default)]
struct Crowd {
    waiting: u32,
    /// How many of them may go on.
    passes: u32,
}

impl Gate {
    fn hear(&self, message: Option<&str>, fault: Fault) {
        let mut crowd = locked(&self.crowd);
        match message {
            _ if fault == Fault::Deaf => {}
            Some("0") if fault != Fault::WakesAll => crowd.passes += 1,
            Some("0" | "1") => crowd.passes += crowd.waiting,
            _ => {}
        }
        self.opened.notify_all();
    }

    /// Waits for a message, for that long at most.
    fn wait(&self, time: Duration) {
        let mut crowd = locked(&self.crowd);
        crowd.waiting += 1;
        let (mut crowd, _) = self
            .opened
            .wait_timeout_while(crowd, time, |crowd| crowd.passes == 0)
            .unwrap_or_else(PoisonError::into_inner);
        crowd.waiting -= 1;
        crowd.passes = crowd.passes.saturating_sub(1);
    }
}

impl Client {
    fn new(port: u16, fault: Fault, watchdog: Duration) -> Result<Self> {
        let mut redis = RespConnection::open(port, CALL)?;
        let mut load = |script: &str| -> Result<String> {
            let name = redis.call(&["SCRIPT", "LOAD", &fault.plant(script)])?.ok()?;
            Ok(name.text().context("a script has no name")?.to_owned())
        };
        let scripts =
            Scripts { enter: load(ENTER)?, leave: load(LEAVE)?, renew: load(RENEW)?, free: load(FREE)? };
        let digits = format!("{:032x}", rand::random::<u128>());
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        Ok(Self { port, fault, id: groups.join("-"), watchdog, scripts, gates: Mutex::default() })
    }

    fn channel(&self, name: &str) -> String {
        if name.contains('{') && self.fault != Fault::OtherChannel {
            format!("redisson_lock__channel:{name}")
        } else {
            format!("redisson_lock__channel:{{{name}}}")
        }
    }

    /// Listens to a lock's channel, from the first time on.
    fn gate(&self, name: &str) -> Result<Arc<Gate>> {
        let channel = self.channel(name);
        let mut gates = locked(&self.gates);
        if let Some(gate) = gates.get(&channel) {
            return Ok(Arc::clone(gate));
        }
        let mut messages = RespConnection::open(self.port, CALL)?;
        messages.call(&["SUBSCRIBE", &channel])?.ok()?;
        let gate = Arc::new(Gate::default());
        gates.insert(channel, Arc::clone(&gate));
        let (heard, fault) = (Arc::clone(&gate), self.fault);
        thread::spawn(move || {
            loop {
                match messages.receive() {
                    Ok(message) => heard.hear(message.elements().get(2).and_then(Value::text), fault),
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(_) => return,
                }
            }
        });
        Ok(gate)
    }
}

/// A thread of theirs, to which locks belong.
struct Holder {
    client: Arc<Client>,
    redis: RespConnection,
    owner: String,
    /// The lock that was taken last.
    name: String,
    /// What ends the renewal of a lock.
    renewed: HashMap<String, Arc<AtomicBool>>,
}

impl Holder {
    fn new(client: Arc<Client>) -> Result<Self> {
        static LAST: AtomicU64 = AtomicU64::new(20);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let redis = RespConnection::open(client.port, CALL)?;
        let owner = format!("{}:{number}", client.id);
        Ok(Self { client, redis, owner, name: String::new(), renewed: HashMap::new() })
    }

    /// Calls a script.
    fn run(&mut self, script: impl Fn(&Scripts) -> &String, name: &str, lease: Duration) -> Result<Value> {
        let (lease_ms, channel) = (lease.as_millis().to_string(), self.client.channel(name));
        let words = ["EVALSHA", script(&self.client.scripts), "1", name, &self.owner, &lease_ms, &channel];
        Ok(self.redis.call(&words)?.ok()?)
    }

    /// Tries to enter; where that fails, how long the lock lasts as things stand, or `None` without an end.
    fn enter(&mut self, name: &str, lease_ms: u64) -> Result<Result<(), Option<Duration>>> {
        let lease = if lease_ms == 0 { self.client.watchdog } else { Duration::from_millis(lease_ms) };
        let left = self.run(|scripts| &scripts.enter, name, lease)?;
        if !left.is_nil() && self.client.fault != Fault::IgnoresTaken {
            return Ok(Err(left.integer().and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis)));
        }
        name.clone_into(&mut self.name);
        if lease_ms == 0 || self.client.fault == Fault::RenewsGiven {
            self.renew(name)?;
        }
        Ok(Ok(()))
    }

    /// Waits for the lock, for that long at most.
    fn acquire(&mut self, name: &str, lease_ms: u64, wait: Duration) -> Result<bool> {
        let start = Instant::now();
        if self.enter(name, lease_ms)?.is_ok() {
            return Ok(true);
        }
        let gate = self.client.gate(name)?;
        loop {
            let Err(ends) = self.enter(name, lease_ms)? else { return Ok(true) };
            let left = wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let pause = if self.client.fault == Fault::Polls { Duration::from_millis(100) } else { FOR_EVER };
            gate.wait(left.min(ends.unwrap_or(FOR_EVER)).min(pause));
        }
    }

    /// Renews a lock from now on, until it is released.
    fn renew(&mut self, name: &str) -> Result<()> {
        if self.client.fault == Fault::NoRenewal || self.renewed.contains_key(name) {
            return Ok(());
        }
        let over = Arc::new(AtomicBool::new(false));
        self.renewed.insert(name.to_owned(), Arc::clone(&over));
        let mut dog = Self::new(Arc::clone(&self.client))?;
        dog.owner.clone_from(&self.owner);
        let (name, lease) = (name.to_owned(), self.client.watchdog);
        let period = if self.client.fault == Fault::RenewsLate { lease * 9 / 10 } else { lease / 3 };
        thread::spawn(move || {
            loop {
                sleep(period);
                if over.load(Ordering::SeqCst) {
                    return;
                }
                match dog.run(|scripts| &scripts.renew, &name, lease) {
                    Ok(renewed) if renewed.integer() == Some(1) => {}
                    _ => return,
                }
            }
        });
        Ok(())
    }

    fn release(&mut self, name: &str) -> Result<bool> {
        let left = self.run(|scripts| &scripts.leave, name, self.client.watchdog)?.integer();
        if left.is_none_or(|left| left < 1)
            && let Some(over) = self.renewed.remove(name)
        {
            over.store(true, Ordering::SeqCst);
        }
        Ok(left.is_some_and(|left| left >= 0))
    }

    fn state(&mut self, name: &str) -> Result<String> {
        let count = self.redis.call(&["HGET", name, &self.owner])?.ok()?.integer().unwrap_or(0);
        let left = self.redis.call(&["PTTL", name])?.ok()?.integer().unwrap_or(-2);
        let (locked, mine) =
            (if left == -2 { "free" } else { "locked" }, if count > 0 { "mine" } else { "not-mine" });
        Ok(format!("state {count} {locked} {mine} {left}"))
    }

    fn count(&mut self, name: &str, key: &str, times: u32, lease_ms: u64) -> Result<String> {
        let (mut seen, mut longest) = (String::new(), Duration::ZERO);
        for _ in 0..times {
            let asked = Instant::now();
            if !self.acquire(name, lease_ms, Duration::from_secs(60))? {
                bail!("waited in vain");
            }
            longest = longest.max(asked.elapsed());
            let number = self.redis.call(&["GET", key])?.ok()?.integer().unwrap_or(0);
            sleep(Duration::from_millis(1));
            self.redis.call(&["SET", key, &(number + 1).to_string()])?.ok()?;
            // The other clients are to find the fault.
            self.release(name)?;
            write!(seen, " {number}")?;
            sleep(Duration::from_micros(rand::random_range(0..40_000)));
        }
        Ok(format!("counted {}{seen}", longest.as_millis()))
    }

    fn answer(&mut self, words: &[&str]) -> Result<String> {
        let choose = |done, yes: &str, no: &str| if done { yes.to_owned() } else { no.to_owned() };
        Ok(match *words {
            ["hello"] => "hello rlock 0".to_owned(),
            ["owner"] => format!("owner {}", self.owner),
            ["try", name, lease_ms] => choose(self.enter(name, lease_ms.parse()?)?.is_ok(), "got", "taken"),
            ["acquire", name, lease_ms, wait_ms] => {
                let wait = Duration::from_millis(wait_ms.parse()?);
                choose(self.acquire(name, lease_ms.parse()?, wait)?, "got", "taken")
            }
            ["lock", name, lease_ms] => {
                choose(self.acquire(name, lease_ms.parse()?, FOR_EVER)?, "got", "taken")
            }
            ["release"] => choose(self.release(&self.name.clone())?, "ok", "lost"),
            ["release", name] => choose(self.release(name)?, "ok", "lost"),
            ["free", name] => {
                let freed = self.run(|scripts| &scripts.free, name, self.client.watchdog)?;
                choose(freed.integer() == Some(1), "ok", "lost")
            }
            ["state", name] => self.state(name)?,
            ["held-by", name, thread] => {
                let owner = format!("{}:{thread}", self.client.id);
                choose(self.redis.call(&["HEXISTS", name, &owner])?.ok()?.integer() == Some(1), "yes", "no")
            }
            ["count", name, key, times, lease_ms] => {
                self.count(name, key, times.parse()?, lease_ms.parse()?)?
            }
            _ => bail!("there is no such request"),
        })
    }

    /// Answers one request after the other. `named` stands before each answer.
    fn serve(mut self, requests: &Receiver<String>, named: &str) {
        while let Ok(request) = requests.recv() {
            let words: Vec<&str> = request.split(' ').collect();
            match self.answer(&words) {
                Ok(answer) => println!("{named}{answer}"),
                Err(error) => println!("{named}error {error:#}"),
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> Result<()> {
    let Args { url, fault, watchdog_ms } = Args::parse();
    let port = url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
    let client =
        Client::new(port.context("the URL has no port")?, fault, Duration::from_millis(watchdog_ms))?;
    let client = Arc::new(client);
    let mut threads: HashMap<String, Sender<String>> = HashMap::new();
    for line in stdin().lines() {
        let line = line?;
        let (named, request) = match line.strip_prefix("as ").and_then(|named| named.split_once(' ')) {
            Some((thread, request)) => (format!("as {thread} "), request),
            None => (String::new(), line.as_str()),
        };
        if !threads.contains_key(&named) {
            let (requests, listened) = channel();
            let (holder, named_so) = (Holder::new(Arc::clone(&client))?, named.clone());
            thread::spawn(move || holder.serve(&listened, &named_so));
            threads.insert(named.clone(), requests);
        }
        threads[&named].send(request.to_owned())?;
    }
    Ok(())
}
