//! Findings about a server from its INFO, and what they mean for a connection.
//!
//! Owns the rules. It sends nothing: the handshake and the diagnosis send the request. Only INFO is read, never CONFIG,
//! because the users that the documentation recommends may run INFO only.

use super::config::version::{field, number, numbers};
use super::product::{self, Product};
use leasehold_store::{Diagnosis, FaultKind, Finding, FindingKind, Role, Severity};
use redis::{Cmd, Value};
use std::borrow::Cow;
use std::time::Duration;

/// The only policy that evicts no key of a lock: all of them have an expiry.
const SAFE: &str = "noeviction";

type Version = (u32, u32, u32);

/// Vulnerabilities of the Lua engine that were fixed by the same versions.
struct Vulnerability {
    product: &'static str,
    names: &'static [&'static str],
    /// The first affected branch.
    since: (u32, u32),
    /// The first fixed version of each branch, in ascending order. Branches after the last were never affected. Other
    /// branches were never fixed.
    fixed_in: &'static [Version],
}

/// Known vulnerabilities, oldest first. Sources: the release notes (`00-RELEASENOTES`, and the releases on GitHub) of
/// redis/redis and valkey-io/valkey for each version named here, and:
///
/// - CVE-2022-24735 and -24736: redis/redis#10654. CVE-2022-24834: redis/redis#12400.
/// - CVE-2024-31449: redis/redis#13582, #13583, #13584; valkey-io/valkey#1113 to #1115. CVE-2024-46981: redis/redis#13729,
///   GHSA-39h2-x6c4-6w4c.
/// - CVE-2025-49844 and those found with it: GHSA-4789-qfc9-5f9q, docker-library/official-images#20011;
///   valkey-io/valkey#3473.
/// - CVE-2025-67733, in Valkey: GHSA-p876-p7q5-hv2m. It names 9.0.2, whose notes do not list it; those of 9.0.3 do.
/// - CVE-2026-23631: GHSA-8ghh-qpmp-7826. Not in 6.2: redis/redis#15231. valkey-io/valkey#3631 to #3635; 8.0.8 was withdrawn
///   for 8.0.9, for another reason.
const VULNERABILITIES: [Vulnerability; 11] = [
    Vulnerability {
        product: REDIS,
        names: &["CVE-2022-24735", "CVE-2022-24736"],
        since: (0, 0),
        fixed_in: &[(6, 2, 7), (7, 0, 0)],
    },
    Vulnerability {
        product: REDIS,
        names: &["CVE-2022-24834"],
        since: (0, 0),
        fixed_in: &[(6, 2, 13), (7, 0, 12), (7, 2, 0)],
    },
    Vulnerability {
        product: REDIS,
        names: &["CVE-2024-31449"],
        since: (0, 0),
        fixed_in: &[(6, 2, 16), (7, 2, 6), (7, 4, 1)],
    },
    Vulnerability {
        product: REDIS,
        names: &["CVE-2024-46981"],
        since: (0, 0),
        fixed_in: &[(6, 2, 17), (7, 2, 7), (7, 4, 2)],
    },
    Vulnerability {
        product: REDIS,
        names: &["CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"],
        since: (0, 0),
        fixed_in: &[(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)],
    },
    Vulnerability {
        product: REDIS,
        names: &["CVE-2026-23631"],
        since: (7, 0),
        fixed_in: &[(7, 2, 14), (7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)],
    },
    Vulnerability {
        product: VALKEY,
        names: &["CVE-2024-31449"],
        since: (0, 0),
        fixed_in: &[(7, 2, 7), (8, 0, 1)],
    },
    Vulnerability {
        product: VALKEY,
        names: &["CVE-2024-46981"],
        since: (0, 0),
        fixed_in: &[(7, 2, 8), (8, 0, 2)],
    },
    Vulnerability {
        product: VALKEY,
        names: &["CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"],
        since: (0, 0),
        fixed_in: &[(7, 2, 11), (8, 0, 6), (8, 1, 4)],
    },
    Vulnerability {
        product: VALKEY,
        names: &["CVE-2025-67733"],
        since: (0, 0),
        fixed_in: &[(7, 2, 12), (8, 0, 7), (8, 1, 6), (9, 0, 3)],
    },
    Vulnerability {
        product: VALKEY,
        names: &["CVE-2026-23631"],
        since: (0, 0),
        fixed_in: &[(7, 2, 13), (8, 0, 8), (8, 1, 7), (9, 0, 4)],
    },
];

const REDIS: &str = "Redis";
const VALKEY: &str = "Valkey";

impl Vulnerability {
    fn affects(&self, version: Version) -> bool {
        let branch = |(major, minor, _): Version| (major, minor);
        let newest = self.fixed_in.last().copied().unwrap_or_default();
        let fixed_in = self.fixed_in.iter().find(|fixed_in| branch(**fixed_in) == branch(version));
        branch(version) >= self.since
            && branch(version) <= branch(newest)
            && fixed_in.is_none_or(|fixed_in| version < *fixed_in)
    }
}

/// The request that reads all sections used here. Without an argument it returns the default sections, which contain
/// them; Redis 6.2 accepts at most one name.
pub(crate) fn request() -> Cmd {
    redis::cmd("INFO")
}

/// The text of its reply, which is empty if the user lacks permission. Fails if the server requires authentication
/// first.
pub(crate) fn info_text(reply: &Value) -> Result<Cow<'_, str>, FaultKind> {
    match reply {
        Value::VerbatimString { text, .. } => Ok(Cow::Borrowed(text)),
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes)),
        Value::ServerError(error) if error.code() == "NOAUTH" => Err(FaultKind::Unauthenticated),
        _ => Ok(Cow::Borrowed("")),
    }
}

/// The findings in an INFO text, the most serious first. A missing field is no finding.
pub(crate) fn findings_in(info: &str) -> Vec<Finding> {
    let product = Product::of(info).and_then(|(product, version)| product::finding(product, &shown(version)));
    let settings =
        [eviction(info), full_memory(info), persistence(info), replica(info), replicated(info), lua(info)];
    let mut findings: Vec<_> = [product].into_iter().chain(settings).flatten().collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// Same as [`findings_in`], for a server that may be a node of a quorum. A node that needs no minimum uptime, but loses its
/// data in a restart, could grant a lock twice.
pub(crate) fn findings_for(info: &str, min_uptime: Option<Duration>) -> Vec<Finding> {
    let mut findings = findings_in(info);
    if min_uptime == Some(Duration::ZERO) {
        let forgets = |finding: &&mut Finding| finding.kind == FindingKind::NotPersistent;
        findings.iter_mut().filter(forgets).for_each(|finding| finding.severity = Severity::Warning);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }
    findings
}

fn eviction(info: &str) -> Option<Finding> {
    let policy = policy(info).filter(|policy| policy != SAFE)?;
    let maxmemory = number(info, "maxmemory").unwrap_or(0);
    // Without a memory limit nothing is evicted; but a limit can be set at any time, and then the policy applies.
    let severity = if maxmemory == 0 { Severity::Notice } else { Severity::Warning };
    Some(Finding::new(FindingKind::Eviction { policy, maxmemory }, severity))
}

/// Full memory is transient, and holders keep their locks meanwhile. So it is no reason to refuse a connection, which
/// renewals need.
fn full_memory(info: &str) -> Option<Finding> {
    let (used, maxmemory) = (number(info, "used_memory")?, number(info, "maxmemory")?);
    let full = maxmemory > 0 && used >= maxmemory && policy(info).is_some_and(|policy| policy == SAFE);
    full.then(|| Finding::new(FindingKind::MemoryFull { used, maxmemory }, Severity::Notice))
}

fn persistence(info: &str) -> Option<Finding> {
    let without = number(info, "aof_enabled")? == 0;
    without.then(|| Finding::new(FindingKind::NotPersistent, Severity::Notice))
}

fn replica(info: &str) -> Option<Finding> {
    let writes = number(info, "slave_read_only") == Some(0);
    let is_replica = role(info)? == Role::Replica;
    is_replica.then(|| Finding::new(FindingKind::Replica { writes }, Severity::Warning))
}

/// INFO shows how many replicas are good enough for a write only if the server demands any. A primary of a cluster that is
/// cut off from the majority stops by itself.
fn replicated(info: &str) -> Option<Finding> {
    if number(info, "cluster_enabled") == Some(1) {
        return None;
    }
    let demands = number(info, "min_slaves_good_slaves").is_some();
    let replicas = number(info, "connected_slaves").filter(|replicas| *replicas > 0 && !demands)?;
    let is_primary = role(info)? == Role::Primary;
    is_primary.then(|| Finding::new(FindingKind::WritesWithoutReplicas { replicas }, Severity::Notice))
}

fn lua(info: &str) -> Option<Finding> {
    // Other products run scripts with an engine of their own.
    let (product, text) = Product::of(info).filter(|(product, _)| product.is_tested())?;
    let product = product.name();
    let version = numbers(text)?;
    let of_product = || VULNERABILITIES.iter().filter(|known| known.product == product);
    let present: Vec<_> = of_product().filter(|known| known.affects(version)).collect();
    if present.is_empty() {
        return None;
    }
    // The first version without any of them: in the server's own branch if possible, otherwise in a later one.
    let has_none =
        |candidate: &&Version| **candidate > version && !of_product().any(|known| known.affects(**candidate));
    let (major, minor, patch) = of_product().flat_map(|known| known.fixed_in).filter(has_none).min()?;
    let kind = FindingKind::LuaVulnerabilities {
        server: format!("{product} {}", shown(text)),
        vulnerabilities: present
            .iter()
            .flat_map(|known| known.names)
            .map(|name| (*name).to_owned())
            .collect(),
        fixed_in: format!("{product} {major}.{minor}.{patch}"),
    };
    Some(Finding::new(kind, Severity::Warning))
}

fn role(info: &str) -> Option<Role> {
    match field(info, "role")? {
        "master" => Some(Role::Primary),
        "slave" => Some(Role::Replica),
        _ => None,
    }
}

fn policy(info: &str) -> Option<String> {
    field(info, "maxmemory_policy").map(shown)
}

/// Limits a word from the server to printable characters and a short length, because it is logged.
fn shown(word: &str) -> String {
    word.chars().filter(char::is_ascii_graphic).take(32).collect()
}

/// Reason to refuse a server that must be the `primary`, or with a finding of the severity `refused` or above.
pub(crate) fn refusal(findings: &[Finding], primary: bool, refused: Option<Severity>) -> Option<FaultKind> {
    let is_refused = |finding: &&Finding| refused.is_some_and(|refused| finding.severity >= refused);
    let serious: Vec<_> = findings.iter().filter(is_refused).cloned().collect();
    // A read-only replica may be promoted at any time, so it is waited for.
    let waits = |finding: &Finding| finding.kind == FindingKind::Replica { writes: false };
    let is_replica = findings.iter().any(|finding| matches!(finding.kind, FindingKind::Replica { .. }));
    if primary && is_replica || !serious.is_empty() && serious.iter().all(waits) {
        return Some(FaultKind::ReadOnly);
    }
    (!serious.is_empty()).then_some(FaultKind::Unsafe(serious))
}

/// Adds the findings of an INFO text. An empty text is a finding of its own.
pub(crate) fn fill(info: &str, min_uptime: Option<Duration>, found: &mut Diagnosis) {
    found.findings = findings_for(info, min_uptime);
    if info.is_empty() {
        found.findings.push(Finding::new(FindingKind::InfoDenied, Severity::Notice));
    }
    if let Some((product, version)) = Product::of(info) {
        (found.product, found.version) = (Some(product.name().to_owned()), Some(shown(version)));
    }
    found.role = role(info);
    found.replicas = number(info, "connected_slaves").and_then(|count| count.try_into().ok());
    found.append_only = number(info, "aof_enabled").map(|enabled| enabled != 0);
    found.snapshots = number(info, "rdb_saves");
    found.eviction_policy = policy(info);
    found.maxmemory = number(info, "maxmemory");
    found.used_memory = number(info, "used_memory");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(info: &str) -> String {
        let word = |finding: &Finding| format!("{:?} {}", finding.severity, finding.kind.as_str());
        findings_in(info).iter().map(word).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn findings_follow_from_info() {
        for (info, found) in [
            ("", ""),
            ("nothing of the kind", ""),
            ("maxmemory:0\r\nmaxmemory_policy:noeviction\r\n", ""),
            ("maxmemory:100\r\nmaxmemory_policy:noeviction\r\n", ""),
            ("maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n", "Warning eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n", "Warning eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:volatile-random\r\n", "Warning eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:one-of-tomorrow\r\n", "Warning eviction"),
            ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", "Notice eviction"),
            ("maxmemory_policy:allkeys-lru\r\n", "Notice eviction"),
            ("used_memory:100\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n", "Notice memory_full"),
            ("used_memory:99\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n", ""),
            ("used_memory:99\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n", ""),
            // The server evicts keys to free memory.
            ("used_memory:100\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lfu\r\n", "Warning eviction"),
            ("aof_enabled:1\r\n", ""),
            ("aof_enabled:0\r\n", "Notice not_persistent"),
            ("role:master\r\nconnected_slaves:0\r\n", ""),
            ("role:master\r\nconnected_slaves:1\r\n", "Notice writes_without_replicas"),
            ("role:master\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:1\r\n", ""),
            ("role:master\r\nconnected_slaves:1\r\ncluster_enabled:1\r\n", ""),
            ("role:slave\r\nslave_read_only:1\r\nconnected_slaves:1\r\n", "Warning replica"),
            ("role:slave\r\nslave_read_only:1\r\n", "Warning replica"),
            ("role:slave\r\n", "Warning replica"),
            ("redis_version:8.8.2\r\n", ""),
            ("redis_version:7.0.15\r\n", "Warning lua_vulnerabilities"),
            (
                "aof_enabled:0\r\nredis_version:7.0.15\r\n",
                "Warning lua_vulnerabilities, Notice not_persistent",
            ),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n", ""),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.23.0\r\n", "Warning untested_product"),
            ("garnet_version:1.0.61\r\nredis_version:7.4.3\r\n", "Critical not_exclusive"),
        ] {
            assert_eq!(words(info), found, "{info}");
        }
    }

    /// Vulnerabilities of a version, and the version that fixes them.
    fn vulnerabilities(product: &str, version: &str) -> String {
        let field = if product == VALKEY { "redis_version:7.2.4\r\nvalkey_version" } else { "redis_version" };
        match lua(&format!("{field}:{version}\r\n")) {
            None => "none".to_owned(),
            Some(Finding {
                kind: FindingKind::LuaVulnerabilities { vulnerabilities, fixed_in, .. }, ..
            }) => {
                format!(
                    "{} to {}, {fixed_in}",
                    vulnerabilities[0],
                    vulnerabilities[vulnerabilities.len() - 1]
                )
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn vulnerabilities_are_those_of_the_branch() {
        for (product, version, found) in [
            (REDIS, "6.2.6", "CVE-2022-24735 to CVE-2025-46819, Redis 6.2.20"),
            (REDIS, "6.2.7", "CVE-2022-24834 to CVE-2025-46819, Redis 6.2.20"),
            (REDIS, "6.2.13", "CVE-2024-31449 to CVE-2025-46819, Redis 6.2.20"),
            (REDIS, "6.2.16", "CVE-2024-46981 to CVE-2025-46819, Redis 6.2.20"),
            (REDIS, "6.2.17", "CVE-2025-49844 to CVE-2025-46819, Redis 6.2.20"),
            (REDIS, "6.2.20", "none"),
            // Branch 7.0 has no later fix.
            (REDIS, "7.0.11", "CVE-2022-24834 to CVE-2026-23631, Redis 7.2.14"),
            (REDIS, "7.0.15", "CVE-2024-31449 to CVE-2026-23631, Redis 7.2.14"),
            (REDIS, "7.2.10", "CVE-2025-49844 to CVE-2026-23631, Redis 7.2.14"),
            (REDIS, "7.2.11", "CVE-2026-23631 to CVE-2026-23631, Redis 7.2.14"),
            (REDIS, "7.2.14", "none"),
            (REDIS, "7.4.9", "none"),
            (REDIS, "8.0.3", "CVE-2025-49844 to CVE-2026-23631, Redis 8.2.6"),
            (REDIS, "8.2.6", "none"),
            (REDIS, "8.6.2", "CVE-2026-23631 to CVE-2026-23631, Redis 8.6.3"),
            (REDIS, "8.6.3", "none"),
            (REDIS, "8.8.0", "none"),
            (REDIS, "255.255.255", "none"),
            (VALKEY, "7.2.6", "CVE-2024-31449 to CVE-2026-23631, Valkey 7.2.13"),
            (VALKEY, "7.2.12", "CVE-2026-23631 to CVE-2026-23631, Valkey 7.2.13"),
            (VALKEY, "7.2.13", "none"),
            (VALKEY, "8.0.6", "CVE-2025-67733 to CVE-2026-23631, Valkey 8.0.8"),
            (VALKEY, "8.1.0", "CVE-2025-49844 to CVE-2026-23631, Valkey 8.1.7"),
            (VALKEY, "9.0.2", "CVE-2025-67733 to CVE-2026-23631, Valkey 9.0.4"),
            (VALKEY, "9.0.4", "none"),
            (VALKEY, "9.1.0", "none"),
            (REDIS, "8", "none"),
            (REDIS, "of tomorrow", "none"),
        ] {
            assert_eq!(vulnerabilities(product, version), found, "{product} {version}");
        }
    }

    #[test]
    fn the_table_is_in_order() {
        for Vulnerability { fixed_in, names, .. } in &VULNERABILITIES {
            assert!(fixed_in.is_sorted() && !fixed_in.is_empty(), "{names:?}");
            let mut branches: Vec<_> = fixed_in.iter().map(|(major, minor, _)| (major, minor)).collect();
            branches.dedup();
            assert_eq!(branches.len(), fixed_in.len(), "{names:?}: a branch is fixed once");
        }
    }

    #[test]
    fn strict_refuses_what_others_are_warned_of() {
        let check = |info: &str, primary, strict: bool| {
            let refused = if strict { Severity::Warning } else { Severity::Critical };
            refusal(&findings_in(info), primary, Some(refused))
        };
        let evicting = "maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(check(evicting, false, false), None);
        assert_eq!(check(evicting, true, false), None);
        assert!(matches!(check(evicting, false, true), Some(FaultKind::Unsafe(all)) if all.len() == 1));
        // Notices are no reason to refuse.
        assert_eq!(check("aof_enabled:0\r\nmaxmemory_policy:allkeys-lru\r\n", true, true), None);
        // A replica may be promoted, and is waited for; other findings do not pass by themselves.
        let replica = "role:slave\r\nslave_read_only:1\r\n";
        assert_eq!(check(replica, false, false), None);
        assert_eq!(check(replica, true, false), Some(FaultKind::ReadOnly));
        assert_eq!(check(replica, false, true), Some(FaultKind::ReadOnly));
        let both = [evicting, replica].concat();
        assert!(matches!(check(&both, false, true), Some(FaultKind::Unsafe(all)) if all.len() == 2));
        let writable = "role:slave\r\nslave_read_only:0\r\n";
        assert!(matches!(check(writable, false, true), Some(FaultKind::Unsafe(_))));
        assert_eq!(check(writable, true, false), Some(FaultKind::ReadOnly));
    }

    #[test]
    fn a_text_of_a_server_gets_into_no_log_as_it_is() {
        let long = format!("maxmemory:1\r\nmaxmemory_policy:\x1b[2J{}\r\n", "x".repeat(1000));
        let text = findings_in(&long)[0].to_string();
        assert!(!text.contains('\x1b') && text.len() < 300, "{text}");
    }
}
