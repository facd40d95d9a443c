//! What a user of a server needs at least, as an ACL.
//!
//! Owns the only list of it: docs/reference/redis-layout.md, `leasehold acl` and the suite that runs as such a user have it from
//! here. Which keys and channels there are, [`leasehold_core::KeySpace`] says.
//!
//! 1. Nothing that a user chose is a pattern: what would be one in a prefix is escaped.
//! 2. A line that is used as it stands makes no user with a password that everybody knows: the server refuses it.

use super::address::Protocol;
use super::config::RedisConfig;
use super::site::Site;
use super::version::ServerVersion;
use leasehold_core::KeySpace;
use std::collections::BTreeSet;

/// What we send ourselves. `info` and `client` are asked for and not insisted on.
const SENT: [&str; 12] = [
    "client|setname",
    "del",
    "evalsha",
    "hello",
    "hgetall",
    "info",
    "script|load",
    "subscribe",
    "time",
    "unsubscribe",
    "zrange",
    "zrem",
];
/// What we send to the nodes of a cluster beside that, `cluster|info` and `ping` without insisting on them; and, last, what
/// those lack that have no sharded channels.
const SENT_IN_CLUSTER: [&str; 7] =
    ["asking", "cluster|info", "cluster|slots", "ping", "ssubscribe", "sunsubscribe", "spublish"];
/// From which of them on.
const SHARDED: usize = 4;
/// What our scripts call.
const CALLED: [&str; 19] = [
    "del",
    "get",
    "hdel",
    "hget",
    "hgetall",
    "hlen",
    "hmget",
    "hset",
    "hvals",
    "mget",
    "pexpire",
    "pttl",
    "publish",
    "restore",
    "set",
    "time",
    "type",
    "zadd",
    "zremrangebyscore",
];
/// What stands where the password belongs (2).
const PLACEHOLDER: &str = "#SHA256_OF_THE_PASSWORD";
/// What a pattern would take for something else than itself (1).
const MEANINGFUL: [char; 5] = ['*', '?', '[', ']', '\\'];

/// What the user of a client needs at least: commands, keys and channels, as rules of an ACL.
///
/// ```
/// use leasehold::store::{Permissions, RedisConfig, ServerVersion};
///
/// let config: RedisConfig = "redis://locks.example?prefix=app:".parse()?;
/// let permissions = Permissions::of(&config)?.on(ServerVersion::redis(7, 0));
/// assert!(permissions.rules().contains(&"~app:*".to_owned()));
/// println!("{}", permissions.acl("locks")?); // for redis-cli, once it has a password
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    keys: KeySpace,
    /// Commands that these settings need.
    extra: Vec<&'static str>,
    /// Set if it is a cluster.
    cluster: bool,
    server: ServerVersion,
}

/// Why something cannot stand in an ACL.
///
/// ```
/// use leasehold::store::{Permissions, PermissionsError, RedisConfig};
///
/// let config: RedisConfig = "redis://locks.example?prefix=our%20app:".parse()?;
/// assert_eq!(Permissions::of(&config), Err(PermissionsError::Prefix));
/// # Ok::<(), leasehold::store::UrlError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PermissionsError {
    /// The prefix of keys has a space in it.
    #[error("a pattern of an ACL cannot have a space in it, and the prefix has: choose another prefix")]
    Prefix,
    /// There can be no user of that name.
    #[error("a user of an ACL has a name without spaces and control characters")]
    User,
}

impl Permissions {
    /// For a client with these settings, at the newest server there is.
    pub fn of(config: &RedisConfig) -> Result<Self, PermissionsError> {
        if config.keys().prefix().contains(char::is_whitespace) {
            return Err(PermissionsError::Prefix);
        }
        let extra = [
            ("select", config.database() != 0),
            ("wait", config.wanted_replicas() != 0),
            ("ping", config.protocol() == Protocol::Resp2),
        ];
        let extra =
            extra.into_iter().filter_map(|(command, is_needed)| is_needed.then_some(command)).collect();
        let cluster = matches!(config.site(), Site::Cluster(_));
        Ok(Self { keys: config.keys().clone(), extra, cluster, server: ServerVersion::NEWEST })
    }

    /// The same at a server of this version.
    #[must_use]
    pub fn on(mut self, server: ServerVersion) -> Self {
        self.server = server;
        self
    }

    /// The rules for `ACL SETUSER`, of a user that may do nothing else: no password, and not whether he is `on`.
    pub fn rules(&self) -> Vec<String> {
        let mut rules = vec!["resetkeys".to_owned(), "resetchannels".to_owned(), "-@all".to_owned()];
        rules.extend(self.patterns());
        rules.extend(self.commands().into_iter().map(|command| format!("+{command}")));
        rules
    }

    /// The whole command for that, as `redis-cli` reads it, with a placeholder for the password: the SHA-256 of one, or
    /// `>` and the password, goes in its place. Whoever had that name before has nothing else afterwards.
    pub fn acl(&self, user: &str) -> Result<String, PermissionsError> {
        if user.is_empty() || user.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(PermissionsError::User);
        }
        let mut words = ["ACL", "SETUSER", user, "reset", "on", PLACEHOLDER].map(quoted).to_vec();
        words.extend(self.rules().iter().map(|rule| quoted(rule)));
        Ok(words.join(" "))
    }

    /// Keys, and channels: our own, and those of Redisson's for the same locks.
    fn patterns(&self) -> Vec<String> {
        let prefix = escaped(self.keys.prefix());
        let mut patterns = vec![format!("~{prefix}*"), format!("&{prefix}leasehold:*")];
        // The channel of a name has it in braces, unless the name has some itself.
        patterns.push(format!("&redisson_lock__channel:{prefix}*"));
        if !prefix.is_empty() {
            patterns.push(format!("&redisson_lock__channel:{{{prefix}*"));
        }
        patterns
    }

    fn commands(&self) -> BTreeSet<&'static str> {
        let mut commands: BTreeSet<_> = SENT.into_iter().chain(CALLED).collect();
        // A server that does not know a subcommand refuses the whole list.
        if self.server.knows_client_setinfo() {
            commands.insert("client|setinfo");
        }
        commands.extend(&self.extra);
        if self.cluster {
            let known = if self.server.knows_sharded_channels() { SENT_IN_CLUSTER.len() } else { SHARDED };
            commands.extend(&SENT_IN_CLUSTER[..known]);
        }
        commands
    }
}

/// A text as the pattern of itself (1).
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if MEANINGFUL.contains(&c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// A word as `redis-cli` reads it.
fn quoted(word: &str) -> String {
    if word.contains(['"', '\'']) {
        format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(url: &str, server: ServerVersion) -> Vec<String> {
        let config = url.parse().expect("a good URL");
        Permissions::of(&config).expect("a good prefix").on(server).rules()
    }

    /// Least: each command is called by a script or sent by us; and there is none beside.
    #[test]
    fn the_commands_are_those_of_the_scripts() {
        let called: BTreeSet<_> = super::super::lua::all_texts()
            .into_iter()
            .flat_map(|text| text.split("call('").skip(1))
            .filter_map(|call| call.split_once('\''))
            .map(|(command, _)| command.to_ascii_lowercase())
            .collect();
        // What only those of a cluster say.
        let sharded = std::iter::once("spublish");
        assert_eq!(called, CALLED.into_iter().chain(sharded).map(str::to_owned).collect());
    }

    #[test]
    fn a_prefix_is_no_pattern() {
        let rules = rules("redis://h?prefix=a%2A%5Bb%5D%3F%5C", ServerVersion::NEWEST);
        for rule in [
            r"~a\*\[b\]\?\\*",
            r"&a\*\[b\]\?\\leasehold:*",
            r"&redisson_lock__channel:a\*\[b\]\?\\*",
            r"&redisson_lock__channel:{a\*\[b\]\?\\*",
        ] {
            assert!(rules.contains(&rule.to_owned()), "{rule}: {rules:?}");
        }
    }

    #[test]
    fn a_server_gets_what_it_knows() {
        let has = |rules: Vec<String>, rule: &str| rules.iter().any(|other| other == rule);
        for (server, knows) in [
            (ServerVersion::redis(6, 2), false),
            (ServerVersion::redis(7, 0), false),
            (ServerVersion::redis(7, 2), true),
            (ServerVersion::valkey(7, 2), true),
            (ServerVersion::NEWEST, true),
        ] {
            assert_eq!(has(rules("redis://h", server), "+client|setinfo"), knows, "{server}");
        }
        assert!(!has(rules("redis://h", ServerVersion::NEWEST), "+select"));
        assert!(has(rules("redis://h/1", ServerVersion::NEWEST), "+select"));
        assert!(!has(rules("redis://h", ServerVersion::NEWEST), "+wait"));
        assert!(has(rules("redis://h?replicas=1", ServerVersion::NEWEST), "+wait"));
        assert!(!has(rules("redis://h", ServerVersion::NEWEST), "+ping"));
        assert!(has(rules("redis://h?protocol=resp2", ServerVersion::NEWEST), "+ping"));
    }

    #[test]
    fn a_cluster_needs_more() {
        let has = |url: &str, server| -> Vec<bool> {
            let rules = rules(url, server);
            SENT_IN_CLUSTER.map(|command| rules.contains(&format!("+{command}"))).into()
        };
        assert_eq!(has("redis+cluster://h", ServerVersion::redis(7, 0)), [true; 7]);
        assert_eq!(
            has("redis+cluster://h", ServerVersion::redis(6, 2)),
            [true, true, true, true, false, false, false]
        );
        assert_eq!(has("redis://h", ServerVersion::NEWEST), [false; 7]);
    }

    #[test]
    fn a_word_is_read_as_it_was_meant() {
        let config: RedisConfig = "redis://h?prefix=it's%5C:".parse().expect("a good URL");
        let acl = Permissions::of(&config).expect("a good prefix").acl("locks").expect("a good name");
        assert!(acl.starts_with("ACL SETUSER locks reset on #SHA256_OF_THE_PASSWORD resetkeys "), "{acl}");
        assert!(acl.contains(r#" "~it's\\\\:*" "#), "{acl}");
    }

    #[test]
    fn who_cannot_be_a_user_is_refused() {
        let permissions = Permissions::of(&"redis://h".parse().expect("a good URL")).expect("a good prefix");
        for user in ["", "two words", "two\nlines", "nul\0"] {
            assert_eq!(permissions.acl(user), Err(PermissionsError::User), "{user:?}");
        }
    }
}
