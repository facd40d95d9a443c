//! What the server writes: values of RESP3, and the replies of the scripts.

use leasehold_core::{Acquired, Ended, Extended, Fate, Holder, Inspection, Refused, Released, Reply};

/// An error reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure(String);

impl Failure {
    /// Its code, in capitals, and its text.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A value of RESP3, as far as this server says them.
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

    fn number(number: u64) -> Self {
        Self::Integer(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Appends the value to what is written.
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

/// The bytes of a message to those who listen to a channel.
pub(super) fn message(channel: &str, message: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Value::Push([("message"), channel, message].map(Value::bulk).into()).write(&mut bytes);
    bytes
}

/// The reply as its script gives it.
pub(super) fn of_script(reply: &Reply) -> Value {
    match reply {
        Reply::Acquire(acquired) => of_acquire(acquired),
        Reply::Extend(extended) => Value::Integer(i64::from(*extended == Extended::Extended)),
        Reply::Release(Released { found, holder, next }) => {
            let next = next.as_ref().map(|next| match next {
                Ok(acquired) => of_acquire(acquired),
                Err(refused) => of_refusal(refused),
            });
            let said = [Value::bulk(fate(*found)), Value::Array(who(holder.as_ref()))];
            Value::Array(said.into_iter().chain(next).collect())
        }
        Reply::Inspect(Inspection { holder, waiting, fate: found, .. }) => {
            let found = found.map_or("", fate);
            let who = Value::Array(who(holder.as_ref()));
            Value::Array(vec![Value::number(*waiting), Value::bulk(found), who])
        }
        Reply::Refused(refused) => of_refusal(refused),
        _ => Value::Failure(Failure::new("ERR the model has an answer that this server cannot write")),
    }
}

fn of_acquire(acquired: &Acquired) -> Value {
    match acquired {
        Acquired::Granted { fence, remaining_ms, others_wait } => Value::Array(vec![
            Value::bulk("granted"),
            Value::number(fence.as_u64()),
            Value::number(*remaining_ms),
            Value::Integer((*others_wait).into()),
        ]),
        Acquired::Taken { holder, position, .. } => {
            let position = position.map_or(Value::Integer(-1), Value::number);
            let said = [Value::bulk("taken"), position];
            Value::Array(said.into_iter().chain(who(holder.as_ref())).collect())
        }
        Acquired::Spent(how) => Value::Array(vec![Value::bulk("spent"), Value::bulk(ended(*how))]),
    }
}

fn of_refusal(refused: &Refused) -> Value {
    let (word, found) = match refused {
        Refused::WrongKind { found } => ("kind", found.as_str()),
        Refused::Format { found } => ("format", found.as_str()),
        _ => ("kind", "unknown"),
    };
    Value::Array([word, found].map(Value::bulk).into())
}

/// What a stranger may know of the holder.
fn who(holder: Option<&Holder>) -> Vec<Value> {
    let Some(holder) = holder else { return Vec::new() };
    let mut who = vec![holder.remaining_ms.map_or(Value::Integer(-1), Value::number)];
    if let (Some(label), Some(since_ms)) = (&holder.label, holder.since_ms) {
        let fence = holder.fence.map_or(0, leasehold_core::FencingToken::as_u64);
        who.extend([Value::number(fence), Value::number(since_ms), Value::bulk(label.as_str())]);
    }
    who
}

fn fate(fate: Fate) -> &'static str {
    match fate {
        Fate::Held => "held",
        Fate::Queued => "queued",
        Fate::Ended(how) => ended(how),
        Fate::Vanished => "vanished",
        Fate::Superseded => "superseded",
        Fate::Forgotten => "forgotten",
    }
}

fn ended(how: Ended) -> &'static str {
    match how {
        Ended::Released => "released",
        _ => "evicted",
    }
}
