//! The slot map of a cluster, as one node reports it, and the redirects in replies.
//!
//! Parses only. [`refresh`](super::refresh) decides which map is accepted.

use crate::config::address::Address;
use crate::error_map::classify;
use leasehold_store::FaultKind;
use redis::{Cmd, Pipeline, Value, cmd, from_redis_value_ref};

/// Number of slots.
pub(crate) const SLOTS: u16 = 16_384;
/// Reported host of a node that prefers a hostname but has announced none, or whose hostname has not spread yet.
/// Unlike an empty host, it does not mean the node that was queried.
const UNNAMED: &str = "?";

/// The slot map. It is replaced as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// Epoch of the cluster's configuration, as the reporting node knows it.
    pub(super) epoch: u64,
    /// Primaries that have slots.
    primaries: Vec<Address>,
    /// For each slot the number of its primary, from 1; 0 for a slot that no primary serves.
    slots: Vec<u16>,
}

/// The report of one node.
pub(super) struct NodeReport {
    pub(super) map: Map,
    /// Whether the node reports the cluster up.
    pub(super) is_cluster_up: bool,
}

/// Adds the requests whose replies [`parse_report`] parses.
pub(super) fn add_requests(pipeline: &mut Pipeline) {
    let cluster = |subcommand| -> Cmd { cmd("CLUSTER").arg(subcommand).clone() };
    pipeline.add_command(cluster("INFO")).add_command(cluster("SLOTS"));
}

/// Parses the replies of the node at `source`.
pub(super) fn parse_report(source: &Address, replies: &[Value]) -> Result<NodeReport, FaultKind> {
    let [info, slots] = replies else { return Err(malformed()) };
    if let Value::ServerError(error) = slots {
        let disabled = error.details().is_some_and(|details| details.contains("cluster support disabled"));
        return Err(if disabled {
            let text = "the server is not a cluster node: the URL of a single server begins with `redis://`";
            FaultKind::Unsupported(text.to_owned())
        } else {
            classify(error).kind
        });
    }
    // A user without permission gets less information.
    let info: String = from_redis_value_ref(info).unwrap_or_default();
    let field = |name: &str| {
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map(str::trim)
    };
    let mut map = Map { epoch: 0, primaries: Vec::new(), slots: vec![0; SLOTS.into()] };
    map.epoch = field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let Value::Array(ranges) = slots else { return Err(malformed()) };
    for range in ranges {
        let (first, last, primary) = range_of(source, range).ok_or_else(malformed)?;
        let number = map.number(&primary);
        for slot in first..=last.min(SLOTS - 1) {
            map.slots[usize::from(slot)] = number;
        }
    }
    if map.primaries.is_empty() {
        return Err(FaultKind::Unsupported("the cluster has no slots assigned yet: set it up".to_owned()));
    }
    Ok(NodeReport { map, is_cluster_up: field("cluster_state").is_none_or(|state| state == "ok") })
}

fn malformed() -> FaultKind {
    FaultKind::Failed("the server does not report the slot map: is it a cluster node?".to_owned())
}

/// First and last slot of a range, and the address of its primary.
fn range_of(source: &Address, range: &Value) -> Option<(u16, u16, Address)> {
    let Value::Array(range) = range else { return None };
    let [first, last, Value::Array(primary), ..] = range.as_slice() else { return None };
    let slot = |value: &Value| from_redis_value_ref(value).ok();
    // The host may be null.
    let host: Option<String> = primary.first().and_then(|host| from_redis_value_ref(host).ok());
    let host = match host.as_deref() {
        // A node may not know its own address.
        Some(UNNAMED) => primary.get(3).and_then(ip).unwrap_or_default(),
        _ => host.unwrap_or_default(),
    };
    let port: u16 = primary.get(1).and_then(|port| from_redis_value_ref(port).ok())?;
    Some((slot(first)?, slot(last)?, at(source, &host, port)?))
}

/// The IP address in the metadata that follows the node's name.
fn ip(more: &Value) -> Option<String> {
    let (_, ip) = more
        .as_map_iter()?
        .find(|(key, _)| from_redis_value_ref(key).is_ok_and(|key: String| key == "ip"))?;
    from_redis_value_ref(ip).ok()
}

/// Address of a node that another node reports at `host`; an empty host means the reporting node's own.
fn at(source: &Address, host: &str, port: u16) -> Option<Address> {
    let Address::Tcp { host: own, tls, .. } = source else { return None };
    let host = if host.is_empty() { own } else { host };
    Some(Address::Tcp { host: host.to_owned(), port, tls: *tls })
}

impl Map {
    /// The primary of a slot.
    pub(crate) fn primary(&self, slot: u16) -> Option<&Address> {
        let number = self.slots.get(usize::from(slot))?.checked_sub(1)?;
        self.primaries.get(usize::from(number))
    }

    /// All primaries that have slots.
    pub(crate) fn primaries(&self) -> &[Address] {
        &self.primaries
    }

    /// The slots of one primary.
    pub(crate) fn slots_of(&self, primary: &Address) -> Vec<u16> {
        (0..SLOTS).filter(|slot| self.primary(*slot) == Some(primary)).collect()
    }

    /// Returns a copy with one slot moved.
    pub(super) fn with(&self, slot: u16, primary: &Address) -> Self {
        let mut map = self.clone();
        let number = map.number(primary);
        if let Some(entry) = map.slots.get_mut(usize::from(slot)) {
            *entry = number;
        }
        map
    }

    /// Whether both maps assign every slot to the same primary.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        (0..SLOTS).all(|slot| self.primary(slot) == other.primary(slot))
    }

    fn number(&mut self, primary: &Address) -> u16 {
        let known = self.primaries.iter().position(|known| known == primary);
        let at = known.unwrap_or_else(|| {
            self.primaries.push(primary.clone());
            self.primaries.len() - 1
        });
        // There are at most as many primaries as slots, apart from those that a change left without slots.
        u16::try_from(at + 1).unwrap_or(0)
    }
}

/// Where an operation must go in place of the node that received it. Nothing was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// To this node, from now on.
    Moved(Address),
    /// To this node, once: the slot is migrating, and keys that are missing here may be there.
    Ask(Address),
    /// To either node, after a moment: the slot is migrating, and some of the keys have moved.
    TryAgain,
    /// Elsewhere; only the next map shows where.
    Unnamed,
    /// To the primary of the slot, once the cluster is up again.
    Later,
}

/// Parses the redirect in a reply of the node at `source`.
pub(crate) fn redirect(source: &Address, value: &Value) -> Option<Redirect> {
    let Value::ServerError(error) = value else { return None };
    let named = |to: fn(Address) -> Redirect| {
        let (host, port) = error.details()?.split_once(' ')?.1.trim().rsplit_once(':')?;
        if host == UNNAMED { Some(Redirect::Unnamed) } else { at(source, host, port.parse().ok()?).map(to) }
    };
    match error.code() {
        "MOVED" => named(Redirect::Moved),
        "ASK" => named(Redirect::Ask),
        "TRYAGAIN" => Some(Redirect::TryAgain),
        "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => Some(Redirect::Later),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port, tls: true }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary.clone(), primary])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn parsed(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).expect("well formed")
    }

    #[test]
    fn redirects_are_parsed() {
        let source = node("source", 9);
        for (reply, redirected) in [
            ("-MOVED 5 a:1\r\n", Some(Redirect::Moved(node("a", 1)))),
            ("-MOVED 5 :1\r\n", Some(Redirect::Moved(node("source", 1)))),
            ("-MOVED 5 ::1:7\r\n", Some(Redirect::Moved(node("::1", 7)))),
            ("-MOVED 5 ?:1\r\n", Some(Redirect::Unnamed)),
            ("-ASK 5 a:1\r\n", Some(Redirect::Ask(node("a", 1)))),
            ("-ASK 5 :1\r\n", Some(Redirect::Ask(node("source", 1)))),
            ("-ASK 5 ?:1\r\n", Some(Redirect::Unnamed)),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Some(Redirect::TryAgain)),
            ("-CLUSTERDOWN The cluster is down\r\n", Some(Redirect::Later)),
            ("-READONLY You can't write against a read only replica.\r\n", Some(Redirect::Later)),
            ("-MOVED 5\r\n", None),
            ("-ERR no\r\n", None),
            ("+OK\r\n", None),
        ] {
            assert_eq!(redirect(&source, &parsed(reply)), redirected, "{reply}");
        }
    }

    #[test]
    fn a_report_is_parsed() {
        let info = text("cluster_state:ok\r\ncluster_current_epoch:7\r\n");
        let ranges = vec![
            range(0, 99, text("a"), 1),
            range(100, 100, Value::Nil, 2),
            range(101, 101, text(""), 3),
            range(102, 102, text("?"), 4),
            range(103, 16_383, text("a"), 1),
        ];
        let report = parse_report(&node("source", 9), &[info, Value::Array(ranges)]).expect("well formed");
        assert!(report.is_cluster_up && report.map.epoch == 7);
        let at = |slot| report.map.primary(slot).cloned();
        assert_eq!(at(0), Some(node("a", 1)), "uses TLS, as the connection to the reporting node does");
        assert_eq!([at(100), at(101), at(102)], [2, 3, 4].map(|port| Some(node("source", port))));
        assert_eq!((at(16_383), at(16_384)), (Some(node("a", 1)), None));
        assert_eq!(report.map.primaries().len(), 4);
        assert_eq!(report.map.slots_of(&node("source", 3)), [101]);
        let moved = report.map.with(101, &node("b", 5));
        assert_eq!(moved.primary(101), Some(&node("b", 5)));
        assert!(
            !moved.agrees_with(&report.map) && moved.with(101, &node("source", 3)).agrees_with(&report.map)
        );
    }

    /// The reply of a node about another one without a hostname, where hostnames are preferred.
    #[test]
    fn a_node_without_a_name_is_at_its_address() {
        let named = |ip: &str| {
            let more = Value::Map(vec![(text("shard"), text("x")), (text("ip"), text(ip))]);
            let primary = Value::Array(vec![text("?"), Value::Int(1), text("id"), more]);
            let range = Value::Array(vec![Value::Int(0), Value::Int(9), primary]);
            let report = parse_report(&node("source", 9), &[text(""), Value::Array(vec![range])])
                .expect("well formed");
            report.map.primary(0).cloned()
        };
        assert_eq!(named("10.0.0.2"), Some(node("10.0.0.2", 1)));
        assert_eq!(
            named(""),
            Some(node("source", 1)),
            "a node may not know its own address, so this is the reporting node"
        );
    }

    #[test]
    fn a_user_with_few_permissions_learns_enough() {
        let forbidden = parsed("-NOPERM no\r\n");
        let ranges = Value::Array(vec![range(0, 16_383, text("a"), 1)]);
        let report = parse_report(&node("a", 1), &[forbidden.clone(), ranges]).expect("well formed");
        assert!(report.is_cluster_up && report.map.epoch == 0);
        assert!(matches!(parse_report(&node("a", 1), &[text(""), forbidden]), Err(FaultKind::Forbidden)));
        assert!(matches!(parse_report(&node("a", 1), &[text(""), text("")]), Err(FaultKind::Failed(_))));
        assert!(matches!(
            parse_report(&node("a", 1), &[text(""), Value::Array(vec![])]),
            Err(FaultKind::Unsupported(_))
        ));
    }
}
