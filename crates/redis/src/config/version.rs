//! Version of the server, and the parsing of INFO fields.

use leasehold_store::FaultKind;
use std::fmt;

/// The oldest supported Redis, and the oldest supported Valkey.
const REDIS: (u32, u32) = (6, 2);
const VALKEY: (u32, u32) = (7, 2);

/// Product and version of a server.
///
/// ```no_run
/// use leasehold::store::{RedisConfig, ServerVersion};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config: RedisConfig = "redis://locks.example".parse()?;
/// println!("there is a {}", ServerVersion::query(&config).await?); // a Redis 7.0
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerVersion {
    is_valkey: bool,
    numbers: (u32, u32),
}

impl ServerVersion {
    /// Newer than any release.
    pub(crate) const NEWEST: Self = Self::redis(u32::MAX, 0);

    /// A Redis version, by its first two numbers.
    pub const fn redis(major: u32, minor: u32) -> Self {
        Self { is_valkey: false, numbers: (major, minor) }
    }

    /// A Valkey version, by its first two numbers.
    pub const fn valkey(major: u32, minor: u32) -> Self {
        Self { is_valkey: true, numbers: (major, minor) }
    }

    /// Parses the version in an INFO text.
    pub(crate) fn from_info(info: &str) -> Option<Self> {
        let valkey = field(info, "valkey_version");
        let (major, minor, _) = numbers(valkey.or_else(|| field(info, "redis_version"))?)?;
        Some(Self { is_valkey: valkey.is_some(), numbers: (major, minor) })
    }

    /// Whether the server has `CLIENT SETINFO`: Redis since 7.2, every Valkey.
    pub(crate) fn knows_client_setinfo(self) -> bool {
        self.is_valkey || self.numbers >= (7, 2)
    }

    /// Whether it is a Redis of this or a later major version.
    pub(crate) const fn is_redis_since(self, major: u32) -> bool {
        !self.is_valkey && self.numbers.0 >= major
    }

    /// Whether a user needs a permission for `HELLO`, which logs it in: Redis before 7.0.
    pub(crate) fn checks_hello(self) -> bool {
        !self.is_valkey && self.numbers < (7, 0)
    }

    /// Whether the server has `SSUBSCRIBE` and `SPUBLISH`: Redis since 7.0, every Valkey.
    pub(crate) fn knows_sharded_channels(self) -> bool {
        self.is_valkey || self.numbers >= (7, 0)
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (make, (major, minor)) = (if self.is_valkey { "Valkey" } else { "Redis" }, self.numbers);
        write!(f, "{make} {major}.{minor}")
    }
}

/// Checks a server by its INFO text: a single server, or a `member` of a cluster. A server that does not report its
/// version passes.
pub(crate) fn check(info: &str, member: bool) -> Result<(), FaultKind> {
    let field = |name: &str| field(info, name);
    let (product, found, oldest) = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => ("Valkey", version, VALKEY),
        (None, Some(version)) => ("Redis", version, REDIS),
        (None, None) => return Ok(()),
    };
    match numbers(found) {
        Some((major, minor, _)) if (major, minor) < oldest => Err(too_old(&format!("{product} {found}"))),
        _ if !member && field("redis_mode").or(field("server_mode")) == Some("cluster") => {
            let what = "the server is a cluster node, but the URL, or the lent connection, is that of a single server: write `redis+cluster://`";
            Err(FaultKind::Unsupported(what.to_owned()))
        }
        _ => Ok(()),
    }
}

/// The fault of a server that is too old.
pub(crate) fn too_old(found: &str) -> FaultKind {
    FaultKind::Unsupported(format!("it is {found}; Leasehold needs at least Redis 6.2 or Valkey 7.2"))
}

/// A field of INFO.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A numeric field of INFO.
pub(crate) fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

/// The numbers of a version. A third one that is missing or not numeric counts as 0.
pub(crate) fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let patch =
        parts.next().map(|patch| patch.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    Some((major, minor, patch.and_then(|patch| patch.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_parsed_from_info() {
        for (info, version) in [
            ("# Server\r\nredis_version:6.2.0\r\n", Some(ServerVersion::redis(6, 2))),
            ("redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n", Some(ServerVersion::valkey(8, 1))),
            ("redis_version:new\r\n", None),
            ("", None),
        ] {
            assert_eq!(ServerVersion::from_info(info), version, "{info}");
        }
        assert_eq!(ServerVersion::valkey(8, 1).to_string(), "Valkey 8.1");
    }

    #[test]
    fn old_servers_are_distinguished() {
        for good in [
            "# Server\r\nredis_version:6.2.0\r\n",
            "redis_version:7.0.15\r\n",
            "redis_version:8.0.1\r\n",
            "redis_version:255.255.255\r\n",
            "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.5\r\n",
            "redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n",
            "nothing of the kind",
            "",
        ] {
            assert_eq!(check(good, false), Ok(()), "{good}");
        }
        let FaultKind::Unsupported(text) = check("redis_version:6.0.16\r\n", true).expect_err("too old")
        else {
            panic!("another fault")
        };
        assert_eq!(text, "it is Redis 6.0.16; Leasehold needs at least Redis 6.2 or Valkey 7.2");
        assert!(check("redis_version:7.2.4\r\nvalkey_version:7.0.0\r\n", false).is_err());
        let node = "redis_version:7.0.15\r\nredis_mode:cluster\r\n";
        assert_eq!(check(node, true), Ok(()));
        let cluster = check(node, false).expect_err("a cluster's node");
        assert!(matches!(&cluster, FaultKind::Unsupported(text) if text.contains("cluster")), "{cluster:?}");
        assert_eq!(check("redis_version:7.0.15\r\nredis_mode:standalone\r\n", false), Ok(()));
    }
}
