//! Who is there, and what they hold: what a store's sessions have told of themselves, and a look at each lock.
//!
//! Nothing here searches through a store. A session tells of a lock with a beat, once it has held it for so long that it
//! was extended, so what is asked for is known by name.

use crate::engine::{Engine, Uncertain};
use crate::error::InspectError;
use crate::session_info::{SessionInfo, sessions};
use crate::status::{Sharer, Status};
use crate::store::{Fault, FaultKind, Outcome};
use leasehold_core::{Inspect, Kind, Lock, LockName, Op, Reply, SessionId};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// How many locks are looked at in one go.
const AT_ONCE: usize = 256;

/// One lock that is held, and who is behind it: [`Client::locks`](crate::Client::locks).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = leasehold::Client::connect("memory:").await?;
/// for lock in client.locks().await? {
///     let host = lock.behind.as_ref().and_then(|session| session.about.as_ref()).map(|about| &about.host);
///     println!("{} is held by {:?} on {host:?}, and {} wait", lock.name, lock.status.holder, lock.status.waiting);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub name: LockName,
    /// What kind of lock it is.
    pub kind: Kind,
    /// How it stands, as the store says: it is held. [`Status::ours`] is not known here, and false.
    pub status: Status,
    /// The session of its holder. Nothing, where the lock has come to somebody meanwhile who has none.
    pub behind: Option<Arc<SessionInfo>>,
    /// The sessions of all who have it, of a lock that several can have side by side, as far as the store knows them.
    pub sessions: Vec<Arc<SessionInfo>>,
}

impl LockInfo {
    /// Who is behind one of those who have it: [`Status::sharers`] says who they are.
    pub fn behind_sharer(&self, sharer: &Sharer) -> Option<&SessionInfo> {
        self.sessions.iter().find(|session| Some(session.session) == sharer.session).map(|session| &**session)
    }
}

/// The locks that some session says it holds, and that are held.
pub(crate) async fn locks(engine: &Engine) -> Result<Vec<LockInfo>, InspectError> {
    let sessions: Vec<_> = sessions(engine).await?.into_iter().map(Arc::new).collect();
    let said: BTreeSet<_> = sessions.iter().flat_map(|session| &session.locks).cloned().collect();
    let by_id: HashMap<_, _> = sessions.iter().map(|session| (session.session, session)).collect();
    let inspect = Op::Inspect(Inspect { claim: None, in_full: false });
    let mut asked: Vec<_> = said.into_iter().map(|lock| (lock, inspect.clone())).collect();
    // Of one name there may be several kinds, until it is looked at.
    asked.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    let mut held = Vec::new();
    for some in asked.chunks(AT_ONCE) {
        let outcomes = engine.store.execute_all(some, engine.timings.call).await;
        for ((lock, op), outcome) in some.iter().zip(outcomes) {
            let Some(status) = seen(engine, lock, op, outcome).await? else { continue };
            if status.held {
                let known = |id: Option<SessionId>| by_id.get(&id?).map(|&session| session.clone());
                let behind = known(status.session);
                let concerned: BTreeSet<_> = status.sharers.iter().map(|sharer| sharer.session).collect();
                let sessions = concerned.into_iter().filter_map(known).collect();
                held.push(LockInfo { name: lock.name.clone(), kind: lock.kind, status, behind, sessions });
            }
        }
    }
    Ok(held)
}

/// What was seen of a lock; nothing, where there is no lock any more but something else. What was not answered is asked
/// again.
async fn seen(
    engine: &Engine,
    lock: &Lock,
    op: &Op,
    outcome: Outcome,
) -> Result<Option<Status>, InspectError> {
    let reply = match outcome {
        Outcome::Done(reply) => Ok(reply),
        Outcome::Failed(_, fault) if !fault.is_transient() => Err(fault),
        Outcome::Failed(..) => {
            engine.call(lock, op, engine.timings.call).await.map_err(|Uncertain { fault, .. }| fault)
        }
    };
    let fault = match reply {
        Ok(Reply::Inspect(seen)) => return Ok(Some(Status::of(&seen, false))),
        Ok(odd) => Fault::odd_reply(odd),
        Err(fault) => fault,
    };
    if matches!(fault.kind, FaultKind::Meaningless(_)) { Ok(None) } else { Err(fault.into()) }
}
