//! The parts of a reply: texts, counts, lists and fields.

use redis::Value;
use std::borrow::Cow;

/// A reply that no script gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the reply is not one that the script gives: has another program written to the keys, is a command renamed, or does a proxy change replies?"
)]
pub(crate) struct Malformed;

pub(super) type Read<T> = Result<T, Malformed>;

pub(super) fn items(value: &Value) -> Read<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(Malformed),
    }
}

pub(super) fn text(value: &Value) -> Read<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| Malformed),
        Value::SimpleString(text) => Ok(text),
        _ => Err(Malformed),
    }
}

/// A text for people, which another client may have written as it likes: valid UTF-8 without control characters, shortened to
/// `max_len` bytes.
pub(super) fn shown(value: &Value, max_len: usize) -> Read<String> {
    let mut shown = String::new();
    for c in lossy(value)?.chars() {
        let c = if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        if shown.len() + c.len_utf8() > max_len {
            break;
        }
        shown.push(c);
    }
    Ok(shown)
}

/// A text in which other bytes than UTF-8 are replaced.
pub(super) fn lossy(value: &Value) -> Read<Cow<'_, str>> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) => Ok(text.into()),
        _ => Err(Malformed),
    }
}

/// A non-negative count.
pub(super) fn number(value: &Value) -> Read<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| Malformed),
        _ => Err(Malformed),
    }
}

/// A number of permits, arrivals or parties.
pub(super) fn count(value: &Value) -> Read<u32> {
    u32::try_from(number(value)?).map_err(|_| Malformed)
}
