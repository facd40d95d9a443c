//! The Sentinels of a primary: where it is, and when it moves.
//!
//! Owns the questions to them, and which of their answers is believed. Whether what they name is a primary is asked of the
//! server itself when it is greeted; making connections to it, and when, is the link's.
//!
//! 1. A Sentinel that was cut off knows an old primary. So all of them are asked at once. More than half who say the same
//!    are believed at once; else, when all have had their time, what has the greatest epoch, and of that what most say.
//! 2. Each of them is listened to: the one that leads a fail-over tells of it up to two seconds before the others. What
//!    it publishes is a hint to ask it, and where that is lost: it is asked now and then.
//! 3. Only an answer of a later epoch is a reason to leave a server. Two of them may name the same one differently, or one
//!    may be behind, and whoever believed both in turn would never arrive.

use super::address::Address;
use super::config::RedisConfig;
use super::messages::Messages;
use super::open::{Opened, open, open_to_hear};
use super::site::{Group, Site};
use super::verdict::unconnected;
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

/// How long one of them may take to be reached, or to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long one that is listened to is not asked, or left alone where it is not there: between this and twice as much.
const LOOK: Duration = Duration::from_secs(1);
/// What a Sentinel says when a primary moves: that it has promoted a replica, and that all know of it.
const NEWS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// Where a primary was seen.
#[derive(Debug, Clone)]
pub(super) struct Sighting {
    pub(super) address: Address,
    /// Of the configuration that says so; none if the user may not ask for it.
    epoch: Option<u64>,
    /// For how long it has been the primary at least, as far as that Sentinel knows; each has seen it at its own time.
    pub(super) primary_for: Duration,
}

/// Where, and by which configuration.
impl PartialEq for Sighting {
    fn eq(&self, other: &Self) -> bool {
        (&self.address, self.epoch) == (&other.address, other.epoch)
    }
}

impl Sighting {
    /// Whether it is a reason to leave a server for another (3). What is known grows with each, so that this ends.
    fn supersedes(&self, known: &Self) -> bool {
        known.epoch.is_some() && self.epoch > known.epoch && self.address != known.address
    }
}

impl Group {
    /// Where the primary is (1). While those who have answered know of no configuration as late as that of a `hint`, all are
    /// waited for; where none of them does, it is over.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(super) async fn find(&self, config: &RedisConfig, hint: Option<Sighting>) -> Result<Sighting, Fault> {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.look(config, sentinel)).collect();
        let (mut seen, mut trouble) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(sighting) => {
                    seen.push(sighting.clone());
                    let votes = votes(&seen, &sighting);
                    let behind = hint.as_ref().is_some_and(|hint| hint.epoch > sighting.epoch);
                    if votes > self.sentinels.len() / 2 && !behind {
                        return Ok(sighting);
                    }
                }
                Err(fault) => {
                    tracing::debug!(node = %fault.node, %fault, "a Sentinel does not say where the primary is");
                    trouble = Some(more_hopeful(trouble, fault));
                }
            }
        }
        let best = seen.iter().max_by_key(|sighting| (sighting.epoch, votes(&seen, sighting))).cloned();
        best.or(hint).ok_or_else(|| trouble.unwrap_or_else(|| self.silent()))
    }

    /// Where one of them says that it is.
    async fn look(&self, config: &RedisConfig, sentinel: &Address) -> Result<Sighting, Fault> {
        let node = named(sentinel);
        let asked = async {
            let unconnected = |error| unconnected(error, sentinel, &node);
            let info = config.sentinel_info(self, sentinel).map_err(unconnected)?;
            let mut opened = open(config, sentinel, &info, PATIENCE).await.map_err(unconnected)?;
            self.ask(&mut opened, &node).await
        };
        // Some are left out for the sake of a short attempt as well.
        match timeout(PATIENCE.min(config.patience() / 4), asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::new(FaultKind::Unreachable, Phase::Connect, Arc::clone(&node))),
        }
    }

    /// Asks one of them that was reached.
    async fn ask(&self, sentinel: &mut Opened, node: &Arc<str>) -> Result<Sighting, Fault> {
        let mut question = Pipeline::with_capacity(2);
        question.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        question.cmd("SENTINEL").arg("MASTER").arg(&self.name);
        let answers = sentinel.conn.send_packed_commands(&question, 0, question.len()).await;
        let fault = |kind| Fault::new(kind, Phase::Handshake, Arc::clone(node));
        let answers = answers.map_err(|error| fault(FaultKind::Disconnected).because(error))?;
        let address = match answers.first() {
            Some(Value::Nil) => return Err(fault(self.unknown())),
            Some(Value::ServerError(error)) => return Err(fault(super::verdict::judge(error).kind)),
            Some(address) => from_redis_value_ref::<(String, u16)>(address).ok(),
            None => None,
        };
        let Some((host, port)) = address else {
            let text = "it does not say where the primary is: is it a Sentinel?".to_owned();
            return Err(fault(FaultKind::Failed(text)));
        };
        let record: Option<HashMap<String, String>> =
            answers.get(1).and_then(|record| from_redis_value_ref(record).ok());
        let record = record.unwrap_or_default();
        let epoch = record.get("config-epoch").and_then(|epoch| epoch.parse().ok());
        let primary_for = primary_for(&record, &host, port);
        Ok(Sighting { address: Address::Tcp { host, port, tls: self.tls }, epoch, primary_for })
    }

    fn unknown(&self) -> FaultKind {
        FaultKind::Unusable(format!("it knows no primary called `{}`: see its `sentinel monitor`", self.name))
    }

    fn silent(&self) -> Fault {
        Fault::new(FaultKind::Unreachable, Phase::Connect, self.to_string())
    }
}

/// For how long it has been the primary, by the record of a Sentinel that was told of it, or was started, so long ago.
///
/// While a primary moves, the one that moves it tells the new address before its record has it: what else is in there is the
/// old one's then, and of the new one nothing is known but that it was none before.
fn primary_for(record: &HashMap<String, String>, host: &str, port: u16) -> Duration {
    let is = |field: &str, value: &str| record.get(field).is_some_and(|found| found == value);
    let moves = record.get("flags").is_some_and(|flags| flags.contains("failover_in_progress"));
    if !is("ip", host) || !is("port", &port.to_string()) || moves {
        return Duration::ZERO;
    }
    let since = record.get("role-reported-time").and_then(|since| since.parse().ok());
    Duration::from_millis(since.unwrap_or(0))
}

/// How many have seen the same.
fn votes(seen: &[Sighting], sighting: &Sighting) -> usize {
    seen.iter().filter(|other| *other == sighting).count()
}

/// What messages name a Sentinel by.
fn named(sentinel: &Address) -> Arc<str> {
    format!("the Sentinel {sentinel}").into()
}

/// Of what went wrong with two of them: what may pass. One that nobody can ask must not end what a blip of the others would
/// not.
pub(super) fn more_hopeful(earlier: Option<Fault>, fault: Fault) -> Fault {
    match earlier {
        Some(earlier) if earlier.is_transient() || !fault.is_transient() => earlier,
        _ => fault,
    }
}

/// Listens to the Sentinels (2).
pub(super) struct Lookout<'a> {
    posts: Vec<Post<'a>>,
}

/// Listens to one of them.
struct Post<'a> {
    config: &'a RedisConfig,
    group: &'a Group,
    sentinel: &'a Address,
    node: Arc<str>,
    ear: Option<Ear>,
}

/// A connection that rings when there are news.
struct Ear {
    sentinel: Opened,
    heard: Arc<Notify>,
    /// Set when nothing can be heard any more.
    ended: Arc<AtomicBool>,
    _messages: Messages,
}

impl<'a> Lookout<'a> {
    /// Nobody is listened to where the server is always at one address.
    pub(super) fn new(config: &'a RedisConfig) -> Self {
        let posts = match config.site() {
            Site::At(_) | Site::Cluster(_) | Site::Member(..) => Vec::new(),
            Site::Named(group) => {
                let post = |sentinel| Post { config, group, sentinel, node: named(sentinel), ear: None };
                group.sentinels.iter().map(post).collect()
            }
        };
        Self { posts }
    }

    /// Waits until the primary is elsewhere than is known; for ever, where nothing is known.
    ///
    /// Cancel safety: it goes on where it was when it is called again.
    pub(super) async fn moved(&mut self, known: Option<&Sighting>) -> Sighting {
        match known {
            Some(known) if !self.posts.is_empty() => {
                let posts = self.posts.iter_mut().map(|post| Box::pin(post.moved(known)));
                select_all(posts).await.0
            }
            _ => std::future::pending().await,
        }
    }
}

impl Post<'_> {
    async fn moved(&mut self, known: &Sighting) -> Sighting {
        loop {
            match timeout(PATIENCE, self.look()).await {
                Ok(Some(seen)) if seen.supersedes(known) => return seen,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => self.ear = None,
            }
            let a_while = LOOK + leasehold_store::jitter(&**self.config.surroundings(), LOOK);
            match &self.ear {
                // Also where nothing was heard for long.
                Some(ear) => drop(timeout(a_while, ear.heard.notified()).await),
                None => tokio::time::sleep(a_while).await,
            }
        }
    }

    async fn look(&mut self) -> Option<Sighting> {
        let ear = match self.ear.take().filter(|ear| !ear.ended.load(Ordering::SeqCst)) {
            Some(ear) => ear,
            None => self.listen().await?,
        };
        self.group.ask(&mut self.ear.insert(ear).sentinel, &self.node).await.ok()
    }

    async fn listen(&self) -> Option<Ear> {
        let heard = Arc::new(Notify::new());
        let ended = Arc::new(AtomicBool::new(false));
        let (bell, end) = (heard.clone(), ended.clone());
        // What was heard of another primary is asked about for nothing.
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                end.store(true, Ordering::SeqCst);
            }
            bell.notify_one();
        };
        let info = self.config.sentinel_info(self.group, self.sentinel).ok()?;
        let opened = open_to_hear(self.config, self.sentinel, &info, PATIENCE, on_push).await;
        let (sentinel, mut messages) = opened.ok()?;
        match messages.subscribe(&NEWS[..]).await {
            // A user that may not listen still asks now and then.
            Err(error) if error.clone().into_server_errors().is_none() => return None,
            _ => {}
        }
        Some(Ear { sentinel, heard, ended, _messages: messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(host: &str, epoch: u64) -> Sighting {
        let address = Address::Tcp { host: host.to_owned(), port: 1, tls: false };
        Sighting { address, epoch: Some(epoch), primary_for: Duration::ZERO }
    }

    #[test]
    fn only_a_later_epoch_is_a_reason_to_leave_a_server() {
        assert!(seen("b", 2).supersedes(&seen("a", 1)));
        assert!(!seen("b", 1).supersedes(&seen("a", 1)), "two names of one server, or one who is behind");
        assert!(!seen("b", 1).supersedes(&seen("a", 2)));
        assert!(!seen("a", 2).supersedes(&seen("a", 1)));
        let unknown = |host| Sighting { epoch: None, ..seen(host, 0) };
        assert!(!unknown("b").supersedes(&unknown("a")) && !seen("b", 1).supersedes(&unknown("a")));
    }

    #[test]
    fn a_replica_that_is_promoted_has_not_the_age_of_its_predecessor() {
        let record = |ip: &str, flags: &str| -> HashMap<String, String> {
            let fields = [("ip", ip), ("port", "7"), ("flags", flags), ("role-reported-time", "3600000")];
            fields.map(|(field, value)| (field.to_owned(), value.to_owned())).into()
        };
        assert_eq!(primary_for(&record("a", "master"), "a", 7), Duration::from_secs(3600));
        assert_eq!(primary_for(&record("a", "master"), "b", 7), Duration::ZERO, "the record is of another");
        assert_eq!(primary_for(&record("a", "master"), "a", 8), Duration::ZERO, "the record is of another");
        let moves = "master,s_down,o_down,failover_in_progress";
        assert_eq!(primary_for(&record("a", moves), "a", 7), Duration::ZERO);
        assert_eq!(primary_for(&HashMap::new(), "a", 7), Duration::ZERO);
    }

    #[test]
    fn what_may_pass_is_not_ended_by_one_that_nobody_can_ask() {
        let fault = |kind| Fault::new(kind, Phase::Connect, "a");
        let (silent, wrong) = (fault(FaultKind::Unreachable), fault(FaultKind::Unauthenticated));
        assert_eq!(more_hopeful(Some(silent.clone()), wrong.clone()).kind, silent.kind);
        assert_eq!(more_hopeful(Some(wrong.clone()), silent.clone()).kind, silent.kind);
        assert_eq!(more_hopeful(Some(wrong.clone()), wrong.clone()).kind, wrong.kind);
    }
}
