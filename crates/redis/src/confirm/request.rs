//! What is requested from a server, and what its replies mean.

use super::super::config::RedisConfig;
use super::super::conn::link::{Link, LinkConnection, NoReply};
use super::super::error_map::is_unknown_script;
use super::super::script::Call;
use super::super::script::reply::{self, Malformed};
use leasehold_core::{Extend, Extended, HeartbeatReply, Kind, LockKeys, Op, Refused, Reply};
use leasehold_store::FaultKind;
use redis::{Cmd, Pipeline, Value, cmd};
use std::time::Duration;
use tokio::time::Instant;

/// How late the server may end a wait: an idle server checks timeouts ten times a second.
const WAIT_MARGIN: Duration = Duration::from_millis(150);

/// What must have something before it counts. At least one of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Required {
    /// How many replicas.
    pub(crate) replicas: u32,
    /// Whether the server's append-only file, synced.
    pub(crate) durable: bool,
}

impl Required {
    /// What the configuration requires, if anything.
    pub(crate) fn by(config: &RedisConfig) -> Option<Self> {
        let required = Self { replicas: config.wanted_replicas(), durable: config.is_durable() };
        (required.replicas > 0 || required.durable).then_some(required)
    }

    /// The commands that wait for it, for at most so many milliseconds each.
    fn waits(self, timeout_ms: u64) -> impl Iterator<Item = Cmd> {
        let wait = (self.replicas > 0).then(|| cmd("WAIT").arg(self.replicas).arg(timeout_ms).take());
        let waitaof = self.durable.then(|| cmd("WAITAOF").arg(1).arg(0).arg(timeout_ms).take());
        wait.into_iter().chain(waitaof)
    }

    fn count(self) -> usize {
        usize::from(self.replicas > 0) + usize::from(self.durable)
    }

    /// What is missing by the replies to those commands: nothing, or the reason why it does not count.
    pub(super) fn missing(self, replies: &[Value]) -> Result<(), FaultKind> {
        let malformed = || FaultKind::Failed(Malformed.to_string());
        let mut replies = replies.iter();
        if self.replicas > 0 {
            let Some(Value::Int(confirmed)) = replies.next() else { return Err(malformed()) };
            let confirmed = u32::try_from(*confirmed).unwrap_or(0);
            if confirmed < self.replicas {
                return Err(FaultKind::Unconfirmed { required: self.replicas, confirmed });
            }
        }
        if self.durable {
            let Some(Value::Array(synced)) = replies.next() else { return Err(malformed()) };
            match synced[..] {
                [Value::Int(1), _] => {}
                [Value::Int(_), _] => return Err(FaultKind::Unsynced),
                _ => return Err(malformed()),
            }
        }
        Ok(())
    }

    /// Nothing is known to have it.
    pub(super) fn by_nothing(self) -> FaultKind {
        if self.replicas > 0 {
            FaultKind::Unconfirmed { required: self.replicas, confirmed: 0 }
        } else {
            FaultKind::Unsynced
        }
    }
}

/// One request, independent of the server.
pub(super) struct Request {
    pub(super) rereads: Vec<Reread>,
    pub(super) write: Call,
    /// The deadline for a reply.
    pub(super) deadline: Instant,
}

impl Request {
    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.rereads.iter().map(|reread| &reread.call).chain([&self.write])
    }
}

/// A re-read by one call.
pub(super) struct Reread {
    pub(super) of: RereadOf,
    pub(super) call: Call,
}

/// What is read again.
#[derive(Debug)]
pub(super) enum RereadOf {
    /// Holds, each by such an extend.
    Holds(Vec<Op>),
    Session,
}

/// What a re-read has found.
pub(super) enum Found {
    Yes,
    No,
    Refused(Refused),
    /// The reply cannot be read.
    Unreadable,
}

impl Reread {
    pub(super) fn shared(of: &[(&LockKeys, Kind, &Extend)]) -> Self {
        let ops = of.iter().map(|(_, _, extend)| Op::Extend((*extend).clone())).collect();
        Self { of: RereadOf::Holds(ops), call: Call::extends(of) }
    }

    /// How many are read.
    pub(super) fn count(&self) -> usize {
        match &self.of {
            RereadOf::Holds(ops) => ops.len(),
            RereadOf::Session => 1,
        }
    }

    /// What it found for each, from the reply to the call.
    pub(super) fn found(&self, value: &Value) -> Vec<Found> {
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

/// The replies to a request.
#[derive(Debug)]
pub(super) struct Replies {
    /// Those to the re-reads.
    pub(super) rereads: Vec<Value>,
    /// That to the write.
    pub(super) written: Value,
    /// Those to what waits.
    pub(super) waits: Vec<Value>,
}

/// Sends requests, and waits for the confirmations of all, until the deadline at the latest. `asking` is set after an ASK
/// redirect. Loads the scripts if the server does not know them.
///
/// WAIT goes with the requests. WAITAOF follows once they are known to have been executed: it would wait for a sync also if a
/// script is missing. Nothing else may be sent on the connection meanwhile.
pub(super) async fn send(
    link: &Link,
    connection: &mut LinkConnection,
    (required, asking): (Required, bool),
    requests: &[&Request],
    deadline: Instant,
) -> Result<Vec<Replies>, NoReply> {
    let calls = || requests.iter().flat_map(|request| request.calls());
    let count = calls().count();
    let mut loaded = false;
    let (of_calls, mut waits) = loop {
        let mut pipeline = Pipeline::with_capacity(3 * count + required.count());
        if loaded {
            for call in calls() {
                pipeline.add_command(call.load());
            }
        }
        for call in calls() {
            if asking {
                pipeline.add_command(cmd("ASKING"));
            }
            pipeline.add_command(call.cmd().clone());
        }
        if !required.durable {
            pipeline = with_waits(pipeline, required, deadline);
        }
        let replies = link.call_all(connection, &pipeline, deadline).await?.into_iter();
        let replies = replies.skip(if loaded { count } else { 0 }).enumerate();
        // The reply of a call covers that of the ASKING in front of it.
        let counts = |at: usize| !asking || at % 2 == 1 || at >= 2 * count;
        let mut replies = replies.filter(|(at, _)| counts(*at)).map(|(_, reply)| reply);
        let of_calls: Vec<_> = replies.by_ref().take(count).collect();
        if loaded || !of_calls.iter().any(is_unknown_script) {
            break (of_calls, replies.collect::<Vec<_>>());
        }
        loaded = true;
    };
    if required.durable {
        let pipeline = with_waits(Pipeline::with_capacity(required.count()), required, deadline);
        waits = link.call_all(connection, &pipeline, deadline).await?;
    }
    let mut of_calls = of_calls.into_iter();
    let of_one = |request: &&Request| Replies {
        rereads: of_calls.by_ref().take(request.rereads.len()).collect(),
        written: of_calls.next().unwrap_or(Value::Nil),
        waits: waits.clone(),
    };
    Ok(requests.iter().map(of_one).collect())
}

fn with_waits(mut pipeline: Pipeline, required: Required, deadline: Instant) -> Pipeline {
    for wait in required.waits(wait_timeout_ms(deadline)) {
        pipeline.add_command(wait);
    }
    pipeline
}

/// Timeout for WAIT and WAITAOF: never 0, which means no timeout, and short enough for the reply to arrive in time.
fn wait_timeout_ms(deadline: Instant) -> u64 {
    let left = deadline.saturating_duration_since(Instant::now());
    let in_time = left.saturating_sub(WAIT_MARGIN.min(left / 2));
    u64::try_from(in_time.as_millis()).unwrap_or(u64::MAX).max(1)
}
