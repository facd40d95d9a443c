//! Making one connection: ready, logged in, checked, its scripts loaded, its mailboxes subscribed.
//!
//! It is handed out only when all of that is done.

use super::mailbox::Mailboxes;
use super::messages::Messages;
use super::open::{Driver, Opened, broken, open_with_messages, unsubscribed};
use super::sentinel::PrimaryReport;
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::config::version;
use crate::diagnose;
use crate::error_map::unconnected;
use crate::location::{ConnPurpose, ServerLocation, not_a_single_server};
use crate::script;
use leasehold_store::{Fault, FaultKind, Phase};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A connection that is ready.
#[derive(Debug, Clone)]
pub(crate) struct ReadyConnection {
    pub(crate) conn: MultiplexedConnection,
    pub(crate) messages: Messages,
    /// What the Sentinels report of the server, if its address is from them.
    pub(crate) report: Option<PrimaryReport>,
    /// Set if it is a node of a quorum.
    pub(crate) vote_delay: Option<VoteDelay>,
    _driver: Driver,
}

/// When the server of a connection gives locks, as a node of a quorum. It is the same server for as long as that lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VoteDelay {
    from: Instant,
    needed: Duration,
}

impl VoteDelay {
    /// One that has `needed` to be up, and says that it is, for the last time or as the primary, for `up`.
    fn new(needed: Duration, up: Duration) -> Self {
        if needed.is_zero() {
            return Self { from: Instant::now(), needed };
        }
        // It counts in whole seconds of its clock.
        let needed = needed + Duration::from_secs(1);
        Self { from: Instant::now() + needed.saturating_sub(up), needed }
    }

    /// Why it gives none now, if it gives none.
    pub(crate) fn refusal(self) -> Option<FaultKind> {
        let left = self.from.saturating_duration_since(Instant::now());
        let uptime = Duration::from_secs(self.needed.saturating_sub(left).as_secs());
        (!left.is_zero()).then_some(FaultKind::RecentlyStarted { uptime, min_uptime: self.needed })
    }
}

/// Makes a connection that hands its messages to `on_push`, within the time that one attempt has. A `hint` is where
/// Sentinels have seen the server lately.
pub(crate) async fn open_connection(
    config: &RedisConfig,
    node: &Arc<str>,
    mailboxes: &Mailboxes,
    hint: Option<PrimaryReport>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<ReadyConnection, Fault> {
    let attempt = async {
        let mut ready = match config.location() {
            ServerLocation::Fixed(address) | ServerLocation::ClusterNode(address, _) => {
                connect(config, address, None, node, on_push).await?
            }
            ServerLocation::Cluster(_) => return Err(not_a_single_server(node)),
            ServerLocation::Sentinel(group) => {
                let report = group.find(config, hint).await?;
                let (address, node) = (report.address.clone(), format!("{} ({node})", report.address).into());
                connect(config, &address, Some(report), &node, on_push).await?
            }
        };
        subscribe(&mut ready.messages, node, mailboxes).await?;
        Ok(ready)
    };
    match tokio::time::timeout(config.attempt_timeout(), attempt).await {
        Ok(result) => result,
        Err(_) => Err(Fault::new(FaultKind::TimedOut, Phase::Connect, Arc::clone(node))),
    }
}

/// Connects to the server at an address, and greets it.
async fn connect(
    config: &RedisConfig,
    address: &Address,
    report: Option<PrimaryReport>,
    node: &Arc<str>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<ReadyConnection, Fault> {
    let unconnected = |error| unconnected(error, address, node);
    let info = config.connection_info(address).map_err(unconnected)?;
    let opened = open_with_messages(config, address, &info, config.attempt_timeout(), on_push).await;
    let (Opened { mut conn, driver }, messages) = opened.map_err(unconnected)?;
    let loads_scripts = !matches!(config.location(), ServerLocation::ClusterNode(_, ConnPurpose::Messages));
    let info = handshake(&mut conn, loads_scripts, node).await?;
    let primary = report.is_some() || matches!(config.location(), ServerLocation::ClusterNode(..));
    check_server(&info, config, primary, node)
        .map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    let vote_delay = vote_delay(&info, config, report.as_ref());
    let vote_delay = vote_delay.map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))?;
    Ok(ReadyConnection { conn, messages, report, vote_delay, _driver: driver })
}

/// Names the connection, loads the scripts if it `speaks`, and gives what the server says of itself.
async fn handshake(
    conn: &mut MultiplexedConnection,
    loads_scripts: bool,
    node: &Arc<str>,
) -> Result<String, Fault> {
    let mut greeting = Pipeline::with_capacity(20);
    greeting.cmd("CLIENT").arg("SETNAME").arg("leasehold");
    diagnose::add_requests(&mut greeting);
    if loads_scripts {
        script::load_common(&mut greeting);
    }
    let replies = conn.send_packed_commands(&greeting, 0, greeting.len()).await;
    let replies = replies.map_err(|error| broken(error, node))?;
    // A user may be forbidden to name connections, to ask for the version or to load scripts: if that matters, the
    // first operation says so.
    let report = replies.get(1..=diagnose::SECTION_COUNT).unwrap_or_default();
    diagnose::info_text(report).map_err(|kind| Fault::new(kind, Phase::Handshake, Arc::clone(node)))
}

/// When a server gives locks, if it is a node of a quorum: once whatever it may have forgotten is over. It forgets when it is
/// started; and a replica does not know of all when it becomes the primary.
fn vote_delay(
    info: &str,
    config: &RedisConfig,
    report: Option<&PrimaryReport>,
) -> Result<Option<VoteDelay>, FaultKind> {
    let Some(needed) = config.min_uptime() else { return Ok(None) };
    if needed.is_zero() {
        return Ok(Some(VoteDelay::new(needed, Duration::ZERO)));
    }
    let Some(up) = version::number(info, "uptime_in_seconds") else {
        let what = "it does not report its uptime, so it may have forgotten a vote: allow INFO to the user, or set `min_uptime=0s` if it keeps every write";
        return Err(FaultKind::Unsupported(what.to_owned()));
    };
    let up = Duration::from_secs(up);
    let up = report.map_or(up, |report| report.primary_for.min(up));
    Ok(Some(VoteDelay::new(needed, up)))
}

/// Checks the version of a server and its hazards, and whether it is the `primary` that others say it is.
fn check_server(info: &str, config: &RedisConfig, primary: bool, node: &Arc<str>) -> Result<(), FaultKind> {
    version::check(info, matches!(config.location(), ServerLocation::ClusterNode(..)))?;
    let findings = diagnose::findings_for(info, config.min_uptime());
    if let Some(refusal) = diagnose::refusal(&findings, primary, config.is_strict()) {
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
    let others = mailboxes.lock_channels().all();
    if others.is_empty() {
        return Ok(());
    }
    match messages.subscribe(others).await {
        // Without permission to subscribe to channels of other libraries, waiters poll.
        Err(error) if error.clone().into_server_errors().is_none() => Err(unsubscribed(error, node)),
        _ => Ok(()),
    }
}
