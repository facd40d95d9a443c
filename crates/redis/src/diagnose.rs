//! Findings about a server from its INFO, and what they mean for a connection.
//!
//! Owns the rules. It sends nothing: the handshake and the diagnosis send the request. Only INFO is read, never CONFIG,
//! because the users that the documentation recommends may run INFO only.

use super::config::RedisConfig;
use super::config::version::{field, number, numbers};
use super::product::{self, Product};
use leasehold_store::{Diagnosis, FaultKind, Finding, FindingKind, Role, Severity};
use redis::{Cmd, Value};
use std::borrow::Cow;
use std::time::Duration;

/// The only policy that evicts no key of a lock: all of them have an expiry.
const SAFE: &str = "noeviction";

type Version = (u32, u32, u32);

/// What a vulnerability is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Lua,
    /// The command, of which Leasehold makes no use.
    Restore,
}

/// Vulnerabilities of one part that were fixed by the same versions.
struct Vulnerability {
    product: &'static str,
    part: Part,
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
/// - CVE-2026-25243, of RESTORE: GHSA-c8h9-259x-jff4; valkey-io/valkey#3631 to #3634.
/// - CVE-2026-63639, of RESTORE: a stream whose consumers share an entry. Redis gives it no name: redis/redis#15520 to #15522,
///   redis/docs#3702; valkey-io/valkey#4073.
const VULNERABILITIES: [Vulnerability; 15] = [
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2022-24735", "CVE-2022-24736"],
        since: (0, 0),
        fixed_in: &[(6, 2, 7), (7, 0, 0)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2022-24834"],
        since: (0, 0),
        fixed_in: &[(6, 2, 13), (7, 0, 12), (7, 2, 0)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2024-31449"],
        since: (0, 0),
        fixed_in: &[(6, 2, 16), (7, 2, 6), (7, 4, 1)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2024-46981"],
        since: (0, 0),
        fixed_in: &[(6, 2, 17), (7, 2, 7), (7, 4, 2)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"],
        since: (0, 0),
        fixed_in: &[(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Lua,
        names: &["CVE-2026-23631"],
        since: (7, 0),
        fixed_in: &[(7, 2, 14), (7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Lua,
        names: &["CVE-2024-31449"],
        since: (0, 0),
        fixed_in: &[(7, 2, 7), (8, 0, 1)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Lua,
        names: &["CVE-2024-46981"],
        since: (0, 0),
        fixed_in: &[(7, 2, 8), (8, 0, 2)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Lua,
        names: &["CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819"],
        since: (0, 0),
        fixed_in: &[(7, 2, 11), (8, 0, 6), (8, 1, 4)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Lua,
        names: &["CVE-2025-67733"],
        since: (0, 0),
        fixed_in: &[(7, 2, 12), (8, 0, 7), (8, 1, 6), (9, 0, 3)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Lua,
        names: &["CVE-2026-23631"],
        since: (0, 0),
        fixed_in: &[(7, 2, 13), (8, 0, 8), (8, 1, 7), (9, 0, 4)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Restore,
        names: &["CVE-2026-25243"],
        since: (0, 0),
        fixed_in: &[(6, 2, 22), (7, 2, 14), (7, 4, 9), (8, 2, 6), (8, 4, 3), (8, 6, 3)],
    },
    Vulnerability {
        product: REDIS,
        part: Part::Restore,
        names: &["CVE-2026-63639"],
        since: (0, 0),
        fixed_in: &[(6, 2, 23), (7, 2, 15), (7, 4, 10), (8, 2, 8), (8, 4, 5), (8, 6, 5)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Restore,
        names: &["CVE-2026-25243"],
        since: (0, 0),
        fixed_in: &[(7, 2, 13), (8, 0, 8), (8, 1, 7), (9, 0, 4)],
    },
    Vulnerability {
        product: VALKEY,
        part: Part::Restore,
        names: &["CVE-2026-63639"],
        since: (0, 0),
        fixed_in: &[(7, 2, 14), (8, 0, 10), (8, 1, 9), (9, 0, 5), (9, 1, 1)],
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
    let settings = settings.into_iter().chain([restore(info)]);
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
    let severity = if maxmemory == 0 { Severity::Notice } else { Severity::Critical };
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
    let Known { server, vulnerabilities, fixed_in } = known_vulnerabilities(info, Part::Lua)?;
    let kind = FindingKind::LuaVulnerabilities { server, vulnerabilities, fixed_in };
    Some(Finding::new(kind, Severity::Warning))
}

/// No user of Leasehold needs RESTORE, so this is no reason against the server.
fn restore(info: &str) -> Option<Finding> {
    let Known { server, vulnerabilities, fixed_in } = known_vulnerabilities(info, Part::Restore)?;
    let kind = FindingKind::RestoreVulnerabilities { server, vulnerabilities, fixed_in };
    Some(Finding::new(kind, Severity::Notice))
}

/// Vulnerabilities of a server's version.
struct Known {
    server: String,
    vulnerabilities: Vec<String>,
    /// The first version without any of them.
    fixed_in: String,
}

fn known_vulnerabilities(info: &str, part: Part) -> Option<Known> {
    // Other products have implementations of their own.
    let (product, text) = Product::of(info).filter(|(product, _)| product.is_tested())?;
    let product = product.name();
    let version = numbers(text)?;
    let of_part = || VULNERABILITIES.iter().filter(|known| known.product == product && known.part == part);
    let present: Vec<_> = of_part().filter(|known| known.affects(version)).collect();
    if present.is_empty() {
        return None;
    }
    // In the server's own branch if possible, otherwise in a later one.
    let has_none =
        |candidate: &&Version| **candidate > version && !of_part().any(|known| known.affects(**candidate));
    let (major, minor, patch) = of_part().flat_map(|known| known.fixed_in).filter(has_none).min()?;
    let names = present.iter().flat_map(|known| known.names);
    Some(Known {
        server: format!("{product} {}", shown(text)),
        vulnerabilities: names.map(|name| (*name).to_owned()).collect(),
        fixed_in: format!("{product} {major}.{minor}.{patch}"),
    })
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

/// Reason to refuse a server that must be the `primary`, or with a finding for which the configuration refuses it.
pub(crate) fn refusal(findings: &[Finding], primary: bool, config: &RedisConfig) -> Option<FaultKind> {
    let serious: Vec<_> = findings.iter().filter(|finding| config.refuses(finding)).cloned().collect();
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
    } else if policy(info).is_none() {
        found.findings.push(Finding::new(FindingKind::EvictionUnknown, Severity::Notice));
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
            ("maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n", "Critical eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n", "Critical eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:volatile-random\r\n", "Critical eviction"),
            ("maxmemory:100\r\nmaxmemory_policy:one-of-tomorrow\r\n", "Critical eviction"),
            ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", "Notice eviction"),
            ("maxmemory_policy:allkeys-lru\r\n", "Notice eviction"),
            ("used_memory:100\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n", "Notice memory_full"),
            ("used_memory:99\r\nmaxmemory:100\r\nmaxmemory_policy:noeviction\r\n", ""),
            ("used_memory:99\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n", ""),
            // The server evicts keys to free memory.
            ("used_memory:100\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lfu\r\n", "Critical eviction"),
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
            ("redis_version:7.0.15\r\n", "Warning lua_vulnerabilities, Notice restore_vulnerabilities"),
            (
                "aof_enabled:0\r\nredis_version:7.0.15\r\n",
                "Warning lua_vulnerabilities, Notice not_persistent, Notice restore_vulnerabilities",
            ),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.0\r\n", "Notice restore_vulnerabilities"),
            ("redis_version:7.2.4\r\nvalkey_version:9.1.1\r\n", ""),
            ("redis_version:7.4.0\r\ndragonfly_version:df-v1.23.0\r\n", "Warning untested_product"),
            ("garnet_version:1.0.61\r\nredis_version:7.4.3\r\n", "Critical not_exclusive"),
        ] {
            assert_eq!(words(info), found, "{info}");
        }
    }

    /// Vulnerabilities of a version, and the version that fixes them.
    fn vulnerabilities(part: Part, product: &str, version: &str) -> String {
        let field = if product == VALKEY { "redis_version:7.2.4\r\nvalkey_version" } else { "redis_version" };
        match known_vulnerabilities(&format!("{field}:{version}\r\n"), part) {
            None => "none".to_owned(),
            Some(Known { vulnerabilities, fixed_in, .. }) => {
                let last = &vulnerabilities[vulnerabilities.len() - 1];
                format!("{} to {last}, {fixed_in}", vulnerabilities[0])
            }
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
            assert_eq!(vulnerabilities(Part::Lua, product, version), found, "{product} {version}");
        }
    }

    /// Versions around each fix, by the release notes.
    #[test]
    fn vulnerabilities_of_restore_are_known_by_version() {
        let (crafted, stream) = ("CVE-2026-25243", "CVE-2026-63639");
        let both = |fixed: &str| format!("{crafted} to {stream}, {fixed}");
        let one = |fixed: &str| format!("{stream} to {stream}, {fixed}");
        for (product, version, found) in [
            (REDIS, "6.2.21", both("Redis 6.2.23")),
            (REDIS, "6.2.22", one("Redis 6.2.23")),
            (REDIS, "6.2.23", "none".to_owned()),
            (REDIS, "7.0.15", both("Redis 7.2.15")),
            (REDIS, "7.2.14", one("Redis 7.2.15")),
            (REDIS, "7.4.9", one("Redis 7.4.10")),
            (REDIS, "7.4.10", "none".to_owned()),
            (REDIS, "8.2.3", both("Redis 8.2.8")),
            (REDIS, "8.8.0", "none".to_owned()),
            (VALKEY, "7.2.12", both("Valkey 7.2.14")),
            (VALKEY, "8.0.9", one("Valkey 8.0.10")),
            (VALKEY, "9.0.4", one("Valkey 9.0.5")),
            (VALKEY, "9.1.0", one("Valkey 9.1.1")),
            (VALKEY, "9.1.1", "none".to_owned()),
        ] {
            assert_eq!(vulnerabilities(Part::Restore, product, version), found, "{product} {version}");
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

    /// What `?strict=1` and `?accept=` change.
    #[test]
    fn strict_refuses_what_others_are_warned_of_and_neither_what_is_accepted() {
        let check = |info: &str, primary, settings: &str| {
            let config = RedisConfig::from_url(&format!("redis://h?{settings}")).expect("a good URL");
            let mut findings = findings_in(info);
            config.mark_accepted(&mut findings);
            refusal(&findings, primary, &config)
        };
        let refused_for = |codes: &[&str], refusal: Option<FaultKind>| match refusal {
            Some(FaultKind::Unsafe(all)) => {
                assert_eq!(all.iter().map(|finding| finding.kind.as_str()).collect::<Vec<_>>(), codes);
            }
            other => panic!("{other:?}"),
        };
        let (strict, lenient) = ("strict=1", "");
        let vulnerable = "redis_version:7.0.15\r\n";
        assert_eq!(check(vulnerable, false, lenient), None);
        assert_eq!(check(vulnerable, true, lenient), None);
        refused_for(&["lua_vulnerabilities"], check(vulnerable, false, strict));
        assert_eq!(check(vulnerable, false, "strict=1&accept=lua_vulnerabilities"), None);
        refused_for(&["lua_vulnerabilities"], check(vulnerable, false, "strict=1&accept=eviction"));
        // A policy that removes locks is refused in any case.
        let evicting = "maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";
        refused_for(&["eviction"], check(evicting, false, lenient));
        refused_for(&["eviction"], check(evicting, false, "probe=skip"));
        assert_eq!(check(evicting, false, "accept=eviction"), None);
        assert_eq!(check(evicting, false, "strict=1&accept=eviction,replica"), None);
        let evicting_and_vulnerable = [evicting, vulnerable].concat();
        refused_for(&["eviction", "lua_vulnerabilities"], check(&evicting_and_vulnerable, false, strict));
        refused_for(
            &["lua_vulnerabilities"],
            check(&evicting_and_vulnerable, false, "strict=1&accept=eviction"),
        );
        // Notices are no reason to refuse.
        assert_eq!(check("aof_enabled:0\r\nmaxmemory_policy:allkeys-lru\r\n", true, strict), None);
        // A server that hides its settings is not refused for what they may be.
        assert_eq!(check("maxmemory:100\r\n", false, strict), None);
        assert_eq!(check("", false, strict), None);
        // A replica may be promoted, and is waited for; other findings do not pass by themselves.
        let replica = "role:slave\r\nslave_read_only:1\r\n";
        assert_eq!(check(replica, false, lenient), None);
        assert_eq!(check(replica, true, lenient), Some(FaultKind::ReadOnly));
        assert_eq!(check(replica, true, "accept=replica"), Some(FaultKind::ReadOnly));
        assert_eq!(check(replica, false, strict), Some(FaultKind::ReadOnly));
        assert_eq!(check(replica, false, "strict=1&accept=replica"), None);
        let both = [vulnerable, replica].concat();
        assert!(matches!(check(&both, false, strict), Some(FaultKind::Unsafe(all)) if all.len() == 2));
        let writable = "role:slave\r\nslave_read_only:0\r\n";
        refused_for(&["replica"], check(writable, false, strict));
        assert_eq!(check(writable, true, lenient), Some(FaultKind::ReadOnly));
        // What does not exclude cannot be accepted.
        let garnet = "garnet_version:1.0.61\r\nredis_version:7.4.3\r\n";
        refused_for(&["not_exclusive"], check(garnet, false, "accept=eviction"));
        assert!(RedisConfig::from_url("redis://h?accept=not_exclusive").is_err());
    }

    #[test]
    fn a_text_of_a_server_gets_into_no_log_as_it_is() {
        let long = format!("maxmemory:1\r\nmaxmemory_policy:\x1b[2J{}\r\n", "x".repeat(1000));
        let text = findings_in(&long)[0].to_string();
        assert!(!text.contains('\x1b') && text.len() < 300, "{text}");
    }
}
