//! Confirmation of holds, extends and heartbeats, for configurations that request it: by replicas, which acknowledge them
//! (WAIT), and by the server's disk, which has them in the append-only file (WAITAOF).
//!
//! Owns connections of its own, which carry nothing else: both commands block those behind them, and count only what
//! was written on their own connection.
//!
//! 1. Another client's release may have written a grant. So the hold is re-read here, which shows that this server
//!    has it; then a write follows, which the server replicates, and writes to its file, after the hold; and WAIT queries
//!    which replicas acknowledged that write, WAITAOF whether it was synced.
//! 2. The re-read is an extend: its reply compares the hold, for every kind of lock. For a new hold it cannot lengthen the
//!    lease, and compares the fencing token, too: this connection may lead to a server that lacks the grant, and has
//!    granted the same queue entry since. For an extend it is that extend once more, and for a heartbeat that heartbeat: the
//!    server may lack it.
//! 3. Read and write use the key of the lock, or of the session's record, so that both go to the node that has it, also while
//!    its slot migrates. Only a new hold of a Mutex or an Election needs the lock's record as well, which has its token: it is
//!    confirmed once both have moved. If nothing was written, the replies of WAIT and WAITAOF mean nothing.
//! 4. Several are confirmed by one write and one WAIT or WAITAOF at each server. What that does not settle is confirmed alone. A
//!    hold that has ended since its extend is settled: its release may wait for the extend.

mod lanes;
mod request;

use super::cluster::{Cluster, Redirect, redirect};
use super::config::RedisConfig;
use super::config::address::Address;
use super::conn::link::Backoff;
use super::error_map::{ErrorMeaning, classify, goes_elsewhere};
use super::script::reply::Malformed;
use super::script::{Call, extends_by_token};
use super::session_keys::SessionKeys;
use super::store::MAX_EXTENDS_PER_CALL;
use futures_util::future::join_all;
use lanes::{Answer, How, Lanes, NoAnswer};
use leasehold_core::{Claim, Extend, FencingToken, Heartbeat, Kind, Lock, LockKeys, Op};
use leasehold_store::{Fault, FaultKind, Phase};
use redis::Value;
pub(crate) use request::Required;
use request::{Found, Request, Reread, RereadOf};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Pauses between two requests: the first, and the longest.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// How often several are confirmed together before the rest is confirmed alone.
const GROUP_ATTEMPTS: usize = 2;

/// The meaning of the replies.
enum Confirmation {
    /// All that is required has it.
    Acknowledged,
    /// Something that is required does not, or the request failed.
    Failed(Fault),
    /// Another connection may lead to the server that has it.
    Elsewhere(Fault),
    /// The server does not have the hold or the session, or does not have it any more.
    Missing(Fault),
    /// The node executed nothing: in a cluster another node may have it, or this one may in a moment.
    Redirected(Redirect, Fault),
}

/// What is to be confirmed.
pub(crate) struct Unconfirmed<'a> {
    session_keys: SessionKeys<'a>,
    written: Written<'a>,
}

/// What was written at the primary.
enum Written<'a> {
    Hold { lock: &'a Lock, keys: LockKeys, extend: Extend },
    Session { key: String, heartbeat: Heartbeat },
}

impl<'a> Unconfirmed<'a> {
    /// A new hold, granted with this token, whose lease stays as it is.
    pub(crate) fn hold(
        lock: &'a Lock,
        keys: LockKeys,
        session_keys: SessionKeys<'a>,
        (claim, fence): (&Claim, FencingToken),
    ) -> Self {
        Self::of_hold(lock, keys, session_keys, (claim, Some(fence)), 1)
    }

    /// An extend that was executed.
    pub(crate) fn extend(
        lock: &'a Lock,
        keys: LockKeys,
        session_keys: SessionKeys<'a>,
        claim: &Claim,
        lease_ms: u64,
    ) -> Self {
        Self::of_hold(lock, keys, session_keys, (claim, None), lease_ms)
    }

    fn of_hold(
        lock: &'a Lock,
        keys: LockKeys,
        session_keys: SessionKeys<'a>,
        (claim, fence): (&Claim, Option<FencingToken>),
        lease_ms: u64,
    ) -> Self {
        let extend = Extend { claim: claim.clone(), lease_ms, keep_record: false, reserve: None, fence };
        Self { session_keys, written: Written::Hold { lock, keys, extend } }
    }

    /// A heartbeat that was executed.
    pub(crate) fn heartbeat(session_keys: SessionKeys<'a>, of: &Heartbeat) -> Self {
        // What it reports is for people, and is not confirmed. It begins no session: the server must have it.
        let heartbeat = Heartbeat {
            session: of.session,
            alive_ms: of.alive_ms,
            begin: None,
            acquired: Vec::new(),
            released: Vec::new(),
            renew_listing: false,
            activity: None,
        };
        let key = session_keys.session(of.session);
        Self { session_keys, written: Written::Session { key, heartbeat } }
    }

    fn slot(&self) -> u16 {
        match &self.written {
            Written::Hold { keys, .. } => keys.slot(),
            Written::Session { .. } => self.session_keys.slot.unwrap_or(0),
        }
    }

    /// The write (3).
    fn write(&self) -> Call {
        match &self.written {
            Written::Hold { keys, .. } => Call::rewrite_expiry(keys.name()),
            Written::Session { key, .. } => Call::rewrite_expiry(key),
        }
    }

    /// The extend, if its re-read can share a call with others.
    fn by_token(&self) -> Option<(&LockKeys, Kind, &Extend)> {
        match &self.written {
            Written::Hold { lock, keys, extend } if extends_by_token(lock.kind, extend) => {
                Some((keys, lock.kind, extend))
            }
            _ => None,
        }
    }

    fn reread(&self) -> Option<Reread> {
        match &self.written {
            Written::Hold { lock, keys, extend } => {
                let op = Op::Extend(extend.clone());
                let call = Call::reduced(&op, lock.kind, &self.session_keys, keys)
                    .or_else(|| Call::new(&op, lock.kind, &self.session_keys, keys))?;
                Some(Reread { of: RereadOf::Holds(vec![op]), call })
            }
            Written::Session { heartbeat, .. } => {
                let call = Call::reduced_heartbeat(heartbeat, &self.session_keys);
                Some(Reread { of: RereadOf::Session, call })
            }
        }
    }
}

/// The links in use.
#[derive(Debug, Default)]
struct Links {
    /// Those to each node that was queried, which carry nothing else; the key is `None` for a single server.
    to: BTreeMap<Option<Address>, Arc<Lanes>>,
    /// The primaries when links were last removed.
    primaries: Vec<Address>,
}

/// Requests confirmations from a server, or from the primaries of a cluster.
#[derive(Debug)]
pub(crate) struct Confirmer {
    config: RedisConfig,
    required: Required,
    links: Mutex<Links>,
}

impl Confirmer {
    /// Requires these confirmations, over links of its own.
    pub(crate) const fn new(config: RedisConfig, required: Required) -> Self {
        Self { config, required, links: Mutex::new(Links { to: BTreeMap::new(), primaries: Vec::new() }) }
    }

    /// Waits until something is confirmed. Commands may still be executed after a failure, which
    /// at most lengthens a hold or a session there. So the request is repeated until the deadline if the connection breaks or
    /// leads to another server, or if the slot migrates.
    pub(crate) async fn confirm(
        &self,
        cluster: Option<&Cluster>,
        unconfirmed: &Unconfirmed<'_>,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let slot = unconfirmed.slot();
        let rereads = vec![unconfirmed.reread().ok_or_else(|| self.unusable())?];
        let request = Arc::new(Request { rereads, write: unconfirmed.write(), deadline });
        let Some(cluster) = cluster else { return self.confirm_at_one(&request).await };
        let (mut ask_target, mut pause): (Option<Address>, _) = (None, RETRY_BACKOFF.first);
        loop {
            let asking = ask_target.is_some();
            let node = match ask_target.take() {
                None => {
                    let map = cluster.map(deadline).await?;
                    self.retain_links(map.primaries());
                    map.primary(slot).cloned()
                }
                there => there,
            };
            // While there is no primary, or none that is reachable, the next one may be another node.
            let confirmation = match node {
                None => Confirmation::Elsewhere(cluster.uncovered()),
                Some(node) => self.request_one_at(Some(&node), &request, asking, RETRY_BACKOFF.longest).await,
            };
            let fault = match confirmation {
                Confirmation::Acknowledged => return Ok(()),
                Confirmation::Failed(fault) => return Err(fault),
                // Follow the redirect once, then go to the node that serves the slot by then.
                Confirmation::Redirected(Redirect::Ask(there), _) if !asking => {
                    ask_target = Some(there);
                    continue;
                }
                Confirmation::Redirected(Redirect::Moved(to), fault) => {
                    cluster.moved(slot, to);
                    fault
                }
                Confirmation::Redirected(_, fault)
                | Confirmation::Elsewhere(fault)
                | Confirmation::Missing(fault) => {
                    cluster.mark_stale();
                    fault
                }
            };
            pause = pause_before_retry(pause, fault, deadline).await?;
        }
    }

    /// The same for several (4). Returns the result of each.
    pub(crate) async fn confirm_all(
        &self,
        cluster: Option<&Cluster>,
        unconfirmed: &[Unconfirmed<'_>],
        deadline: Instant,
    ) -> Vec<Result<(), Fault>> {
        let mut settled: BTreeMap<usize, Result<(), Fault>> = BTreeMap::new();
        // The hold whose key is written may have ended, or its slot may have moved; then another key is written.
        for attempt in 0..GROUP_ATTEMPTS {
            let open: Vec<_> =
                unconfirmed.iter().enumerate().filter(|(at, _)| !settled.contains_key(at)).collect();
            if open.is_empty() {
                break;
            }
            let groups = self.by_node(cluster, open, deadline).await.into_iter();
            let confirmed =
                groups.map(async |(node, of)| self.confirm_group(node.as_ref(), of, attempt, deadline).await);
            settled.extend(join_all(confirmed).await.into_iter().flatten());
        }
        let results = unconfirmed.iter().enumerate().map(|(at, one)| {
            let settled = settled.remove(&at);
            async move {
                match settled {
                    Some(result) => result,
                    None => self.confirm(cluster, one, deadline).await,
                }
            }
        });
        join_all(results).await
    }

    /// What each node of a cluster has, or the only server. That of a slot without a known primary is left out.
    async fn by_node<'e, 'a>(
        &self,
        cluster: Option<&Cluster>,
        unconfirmed: Vec<(usize, &'e Unconfirmed<'a>)>,
        deadline: Instant,
    ) -> BTreeMap<Option<Address>, Vec<(usize, &'e Unconfirmed<'a>)>> {
        let mut nodes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let Some(cluster) = cluster else {
            nodes.insert(None, unconfirmed);
            return nodes;
        };
        let Ok(map) = cluster.map(deadline).await else { return nodes };
        self.retain_links(map.primaries());
        for (at, one) in unconfirmed {
            if let Some(primary) = map.primary(one.slot()) {
                nodes.entry(Some(primary.clone())).or_default().push((at, one));
            }
        }
        nodes
    }

    /// Confirms what one server has, once. Returns the results that are settled.
    async fn confirm_group(
        &self,
        node: Option<&Address>,
        of: Vec<(usize, &Unconfirmed<'_>)>,
        attempt: usize,
        deadline: Instant,
    ) -> Vec<(usize, Result<(), Fault>)> {
        let written = of.get(attempt).or(of.first());
        let Some(write) = written.map(|(_, one)| one.write()) else { return Vec::new() };
        let (mut together, mut rereads, mut order, mut settled) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (at, one) in of {
            // In a cluster the keys of a call must be in one slot.
            if let (Some(extend), None) = (one.by_token(), node) {
                together.push((at, extend));
            } else if let Some(reread) = one.reread() {
                order.push(at);
                rereads.push(reread);
            } else {
                settled.push((at, Err(self.unusable())));
            }
        }
        for part in together.chunks(MAX_EXTENDS_PER_CALL) {
            order.extend(part.iter().map(|(at, _)| *at));
            rereads.push(Reread::shared(&part.iter().map(|(_, extend)| *extend).collect::<Vec<_>>()));
        }
        let within = if node.is_some() { RETRY_BACKOFF.longest } else { Duration::MAX };
        let request = Arc::new(Request { rereads, write, deadline });
        let confirmations = self.request_at(node, &request, false, within).await;
        settled.extend(order.into_iter().zip(confirmations).filter_map(
            |(at, confirmation)| match confirmation {
                Confirmation::Acknowledged => Some((at, Ok(()))),
                Confirmation::Failed(fault) | Confirmation::Missing(fault) => Some((at, Err(fault))),
                Confirmation::Elsewhere(_) | Confirmation::Redirected(..) => None,
            },
        ));
        settled
    }

    fn unusable(&self) -> Fault {
        let kind = FaultKind::Unusable("this operation has no script".to_owned());
        Fault::new(kind, Phase::Send, self.config.node())
    }

    /// Asks the only server.
    async fn confirm_at_one(&self, request: &Arc<Request>) -> Result<(), Fault> {
        let mut pause = RETRY_BACKOFF.first;
        loop {
            let fault = match self.request_one_at(None, request, false, Duration::MAX).await {
                Confirmation::Acknowledged => return Ok(()),
                Confirmation::Failed(fault) => return Err(fault),
                Confirmation::Elsewhere(fault)
                | Confirmation::Missing(fault)
                | Confirmation::Redirected(_, fault) => fault,
            };
            pause = pause_before_retry(pause, fault, request.deadline).await?;
        }
    }

    /// As [`request_at`](Self::request_at), for one re-read.
    async fn request_one_at(
        &self,
        node: Option<&Address>,
        request: &Arc<Request>,
        asking: bool,
        connect_within: Duration,
    ) -> Confirmation {
        let confirmation = self.request_at(node, request, asking, connect_within).await.into_iter().next();
        confirmation.unwrap_or_else(|| Confirmation::Failed(self.unusable()))
    }

    /// Asks a node, or the only server, once, and returns the confirmation of each; `connect_within` limits the wait for
    /// a connection. `asking` is set after an ASK redirect.
    async fn request_at(
        &self,
        node: Option<&Address>,
        request: &Arc<Request>,
        asking: bool,
        connect_within: Duration,
    ) -> Vec<Confirmation> {
        let lanes = self.lanes(node);
        let (deadline, count) = (request.deadline, request.rereads.iter().map(Reread::count).sum());
        let for_all = |confirmation: &dyn Fn(Fault) -> Confirmation, fault: Fault| {
            (0..count).map(|_| confirmation(fault.clone())).collect::<Vec<_>>()
        };
        let until = Instant::now().checked_add(connect_within).map_or(deadline, |until| until.min(deadline));
        let by_nothing = || fault(lanes.node(), self.required.by_nothing());
        let answered = lanes.send(request, How { asking, connected_until: until }).await;
        let Answer { replies, link, connection } = match answered {
            Ok(answer) => answer,
            // In a cluster, the call has time left.
            Err(NoAnswer::Unconnected(fault)) if node.is_some() && fault.is_transient() => {
                return for_all(&Confirmation::Elsewhere, fault);
            }
            Err(NoAnswer::Unconnected(fault)) => return for_all(&Confirmation::Failed, fault),
            Err(NoAnswer::Broken(fault)) => return for_all(&Confirmation::Elsewhere, fault),
            // Usually another call's WAIT was in front of this one, and has not been answered either.
            Err(NoAnswer::TimedOut) => return for_all(&Confirmation::Failed, by_nothing()),
        };
        let written = &replies.written;
        let mut confirmations = Vec::with_capacity(count);
        for (reread, value) in request.rereads.iter().zip(&replies.rereads) {
            // A redirect shows that the connection works.
            let redirect =
                node.and_then(|node| [value, written].into_iter().find_map(|reply| redirected(node, reply)));
            confirmations.extend(reread.found(value).into_iter().map(|found_there| match &redirect {
                Some(to) => Confirmation::Redirected(to.clone(), by_nothing()),
                None => self.evaluate(link.node(), (value, written, &replies.waits), found_there),
            }));
        }
        let leads_elsewhere = |confirmation: &Confirmation| {
            matches!(confirmation, Confirmation::Elsewhere(_) | Confirmation::Missing(_))
        };
        if confirmations.iter().any(leads_elsewhere) {
            link.replace(&connection);
        }
        confirmations
    }

    /// The connections to a node of a cluster, or to the only server.
    fn lanes(&self, node: Option<&Address>) -> Arc<Lanes> {
        let made = || match node {
            None => Arc::new(Lanes::new(&self.config, self.required)),
            Some(node) => Arc::new(Lanes::new(&self.config.for_cluster_node(node), self.required)),
        };
        Arc::clone(self.links().to.entry(node.cloned()).or_insert_with(made))
    }

    /// Removes the links to all nodes except these, if the primaries have changed. A link to a node that is about to
    /// get its first slot is therefore kept until the change.
    fn retain_links(&self, primaries: &[Address]) {
        let mut links = self.links();
        if links.primaries != primaries {
            links.primaries = primaries.to_vec();
            links.to.retain(|link, _| link.as_ref().is_some_and(|link| primaries.contains(link)));
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        // No code panics while it holds this lock.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interprets the replies to the call of a re-read, the write, and what waits, and what the first says about one of those
    /// read.
    fn evaluate(
        &self,
        node: &Arc<str>,
        (reread, written, waits): (&Value, &Value, &[Value]),
        found_there: Found,
    ) -> Confirmation {
        let errors = [reread, written].into_iter().chain(waits).filter_map(|reply| match reply {
            Value::ServerError(error) if goes_elsewhere(error) => {
                Some(ErrorMeaning { elsewhere: true, ..classify(error) })
            }
            Value::ServerError(error) => Some(classify(error)),
            _ => None,
        });
        // A replica replies the re-read, and reports its role only on the write.
        let mut errors: Vec<_> = errors.collect();
        if let Some(at) = errors.iter().position(|error| error.elsewhere) {
            return Confirmation::Elsewhere(fault(node.clone(), errors.swap_remove(at).kind));
        }
        if let Some(error) = errors.into_iter().next() {
            return Confirmation::Failed(fault(node.clone(), error.kind));
        }
        match found_there {
            // It ended in between, and there was no write to wait for (3).
            Found::Yes if *written != Value::Int(1) => {
                Confirmation::Elsewhere(fault(node.clone(), self.required.by_nothing()))
            }
            Found::Yes => match self.required.missing(waits) {
                Ok(()) => Confirmation::Acknowledged,
                Err(missing) => Confirmation::Failed(fault(node.clone(), missing)),
            },
            // The server has lost it, or this connection leads to another server than the one that has it.
            Found::No => Confirmation::Missing(fault(node.clone(), self.required.by_nothing())),
            Found::Refused(refused) => Confirmation::Failed(fault(node.clone(), FaultKind::Refused(refused))),
            Found::Unreadable => {
                Confirmation::Failed(fault(node.clone(), FaultKind::Failed(Malformed.to_string())))
            }
        }
    }
}

fn fault(node: Arc<str>, kind: FaultKind) -> Fault {
    Fault::new(kind, Phase::Reply, node)
}

/// Redirect of a cluster node, which executed nothing.
fn redirected(node: &Address, reply: &Value) -> Option<Redirect> {
    let Value::ServerError(error) = reply else { return None };
    goes_elsewhere(error).then(|| redirect(node, reply).unwrap_or(Redirect::Later))
}

/// Pauses before the next request, and returns the next pause. Returns the fault if there is no time left.
async fn pause_before_retry(pause: Duration, fault: Fault, deadline: Instant) -> Result<Duration, Fault> {
    if Instant::now() + pause >= deadline {
        return Err(fault);
    }
    tokio::time::sleep(pause).await;
    Ok((pause * 2).min(RETRY_BACKOFF.longest))
}
