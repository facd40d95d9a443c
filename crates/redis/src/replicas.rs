//! Acknowledgement of holds, extends and heartbeats by replicas, for configurations that request it.
//!
//! Owns a connection of its own, which carries nothing else: WAIT blocks the commands behind it, and counts only what
//! was written on its own connection.
//!
//! 1. Another client's release may have written a grant. So the hold is re-read here, which shows that this server
//!    has it; then a write follows, which the server replicates after the hold; and WAIT queries which replicas
//!    acknowledged that write.
//! 2. The re-read is an extend: its reply compares the hold, for every kind of lock. For a new hold it cannot lengthen the
//!    lease, and compares the fencing token, too: this connection may lead to a server that lacks the grant, and has
//!    granted the same queue entry since. For an extend it is that extend once more, and for a heartbeat that heartbeat: the
//!    server may lack it.
//! 3. Read and write use the key of the lock, or of the session's record, so that both go to the node that has it, also while
//!    its slot migrates. Only a new hold of a Mutex or an Election needs the lock's record as well, which has its token: it is
//!    confirmed once both have moved. If nothing was written, the reply of WAIT means nothing.
//! 4. Several are confirmed by one write and one WAIT at each server. What that does not settle is confirmed alone. A
//!    hold that has ended since its extend is settled: its release may wait for the extend.

use super::cluster::{Cluster, Redirect, redirect};
use super::config::RedisConfig;
use super::config::address::Address;
use super::conn::link::{Backoff, Link, LinkConnection, NoReply};
use super::conn::mailbox::Mailboxes;
use super::error_map::is_unknown_script;
use super::error_map::{ErrorMeaning, classify, goes_elsewhere};
use super::script::reply;
use super::script::{Call, extends_by_token};
use super::session_keys::SessionKeys;
use super::store::MAX_EXTENDS_PER_CALL;
use futures_util::future::join_all;
use leasehold_core::{
    Claim, Extend, Extended, FencingToken, Heartbeat, HeartbeatReply, Kind, Lock, LockKeys, Op, Refused,
    Reply,
};
use leasehold_store::{Fault, FaultKind, Phase};
use redis::{Pipeline, Value, cmd};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How late the server may end a WAIT: an idle server checks timeouts ten times a second.
const WAIT_MARGIN: Duration = Duration::from_millis(150);
/// Pauses between two requests: the first, and the longest.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// How often several are confirmed together before the rest is confirmed alone.
const GROUP_ATTEMPTS: usize = 2;

/// The meaning of the replies.
enum Confirmation {
    /// Enough replicas acknowledged it.
    Acknowledged,
    /// Too few replicas did, or the request failed.
    Failed(Fault),
    /// Another connection may lead to the server that has it.
    Elsewhere(Fault),
    /// The server does not have the hold or the session, or does not have it any more.
    Missing(Fault),
    /// The node executed nothing: in a cluster another node may have it, or this one may in a moment.
    Redirected(Redirect, Fault),
}

/// What replicas are to acknowledge.
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

/// One request, independent of the server.
struct Request {
    rereads: Vec<Reread>,
    /// The write (3).
    write: Call,
    /// The deadline for a reply.
    deadline: Instant,
}

impl Request {
    fn calls(&self) -> impl Iterator<Item = &Call> {
        self.rereads.iter().map(|reread| &reread.call).chain([&self.write])
    }
}

/// A re-read by one call (2).
struct Reread {
    of: RereadOf,
    call: Call,
}

/// What is read again.
enum RereadOf {
    /// Holds, each by such an extend.
    Holds(Vec<Op>),
    Session,
}

/// What a re-read has found.
enum Found {
    Yes,
    No,
    Refused(Refused),
    /// The reply cannot be read.
    Unreadable,
}

impl Reread {
    fn shared(of: &[(&LockKeys, Kind, &Extend)]) -> Self {
        let ops = of.iter().map(|(_, _, extend)| Op::Extend((*extend).clone())).collect();
        Self { of: RereadOf::Holds(ops), call: Call::extends(of) }
    }

    /// How many are read.
    fn count(&self) -> usize {
        match &self.of {
            RereadOf::Holds(ops) => ops.len(),
            RereadOf::Session => 1,
        }
    }

    /// What it found for each, from the reply to the call.
    fn found(&self, value: &Value) -> Vec<Found> {
        let ops = match &self.of {
            RereadOf::Holds(ops) => &ops[..],
            RereadOf::Session => {
                return vec![match reply::heartbeat(value) {
                    Ok(Ok(HeartbeatReply::Alive)) => Found::Yes,
                    Ok(Ok(HeartbeatReply::Lapsed)) => Found::No,
                    Ok(Err(refused)) => Found::Refused(refused),
                    Err(_) => Found::Unreadable,
                }];
            }
        };
        let read = |(op, value): (&Op, &Value)| match reply::read(op, value) {
            Ok(Reply::Extend(Extended::Extended)) => Found::Yes,
            Ok(Reply::Extend(Extended::NotHeld)) => Found::No,
            Ok(Reply::Refused(refused)) => Found::Refused(refused),
            _ => Found::Unreadable,
        };
        match (ops, value) {
            ([op], value) => vec![read((op, value))],
            (ops, Value::Array(values)) if values.len() == ops.len() => {
                ops.iter().zip(values).map(read).collect()
            }
            (ops, _) => ops.iter().map(|_| Found::Unreadable).collect(),
        }
    }
}

/// The links in use.
#[derive(Debug, Default)]
struct Links {
    /// One link to each node that was queried, which carries nothing else; the key is `None` for a single server.
    to: BTreeMap<Option<Address>, Arc<Link>>,
    /// The primaries when links were last removed.
    primaries: Vec<Address>,
}

/// Requests acknowledgements from the replicas of a server, or of a primary of a cluster.
#[derive(Debug)]
pub(crate) struct Replicas {
    config: RedisConfig,
    wanted: u32,
    links: Mutex<Links>,
}

impl Replicas {
    /// Requires `wanted` replicas, over links of its own.
    pub(crate) const fn new(config: RedisConfig, wanted: u32) -> Self {
        Self { config, wanted, links: Mutex::new(Links { to: BTreeMap::new(), primaries: Vec::new() }) }
    }

    /// Waits until enough replicas acknowledge something. Commands may still be executed after a failure, which
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
        let request = Request { rereads, write: unconfirmed.write(), deadline };
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
        let request = Request { rereads, write, deadline };
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
    async fn confirm_at_one(&self, request: &Request) -> Result<(), Fault> {
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
        request: &Request,
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
        request: &Request,
        asking: bool,
        connect_within: Duration,
    ) -> Vec<Confirmation> {
        let link = self.link(node);
        let (deadline, count) = (request.deadline, request.rereads.iter().map(Reread::count).sum());
        let for_all = |confirmation: &dyn Fn(Fault) -> Confirmation, fault: Fault| {
            (0..count).map(|_| confirmation(fault.clone())).collect::<Vec<_>>()
        };
        let until = Instant::now().checked_add(connect_within).map_or(deadline, |until| until.min(deadline));
        let mut connection = match link.connection(until).await {
            Ok(connection) => connection,
            // In a cluster, the call has time left.
            Err(fault) if node.is_some() && fault.is_transient() => {
                return for_all(&Confirmation::Elsewhere, fault);
            }
            Err(fault) => return for_all(&Confirmation::Failed, fault),
        };
        let replies = match send_request(&link, &mut connection, (self.wanted, asking), request).await {
            Ok(replies) => replies,
            Err(NoReply::Broken(error)) => {
                let fault = fault(&link, FaultKind::Disconnected).with_source(error);
                return for_all(&Confirmation::Elsewhere, fault);
            }
            // Usually another call's WAIT was in front of this one, and has not been answered either.
            Err(NoReply::TimedOut) => {
                return for_all(&Confirmation::Failed, fault(&link, self.too_few(0)));
            }
        };
        let (written, found) = match &replies[..] {
            [.., written, found] => (written, found),
            _ => (&Value::Nil, &Value::Nil),
        };
        let mut confirmations = Vec::with_capacity(count);
        for (reread, value) in request.rereads.iter().zip(&replies) {
            // A redirect shows that the connection works.
            let redirect =
                node.and_then(|node| [value, written].into_iter().find_map(|reply| redirected(node, reply)));
            confirmations.extend(reread.found(value).into_iter().map(|found_there| match &redirect {
                Some(to) => Confirmation::Redirected(to.clone(), fault(&link, self.too_few(0))),
                None => self.evaluate(&link, [value, written, found], found_there),
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

    /// The link to a node of a cluster, or to the only server.
    fn link(&self, node: Option<&Address>) -> Arc<Link> {
        let config = || match node {
            None => self.config.clone(),
            Some(node) => self.config.for_cluster_node(node),
        };
        let made = || Arc::new(Link::new(config(), Mailboxes::with_handler(|_| {})));
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

    /// Interprets the replies to the call of a re-read, the write and WAIT, and what the first says about one of those read.
    fn evaluate(&self, link: &Link, replies: [&Value; 3], found_there: Found) -> Confirmation {
        let malformed = || Confirmation::Failed(fault(link, FaultKind::Failed(reply::Malformed.to_string())));
        let errors = replies.into_iter().filter_map(|reply| match reply {
            Value::ServerError(error) if goes_elsewhere(error) => {
                Some(ErrorMeaning { elsewhere: true, ..classify(error) })
            }
            Value::ServerError(error) => Some(classify(error)),
            _ => None,
        });
        // A replica replies the re-read, and reports its role only on the write.
        let mut errors: Vec<_> = errors.collect();
        if let Some(at) = errors.iter().position(|error| error.elsewhere) {
            return Confirmation::Elsewhere(fault(link, errors.swap_remove(at).kind));
        }
        if let Some(error) = errors.into_iter().next() {
            return Confirmation::Failed(fault(link, error.kind));
        }
        let [_, written, confirmed] = replies;
        match (found_there, confirmed) {
            // It ended in between, and WAIT had no write to count (3).
            (Found::Yes, _) if *written != Value::Int(1) => {
                Confirmation::Elsewhere(fault(link, self.too_few(0)))
            }
            (Found::Yes, Value::Int(confirmed)) => match u32::try_from(*confirmed).unwrap_or(0) {
                confirmed if confirmed >= self.wanted => Confirmation::Acknowledged,
                confirmed => Confirmation::Failed(fault(link, self.too_few(confirmed))),
            },
            // The server has lost it, or this connection leads to another server than the one that has it.
            (Found::No, _) => Confirmation::Missing(fault(link, self.too_few(0))),
            (Found::Refused(refused), _) => Confirmation::Failed(fault(link, FaultKind::Refused(refused))),
            (Found::Yes | Found::Unreadable, _) => malformed(),
        }
    }

    const fn too_few(&self, confirmed: u32) -> FaultKind {
        FaultKind::Unconfirmed { required: self.wanted, confirmed }
    }
}

fn fault(link: &Link, kind: FaultKind) -> Fault {
    Fault::new(kind, Phase::Reply, Arc::clone(link.node()))
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

/// The replies to the re-reads, the write and WAIT. Loads the scripts if the server does not know them.
async fn send_request(
    link: &Link,
    connection: &mut LinkConnection,
    (wanted, asking): (u32, bool),
    request: &Request,
) -> Result<Vec<Value>, NoReply> {
    let (deadline, count) = (request.deadline, request.calls().count());
    let mut loaded = false;
    loop {
        let mut pipeline = Pipeline::with_capacity(3 * count + 1);
        if loaded {
            for call in request.calls() {
                pipeline.add_command(call.load());
            }
        }
        for call in request.calls() {
            if asking {
                pipeline.add_command(cmd("ASKING"));
            }
            pipeline.add_command(call.cmd().clone());
        }
        pipeline.add_command(cmd("WAIT").arg(wanted).arg(wait_timeout_ms(deadline)).clone());
        let replies = link.call_all(connection, &pipeline, deadline).await?.into_iter();
        let replies = replies.skip(if loaded { count } else { 0 }).enumerate();
        // The reply of a call covers that of the ASKING in front of it.
        let counts = |at: usize| !asking || at % 2 == 1 || at == 2 * count;
        let replies: Vec<_> = replies.filter(|(at, _)| counts(*at)).map(|(_, reply)| reply).collect();
        if loaded || !replies.iter().any(is_unknown_script) {
            return Ok(replies);
        }
        loaded = true;
    }
}

/// Timeout for WAIT: never 0, which means no timeout, and short enough for the reply to arrive in time.
fn wait_timeout_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let in_time = left.saturating_sub(WAIT_MARGIN.min(left / 2));
    u64::try_from(in_time.as_millis()).unwrap_or(u64::MAX).max(1)
}
