//! The servers of a store, for what is not about locks: their keys, their clocks, and what they cost.

use crate::output::failure::Failure;
use anyhow::anyhow;
use leasehold::redis::{Pipeline, Value};
use leasehold::store::{Fault, RedisConfig, RedisStore};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// How many keys a step of a scan looks at.
const COUNT: usize = 512;

/// A key in the space of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) kind: String,
    /// Whether it goes away by itself.
    pub(crate) expires: bool,
}

/// What a server's clock showed at some time between two instants of this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The number of the node.
    pub(crate) node: u32,
    pub(crate) sent_us: u64,
    pub(crate) answered_us: u64,
    /// Microseconds since 1970. None: it did not answer in time.
    pub(crate) store_us: Option<u64>,
}

/// Connections to all servers. Empty for a store without servers.
#[derive(Debug)]
pub(crate) struct Nodes {
    prefix: String,
    stores: Vec<RedisStore>,
}

impl Nodes {
    /// Connects at the first use.
    pub(crate) fn new(prefix: &str, configs: Vec<RedisConfig>) -> Self {
        Self { prefix: prefix.to_owned(), stores: configs.into_iter().map(RedisStore::lazy).collect() }
    }

    /// The primaries at present, each as a store and a slot.
    async fn primaries(&self) -> Vec<(&RedisStore, Result<u16, Fault>)> {
        let mut primaries = Vec::new();
        for store in &self.stores {
            match store.primary_slots(REQUEST_LIMIT).await {
                Ok(slots) => primaries.extend(slots.into_iter().map(|slot| (store, Ok(slot)))),
                Err(fault) => primaries.push((store, Err(fault))),
            }
        }
        primaries
    }

    /// What each primary says is the time. `now_us` is the clock of this machine.
    pub(crate) async fn times(&self, now_us: impl Fn() -> u64) -> Vec<Reading> {
        let mut times = Vec::new();
        for (node, (store, slot)) in (0..).zip(self.primaries().await) {
            let sent_us = now_us();
            let replies = match slot {
                Ok(slot) => {
                    let mut request = Pipeline::new();
                    request.cmd("TIME");
                    store.send_plain(slot, &request, REQUEST_LIMIT).await.unwrap_or_default()
                }
                Err(_) => Vec::new(),
            };
            let store_us = replies.first().and_then(time_us);
            times.push(Reading { node, sent_us, answered_us: now_us(), store_us });
        }
        times
    }

    /// The processor time that each primary has used, in microseconds, where the user may read it.
    pub(crate) async fn processor_us(&self) -> Vec<u64> {
        let mut used = Vec::new();
        for (store, slot) in self.primaries().await {
            let Ok(slot) = slot else { continue };
            let mut request = Pipeline::new();
            request.cmd("INFO").arg("cpu");
            if let Ok(replies) = store.send_plain(slot, &request, REQUEST_LIMIT).await {
                used.extend(replies.first().and_then(text).and_then(used_us));
            }
        }
        used
    }

    /// Fails if the user may not do what removes the keys at the end.
    pub(crate) async fn check_removable(&self) -> Result<(), Failure> {
        let key = format!("{}check", self.prefix);
        for (store, slot) in self.primaries().await {
            let slot = slot.map_err(Failure::unavailable)?;
            let mut request = Pipeline::new();
            request.cmd("SCAN").arg("0").arg("COUNT").arg("1");
            for command in ["PTTL", "TYPE", "DEL"] {
                request.cmd(command).arg(&key);
            }
            let replies =
                store.send_plain(slot, &request, REQUEST_LIMIT).await.map_err(Failure::unavailable)?;
            // In a cluster, the key may be of another node.
            let refused =
                |reply: &&Value| matches!(reply, Value::ServerError(error) if error.code() == "NOPERM");
            if let Some(Value::ServerError(error)) = replies.iter().find(refused) {
                let error = error.details().unwrap_or_default();
                return Err(Failure::unavailable(anyhow!(
                    "the user may not do what removes the keys of this run at the end (SCAN, TYPE, PTTL, DEL): {error}"
                )));
            }
        }
        Ok(())
    }

    /// All keys in the space of the run.
    pub(crate) async fn keys(&self) -> Result<Vec<Key>, Fault> {
        let mut keys = BTreeMap::new();
        for (store, slot) in self.primaries().await {
            let slot = slot?;
            for name in self.names(store, slot).await? {
                let mut request = Pipeline::new();
                request.cmd("TYPE").arg(&name).cmd("PTTL").arg(&name);
                let replies = store.send_plain(slot, &request, REQUEST_LIMIT).await?;
                let kind = replies.first().and_then(text).unwrap_or("none").to_owned();
                let expires = !matches!(replies.get(1), Some(Value::Int(-1)));
                if kind != "none" {
                    let name = String::from_utf8_lossy(&name).into_owned();
                    keys.insert(name.clone(), Key { name, kind, expires });
                }
            }
        }
        Ok(keys.into_values().collect())
    }

    /// Removes all keys in the space of the run. Returns how many there were.
    pub(crate) async fn remove_all(&self) -> Result<usize, Fault> {
        let mut removed = 0;
        for (store, slot) in self.primaries().await {
            let slot = slot?;
            let names = self.names(store, slot).await?;
            for names in names.chunks(COUNT) {
                let mut request = Pipeline::new();
                for name in names {
                    request.cmd("DEL").arg(name);
                }
                store.send_plain(slot, &request, REQUEST_LIMIT).await?;
            }
            removed += names.len();
        }
        Ok(removed)
    }

    /// The keys of one primary, some of them perhaps twice.
    async fn names(&self, store: &RedisStore, slot: u16) -> Result<Vec<Vec<u8>>, Fault> {
        let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
        let pattern = literal(&self.prefix) + "*";
        loop {
            let mut request = Pipeline::new();
            request.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(COUNT);
            let replies = store.send_plain(slot, &request, REQUEST_LIMIT).await?;
            let Some(Value::Array(parts)) = replies.into_iter().next() else { return Ok(names) };
            let [next, Value::Array(found)] = &parts[..] else { return Ok(names) };
            names.extend(found.iter().filter_map(|key| match key {
                Value::BulkString(bytes) => Some(bytes.clone()),
                _ => None,
            }));
            match text(next) {
                Some(next) if next != "0" => next.clone_into(&mut cursor),
                _ => return Ok(names),
            }
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

fn time_us(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else { return None };
    let number = |at: usize| parts.get(at).and_then(text)?.parse::<u64>().ok();
    Some(number(0)? * 1_000_000 + number(1)?)
}

/// The processor time in a reply to INFO.
fn used_us(info: &str) -> Option<u64> {
    let seconds = |field: &str| -> Option<f64> {
        info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok())
    };
    let used = seconds("used_cpu_sys")? + seconds("used_cpu_user")?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and small")]
    Some((used * 1e6) as u64)
}

/// A pattern that matches this text alone.
fn literal(text: &str) -> String {
    let is_special = |c| matches!(c, '*' | '?' | '[' | ']' | '\\');
    text.chars().flat_map(|c| is_special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_is_that_of_system_and_user() {
        let info = "# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:0.250001\r\nused_cpu_sys_children:9\r\n";
        assert_eq!(used_us(info), Some(1_750_001));
        assert_eq!(used_us("used_cpu_sys_children:9\r\n"), None);
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(literal("app*:leasehold-verify:a1:"), "app\\*:leasehold-verify:a1:");
    }
}
