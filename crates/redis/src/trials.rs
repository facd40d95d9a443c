//! Trials of a server: what the scripts rely on is tried on keys that no lock has.
//!
//! Owns what is sent for a trial, and the meaning of the replies. A connection is tried when it is made, once for each run of
//! a server; the diagnosis tries again, and more.
//!
//! 1. Only what was seen counts against a server. An error says nothing about exclusion: the user may lack a right, the server
//!    may be busy, full or a replica, or lack a command. The first operation that needs it reports the same error.
//! 2. A trial changes no lock, and leaves no key behind. If it is cut off, its keys expire.

use crate::conn::messages::Messages;
use crate::error_map::{classify, classify_text};
use crate::lua;
use crate::script::{Script, load};
use leasehold_core::KeySpace;
use leasehold_store::{FaultKind, Finding, FindingKind, Severity, Trial, TrialKind, TrialOutcome};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, PushInfo, PushKind, RedisResult, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// When the keys of a trial that was cut off expire.
const KEYS_KEPT_MS: &str = "20000";
/// How often each connection runs the script that looks for another one, and how often that reads its key.
const RUNS: usize = 8;
const READS: &str = "200";
/// Why a trial was not made after another one.
const EARLIER: &str = "an earlier trial ended the script";
/// Why a trial was not made that another user could make.
const DENIED: &str = "the user may not run it";

static TRIALS: LazyLock<Script> = LazyLock::new(|| Script::new(lua::TRIALS));
static TRY_ATOMICITY: LazyLock<Script> = LazyLock::new(|| Script::new(lua::TRY_ATOMICITY));

/// The trials of the script, in the order of its report.
const BY_SCRIPT: [TrialKind; 6] = [
    TrialKind::Time,
    TrialKind::SetNx,
    TrialKind::Expiry,
    TrialKind::Hashes,
    TrialKind::Errors,
    TrialKind::Kinds,
];

/// The servers that have passed, by address: product, version and run. All connections of a configuration share it.
#[derive(Debug, Default)]
pub(crate) struct TriedServers(Mutex<BTreeMap<String, String>>);

impl TriedServers {
    pub(crate) fn has_passed(&self, address: &str, version: &str) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(address)
            .is_some_and(|passed| passed == version)
    }

    pub(crate) fn set_passed(&self, address: String, version: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address, version);
    }
}

/// What confirms the holds of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmations {
    pub(crate) by_replicas: bool,
    pub(crate) by_disk: bool,
}

impl Confirmations {
    pub(crate) const NONE: Self = Self { by_replicas: false, by_disk: false };
}

/// The commands of the trials by one script, to be sent together; with those that confirm holds.
pub(crate) fn request(keys: &KeySpace, slot: Option<u16>, id: u64, confirmed: Confirmations) -> Pipeline {
    let key = keys.trial(slot, id);
    let own = [&key, &*format!("{key}:hash"), &*format!("{key}:missing")].map(str::to_owned);
    let mut pipeline = Pipeline::with_capacity(4);
    pipeline.add_command(load(&TRIALS));
    TRIALS.add_call(&mut pipeline, &own, &[&format!("{id:x}"), KEYS_KEPT_MS]);
    // Neither a replica nor the disk need have it now: the replies come at once.
    if confirmed.by_replicas {
        pipeline.cmd("WAIT").arg(0).arg(1);
    }
    if confirmed.by_disk {
        pipeline.cmd("WAITAOF").arg(0).arg(0).arg(1);
    }
    pipeline
}

/// The outcomes of these trials.
pub(crate) fn outcomes(replies: &[Value], confirmed: Confirmations) -> Vec<Trial> {
    let (by_script, rest) = replies.split_at(replies.len().min(2));
    let kinds =
        [confirmed.by_replicas.then_some(TrialKind::Replicas), confirmed.by_disk.then_some(TrialKind::Disk)];
    let confirming = kinds.into_iter().flatten().zip(rest);
    let confirming = confirming.map(|(kind, reply)| Trial::new(kind, confirming_outcome(kind, reply)));
    outcomes_of_script(by_script).into_iter().chain(confirming).collect()
}

/// A server without the command confirms no hold. Any other error may pass (1).
fn confirming_outcome(kind: TrialKind, reply: &Value) -> TrialOutcome {
    match (kind, reply) {
        (TrialKind::Replicas, Value::Int(0..)) => return TrialOutcome::Passed,
        (TrialKind::Disk, Value::Array(counts))
            if matches!(counts[..], [Value::Int(0..), Value::Int(0..)]) =>
        {
            return TrialOutcome::Passed;
        }
        _ => {}
    }
    match reply {
        Value::ServerError(error) => {
            let is_missing = error.details().is_some_and(|details| {
                let details = details.to_ascii_lowercase();
                ["unknown command", "unsupported command", "command not supported"]
                    .iter()
                    .any(|text| details.contains(text))
            });
            if is_missing {
                let since =
                    if kind == TrialKind::Disk { ", which came with Redis 7.2 and Valkey 7.2" } else { "" };
                TrialOutcome::Failed(format!("the server does not know the command{since}"))
            } else {
                reason(classify(error).kind)
            }
        }
        other => TrialOutcome::Failed(format!("the reply was {}", kind_of(other))),
    }
}

fn outcomes_of_script(replies: &[Value]) -> Vec<Trial> {
    let failed = replies.iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(reason(classify(error).kind)),
        _ => None,
    });
    let report = match (failed, replies.last()) {
        (Some(outcome), _) => Err(outcome),
        (None, Some(Value::Array(report))) => Ok(report),
        (None, other) => Err(TrialOutcome::Failed(format!("the reply was {:?}", other.map(kind_of)))),
    };
    match report {
        Err(outcome) => {
            let others = TrialOutcome::NotTried(EARLIER.to_owned());
            let others = BY_SCRIPT.iter().map(|kind| Trial::new(*kind, others.clone()));
            [Trial::new(TrialKind::Scripts, outcome)].into_iter().chain(others).collect()
        }
        Ok(report) => {
            let reported = |kind: TrialKind| {
                let mut pairs = report.chunks_exact(2);
                let pair = pairs.find(|pair| text(&pair[0]).as_deref() == Some(kind.as_str()));
                let outcome = pair
                    .and_then(|pair| text(&pair[1]))
                    .map_or_else(|| TrialOutcome::NotTried(EARLIER.to_owned()), |seen| outcome_of(&seen));
                Trial::new(kind, outcome)
            };
            let scripts = if report.is_empty() {
                TrialOutcome::Failed("the script reports nothing".to_owned())
            } else {
                TrialOutcome::Passed
            };
            [Trial::new(TrialKind::Scripts, scripts)].into_iter().chain(BY_SCRIPT.map(reported)).collect()
        }
    }
}

fn outcome_of(seen: &str) -> TrialOutcome {
    if seen.is_empty() {
        return TrialOutcome::Passed;
    }
    if let Some(error) = seen.strip_prefix("err") {
        let (code, details) = error.split_once(' ').unwrap_or((error, ""));
        return reason(classify_text(code, details).kind);
    }
    TrialOutcome::Failed(printable(seen.strip_prefix("seen").unwrap_or(seen)))
}

/// What an error means for a trial (1).
fn reason(kind: FaultKind) -> TrialOutcome {
    TrialOutcome::NotTried(match kind {
        FaultKind::Failed(what) => what,
        FaultKind::Forbidden | FaultKind::Unauthenticated => DENIED.to_owned(),
        FaultKind::ReadOnly => "it takes no writes".to_owned(),
        FaultKind::OutOfMemory => "its memory is full".to_owned(),
        FaultKind::Unsupported(_) => "another node has the slot".to_owned(),
        _ => "it is busy".to_owned(),
    })
}

/// Whether another trial by the same user would have the same outcome: what was not tried was denied, and nothing that passes.
pub(crate) fn are_conclusive(trials: &[Trial]) -> bool {
    let is_passing = |outcome: &TrialOutcome| matches!(outcome, TrialOutcome::NotTried(why) if why != DENIED && why != EARLIER);
    !trials.iter().any(|trial| is_passing(&trial.outcome))
}

/// Tries whether scripts of two connections interleave.
pub(crate) async fn atomicity(
    connections: [MultiplexedConnection; 2],
    keys: &KeySpace,
    id: u64,
) -> RedisResult<Trial> {
    let key = [keys.trial(None, id)];
    let run = |mut connection: MultiplexedConnection, value: &'static str| {
        let mut pipeline = Pipeline::with_capacity(RUNS + 1);
        pipeline.add_command(load(&TRY_ATOMICITY));
        for _ in 0..RUNS {
            TRY_ATOMICITY.add_call(&mut pipeline, &key, &[value, READS, KEYS_KEPT_MS]);
        }
        async move { connection.send_packed_commands(&pipeline, 0, RUNS + 1).await }
    };
    let [first, second] = connections;
    let mut last = first.clone();
    let (one, other) = tokio::join!(run(first, "one"), run(second, "other"));
    let replies = [one?, other?].map(|replies| replies.into_iter().skip(1)).into_iter().flatten();
    let outcomes = replies.map(|reply| match &reply {
        Value::ServerError(error) => reason(classify(error).kind),
        _ => match text(&reply) {
            Some(seen) if seen.is_empty() => TrialOutcome::Passed,
            seen => TrialOutcome::Failed(format!(
                "while a script ran, its key changed to {}",
                printable(&seen.unwrap_or_else(|| kind_of(&reply).to_owned()))
            )),
        },
    });
    let outcome = outcomes.max_by_key(|outcome| match outcome {
        TrialOutcome::Failed(_) => 2,
        TrialOutcome::NotTried(_) => 1,
        _ => 0,
    });
    let mut delete = Pipeline::with_capacity(1);
    delete.cmd("DEL").arg(&key);
    last.send_packed_commands(&delete, 0, 1).await?;
    Ok(Trial::new(TrialKind::Atomicity, outcome.unwrap_or(TrialOutcome::Passed)))
}

/// Recognizes the message of a trial among all messages of a connection.
#[derive(Debug, Clone)]
pub(crate) struct MessageTrial {
    channel: Arc<str>,
    arrived: Arc<Notify>,
}

impl MessageTrial {
    pub(crate) fn new(keys: &KeySpace, id: u64) -> Self {
        Self { channel: keys.trial(None, id).into(), arrived: Arc::default() }
    }

    /// A message of the connection has arrived. Returns whether it is that of the trial.
    pub(crate) fn receive(&self, push: &PushInfo) -> bool {
        let is_message = push.kind == PushKind::Message;
        let is_it = is_message && push.data.first().and_then(text).as_deref() == Some(&*self.channel);
        if is_it {
            self.arrived.notify_one();
        }
        is_it
    }

    /// Tries whether a message reaches the subscription, `within` that time after the server has taken it.
    pub(crate) async fn run(
        self,
        within: Duration,
        connection: &mut MultiplexedConnection,
        messages: &mut Messages,
    ) -> RedisResult<Trial> {
        let done = |outcome| Ok(Trial::new(TrialKind::Messages, outcome));
        match messages.subscribe(&*self.channel).await {
            Ok(()) => {}
            Err(error) => match error.clone().into_server_errors().and_then(|errors| errors.first().cloned())
            {
                Some((_, refusal)) => return done(reason(classify(&refusal).kind)),
                None => return Err(error),
            },
        }
        let mut publish = Pipeline::with_capacity(1);
        publish.cmd("PUBLISH").arg(&*self.channel).arg("here");
        let replies = connection.send_packed_commands(&publish, 0, 1).await?;
        let outcome = match replies.first() {
            Some(Value::ServerError(error)) => reason(classify(error).kind),
            _ => match tokio::time::timeout(within, self.arrived.notified()).await {
                Ok(()) => TrialOutcome::Passed,
                Err(_) => TrialOutcome::Failed(format!("no message within {within:?}")),
            },
        };
        match messages.unsubscribe(&*self.channel).await {
            // A user without the right keeps a subscription that does no harm.
            Err(error) if error.clone().into_server_errors().is_none() => Err(error),
            _ => done(outcome),
        }
    }
}

/// Whether scripts run there at all.
pub(crate) fn runs_scripts(trials: &[Trial]) -> bool {
    trials.first().is_some_and(|trial| trial.outcome == TrialOutcome::Passed)
}

/// The findings of trials that failed.
pub(crate) fn findings(trials: &[Trial]) -> Vec<Finding> {
    let failed = trials.iter().filter_map(|trial| match &trial.outcome {
        TrialOutcome::Failed(seen) => {
            let severity =
                if trial.kind.is_needed_for_exclusion() { Severity::Critical } else { Severity::Notice };
            Some(Finding::new(FindingKind::FailedTrial { trial: trial.kind, seen: seen.clone() }, severity))
        }
        _ => None,
    });
    failed.collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}

const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Int(_) => "an integer",
        Value::Array(_) => "an array",
        _ => "of another kind",
    }
}

/// Text of the server, limited to one printable line.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(texts: &[(&str, &str)]) -> Vec<Value> {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let pairs = texts.iter().flat_map(|(name, seen)| [bulk(name), bulk(seen)]);
        vec![bulk("sha"), Value::Array(pairs.collect())]
    }

    #[test]
    fn what_cannot_be_tried_is_no_failure() {
        let replies = report(&[
            ("time", ""),
            ("set_nx", "errOOM command not allowed when used memory > 'maxmemory'."),
            ("expiry", "seennumber 20"),
            ("hashes", "errNOPERM User u has no permissions to run the 'hset' command"),
            ("errors", "err@user_script: 69: -OOM command not allowed when used memory > 'maxmemory'."),
            ("kinds", "errERR unknown command 'TYPE'"),
        ]);
        let shown: Vec<_> = outcomes(&replies, Confirmations::NONE).iter().map(Trial::to_string).collect();
        assert_eq!(
            shown,
            [
                "scripts: passed",
                "time: passed",
                "set_nx: not tried, its memory is full",
                "expiry: failed, number 20",
                "hashes: not tried, the user may not run it",
                "errors: not tried, its memory is full",
                "kinds: not tried, the server reports: ERR unknown command 'TYPE'",
            ]
        );
        let severities: Vec<_> =
            findings(&outcomes(&replies, Confirmations::NONE)).iter().map(|found| found.severity).collect();
        assert_eq!(severities, [Severity::Critical]);
        assert!(
            !are_conclusive(&outcomes(&replies, Confirmations::NONE))
                && are_conclusive(&outcomes(&report(&[("time", "")]), Confirmations::NONE))
        );
    }

    /// The outcome of the last trial, with this reply.
    fn confirming(confirmed: Confirmations, reply: &[u8]) -> String {
        let mut replies = report(&[("time", "")]);
        replies.push(redis::parse_redis_value(reply).expect("a reply"));
        outcomes(&replies, confirmed).pop().expect("the last trial").to_string()
    }

    #[test]
    fn a_server_without_wait_confirms_no_hold() {
        let replies = |wait: &[u8]| confirming(Confirmations { by_replicas: true, by_disk: false }, wait);
        assert_eq!(replies(b":0\r\n"), "replicas: passed");
        assert_eq!(
            replies(b"-ERR unknown command 'WAIT', with args beginning with: '0' '1'\r\n"),
            "replicas: failed, the server does not know the command"
        );
        assert_eq!(replies(b"-NOPERM no permissions\r\n"), "replicas: not tried, the user may not run it");
        assert_eq!(replies(b"$-1\r\n"), "replicas: failed, the reply was nil");
    }

    #[test]
    fn a_server_without_waitaof_confirms_no_durable_hold() {
        let replies = |waited: &[u8]| confirming(Confirmations { by_replicas: false, by_disk: true }, waited);
        assert_eq!(replies(b"*2\r\n:0\r\n:0\r\n"), "disk: passed");
        assert_eq!(
            replies(b"-ERR unknown command 'WAITAOF', with args beginning with: '0' '0' '1'\r\n"),
            "disk: failed, the server does not know the command, which came with Redis 7.2 and Valkey 7.2"
        );
        assert_eq!(replies(b"-NOPERM no permissions\r\n"), "disk: not tried, the user may not run it");
        assert_eq!(replies(b"*1\r\n:0\r\n"), "disk: failed, the reply was an array");
        assert_eq!(replies(b":1\r\n"), "disk: failed, the reply was an integer");
        let both = Confirmations { by_replicas: true, by_disk: true };
        let mut all = report(&[("time", "")]);
        all.extend([Value::Int(1), Value::Array(vec![Value::Int(1), Value::Int(1)])]);
        let last_two: Vec<_> =
            outcomes(&all, both).into_iter().rev().take(2).map(|trial| trial.to_string()).collect();
        assert_eq!(last_two, ["disk: passed", "replicas: passed"]);
    }

    #[test]
    fn a_server_is_tried_again_after_an_upgrade() {
        let tried = TriedServers::default();
        assert!(!tried.has_passed("a:6379", "Redis 7.0.15"));
        tried.set_passed("a:6379".to_owned(), "Redis 7.0.15".to_owned());
        assert!(tried.has_passed("a:6379", "Redis 7.0.15"));
        assert!(!tried.has_passed("a:6379", "Redis 7.2.0") && !tried.has_passed("b:6379", "Redis 7.0.15"));
    }
}
