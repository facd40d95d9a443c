//! [`RedisStore`], the public handle: how it is opened, and the [`Store`] interface.
//!
//! [`send`] sends operations, [`fanout`] sends them to several primaries of a cluster, [`sessions`] executes
//! session operations, [`confirmation`] waits for replicas and for the disk, [`watch`] reads keys whose changes are reported,
//! and [`diagnosis`] reads the settings and the clock of a
//! server.

mod call_target;
mod confirmation;
mod diagnosis;
mod fanout;
mod scan;
mod send;
mod sessions;
mod watch;

pub(crate) use send::MAX_EXTENDS_PER_CALL;

use super::cluster::{Cluster, OnTryAgain, SLOTS};
use super::config::RedisConfig;
use super::confirm::{Confirmer, Required, Unconfirmed};
use super::conn::borrowed::BorrowedConnection;
use super::conn::lent::LentConnection;
use super::conn::link::{Backoff, Link};
use super::conn::mailbox::Mailboxes;
use super::conn::tracking::KeyTracking;
use super::location::ServerLocation;
use super::script::Call;
use super::session_keys::SessionKeys;
use futures_util::future::BoxFuture;
use leasehold_core::{
    Acquire, Claim, FencingToken, KeyError, KeySpace, Kind, Lock, LockKeys, MultiAcquired, Op, Partition,
    Reply, SessionId, SessionOp, SessionReply, whole_millis,
};
use leasehold_store::{
    Capabilities, CredentialsFault, Diagnosis, Fault, FaultKind, HoldWatcher, NameScan, NotificationSink,
    Outcome, Phase, ServerFinding, SessionTracking, Store, Subscription,
};
use redis::PushInfo;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;

/// How long a node keeps the line of waiters of a lock after the last one has joined. They join again much more often.
const LINE_TTL: Duration = Duration::from_secs(2);

/// The pauses before it is checked whether credentials that were rejected are accepted now: the first, and the longest.
const REJECTED_BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(500));

/// Upper limit of the time of a call, so that the deadline cannot overflow.
const MAX_CALL_TIME: Duration = Duration::from_secs(24 * 3600);

/// Store on one Redis (6.2 or newer) or Valkey (7.2 or newer) server, or on a cluster of them.
///
/// One connection carries all commands and messages. A broken connection is made again, with pauses that grow to 2 s
/// and are half random; calls wait for it until their own deadline. The store is cheap to clone; clones share the
/// connection. In a cluster there is one connection to each primary, and a second one where the client subscribes to
/// messages.
///
/// ```no_run
/// use leasehold::store::{Fault, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://localhost/?prefix=app:".parse()?).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    keys: KeySpace,
    backend: Arc<Backend>,
    /// Set if a hold counts only once it is confirmed.
    confirmer: Option<Arc<Confirmer>>,
}

/// A session operation that did not succeed: never [`Outcome::Done`].
pub(crate) type SessionOutcome = Outcome<SessionReply>;

/// How the store reaches the server.
#[derive(Debug)]
enum Backend {
    /// A connection that the store makes.
    Link(Link),
    /// A connection, or a pool, that the application lent.
    Borrowed(BorrowedConnection),
    /// Several servers, each with some of the slots.
    Cluster(Cluster),
}

impl RedisStore {
    /// Connects to a server. A wrong address, a wrong password or a server that is too old fails here, and not at the
    /// first use.
    ///
    /// Findings about the server's settings or version are logged as warnings, each once for this configuration and
    /// its clones; with [`RedisConfig::strict`], they are an error. Critical ones are always an error, such as an eviction
    /// policy that can remove locks. Those that were [accepted](RedisConfig::accept) are neither. [`Store::findings`]
    /// returns them, and [`Store::diagnose`] reads the server again.
    ///
    /// Fails if the first attempt fails, within [`RedisConfig::connect_timeout`] and the time of a
    /// [provider of credentials](RedisConfig::credentials). The connection belongs to the
    /// runtime of the caller. When that runtime has ended, the next call makes a new connection in its own runtime.
    ///
    /// ```no_run
    /// use leasehold::store::{FaultKind, RedisConfig, RedisStore};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = RedisConfig::from_url("rediss://locks.example")?.username("locks").password("…");
    /// match RedisStore::connect(config).await {
    ///     Ok(store) => drop(store),
    ///     Err(fault) if fault.kind == FaultKind::Unauthenticated => eprintln!("{fault}"),
    ///     Err(fault) => return Err(fault.into()),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(config: RedisConfig) -> Result<Self, Fault> {
        let store = Self::lazy(config);
        store.first_attempt().await?;
        Ok(store)
    }

    /// Waits until the first connection attempt ends. Returns at once on a connection of the user.
    ///
    /// If the server rejects the credentials of a provider, which may have been rotated just now, later attempts count as
    /// well, as long as one may take.
    pub(crate) async fn first_attempt(&self) -> Result<(), Fault> {
        let (start, mut rejected) = (Instant::now(), 0);
        loop {
            let (attempted, config) = match &*self.backend {
                Backend::Link(link) => (link.connect().await, link.config()),
                Backend::Cluster(cluster) => {
                    let connected = cluster.connect().await;
                    let tried = match connected {
                        Ok(()) => self.try_cluster(cluster.config()).await,
                        failed => failed,
                    };
                    (tried, cluster.config())
                }
                Backend::Borrowed(_) => return Ok(()),
            };
            let left = config.attempt_timeout().saturating_sub(start.elapsed());
            match attempted {
                Err(fault)
                    if fault.kind == FaultKind::Credentials(CredentialsFault::Rejected)
                        && !left.is_zero() =>
                {
                    rejected += 1;
                    let pause = REJECTED_BACKOFF.pause(rejected, config.shared_environment().random());
                    tokio::time::sleep(pause.min(left)).await;
                }
                attempted => return attempted,
            }
        }
    }

    /// Creates a store that connects at its first use. This never fails.
    ///
    /// ```
    /// use leasehold::store::RedisStore;
    ///
    /// let store = RedisStore::lazy("redis://localhost".parse()?);
    /// # Ok::<(), leasehold::store::UrlError>(())
    /// ```
    pub fn lazy(config: RedisConfig) -> Self {
        let keys = config.keys().clone();
        let confirmer = Required::by(&config).map(|of| Arc::new(Confirmer::new(config.clone(), of)));
        // A change at one node of a quorum decides nothing.
        let is_tracking = config.is_tracking() && config.min_uptime().is_none();
        let tracking = is_tracking.then(|| Arc::new(KeyTracking::new(keys.prefix())));
        let backend = if matches!(config.location(), ServerLocation::Cluster(_)) {
            Backend::Cluster(Cluster::new(config, tracking))
        } else {
            let mailboxes = Mailboxes::new(keys.mailbox_prefix().to_owned()).with_tracking(tracking);
            Backend::Link(Link::new(config, mailboxes))
        };
        Self { keys, backend: Arc::new(backend), confirmer }
    }

    /// Creates a store on a connection or a pool that the application has: see [`LentConnection`]. Fails if `prefix` is not a
    /// valid prefix. The key of a Mutex is the prefix and its name, so choose a prefix that no key of your data begins with.
    ///
    /// `pushes` receives the push messages of a [`MultiplexedConnection`](redis::aio::MultiplexedConnection), which must use
    /// RESP3 and must have been made with the other end as its push sender. The store then subscribes on this connection,
    /// and notifications arrive as they do on a connection of the store's own. Without `pushes` no notification arrives, and
    /// waiters only poll: they notice a grant after 50 to 250 ms in place of a round trip. For a pool, and for a connection
    /// that reconnects, it is ignored with a warning.
    ///
    /// The store does not reconnect. Once a single connection is broken, all calls fail with
    /// [`FaultKind::LentConnectionLost`]; a pool, or a connection that reconnects, is used again at the next call.
    /// [`fork`](Store::fork) shares the connection, and calls run in the runtime in which it was lent: if that is busy, renewals
    /// are late, and if it has ended, they fail.
    ///
    /// What is lent leads to one server. A node of a cluster is refused at the first acquire
    /// ([`FaultKind::Unsupported`]): write `redis+cluster://`. Neither the server's version nor
    /// its settings are checked: [`Store::diagnose`] returns the findings.
    ///
    /// ```no_run
    /// use leasehold::store::RedisStore;
    /// use redis::{AsyncConnectionConfig, Client};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, pushes) = tokio::sync::broadcast::channel(256);
    /// // The calls of the store have limits of their own, and 500 ms may be too short.
    /// let config = AsyncConnectionConfig::new().set_push_sender(sender).set_response_timeout(None);
    /// let client = Client::open("redis://localhost/?protocol=resp3")?;
    /// let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    /// let store = RedisStore::from_connection(connection, "app:", Some(pushes))?;
    /// # Ok(()) }
    /// ```
    pub fn from_connection(
        connection: impl LentConnection,
        prefix: &str,
        pushes: Option<Receiver<PushInfo>>,
    ) -> Result<Self, KeyError> {
        let keys = KeySpace::new(prefix)?;
        let borrowed =
            BorrowedConnection::new(connection, Mailboxes::new(keys.mailbox_prefix().to_owned()), pushes);
        Ok(Self { keys, backend: Arc::new(Backend::Borrowed(borrowed)), confirmer: None })
    }

    fn node(&self) -> &Arc<str> {
        match &*self.backend {
            Backend::Link(link) => link.node(),
            Backend::Borrowed(borrowed) => borrowed.node(),
            Backend::Cluster(cluster) => cluster.name(),
        }
    }

    /// The cluster, if the store is on one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &*self.backend {
            Backend::Cluster(cluster) => Some(cluster),
            Backend::Link(_) | Backend::Borrowed(_) => None,
        }
    }

    /// Session keys for the slot of these lock keys.
    fn session_keys(&self, keys: &LockKeys) -> SessionKeys<'_> {
        SessionKeys { keys: &self.keys, slot: self.cluster().map(|_| keys.slot()), without_watermark: false }
    }

    /// Session keys for a partition.
    pub(crate) fn session_keys_at(&self, partition: Partition) -> SessionKeys<'_> {
        SessionKeys {
            keys: &self.keys,
            slot: self.cluster().map(|_| partition.as_u16() % SLOTS),
            without_watermark: false,
        }
    }

    /// The configuration, unless the connection is the user's.
    fn config(&self) -> Option<&RedisConfig> {
        match &*self.backend {
            Backend::Link(link) => Some(link.config()),
            Backend::Cluster(cluster) => Some(cluster.config()),
            Backend::Borrowed(_) => None,
        }
    }

    /// Minimum uptime before the server grants locks, if it is a node of a quorum.
    fn min_uptime(&self) -> Option<Duration> {
        match &*self.backend {
            Backend::Link(link) => link.config().min_uptime(),
            Backend::Borrowed(_) | Backend::Cluster(_) => None,
        }
    }

    /// How long it takes until the server votes, if it is a node of a quorum and does not yet.
    async fn vote_delay_ms(&self, deadline: Instant) -> Option<u64> {
        let Backend::Link(link) = &*self.backend else { return None };
        link.config().min_uptime()?;
        let left = link.connection(deadline).await.ok()?.vote_delay()?.left();
        (!left.is_zero()).then(|| whole_millis(left))
    }

    pub(crate) fn fault(&self, kind: FaultKind, phase: Phase) -> Fault {
        Fault::new(kind, phase, Arc::clone(self.node()))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("node", self.node()).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let deadline = deadline(within);
            if let Some(refused) = op.refusal_for(lock.kind) {
                // The request is invalid for every state of the lock, so no round trip is needed.
                return Outcome::Done(Reply::Refused(refused));
            }
            let mut outcome = self.send(lock, op, deadline).await;
            if let Outcome::Done(Reply::Inspect(seen)) = &mut outcome {
                seen.blocked_ms = self.vote_delay_ms(deadline).await;
            }
            let outcome = self.confirm_extend(lock, op, outcome, deadline).await;
            if self.tracking().is_some() {
                // In a box, because it is large, and most stores do not need it.
                Box::pin(self.watch_one(lock, op, &outcome, deadline)).await;
            }
            outcome
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let deadline = deadline(within);
            let outcomes = self.send_all(ops, deadline).await;
            let outcomes = self.confirm_extends(ops, outcomes, deadline).await;
            if self.tracking().is_some() {
                // In a box, because it is large, and most stores do not need it.
                Box::pin(self.watch_extended(ops, &outcomes, deadline)).await;
            }
            outcomes
        })
    }

    fn acquire_all<'a>(
        &'a self,
        requests: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move {
            if requests.is_empty() || requests.iter().any(|(lock, _)| lock.kind != Kind::Mutex) {
                return None;
            }
            let partition = self.partition(&requests[0].0);
            if requests.iter().any(|(lock, _)| self.partition(lock) != partition) {
                return None;
            }
            let result = self.send_acquire_all(requests, deadline(within)).await;
            Some(result.map_or_else(|outcome| outcome, Outcome::Done))
        })
    }

    fn capabilities(&self) -> Capabilities {
        let notifications = match &*self.backend {
            Backend::Link(_) | Backend::Cluster(_) => true,
            Backend::Borrowed(borrowed) => borrowed.has_messages(),
        };
        Capabilities::default()
            .partitioned(self.cluster().is_some())
            .notifications(notifications)
            .sessions(SessionTracking::ByHeartbeat)
            .confirmation(self.confirmer.is_some())
    }

    fn partition(&self, lock: &Lock) -> Partition {
        let slot = self.cluster().and_then(|_| self.keys.lock(lock).ok()).map(|keys| keys.slot());
        slot.map_or(Partition::ONLY, Partition::new)
    }

    fn open_mailbox(
        &self,
        partition: Partition,
        session: SessionId,
        sink: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let deadline = deadline(within);
            match &*self.backend {
                Backend::Link(link) => link.open_mailbox(session, sink, deadline).await,
                Backend::Borrowed(borrowed) => borrowed.open_mailbox(session, sink, deadline).await,
                Backend::Cluster(cluster) => {
                    let channel = (partition.as_u16(), self.session_keys_at(partition).mailbox(session));
                    cluster.subscriptions().open_mailbox(channel, session, sink, deadline).await
                }
            }
        })
    }

    fn subscribe<'a>(
        &'a self,
        lock: &'a Lock,
        within: Duration,
    ) -> BoxFuture<'a, Result<Option<Subscription>, Fault>> {
        Box::pin(async move {
            let unusable = |error: KeyError| self.fault(FaultKind::Unusable(error.to_string()), Phase::Send);
            let keys = self.keys.lock(lock).map_err(unusable)?;
            let channel = match lock.kind {
                // A release of a Mutex is published only on a node of a quorum, which has no wait queue. Elsewhere
                // waiters get their grants in their mailboxes.
                Kind::Mutex if self.min_uptime().is_some() => Some(self.keys.release_channel(&keys)),
                kind => self.session_keys(&keys).announcement_channel(kind, &keys),
            };
            let Some(channel) = channel else { return Ok(self.subscribe_to_key(lock.kind, &keys)) };
            let deadline = deadline(within);
            match &*self.backend {
                Backend::Link(link) => link.listen(&channel, deadline).await.map(Some),
                Backend::Borrowed(borrowed) => borrowed.listen(&channel, deadline).await,
                Backend::Cluster(cluster) => {
                    cluster.subscriptions().listen((keys.slot(), channel), deadline).await.map(Some)
                }
            }
        })
    }

    fn watch_holds(&self, watcher: Arc<dyn HoldWatcher>) -> bool {
        self.tracking().is_some_and(|tracking| tracking.set_watcher(watcher))
    }

    fn join_line<'a>(
        &'a self,
        lock: &'a Lock,
        session: SessionId,
        waited: Duration,
        within: Duration,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let Some(keys) = self.keys.lock(lock).ok().filter(|_| self.min_uptime().is_some()) else {
                return;
            };
            let call = Call::join_line(&keys, session, whole_millis(waited), whole_millis(LINE_TTL));
            // A hint: without it the waiters still poll.
            let _ = self.reply::<()>(0, &call, false, OnTryAgain::Report, deadline(within)).await;
        })
    }

    fn scan_names<'a>(
        &'a self,
        kind: Kind,
        start: &'a str,
        within: Duration,
    ) -> BoxFuture<'a, Result<NameScan, Fault>> {
        Box::pin(self.scan(kind, start, within))
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        match &*self.backend {
            Backend::Cluster(cluster) => {
                cluster.subscriptions().close_mailbox(&self.session_keys_at(partition).mailbox(session));
            }
            Backend::Link(link) => link.close_mailbox(session),
            Backend::Borrowed(borrowed) => borrowed.close_mailbox(session),
        }
    }

    fn execute_session<'a>(
        &'a self,
        partition: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        Box::pin(async move {
            let deadline = deadline(within);
            let outcome = self.send_session_op(partition, op, deadline).await;
            self.confirm_heartbeat(partition, op, outcome, deadline).await
        })
    }

    fn execute_sessions<'a>(
        &'a self,
        ops: &'a [(Partition, SessionOp)],
        within: Duration,
    ) -> BoxFuture<'a, Vec<Outcome<SessionReply>>> {
        Box::pin(async move {
            let deadline = deadline(within);
            let outcomes = self.send_session_ops(ops, deadline).await;
            self.confirm_heartbeats(ops, outcomes, deadline).await
        })
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        fence: FencingToken,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let Some(confirmer) = &self.confirmer else { return Ok(()) };
            let keys = self.keys.lock(lock);
            let keys =
                keys.map_err(|error| self.fault(FaultKind::Unusable(error.to_string()), Phase::Send))?;
            let session_keys = self.session_keys(&keys);
            let hold = Unconfirmed::hold(lock, keys, session_keys, (claim, fence));
            confirmer.confirm(self.cluster(), &hold, deadline(within)).await
        })
    }

    fn diagnose(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Diagnosis>, Fault>> {
        Box::pin(async move {
            let found = match &*self.backend {
                Backend::Cluster(cluster) => self.diagnose_all(cluster, deadline(within)).await,
                Backend::Link(_) | Backend::Borrowed(_) => {
                    self.diagnose_node(0, deadline(within)).await.map(|found| vec![found])
                }
            };
            match found {
                Ok(found) => Ok(found),
                Err(Outcome::Failed(_, fault)) => Err(fault),
                Err(Outcome::Done(_)) => {
                    let text = "the reply does not match the request".to_owned();
                    Err(self.fault(FaultKind::Failed(text), Phase::Reply))
                }
            }
        })
    }

    fn findings(&self) -> Vec<ServerFinding> {
        self.config().map(|config| config.reported().latest()).unwrap_or_default()
    }

    fn fork(&self) -> Arc<dyn Store> {
        match &*self.backend {
            Backend::Link(link) => Arc::new(Self::lazy(link.config().clone())),
            Backend::Cluster(cluster) => Arc::new(Self::lazy(cluster.config().clone())),
            Backend::Borrowed(_) => Arc::new(self.clone()),
        }
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.keys.lock(lock).map(drop)
    }
}

fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(MAX_CALL_TIME)
}
