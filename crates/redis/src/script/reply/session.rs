//! Parses the replies to session operations, and the server's clock.

use super::value::{Malformed, Read, fields, items, number, text};
use crate::script::lock_of;
use leasehold_core::{HeartbeatReply, Refused, SessionEntry, SessionId};
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

/// Parses the index of sessions. Skips members that are not sessions.
pub(crate) fn sessions(value: &Value) -> Read<Vec<SessionId>> {
    let members = items(value)?.iter().map(text).collect::<Read<Vec<_>>>()?;
    Ok(members.into_iter().filter_map(|member| member.parse().ok()).collect())
}

/// Parses a text that the server chose, without a check.
pub(crate) fn word(value: &Value) -> Read<String> {
    text(value).map(str::to_owned)
}

/// Parses the server's clock, in milliseconds.
pub(crate) fn now_ms(value: &Value) -> Read<u64> {
    now_us(value).map(|us| us / 1000)
}

/// Parses the server's clock, in microseconds.
pub(crate) fn now_us(value: &Value) -> Read<u64> {
    let [s, us] = items(value)? else { return Err(Malformed) };
    let part = |value| text(value)?.parse::<u64>().map_err(|_| Malformed);
    part(s)?.checked_mul(1_000_000).and_then(|s_us| s_us.checked_add(part(us).ok()?)).ok_or(Malformed)
}

/// Parses the record of a session at `now_ms`; `None` if there is none, or if another version wrote it.
pub(crate) fn session_entry(session: SessionId, now_ms: u64, value: &Value) -> Read<Option<SessionEntry>> {
    let fields = fields(value)?;
    let field = |name: &str| fields.iter().find(|(field, _)| *field == name).map(|(_, text)| *text);
    let until_ms = field("until").and_then(|until| until.parse::<u64>().ok());
    let (Some("1"), Some(until_ms)) = (field("format"), until_ms) else { return Ok(None) };
    let mut held: Vec<_> = fields.iter().filter_map(|(field, _)| lock_of(field)).collect();
    held.sort_unstable();
    Ok(Some(SessionEntry {
        session,
        alive_ms: until_ms.checked_sub(now_ms),
        metadata: field("metadata").unwrap_or_default().to_owned(),
        held,
    }))
}
