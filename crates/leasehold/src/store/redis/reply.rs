//! Replies of the scripts, read back into what the core calls them.

use super::script::lock_of;
use leasehold_core::{
    Acquired, Ahead, AuditEntry, Beaten, Ended, Evicted, Extended, Fate, FencingToken, Fingerprint, Freed,
    Holder, Inspection, Label, Op, Refused, Released, Reply, SessionEntry, SessionId,
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
        Op::Evict(_) => evicted(value).map(Reply::Evict),
        Op::Free(_) => freed(value).map(Reply::Free),
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
        [word, position, ahead, alive, who @ ..] if text(word) == Ok("taken") => {
            // No place, and a life that nobody asked about, are -1, which is no count.
            let ahead = session(ahead)?.map(|session| Ahead { session, alive_ms: number(alive).ok() });
            Ok(Acquired::Taken { holder: holder(who)?, position: number(position).ok(), ahead })
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
    let (waiting, found, who, full) = match items(value)? {
        [waiting, found, who] => (waiting, found, who, None),
        [waiting, found, who, stranger, audit] => (waiting, found, who, Some((stranger, audit))),
        _ => return Err(Malformed),
    };
    let fate = match text(found)? {
        "" => None,
        word => Some(fate(word)?),
    };
    let (stranger, audit) = match full {
        None => (None, Vec::new()),
        Some((stranger, audit)) => (fingerprint(stranger)?, entries(text(audit)?)),
    };
    Ok(Inspection { holder: holder(items(who)?)?, waiting: number(waiting)?, fate, stranger, audit })
}

fn fingerprint(value: &Value) -> Read<Option<Fingerprint>> {
    match text(value)? {
        "" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| Malformed),
    }
}

/// The audit. A line that is none of ours is passed over: whoever looks at a lock wants to know of the others.
pub(super) fn entries(audit: &str) -> Vec<AuditEntry> {
    audit.split('\n').filter_map(entry).collect()
}

fn entry(line: &str) -> Option<AuditEntry> {
    let fields: Vec<_> = line.split('\t').collect();
    let [at_ms, how, fence, known, whose, by] = fields[..] else { return None };
    let fence = (!fence.is_empty()).then(|| fence.parse()).transpose().ok()?;
    let whose = (known == "1").then(|| Label::new(whose)).transpose().ok()?;
    Some(AuditEntry {
        at_ms: at_ms.parse().ok()?,
        how: ended(how).ok()?,
        fence,
        whose,
        by: Label::new(by).ok()?,
    })
}

fn evicted(value: &Value) -> Read<Evicted> {
    match items(value)? {
        [word] if text(word) == Ok("alive") => Ok(Evicted::Alive),
        [word, fence, place] if text(word) == Ok("gone") => Ok(Evicted::Gone {
            // No hold is -1, which is no count.
            hold: number(fence).ok().map(FencingToken::new),
            place: number(place)? == 1,
        }),
        _ => Err(Malformed),
    }
}

fn freed(value: &Value) -> Read<Freed> {
    match items(value)? {
        [word] if text(word) == Ok("freed") => Ok(Freed::Freed),
        [word, who] if text(word) == Ok("changed") => Ok(Freed::Changed { holder: holder(items(who)?)? }),
        _ => Err(Malformed),
    }
}

/// Reads the reply to a beat.
pub(super) fn beaten(value: &Value) -> Read<Result<Beaten, Refused>> {
    if let Some(refused) = refused(value) {
        return refused.map(Err);
    }
    match number(value)? {
        0 => Ok(Ok(Beaten::Lapsed)),
        1 => Ok(Ok(Beaten::Alive)),
        _ => Err(Malformed),
    }
}

/// Reads the index of all sessions. What is no session there is passed over.
pub(super) fn sessions(value: &Value) -> Read<Vec<SessionId>> {
    let members = items(value)?.iter().map(text).collect::<Read<Vec<_>>>()?;
    Ok(members.into_iter().filter_map(|member| member.parse().ok()).collect())
}

/// Reads the server's clock, in milliseconds.
pub(super) fn now_ms(value: &Value) -> Read<u64> {
    let [s, us] = items(value)? else { return Err(Malformed) };
    let part = |value| text(value)?.parse::<u64>().map_err(|_| Malformed);
    Ok(part(s)? * 1000 + part(us)? / 1000)
}

/// Reads the record of a session at `now_ms`; nothing where there is none, or one that another version wrote.
pub(super) fn session_entry(session: SessionId, now_ms: u64, value: &Value) -> Read<Option<SessionEntry>> {
    let fields = fields(value)?;
    let field = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, text)| *text);
    let until_ms = field("until").and_then(|until| until.parse::<u64>().ok());
    let (Some("1"), Some(until_ms)) = (field("format"), until_ms) else { return Ok(None) };
    let mut held: Vec<_> = fields.iter().filter_map(|(field, _)| lock_of(field)).collect();
    held.sort_unstable();
    Ok(Some(SessionEntry {
        session,
        alive_ms: until_ms.checked_sub(now_ms),
        about: field("about").unwrap_or_default().to_owned(),
        held,
    }))
}

/// The fields of a hash, as RESP3 or RESP2 has them.
fn fields(value: &Value) -> Read<Vec<(&str, &str)>> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| Ok((text(field)?, text(value)?))).collect(),
        Value::Array(items) => {
            let pairs = items.chunks_exact(2).map(|pair| Ok((text(&pair[0])?, text(&pair[1])?)));
            pairs.collect()
        }
        _ => Err(Malformed),
    }
}

/// A session, or nothing where the text is empty.
fn session(value: &Value) -> Read<Option<SessionId>> {
    match text(value)? {
        "" => Ok(None),
        session => session.parse().map(Some).map_err(|_| Malformed),
    }
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
        [remaining, fence, since, label, lives_with] => Ok(Some(Holder {
            label: Some(Label::new(text(label)?).map_err(|_| Malformed)?),
            fence: Some(FencingToken::new(number(fence)?)),
            since_ms: Some(number(since)?),
            session: session(lives_with)?,
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
        "freed" => Ok(Ended::Freed),
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
