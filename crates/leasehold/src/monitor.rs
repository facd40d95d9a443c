//! The monitor: takes from dead sessions what they held, where nobody waits who would notice.
//!
//! 1. Whether a session is dead is looked at by the store, in the step that takes its lock: one that is back in time
//!    keeps what it has, whatever the list said.
//! 2. A round has a bound, and a lock that was settled for a dead session is not asked about again: a session that has
//!    lapsed takes no more locks.
//! 3. A store that does not answer is asked again after pauses that grow, up to a cap.

use crate::client::Client;
use crate::store::{Fault, Outcome};
use leasehold_core::{
    About, Evict, Evicted, FencingToken, Label, Lock, LockName, Op, Reply, SessionEntry, SessionId,
};
use leasehold_store::jitter;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

/// How many locks one round settles at most.
const A_ROUND: usize = 1024;
/// How many of them in one go.
const AT_ONCE: usize = 128;
/// The shortest time between two rounds.
const SHORTEST: Duration = Duration::from_millis(100);
/// Pauses after a round that the store did not answer: the first, and the longest.
const FAULT_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Takes from dead sessions what they held, every so often: [`Client::monitor`].
///
/// Whoever waits for a lock notices by himself that its holder has died. A monitor frees also the locks for which nobody
/// waits, so that they are seen free, and whoever comes next need not find it out. Any number of them may run.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use std::time::Duration;
///
/// let client = Client::builder("memory:").label("monitor on bastion").connect().await?;
/// let monitor = client.monitor().every(Duration::from_secs(5));
/// let watching = tokio::spawn(monitor.run(|round| {
///     for evicted in &round.evicted {
///         println!("{} was taken from {:?}", evicted.name, evicted.whose);
///     }
/// }));
/// // It runs until it is dropped.
/// watching.abort();
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a monitor does nothing until `run`, or `round`"]
pub struct Monitor {
    client: Client,
    every: Duration,
    /// The locks of dead sessions of which nothing is to be taken any more (2).
    settled: HashMap<SessionId, HashSet<Lock>>,
}

/// What one round of a [`Monitor`] has found and done.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let round = client.monitor().round().await;
/// match &round.trouble {
///     None => println!("{} live, {} are dead, {} locks freed", round.alive, round.dead, round.evicted.len()),
///     Some(fault) => println!("not finished: {fault}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MonitorReport {
    /// How many sessions are alive.
    pub alive: usize,
    /// How many are dead, and not forgotten yet.
    pub dead: usize,
    /// What was taken from dead ones.
    pub evicted: Vec<Eviction>,
    /// How many locks of dead ones are left for the next round.
    pub left: usize,
    /// What the store did not answer, or refused. What it did all the same may be missing from what was evicted.
    pub trouble: Option<Fault>,
}

/// One lock was taken from one dead session.
///
/// [`Monitor`] shows it in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// The lock.
    pub name: LockName,
    /// The dead session.
    pub session: SessionId,
    /// What it was called; nothing, where that cannot be read.
    pub whose: Option<Label>,
    /// The fencing token of its hold; nothing, where it had only a place in the queue.
    pub fence: Option<FencingToken>,
}

impl Client {
    /// What takes from dead sessions what they held, also where nobody waits for it. It does nothing before it is
    /// [run](Monitor::run). What it does stands in each lock's audit, with this client's label.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.clone())
    }
}

impl Monitor {
    pub(crate) fn new(client: Client) -> Self {
        let session = client.engine.timings.session.unwrap_or(Client::SESSION);
        Self { client, every: session / 4, settled: HashMap::new() }
    }

    /// How often it looks, give or take a quarter; a quarter of the client's session time if nothing is set, 100 ms at
    /// least.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every.max(SHORTEST);
        self
    }

    /// Runs round after round until the future is dropped, and hands each to `told`. What it evicts is also logged. While
    /// the store does not answer, it pauses for half a second to 5 s: the store forgets the dead soon.
    ///
    /// Cancel safety: dropping the future ends the monitor. What is under way may be done, and not told.
    pub async fn run(mut self, mut told: impl FnMut(&MonitorReport)) -> Infallible {
        let engine = self.client.engine.clone();
        let (first, most) = FAULT_PAUSE;
        let mut fault_pause = first;
        loop {
            let round = self.round().await;
            told(&round);
            let pause = if round.trouble.is_some() {
                let pause = fault_pause;
                fault_pause = (fault_pause * 2).min(most);
                pause
            } else {
                fault_pause = first;
                self.every
            };
            let again_at = engine.world.now() + pause * 3 / 4 + jitter(&*engine.world, pause / 2);
            engine.world.sleep_until(again_at).await;
        }
    }

    /// One round: lists the sessions, and takes from the dead what they held, 1024 locks at most.
    ///
    /// Cancel safety: as [`run`](Self::run).
    pub async fn round(&mut self) -> MonitorReport {
        let mut report = MonitorReport::default();
        let engine = self.client.engine.clone();
        let sessions = match engine.list_sessions().await {
            Ok(sessions) => sessions,
            Err(failed) => {
                tracing::warn!(fault = %failed.fault, "the sessions could not be listed");
                report.trouble = Some(failed.fault);
                return report;
            }
        };
        let (alive, dead): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.alive_ms.is_some());
        (report.alive, report.dead) = (alive.len(), dead.len());
        let known: HashSet<_> = dead.iter().map(|session| session.session).collect();
        self.settled.retain(|session, _| known.contains(session));
        let mut asked = self.unsettled(&dead);
        report.left = asked.len();
        asked.truncate(A_ROUND);
        for some in asked.chunks(AT_ONCE) {
            self.evict(some, &mut report).await;
            if report.trouble.is_some() {
                break;
            }
        }
        report
    }

    /// What dead sessions have told of and is not settled.
    fn unsettled<'a>(&self, dead: &'a [SessionEntry]) -> Vec<(&'a SessionEntry, &'a Lock)> {
        let held = dead.iter().flat_map(|session| session.held.iter().map(move |lock| (session, lock)));
        let is_settled = |session: &SessionEntry, lock: &Lock| {
            self.settled.get(&session.session).is_some_and(|locks| locks.contains(lock))
        };
        held.filter(|(session, lock)| !is_settled(session, lock)).collect()
    }

    async fn evict(&mut self, some: &[(&SessionEntry, &Lock)], report: &mut MonitorReport) {
        let engine = self.client.engine.clone();
        let op = |(session, lock): &(&SessionEntry, &Lock)| {
            let evict = Evict { dead: session.session, by: engine.label.clone() };
            ((*lock).clone(), Op::Evict(evict))
        };
        let ops: Vec<_> = some.iter().map(op).collect();
        let outcomes = engine.store.execute_all(&ops, engine.timings.call).await;
        for ((session, lock), outcome) in some.iter().zip(outcomes) {
            match outcome {
                // It is back (1).
                Outcome::Done(Reply::Evict(Evicted::Alive)) => report.left -= 1,
                Outcome::Done(Reply::Evict(Evicted::Gone { hold, place })) => {
                    self.settle(session, lock, report);
                    if hold.is_some() || place {
                        report.evicted.push(eviction(session, lock, hold));
                    }
                }
                // Something else stands there by now.
                Outcome::Done(_) => self.settle(session, lock, report),
                Outcome::Failed(_, fault) => {
                    tracing::warn!(%lock, session = %session.session, %fault, "not taken from a dead session yet");
                    report.trouble = Some(fault);
                }
            }
        }
    }

    fn settle(&mut self, session: &SessionEntry, lock: &Lock, report: &mut MonitorReport) {
        self.settled.entry(session.session).or_default().insert(lock.clone());
        report.left -= 1;
    }
}

fn eviction(dead: &SessionEntry, lock: &Lock, fence: Option<FencingToken>) -> Eviction {
    let whose = About::from_json(&dead.about).map(|about| about.label);
    let (session, label) = (dead.session, whose.as_ref().map(Label::as_str).unwrap_or_default());
    if let Some(fence) = fence {
        tracing::warn!(%lock, %session, label, %fence, "taken from a dead session");
    } else {
        tracing::info!(%lock, %session, label, "the place of a dead session was given up");
    }
    Eviction { name: lock.name.clone(), session, whose, fence }
}
