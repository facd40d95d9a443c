//! Whether a server can say what is on its disk, which `?durable=1` relies on.
//!
//! With `appendfsync everysec`, Valkey (seen on 8.1 to 9.1) and Redis 7.4 (redis/redis#13793, mended for Redis 8) answer WAITAOF
//! before they have synced: an answer only says that the last sync began less than a second ago. Other versions before Redis 8
//! are taken for such. With `always` a write is synced before any answer, so what WAITAOF says is true there.

use crate::config::version::{self, ServerVersion};
use leasehold_store::FaultKind;
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Value};

/// The first Redis whose WAITAOF waits for `everysec`.
const WAITS_FOR_EVERYSEC: u32 = 8;

const NO_FILE: &str =
    "it has no append-only file, which `durable=1` waits for: set `appendonly yes`, or remove that setting";
const NO_WAITAOF: &str =
    "it has no WAITAOF, which `durable=1` needs: that came with Redis 7.2 and Valkey 7.2";
const NEVER: &str =
    "it never syncs its append-only file (`appendfsync no`), which `durable=1` waits for: set `always`";
const TOO_EARLY: &str = "this version can answer WAITAOF before it has synced, if `appendfsync` is `everysec`: set `always` for \
                         `durable=1`, or use Redis 8";
/// The hold, the session and the first extend are one sync each.
const TOO_SLOW: &str = "in a cluster `durable=1` needs `appendfsync always`: with `everysec` three syncs take longer than a first \
                        lease; set it, and allow `+config|get`";
const UNSEEN: &str = "this version can answer WAITAOF before it has synced, unless `appendfsync` is `always`, and the user may not \
                      see that: allow `+config|get` for `durable=1`, or use Redis 8";

/// Asks a server with this INFO. Fails if holds cannot be durable there.
pub(super) async fn check(
    conn: &mut MultiplexedConnection,
    info: &str,
    in_cluster: bool,
) -> RedisResult<Result<(), FaultKind>> {
    let mut pipeline = Pipeline::with_capacity(2);
    // Of nothing, so that it answers at once.
    pipeline.cmd("WAITAOF").arg(0).arg(0).arg(1);
    pipeline.cmd("CONFIG").arg("GET").arg("appendfsync");
    let replies = conn.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
    let (waited, policy) = (replies.first(), replies.get(1));
    let known = match waited {
        Some(Value::ServerError(error)) => {
            !error.details().unwrap_or_default().starts_with("unknown command")
        }
        _ => true,
    };
    Ok(judge(info, (known, in_cluster), policy.and_then(text))
        .map_err(|what| FaultKind::Unsupported(what.to_owned())))
}

/// Decides by INFO, whether the server knows WAITAOF and is a node of a cluster, and `appendfsync`, if the user may see it.
fn judge(
    info: &str,
    (knows_waitaof, in_cluster): (bool, bool),
    policy: Option<&str>,
) -> Result<(), &'static str> {
    if !knows_waitaof {
        return Err(NO_WAITAOF);
    }
    if version::number(info, "aof_enabled") == Some(0) {
        return Err(NO_FILE);
    }
    let version = ServerVersion::from_info(info);
    let waits = version.is_some_and(|version| version.is_redis_since(WAITS_FOR_EVERYSEC));
    match policy {
        Some("always") => Ok(()),
        Some("no") => Err(NEVER),
        _ if in_cluster => Err(TOO_SLOW),
        _ if waits => Ok(()),
        Some(_) => Err(TOO_EARLY),
        None => Err(UNSEEN),
    }
}

/// The value in the reply to CONFIG GET of one setting.
fn text(reply: &Value) -> Option<&str> {
    let value = match reply {
        Value::Map(pairs) => pairs.first().map(|(_, value)| value),
        Value::Array(items) => items.get(1),
        _ => None,
    }?;
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_trusted_by_version_and_policy() {
        let redis = |version: &str| format!("redis_version:{version}\r\naof_enabled:1\r\n");
        let valkey =
            |version: &str| format!("redis_version:7.2.4\r\nvalkey_version:{version}\r\naof_enabled:1\r\n");
        for (info, policy, expected) in [
            (redis("8.2.3"), Some("everysec"), Ok(())),
            (redis("8.0.0"), None, Ok(())),
            (redis("8.2.3"), Some("no"), Err(NEVER)),
            (redis("7.4.2"), Some("everysec"), Err(TOO_EARLY)),
            (redis("7.4.2"), Some("always"), Ok(())),
            (redis("7.4.2"), None, Err(UNSEEN)),
            (valkey("9.1.2"), Some("everysec"), Err(TOO_EARLY)),
            (valkey("9.1.2"), Some("always"), Ok(())),
            (valkey("9.1.2"), None, Err(UNSEEN)),
            (String::new(), Some("everysec"), Err(TOO_EARLY)),
            ("redis_version:8.2.3\r\naof_enabled:0\r\n".to_owned(), None, Err(NO_FILE)),
        ] {
            assert_eq!(judge(&info, (true, false), policy), expected, "{info} {policy:?}");
        }
        assert_eq!(judge(&redis("7.0.15"), (false, false), Some("always")), Err(NO_WAITAOF));
        assert_eq!(judge(&redis("8.2.3"), (true, true), Some("everysec")), Err(TOO_SLOW));
        assert_eq!(judge(&redis("8.2.3"), (true, true), Some("always")), Ok(()));
    }
}
