//! The Sentinels of a primary: where the primary is, and when it moves.
//!
//! Owns the requests to the Sentinels and the choice among their answers. On connecting, the server itself confirms
//! that it is a primary. The link makes the connections to the server, and decides when.
//!
//! 1. A partitioned Sentinel reports an old primary, so all of them are queried at once. The answer that more than half
//!    agree on is accepted at once. Otherwise, when all have answered or timed out, the answer with the greatest
//!    epoch is accepted, and among those the most frequent.
//! 2. The client subscribes to every Sentinel: the one that leads a fail-over reports it up to two seconds before the
//!    others. A published message only triggers a query of that Sentinel. In case it gets lost, each Sentinel is also
//!    polled.
//! 3. Only an answer with a later epoch is a reason to leave a server. Two Sentinels may name the same server
//!    differently, or one may lag behind; a client that accepted both in turn would never settle.

use super::messages::Messages;
use super::open::{EndsSubscriptions, Opened, open, open_with_messages};
use crate::config::RedisConfig;
use crate::config::address::Address;
use crate::error_map::unconnected;
use crate::location::{SentinelGroup, ServerLocation};
use futures_util::StreamExt;
use futures_util::future::select_all;
use futures_util::stream::FuturesUnordered;
use leasehold_store::{Fault, FaultKind, Phase};
use redis::{Pipeline, PushInfo, PushKind, Value, from_redis_value_ref};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Limit for connecting to one Sentinel, and for its answer.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval at which a subscribed Sentinel is polled, and an unreachable one retried: between this and twice as much.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Channels on which a Sentinel publishes that it has promoted a replica, and that the configuration has changed.
const FAILOVER_CHANNELS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The address of a primary, as one Sentinel reports it.
#[derive(Debug, Clone)]
pub(crate) struct PrimaryReport {
    pub(crate) address: Address,
    /// Epoch of the reported configuration; `None` if the user lacks permission to read it.
    epoch: Option<u64>,
    /// Minimum time since the server became the primary, as far as this Sentinel knows. Sentinels see a promotion at
    /// different times.
    pub(crate) primary_for: Duration,
}

/// Compares address and epoch only.
impl PartialEq for PrimaryReport {
    fn eq(&self, other: &Self) -> bool {
        (&self.address, self.epoch) == (&other.address, other.epoch)
    }
}

impl PrimaryReport {
    /// Whether this is a reason to leave a server for another (3). The known epoch grows each time, so a client does
    /// not switch forever.
    fn supersedes(&self, known: &Self) -> bool {
        known.epoch.is_some() && self.epoch > known.epoch && self.address != known.address
    }
}

impl SentinelGroup {
    /// Finds the primary (1). Returns once a majority agrees on a configuration at least as recent as the last report.
    /// Otherwise waits for all Sentinels, and returns the most recent report, or the last report if none replies.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(crate) async fn find(
        &self,
        config: &RedisConfig,
        last_report: Option<PrimaryReport>,
    ) -> Result<PrimaryReport, Fault> {
        let mut queries: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.query(config, sentinel)).collect();
        let (mut reports, mut last_fault) = (Vec::new(), None);
        while let Some(answer) = queries.next().await {
            match answer {
                Ok(report) => {
                    reports.push(report.clone());
                    let votes = votes(&reports, &report);
                    let behind =
                        last_report.as_ref().is_some_and(|last_report| last_report.epoch > report.epoch);
                    if votes > self.sentinels.len() / 2 && !behind {
                        return Ok(report);
                    }
                }
                Err(fault) => {
                    tracing::debug!(node = %fault.node, %fault, "a Sentinel does not report the primary");
                    last_fault = Some(prefer_transient(last_fault, fault));
                }
            }
        }
        let best = reports.iter().max_by_key(|report| (report.epoch, votes(&reports, report))).cloned();
        best.or(last_report).ok_or_else(|| last_fault.unwrap_or_else(|| self.unreachable()))
    }

    /// Connects to one Sentinel, and queries the address.
    async fn query(&self, config: &RedisConfig, sentinel: &Address) -> Result<PrimaryReport, Fault> {
        let node = named(sentinel);
        let query = async {
            let unconnected = |error| unconnected(error, sentinel, &node);
            let info = config.sentinel_info(self, sentinel).map_err(unconnected)?;
            let mut opened = open(config, sentinel, &info, SENTINEL_TIMEOUT).await.map_err(unconnected)?;
            self.query_address(&mut opened, &node).await
        };
        // Shorter than one connection attempt, so that a few unreachable Sentinels do not use it up.
        match timeout(SENTINEL_TIMEOUT.min(config.attempt_timeout() / 4), query).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::new(FaultKind::Unreachable, Phase::Connect, Arc::clone(&node))),
        }
    }

    /// Queries the address from one connected Sentinel.
    async fn query_address(&self, sentinel: &mut Opened, node: &Arc<str>) -> Result<PrimaryReport, Fault> {
        let mut requests = Pipeline::with_capacity(2);
        requests.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        requests.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        let answers = sentinel.conn.send_packed_commands(&requests, 0, requests.len()).await;
        let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(node));
        let answers = answers.map_err(|error| fault(FaultKind::Disconnected).with_source(error))?;
        let address = match answers.first() {
            Some(Value::Nil) => return Err(fault(self.unknown_primary())),
            Some(Value::ServerError(error)) => return Err(fault(crate::error_map::classify(error).kind)),
            Some(address) => from_redis_value_ref::<(String, u16)>(address).ok(),
            None => None,
        };
        let Some((host, port)) = address else {
            let text = "the server does not report a primary: is it a Sentinel?".to_owned();
            return Err(fault(FaultKind::Failed(text)));
        };
        let record: Option<HashMap<String, String>> =
            answers.get(1).and_then(|record| from_redis_value_ref(record).ok());
        let record = record.unwrap_or_default();
        let epoch = record.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let primary_for = primary_for(&record, &host, port);
        Ok(PrimaryReport { address: Address::Tcp { host, port, tls: self.tls }, epoch, primary_for })
    }

    fn unknown_primary(&self) -> FaultKind {
        FaultKind::Unusable(format!("it knows no primary named `{}`: see its `sentinel monitor`", self.name))
    }

    fn unreachable(&self) -> Fault {
        Fault::new(FaultKind::Unreachable, Phase::Connect, self.to_string())
    }
}

/// Minimum time since the server became the primary: the age of the Sentinel's record of that role.
///
/// During a fail-over, the Sentinel that leads it reports the new address before its record contains it. The rest of
/// the record then describes the old primary, and nothing is known about the new one except that it was no primary
/// before.
fn primary_for(record: &HashMap<String, String>, host: &str, port: u16) -> Duration {
    let is = |field: &str, value: &str| record.get(field).is_some_and(|found| found == value);
    let moves = record.get("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
    if !is("ip", host) || !is("port", &port.to_string()) || moves {
        return Duration::ZERO;
    }
    let since = record.get("role-reported-time").and_then(|since| since.parse().ok());
    Duration::from_millis(since.unwrap_or(0))
}

/// Number of Sentinels with the same report.
fn votes(reports: &[PrimaryReport], report: &PrimaryReport) -> usize {
    reports.iter().filter(|other| *other == report).count()
}

/// Name of a Sentinel in messages.
fn named(sentinel: &Address) -> Arc<str> {
    format!("the Sentinel {sentinel}").into()
}

/// Of two faults, returns the transient one. A permanent fault of one Sentinel must not end an attempt that a short
/// outage of the others would not end.
pub(crate) fn prefer_transient(earlier: Option<Fault>, fault: Fault) -> Fault {
    match earlier {
        Some(earlier) if earlier.is_transient() || !fault.is_transient() => earlier,
        _ => fault,
    }
}

/// Subscriptions to the Sentinels (2).
pub(crate) struct SentinelWatch<'a> {
    listeners: Vec<SentinelListener<'a>>,
}

/// Subscription to one Sentinel.
struct SentinelListener<'a> {
    config: &'a RedisConfig,
    group: &'a SentinelGroup,
    sentinel: &'a Address,
    node: Arc<str>,
    subscription: Option<SentinelSubscription>,
}

/// A connection that signals each published message.
struct SentinelSubscription {
    sentinel: Opened,
    /// Signalled by each message.
    message: Arc<Notify>,
    /// Set when the connection has ended.
    ended: Arc<AtomicBool>,
    _messages: Messages,
}

impl<'a> SentinelWatch<'a> {
    /// Subscribes to nothing if the server has a fixed address.
    pub(crate) fn new(config: &'a RedisConfig) -> Self {
        let listeners = match config.location() {
            ServerLocation::Fixed(_) | ServerLocation::Cluster(_) | ServerLocation::ClusterNode(..) => {
                Vec::new()
            }
            ServerLocation::Sentinel(group) => {
                let listener = |sentinel| SentinelListener {
                    config,
                    group,
                    sentinel,
                    node: named(sentinel),
                    subscription: None,
                };
                group.sentinels.iter().map(listener).collect()
            }
        };
        Self { listeners }
    }

    /// Waits until the primary is no longer at the `known` address; forever if no address is known.
    ///
    /// Cancel safety: a later call continues where this one stopped.
    pub(crate) async fn moved(&mut self, known: Option<&PrimaryReport>) -> PrimaryReport {
        match known {
            Some(known) if !self.listeners.is_empty() => {
                let listeners = self.listeners.iter_mut().map(|listener| Box::pin(listener.moved(known)));
                select_all(listeners).await.0
            }
            _ => std::future::pending().await,
        }
    }
}

impl SentinelListener<'_> {
    async fn moved(&mut self, known: &PrimaryReport) -> PrimaryReport {
        loop {
            match timeout(SENTINEL_TIMEOUT, self.query()).await {
                Ok(Some(report)) if report.supersedes(known) => return report,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => self.subscription = None,
            }
            let pause =
                POLL_INTERVAL + leasehold_store::jitter(&**self.config.shared_environment(), POLL_INTERVAL);
            match &self.subscription {
                // Polls even without a message.
                Some(subscription) => drop(timeout(pause, subscription.message.notified()).await),
                None => tokio::time::sleep(pause).await,
            }
        }
    }

    async fn query(&mut self) -> Option<PrimaryReport> {
        let current = self.subscription.take();
        let subscription = match current.filter(|current| !current.ended.load(Ordering::SeqCst)) {
            Some(subscription) => subscription,
            None => self.listen().await?,
        };
        self.group.query_address(&mut self.subscription.insert(subscription).sentinel, &self.node).await.ok()
    }

    async fn listen(&self) -> Option<SentinelSubscription> {
        let message = Arc::new(Notify::new());
        let ended = Arc::new(AtomicBool::new(false));
        let (on_message, on_end) = (message.clone(), ended.clone());
        // A message about another primary costs one needless request.
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_end.store(true, Ordering::SeqCst);
            }
            on_message.notify_one();
        };
        let info = self.config.sentinel_info(self.group, self.sentinel).ok()?;
        let never = EndsSubscriptions::Never;
        let opened =
            open_with_messages(self.config, self.sentinel, &info, SENTINEL_TIMEOUT, never, on_push).await;
        let (sentinel, mut messages) = opened.ok()?;
        match messages.subscribe(&FAILOVER_CHANNELS[..]).await {
            // A user without permission to subscribe still polls.
            Err(error) if error.clone().into_server_errors().is_none() => return None,
            _ => {}
        }
        Some(SentinelSubscription { sentinel, message, ended, _messages: messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(host: &str, epoch: u64) -> PrimaryReport {
        let address = Address::Tcp { host: host.to_owned(), port: 1, tls: false };
        PrimaryReport { address, epoch: Some(epoch), primary_for: Duration::ZERO }
    }

    #[test]
    fn only_a_later_epoch_is_a_reason_to_leave_a_server() {
        assert!(seen("b", 2).supersedes(&seen("a", 1)));
        assert!(!seen("b", 1).supersedes(&seen("a", 1)), "two names of one server, or a lagging Sentinel");
        assert!(!seen("b", 1).supersedes(&seen("a", 2)));
        assert!(!seen("a", 2).supersedes(&seen("a", 1)));
        let unknown = |host| PrimaryReport { epoch: None, ..seen(host, 0) };
        assert!(!unknown("b").supersedes(&unknown("a")) && !seen("b", 1).supersedes(&unknown("a")));
    }

    #[test]
    fn a_promoted_replica_does_not_inherit_the_age_of_its_predecessor() {
        let record = |ip: &str, flags: &str| -> HashMap<String, String> {
            let fields = [("ip", ip), ("port", "7"), ("flags", flags), ("role-reported-time", "3600000")];
            fields.map(|(field, value)| (field.to_owned(), value.to_owned())).into()
        };
        assert_eq!(primary_for(&record("a", "master"), "a", 7), Duration::from_secs(3600));
        assert_eq!(primary_for(&record("a", "master"), "b", 7), Duration::ZERO, "record of another server");
        assert_eq!(primary_for(&record("a", "master"), "a", 8), Duration::ZERO, "record of another server");
        let moves = "master,s_down,o_down,failover_in_progress";
        assert_eq!(primary_for(&record("a", moves), "a", 7), Duration::ZERO);
        assert_eq!(primary_for(&HashMap::new(), "a", 7), Duration::ZERO);
    }

    #[test]
    fn a_permanent_fault_of_one_sentinel_does_not_hide_a_transient_one() {
        let fault = |kind| Fault::new(kind, Phase::Connect, "a");
        let (silent, wrong) = (fault(FaultKind::Unreachable), fault(FaultKind::Unauthenticated));
        assert_eq!(prefer_transient(Some(silent.clone()), wrong.clone()).kind, silent.kind);
        assert_eq!(prefer_transient(Some(wrong.clone()), silent.clone()).kind, silent.kind);
        assert_eq!(prefer_transient(Some(wrong.clone()), wrong.clone()).kind, wrong.kind);
    }
}
