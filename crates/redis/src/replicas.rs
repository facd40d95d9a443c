//! Acknowledgement of a hold by replicas, for configurations that request it.
//!
//! Owns a connection of its own, which carries nothing else: WAIT blocks the commands behind it, and counts only what
//! was written on its own connection.
//!
//! 1. Another client's release may have written a grant. So the hold is re-read here, which shows that this server
//!    has it; then a write follows, which the server replicates after the hold; and WAIT queries which replicas
//!    acknowledged that write.
//! 2. The re-read is an extend that cannot lengthen the lease: its reply compares the hold, for every kind of lock.
//! 3. Read and write use the lock's own key, so that both go to the node that has the hold, also while its slot
//!    migrates. If nothing was written, the reply of WAIT means nothing.

use super::cluster::{Cluster, Redirect, redirect};
use super::config::RedisConfig;
use super::config::address::Address;
use super::conn::link::{Backoff, Link, LinkConnection, NoReply};
use super::conn::mailbox::Mailboxes;
use super::error_map::is_unknown_script;
use super::error_map::{ErrorMeaning, classify, goes_elsewhere};
use super::script::Call;
use super::script::reply;
use super::session_keys::SessionKeys;
use leasehold_core::{Claim, Extend, Extended, Lock, LockKeys, Op, Reply};
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

/// The meaning of the replies.
enum Confirmation {
    /// Enough replicas acknowledged the hold.
    Acknowledged,
    /// Too few replicas did, or the request failed.
    Failed(Fault),
    /// Another connection may lead to the server that has the hold.
    Elsewhere(Fault),
    /// The node executed nothing: in a cluster another node may have the hold, or this one may in a moment.
    Redirected(Redirect, Fault),
}

/// One request, independent of the server.
struct Request {
    /// The operation of the re-read (2).
    reread: Op,
    /// The re-read, and the write (3).
    calls: [Call; 2],
    /// The deadline for a reply.
    deadline: Instant,
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

    /// Waits until enough replicas acknowledge a hold. Commands may still be executed after a failure, which changes
    /// nothing. So the request is repeated until the deadline if the connection breaks or leads to another server, or
    /// if the slot migrates.
    pub(crate) async fn confirm(
        &self,
        cluster: Option<&Cluster>,
        session_keys: &SessionKeys<'_>,
        lock: &Lock,
        keys: &LockKeys,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let request = self.request((lock, keys), session_keys, claim, deadline)?;
        let Some(cluster) = cluster else { return self.confirm_at_one(&request).await };
        let (mut ask_target, mut pause): (Option<Address>, _) = (None, RETRY_BACKOFF.first);
        loop {
            let asking = ask_target.is_some();
            let node = match ask_target.take() {
                None => {
                    let map = cluster.map(deadline).await?;
                    self.retain_links(map.primaries());
                    map.primary(keys.slot()).cloned()
                }
                there => there,
            };
            // While there is no primary, or none that is reachable, the next one may be another node.
            let confirmation = match node {
                None => Confirmation::Elsewhere(cluster.uncovered()),
                Some(node) => self.request_at(Some(&node), &request, asking, RETRY_BACKOFF.longest).await,
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
                    cluster.moved(keys.slot(), to);
                    fault
                }
                Confirmation::Redirected(_, fault) | Confirmation::Elsewhere(fault) => {
                    cluster.mark_stale();
                    fault
                }
            };
            pause = pause_before_retry(pause, fault, deadline).await?;
        }
    }

    fn request(
        &self,
        (lock, keys): (&Lock, &LockKeys),
        session_keys: &SessionKeys<'_>,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<Request, Fault> {
        let reread =
            Op::Extend(Extend { claim: claim.clone(), lease_ms: 1, keep_record: false, reserve: None });
        let call = Call::reduced(&reread, lock.kind, session_keys, keys)
            .or_else(|| Call::new(&reread, lock.kind, session_keys, keys));
        let unusable = || FaultKind::Unusable("this operation has no script".to_owned());
        let call = call.ok_or_else(|| Fault::new(unusable(), Phase::Send, self.config.node()))?;
        Ok(Request { reread, calls: [call, Call::rewrite_expiry(keys)], deadline })
    }

    /// Asks the only server.
    async fn confirm_at_one(&self, request: &Request) -> Result<(), Fault> {
        let mut pause = RETRY_BACKOFF.first;
        loop {
            let fault = match self.request_at(None, request, false, Duration::MAX).await {
                Confirmation::Acknowledged => return Ok(()),
                Confirmation::Failed(fault) => return Err(fault),
                Confirmation::Elsewhere(fault) | Confirmation::Redirected(_, fault) => fault,
            };
            pause = pause_before_retry(pause, fault, request.deadline).await?;
        }
    }

    /// Asks a node, or the only server, once; `connect_within` limits the wait for a connection. `asking` is set after an
    /// ASK redirect.
    async fn request_at(
        &self,
        node: Option<&Address>,
        request: &Request,
        asking: bool,
        connect_within: Duration,
    ) -> Confirmation {
        let link = self.link(node);
        let deadline = request.deadline;
        let until = Instant::now().checked_add(connect_within).map_or(deadline, |until| until.min(deadline));
        let mut connection = match link.connection(until).await {
            Ok(connection) => connection,
            // In a cluster, the call has time left.
            Err(fault) if node.is_some() && fault.is_transient() => return Confirmation::Elsewhere(fault),
            Err(fault) => return Confirmation::Failed(fault),
        };
        let replies = match send_request(&link, &mut connection, (self.wanted, asking), request).await {
            Ok(replies) => replies,
            Err(NoReply::Broken(error)) => {
                return Confirmation::Elsewhere(fault(&link, FaultKind::Disconnected).with_source(error));
            }
            // Usually another call's WAIT was in front of this one, and has not been answered either.
            Err(NoReply::TimedOut) => return Confirmation::Failed(fault(&link, self.too_few(0))),
        };
        // A redirect shows that the connection works.
        let redirected = node.and_then(|node| replies.iter().find_map(|reply| redirected(node, reply)));
        if let Some(to) = redirected {
            return Confirmation::Redirected(to, fault(&link, FaultKind::Busy));
        }
        let confirmation = self.evaluate(&link, &request.reread, &replies);
        if matches!(confirmation, Confirmation::Elsewhere(_)) {
            link.replace(&connection);
        }
        confirmation
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

    /// Interprets the replies to the re-read, the write and WAIT.
    fn evaluate(&self, link: &Link, reread: &Op, replies: &[Value]) -> Confirmation {
        let malformed = || Confirmation::Failed(fault(link, FaultKind::Failed(reply::Malformed.to_string())));
        let errors = replies.iter().filter_map(|reply| match reply {
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
        let [reread_reply, written, found] = replies else { return malformed() };
        match (reply::read(reread, reread_reply), found) {
            // The hold ended in between, and WAIT had no write to count (3).
            (Ok(Reply::Extend(Extended::Extended)), _) if *written != Value::Int(1) => {
                Confirmation::Elsewhere(fault(link, self.too_few(0)))
            }
            (Ok(Reply::Extend(Extended::Extended)), Value::Int(found)) => {
                match u32::try_from(*found).unwrap_or(0) {
                    found if found >= self.wanted => Confirmation::Acknowledged,
                    found => Confirmation::Failed(fault(link, self.too_few(found))),
                }
            }
            // The server has lost the hold, or this connection leads to another server than the one that has it.
            (Ok(Reply::Extend(Extended::NotHeld)), _) => {
                Confirmation::Elsewhere(fault(link, self.too_few(0)))
            }
            (Ok(Reply::Refused(refused)), _) => {
                Confirmation::Failed(fault(link, FaultKind::Refused(refused)))
            }
            _ => malformed(),
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

/// The replies to the re-read, the write and WAIT. Loads the scripts if the server does not know them.
async fn send_request(
    link: &Link,
    connection: &mut LinkConnection,
    (wanted, asking): (u32, bool),
    Request { calls, deadline, .. }: &Request,
) -> Result<Vec<Value>, NoReply> {
    let mut loaded = false;
    loop {
        let mut pipeline = Pipeline::with_capacity(7);
        if loaded {
            for call in calls {
                pipeline.add_command(call.load());
            }
        }
        for call in calls {
            if asking {
                pipeline.add_command(cmd("ASKING"));
            }
            pipeline.add_command(call.cmd().clone());
        }
        pipeline.add_command(cmd("WAIT").arg(wanted).arg(wait_timeout_ms(*deadline)).clone());
        let replies = link.call_all(connection, &pipeline, *deadline).await?.into_iter();
        let replies = replies.skip(if loaded { calls.len() } else { 0 }).enumerate();
        // The reply of a call covers that of the ASKING in front of it.
        let counts = |at: usize| !asking || at % 2 == 1 || at == 2 * calls.len();
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
