//! The parts of a reply: texts, counts, lists and fields.

use redis::Value;

/// A reply that no script gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the reply is not one that the script gives: is the command renamed, or is there a proxy that changes replies?"
)]
pub(crate) struct Malformed;

pub(super) type Read<T> = Result<T, Malformed>;

/// The fields of a hash, in RESP3 or RESP2 form.
pub(super) fn fields(value: &Value) -> Read<Vec<(&str, &str)>> {
    match value {
        Value::Map(pairs) => pairs.iter().map(|(field, value)| Ok((text(field)?, text(value)?))).collect(),
        Value::Array(items) => {
            let pairs = items.chunks_exact(2).map(|pair| Ok((text(&pair[0])?, text(&pair[1])?)));
            pairs.collect()
        }
        _ => Err(Malformed),
    }
}

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
