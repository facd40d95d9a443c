//! One task of a process: acquires locks of every kind, uses them in unusual ways, and in the end in the usual way.
//!
//! It uses a ReentrantMutex as its own owner, as the owner that all tasks of its process share, as an owner received
//! from another process by its header, or without an owner; with an owner it often re-enters.

use crate::checks::{Held, Rule};
use crate::client::Process;
use crate::having::{Having, Want};
use crate::host::{Chance, lock};
use leasehold::{Client, LostReason, Owner, Released};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often each task acquires each lock, and all of them at once, after the faults have ended.
const ROUNDS: u32 = 2;

/// Within what time it then succeeds: late bytes have arrived, the last hold of a crashed client has ended,
/// connections are open again, and all others had their turn.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// The deepest re-entry.
const DEEPEST: u32 = 3;

/// Owner headers on their way between processes: what a request between them would carry.
#[derive(Debug, Default)]
pub(crate) struct Post(Mutex<VecDeque<String>>);

impl Post {
    /// Old headers belong to owners that have left: few are kept.
    const KEPT: usize = 4;

    fn send(&self, header: String) {
        let mut headers = lock(&self.0);
        headers.truncate(Self::KEPT - 1);
        headers.push_front(header);
    }

    fn receive(&self) -> Option<String> {
        lock(&self.0).pop_front()
    }
}

/// One task of a process.
pub(crate) struct Task {
    process: Process,
    mutexes: Vec<Want>,
    entrances: Vec<Want>,
    client: Client,
    /// An owner of its own, unless it sends the header to another process.
    own: Owner,
    /// The owner that all tasks of the process share.
    shared: Owner,
}

impl Task {
    pub(crate) fn new(process: Process, client: &Client, shared: Owner) -> Self {
        let mutex = |n| Want::One(client.mutex(mutex_name(n)).expect("it is a name"));
        let entrance = |n| Want::Entry(client.reentrant_mutex(format!("rlock-{n}")).expect("it is a name"));
        Self {
            mutexes: (0..process.terms.mutexes).map(mutex).collect(),
            entrances: (0..process.terms.entrances).map(entrance).collect(),
            client: client.clone(),
            own: client.owner(),
            shared,
            process,
        }
    }

    pub(crate) async fn run(self) {
        while !self.process.terms.calm.load(Ordering::Relaxed) {
            let mut want = self.something();
            if self.chance().one_in(2) {
                want = want.lease(self.chance().millis(200, 5_000));
            }
            self.wild(&want, 1).await;
            sleep(self.chance().millis(0, 150)).await;
        }
        let all = self.set(|_| true);
        for want in self.mutexes.iter().chain(&self.entrances).chain([&all]) {
            for _ in 0..ROUNDS {
                self.served(want).await;
            }
        }
    }

    fn chance(&self) -> &Chance {
        &self.process.chance
    }

    /// A Mutex, a ReentrantMutex as some owner, or some of the Mutexes.
    fn something(&self) -> Want {
        let any =
            |of: &[Want]| of[usize::try_from(self.chance().below(of.len() as u64)).unwrap_or(0)].clone();
        match self.chance().below(8) {
            0..=2 => any(&self.mutexes),
            3 => self.set(|_| self.chance().one_in(2)),
            _ => {
                let entrance = any(&self.entrances);
                match self.choose_owner() {
                    Some(owner) => entrance.owned_by(&owner),
                    None => entrance,
                }
            }
        }
    }

    fn choose_owner(&self) -> Option<Owner> {
        match self.chance().below(6) {
            0 => None,
            1 => Some(self.own.clone()),
            2 | 3 => Some(self.shared.clone()),
            _ => {
                let header = self.process.terms.post.receive()?;
                Some(Owner::from_header(header).expect("a task of this simulation wrote it"))
            }
        }
    }

    /// Several Mutexes at once: at least the first.
    fn set(&self, is_in: impl Fn(usize) -> bool) -> Want {
        let names = (0..self.mutexes.len()).filter(|n| *n == 0 || is_in(*n)).map(mutex_name);
        Want::Set(self.client.multi_mutex(names).expect("good names"))
    }

    /// Acquires a lock in some way and uses it; an owner may re-enter meanwhile.
    async fn wild(&self, want: &Want, depth: u32) {
        let Some(held) = self.seek(want).await else { return };
        if let Some(owner) = held.having().owner() {
            if self.chance().one_in(3) {
                self.process.terms.post.send(owner.to_header());
            }
            if depth < DEEPEST && self.chance().one_in(2) {
                // Like called code, which knows the lock's name but not its holder.
                let inner = self.entrances.iter().find(|entrance| entrance.to_string() == want.to_string());
                let inner = inner.expect("the held lock is one of them").clone();
                Box::pin(owner.clone().scope(self.wild(&inner, depth + 1))).await;
            }
        }
        if !self.use_it(want, &held).await {
            return;
        }
        match self.chance().below(8) {
            0 => {
                self.say(want, "drops it");
                drop(held);
            }
            1 => {
                let Some(having) = held.into_having() else { return };
                let within = self.chance().millis(0, 20);
                let released = timeout(within, having.release()).await;
                self.say(want, format_args!("drops a release: {released:?}"));
            }
            _ => self.release(want, held).await,
        }
    }

    /// Acquires in one of the possible ways.
    async fn seek(&self, want: &Want) -> Option<Held> {
        let limit = self.chance().millis(50, 4_000);
        match self.chance().below(4) {
            0 => match want.try_acquire().await {
                Ok(Some(having)) => Some(self.have(want, having)),
                Ok(None) => self.miss(want, "taken", "it is taken"),
                Err(error) => self.miss(want, "failed", error),
            },
            1 => match timeout(limit, want.acquire()).await {
                Ok(Ok(having)) => Some(self.have(want, having)),
                Ok(Err(error)) => self.miss(want, "failed", error),
                Err(_) => self.miss(want, "dropped", "it lost patience"),
            },
            _ => match want.acquire_timeout(limit).await {
                Ok(having) => Some(self.have(want, having)),
                Err(error) => self.miss(want, "failed", error),
            },
        }
    }

    fn miss(&self, want: &Want, how: &'static str, why: impl fmt::Display) -> Option<Held> {
        self.process.record.count(how);
        self.say(want, format_args!("does not get it: {why}"));
        None
    }

    fn have(&self, want: &Want, having: Having) -> Held {
        let Process { record, clock, pace, name, .. } = &self.process;
        record.count(self.how(&having));
        let owner = having.owner().map(|owner| format!(" as {owner}, {} times", having.count()));
        self.say(want, format_args!("has it: {:?}{}", having.locks(), owner.unwrap_or_default()));
        record.hold(clock.elapsed(), *pace, name, having)
    }

    /// The name under which it is counted.
    fn how(&self, having: &Having) -> &'static str {
        match having {
            Having::One(_) => "held",
            Having::Set(set) if set.fencing_tokens().count() > 1 => "held a set",
            Having::Set(_) => "held a set of one",
            Having::Entry(entry) if entry.count() == 1 => "entered",
            Having::Entry(entry) if *entry.owner() == self.own => "entered again",
            Having::Entry(entry) if *entry.owner() == self.shared => "entered again by many",
            Having::Entry(_) => "entered again from elsewhere",
        }
    }

    /// Uses it for a while; returns whether it was held all the time.
    async fn use_it(&self, want: &Want, held: &Held) -> bool {
        // Some uses last until the loss is reported: a guard that counts as held for too long shows at its end.
        let (steps, most_ms) =
            if self.chance().one_in(3) { (120, 100) } else { (self.chance().below(6), 700) };
        for _ in 0..steps {
            sleep(self.chance().millis(0, most_ms)).await;
            if let Err(lost) = held.having().check() {
                self.process.record.count("lost");
                self.say(want, lost);
                return false;
            }
            if steps < 6 && self.chance().one_in(6) {
                let extended = held.having().extend().await.map_err(|error| error.to_string());
                self.say(want, format_args!("extended: {extended:?}"));
            }
        }
        true
    }

    async fn release(&self, want: &Want, held: Held) {
        match self.released(held).await {
            Ok(left) => {
                self.process.record.count("released");
                self.say(want, format_args!("has released it: {left:?}"));
            }
            Err(error) => {
                self.process.record.count("not released");
                self.say(want, format_args!("has not released it: {error}"));
            }
        }
    }

    /// Releases it; `ForceRelease` also if there is nothing to release any more.
    async fn released(&self, held: Held) -> Result<Released, String> {
        let Some(having) = held.into_having() else { return Ok(Released::Free) };
        let locks = having.locks();
        let released = having.release().await;
        self.process.record.given_back(&locks, released.as_ref().ok());
        released
    }

    /// Acquires it once, after the faults have ended. A connection that an earlier fault has broken may cost a call;
    /// but a hold must be kept.
    async fn served(&self, want: &Want) {
        let process = &self.process;
        let until = process.clock.elapsed() + SERVED_WITHIN;
        while let Err(error) = self.have_once(want, until).await {
            let now = process.clock.elapsed();
            if now >= until {
                let what = format_args!("{} is not served with {want}: {error}", process.name);
                process.record.violated(Rule::Service, now, what);
                return;
            }
            process.record.count("tried again");
            self.say(want, format_args!("tries again: {error}"));
            sleep(self.chance().millis(10, 100)).await;
        }
        process.record.count("served");
        self.say(want, "was served");
    }

    async fn have_once(&self, want: &Want, until: Duration) -> Result<(), String> {
        let owner = if self.chance().one_in(2) { &self.own } else { &self.shared };
        let want = want.clone().owned_by(owner);
        let outer = self.had(&want, until).await?;
        if outer.having().owner().is_some() {
            let inner = self.had(&want, until).await?;
            self.is_kept(&inner);
            let left = self.released(inner).await?;
            if left == Released::Free && outer.having().check().is_ok() {
                let what = format_args!("{}: {want} is free after the inner release", self.process.name);
                self.process.record.violated(Rule::Count, self.process.clock.elapsed(), what);
            }
        }
        self.is_kept(&outer);
        self.released(outer).await.map(drop)
    }

    /// Holds it for a moment.
    async fn had(&self, want: &Want, until: Duration) -> Result<Held, String> {
        let left = until.saturating_sub(self.process.clock.elapsed());
        let having = want.acquire_timeout(left).await.map_err(|error| error.to_string())?;
        let held = self.have(want, having);
        sleep(self.chance().millis(1, 40)).await;
        Ok(held)
    }

    fn is_kept(&self, held: &Held) {
        if let Err(lost) = held.having().check() {
            let now = self.process.clock.elapsed();
            // Which of the two it is depends on whether the heartbeat that discovered the loss was in time.
            let with_its_session =
                matches!(lost.reason, LostReason::SessionLapsed | LostReason::StoreLostData);
            let record = &self.process.record;
            let by_earlier_trouble =
                record.may_have_forgotten_a_session(now) || record.may_lapse_yet(&held.having().locks());
            if with_its_session && by_earlier_trouble {
                return;
            }
            let what = format_args!("{}: {lost}", self.process.name);
            self.process.record.violated(Rule::Keeping, now, what);
        }
    }

    fn say(&self, want: &Want, what: impl fmt::Display) {
        self.process.say(format_args!("{want}: {what}"));
    }
}

fn mutex_name(n: usize) -> String {
    format!("lock-{n}")
}
