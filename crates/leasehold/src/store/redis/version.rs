//! Which servers are new enough, and the fields of INFO that say so.

use crate::store::FaultKind;

/// The oldest Redis, and the oldest Valkey.
const REDIS: (u32, u32) = (6, 2);
const VALKEY: (u32, u32) = (7, 2);

/// Judges a server by the text of its INFO. One that does not tell its version passes.
pub(super) fn check(info: &str) -> Result<(), FaultKind> {
    let field = |name: &str| field(info, name);
    let (product, found, oldest) = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => ("Valkey", version, VALKEY),
        (None, Some(version)) => ("Redis", version, REDIS),
        (None, None) => return Ok(()),
    };
    match numbers(found) {
        Some((major, minor, _)) if (major, minor) < oldest => Err(too_old(&format!("{product} {found}"))),
        _ if field("redis_mode").or(field("server_mode")) == Some("cluster") => {
            let what = "it is a node of a cluster, and clusters are not supported yet: use a single server";
            Err(FaultKind::Unsupported(what.to_owned()))
        }
        _ => Ok(()),
    }
}

/// What is said of a server that is too old.
pub(super) fn too_old(found: &str) -> FaultKind {
    FaultKind::Unsupported(format!("it is {found}; Leasehold needs at least Redis 6.2 or Valkey 7.2"))
}

/// A field of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// A field that is a number.
pub(super) fn number(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

/// The numbers of a version; 0 for a third one that is missing, or is none.
pub(super) fn numbers(version: &str) -> Option<(u32, u32, u32)> {
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
    fn old_servers_are_told_apart() {
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
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let FaultKind::Unsupported(text) = check("redis_version:6.0.16\r\n").expect_err("too old") else {
            panic!("another fault")
        };
        assert_eq!(text, "it is Redis 6.0.16; Leasehold needs at least Redis 6.2 or Valkey 7.2");
        assert!(check("redis_version:7.2.4\r\nvalkey_version:7.0.0\r\n").is_err());
        let cluster = check("redis_version:7.0.15\r\nredis_mode:cluster\r\n").expect_err("a cluster's node");
        assert!(matches!(&cluster, FaultKind::Unsupported(text) if text.contains("cluster")), "{cluster:?}");
        assert_eq!(check("redis_version:7.0.15\r\nredis_mode:standalone\r\n"), Ok(()));
    }
}
