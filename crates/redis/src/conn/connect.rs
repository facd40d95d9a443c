//! Making one connection ready for calls: opened, logged in, checked, with its channels subscribed.
//!
//! [`open`](super::open) opens and logs in. The [link](super::link) decides when connections are made.

use super::disk;
use super::identify::find_address;
use super::mailbox::Mailboxes;
use super::messages::Messages;
use super::open::open;
use super::open::{Driver, EndsSubscriptions, Opened, broken, open_with_messages, unsubscribed};
use super::sentinel::PrimaryReport;
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::config::credentials::AttemptTime;
use crate::config::version;
use crate::diagnose;
use crate::error_map::unconnected;
use crate::location::{ServerLocation, not_a_single_server};
use crate::product::{self, Product};
use crate::reported_findings::Source;
use crate::trials::{self, MessageTrial};
use leasehold_store::{Fault, FaultKind, Phase, Trial, TrialKind, TrialOutcome};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, Pipeline, PushInfo, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long a message may take when a client connects, and in a diagnosis.
const QUICK_MESSAGE: Duration = Duration::from_millis(40);
const SLOW_MESSAGE: Duration = Duration::from_secs(1);

/// Which part of an attempt's time a second connection may take.
const SECOND_CONNECTION_SHARE: u32 = 4;

/// A connection that is ready.
#[derive(Debug, Clone)]
pub(crate) struct ReadyConnection {
    pub(crate) conn: MultiplexedConnection,
    pub(crate) messages: Messages,
    /// The report that the address is from, if Sentinels were queried.
    pub(crate) report: Option<PrimaryReport>,
    /// Set if the server is a node of a quorum.
    pub(crate) vote_delay: Option<VoteDelay>,
    /// Whether the server reports changes of the keys that it reads for this.
    pub(crate) is_tracking: bool,
    _driver: Driver,
}

/// When a node of a quorum begins to grant locks. It belongs to one connection, which leads to one run of the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VoteDelay {
    from: Instant,
    min_uptime: Duration,
}

impl VoteDelay {
    /// Creates the delay of a server that has been up, or the primary, for `uptime`.
    fn new(min_uptime: Duration, uptime: Duration) -> Self {
        if min_uptime.is_zero() {
            return Self { from: Instant::now(), min_uptime };
        }
        // The server reports its uptime in whole seconds.
        let min_uptime = min_uptime + Duration::from_secs(1);
        Self { from: Instant::now() + min_uptime.saturating_sub(uptime), min_uptime }
    }

    /// How long it takes until the server grants locks.
    pub(crate) fn left(self) -> Duration {
        self.from.saturating_duration_since(Instant::now())
    }

    /// Why the server does not grant locks yet; `None` if it does.
    pub(crate) fn refusal(self) -> Option<FaultKind> {
        let left = self.left();
        let uptime = Duration::from_secs(self.min_uptime.saturating_sub(left).as_secs());
        (!left.is_zero()).then_some(FaultKind::RecentlyStarted { uptime, min_uptime: self.min_uptime })
    }
}

/// Makes a connection that passes its messages to `on_push`, within the time of one attempt. `last_report` is that of the
/// Sentinels.
pub(crate) async fn open_connection(
    config: &RedisConfig,
    node: &Arc<str>,
    mailboxes: &Mailboxes,
    last_report: Option<PrimaryReport>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<ReadyConnection, Fault> {
    let mut time = AttemptTime::of(config);
    let (address, report, at) = match config.location() {
        ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address) => {
            (address.clone(), None, Arc::clone(node))
        }
        ServerLocation::Cluster(_) => return Err(not_a_single_server(node)),
        ServerLocation::Sentinel(group) => {
            let report = time.limit(node, group.find(config, last_report)).await?;
            let at = format!("{} ({node})", report.address).into();
            (report.address.clone(), Some(report), at)
        }
    };
    let info = config.connection_info(&address, &at).await?;
    let within = time.left();
    let message = MessageTrial::new(config.keys(), config.shared_environment().random());
    let on_push = {
        let message = message.clone();
        move |push: PushInfo| {
            if !message.receive(&push) {
                on_push(push);
            }
        }
    };
    let attempt = async {
        let ends = if mailboxes.has_handler() { EndsSubscriptions::MayDo } else { EndsSubscriptions::Never };
        let opened = open_with_messages(config, &address, &info, within, ends, on_push).await;
        let opened = opened.map_err(|error| unconnected(error, &address, &at))?;
        let mut ready = check(config, opened, (&address, &info, message), report, &at).await?;
        subscribe(&mut ready.messages, node, mailboxes).await?;
        if let Some(tracking) = mailboxes.tracking() {
            ready.is_tracking = tracking.start(&mut ready.conn, node).await;
        }
        Ok(ready)
    };
    time.limit(node, attempt).await.map_err(|fault| config.with_provider(fault))
}

/// Checks the server of a connection, and tries it.
async fn check(
    config: &RedisConfig,
    (Opened { mut conn, driver }, mut messages): (Opened, Messages),
    (address, login, message): (&Address, &ConnectionInfo, MessageTrial),
    report: Option<PrimaryReport>,
    node: &Arc<str>,
) -> Result<ReadyConnection, Fault> {
    let info = handshake(&mut conn, node).await?;
    let primary = report.is_some() || matches!(config.location(), ServerLocation::ClusterNode(..));
    check_server(&info, config, primary, node)
        .map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    if config.checks_disk() {
        let trusted =
            disk::check(&mut conn, &info, matches!(config.location(), ServerLocation::ClusterNode(..)))
                .await
                .map_err(|error| broken(error, node))?;
        trusted.map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    }
    // Here it is not known which slots a node of a cluster has: the store tries one.
    if !config.are_trials_skipped() && !matches!(config.location(), ServerLocation::ClusterNode(..)) {
        let tried = Tried { config, address, login, node, info: &info };
        tried.pass(&mut conn, &mut messages, message).await?;
    }
    let vote_delay = vote_delay(&info, config, report.as_ref());
    let vote_delay = vote_delay.map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    Ok(ReadyConnection { conn, messages, report, vote_delay, is_tracking: false, _driver: driver })
}

/// Names the connection, and returns the server's INFO. Scripts are loaded with their first call.
async fn handshake(conn: &mut MultiplexedConnection, node: &Arc<str>) -> Result<String, Fault> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("CLIENT").arg("SETNAME").arg("leasehold");
    pipeline.add_command(diagnose::request());
    let replies = conn.send_packed_commands(&pipeline, 0, pipeline.len()).await;
    let replies = replies.map_err(|error| broken(error, node))?;
    // The user may lack permission to name connections or to run INFO. If that matters, the first operation fails.
    let info = diagnose::info_text(replies.get(1).unwrap_or(&Value::Nil));
    let info = info.map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    Ok(info.into_owned())
}

/// When a node of a quorum begins to grant locks: once all leases that it may have lost have expired. A restart loses
/// leases, and a replica that is promoted may not have received all.
fn vote_delay(
    info: &str,
    config: &RedisConfig,
    report: Option<&PrimaryReport>,
) -> Result<Option<VoteDelay>, FaultKind> {
    let Some(min_uptime) = config.min_uptime() else { return Ok(None) };
    if min_uptime.is_zero() {
        return Ok(Some(VoteDelay::new(min_uptime, Duration::ZERO)));
    }
    let Some(uptime) = version::number(info, "uptime_in_seconds") else {
        let what = "it does not report its uptime, so it may have forgotten a vote: allow INFO to the user, or set `min_uptime=0s` if it keeps every write";
        return Err(FaultKind::Unsupported(what.to_owned()));
    };
    let uptime = Duration::from_secs(uptime);
    let uptime = report.map_or(uptime, |report| report.primary_for.min(uptime));
    Ok(Some(VoteDelay::new(min_uptime, uptime)))
}

/// Tries a server with two connections of their own: whether scripts interleave, and whether messages arrive.
pub(crate) async fn try_connections(config: &RedisConfig, node: &Arc<str>) -> Result<[Trial; 2], Fault> {
    let mut time = AttemptTime::of(config);
    let address = find_address(config, node, &mut time).await?;
    let unconnected = |error| unconnected(error, &address, node);
    let login = config.connection_info(&address, node).await?;
    let id = config.shared_environment().random();
    let message = MessageTrial::new(config.keys(), id);
    let on_push = {
        let message = message.clone();
        move |push: PushInfo| {
            message.receive(&push);
        }
    };
    let within = time.left();
    let never = EndsSubscriptions::Never;
    let first = open_with_messages(config, &address, &login, within, never, on_push).await;
    let (mut first, mut messages) = first.map_err(unconnected)?;
    let second = open(config, &address, &login, within).await.map_err(unconnected)?;
    let broken = |error| broken(error, node);
    let connections = [first.conn.clone(), second.conn.clone()];
    let atomicity = trials::atomicity(connections, config.keys(), id).await.map_err(broken)?;
    let messages = message.run(SLOW_MESSAGE, &mut first.conn, &mut messages).await.map_err(broken)?;
    Ok([atomicity, messages])
}

/// A server that is to be tried.
struct Tried<'a> {
    config: &'a RedisConfig,
    address: &'a Address,
    login: &'a ConnectionInfo,
    node: &'a Arc<str>,
    info: &'a str,
}

impl Tried<'_> {
    /// Tries the server, unless this run of it has passed before. A product that the tests do not run on is tried with
    /// two connections, too.
    async fn pass(
        &self,
        conn: &mut MultiplexedConnection,
        messages: &mut Messages,
        message: MessageTrial,
    ) -> Result<(), Fault> {
        let product = Product::of(self.info);
        // Another run of the server may have other settings.
        let run = version::field(self.info, "run_id").unwrap_or_default();
        let version = product
            .map_or_else(String::new, |(product, version)| format!("{} {version} {run}", product.name()));
        let (tried, address) = (self.config.tried(), self.address.to_string());
        if tried.has_passed(&address, &version) {
            return Ok(());
        }
        let broken = |error| broken(error, self.node);
        let id = self.config.shared_environment().random();
        let confirmed = self.config.confirmations();
        let request = trials::request(self.config.keys(), None, id, confirmed);
        let replies = conn.send_packed_commands(&request, 0, request.len()).await.map_err(broken)?;
        let mut outcomes = trials::outcomes(&replies, confirmed);
        // Without INFO nothing is known, which is no reason to connect twice.
        let is_tested = self.info.is_empty() || product.is_some_and(|(product, _)| product.is_tested());
        if !is_tested && trials::runs_scripts(&outcomes) {
            outcomes.push(self.atomicity(conn, id).await);
            // Fails if it was this connection that broke.
            outcomes.push(message.run(QUICK_MESSAGE, conn, messages).await.map_err(broken)?);
        }
        let findings = trials::findings(&outcomes);
        self.config.reported().record(self.config.address(), Source::Trials, &findings);
        if let Some(refusal) = diagnose::refusal(&findings, false, self.config) {
            return Err(Fault::new(refusal, Phase::Handshake, Arc::clone(self.node)));
        }
        self.config.reported().warn(self.node, &findings);
        if trials::are_conclusive(&outcomes) {
            tried.set_passed(address, version);
        }
        Ok(())
    }
}

impl Tried<'_> {
    /// Tries whether scripts interleave. A second connection that the server refuses says nothing about that: it may take no
    /// more clients, or the credentials may have changed.
    async fn atomicity(&self, conn: &MultiplexedConnection, id: u64) -> Trial {
        let within = self.config.attempt_timeout() / SECOND_CONNECTION_SHARE;
        let trial = async {
            let second = open(self.config, self.address, self.login, within).await;
            let second = second.map_err(|error| unconnected(error, self.address, self.node))?;
            let connections = [conn.clone(), second.conn.clone()];
            let tried = trials::atomicity(connections, self.config.keys(), id).await;
            tried.map_err(|error| broken(error, self.node))
        };
        let why = match tokio::time::timeout(within, trial).await {
            Ok(Ok(tried)) => return tried,
            Ok(Err(fault)) => format!("a second connection failed: {fault}"),
            Err(_) => "a second connection got no answer in time".to_owned(),
        };
        tracing::warn!(node = &**self.node, trial = TrialKind::Atomicity.as_str(), "not tried, {why}");
        Trial::new(TrialKind::Atomicity, TrialOutcome::NotTried(why))
    }
}

/// Checks the version of a server and its findings, and that it is a primary if `primary` is set.
fn check_server(info: &str, config: &RedisConfig, primary: bool, node: &Arc<str>) -> Result<(), FaultKind> {
    version::check(info, matches!(config.location(), ServerLocation::ClusterNode(..)))?;
    let mut findings = diagnose::findings_for(info, config.min_uptime());
    if config.are_trials_skipped() {
        findings.retain(|finding| !product::is_about_product(finding));
    }
    config.mark_accepted(&mut findings);
    config.reported().record(config.address(), Source::Info, &findings);
    if let Some(refusal) = diagnose::refusal(&findings, primary, config) {
        return Err(refusal);
    }
    config.reported().warn(node, &findings);
    Ok(())
}

async fn subscribe(messages: &mut Messages, node: &Arc<str>, mailboxes: &Mailboxes) -> Result<(), Fault> {
    let open = mailboxes.all();
    if !open.is_empty() {
        let channels: Vec<_> = open.iter().map(|(session, _)| mailboxes.channel(*session)).collect();
        messages.subscribe(channels).await.map_err(|error| unsubscribed(error, node))?;
    }
    let channels = mailboxes.lock_channels().all();
    if channels.is_empty() {
        return Ok(());
    }
    match messages.subscribe(channels).await {
        // Without permission to subscribe to the channels of locks, waiters poll.
        Err(error) if error.clone().into_server_errors().is_none() => Err(unsubscribed(error, node)),
        _ => Ok(()),
    }
}
