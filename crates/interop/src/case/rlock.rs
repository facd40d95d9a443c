//! What Redisson's `RLock` does by itself: the facts that our ReentrantMutex builds on.
//!
//! None of our clients takes part. A hash that one of ours would write is written by hand, so that what fails here is
//! not ours.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leasehold_testkit::{RedisServer, Value};

use super::{LONG, RENEWED, SHORT};
use crate::driver::{Answer, Driver, State};
use crate::ground::{NAME, SOON};
use crate::key::{Key, Messages};
use crate::neighbour::Neighbour;

/// A name without braces, for which they use another channel.
const PLAIN: &str = "shop:orders:42";
/// An owner that is none of theirs.
const STRANGER: &str = "worker-7";
/// A field that they do not know, and what is in it.
const UNKNOWN: (&str, &str) = ("leasehold", "7 30000\nworker-7");
/// The lease of their watchdog where it is watched: a Java machine that is short of time must yet renew it.
const WATCHED: Duration = Duration::from_secs(2);
/// How long it may take until they have begun to do something: a Java machine is slow at what it does first.
const BEGUN: Duration = Duration::from_secs(20);

/// A server of its own with one client of theirs, and one lock.
struct Alone {
    server: RedisServer,
    theirs: Driver,
    name: &'static str,
    key: Key,
}

impl Alone {
    fn with(neighbour: &Neighbour, name: &'static str, watchdog: Duration) -> Result<Self> {
        let server = RedisServer::start()?;
        let theirs = Driver::start(neighbour, &server.url(), watchdog)?;
        let key = Key::of(&server, name)?;
        Ok(Self { server, theirs, name, key })
    }

    /// Has one of their threads do something with the lock, and fails if it is answered otherwise.
    fn expect(&mut self, thread: &str, request: &str, expected: &Answer) -> Result<()> {
        self.theirs.expect(&to(thread, request, self.name), expected)
    }

    /// Has a thread wait for the lock; returns when this many clients listen to its channel.
    fn waits(&mut self, thread: &str, request: &str, listeners: i64) -> Result<()> {
        self.theirs.send(&to(thread, request, self.name))?;
        listen(&self.server, self.name, listeners)
    }

    /// Fails unless the thread has the lock within that time; how long it took.
    fn gets_it(&mut self, thread: &str, within: Duration) -> Result<Duration> {
        gets_it(&mut self.theirs, thread, within)
    }

    /// The owner that a thread is at the key.
    fn owner(&mut self, thread: &str) -> Result<String> {
        match self.theirs.ask(&format!("as {thread} owner"))? {
            Answer::Owner(owner) => Ok(owner),
            other => bail!("`owner` was answered {other:?}"),
        }
    }

    /// Fails unless a thread sees this hold count, and the lock held or free.
    fn is(&mut self, thread: &str, count: u32, locked: bool) -> Result<State> {
        match self.theirs.ask(&to(thread, "state", self.name))? {
            Answer::State(state) => {
                let said = (state.count, state.mine, state.locked);
                ensure!(said == (count, count > 0, locked), "{thread} is told {state:?}");
                Ok(state)
            }
            other => bail!("`state` was answered {other:?}"),
        }
    }

    /// Writes the lock of an owner with a field unknown to them, as one of ours would.
    fn write(&mut self, owner: &str, lease: Duration) -> Result<()> {
        self.key.call("HSET", &[owner, "1", UNKNOWN.0, UNKNOWN.1])?;
        self.key.call("PEXPIRE", &[&lease.as_millis().to_string()])?;
        Ok(())
    }

    /// How many scripts were run so far.
    fn scripts(&self) -> Result<u64> {
        Ok(self.server.command_counts()?.get("evalsha").copied().unwrap_or(0))
    }

    /// How many scripts were run once there are no more of them.
    fn settles(&self) -> Result<u64> {
        let (start, mut scripts) = (Instant::now(), self.scripts()?);
        loop {
            std::thread::sleep(2 * SHORT);
            let now = self.scripts()?;
            if now == scripts {
                return Ok(now);
            }
            ensure!(start.elapsed() < BEGUN, "they run scripts for ever: {now} by now");
            scripts = now;
        }
    }

    /// Fails unless nothing is on the server any more; they remove their latches a moment later.
    fn is_empty(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let keys = self.server.cli(&["KEYS", "*"])?.ok()?;
            if keys.elements().is_empty() {
                return Ok(());
            }
            ensure!(start.elapsed() < BEGUN, "they left {keys:?}");
        }
    }
}

/// The request to a thread, with the lock's name behind its verb.
fn to(thread: &str, request: &str, name: &str) -> String {
    let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
    format!("as {thread} {verb} {name} {rest}").trim_end().to_owned()
}

fn gets_it(theirs: &mut Driver, thread: &str, within: Duration) -> Result<Duration> {
    let start = Instant::now();
    let answer = theirs
        .answer_to(&format!("as {thread} "), within)
        .with_context(|| format!("{thread} did not get the free lock"))?;
    ensure!(answer == Answer::Got, "{thread} gave up the free lock: {answer:?}");
    Ok(start.elapsed())
}

/// Returns when so many clients of theirs listen to the lock's channel.
fn listen(server: &RedisServer, name: &str, clients: i64) -> Result<()> {
    let channel = channel_of(name);
    let start = Instant::now();
    loop {
        let reply = server.cli(&["PUBSUB", "NUMSUB", &channel])?.ok()?;
        let there = reply.elements().get(1).and_then(Value::integer);
        if there == Some(clients) {
            return Ok(());
        }
        ensure!(start.elapsed() < BEGUN, "{there:?} clients listen to `{channel}` and not {clients}");
    }
}

/// The channel of a lock. Theirs has braces around a name that has none.
fn channel_of(name: &str) -> String {
    if name.contains('{') {
        format!("redisson_lock__channel:{name}")
    } else {
        format!("redisson_lock__channel:{{{name}}}")
    }
}

/// The client and the thread that an owner is made of.
fn parts(owner: &str) -> Result<(&str, u64)> {
    let (client, thread) = owner.split_once(':').with_context(|| format!("`{owner}` has no thread"))?;
    let groups: Vec<usize> = client.split('-').map(str::len).collect();
    let hexadecimal = client.chars().all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c));
    ensure!(groups == [8, 4, 4, 4, 12] && hexadecimal, "`{client}` is no UUID");
    Ok((client, thread.parse().with_context(|| format!("`{thread}` is no number"))?))
}

pub(super) fn format(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, RENEWED)?;
    let (anna, boris) = (alone.owner("anna")?, alone.owner("boris")?);
    let ((client, thread), (same, another)) = (parts(&anna)?, parts(&boris)?);
    ensure!(client == same && thread != another, "`{anna}` and `{boris}` are threads of one client");
    let mut stranger = Driver::start(neighbour, &alone.server.url(), LONG)?;
    ensure!(
        matches!(stranger.ask("owner")?, Answer::Owner(other) if parts(&other)?.0 != client),
        "two clients have one id"
    );

    alone.expect("anna", "try 30000", &Answer::Got)?;
    alone.key.is_hash(&[(&anna, "1")])?;
    alone.key.lasts(LONG)?;
    alone.expect("anna", "try 20000", &Answer::Got)?;
    alone.key.is_hash(&[(&anna, "2")])?;
    ensure!(alone.server.cli(&["DBSIZE"])?.integer() == Some(1), "there is more than the key");
    let told = alone.is("anna", 2, true)?;
    ensure!((10_001..=20_000).contains(&told.remaining_ms), "the lease is not the last one: {told:?}");
    alone.is("boris", 0, true)?;
    alone.expect("boris", &format!("held-by {thread}"), &Answer::Yes)?;
    alone.expect("anna", &format!("held-by {another}"), &Answer::No)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    stranger.expect(&format!("try {NAME} 30000"), &Answer::Taken)?;

    alone.expect("boris", "release", &Answer::Lost)?;
    stranger.expect(&format!("release {NAME}"), &Answer::Lost)?;
    alone.key.is_hash(&[(&anna, "2")])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_hash(&[(&anna, "1")])?;
    let shortened = alone.key.remaining()?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_free()?;
    alone.is("anna", 0, false)?;
    alone.expect("anna", "release", &Answer::Lost)?;
    alone.expect("boris", "free", &Answer::Lost)?;
    alone.is_empty()?;
    // The driver asks for the lock anew each time, and a lock object that took no lease itself thinks of the watchdog's.
    ensure!(shortened.is_some_and(|left| left <= RENEWED), "their release left {shortened:?}");
    Ok(format!(
        "`{anna}` = count; a release that keeps the lock set its end from 20 s to {} ms",
        shortened.map_or(0, |left| left.as_millis())
    ))
}

pub(super) fn channel(neighbour: &Neighbour) -> Result<String> {
    for name in [NAME, PLAIN] {
        let mut alone = Alone::with(neighbour, name, LONG)?;
        let mut messages = Messages::of(&alone.server)?;
        let message = format!("{} 0", channel_of(name));
        let mut publishes = |alone: &mut Alone, expected: &[&String], what: &str| {
            let received = messages.received(&mut alone.key)?;
            ensure!(received.iter().eq(expected.iter().copied()), "{what} published {received:?}");
            Ok(())
        };
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("boris", "try 30000", &Answer::Taken)?;
        alone.expect("boris", "release", &Answer::Lost)?;
        alone.expect("anna", "release", &Answer::Ok)?;
        publishes(&mut alone, &[], "what leaves the lock held")?;
        alone.expect("anna", "release", &Answer::Ok)?;
        publishes(&mut alone, &[&message], "the last release")?;
        alone.expect("anna", "try 30000", &Answer::Got)?;
        alone.expect("boris", "free", &Answer::Ok)?;
        publishes(&mut alone, &[&message], "the release by force")?;
        alone.expect("boris", "free", &Answer::Lost)?;
        publishes(&mut alone, &[], "the release by force of a free lock")?;
        alone.expect("anna", "release", &Answer::Lost)?;
        alone.expect("anna", "try 100", &Answer::Got)?;
        // A waiter has it by looking when the lease has ended.
        alone.expect("boris", "acquire 30000 20000", &Answer::Got)?;
        publishes(&mut alone, &[], "the end of a lease")?;
    }
    Ok(format!("`0` on `{}` and `{}`", channel_of(NAME), channel_of(PLAIN)))
}

pub(super) fn watchdog(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, WATCHED)?;
    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.lasts(WATCHED)?;
    let (mut periods, mut least) = (Vec::new(), WATCHED);
    let start = Instant::now();
    let (mut before, mut renewed) = (WATCHED, start);
    while start.elapsed() < 3 * WATCHED {
        // Looking without a pause would keep them from renewing in time.
        std::thread::sleep(Duration::from_millis(2));
        let left = alone.key.remaining()?.context("their lock has no expiry")?;
        if left > before {
            periods.push(renewed.elapsed().as_millis());
            renewed = Instant::now();
        }
        (before, least) = (left, least.min(left));
    }
    // Their timer has steps of 100 ms, and the machine is busy.
    let third = (WATCHED / 3).as_millis();
    let regular = periods.iter().filter(|period| (third - 50..third + 200).contains(period)).count();
    ensure!(periods.len() >= 5 && regular + 2 >= periods.len(), "renewed after {periods:?} ms");
    let name = alone.name;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // The lock of a dead process is not renewed any more; a lock with a given lease never is.
    alone.theirs.kill()?;
    let died = Instant::now();
    while alone.key.is_free().is_err() {
        std::thread::sleep(Duration::from_millis(2));
        ensure!(died.elapsed() < WATCHED + SOON, "the lock of the dead is renewed");
    }
    let mut heirs = Driver::start(neighbour, &alone.server.url(), WATCHED)?;
    // Longer than until a renewal would come.
    heirs.expect(&format!("try {name} {}", (WATCHED / 2).as_millis()), &Answer::Got)?;
    heirs.expect(&format!("as boris acquire {name} 30000 {}", (2 * WATCHED).as_millis()), &Answer::Got)?;
    heirs.expect("release", &Answer::Lost)?;
    Ok(format!("every {periods:?} ms of {}; least left {} ms", WATCHED.as_millis(), least.as_millis()))
}

pub(super) fn fields(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, RENEWED)?;
    let anna = alone.owner("anna")?;
    let take = |alone: &mut Alone, lease: &str| {
        alone.expect("anna", lease, &Answer::Got)?;
        alone.key.call("HSET", &[UNKNOWN.0, UNKNOWN.1])?;
        Ok::<_, anyhow::Error>(())
    };
    take(&mut alone, "lock 0")?;
    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.is_hash(&[(&anna, "2"), UNKNOWN])?;
    alone.is("anna", 2, true)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    std::thread::sleep(2 * RENEWED);
    alone.key.lasts(RENEWED)?;
    alone.key.is_hash(&[(&anna, "2"), UNKNOWN])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_hash(&[(&anna, "1"), UNKNOWN])?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_free()?;

    take(&mut alone, "lock 0")?;
    alone.expect("boris", "free", &Answer::Ok)?;
    alone.key.is_free()?;
    alone.expect("anna", "release", &Answer::Lost)?;

    take(&mut alone, "lock 300")?;
    alone.expect("boris", "acquire 30000 20000", &Answer::Got)?;
    let boris = alone.owner("boris")?;
    alone.key.is_hash(&[(&boris, "1")])?;
    Ok("stays on re-entry, renewal and partial release; goes with the last release, force and expiry".into())
}

pub(super) fn waits(neighbour: &Neighbour) -> Result<String> {
    let mut woken = Vec::new();
    for name in [NAME, PLAIN] {
        let mut alone = Alone::with(neighbour, name, LONG)?;
        alone.write(STRANGER, LONG)?;
        alone.expect("anna", "try 30000", &Answer::Taken)?;
        alone.is("anna", 0, true)?;
        alone.expect("anna", "release", &Answer::Lost)?;
        alone.expect("anna", "acquire 30000 300", &Answer::Taken)?;
        alone.waits("anna", "lock 30000", 1)?;
        let scripts = alone.settles()?;
        alone.theirs.silent_for(2 * SHORT)?;
        ensure!(alone.scripts()? == scripts, "they look for themselves while they wait");
        alone.key.is_hash(&[(STRANGER, "1"), UNKNOWN])?;
        alone.key.lasts(LONG)?;

        // It is the message that wakes them, and nothing else.
        alone.key.call("DEL", &[])?;
        alone.theirs.silent_for(SHORT)?;
        alone.key.publish(&channel_of(name), "0")?;
        woken.push(alone.gets_it("anna", SOON)?.as_millis());
        alone.expect("anna", "release", &Answer::Ok)?;

        // But for the end of the lease, as they saw it first: they look then, and wait on if it was extended.
        alone.write(STRANGER, SHORT)?;
        let held = Instant::now();
        alone.waits("anna", "lock 30000", 1)?;
        alone.key.call("PEXPIRE", &["1000"])?;
        alone.gets_it("anna", 2 * SHORT + SOON)?;
        ensure!(held.elapsed() >= 2 * SHORT, "they had the lock after {:?}", held.elapsed());
    }
    Ok(format!("no script while they wait; they had it {woken:?} ms after the message"))
}

pub(super) fn messages(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, LONG)?;
    let mut others = Driver::start(neighbour, &alone.server.url(), LONG)?;
    let channel = channel_of(NAME);
    alone.write(STRANGER, LONG)?;
    alone.waits("anna", "lock 30000", 1)?;
    alone.waits("boris", "lock 30000", 1)?;
    others.send(&to("carla", "lock 30000", NAME))?;
    listen(&alone.server, NAME, 2)?;
    let looks = |alone: &mut Alone, message: &str| {
        // Nothing but the scripts shows that the second waiter of a client has begun to wait.
        let before = alone.settles()?;
        alone.key.publish(&channel, message)?;
        Ok::<_, anyhow::Error>(alone.settles()? - before)
    };
    let (one, all, unknown) = (looks(&mut alone, "0")?, looks(&mut alone, "1")?, looks(&mut alone, "7")?);
    ensure!(
        (one, all, unknown) == (2, 3, 0),
        "of three waiters in two clients `0` woke {one}, `1` {all} and `7` {unknown}"
    );

    // One `0` is enough for all: each release wakes the next waiter.
    alone.key.call("DEL", &[])?;
    alone.key.publish(&channel, "0")?;
    alone.theirs.send(&to("anna", "release", NAME))?;
    alone.theirs.send(&to("boris", "release", NAME))?;
    others.send(&to("carla", "release", NAME))?;
    for thread in ["anna", "boris"] {
        gets_it(&mut alone.theirs, thread, SOON)?;
        let released = alone.theirs.answer_to(&to(thread, "release", NAME), SOON)?;
        ensure!(released == Answer::Ok, "{thread}'s release was answered {released:?}");
    }
    gets_it(&mut others, "carla", SOON)?;
    Ok("`0` wakes one waiter of each client, `1` all".into())
}

pub(super) fn same_owner(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, RENEWED)?;
    let anna = alone.owner("anna")?;
    alone.write(&anna, LONG)?;
    alone.is("anna", 1, true)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // They enter, and the end of what another wrote is theirs from then on, though it be earlier.
    alone.expect("anna", "try 10000", &Answer::Got)?;
    alone.key.is_hash(&[(&anna, "2"), UNKNOWN])?;
    alone.key.lasts(LONG / 3)?;
    alone.key.call("PEXPIRE", &["30000"])?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_hash(&[(&anna, "1"), UNKNOWN])?;
    alone.key.lasts(RENEWED)?;

    alone.expect("anna", "lock 0", &Answer::Got)?;
    alone.key.call("PEXPIRE", &["30000"])?;
    std::thread::sleep(RENEWED);
    alone.key.lasts(RENEWED)?;
    alone.expect("boris", "try 30000", &Answer::Taken)?;

    // They do not know whose hold a count stands for.
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.expect("anna", "release", &Answer::Ok)?;
    alone.key.is_free()?;
    Ok("they enter by the count, set the end to their own lease, and can release the count of another".into())
}

pub(super) fn other_type(neighbour: &Neighbour) -> Result<String> {
    let mut alone = Alone::with(neighbour, NAME, LONG)?;
    alone.key.call("SET", &["a token", "PX", "30000"])?;
    let token = alone.key.token()?;
    for request in ["try 30000", "lock 0", "release"] {
        match alone.theirs.ask(&to("anna", request, NAME)) {
            Err(error) if format!("{error:#}").contains("WRONGTYPE") => {}
            other => bail!("`{request}` about a string was answered {other:?}"),
        }
    }
    alone.key.is_still(&token, "a Mutex")?;
    alone.key.lasts(LONG)?;
    alone.expect("anna", "free", &Answer::Ok)?;
    alone.key.is_free()?;
    Ok("WRONGTYPE, and nothing is written; but a release by force removes whatever it is".into())
}
