//! Parses the replies to session operations, and the server's clock.

use super::value::{Malformed, Read, items, number, text};
use crate::script::lock_of;
use leasehold_core::{HeartbeatReply, Refused, SessionEntry, SessionId, SessionList, Skipped};
use redis::Value;

/// Parses the reply to a heartbeat.
pub(crate) fn heartbeat(value: &Value) -> Read<Result<HeartbeatReply, Refused>> {
    if let Some(refused) = super::refused(value) {
        return refused.map(Err);
    }
    match number(value)? {
        0 => Ok(Ok(HeartbeatReply::Lapsed)),
        1 => Ok(Ok(HeartbeatReply::Alive)),
        _ => Err(Malformed),
    }
}

/// Parses the list of the sessions in an index. What is no session is counted.
pub(crate) fn sessions(value: &Value) -> Read<(Vec<SessionId>, Skipped)> {
    let mut skipped = Skipped::default();
    let (mut others, members) = match items(value)? {
        [word, found] if text(word) == Ok("kind") => {
            let found = text(found)?;
            skipped.add(|| format!("the index of the sessions is a {found}, and no sorted set"));
            return Ok((Vec::new(), skipped));
        }
        [others, members @ ..] => (number(others)?, members),
        [] => return Err(Malformed),
    };
    let known: Vec<_> = members.iter().filter_map(|member| text(member).ok()?.parse().ok()).collect();
    others += u64::try_from(members.len() - known.len()).unwrap_or(0);
    if others > 0 {
        skipped.add(|| "the index of the sessions has a member that is no session".to_owned());
        skipped.count = others;
    }
    Ok((known, skipped))
}

/// Parses a text that the server chose, without a check.
pub(crate) fn word(value: &Value) -> Read<String> {
    text(value).map(str::to_owned)
}

/// Parses the server's clock, in microseconds.
pub(crate) fn now_us(value: &Value) -> Read<u64> {
    let [s, us] = items(value)? else { return Err(Malformed) };
    let part = |value| text(value)?.parse::<u64>().map_err(|_| Malformed);
    part(s)?.checked_mul(1_000_000).and_then(|s_us| s_us.checked_add(part(us).ok()?)).ok_or(Malformed)
}

/// Parses the records of the first of these sessions, which are in `list` afterwards. Returns how many there are.
pub(crate) fn session_records(sessions: &[SessionId], value: &Value, list: &mut SessionList) -> Read<usize> {
    let [now_ms, records @ ..] = items(value)? else { return Err(Malformed) };
    let now_ms = number(now_ms)?;
    if records.is_empty() || records.len() > sessions.len() {
        return Err(Malformed);
    }
    for (session, record) in sessions.iter().zip(records) {
        match text(record) {
            Ok("") => {}
            Ok(why) => list.skipped.add(|| format!("session {session}: {}", unreadable(why))),
            Err(Malformed) => {
                list.entries.extend(session_entry(*session, now_ms, record, &mut list.skipped)?);
            }
        }
    }
    Ok(records.len())
}

/// What is wrong with a record, by the word of the script.
fn unreadable(why: &str) -> &'static str {
    match why {
        "type" => "its record is not a hash",
        "format" => "its record has another format",
        "size" => "its record is too large",
        _ => "its record cannot be read",
    }
}

/// Parses one record; `None` if it does not even say until when the session is alive.
fn session_entry(
    session: SessionId,
    now_ms: u64,
    record: &Value,
    skipped: &mut Skipped,
) -> Read<Option<SessionEntry>> {
    let [until, metadata, activity, others, locks @ ..] = items(record)? else { return Err(Malformed) };
    let until_ms = text(until).ok().and_then(|until| until.parse::<u64>().ok());
    let Some(until_ms) = until_ms else {
        skipped.add(|| format!("session {session}: its record has no end"));
        return Ok(None);
    };
    let metadata = text(metadata).unwrap_or_else(|Malformed| {
        skipped.add(|| format!("session {session}: its description is not UTF-8 text"));
        ""
    });
    let activity = text(activity).unwrap_or_else(|Malformed| {
        skipped.add(|| format!("session {session}: its activity is not UTF-8 text"));
        ""
    });
    let mut held: Vec<_> = locks.iter().filter_map(|field| lock_of(text(field).ok()?)).collect();
    let unknown = number(others)? + u64::try_from(locks.len() - held.len()).unwrap_or(0);
    if unknown > 0 {
        skipped.add(|| format!("session {session}: its record has fields that are none, or too large"));
    }
    held.sort_unstable();
    Ok(Some(SessionEntry {
        session,
        alive_ms: until_ms.checked_sub(now_ms),
        metadata: metadata.to_owned(),
        held,
        activity: activity.to_owned(),
    }))
}
