//! [`RedisStore`]: sends operations and returns their outcomes.
//!
//! 1. An operation is sent once. It is sent again, together with its script, only if the server reports that it does
//!    not know the script, so that nothing was executed.
//! 2. Every call ends at its own deadline, which counts from the start of the call.
//! 3. In a cluster, each lock belongs to a slot, and the [cluster](super::cluster) module routes it. While a slot
//!    migrates and some keys of a lock have already moved, the store executes as much of an operation as the
//!    remaining keys allow: a holder can still renew and release.

use super::cluster::{self, Cluster, Node, OnSplit, SLOTS, is_unknown_script};
use super::config::RedisConfig;
use super::conn::borrowed::BorrowedConnection;
use super::conn::link::{Link, LinkConnection, Lost};
use super::conn::mailbox::Mailboxes;
use super::diagnose;
use super::error_map::judge;
use super::location::ServerLocation;
use super::replicas::Replicas;
use super::script::reply::{self, Malformed};
use super::script::{Call, extends_by_token};
use super::session_keys::SessionKeys;
use futures_util::future::{BoxFuture, join_all};
use leasehold_core::{
    Acquire, Claim, Extend, Heartbeat, KeyError, KeySpace, Kind, Lock, LockKeys, MultiAcquired, Op,
    Partition, Reply, SessionEntry, SessionId, SessionOp, SessionReply,
};
use leasehold_store::{
    Capabilities, ClockDifference, Diagnosis, Executed, Fault, FaultKind, Finding, FindingKind,
    NotificationSink, Outcome, Phase, SessionTracking, Severity, Store, Subscription,
};
use leasehold_store::{Environment, System};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, Value, cmd};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;

/// How many times one operation is sent at most, for a server whose scripts are flushed continually (1).
const MAX_SENDS: u32 = 4;
/// Limit of extends in one call: a server executes one call at a time, so all other requests wait for it.
pub(crate) const MAX_EXTENDS_PER_CALL: usize = 64;
/// Number of session records read in one request: other requests wait while the server answers it.
pub(crate) const RECORDS_PER_REQUEST: usize = 256;
/// Number of clock readings; the one with the shortest round trip is the most precise.
const CLOCK_READINGS: usize = 5;
/// Clock difference from which a finding is reported. Clocks that NTP synchronizes differ by less.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(1);
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
    /// Set if a hold counts only once replicas have acknowledged it.
    replicas: Option<Arc<Replicas>>,
}

/// Outcome of a session operation that did not succeed.
pub(crate) type SessionOutcome = Outcome<SessionReply>;

/// How the store reaches the server.
#[derive(Debug)]
enum Backend {
    /// A connection that the store makes.
    Link(Link),
    /// A connection that the user supplied.
    BorrowedConnection(BorrowedConnection),
    /// Several servers, each with some of the slots.
    Cluster(Cluster),
}

/// A connection to send on.
pub(crate) enum CallTarget<'a> {
    Link(&'a Link, LinkConnection),
    BorrowedConnection(&'a BorrowedConnection),
    Node(Arc<Node>, Option<LinkConnection>),
}

impl RedisStore {
    /// Connects to a server. A wrong address, a wrong password or a server that is too old fails here, and not at the
    /// first use.
    ///
    /// Findings about the server's settings or version are logged as warnings, each once for this configuration and
    /// its clones; with [`RedisConfig::strict`], they are an error. [`Store::diagnose`] returns all of them.
    ///
    /// Fails if the first attempt fails, within [`RedisConfig::connect_timeout`]. The connection belongs to the
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
        store.reach().await?;
        Ok(store)
    }

    /// Waits for the end of the first attempt to connect, where it is the store that connects.
    pub(crate) async fn reach(&self) -> Result<(), Fault> {
        match &*self.backend {
            Backend::Link(link) => link.connect().await,
            Backend::Cluster(cluster) => cluster.connect().await,
            Backend::BorrowedConnection(_) => Ok(()),
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
        let wanted = config.wanted_replicas();
        let replicas = (wanted > 0).then(|| Arc::new(Replicas::new(config.clone(), wanted)));
        let backend = match config.location() {
            ServerLocation::Cluster(_) => Backend::Cluster(Cluster::new(config)),
            _ => Backend::Link(Link::new(config, Mailboxes::new(keys.mailbox_prefix().to_owned()))),
        };
        Self { keys, backend: Arc::new(backend), replicas }
    }

    /// Creates a store on an existing connection. Fails if `prefix` is not a valid prefix.
    ///
    /// `pushes` receives the push messages of the connection, which must use RESP3 and must have been made with the
    /// other end as its push sender. The store then subscribes on this connection, and notifications arrive as they
    /// do on a connection of the store's own. Without `pushes` no notification arrives, and waiters only poll: they
    /// notice a grant after 50 to 250 ms in place of a round trip.
    ///
    /// The store does not reconnect: once the connection is broken, all calls fail. [`fork`](Store::fork)
    /// results the connection, so a busy runtime of the connection delays renewals. Neither the server's version nor
    /// its settings are checked: [`Store::diagnose`] returns the findings.
    ///
    /// ```no_run
    /// use leasehold::store::RedisStore;
    /// use redis::{AsyncConnectionConfig, Client};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let (sender, pushes) = tokio::sync::broadcast::channel(256);
    /// let config = AsyncConnectionConfig::new().set_push_sender(sender);
    /// let client = Client::open("redis://localhost/?protocol=resp3")?;
    /// let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    /// let store = RedisStore::from_connection(connection, "app:", Some(pushes))?;
    /// # Ok(()) }
    /// ```
    pub fn from_connection(
        connection: MultiplexedConnection,
        prefix: &str,
        pushes: Option<Receiver<PushInfo>>,
    ) -> Result<Self, KeyError> {
        let keys = KeySpace::new(prefix)?;
        let borrowed =
            BorrowedConnection::new(connection, Mailboxes::new(keys.mailbox_prefix().to_owned()), pushes);
        Ok(Self { keys, backend: Arc::new(Backend::BorrowedConnection(borrowed)), replicas: None })
    }

    fn node(&self) -> &Arc<str> {
        match &*self.backend {
            Backend::Link(link) => link.node(),
            Backend::BorrowedConnection(borrowed) => borrowed.node(),
            Backend::Cluster(cluster) => cluster.name(),
        }
    }

    /// The cluster, if the store is on one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match &*self.backend {
            Backend::Cluster(cluster) => Some(cluster),
            Backend::Link(_) | Backend::BorrowedConnection(_) => None,
        }
    }

    /// Session keys for the slot of these lock keys.
    fn session_keys(&self, keys: &LockKeys) -> SessionKeys<'_> {
        SessionKeys { keys: &self.keys, slot: self.cluster().map(|_| keys.slot()) }
    }

    /// Session keys for a partition.
    pub(crate) fn session_keys_at(&self, partition: Partition) -> SessionKeys<'_> {
        SessionKeys { keys: &self.keys, slot: self.cluster().map(|_| partition.as_u16() % SLOTS) }
    }

    /// Minimum uptime before the server grants locks, if it is a node of a quorum.
    fn min_uptime(&self) -> Option<Duration> {
        match &*self.backend {
            Backend::Link(link) => link.config().min_uptime(),
            Backend::BorrowedConnection(_) | Backend::Cluster(_) => None,
        }
    }

    pub(crate) fn fault(&self, kind: FaultKind, phase: Phase) -> Fault {
        Fault::new(kind, phase, Arc::clone(self.node()))
    }

    pub(crate) fn call(&self, lock: &Lock, op: &Op) -> Result<(LockKeys, Call), Fault> {
        let unusable = |text| self.fault(FaultKind::Unusable(text), Phase::Send);
        if let Some(refused) = op.refusal_for(lock.kind) {
            return Err(unusable(refused.to_string()));
        }
        let keys = self.keys.lock(lock).map_err(|error| unusable(error.to_string()))?;
        let call = Call::new(op, lock.kind, &self.session_keys(&keys), &keys);
        let call = call.ok_or_else(|| unusable("this operation has no script".to_owned()))?;
        Ok((keys, call))
    }

    /// Returns a connection to the node that serves `slot`; outside a cluster the slot is ignored.
    async fn line(&self, slot: u16, deadline: Instant) -> Result<CallTarget<'_>, Fault> {
        match &*self.backend {
            Backend::Link(link) => Ok(CallTarget::Link(link, link.connection(deadline).await?)),
            Backend::BorrowedConnection(borrowed) => Ok(CallTarget::BorrowedConnection(borrowed)),
            Backend::Cluster(cluster) => {
                let (node, connection) = cluster.connection(slot, deadline).await?;
                Ok(CallTarget::Node(node, Some(connection)))
            }
        }
    }

    pub(crate) async fn send(&self, lock: &Lock, op: &Op, deadline: Instant) -> Outcome {
        let (keys, call) = match self.call(lock, op) {
            Ok(call) => call,
            Err(fault) => return Outcome::Failed(Executed::No, fault),
        };
        match self.reply(keys.slot(), &call, false, OnSplit::Report, deadline).await {
            Ok((value, _)) if self.cluster().is_some() && cluster::is_split(&value) => {}
            Ok((value, line)) => return self.outcome(op, &value, &line),
            Err(outcome) => return outcome,
        }
        // Some of the keys have already migrated (3).
        let Some(reduced) = Call::reduced(op, lock.kind, &self.session_keys(&keys), &keys) else {
            return self.send_call(op, keys.slot(), &call, deadline).await;
        };
        let (value, line) = match self.reply(keys.slot(), &reduced, false, OnSplit::Report, deadline).await {
            Ok(reply) => reply,
            Err(outcome) => return outcome,
        };
        if !matches!(op, Op::Release(_)) && !cluster::is_split(&value) {
            return self.outcome(op, &value, &line);
        }
        if !matches!(value, Value::ServerError(_)) {
            match self.well_formed(reply::release_by_token(&value)) {
                Ok(Some(released)) => return Outcome::Done(Reply::Release(released)),
                Ok(None) => {}
                Err(outcome) => return outcome,
            }
        }
        self.send_call(op, keys.slot(), &call, deadline).await
    }

    async fn send_call(&self, op: &Op, slot: u16, call: &Call, deadline: Instant) -> Outcome {
        match self.reply(slot, call, false, OnSplit::Retry, deadline).await {
            Ok((value, line)) => self.outcome(op, &value, &line),
            Err(outcome) => outcome,
        }
    }

    /// Sends a script call, and returns the server's reply and the connection it came on. Set `with_script` if the
    /// server is known to lack the script.
    pub(crate) async fn reply<T>(
        &self,
        slot: u16,
        call: &Call,
        mut with_script: bool,
        on_split: OnSplit,
        deadline: Instant,
    ) -> Result<(Value, CallTarget<'_>), Outcome<T>> {
        if let Backend::Cluster(cluster) = &*self.backend {
            let (value, node) = cluster.reply(slot, call, with_script, on_split, deadline).await?;
            return Ok((value, CallTarget::Node(node, None)));
        }
        for _ in 0..MAX_SENDS {
            let mut line = self.line(slot, deadline).await.map_err(refused)?;
            if let Some(kind) = line.refusal(call) {
                return Err(Outcome::Failed(Executed::No, self.fault(kind, Phase::Send)));
            }
            let value = if with_script {
                line.send_all(&call.with_load(), deadline).await.map(last)
            } else {
                line.send(call, deadline).await
            };
            match value {
                Ok(value) if is_unknown_script(&value) => with_script = true,
                Ok(value) => return Ok((value, line)),
                Err(lost) => return Err(Outcome::Failed(Executed::Unknown, self.lost(lost))),
            }
        }
        let text = "its scripts are flushed all the time".to_owned();
        Err(Outcome::Failed(Executed::No, self.fault(FaultKind::Failed(text), Phase::Reply)))
    }

    /// Sends several operations in one pipeline. A call whose script the server does not know is sent again after the
    /// others. That is rare: it happens after a restart or a script flush, and at the first use of a script that is
    /// not preloaded.
    async fn send_all(&self, ops: &[(Lock, Op)], deadline: Instant) -> Vec<Outcome> {
        if let Backend::Cluster(cluster) = &*self.backend {
            return self.send_all_in(cluster, ops, deadline).await;
        }
        let calls = self.calls(ops);
        let mut line = match self.line(0, deadline).await {
            Ok(line) => line,
            Err(fault) => return all(&calls, &Outcome::Failed(Executed::No, fault)),
        };
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls.iter().filter_map(|(_, call)| call.as_ref().ok()) {
            pipeline.add_command(call.cmd().clone());
        }
        let mut values = match line.send_all(&pipeline, deadline).await {
            Ok(values) => values.into_iter(),
            Err(lost) => return all(&calls, &Outcome::Failed(Executed::Unknown, self.lost(lost))),
        };
        let line = &line;
        let outcomes = calls.into_iter().map(|(of, call)| {
            let answer = call.map(|call| (call, values.next()));
            async move {
                let ops = &ops[of];
                match answer {
                    Ok((call, Some(value))) if is_unknown_script(&value) => {
                        match self.reply(0, &call, true, OnSplit::Retry, deadline).await {
                            Ok((value, line)) => self.outcomes(ops, &value, &line),
                            Err(outcome) => vec![outcome; ops.len()],
                        }
                    }
                    Ok((_, Some(value))) => self.outcomes(ops, &value, line),
                    Ok((_, None)) => {
                        let fault = self.fault(FaultKind::Disconnected, Phase::Reply);
                        vec![Outcome::Failed(Executed::Unknown, fault); ops.len()]
                    }
                    Err(fault) => vec![Outcome::Failed(Executed::No, fault); ops.len()],
                }
            }
        });
        join_all(outcomes).await.into_iter().flatten().collect()
    }

    /// Builds the calls of these operations, in order, each with the range of operations it covers. Consecutive
    /// extends share one call.
    fn calls(&self, ops: &[(Lock, Op)]) -> Vec<(Range<usize>, Result<Call, Fault>)> {
        let mut calls = Vec::new();
        let mut from = 0;
        while let Some((lock, op)) = ops.get(from) {
            let extends: Vec<_> =
                ops[from..].iter().take(MAX_EXTENDS_PER_CALL).map_while(|op| self.extend(op)).collect();
            let call = match &extends[..] {
                [] | [_] => self.call(lock, op).map(|(_, call)| call),
                extends => Ok(Call::extends(extends)),
            };
            let to = from + extends.len().max(1);
            calls.push((from..to, call));
            from = to;
        }
        calls
    }

    /// Returns an extend that can share a call with others, with the keys of its lock.
    fn extend<'a>(&self, (lock, op): &'a (Lock, Op)) -> Option<(LockKeys, Kind, &'a Extend)> {
        match op {
            Op::Extend(extend) if extends_by_token(lock.kind, extend) => {
                Some((self.keys.lock(lock).ok()?, lock.kind, extend))
            }
            _ => None,
        }
    }

    /// Outcomes of the operations that one call covers.
    pub(crate) fn outcomes(&self, ops: &[(Lock, Op)], value: &Value, line: &CallTarget<'_>) -> Vec<Outcome> {
        match (ops, value) {
            ([(_, op)], value) => vec![self.outcome(op, value, line)],
            (ops, Value::Array(values)) if values.len() == ops.len() => {
                ops.iter().zip(values).map(|((_, op), value)| self.outcome(op, value, line)).collect()
            }
            (ops, value) => {
                // An error applies to all operations. Any other reply that is not a list is malformed.
                let value = if matches!(value, Value::ServerError(_)) { value } else { &Value::Nil };
                ops.iter().map(|(_, op)| self.outcome(op, value, line)).collect()
            }
        }
    }

    fn outcome(&self, op: &Op, value: &Value, line: &CallTarget<'_>) -> Outcome {
        if let Err(outcome) = self.check_error(value, line) {
            return outcome;
        }
        self.well_formed(reply::read(op, value)).map_or_else(|outcome| outcome, Outcome::Done)
    }

    /// Converts an error reply to its outcome.
    pub(crate) fn check_error<T>(&self, value: &Value, line: &CallTarget<'_>) -> Result<(), Outcome<T>> {
        let Value::ServerError(error) = value else { return Ok(()) };
        let mut meaning = judge(error);
        let node = match line {
            CallTarget::Link(link, connection) if meaning.elsewhere => {
                link.replace(connection);
                link.node()
            }
            CallTarget::Node(node, connection) => {
                // The slot was migrating until the deadline.
                if matches!(error.code(), "MOVED" | "ASK") {
                    meaning.kind = FaultKind::Busy;
                }
                if let (true, Some(connection)) = (meaning.elsewhere, connection) {
                    node.link.replace(connection);
                }
                node.name()
            }
            CallTarget::Link(..) | CallTarget::BorrowedConnection(_) => self.node(),
        };
        Err(meaning.outcome(node))
    }

    pub(crate) fn well_formed<T, U>(&self, read: Result<T, Malformed>) -> Result<T, Outcome<U>> {
        let fault = |malformed: Malformed| self.fault(FaultKind::Failed(malformed.to_string()), Phase::Reply);
        read.map_err(|malformed| Outcome::Failed(Executed::Unknown, fault(malformed)))
    }

    async fn send_acquire_all(
        &self,
        asks: &[(Lock, Acquire)],
        deadline: Instant,
    ) -> Result<Vec<MultiAcquired>, Outcome<Vec<MultiAcquired>>> {
        let unusable = |error: KeyError| {
            Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(error.to_string()), Phase::Send))
        };
        let asks = asks.iter().map(|(lock, ask)| Ok((self.keys.lock(lock)?, ask)));
        let asks = asks.collect::<Result<Vec<_>, _>>().map_err(unusable)?;
        let slot = asks.first().map_or(0, |(keys, _)| keys.slot());
        let call = Call::acquire_all(&asks);
        let (value, line) = self.reply(slot, &call, false, OnSplit::Retry, deadline).await?;
        self.check_error(&value, &line)?;
        self.well_formed(reply::results(asks.len(), &value))
    }

    async fn heartbeat(
        &self,
        session_keys: &SessionKeys<'_>,
        heartbeat: &Heartbeat,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let slot = session_keys.slot.unwrap_or(0);
        let call = Call::heartbeat(heartbeat, session_keys);
        let (mut value, mut line) = self.reply(slot, &call, false, OnSplit::Report, deadline).await?;
        if session_keys.slot.is_some() && cluster::is_split(&value) {
            // The index only serves listings, so the heartbeat may skip it (3).
            let call = Call::reduced_heartbeat(heartbeat, session_keys);
            (value, line) = self.reply(slot, &call, false, OnSplit::Retry, deadline).await?;
        }
        self.check_error(&value, &line)?;
        let beaten = self.well_formed(reply::beaten(&value))?.map_err(|refused| {
            Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(refused.to_string()), Phase::Reply))
        });
        beaten.map(SessionReply::Heartbeat)
    }

    async fn end(
        &self,
        session_keys: &SessionKeys<'_>,
        session: SessionId,
        deadline: Instant,
    ) -> Result<SessionReply, SessionOutcome> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("DEL").arg(session_keys.session(session));
        pipeline.cmd("ZREM").arg(session_keys.sessions()).arg(session.to_string());
        if let (Backend::Cluster(cluster), Some(slot)) = (&*self.backend, session_keys.slot) {
            for (at, command) in pipeline.cmd_iter().enumerate() {
                let (value, node) = cluster.command(slot, command, deadline).await?;
                if at == 0 {
                    self.check_error(&value, &CallTarget::Node(node, None))?;
                }
            }
            return Ok(SessionReply::End);
        }
        // The index only serves listings. If its update fails, the start of the next session repairs it.
        self.send_commands(0, &pipeline, |at, _| at > 0, deadline).await.map(|_| SessionReply::End)
    }

    /// Lists the sessions: reads the index, then the records it names, in chunks. It never scans all keys of a
    /// server. Skips keys that are not session records.
    async fn list(&self, deadline: Instant) -> Result<SessionReply, SessionOutcome> {
        if let Backend::Cluster(cluster) = &*self.backend {
            return self.list_in(cluster, deadline).await;
        }
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(cmd("ZRANGE").arg(self.keys.session_index()).arg(0).arg(-1).clone());
        let values = self.send_commands(0, &pipeline, |_, _| false, deadline).await?;
        let mut sessions = self.well_formed(values.first().ok_or(Malformed).and_then(reply::sessions))?;
        sessions.sort_unstable();
        let mut entries: Vec<SessionEntry> = Vec::with_capacity(sessions.len());
        for some in sessions.chunks(RECORDS_PER_REQUEST) {
            let mut pipeline = Pipeline::with_capacity(1 + some.len());
            pipeline.cmd("TIME");
            for session in some {
                pipeline.cmd("HGETALL").arg(self.keys.session(*session));
            }
            let values = self.send_commands(0, &pipeline, |_, value| is_wrong_type(value), deadline).await?;
            let now_ms = self.well_formed(values.first().ok_or(Malformed).and_then(reply::now_ms))?;
            for (session, value) in some.iter().zip(&values[1..]) {
                if !is_wrong_type(value) {
                    entries.extend(self.well_formed(reply::session_entry(*session, now_ms, value))?);
                }
            }
        }
        Ok(SessionReply::List(entries))
    }

    /// Reads the server's settings, and compares its clock with the local clock. If the user lacks permissions, the
    /// result is incomplete.
    pub(crate) async fn diagnose_node(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<Diagnosis, SessionOutcome> {
        let mut questions = Pipeline::with_capacity(diagnose::ASKED + 1);
        diagnose::ask(&mut questions);
        questions.cmd("ACL").arg("WHOAMI");
        let mut answers = self.send_commands(slot, &questions, |_, _| true, deadline).await?;
        let user = answers.pop();
        let info = diagnose::read(&answers);
        let info = info.map_err(|kind| Outcome::Failed(Executed::No, self.fault(kind, Phase::Reply)))?;
        let mut found = Diagnosis::new(&**self.node());
        diagnose::note(&info, self.min_uptime(), &mut found);
        found.user = user.as_ref().and_then(|user| reply::word(user).ok());
        (found.clock, found.round_trip) = self.compare_clocks(slot, deadline).await?;
        if let Some(clock) = found.clock.filter(exceeds_limit) {
            found.findings.push(Finding::new(FindingKind::ClockDiffers(clock), Severity::Notice));
        }
        Ok(found)
    }

    /// Difference between the server's clock and the local clock, and the shortest round trip seen.
    async fn compare_clocks(
        &self,
        slot: u16,
        deadline: Instant,
    ) -> Result<(Option<ClockDifference>, Duration), SessionOutcome> {
        let environment: &dyn Environment = match &*self.backend {
            Backend::Link(link) => &**link.config().shared_environment(),
            Backend::Cluster(cluster) => &**cluster.config().shared_environment(),
            Backend::BorrowedConnection(_) => &System,
        };
        let mut question = Pipeline::with_capacity(1);
        question.cmd("TIME");
        let (mut clock, mut shortest) = (None, Duration::MAX);
        for _ in 0..CLOCK_READINGS {
            let (sent, wall) = (environment.now(), environment.system_time());
            let values = self.send_commands(slot, &question, |_, _| true, deadline).await?;
            let round_trip = environment.now().since(sent);
            if round_trip < shortest {
                let theirs = values.first().and_then(|value| reply::now_us(value).ok());
                (clock, shortest) = (theirs.and_then(|us| difference(us, wall, round_trip)), round_trip);
            }
        }
        Ok((clock, shortest))
    }

    /// Sends plain commands, without scripts. `is_acceptable` gets the index of a command and its reply, and decides
    /// whether an error is acceptable.
    pub(crate) async fn send_commands(
        &self,
        slot: u16,
        pipeline: &Pipeline,
        is_acceptable: fn(usize, &Value) -> bool,
        deadline: Instant,
    ) -> Result<Vec<Value>, SessionOutcome> {
        let mut line = self.line(slot, deadline).await.map_err(refused)?;
        let values = line
            .send_all(pipeline, deadline)
            .await
            .map_err(|lost| Outcome::Failed(Executed::Unknown, self.lost(lost)))?;
        let serious = values.iter().enumerate().filter(|(at, value)| !is_acceptable(*at, value));
        serious.map(|(_, value)| value).try_for_each(|value| self.check_error(value, &line))?;
        Ok(values)
    }

    fn lost(&self, lost: Lost) -> Fault {
        match lost {
            Lost::Broken(error) => self.fault(FaultKind::Disconnected, Phase::Reply).with_source(error),
            Lost::TimedOut => self.fault(FaultKind::TimedOut, Phase::Reply),
        }
    }
}

impl CallTarget<'_> {
    /// Reason not to send this call: the server is a node of a quorum that does not grant locks yet.
    fn refusal(&self, call: &Call) -> Option<FaultKind> {
        match self {
            Self::Link(_, connection) if call.may_acquire() => connection.vote_delay()?.refusal(),
            // Only a link can lead to a node of a quorum, which is a single server.
            Self::Link(..) | Self::BorrowedConnection(_) | Self::Node(..) => None,
        }
    }

    async fn send(&mut self, call: &Call, deadline: Instant) -> Result<Value, Lost> {
        match self {
            Self::Link(link, connection) => link.call(connection, call.cmd(), deadline).await,
            Self::BorrowedConnection(borrowed) => borrowed.call(call.cmd(), deadline).await,
            // The cluster module sends calls itself.
            Self::Node(..) => Err(Lost::TimedOut),
        }
    }

    async fn send_all(&mut self, pipeline: &Pipeline, deadline: Instant) -> Result<Vec<Value>, Lost> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Self::Link(link, connection) => link.call_all(connection, pipeline, deadline).await,
            Self::BorrowedConnection(borrowed) => borrowed.call_all(pipeline, deadline).await,
            Self::Node(node, Some(connection)) => node.link.call_all(connection, pipeline, deadline).await,
            Self::Node(_, None) => Err(Lost::TimedOut),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = match &*self.backend {
            Backend::Link(link) => link.node(),
            Backend::BorrowedConnection(borrowed) => borrowed.node(),
            Backend::Cluster(cluster) => cluster.name(),
        };
        f.debug_struct("RedisStore").field("node", node).finish_non_exhaustive()
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
            self.send(lock, op, deadline).await
        })
    }

    fn execute_all<'a>(&'a self, ops: &'a [(Lock, Op)], within: Duration) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move { self.send_all(ops, deadline(within)).await })
    }

    fn acquire_all<'a>(
        &'a self,
        asks: &'a [(Lock, Acquire)],
        within: Duration,
    ) -> BoxFuture<'a, Option<Outcome<Vec<MultiAcquired>>>> {
        Box::pin(async move {
            if asks.is_empty() || asks.iter().any(|(lock, _)| lock.kind != Kind::Mutex) {
                return None;
            }
            let partition = self.partition(&asks[0].0);
            if asks.iter().any(|(lock, _)| self.partition(lock) != partition) {
                return None;
            }
            let taken = self.send_acquire_all(asks, deadline(within)).await;
            Some(taken.map_or_else(|outcome| outcome, Outcome::Done))
        })
    }

    fn capabilities(&self) -> Capabilities {
        let notifications = match &*self.backend {
            Backend::Link(_) | Backend::Cluster(_) => true,
            Backend::BorrowedConnection(borrowed) => borrowed.has_messages(),
        };
        Capabilities::default()
            .partitioned(self.cluster().is_some())
            .notifications(notifications)
            .sessions(SessionTracking::ByHeartbeat)
            .confirmation(self.replicas.is_some())
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
                Backend::BorrowedConnection(borrowed) => borrowed.open_mailbox(session, sink, deadline).await,
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
            let Some(channel) = channel else { return Ok(None) };
            let deadline = deadline(within);
            match &*self.backend {
                Backend::Link(link) => link.listen(&channel, deadline).await.map(Some),
                Backend::BorrowedConnection(borrowed) => borrowed.listen(&channel, deadline).await,
                Backend::Cluster(cluster) => {
                    cluster.subscriptions().listen((keys.slot(), channel), deadline).await.map(Some)
                }
            }
        })
    }

    fn close_mailbox(&self, partition: Partition, session: SessionId) {
        match &*self.backend {
            Backend::Cluster(cluster) => {
                cluster.subscriptions().close_mailbox(&self.session_keys_at(partition).mailbox(session));
            }
            Backend::Link(link) => link.close_mailbox(session),
            Backend::BorrowedConnection(borrowed) => borrowed.close_mailbox(session),
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
            let attended = match op {
                SessionOp::Heartbeat(heartbeat) => {
                    self.heartbeat(&self.session_keys_at(partition), heartbeat, deadline).await
                }
                SessionOp::End(session) => {
                    self.end(&self.session_keys_at(partition), *session, deadline).await
                }
                SessionOp::List => self.list(deadline).await,
                _ => {
                    let text = "this version of the store does not know it".to_owned();
                    Err(Outcome::Failed(Executed::No, self.fault(FaultKind::Unusable(text), Phase::Send)))
                }
            };
            attended.map_or_else(|outcome| outcome, Outcome::Done)
        })
    }

    fn confirm<'a>(
        &'a self,
        lock: &'a Lock,
        claim: &'a Claim,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let Some(replicas) = &self.replicas else { return Ok(()) };
            let keys = self.keys.lock(lock);
            let keys =
                keys.map_err(|error| self.fault(FaultKind::Unusable(error.to_string()), Phase::Send))?;
            let session_keys = self.session_keys(&keys);
            replicas.confirm(self.cluster(), &session_keys, lock, &keys, claim, deadline(within)).await
        })
    }

    fn diagnose(&self, within: Duration) -> BoxFuture<'_, Result<Vec<Diagnosis>, Fault>> {
        Box::pin(async move {
            let looked = match &*self.backend {
                Backend::Cluster(cluster) => self.diagnose_all(cluster, deadline(within)).await,
                Backend::Link(_) | Backend::BorrowedConnection(_) => {
                    self.diagnose_node(0, deadline(within)).await.map(|found| vec![found])
                }
            };
            match looked {
                Ok(found) => Ok(found),
                Err(Outcome::Failed(_, fault)) => Err(fault),
                Err(Outcome::Done(_)) => {
                    let text = "the reply does not match the request".to_owned();
                    Err(self.fault(FaultKind::Failed(text), Phase::Reply))
                }
            }
        })
    }

    fn fork(&self) -> Arc<dyn Store> {
        match &*self.backend {
            Backend::Link(link) => Arc::new(Self::lazy(link.config().clone())),
            Backend::Cluster(cluster) => Arc::new(Self::lazy(cluster.config().clone())),
            Backend::BorrowedConnection(_) => Arc::new(self.clone()),
        }
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.keys.lock(lock).map(drop)
    }
}

/// Difference between a clock that showed `theirs_us` and the local clock, which showed `wall` when the request was
/// sent. The server read its clock at some time between then and the reply.
fn difference(theirs_us: u64, wall: SystemTime, round_trip: Duration) -> Option<ClockDifference> {
    let uncertainty = round_trip / 2;
    let ours = wall.duration_since(SystemTime::UNIX_EPOCH).ok()? + uncertainty;
    let ahead_us = i128::from(theirs_us) - i128::try_from(ours.as_micros()).ok()?;
    Some(ClockDifference { ahead_us: ahead_us.try_into().ok()?, uncertainty })
}

/// Whether the difference exceeds the limit beyond measurement uncertainty.
fn exceeds_limit(clock: &ClockDifference) -> bool {
    Duration::from_micros(clock.ahead_us.unsigned_abs()) > MAX_CLOCK_DIFFERENCE + clock.uncertainty
}

/// The outcome of an operation that was not sent.
pub(crate) const fn refused<T>(fault: Fault) -> Outcome<T> {
    Outcome::Failed(Executed::No, fault)
}

/// The same outcome for all operations, but for those that have no call.
fn all(calls: &[(Range<usize>, Result<Call, Fault>)], outcome: &Outcome) -> Vec<Outcome> {
    let each = calls.iter().flat_map(|(of, call)| {
        let outcome = call
            .as_ref()
            .err()
            .map_or_else(|| outcome.clone(), |fault| Outcome::Failed(Executed::No, fault.clone()));
        vec![outcome; of.len()]
    });
    each.collect()
}

fn deadline(within: Duration) -> Instant {
    Instant::now() + within.min(MAX_CALL_TIME)
}

pub(crate) fn is_wrong_type(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.code() == "WRONGTYPE")
}

/// The reply of the operation, which follows that of `SCRIPT LOAD`. If loading failed, for example for lack of
/// permission, returns that error.
fn last(values: Vec<Value>) -> Value {
    let mut values = values.into_iter();
    match (values.next(), values.next()) {
        (Some(loading @ Value::ServerError(_)), Some(value)) if is_unknown_script(&value) => loading,
        (_, Some(value)) => value,
        (loading, None) => loading.unwrap_or_default(),
    }
}
