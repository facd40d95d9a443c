//! The monitor: releases the locks of dead sessions, where no waiter would notice the death.
//!
//! 1. The store itself verifies that a session is dead, in the same step that releases its lock: a session
//!    that has sent a heartbeat in time keeps its locks, even if the list shows it as dead.
//! 2. A round is bounded, and a lock that was settled for a dead session is not requested again: a lapsed
//!    session acquires no more locks.
//! 3. A store that does not reply is retried after growing pauses, up to a cap.

use crate::client::Client;
use crate::client::listing::may_be_of_one_lock;
use crate::store::{Fault, Outcome};
use leasehold_core::{
    Evict, Evicted, FencingToken, Label, Lock, LockName, Op, Reply, SessionEntry, SessionId, SessionMetadata,
    Skipped,
};
use leasehold_store::jitter;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

/// How many locks one round releases at most.
const MAX_LOCKS_PER_ROUND: usize = 1024;
/// How many locks one batch releases.
const BATCH_SIZE: usize = 128;
/// The shortest interval between two rounds.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Pauses after a round without a reply from the store: the first, and the longest.
const FAULT_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Periodically releases the locks of dead sessions: [`Client::monitor`].
///
/// A waiter notices by itself that the holder of its lock has died. A monitor also releases locks without
/// waiters, so that they are shown as free, and the next client acquires them without delay. Any number of
/// monitors may run.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
/// use std::time::Duration;
///
/// let client = Client::builder("memory:").label("monitor on bastion").connect().await?;
/// let monitor = client.monitor().interval(Duration::from_secs(5));
/// let watching = tokio::spawn(monitor.run(|round| {
///     for evicted in &round.evicted {
///         println!("{} was released from {:?}", evicted.name, evicted.label);
///     }
/// }));
/// // It runs until it is dropped.
/// watching.abort();
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a monitor does nothing until `run`, or `run_once`"]
pub struct Monitor {
    client: Client,
    interval: Duration,
    /// The locks of dead sessions that need no further work (2).
    settled: HashMap<SessionId, HashSet<Lock>>,
}

/// What one round of a [`Monitor`] found and did.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let round = client.monitor().run_once().await;
/// match &round.fault {
///     None => println!("{} alive, {} dead, {} locks released", round.alive, round.dead, round.evicted.len()),
///     Some(fault) => println!("not finished: {fault}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MonitorReport {
    /// The number of live sessions.
    pub alive: usize,
    /// The number of dead sessions that are not removed yet.
    pub dead: usize,
    /// What was released from dead sessions.
    pub evicted: Vec<Eviction>,
    /// How many locks of dead sessions remain for the next round.
    pub remaining: usize,
    /// What was left out because it cannot be read: sessions, and locks of dead sessions.
    pub skipped: Skipped,
    /// How long the round took.
    pub took: Duration,
    /// The request without a reply, or the refusal, that ended the round. If the store executed it
    /// nevertheless, `evicted` may lack its effect.
    pub fault: Option<Fault>,
}

/// One lock that was released from one dead session.
///
/// See [`Monitor`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// The lock.
    pub name: LockName,
    /// The dead session.
    pub session: SessionId,
    /// Its label; `None` if it cannot be read.
    pub label: Option<Label>,
    /// The fencing token of its hold; `None` if it had only a queue entry.
    pub fence: Option<FencingToken>,
}

impl Client {
    /// Creates a monitor that releases the locks of dead sessions, even if no client waits for them. It does
    /// nothing until it [runs](Monitor::run). Each release is recorded in the lock's audit, with this
    /// client's label.
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.clone())
    }
}

impl Monitor {
    pub(crate) fn new(client: Client) -> Self {
        let session = client.engine.timings.session.unwrap_or(Client::DEFAULT_SESSION_TTL);
        Self { client, interval: session / 4, settled: HashMap::new() }
    }

    /// Sets the interval between rounds, with a jitter of a quarter. Default: a quarter of the client's
    /// session time; at least 100 ms.
    pub fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval.max(MIN_INTERVAL);
        self
    }

    /// Runs rounds until the future is dropped, and passes the report of each to `on_report`. Evictions are
    /// also logged. While the store does not reply, it pauses for only 0.5 to 5 s, since the store removes
    /// dead sessions soon.
    ///
    /// Cancel safety: dropping the future stops the monitor. A round in progress may take effect without a
    /// report.
    pub async fn run(mut self, mut on_report: impl FnMut(&MonitorReport)) -> Infallible {
        let engine = self.client.engine.clone();
        let (first, most) = FAULT_PAUSE;
        let mut fault_pause = first;
        loop {
            let round = self.run_once().await;
            on_report(&round);
            let pause = if round.fault.is_some() {
                let pause = fault_pause;
                fault_pause = (fault_pause * 2).min(most);
                pause
            } else {
                fault_pause = first;
                self.interval
            };
            let again_at = engine.environment.now() + pause * 3 / 4 + jitter(&*engine.environment, pause / 2);
            engine.environment.sleep_until(again_at).await;
        }
    }

    /// Runs one round: lists the sessions, and releases the locks of dead ones, 1024 at most.
    ///
    /// Cancel safety: as for [`run`](Self::run).
    pub async fn run_once(&mut self) -> MonitorReport {
        let environment = self.client.engine.environment.clone();
        let start = environment.now();
        let report = self.round().await;
        MonitorReport { took: environment.now().since(start), ..report }
    }

    async fn round(&mut self) -> MonitorReport {
        let mut report = MonitorReport::default();
        let engine = self.client.engine.clone();
        let sessions = match engine.list_sessions().await {
            Ok(list) => {
                report.skipped = list.skipped;
                list.entries
            }
            Err(failed) => {
                tracing::warn!(fault = %failed.fault, "the sessions could not be listed");
                report.fault = Some(failed.fault);
                return report;
            }
        };
        let (alive, dead): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.alive_ms.is_some());
        (report.alive, report.dead) = (alive.len(), dead.len());
        let known: HashSet<_> = dead.iter().map(|session| session.session).collect();
        self.settled.retain(|session, _| known.contains(session));
        let mut unsettled = self.unsettled(&dead);
        report.remaining = unsettled.len();
        unsettled.truncate(MAX_LOCKS_PER_ROUND);
        for batch in unsettled.chunks(BATCH_SIZE) {
            self.evict(batch, &mut report).await;
            if report.fault.is_some() {
                break;
            }
        }
        report
    }

    /// The locks reported by dead sessions that are not settled yet.
    fn unsettled<'a>(&self, dead: &'a [SessionEntry]) -> Vec<(&'a SessionEntry, &'a Lock)> {
        let held = dead.iter().flat_map(|session| session.held.iter().map(move |lock| (session, lock)));
        let is_settled = |session: &SessionEntry, lock: &Lock| {
            self.settled.get(&session.session).is_some_and(|locks| locks.contains(lock))
        };
        held.filter(|(session, lock)| !is_settled(session, lock)).collect()
    }

    async fn evict(&mut self, batch: &[(&SessionEntry, &Lock)], report: &mut MonitorReport) {
        let engine = self.client.engine.clone();
        let op = |(session, lock): &(&SessionEntry, &Lock)| {
            let evict = Evict { session: session.session, actor: engine.label.clone() };
            ((*lock).clone(), Op::Evict(evict))
        };
        let ops: Vec<_> = batch.iter().map(op).collect();
        let request = engine.telemetry.request();
        let outcomes = engine.store.execute_all(&ops, engine.timings.call).await;
        request.all_answered(&ops, &outcomes);
        let works = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Done(_)));
        for ((session, lock), outcome) in batch.iter().zip(outcomes) {
            match outcome {
                // The session is alive again (1).
                Outcome::Done(Reply::Evict(Evicted::Alive)) => report.remaining -= 1,
                Outcome::Done(Reply::Evict(Evicted::Removed { fence, was_queued })) => {
                    self.settle(session, lock, report);
                    if fence.is_some() || was_queued {
                        report.evicted.push(eviction(session, lock, fence));
                    }
                }
                // The key has another kind by now.
                Outcome::Done(_) => self.settle(session, lock, report),
                Outcome::Failed(_, fault) if works && may_be_of_one_lock(&fault) => {
                    report.skipped.add(|| format!("the lock `{}`: {fault}", lock.name));
                }
                Outcome::Failed(_, fault) => {
                    tracing::warn!(%lock, session = %session.session, %fault, "not taken from a dead session yet");
                    report.fault = Some(fault);
                }
            }
        }
    }

    fn settle(&mut self, session: &SessionEntry, lock: &Lock, report: &mut MonitorReport) {
        self.settled.entry(session.session).or_default().insert(lock.clone());
        report.remaining -= 1;
    }
}

fn eviction(dead: &SessionEntry, lock: &Lock, fence: Option<FencingToken>) -> Eviction {
    let label = SessionMetadata::from_json(&dead.metadata).map(|metadata| metadata.label);
    let (session, text) = (dead.session, label.as_ref().map(Label::as_str).unwrap_or_default());
    if let Some(fence) = fence {
        tracing::warn!(%lock, %session, label = text, %fence, "taken from a dead session");
    } else {
        tracing::info!(%lock, %session, label = text, "removed the queue entry of a dead session");
    }
    Eviction { name: lock.name.clone(), session, label, fence }
}
