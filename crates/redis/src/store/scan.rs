//! Scanning the keys of a server for locks of other libraries.
//!
//! 1. Only an operator asks for it. It goes through all keys of every primary, by SCAN, whose steps are short, with a pause after
//!    each, so that the server does other work in between.
//! 2. A lock of another library is a string, or with Redisson a hash: the server leaves out keys of other types.
//! 3. What the operator types is no pattern for the server: each character stands for itself.

use super::{Backend, RedisStore, deadline as call_deadline};
use leasehold_core::{Kind, Lock, LockName};
use leasehold_store::{Fault, FaultKind, NameScan, Outcome, Phase};
use redis::{Pipeline, Value};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How many keys a step looks at.
const COUNT: usize = 512;
/// The pause after each step.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// How many names are found at most.
const MAX_NAMES: usize = 100_000;

impl RedisStore {
    pub(super) async fn scan(&self, kind: Kind, start: &str, within: Duration) -> Result<NameScan, Fault> {
        let Some(key_type) = key_type(kind) else { return Ok(NameScan::new(Vec::new(), true)) };
        let slots = match &*self.backend {
            Backend::Link(_) | Backend::Borrowed(_) => vec![0],
            Backend::Cluster(cluster) => {
                let map = cluster.map(call_deadline(STEP_TIMEOUT)).await?;
                map.primaries().iter().filter_map(|primary| map.slots_of(primary).first().copied()).collect()
            }
        };
        let end = Instant::now() + within;
        let pattern = literal(self.keys.prefix()) + &literal(start) + "*";
        let mut names = BTreeSet::new();
        for slot in slots {
            let mut cursor = "0".to_owned();
            loop {
                if Instant::now() >= end || names.len() >= MAX_NAMES {
                    return Ok(NameScan::new(names.into_iter().collect(), false));
                }
                let (next, keys) = self.scan_step(slot, &cursor, &pattern, key_type).await?;
                names.extend(keys.iter().filter_map(|key| self.name_of(key)));
                if next == "0" {
                    break;
                }
                cursor = next;
                sleep(PAUSE).await;
            }
        }
        Ok(NameScan::new(names.into_iter().collect(), true))
    }

    async fn scan_step(
        &self,
        slot: u16,
        cursor: &str,
        pattern: &str,
        key_type: &str,
    ) -> Result<(String, Vec<Value>), Fault> {
        let malformed = || {
            let text = "the reply to SCAN does not match the request".to_owned();
            self.fault(FaultKind::Failed(text), Phase::Reply)
        };
        let mut request = Pipeline::with_capacity(1);
        let command = request.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(COUNT);
        command.arg("TYPE").arg(key_type);
        let sent = self.send_commands(slot, &request, |_, _| false, call_deadline(STEP_TIMEOUT)).await;
        let replies = match sent {
            Ok(replies) => replies,
            Err(Outcome::Failed(_, fault)) => return Err(fault),
            Err(Outcome::Done(_)) => return Err(malformed()),
        };
        match replies.into_iter().next() {
            Some(Value::Array(parts)) => match <[Value; 2]>::try_from(parts) {
                Ok([next, Value::Array(keys)]) => {
                    let next = text(&next).map(str::to_owned).ok_or_else(malformed)?;
                    Ok((next, keys))
                }
                _ => Err(malformed()),
            },
            _ => Err(malformed()),
        }
    }

    /// The name of a lock with this key; `None` if it can have none, as a key of this library.
    fn name_of(&self, key: &Value) -> Option<LockName> {
        let name = LockName::new(text(key)?.strip_prefix(self.keys.prefix())?).ok()?;
        self.keys.lock(&Lock::mutex(name.clone())).ok().map(|_| name)
    }
}

/// Of which type the keys of other libraries are whose locks are of this kind (2).
const fn key_type(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Mutex => Some("string"),
        Kind::Reentrant => Some("hash"),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A pattern that matches this text alone (3).
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn what_is_typed_is_no_pattern() {
        assert_eq!(literal("orders/42"), "orders/42");
        assert_eq!(literal("a*b?[c]\\"), "a\\*b\\?\\[c\\]\\\\");
    }
}
