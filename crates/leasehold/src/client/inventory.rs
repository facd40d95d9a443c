//! The inventory: which sessions a store has, and which locks they hold. Each lock is verified by an
//! inspection.
//!
//! A listing scans no store. A session reports a lock with a heartbeat once it has held the lock long
//! enough to extend it, so every lock is requested by name. A scan, which an operator asks for, finds what no session reports.

use crate::client::listing::{Listing, may_be_of_one_lock};
use crate::client::session_info::{SessionInfo, sessions};
use crate::engine::{CallFailure, Engine};
use crate::error::InspectError;
use crate::guard::status::{SharedHolder, Status};
use crate::store::{Fault, FaultKind, NameScan, Outcome};
use leasehold_core::{Inspect, Kind, Lock, LockName, Op, Reply, SessionId, Skipped};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How many locks are inspected in one batch.
const BATCH_SIZE: usize = 256;

/// One lock, and its holders: [`Client::locks`](crate::Client::locks), [`Client::inspect_all`](crate::Client::inspect_all).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// for lock in client.locks().await? {
///     let host = lock.holder_session.as_ref().and_then(|session| session.metadata.as_ref()).map(|metadata| &metadata.host);
///     println!("{} is held by {:?} on {host:?}, {} waiting", lock.name, lock.status.holder, lock.status.waiting);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// The kind of lock.
    pub kind: Kind,
    /// The state of the lock, as the store reports it. [`Status::held_by_this_client`] is always false here, since it
    /// is not determined.
    pub status: Status,
    /// The holder's session; `None` if the lock was acquired meanwhile by a holder without one, and if it was not looked up.
    pub holder_session: Option<Arc<SessionInfo>>,
    /// The sessions of all holders of a lock that can be shared, as far as the store knows them.
    pub sessions: Vec<Arc<SessionInfo>>,
}

impl LockInfo {
    /// Returns the session of one of the holders in [`Status::shared_holders`].
    pub fn shared_holder_session(&self, holder: &SharedHolder) -> Option<&SessionInfo> {
        self.sessions.iter().find(|session| Some(session.id) == holder.session).map(|session| &**session)
    }
}

/// The locks that some session reports and that are held.
pub(crate) async fn locks(engine: &Engine) -> Result<Listing<LockInfo>, InspectError> {
    let Listing { items, mut skipped } = sessions(engine).await?;
    let sessions: Vec<_> = items.into_iter().map(Arc::new).collect();
    let reported: BTreeSet<_> = sessions.iter().flat_map(|session| &session.locks).cloned().collect();
    let by_id: HashMap<_, _> = sessions.iter().map(|session| (session.id, session)).collect();
    let by_id = |id: SessionId| by_id.get(&id).map(|session| Arc::clone(session));
    // A name may be reported with several kinds until it is inspected.
    let mut reported: Vec<_> = reported.into_iter().collect();
    reported.sort_by(|one, other| one.name.cmp(&other.name));
    let held = held(engine, reported, by_id, &mut skipped).await?;
    Ok(Listing::new(held, skipped))
}

/// What is held under the names that a scan finds, and that are wanted: [`Client::scan`](crate::Client::scan).
pub(crate) async fn scan(
    engine: &Engine,
    start: &str,
    within: Duration,
    is_wanted: impl Fn(&LockName) -> bool,
) -> Result<Listing<LockInfo>, InspectError> {
    let (begun_at, mut skipped, mut locks) = (engine.environment.now(), Skipped::default(), Vec::new());
    for (kind, lock) in
        [(Kind::Mutex, Lock::mutex as fn(LockName) -> Lock), (Kind::Reentrant, Lock::reentrant)]
    {
        let left = within.saturating_sub(engine.environment.now().since(begun_at));
        let NameScan { names, is_complete, .. } = engine.store.scan_names(kind, start, left).await?;
        if !is_complete {
            skipped.add(|| {
                format!("names of the kind {} that a scan of {within:?} did not come to", kind.as_str())
            });
        }
        locks.extend(names.into_iter().filter(&is_wanted).map(lock));
    }
    locks.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let held = held(engine, locks, |_| None, &mut skipped).await?;
    Ok(Listing::new(held, skipped))
}

/// The state of these locks, held or not: [`Client::inspect_all`](crate::Client::inspect_all).
pub(crate) async fn inspect_all(
    engine: &Engine,
    locks: Vec<Lock>,
) -> Result<Listing<LockInfo>, InspectError> {
    let mut skipped = Skipped::default();
    let found = inspect(engine, locks, |_| None, &mut skipped).await?;
    Ok(Listing::new(found, skipped))
}

/// Those of the locks that are held.
async fn held(
    engine: &Engine,
    locks: Vec<Lock>,
    session: impl Fn(SessionId) -> Option<Arc<SessionInfo>>,
    skipped: &mut Skipped,
) -> Result<Vec<LockInfo>, InspectError> {
    let mut found = inspect(engine, locks, session, skipped).await?;
    found.retain(|lock| lock.status.held);
    Ok(found)
}

/// The state of these locks, without those whose keys have another kind.
async fn inspect(
    engine: &Engine,
    locks: Vec<Lock>,
    session: impl Fn(SessionId) -> Option<Arc<SessionInfo>>,
    skipped: &mut Skipped,
) -> Result<Vec<LockInfo>, InspectError> {
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let inspections: Vec<_> = locks.into_iter().map(|lock| (lock, inspect.clone())).collect();
    let mut found = Vec::new();
    for batch in inspections.chunks(BATCH_SIZE) {
        let request = engine.telemetry.request();
        let outcomes = engine.store.execute_all(batch, engine.timings.call).await;
        request.all_answered(batch, &outcomes);
        for ((lock, op), outcome) in batch.iter().zip(outcomes) {
            let status = match inspected(engine, lock, op, outcome).await {
                Ok(Some(status)) => status,
                Ok(None) => continue,
                Err(InspectError(fault)) if may_be_of_one_lock(&fault) => {
                    skipped.add(|| format!("the lock `{}`: {fault}", lock.name));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let known = |id: Option<SessionId>| session(id?);
            let holder_session = known(status.session);
            let holder_sessions: BTreeSet<_> =
                status.shared_holders.iter().map(|holder| holder.session).collect();
            let sessions = holder_sessions.into_iter().filter_map(known).collect();
            found.push(LockInfo {
                name: lock.name.clone(),
                kind: lock.kind,
                status,
                holder_session,
                sessions,
            });
        }
    }
    Ok(found)
}

/// The state of a lock; `None` if the key now has another kind. An inspection without a reply is repeated.
async fn inspected(
    engine: &Engine,
    lock: &Lock,
    op: &Op,
    outcome: Outcome,
) -> Result<Option<Status>, InspectError> {
    let reply = match outcome {
        Outcome::Done(reply) => Ok(reply),
        Outcome::Failed(_, fault) if !fault.is_transient() => Err(fault),
        Outcome::Failed(..) => {
            engine.call(lock, op, engine.timings.call).await.map_err(|CallFailure { fault, .. }| fault)
        }
    };
    let fault = match reply {
        Ok(Reply::Inspect(inspection)) => return Ok(Some(Status::new(&inspection, false))),
        Ok(other) => Fault::unexpected_reply(other),
        Err(fault) => fault,
    };
    if matches!(fault.kind, FaultKind::Refused(_)) { Ok(None) } else { Err(fault.into()) }
}
