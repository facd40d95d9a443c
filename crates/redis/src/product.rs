//! Which product a server is, from its INFO, and what that means for locks.
//!
//! The sources of each statement are in docs/reference/servers.md.

use crate::config::version::field;
use leasehold_store::{Finding, FindingKind, Severity};

/// A product that speaks the protocol of Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Product {
    Redis,
    Valkey,
    /// Redis Enterprise, with a database that several clusters write.
    ActiveActive,
    /// A server that takes writes while it is a replica of others that do, too.
    KeyDbActiveReplica,
    KeyDb,
    Dragonfly,
    Garnet,
    Kvrocks,
    Upstash,
    /// Another one, which names itself or its version.
    Unknown,
}

/// Versions in the first section of INFO that are of no product.
const NO_PRODUCTS: [&str; 12] =
    ["redis", "valkey", "gcc", "clang", "os", "kernel", "lua", "libc", "ssl", "openssl", "api", "rdb"];

/// The field of INFO that only this product has. A product that is made of another one has the fields of both, and comes first.
const MARKS: [(&str, Product); 6] = [
    ("dragonfly_version", Product::Dragonfly),
    ("garnet_version", Product::Garnet),
    ("kvrocks_version", Product::Kvrocks),
    ("upstash_version", Product::Upstash),
    // KeyDB reports the version of Redis that it is compatible with as its own.
    ("mvcc_depth", Product::KeyDb),
    ("valkey_version", Product::Valkey),
];

impl Product {
    /// Finds the product, and the version that it reports.
    pub(crate) fn of(info: &str) -> Option<(Self, &str)> {
        let redis_version = field(info, "redis_version");
        let mark = MARKS.iter().find_map(|(name, product)| Some((*product, field(info, name)?)));
        let (product, version) = match (mark, unknown(info)) {
            (Some((Self::KeyDb, _)), _) => (Self::KeyDb, redis_version?),
            // A product may be made of Redis or of Valkey.
            (Some((Self::Valkey, _)) | None, Some(line)) => (Self::Unknown, line),
            (Some(marked), _) => marked,
            (None, None) => (Self::Redis, redis_version?),
        };
        // A module in the list of those that are loaded, and a role that no other product has.
        let merges = info.lines().any(|line| line.starts_with("module:name=crdt"));
        Some(match product {
            Self::Redis | Self::Valkey if merges => (Self::ActiveActive, version),
            Self::KeyDb | Self::Redis | Self::Valkey if field(info, "role") == Some("active-replica") => {
                (Self::KeyDbActiveReplica, version)
            }
            _ => (product, version),
        })
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Valkey => "Valkey",
            Self::ActiveActive => "Redis Active-Active",
            Self::KeyDbActiveReplica | Self::KeyDb => "KeyDB",
            Self::Dragonfly => "Dragonfly",
            Self::Garnet => "Garnet",
            Self::Kvrocks => "Kvrocks",
            Self::Upstash => "Upstash",
            Self::Unknown => "unknown product",
        }
    }

    /// Whether its scripts are known to run one at a time, because the tests run on it.
    pub(crate) const fn is_tested(self) -> bool {
        matches!(self, Self::Redis | Self::Valkey)
    }

    /// Why it does not keep two clients from holding a lock at once.
    const fn flaw(self) -> Option<&'static str> {
        match self {
            Self::ActiveActive => Some(
                "each cluster accepts the write that takes the lock, and the later of both wins when they are merged",
            ),
            Self::KeyDbActiveReplica => {
                Some("with `active-replica yes`, each replica accepts the write that takes the lock")
            }
            Self::Garnet => Some(
                "its scripts interleave, unless its Lua transaction mode is on, which it does not report",
            ),
            Self::Redis
            | Self::Valkey
            | Self::KeyDb
            | Self::Dragonfly
            | Self::Kvrocks
            | Self::Upstash
            | Self::Unknown => None,
        }
    }
}

/// The line by which another product tells what it is: its name, or a version of its own.
fn unknown(info: &str) -> Option<&str> {
    let lines = info.lines().map(str::trim).skip_while(|line| line.is_empty() || line.starts_with('#'));
    let mut server = lines.take_while(|line| !line.is_empty() && !line.starts_with('#'));
    server.find(|line| {
        let Some((name, value)) = line.split_once(':') else { return false };
        match name.strip_suffix("_version") {
            Some(of) => !NO_PRODUCTS.contains(&of),
            None => name == "server_name" && !["redis", "valkey"].contains(&&*value.to_ascii_lowercase()),
        }
    })
}

/// What the product itself means for locks.
pub(crate) fn finding(product: Product, version: &str) -> Option<Finding> {
    let server = || format!("{} {version}", product.name());
    if let Some(why) = product.flaw() {
        let kind = FindingKind::NotExclusive { server: server(), why };
        return Some(Finding::new(kind, Severity::Critical));
    }
    (!product.is_tested())
        .then(|| Finding::new(FindingKind::UntestedProduct { server: server() }, Severity::Warning))
}

/// Whether a finding is about the product, and not about its settings.
pub(crate) const fn is_about_product(finding: &Finding) -> bool {
    matches!(finding.kind, FindingKind::NotExclusive { .. } | FindingKind::UntestedProduct { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_recognized_by_what_only_it_reports() {
        for (info, name, severity) in [
            ("redis_version:7.0.15\r\nrole:master\r\n", "Redis 7.0.15", None),
            ("redis_version:7.2.4\r\nvalkey_version:9.0.0\r\n", "Valkey 9.0.0", None),
            (
                "redis_version:7.4.0\r\ndragonfly_version:df-v1.40.1\r\n",
                "Dragonfly df-v1.40.1",
                Some(Severity::Warning),
            ),
            ("garnet_version:1.0.61\r\nredis_version:7.4.3\r\n", "Garnet 1.0.61", Some(Severity::Critical)),
            (
                "version:2.9.0\r\nkvrocks_version:2.9.0\r\nredis_version:4.0.0\r\n",
                "Kvrocks 2.9.0",
                Some(Severity::Warning),
            ),
            ("upstash_version:1.10.5\r\nredis_version:6.2.6\r\n", "Upstash 1.10.5", Some(Severity::Warning)),
            (
                "redis_version:6.3.4\r\nmvcc_depth:0\r\nrole:master\r\n",
                "KeyDB 6.3.4",
                Some(Severity::Warning),
            ),
            (
                "redis_version:6.3.4\r\nmvcc_depth:0\r\nrole:active-replica\r\n",
                "KeyDB 6.3.4",
                Some(Severity::Critical),
            ),
            (
                "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.8\r\ngcc_version:12.2.0\r\n",
                "Valkey 8.1.8",
                None,
            ),
            // Of another section it says nothing.
            (
                "# Server\r\nredis_version:7.0.15\r\n\r\n# Modules\r\nsearch_version:2.8\r\n",
                "Redis 7.0.15",
                None,
            ),
            (
                "# Server\r\nredis_version:7.4.0\r\nstore_version:3.1\r\n",
                "unknown product store_version:3.1",
                Some(Severity::Warning),
            ),
            (
                "# Server\r\nserver_name:store\r\nredis_version:7.2.4\r\nvalkey_version:8.0.0\r\n",
                "unknown product server_name:store",
                Some(Severity::Warning),
            ),
            (
                "redis_version:7.4.0\r\nmodule:name=ReJSON,ver=1\r\nmodule:name=crdt,ver=2\r\n",
                "Redis Active-Active 7.4.0",
                Some(Severity::Critical),
            ),
        ] {
            let (product, version) = Product::of(info).expect("a product");
            assert_eq!(format!("{} {version}", product.name()), name, "{info}");
            assert_eq!(finding(product, version).map(|finding| finding.severity), severity, "{info}");
        }
        assert_eq!(Product::of("role:master\r\n"), None);
    }
}
