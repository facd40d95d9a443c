//! What waits for what, in all processes that use a store, and which of them wait for each other.
//!
//! Sessions report what their tasks wait for and hold ([`activity`](super::activity)); the store names the holders of each lock.
//! [`deadlock`] finds the cycles.
//!
//! 1. A cycle is reported only if two looks, [`CONFIRM_AFTER`] apart, show it with the same waits and the same holds. A hold
//!    has a fencing token of its own and a wait a number of its own, so each of them lasted from the first look to the
//!    second, and all of them existed at one instant. That is so as long as a client withdraws the report of a wait that
//!    has ended within that time.
//! 2. Reports are claims of clients, and only serve to name tasks. Which session holds a lock is read from the lock.
//! 3. Nothing here changes a store. The numbers of sessions, locks and waits that are read are bounded.

mod deadlock;

use super::activity::{ActivityReport, EnclosingHold, ReportedHold, ReportedWait, parse_lock};
use super::{CallFailure, Engine};
use crate::store::{Fault, Outcome};
use deadlock::{Edge, find_cycles};
use leasehold_core::{
    FencingToken, Holder, Inspect, Inspection, Kind, Label, Lock, LockMode, LockName, Op, Reply, SessionId,
    SessionMetadata, Skipped,
};
use leasehold_store::jitter;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The time between the two looks (1). A report is withdrawn within 0.5 s and the time of two requests.
pub(crate) const CONFIRM_AFTER: Duration = Duration::from_millis(700);
/// The longest time between two looks of a wait that is to end rather than be part of a cycle.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How many locks are inspected in one batch, and in one look.
const BATCH_SIZE: usize = 256;
const MAX_LOCKS: usize = 4096;
/// How many holds around a process are followed.
const MAX_CHAIN: usize = 256;

/// What waits for what: [`Client::wait_graph`](crate::Client::wait_graph).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// let graph = client.wait_graph().await?;
/// for cycle in &graph.cycles {
///     println!("a deadlock: {cycle}");
/// }
/// println!("{} tasks wait", graph.waits.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitGraph {
    /// Waits that only end if one of them gives up, or loses a lock: confirmed by two looks.
    pub cycles: Vec<WaitCycle>,
    /// All waits that clients report, those of the cycles included: each has lasted for 0.3 s or longer. Sorted by lock, and
    /// by their beginning.
    pub waits: Vec<WaitInfo>,
    /// What cannot be read, and so is left out.
    pub skipped: Skipped,
    /// How many waits and holds are left out because there are too many.
    pub omitted: u64,
}

/// A cycle of waits. Each waits for a lock that is held by the next one, and the last one for a lock of the first.
///
/// ```
/// fn names(cycle: &leasehold::inspect::WaitCycle) -> Vec<&str> {
///     cycle.waits.iter().map(|wait| wait.lock.as_str()).collect()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitCycle {
    /// The waits, in this order; the first one is the oldest.
    pub waits: Vec<WaitInfo>,
}

/// One wait for a lock, as its client reports it.
///
/// Part of a [`WaitGraph`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitInfo {
    /// The lock.
    pub lock: LockName,
    /// The kind of the lock.
    pub kind: Kind,
    /// The mode in which it is requested.
    pub mode: LockMode,
    /// What waits: the name of a task (`…/t42`) or a thread (`…/h1`) of one client, or the hash of an
    /// [owner](crate::Owner), which is the same in every process (`o…`).
    pub waiter: String,
    /// The session of the client.
    pub session: SessionId,
    /// What the client reports about itself.
    pub process: Option<Arc<SessionMetadata>>,
    /// When the wait began, by the wall clock of its machine.
    pub since: SystemTime,
    /// Whether the wait fails rather than be part of a cycle: [`Deadlock::Refuse`](crate::Deadlock::Refuse).
    pub refuses: bool,
    /// The holders of the lock, as the store reports them.
    pub holders: Vec<WaitHolder>,
    /// Its client, and its number there.
    id: (SessionId, u64),
}

/// A holder of a lock for which something waits.
///
/// Part of a [`WaitGraph`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitHolder {
    /// The fencing token of the hold. Not known of a client of another library.
    pub fence: Option<FencingToken>,
    /// The label of the holder. Not known of a client of another library.
    pub label: Option<Label>,
    /// Its session, if the hold ends with one.
    pub session: Option<SessionId>,
    /// What its client reports about itself, if it is in the list of sessions.
    pub process: Option<Arc<SessionMetadata>>,
    /// The mode in which it holds the lock.
    pub mode: LockMode,
    /// When it acquired the lock, by the clock of the store, if known.
    pub since: Option<SystemTime>,
    /// What holds the lock and waits for another one, in the notation of [`WaitInfo::waiter`]. With a command under a lock,
    /// what waits inside of the command.
    pub waiters: Vec<String>,
}

impl WaitCycle {
    /// Creates a cycle of these waits, for tests of code that handles [`AcquireError::Deadlock`](crate::error::AcquireError::Deadlock).
    ///
    /// ```
    /// use leasehold::LockName;
    /// use leasehold::error::AcquireError;
    /// use leasehold::inspect::{SessionId, WaitCycle, WaitInfo};
    ///
    /// let session = SessionId::from_random([7; 12]);
    /// let waits = |name, waiter| Ok::<_, leasehold::error::NameError>(WaitInfo::new(LockName::new(name)?, waiter, session));
    /// let cycle = WaitCycle::new(vec![waits("till", "shop/t1")?, waits("stock", "shop/t2")?]);
    /// let error = AcquireError::Deadlock(Box::new(cycle));
    /// assert!(error.to_string().starts_with("a deadlock: "));
    /// # Ok::<(), leasehold::error::NameError>(())
    /// ```
    pub const fn new(waits: Vec<WaitInfo>) -> Self {
        Self { waits }
    }
}

impl WaitInfo {
    /// Creates a wait for a Mutex since the Unix epoch, of which nothing else is known: for tests. The other fields can be set.
    pub fn new(lock: LockName, waiter: impl Into<String>, session: SessionId) -> Self {
        Self {
            lock,
            kind: Kind::Mutex,
            mode: LockMode::default(),
            waiter: waiter.into(),
            session,
            process: None,
            since: SystemTime::UNIX_EPOCH,
            refuses: false,
            holders: Vec::new(),
            id: (session, 0),
        }
    }
}

impl fmt::Display for WaitCycle {
    /// One line, without what a terminal would interpret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, wait) in self.waits.iter().enumerate() {
            let before = if at == 0 { "" } else { ", held by " };
            write!(f, "{before}{} waits for `{}`", Process(wait.process.as_deref()), wait.lock)?;
        }
        f.write_str(", held by the first")
    }
}

/// The process of a wait, in a word.
struct Process<'a>(Option<&'a SessionMetadata>);

impl fmt::Display for Process<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(process) = self.0 else { return f.write_str("an unknown process") };
        write!(f, "{}/{}", process.host.escape_debug(), process.pid)
    }
}

impl WaitInfo {
    /// Its order among the waits of all clients: of a cycle, the greatest one gives up.
    fn age(&self) -> (SystemTime, (SessionId, u64)) {
        (self.since, self.id)
    }
}

impl WaitCycle {
    /// The wait that gives up, if any of them does: the youngest of those that refuse.
    fn victim(&self) -> Option<&WaitInfo> {
        self.waits.iter().filter(|wait| wait.refuses).max_by_key(|wait| wait.age())
    }
}

/// What one look has found.
#[derive(Default)]
struct Look {
    waits: Vec<KnownWait>,
    holds: Vec<KnownHold>,
    /// The clients that run under holds of other processes.
    within: Vec<(SessionId, EnclosingHold)>,
    inspections: HashMap<Lock, Inspection>,
    sessions: HashMap<SessionId, Arc<SessionMetadata>>,
    skipped: Skipped,
    omitted: u64,
}

/// A wait that a client reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KnownWait {
    lock: Lock,
    mode: LockMode,
    waiter: String,
    session: SessionId,
    client: SessionId,
    id: u64,
    since_ms: u64,
    refuses: bool,
}

/// A hold that a client reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct KnownHold {
    lock: Lock,
    fence: u64,
    own_fence: Option<u64>,
    holder: String,
    client: SessionId,
}

impl KnownHold {
    fn key(&self) -> Key<'_> {
        let fence = if self.lock.kind == Kind::Reentrant { 0 } else { self.fence };
        (self.lock.name.as_str(), fence)
    }
}

/// Names a hold: the lock and the fencing token, or 0 for those of the owner of a ReentrantMutex.
type Key<'a> = (&'a str, u64);

/// What waits and has a hold; true if it has the hold because its process runs under it.
type Owners<'a> = HashMap<Key<'a>, BTreeMap<&'a str, bool>>;

/// Reads what waits for what. If there are cycles, looks a second time, and keeps those that both looks show.
pub(crate) async fn wait_graph(engine: &Engine) -> Result<WaitGraph, Fault> {
    let first = look(engine).await?;
    if first.cycles().is_empty() {
        return Ok(first.graph(Vec::new()));
    }
    let again_at = engine.environment.now() + CONFIRM_AFTER;
    engine.environment.sleep_until(again_at).await;
    let second = look(engine).await?;
    let cycles = second.common(&first).wait_cycles();
    Ok(second.graph(cycles))
}

/// Waits until a cycle contains the reported wait with this number, and no other wait of the cycle is to give up. A store that
/// does not answer is asked again.
///
/// Cancel safety: dropping the future changes nothing.
pub(in crate::engine) async fn must_give_up(engine: &Engine, wait: u64) -> WaitCycle {
    let id = (engine.keeper.client(), wait);
    loop {
        let pause = CHECK_INTERVAL / 2 + jitter(&*engine.environment, CHECK_INTERVAL / 2);
        engine.environment.sleep_until(engine.environment.now() + pause).await;
        match wait_graph(engine).await {
            Ok(graph) => {
                let is_ours = |cycle: &WaitCycle| cycle.victim().is_some_and(|victim| victim.id == id);
                if let Some(cycle) = graph.cycles.into_iter().find(is_ours) {
                    return cycle;
                }
            }
            Err(fault) => tracing::debug!(%fault, "cannot look for a cycle of waits"),
        }
    }
}

async fn look(engine: &Engine) -> Result<Look, Fault> {
    let list = engine.list_sessions().await.map_err(|CallFailure { fault, .. }| fault)?;
    let mut look = Look { skipped: list.skipped, ..Look::default() };
    for entry in list.entries {
        // What a dead session reported is over, or will be.
        if entry.alive_ms.is_none() {
            continue;
        }
        if let Some(metadata) = SessionMetadata::from_json(&entry.metadata) {
            look.sessions.insert(entry.session, Arc::new(metadata));
        }
        let (reports, has_unreadable) = ActivityReport::parse(&entry.activity);
        if has_unreadable {
            look.skipped.add(|| format!("session {}: what it waits for cannot be read", entry.session));
        }
        for report in reports {
            look.add(entry.session, report);
        }
    }
    look.inspect(engine).await?;
    Ok(look)
}

impl Look {
    fn add(&mut self, session: SessionId, report: ActivityReport) {
        let ActivityReport { client, waits, holds, within, omitted } = report;
        // Any client can write such a report.
        self.omitted = self.omitted.saturating_add(omitted);
        let name = |actor: String| if actor.starts_with('o') { actor } else { format!("{client}/{actor}") };
        for ReportedWait { id, kind, lock, mode, actor, since_ms, refuses } in waits {
            let (Some(lock), Some(mode)) = (parse_lock(&kind, &lock), LockMode::parse(&mode)) else {
                self.skipped.add(|| format!("session {session}: a wait cannot be read"));
                continue;
            };
            let waiter = name(actor);
            self.waits.push(KnownWait { lock, mode, waiter, session, client, id, since_ms, refuses });
        }
        for ReportedHold { kind, lock, fence, own_fence, actor } in holds {
            let Some(lock) = parse_lock(&kind, &lock) else {
                self.skipped.add(|| format!("session {session}: a hold cannot be read"));
                continue;
            };
            self.holds.push(KnownHold { lock, fence, own_fence, holder: name(actor), client });
        }
        self.within.extend(within.into_iter().map(|hold| (client, hold)));
    }

    /// Reads the locks for which something waits.
    async fn inspect(&mut self, engine: &Engine) -> Result<(), Fault> {
        let mut locks: Vec<_> = self.waits.iter().map(|wait| wait.lock.clone()).collect();
        // A cycle consists of locks that something holds which waits.
        let held: HashSet<_> = self.holds.iter().map(|hold| &hold.lock).collect();
        locks.sort_by_cached_key(|lock| (!held.contains(lock), lock.clone()));
        locks.dedup();
        let too_many = locks.len().saturating_sub(MAX_LOCKS);
        locks.truncate(MAX_LOCKS);
        self.omitted = self.omitted.saturating_add(u64::try_from(too_many).unwrap_or(0));
        let op = Op::Inspect(Inspect { claim: None, details: false });
        let ops: Vec<_> = locks.into_iter().map(|lock| (lock, op.clone())).collect();
        for batch in ops.chunks(BATCH_SIZE) {
            let outcomes = engine.store.execute_all(batch, engine.timings.call).await;
            for ((lock, _), outcome) in batch.iter().zip(outcomes) {
                let fault = match outcome {
                    Outcome::Done(Reply::Inspect(inspection)) => {
                        self.inspections.insert(lock.clone(), inspection);
                        continue;
                    }
                    Outcome::Done(other) => Fault::unexpected_reply(other),
                    Outcome::Failed(_, fault) if fault.is_transient() => {
                        let reply = engine.call(lock, &op, engine.timings.call).await;
                        match reply.map_err(|CallFailure { fault, .. }| fault)? {
                            Reply::Inspect(inspection) => {
                                self.inspections.insert(lock.clone(), inspection);
                                continue;
                            }
                            other => Fault::unexpected_reply(other),
                        }
                    }
                    Outcome::Failed(_, fault) => fault,
                };
                // Its key has another kind by now, for example.
                self.skipped.add(|| format!("the lock `{}`: {fault}", lock.name));
            }
        }
        Ok(())
    }

    /// The waits and holds of this look that an earlier one has as well (1).
    fn common(&self, earlier: &Self) -> Self {
        let waits: HashSet<_> = earlier.waits.iter().map(|wait| (wait.client, wait.id)).collect();
        let holds: HashSet<_> = earlier.holds.iter().collect();
        let at_store: HashSet<_> =
            earlier.inspections.iter().flat_map(|(lock, found)| keys_of(lock, found)).collect();
        let awaited: HashSet<_> = self.inspections.keys().map(|lock| lock.name.as_str()).collect();
        // Of a process inside of another one's hold, a lock for which nothing waits may be part of the chain.
        let lasts = |key: (&str, u64)| !awaited.contains(key.0) || at_store.contains(&key);
        let is_common = |hold: &&KnownHold| holds.contains(hold) && lasts(hold.key());
        let enclosing: HashSet<_> = earlier.within.iter().collect();
        let within = self.within.iter().filter(|within| {
            let hold = &within.1;
            enclosing.contains(within) && lasts((&hold.lock, hold.fence))
        });
        Self {
            waits: self
                .waits
                .iter()
                .filter(|wait| waits.contains(&(wait.client, wait.id)))
                .cloned()
                .collect(),
            holds: self.holds.iter().filter(is_common).cloned().collect(),
            within: within.cloned().collect(),
            inspections: self.inspections.clone(),
            sessions: self.sessions.clone(),
            ..Self::default()
        }
    }

    /// What waits and has a hold, by the key of the hold; and whether it has the hold only because its process runs under it.
    fn owners(&self) -> Owners<'_> {
        let mut waiting: HashMap<SessionId, BTreeSet<&str>> = HashMap::new();
        for wait in &self.waits {
            waiting.entry(wait.client).or_default().insert(&wait.waiter);
        }
        let waiters: HashSet<&str> = self.waits.iter().map(|wait| wait.waiter.as_str()).collect();
        let mut owners = Owners::new();
        let mut clients: HashMap<Key<'_>, Vec<SessionId>> = HashMap::new();
        for hold in &self.holds {
            clients.entry((hold.lock.name.as_str(), hold.fence)).or_default().push(hold.client);
            if waiters.contains(hold.holder.as_str()) {
                owners.entry(hold.key()).or_default().insert(&hold.holder, false);
            }
        }
        let mut within: HashMap<SessionId, Vec<Key<'_>>> = HashMap::new();
        for (client, hold) in &self.within {
            within.entry(*client).or_default().push((&hold.lock, hold.fence));
        }
        for (client, waiters) in &waiting {
            // The holds around the process, and those around the processes that have these.
            let mut seen = HashSet::new();
            let mut rest = within.get(client).cloned().unwrap_or_default();
            while let Some(key) = rest.pop() {
                if seen.len() >= MAX_CHAIN || !seen.insert(key) {
                    continue;
                }
                owners.entry(key).or_default().extend(waiters.iter().map(|waiter| (*waiter, true)));
                let outer = clients.get(&key).into_iter().flatten();
                rest.extend(outer.filter_map(|client| within.get(client)).flatten());
            }
        }
        owners
    }

    /// The cycles, as indices of waits.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let owners = self.owners();
        let edges: Vec<_> = self.waits.iter().map(|wait| self.edge(wait, &owners)).collect();
        find_cycles(&edges)
    }

    /// What a wait waits for.
    fn edge<'a>(&'a self, wait: &'a KnownWait, owners: &Owners<'a>) -> Edge<'a> {
        let Some(inspection) = self.inspections.get(&wait.lock) else { return Edge::unknown(&wait.waiter) };
        let blockers = |holder: &Holder| {
            let known = keys(&wait.lock, holder).filter_map(|key| owners.get(&key)).flatten();
            // What waits for a lock that it holds may have given the guard away. Only a hold around the whole process surely
            // lasts until the wait is over.
            let others = known.filter(|(owner, encloses)| **encloses || **owner != wait.waiter);
            others.map(|(owner, _)| *owner).collect()
        };
        Edge::new(&wait.waiter, wait.mode, inspection, blockers)
    }

    /// The cycles.
    fn wait_cycles(&self) -> Vec<WaitCycle> {
        let owners = self.owners();
        let cycle = |indices: Vec<usize>| {
            let mut waits: Vec<_> =
                indices.into_iter().map(|at| self.info(&self.waits[at], &owners)).collect();
            let oldest = (0..waits.len()).min_by_key(|at| waits[*at].age()).unwrap_or(0);
            waits.rotate_left(oldest);
            WaitCycle { waits }
        };
        let mut cycles: Vec<_> = self.cycles().into_iter().map(cycle).collect();
        cycles.sort_by_key(|cycle| cycle.waits.first().map(WaitInfo::age));
        cycles
    }

    fn graph(&self, cycles: Vec<WaitCycle>) -> WaitGraph {
        let owners = self.owners();
        let mut waits: Vec<_> = self.waits.iter().map(|wait| self.info(wait, &owners)).collect();
        waits.sort_by(|one, other| {
            (&one.lock, one.kind, one.age()).cmp(&(&other.lock, other.kind, other.age()))
        });
        WaitGraph { cycles, waits, skipped: self.skipped.clone(), omitted: self.omitted }
    }

    fn info(&self, wait: &KnownWait, owners: &Owners<'_>) -> WaitInfo {
        let holders = self.inspections.get(&wait.lock).into_iter().flat_map(holders).map(|holder| {
            let waiters: BTreeSet<_> = keys(&wait.lock, holder)
                .filter_map(|key| owners.get(&key))
                .flat_map(BTreeMap::keys)
                .collect();
            WaitHolder {
                fence: holder.fence,
                label: holder.label.clone(),
                session: holder.session,
                process: holder.session.and_then(|session| self.sessions.get(&session).cloned()),
                mode: holder.mode,
                since: holder.since_ms.and_then(instant),
                waiters: waiters.into_iter().map(|waiter| (*waiter).to_owned()).collect(),
            }
        });
        WaitInfo {
            lock: wait.lock.name.clone(),
            kind: wait.lock.kind,
            mode: wait.mode,
            waiter: wait.waiter.clone(),
            session: wait.session,
            process: self.sessions.get(&wait.session).cloned(),
            since: instant(wait.since_ms).unwrap_or(SystemTime::UNIX_EPOCH),
            refuses: wait.refuses,
            holders: holders.collect(),
            id: (wait.client, wait.id),
        }
    }
}

fn instant(ms: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

/// The keys under which reports name a hold.
fn keys<'a>(lock: &'a Lock, holder: &Holder) -> impl Iterator<Item = Key<'a>> {
    let fence = holder.fence.map(FencingToken::as_u64);
    // The owner of a ReentrantMutex may have several holds, of which the store reports one.
    let of_owner = (lock.kind == Kind::Reentrant).then_some(0);
    fence.into_iter().chain(of_owner).map(|fence| (lock.name.as_str(), fence))
}

/// The same for all holders of a lock.
fn keys_of<'a>(lock: &'a Lock, inspection: &'a Inspection) -> impl Iterator<Item = Key<'a>> {
    holders(inspection).flat_map(|holder| keys(lock, holder))
}

/// All holders.
fn holders(inspection: &Inspection) -> impl Iterator<Item = &Holder> {
    let shared = &inspection.shared_holders;
    shared.iter().chain(inspection.holder.as_ref().filter(|_| shared.is_empty()))
}
