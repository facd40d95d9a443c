//! What the server writes: RESP3 values, and the replies of the scripts.

use leasehold_core::model::SessionRecord;
use leasehold_core::{
    Acquired, AuditEntry, Ended, Evicted, Extended, FenceRaised, FencingToken, ForceReleased, HeartbeatReply,
    HistoryEntry, HoldStatus, Holder, Inspection, Kind, LockMode, MultiAcquired, Op, Proclaimed,
    QueuedWaiter, Refused, Released, Reply, Resized, SessionReply,
};

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure(String);

impl Failure {
    /// An error of a code, in capitals, and a text.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A RESP3 value. Only the types that this server uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Status(&'static str),
    Failure(Failure),
    Integer(i64),
    Bulk(String),
    Verbatim(String),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl Value {
    pub(super) fn bulk(text: impl Into<String>) -> Self {
        Self::Bulk(text.into())
    }

    pub(super) fn number(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Appends the encoded value.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::Status(text) => line(to, '+', text),
            Self::Failure(Failure(text)) => line(to, '-', text),
            Self::Integer(number) => line(to, ':', &number.to_string()),
            Self::Bulk(text) => {
                line(to, '$', &text.len().to_string());
                to.extend_from_slice(text.as_bytes());
                to.extend_from_slice(b"\r\n");
            }
            Self::Verbatim(text) => {
                line(to, '=', &(text.len() + 4).to_string());
                line(to, 't', &format!("xt:{text}"));
            }
            Self::Array(values) => many(to, '*', values),
            Self::Push(values) => many(to, '>', values),
            Self::Map(pairs) => {
                line(to, '%', &pairs.len().to_string());
                for (key, value) in pairs {
                    key.write(to);
                    value.write(to);
                }
            }
        }
    }
}

impl From<Result<Value, Failure>> for Value {
    fn from(result: Result<Value, Failure>) -> Self {
        result.unwrap_or_else(Self::Failure)
    }
}

fn line(to: &mut Vec<u8>, kind: char, text: &str) {
    to.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
}

fn many(to: &mut Vec<u8>, kind: char, values: &[Value]) {
    line(to, kind, &values.len().to_string());
    for value in values {
        value.write(to);
    }
}

/// The bytes of a published message.
pub(super) fn message(channel: &str, message: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Value::Push([("message"), channel, message].map(Value::bulk).into()).write(&mut bytes);
    bytes
}

/// The server's clock as a TIME reply.
pub(super) fn time(now_us: u64) -> Value {
    let parts = [now_us / 1_000_000, now_us % 1_000_000];
    Value::Array(parts.map(|part| Value::bulk(part.to_string())).into())
}

/// The reply to a session call: a heartbeat's result, the number ended, or the members of the index.
pub(super) fn of_sessions(reply: &SessionReply) -> Value {
    match reply {
        SessionReply::Heartbeat(heartbeat_reply) => {
            Value::Integer(i64::from(*heartbeat_reply == HeartbeatReply::Alive))
        }
        SessionReply::End => Value::Integer(1),
        SessionReply::List(list) => {
            let sessions = list.entries.iter().map(|entry| Value::bulk(entry.session.to_string()));
            Value::Array([Value::Integer(0)].into_iter().chain(sessions).collect())
        }
        _ => Value::Failure(Failure::new("ERR this server cannot encode the reply of the model")),
    }
}

/// The record of a session, as the script reads it.
pub(super) fn of_session(record: Option<&SessionRecord>) -> Value {
    let Some(record) = record else { return Value::bulk("") };
    let held = record.held.iter().map(|lock| Value::Bulk(format!("l:{}:{}", lock.kind.as_str(), lock.name)));
    let rest = [
        Value::bulk(record.alive_until_ms.to_string()),
        Value::bulk(record.metadata.clone()),
        Value::bulk(record.activity.clone()),
        Value::Integer(0),
    ];
    Value::Array(rest.into_iter().chain(held).collect())
}

/// The reply of the script of an operation.
pub(super) fn of_script(kind: Kind, op: &Op, reply: &Reply) -> Value {
    match reply {
        Reply::Acquire(acquired) => of_acquire(kind, acquired),
        Reply::Extend(extended) => of_extend(extended),
        Reply::Release(Released { status, remaining_holds, holder, next_waiter: _, next }) => {
            let next = next.as_ref().map(|next| match next {
                Ok(acquired) => of_acquire(kind, acquired),
                Err(refused) => of_refusal(refused),
            });
            let values = [Value::bulk(hold_status(*status)), Value::Array(holder_fields(holder.as_ref()))];
            let remaining_holds = (kind == Kind::Reentrant).then(|| Value::number(*remaining_holds));
            Value::Array(values.into_iter().chain(remaining_holds).chain(next).collect())
        }
        Reply::Proclaim(Proclaimed::Done) => Value::Array(vec![Value::bulk("proclaimed")]),
        Reply::Proclaim(Proclaimed::NotHeld) => Value::Array(vec![Value::bulk("not_held")]),
        Reply::Proclaim(Proclaimed::Changed { value }) => {
            Value::Array(vec![Value::bulk("changed"), Value::bulk(value.as_str())])
        }
        Reply::RaiseFence(raised) => Value::Integer(i64::from(*raised == FenceRaised::Raised)),
        Reply::Resize(Resized::Done) => Value::Array(vec![Value::bulk("resized")]),
        Reply::Resize(Resized::Changed { limit }) => {
            Value::Array(vec![Value::bulk("changed"), limit_of(*limit)])
        }
        Reply::Inspect(seen) if kind.is_shared() => {
            let Inspection { waiters, hold_status: status, shared_holders, limit, agreed, .. } = seen;
            let shared_holders =
                shared_holders.iter().map(|holder| Value::Array(holder_fields(Some(holder)))).collect();
            let values = [
                Value::number(*waiters),
                Value::bulk(status.map_or("", hold_status)),
                limit_of(*limit),
                limit_of(*agreed),
            ];
            let in_full = matches!(op, Op::Inspect(inspect) if inspect.details);
            let full = in_full.then(|| [of_audit(seen), of_history(seen), of_queue(seen)]);
            let full = full.into_iter().flatten();
            Value::Array(values.into_iter().chain([Value::Array(shared_holders)]).chain(full).collect())
        }
        Reply::Inspect(seen) => of_inspection(seen, matches!(op, Op::Inspect(inspect) if inspect.details)),
        Reply::Evict(Evicted::Alive) => Value::Array(vec![Value::bulk("alive")]),
        Reply::Evict(Evicted::Removed { fence: hold, was_queued }) => {
            let hold = hold.map_or(Value::Integer(-1), |fence| Value::number(fence.as_u64()));
            Value::Array(vec![Value::bulk("gone"), hold, Value::Integer((*was_queued).into())])
        }
        Reply::ForceRelease(ForceReleased::Released) => Value::Array(vec![Value::bulk("released")]),
        Reply::ForceRelease(ForceReleased::Changed { holder }) => {
            Value::Array(vec![Value::bulk("changed"), Value::Array(holder_fields(holder.as_ref()))])
        }
        Reply::Refused(refused) => of_refusal(refused),
        _ => Value::Failure(Failure::new("ERR this server cannot encode the reply of the model")),
    }
}

/// The reply for each of several locks.
pub(super) fn of_multi_replies(replies: &[MultiAcquired]) -> Value {
    let one = |reply: &MultiAcquired| match reply {
        MultiAcquired::Acquired(acquired) | MultiAcquired::Blocked(Ok(acquired)) => {
            of_acquire(Kind::Mutex, acquired)
        }
        MultiAcquired::Blocked(Err(refused)) => of_refusal(refused),
        MultiAcquired::Available => Value::bulk("open"),
        MultiAcquired::Held => Value::bulk("held"),
    };
    Value::Array(replies.iter().map(one).collect())
}

fn of_inspection(seen: &Inspection, in_full: bool) -> Value {
    let Inspection { holder, waiters: waiting, hold_status: found, foreign_fingerprint, .. } = seen;
    let holder = Value::Array(holder_fields(holder.as_ref()));
    let mut values = vec![Value::number(*waiting), Value::bulk(found.map_or("", hold_status)), holder];
    if in_full {
        let fingerprint = foreign_fingerprint.map_or_else(String::new, |fingerprint| fingerprint.to_string());
        values.extend([Value::bulk(fingerprint), of_audit(seen), of_history(seen), of_queue(seen)]);
    }
    Value::Array(values)
}

/// The listed waiters.
fn of_queue(seen: &Inspection) -> Value {
    let waiter = |waiter: &QueuedWaiter| {
        let label = waiter.label.as_ref().map_or("", |label| label.as_str());
        let mode = if waiter.mode == LockMode::Exclusive { String::new() } else { waiter.mode.encode() };
        Value::Array(vec![Value::bulk(waiter.session.to_string()), Value::bulk(label), Value::bulk(mode)])
    };
    Value::Array(seen.queue.iter().map(waiter).collect())
}

/// An audit as text.
fn of_audit(seen: &Inspection) -> Value {
    Value::bulk(seen.audit.iter().map(of_entry).collect::<Vec<_>>().join("\n"))
}

/// A history as text.
fn of_history(seen: &Inspection) -> Value {
    let lines = seen.history.iter().map(|HistoryEntry { from_ms, to_ms, fence, label }| {
        let fence = fence.map_or_else(String::new, |fence| fence.to_string());
        format!("{from_ms}\t{to_ms}\t{fence}\t{label}")
    });
    Value::bulk(lines.collect::<Vec<_>>().join("\n"))
}

/// A limit, or -1.
fn limit_of(limit: Option<u32>) -> Value {
    limit.map_or(Value::Integer(-1), |limit| Value::Integer(limit.into()))
}

/// An audit entry as text.
fn of_entry(entry: &AuditEntry) -> String {
    let fence = entry.fence.map_or_else(String::new, |fence| fence.to_string());
    let (is_known, owner) = entry.holder.as_ref().map_or((0, ""), |owner| (1, owner.as_str()));
    format!("{}\t{}\t{fence}\t{is_known}\t{owner}\t{}", entry.at_ms, ended(entry.ended), entry.actor)
}

fn of_acquire(kind: Kind, acquired: &Acquired) -> Value {
    match acquired {
        Acquired::Granted { fence, remaining_ms, others_wait, owner_holds: entered } => {
            let values = [
                Value::bulk("granted"),
                Value::number(fence.as_u64()),
                Value::number(*remaining_ms),
                Value::Integer((*others_wait).into()),
            ];
            let entered = entered.map(|entered| [entered.count, entered.lease_ms].map(Value::number));
            Value::Array(values.into_iter().chain(entered.into_iter().flatten()).collect())
        }
        Acquired::Taken { holder, position, predecessor, other_holders } => {
            let position = position.map_or(Value::Integer(-1), Value::number);
            let session = predecessor.map_or_else(String::new, |predecessor| predecessor.session.to_string());
            let alive = predecessor
                .and_then(|predecessor| predecessor.alive_ms)
                .map_or(Value::Integer(-1), Value::number);
            let values = [Value::bulk("taken"), position, Value::bulk(session), alive];
            let others: Vec<_> = other_holders.iter().map(ToString::to_string).collect();
            let others = kind.is_shared().then(|| Value::bulk(others.join(" ")));
            Value::Array(values.into_iter().chain(others).chain(holder_fields(holder.as_ref())).collect())
        }
        Acquired::AlreadyEnded(how) => Value::Array(vec![Value::bulk("ended"), Value::bulk(ended(*how))]),
    }
}

fn of_extend(extended: &Extended) -> Value {
    match extended {
        Extended::NotHeld => Value::Integer(0),
        // One server counts no votes.
        Extended::Extended | Extended::Voted(_) => Value::Integer(1),
        Extended::Reserved { block, others_wait } => Value::Array(vec![
            Value::number(block.first().map_or(0, FencingToken::as_u64)),
            Value::Integer(block.remaining().into()),
            Value::Integer((*others_wait).into()),
        ]),
    }
}

fn of_refusal(refused: &Refused) -> Value {
    let numbers = |word, first: u32, second: u32| {
        Value::Array(vec![Value::bulk(word), Value::Integer(first.into()), Value::Integer(second.into())])
    };
    let (word, found) = match refused {
        Refused::OutOfRange { count, limit } => return numbers("range", *count, *limit),
        Refused::Disagreement { requested, known, limit } => {
            let numbers = [requested, known, limit].map(|number| Value::Integer((*number).into()));
            return Value::Array([Value::bulk("differ")].into_iter().chain(numbers).collect());
        }
        Refused::WouldDeadlock => return Value::Array(vec![Value::bulk("deadlock")]),
        Refused::NothingToUpgrade => return Value::Array(vec![Value::bulk("upgradable")]),
        Refused::WrongKind { found } => ("kind", found.as_str()),
        Refused::Format { found } => ("format", found.as_str()),
        _ => ("kind", "unknown"),
    };
    Value::Array([word, found].map(Value::bulk).into())
}

/// The holder, as other clients may see it.
fn holder_fields(holder: Option<&Holder>) -> Vec<Value> {
    let Some(holder) = holder else { return Vec::new() };
    let mut fields = vec![holder.remaining_ms.map_or(Value::Integer(-1), Value::number)];
    if let (Some(label), Some(since_ms)) = (&holder.label, holder.since_ms) {
        let fence = holder.fence.map_or(0, FencingToken::as_u64);
        let session = match holder.session {
            _ if holder.in_cooldown => "cooldown".to_owned(),
            session => session.map_or_else(String::new, |session| session.to_string()),
        };
        fields.extend([
            Value::number(fence),
            Value::number(since_ms),
            Value::bulk(label.as_str()),
            Value::bulk(session),
        ]);
    }
    if holder.mode != LockMode::Exclusive {
        let owner = holder.owner.as_ref().map_or("", |owner| owner.as_str());
        fields.extend([owner, &holder.mode.encode()].map(Value::bulk));
    } else if let Some(owner) = &holder.owner {
        fields.extend([Value::bulk(owner.as_str()), Value::number(holder.count)]);
    }
    fields
}

fn hold_status(status: HoldStatus) -> &'static str {
    match status {
        HoldStatus::Held => "held",
        HoldStatus::Queued => "queued",
        HoldStatus::Ended(how) => ended(how),
        HoldStatus::Vanished => "vanished",
        HoldStatus::Superseded => "superseded",
        HoldStatus::Forgotten => "forgotten",
    }
}

fn ended(how: Ended) -> &'static str {
    match how {
        Ended::Released => "released",
        Ended::ForceReleased => "force_released",
        _ => "evicted",
    }
}
