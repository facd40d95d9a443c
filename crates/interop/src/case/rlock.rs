//! What Redisson's `RLock` does by itself: the facts that Leasehold's ReentrantMutex builds on.
//!
//! No client of Leasehold's takes part. The case itself writes the hash that such a client would write, so that a failure
//! here is not Leasehold's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::{RedisServer, Value};

use super::{LONG, RENEWED, SHORT};
use crate::driver::{Answer, Driver, State};
use crate::fixture::{LOCK, SOON};
use crate::key::{Key, Messages};
use crate::library::Library;
use crate::report::setup;

/// A name without braces, for which the library uses another channel.
const NAME_WITHOUT_BRACES: &str = "shop:orders:42";
/// An owner that is no thread of the library.
const FOREIGN_OWNER: &str = "worker-7";
/// A field that the library does not know, and its value.
const UNKNOWN_FIELD: (&str, &str) = ("leasehold", "7 30000\nworker-7");
/// The watchdog's lease where its renewals are measured: a Java machine that is short of time must yet renew it.
const MEASURED: Duration = Duration::from_secs(2);
/// How long the library may take to begin something: a Java machine is slow at what it does first.
const BEGUN_WITHIN: Duration = Duration::from_secs(20);

/// A server of its own with one client of the library, and one lock.
struct Alone {
    server: RedisServer,
    driver: Driver,
    name: &'static str,
    key: Key,
}

impl Alone {
    fn new(library: &Library, name: &'static str, watchdog: Duration) -> Result<Self> {
        setup(Self::start(library, name, watchdog))
    }

    fn start(library: &Library, name: &'static str, watchdog: Duration) -> Result<Self> {
        let server = RedisServer::start()?;
        let driver = Driver::start(library, &server.url(), watchdog)?;
        let key = Key::connect(&server, name)?;
        Ok(Self { server, driver, name, key })
    }

    /// A further client of the library.
    fn another_client(&self, library: &Library, watchdog: Duration) -> Result<Driver> {
        setup(Driver::start(library, &self.server.url(), watchdog))
    }

    /// Sends a thread a request about the lock, and fails if the answer is another one.
    fn expect(&mut self, thread: &str, request: &str, expected: &Answer) -> Result<()> {
        self.driver.expect(&to(thread, request, self.name), expected)
    }

    /// Lets a thread wait for the lock; returns when this many clients subscribe to its channel.
    fn start_waiter(&mut self, thread: &str, request: &str, subscribers: i64) -> Result<()> {
        self.driver.send(&to(thread, request, self.name))?;
        await_subscribers(&self.server, self.name, subscribers)
    }

    /// Fails unless the thread acquires the lock within that time; returns how long it took.
    fn expect_acquired(&mut self, thread: &str, within: Duration) -> Result<Duration> {
        expect_acquired(&mut self.driver, thread, within)
    }

    /// The owner that a thread is at the key.
    fn owner(&mut self, thread: &str) -> Result<String> {
        match self.driver.request(&format!("as {thread} owner"))? {
            Answer::Owner(owner) => Ok(owner),
            other => bail!("`owner` was answered {other:?}"),
        }
    }

    /// Fails unless a thread sees this hold count, and the lock held or free.
    fn expect_state(&mut self, thread: &str, count: u32, is_locked: bool) -> Result<State> {
        match self.driver.request(&to(thread, "state", self.name))? {
            Answer::State(state) => {
                let found = (state.count, state.is_mine, state.is_locked);
                ensure!(found == (count, count > 0, is_locked), "the library reports {state:?} to {thread}");
                Ok(state)
            }
            other => bail!("`state` was answered {other:?}"),
        }
    }

    /// Writes the lock of an owner with an unknown field, as Leasehold would.
    fn write(&mut self, owner: &str, lease: Duration) -> Result<()> {
        self.key.call("HSET", &[owner, "1", UNKNOWN_FIELD.0, UNKNOWN_FIELD.1])?;
        self.key.call("PEXPIRE", &[&lease.as_millis().to_string()])?;
        Ok(())
    }

    /// How many scripts have run so far.
    fn scripts(&self) -> Result<u64> {
        Ok(self.server.command_counts()?.get("evalsha").copied().unwrap_or(0))
    }

    /// How many scripts have run once there are no more of them.
    fn settled_scripts(&self) -> Result<u64> {
        let (start, mut scripts) = (Instant::now(), self.scripts()?);
        loop {
            std::thread::sleep(2 * SHORT);
            let now = self.scripts()?;
            if now == scripts {
                return Ok(now);
            }
            ensure!(
                start.elapsed() < BEGUN_WITHIN,
                "the library does not stop running scripts: {now} by now"
            );
            scripts = now;
        }
    }

    /// Fails unless the server becomes empty; the library removes its latches a moment later.
    fn expect_empty(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let keys = self.server.cli(&["KEYS", "*"])?.ok()?;
            if keys.elements().is_empty() {
                return Ok(());
            }
            ensure!(start.elapsed() < BEGUN_WITHIN, "the library left {keys:?}");
        }
    }
}

/// The request to a thread, with the lock's name behind its verb.
fn to(thread: &str, request: &str, name: &str) -> String {
    let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
    format!("as {thread} {verb} {name} {rest}").trim_end().to_owned()
}

fn expect_acquired(driver: &mut Driver, thread: &str, within: Duration) -> Result<Duration> {
    let start = Instant::now();
    let answer = driver
        .answer_to(&format!("as {thread} "), within)
        .with_context(|| format!("{thread} did not acquire the free lock"))?;
    ensure!(answer == Answer::Got, "{thread} gave up the free lock: {answer:?}");
    Ok(start.elapsed())
}

/// Returns when so many clients of the library subscribe to the lock's channel.
fn await_subscribers(server: &RedisServer, name: &str, clients: i64) -> Result<()> {
    let channel = channel_of(name);
    let start = Instant::now();
    loop {
        let reply = server.cli(&["PUBSUB", "NUMSUB", &channel])?.ok()?;
        let subscribed = reply.elements().get(1).and_then(Value::integer);
        if subscribed == Some(clients) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < BEGUN_WITHIN,
            "{subscribed:?} clients subscribe to `{channel}` and not {clients}"
        );
    }
}

/// The channel of a lock. The library puts braces around a name that has none.
fn channel_of(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

/// The client and the thread of an owner.
fn parts(owner: &str) -> Result<(&str, u64)> {
    let (client, thread) = owner.split_once(':').with_context(|| format!("`{owner}` has no thread"))?;
    let groups: Vec<usize> = client.split('-').map(str::len).collect();
    let hexadecimal = client.chars().all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c));
    ensure!(groups == [8, 4, 4, 4, 12] && hexadecimal, "`{client}` is no UUID");
    Ok((client, thread.parse().with_context(|| format!("`{thread}` is no number"))?))
}

pub(super) fn format(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, RENEWED)?;
    let (anna, boris) = (alone.owner("anna")?, alone.owner("boris")?);
    let ((client, thread), (same, another)) = (parts(&anna)?, parts(&boris)?);
    ensure!(client == same && thread != another, "`{anna}` and `{boris}` are not two threads of one client");
    let mut other_client = alone.another_client(library, LONG)?;
    ensure!(
        matches!(other_client.request("owner")?, Answer::Owner(other) if parts(&other)?.0 != client),
        "two clients have one id"
    );

    alone.expect("anna", "try 30000", &Answer::Got)?;
    alone.key.expect_hash(&[(&anna, "1")])?;
    alone.key.expect_expiry(LONG)?;
    alone.expect("anna", "try 20000", &Answer::Got)?;
    alone.key.expect_hash(&[(&anna, "2")])?;
    ensure!(alone.server.cli(&["DBSIZE"])?.integer() == Some(1), "there is more than the key");
    let state = alone.expect_state("anna", 2, true)?;
    ensure!((10_001..=20_000).contains(&state.remaining_ms), "the lease is not the last one: {state:?}");
    alone.expect_state("boris", 0, true)?;
    alone.expect("boris", &format!("held-by {thread}"), &Answer::Yes)?;
    alone.expect("anna", &format!("held-by {another}"), &Answer::No)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    other_client.expect(&format!("try {LOCK} 30000"), &Answer::Taken)?;

    alone.expect("boris", "release", &Answer::Lost)?;
    other_client.expect(&format!("release {LOCK}"), &Answer::Lost)?;
    alone.key.expect_hash(&[(&anna, "2")])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_hash(&[(&anna, "1")])?;
    let shortened = alone.key.remaining()?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_free()?;
    alone.expect_state("anna", 0, false)?;
    alone.expect("anna", "release", &Answer::Lost)?;
    alone.expect("boris", "free", &Answer::Lost)?;
    alone.expect_empty()?;
    // The driver makes a new lock object for each request, and one that set no lease itself uses the watchdog's.
    ensure!(shortened.is_some_and(|left| left <= RENEWED), "the release left a lease of {shortened:?}");
    Ok(format!(
        "`{anna}` = count; a release that keeps the lock changed its lease from 20 s to {} ms",
        shortened.map_or(0, |left| left.as_millis())
    ))
}

pub(super) fn channel(library: &Library) -> Result<String> {
    for name in [LOCK, NAME_WITHOUT_BRACES] {
        let mut alone = Alone::new(library, name, LONG)?;
        let mut messages = Messages::connect(&alone.server)?;
        let message = format!("{} 0", channel_of(name));
        let mut expect_published = |alone: &mut Alone, expected: &[&String], what: &str| {
            let received = messages.received(&mut alone.key)?;
            ensure!(received.iter().eq(expected.iter().copied()), "{what} published {received:?}");
            Ok(())
        };
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("boris", "try 30000", &Answer::Taken)?;
        alone.expect("boris", "release", &Answer::Lost)?;
        alone.expect("anna", "release", &Answer::Ok)?;
        expect_published(&mut alone, &[], "a release that keeps the lock")?;
        alone.expect("anna", "release", &Answer::Ok)?;
        expect_published(&mut alone, &[&message], "the last release")?;
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("boris", "free", &Answer::Ok)?;
        expect_published(&mut alone, &[&message], "the release by force")?;
        alone.expect("boris", "free", &Answer::Lost)?;
        expect_published(&mut alone, &[], "the release by force of a free lock")?;
        alone.expect("anna", "release", &Answer::Lost)?;
        alone.expect("anna", "try 100", &Answer::Got)?;
        // A waiter polls when the lease has ended.
        alone.expect("boris", "acquire 30000 20000", &Answer::Got)?;
        expect_published(&mut alone, &[], "the end of a lease")?;
    }
    Ok(format!("`0` on `{}` and `{}`", channel_of(LOCK), channel_of(NAME_WITHOUT_BRACES)))
}

pub(super) fn watchdog(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, MEASURED)?;
    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.expect_expiry(MEASURED)?;
    let (mut periods, mut least) = (Vec::new(), MEASURED);
    let start = Instant::now();
    let (mut before, mut renewed) = (MEASURED, start);
    while start.elapsed() < 3 * MEASURED {
        // Polling without a pause would keep the library from renewing in time.
        std::thread::sleep(Duration::from_millis(2));
        let left = alone.key.remaining()?.context("the lock has no expiry")?;
        if left > before {
            periods.push(renewed.elapsed().as_millis());
            renewed = Instant::now();
        }
        (before, least) = (left, least.min(left));
    }
    // The library's timer has steps of 100 ms, and the machine is busy.
    let third = (MEASURED / 3).as_millis();
    let regular = periods.iter().filter(|period| (third - 50..third + 200).contains(period)).count();
    ensure!(periods.len() >= 5 && regular + 2 >= periods.len(), "renewed after {periods:?} ms");
    let name = alone.name;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // Nothing renews the lock of a dead process, or a lock with a given lease.
    alone.driver.kill()?;
    let died = Instant::now();
    while alone.key.expect_free().is_err() {
        std::thread::sleep(Duration::from_millis(2));
        ensure!(died.elapsed() < MEASURED + SOON, "the lock of a dead process is renewed");
    }
    let mut successor = alone.another_client(library, MEASURED)?;
    // Longer than the period of renewals.
    successor.expect(&format!("try {name} {}", (MEASURED / 2).as_millis()), &Answer::Got)?;
    successor
        .expect(&format!("as boris acquire {name} 30000 {}", (2 * MEASURED).as_millis()), &Answer::Got)?;
    successor.expect("release", &Answer::Lost)?;
    Ok(format!("every {periods:?} ms of {}; least left {} ms", MEASURED.as_millis(), least.as_millis()))
}

pub(super) fn fields(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, RENEWED)?;
    let anna = alone.owner("anna")?;
    let acquire = |alone: &mut Alone, lease: &str| {
        alone.expect("anna", lease, &Answer::Got)?;
        alone.key.call("HSET", &[UNKNOWN_FIELD.0, UNKNOWN_FIELD.1])?;
        Ok::<_, anyhow::Error>(())
    };
    acquire(&mut alone, "lock 0")?;
    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.expect_hash(&[(&anna, "2"), UNKNOWN_FIELD])?;
    alone.expect_state("anna", 2, true)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    std::thread::sleep(2 * RENEWED);
    alone.key.expect_expiry(RENEWED)?;
    alone.key.expect_hash(&[(&anna, "2"), UNKNOWN_FIELD])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_hash(&[(&anna, "1"), UNKNOWN_FIELD])?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_free()?;

    acquire(&mut alone, "lock 0")?;
    alone.expect("boris", "free", &Answer::Ok)?;
    alone.key.expect_free()?;
    alone.expect("anna", "release", &Answer::Lost)?;

    acquire(&mut alone, "lock 300")?;
    alone.expect("boris", "acquire 30000 20000", &Answer::Got)?;
    let boris = alone.owner("boris")?;
    alone.key.expect_hash(&[(&boris, "1")])?;
    Ok("kept by re-entry, renewal and partial release; removed by the last release, force and expiry".into())
}

pub(super) fn waits(library: &Library) -> Result<String> {
    let mut woken = Vec::new();
    for name in [LOCK, NAME_WITHOUT_BRACES] {
        let mut alone = Alone::new(library, name, LONG)?;
        alone.write(FOREIGN_OWNER, LONG)?;
        alone.expect("anna", "try 30000", &Answer::Taken)?;
        alone.expect_state("anna", 0, true)?;
        alone.expect("anna", "release", &Answer::Lost)?;
        alone.expect("anna", "acquire 30000 300", &Answer::Taken)?;
        alone.start_waiter("anna", "lock 30000", 1)?;
        let scripts = alone.settled_scripts()?;
        alone.driver.expect_no_answer(2 * SHORT)?;
        ensure!(alone.scripts()? == scripts, "the library polls while it waits");
        alone.key.expect_hash(&[(FOREIGN_OWNER, "1"), UNKNOWN_FIELD])?;
        alone.key.expect_expiry(LONG)?;

        // Only the message wakes the waiter.
        alone.key.call("DEL", &[])?;
        alone.driver.expect_no_answer(SHORT)?;
        alone.key.publish(&channel_of(name), "0")?;
        woken.push(alone.expect_acquired("anna", SOON)?.as_millis());
        alone.expect("anna", "release", &Answer::Ok)?;

        // A waiter polls at the end of the lease that it saw first, and waits on if the lease was extended.
        alone.write(FOREIGN_OWNER, RENEWED)?;
        alone.start_waiter("anna", "lock 30000", 1)?;
        let extended = Instant::now();
        alone.key.call("PEXPIRE", &[&(2 * RENEWED).as_millis().to_string()])?;
        setup(alone.key.expect_hash(&[(FOREIGN_OWNER, "1"), UNKNOWN_FIELD]))
            .context("the lease ended before it was extended")?;
        alone.expect_acquired("anna", 2 * RENEWED + BEGUN_WITHIN)?;
        let waited = extended.elapsed();
        ensure!(waited >= 2 * RENEWED, "the library acquired the lock after {waited:?}");
    }
    Ok(format!("no script while it waits; it acquired the lock {woken:?} ms after the message"))
}

pub(super) fn messages(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, LONG)?;
    let mut others = alone.another_client(library, LONG)?;
    let channel = channel_of(LOCK);
    alone.write(FOREIGN_OWNER, LONG)?;
    alone.start_waiter("anna", "lock 30000", 1)?;
    alone.start_waiter("boris", "lock 30000", 1)?;
    others.send(&to("carla", "lock 30000", LOCK))?;
    await_subscribers(&alone.server, LOCK, 2)?;
    let wake = |alone: &mut Alone, message: &str| {
        // Nothing but the scripts shows that the second waiter of a client has begun to wait.
        let before = alone.settled_scripts()?;
        alone.key.publish(&channel, message)?;
        Ok::<_, anyhow::Error>(alone.settled_scripts()? - before)
    };
    let (one, all, unknown) = (wake(&mut alone, "0")?, wake(&mut alone, "1")?, wake(&mut alone, "7")?);
    ensure!(
        (one, all, unknown) == (2, 3, 0),
        "of three waiters in two clients `0` woke {one}, `1` {all} and `7` {unknown}"
    );

    // One `0` is enough for all: each release wakes the next waiter.
    alone.key.call("DEL", &[])?;
    alone.key.publish(&channel, "0")?;
    alone.driver.send(&to("anna", "release", LOCK))?;
    alone.driver.send(&to("boris", "release", LOCK))?;
    others.send(&to("carla", "release", LOCK))?;
    for thread in ["anna", "boris"] {
        expect_acquired(&mut alone.driver, thread, SOON)?;
        let released = alone.driver.answer_to(&to(thread, "release", LOCK), SOON)?;
        ensure!(released == Answer::Ok, "{thread}'s release was answered {released:?}");
    }
    expect_acquired(&mut others, "carla", SOON)?;
    Ok("`0` wakes one waiter of each client, `1` all".into())
}

pub(super) fn same_owner(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, RENEWED)?;
    let anna = alone.owner("anna")?;
    alone.write(&anna, LONG)?;
    alone.expect_state("anna", 1, true)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // The library re-enters, and sets the expiry to its own lease, also to an earlier one.
    alone.expect("anna", "try 10000", &Answer::Got)?;
    alone.key.expect_hash(&[(&anna, "2"), UNKNOWN_FIELD])?;
    alone.key.expect_expiry(LONG / 3)?;
    alone.key.call("PEXPIRE", &["30000"])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_hash(&[(&anna, "1"), UNKNOWN_FIELD])?;
    alone.key.expect_expiry(RENEWED)?;

    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.call("PEXPIRE", &["30000"])?;
    std::thread::sleep(RENEWED);
    alone.key.expect_expiry(RENEWED)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // The library does not know which client a count is of.
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.expect_free()?;
    Ok("the library re-enters, sets the expiry to its own lease, and can release what another client counted"
        .into())
}

pub(super) fn other_type(library: &Library) -> Result<String> {
    let mut alone = Alone::new(library, LOCK, LONG)?;
    alone.key.call("SET", &["a token", "PX", "30000"])?;
    let token = alone.key.token()?;
    for request in ["try 30000", "lock 0", "release"] {
        match alone.driver.request(&to("anna", request, LOCK)) {
            Err(error) if format!("{error:#}").contains("WRONGTYPE") => {}
            other => bail!("`{request}` about a string was answered {other:?}"),
        }
    }
    alone.key.expect_token(&token, "a Mutex")?;
    alone.key.expect_expiry(LONG)?;
    alone.expect("anna", "free", &Answer::Ok)?;
    alone.key.expect_free()?;
    Ok("WRONGTYPE, and nothing is written; but a release by force removes whatever it is".into())
}
