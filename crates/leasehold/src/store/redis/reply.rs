//! Replies of the scripts, read back into what the core calls them.

use leasehold_core::{
    Acquired, Ended, Extended, Fate, FencingToken, Holder, Inspection, Label, Op, Refused, Released, Reply,
};
use redis::Value;

/// A reply that none of our scripts gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the reply is none that the script gives: is the command renamed, or something between client and server?"
)]
pub(super) struct Malformed;

type Read<T> = Result<T, Malformed>;

/// Reads the reply to an operation.
pub(super) fn read(op: &Op, value: &Value) -> Read<Reply> {
    if let Some(refused) = refused(value) {
        return Ok(Reply::Refused(refused?));
    }
    match op {
        Op::Acquire(_) => acquired(value).map(Reply::Acquire),
        Op::Extend(_) => extended(value).map(Reply::Extend),
        Op::Release(_) => released(value).map(Reply::Release),
        Op::Inspect(_) => inspection(value).map(Reply::Inspect),
        _ => Err(Malformed),
    }
}

/// The reply that an operation has no meaning, if it is one.
fn refused(value: &Value) -> Option<Read<Refused>> {
    let Value::Array(items) = value else { return None };
    let [word, found] = items.as_slice() else { return None };
    match text(word) {
        Ok("kind") => Some(text(found).map(|found| Refused::WrongKind { found: found.to_owned() })),
        Ok("format") => Some(text(found).map(|found| Refused::Format { found: found.to_owned() })),
        _ => None,
    }
}

fn acquired(value: &Value) -> Read<Acquired> {
    match items(value)? {
        [word, fence, remaining, others] if text(word) == Ok("granted") => Ok(Acquired::Granted {
            fence: FencingToken::new(number(fence)?),
            remaining_ms: number(remaining)?,
            others_wait: number(others)? == 1,
        }),
        [word, position, who @ ..] if text(word) == Ok("taken") => {
            let position = number(position).ok();
            Ok(Acquired::Taken { holder: holder(who)?, position, ahead: None })
        }
        [word, how] if text(word) == Ok("spent") => text(how).and_then(ended).map(Acquired::Spent),
        _ => Err(Malformed),
    }
}

fn extended(value: &Value) -> Read<Extended> {
    match number(value)? {
        0 => Ok(Extended::NotHeld),
        1 => Ok(Extended::Extended),
        _ => Err(Malformed),
    }
}

fn released(value: &Value) -> Read<Released> {
    let (found, who, next) = match items(value)? {
        [found, who] => (found, who, None),
        [found, who, next] => (found, who, Some(next)),
        _ => return Err(Malformed),
    };
    let next = next.map(|next| match refused(next) {
        Some(refused) => refused.map(Err),
        None => acquired(next).map(Ok),
    });
    Ok(Released { found: text(found).and_then(fate)?, holder: holder(items(who)?)?, next: next.transpose()? })
}

fn inspection(value: &Value) -> Read<Inspection> {
    let [waiting, found, who] = items(value)? else { return Err(Malformed) };
    let fate = match text(found)? {
        "" => None,
        word => Some(fate(word)?),
    };
    Ok(Inspection {
        holder: holder(items(who)?)?,
        waiting: number(waiting)?,
        fate,
        stranger: None,
        audit: Vec::new(),
    })
}

fn holder(who: &[Value]) -> Read<Option<Holder>> {
    let stranger = |remaining| Holder {
        label: None,
        // A key without an expiry is -1, which is no count.
        remaining_ms: number(remaining).ok(),
        fence: None,
        since_ms: None,
        session: None,
    };
    match who {
        [] => Ok(None),
        [remaining] => Ok(Some(stranger(remaining))),
        [remaining, fence, since, label] => Ok(Some(Holder {
            label: Some(Label::new(text(label)?).map_err(|_| Malformed)?),
            fence: Some(FencingToken::new(number(fence)?)),
            since_ms: Some(number(since)?),
            ..stranger(remaining)
        })),
        _ => Err(Malformed),
    }
}

fn fate(word: &str) -> Read<Fate> {
    match word {
        "held" => Ok(Fate::Held),
        "queued" => Ok(Fate::Queued),
        "vanished" => Ok(Fate::Vanished),
        "superseded" => Ok(Fate::Superseded),
        "forgotten" => Ok(Fate::Forgotten),
        how => ended(how).map(Fate::Ended),
    }
}

fn ended(how: &str) -> Read<Ended> {
    match how {
        "released" => Ok(Ended::Released),
        "evicted" => Ok(Ended::Evicted),
        _ => Err(Malformed),
    }
}

fn items(value: &Value) -> Read<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Malformed),
    }
}

fn text(value: &Value) -> Read<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| Malformed),
        Value::SimpleString(text) => Ok(text),
        _ => Err(Malformed),
    }
}

/// A count, which is not negative.
fn number(value: &Value) -> Read<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| Malformed),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Inspect;

    #[test]
    fn what_no_script_says_is_no_reply() {
        let op = Op::Inspect(Inspect { claim: None, in_full: false });
        for value in
            [Value::Nil, Value::Okay, Value::Int(7), Value::Array(vec![]), Value::Array(vec![Value::Nil; 3])]
        {
            assert_eq!(read(&op, &value), Err(Malformed), "{value:?}");
        }
    }
}
