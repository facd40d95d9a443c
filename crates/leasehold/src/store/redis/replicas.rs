//! What replicas have of a hold, where somebody has asked for that.
//!
//! Owns a connection of its own, on which nothing else is said: WAIT keeps whatever comes behind it waiting, and counts what
//! was written on its own connection alone.
//!
//! 1. A grant was written by whoever has released the lock. So the hold is looked for here, which says that this server has
//!    it; then something is written, which the server sends to its replicas behind the hold; and WAIT asks who has that.
//! 2. An extend that cannot lengthen anything is the look: what it answers compares the hold, for every kind of lock.

use super::cluster::Cluster;
use super::config::{Address, Errand, RedisConfig};
use super::home::Home;
use super::link::{Link, Lost, Wire};
use super::mailbox::Mailboxes;
use super::reply;
use super::script::Call;
use super::verdict::{Verdict, goes_elsewhere, judge};
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::{Claim, Extend, Extended, Lock, LockKeys, Op, Reply};
use redis::{Pipeline, Value, cmd};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How late the server may notice that its time is over: it looks ten times a second where it has nothing else to do.
const LATE: Duration = Duration::from_millis(150);
/// How long the mark is there that is written (1).
const MARK_MS: u64 = 1000;

/// Pauses between two questions: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// What the answers to a question mean.
enum Judged {
    /// Enough of them have the hold.
    Had,
    /// They have not.
    Not(Fault),
    /// Another connection may lead to the server that has it.
    Elsewhere(Fault),
}

/// Asks the replicas of a server, or of each primary of a cluster.
#[derive(Debug)]
pub(super) struct Replicas {
    config: RedisConfig,
    wanted: u32,
    /// One to each primary that was asked, over which nothing else is said; without an address, to the only server.
    links: Mutex<BTreeMap<Option<Address>, Arc<Link>>>,
}

impl Replicas {
    /// So many of them, over links that nobody else has.
    pub(super) const fn new(config: RedisConfig, wanted: u32) -> Self {
        Self { config, wanted, links: Mutex::new(BTreeMap::new()) }
    }

    /// Waits until enough of them have a hold. What was sent may be executed after this has failed; it changes nothing, so
    /// it is asked again for as long as there is time where the connection broke or led to another server.
    pub(super) async fn confirm(
        &self,
        cluster: Option<&Cluster>,
        home: &Home<'_>,
        lock: &Lock,
        keys: &LockKeys,
        claim: &Claim,
        deadline: Instant,
    ) -> Result<(), Fault> {
        let look =
            Op::Extend(Extend { claim: claim.clone(), lease_ms: 1, keep_record: false, reserve: None });
        let unusable = || FaultKind::Unusable("there is no script for this".to_owned());
        let call =
            Call::lesser(&look, lock.kind, home, keys).or_else(|| Call::new(&look, lock.kind, home, keys));
        let call = call.ok_or_else(|| Fault::new(unusable(), Phase::Send, self.config.node()))?;
        let mark = home.keys.mark(keys);
        let mut pause = PAUSE.0;
        loop {
            let link = match cluster {
                None => self.link(None),
                Some(cluster) => {
                    let map = cluster.map(deadline).await?;
                    let primary = map.primary(keys.slot()).cloned();
                    self.keep_to(map.primaries());
                    self.link(primary)
                }
            };
            // While a cluster has no primary for it, the next one is another.
            let patience = if cluster.is_some() { PAUSE.1 } else { Duration::MAX };
            let until = Instant::now().checked_add(patience).map_or(deadline, |until| until.min(deadline));
            let fault = match link.wire(until).await {
                Err(fault) if cluster.is_none() || !fault.is_transient() => return Err(fault),
                Err(fault) => fault,
                Ok(mut wire) => match ask(&link, &mut wire, (self.wanted, &mark), &call, deadline).await {
                    Ok(answers) => match self.judge(&link, &look, &answers) {
                        Judged::Had => return Ok(()),
                        Judged::Not(fault) => return Err(fault),
                        Judged::Elsewhere(fault) => {
                            link.replace(&wire);
                            fault
                        }
                    },
                    Err(Lost::Broken(error)) => fault(&link, FaultKind::Disconnected).because(error),
                    // As a rule somebody else's question was before this one, and has not been answered either.
                    Err(Lost::TimedOut) => return Err(fault(&link, self.too_few(0))),
                },
            };
            if let Some(cluster) = cluster {
                cluster.doubt();
            }
            if Instant::now() + pause >= deadline {
                return Err(fault);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// The link to a primary, or to the only server.
    fn link(&self, primary: Option<Address>) -> Arc<Link> {
        let mut links = self.links();
        let config = || match &primary {
            None => self.config.clone(),
            Some(primary) => self.config.of_member(primary, Errand::Calls),
        };
        let made = || Arc::new(Link::new(config(), Mailboxes::elsewhere(|_| {})));
        let link = match links.get(&primary) {
            Some(link) => Arc::clone(link),
            None => made(),
        };
        links.entry(primary).or_insert_with(|| Arc::clone(&link));
        link
    }

    /// Ends the links to all others.
    fn keep_to(&self, primaries: &[Address]) {
        self.links().retain(|link, _| link.as_ref().is_some_and(|link| primaries.contains(link)));
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<Option<Address>, Arc<Link>>> {
        // Nothing in here panics while it holds them.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the answers to the look, the writing and the question say.
    fn judge(&self, link: &Link, look: &Op, answers: &[Value]) -> Judged {
        let malformed = || Judged::Not(fault(link, FaultKind::Failed(reply::Malformed.to_string())));
        let errors = answers.iter().filter_map(|answer| match answer {
            Value::ServerError(error) if goes_elsewhere(error) => {
                Some(Verdict { elsewhere: true, ..judge(error) })
            }
            Value::ServerError(error) => Some(judge(error)),
            _ => None,
        });
        // A replica answers the look, and says only to the writing what it is.
        let mut errors: Vec<_> = errors.collect();
        if let Some(at) = errors.iter().position(|error| error.elsewhere) {
            return Judged::Elsewhere(fault(link, errors.swap_remove(at).kind));
        }
        if let Some(error) = errors.into_iter().next() {
            return Judged::Not(fault(link, error.kind));
        }
        let [looked, _, found] = answers else { return malformed() };
        match (reply::read(look, looked), found) {
            (Ok(Reply::Extend(Extended::Extended)), Value::Int(found)) => {
                match u32::try_from(*found).unwrap_or(0) {
                    found if found >= self.wanted => Judged::Had,
                    found => Judged::Not(fault(link, self.too_few(found))),
                }
            }
            // It has lost the hold, or this connection leads to another server than the one that has it.
            (Ok(Reply::Extend(Extended::NotHeld)), _) => Judged::Elsewhere(fault(link, self.too_few(0))),
            (Ok(Reply::Refused(refused)), _) => Judged::Not(fault(link, FaultKind::Meaningless(refused))),
            _ => malformed(),
        }
    }

    const fn too_few(&self, found: u32) -> FaultKind {
        FaultKind::Unconfirmed { wanted: self.wanted, found }
    }
}

fn fault(link: &Link, kind: FaultKind) -> Fault {
    Fault::new(kind, Phase::Reply, Arc::clone(link.node()))
}

/// The answers to the look, the writing and the question. The script is sent along where the server does not know it.
async fn ask(
    link: &Link,
    wire: &mut Wire,
    (wanted, mark): (u32, &str),
    call: &Call,
    deadline: Instant,
) -> Result<Vec<Value>, Lost> {
    let mut loaded = false;
    loop {
        let mut question = if loaded { call.with_load() } else { Pipeline::with_capacity(3) };
        if !loaded {
            question.add_command(call.cmd().clone());
        }
        question.cmd("SET").arg(mark).arg("").arg("PX").arg(MARK_MS);
        question.add_command(cmd("WAIT").arg(wanted).arg(waits_ms(deadline)).clone());
        let mut answers = link.call_all(wire, &question, deadline).await?;
        if loaded && !answers.is_empty() {
            answers.remove(0);
        }
        match answers.first() {
            Some(Value::ServerError(error)) if error.code() == "NOSCRIPT" && !loaded => loaded = true,
            _ => return Ok(answers),
        }
    }
}

/// How long the server may wait: not for ever, which is what 0 would be, and so that its answer comes in time.
fn waits_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let in_time = left.saturating_sub(LATE.min(left / 2));
    u64::try_from(in_time.as_millis()).unwrap_or(u64::MAX).max(1)
}
