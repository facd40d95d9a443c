//! The minimal ACL of a client's user.
//!
//! Owns the only lists of permissions: `leasehold acl` and the tests that run as a minimal user take them from here, and a
//! test compares them with docs/reference/redis-layout.md. Another takes each right away, to see that it is needed. [`leasehold_core::KeySpace`] defines the keys and channels.
//!
//! 1. User-supplied text never acts as a pattern: special characters in a prefix are escaped.
//! 2. The generated line does not create a user with a publicly known password if it is used unchanged: the server
//!    refuses the placeholder.

use super::RedisConfig;
use super::address::Protocol;
use super::version::ServerVersion;
use crate::location::ServerLocation;
use leasehold_core::KeySpace;
use std::collections::BTreeSet;

/// Commands that each client sends, whatever it is for. `info` and `client` are optional: it works without them.
const SENT_BY_ALL: [&str; 5] = ["client|setname", "evalsha", "info", "script|load", "subscribe"];
/// Further commands of a diagnosis.
const SENT_BY_DOCTOR: [&str; 2] = ["acl|whoami", "time"];
/// Commands called by the scripts that inspect locks and list sessions.
const CALLED_TO_READ: [&str; 10] =
    ["get", "hget", "hgetall", "hlen", "hmget", "hvals", "pttl", "time", "type", "zrange"];
/// Further commands called by the scripts that end a hold of another client, and grant the lock.
const CALLED_TO_FREE: [&str; 9] =
    ["del", "hdel", "hset", "pexpire", "publish", "set", "zadd", "zcard", "zrem"];
/// Commands that the client of locks sends.
const SENT: [&str; 9] =
    ["client|setname", "del", "evalsha", "info", "script|load", "subscribe", "time", "unsubscribe", "zrem"];
/// Further commands for cluster nodes; `cluster|info` and `ping` are optional. The last ones are missing on servers
/// without sharded channels.
const SENT_IN_CLUSTER: [&str; 7] =
    ["asking", "cluster|info", "cluster|slots", "ping", "ssubscribe", "sunsubscribe", "spublish"];
/// Index of the first command for sharded channels.
const SHARDED: usize = 4;
/// Commands that the scripts call.
const CALLED: [&str; 21] = [
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
    "set",
    "time",
    "type",
    "zadd",
    "zcard",
    "zrange",
    "zrem",
    "zremrangebyscore",
];
/// Placeholder for the password (2).
const PLACEHOLDER: &str = "#SHA256_OF_THE_PASSWORD";
/// Characters with a special meaning in a pattern (1).
const PATTERN_CHARACTERS: [char; 5] = ['*', '?', '[', ']', '\\'];

/// What a user of the server is for: each purpose needs permissions of its own.
///
/// ```
/// use leasehold::store::{Permissions, Purpose, RedisConfig};
///
/// let config: RedisConfig = "redis://locks.example?prefix=app:".parse()?;
/// let reader = Permissions::of(&config)?.purpose(Purpose::Operator);
/// assert!(!reader.rules().contains(&"+set".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Purpose {
    /// Whatever the library and the program do, except the name of the user in a diagnosis.
    #[default]
    Locks,
    /// To look at locks, sessions and the server, and to change nothing: `ls`, `show`, `wait` and `doctor`.
    Operator,
    /// The same, and to take a lock from its holder: `free`.
    FreeingOperator,
    /// To free the locks of dead sessions: `monitor`.
    Monitor,
}

/// The minimal permissions of a client's user: commands, keys and channels, as ACL rules.
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
    purpose: Purpose,
    /// Further commands that the configuration needs.
    extra: Vec<&'static str>,
    /// Whether the server is a cluster.
    cluster: bool,
    server: ServerVersion,
}

/// Error for text that an ACL cannot contain.
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
    /// The prefix of the keys contains a space.
    #[error("the prefix contains a space, which an ACL pattern cannot: choose another prefix")]
    Prefix,
    /// The name is not valid for a user.
    #[error("the name of an ACL user is not empty, and has no spaces or control characters")]
    User,
}

impl Permissions {
    /// The permissions for a client with this configuration, on the newest supported server.
    pub fn of(config: &RedisConfig) -> Result<Self, PermissionsError> {
        if config.keys().prefix().contains(char::is_whitespace) {
            return Err(PermissionsError::Prefix);
        }
        let extra = [
            ("select", config.database() != 0),
            ("wait", config.wanted_replicas() != 0),
            ("waitaof", config.is_durable()),
            ("config|get", config.is_durable()),
            ("ping", config.protocol() == Protocol::Resp2),
            ("client|tracking", config.is_tracking()),
            ("client|caching", config.is_tracking()),
        ];
        let extra =
            extra.into_iter().filter_map(|(command, is_needed)| is_needed.then_some(command)).collect();
        let cluster = matches!(config.location(), ServerLocation::Cluster(_));
        let (keys, purpose, server) = (config.keys().clone(), Purpose::default(), ServerVersion::NEWEST);
        Ok(Self { keys, purpose, extra, cluster, server })
    }

    /// The permissions of a user for this purpose, in place of [`Purpose::Locks`].
    #[must_use]
    pub const fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// The permissions for a server of this version.
    #[must_use]
    pub fn on(mut self, server: ServerVersion) -> Self {
        self.server = server;
        self
    }

    /// Returns the rules for `ACL SETUSER` of a user with no other permissions. They set no password, and do not
    /// switch the user `on`.
    pub fn rules(&self) -> Vec<String> {
        let mut rules = vec!["resetkeys".to_owned(), "resetchannels".to_owned(), "-@all".to_owned()];
        rules.extend(self.patterns());
        rules.extend(self.commands().into_iter().map(|command| format!("+{command}")));
        rules
    }

    /// Returns the complete command in the syntax of `redis-cli`, with a placeholder for the password: replace it by
    /// the SHA-256 of a password, or by `>` and the password. An existing user of that name keeps no other
    /// permissions.
    pub fn acl(&self, user: &str) -> Result<String, PermissionsError> {
        if user.is_empty() || user.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(PermissionsError::User);
        }
        let mut words = ["ACL", "SETUSER", user, "reset", "on", PLACEHOLDER].map(quoted).to_vec();
        words.extend(self.rules().iter().map(|rule| quoted(rule)));
        Ok(words.join(" "))
    }

    /// Patterns of keys and channels: Leasehold's own, and Redisson's for the same locks.
    fn patterns(&self) -> Vec<String> {
        let prefix = escaped(self.keys.prefix());
        // Not `%R~`, also for a user that only reads: a server takes each key of a script for one that is written.
        let keys = format!("~{prefix}*");
        let mut patterns = vec![keys, format!("&{prefix}leasehold:*")];
        if self.purpose == Purpose::Operator {
            return patterns;
        }
        // Redisson puts the name in braces, unless it contains braces itself.
        patterns.push(format!("&redisson_lock__channel:{prefix}*"));
        if !prefix.is_empty() {
            patterns.push(format!("&redisson_lock__channel:{{{prefix}*"));
        }
        patterns
    }

    fn commands(&self) -> BTreeSet<&'static str> {
        let mut commands: BTreeSet<_> = match self.purpose {
            Purpose::Locks => SENT.into_iter().chain(CALLED).collect(),
            Purpose::Operator => {
                SENT_BY_ALL.into_iter().chain(SENT_BY_DOCTOR).chain(CALLED_TO_READ).collect()
            }
            Purpose::FreeingOperator => {
                let reads = SENT_BY_ALL.into_iter().chain(SENT_BY_DOCTOR).chain(CALLED_TO_READ);
                reads.chain(CALLED_TO_FREE).collect()
            }
            Purpose::Monitor => SENT_BY_ALL.into_iter().chain(CALLED_TO_READ).chain(CALLED_TO_FREE).collect(),
        };
        // A server that does not know a subcommand refuses the whole command.
        if self.server.knows_client_setinfo() {
            commands.insert("client|setinfo");
        }
        // Newer servers let each user log in.
        if self.server.checks_hello() {
            commands.insert("hello");
        }
        // Only a client that holds locks has them confirmed.
        let confirms = |command: &str| ["wait", "waitaof", "config|get"].contains(&command);
        let extra = self.extra.iter().filter(|command| self.purpose == Purpose::Locks || !confirms(command));
        commands.extend(extra);
        if self.cluster {
            let known = if self.server.knows_sharded_channels() { SENT_IN_CLUSTER.len() } else { SHARDED };
            let is_needed = |command: &&&str| **command != "spublish" || self.purpose != Purpose::Operator;
            commands.extend(SENT_IN_CLUSTER[..known].iter().filter(is_needed));
        }
        commands
    }
}

/// Escapes a text, so that the pattern matches only the text itself (1).
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if PATTERN_CHARACTERS.contains(&c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Quotes a word for `redis-cli`.
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

    /// The list is minimal: each command is called by a script or sent by the client.
    #[test]
    fn the_commands_are_those_of_the_scripts() {
        let called: BTreeSet<_> = crate::lua::all_texts()
            .into_iter()
            .flat_map(|text| text.split("call('").skip(1))
            .filter_map(|call| call.split_once('\''))
            .map(|(command, _)| command.to_ascii_lowercase())
            .collect();
        // Only cluster nodes get these.
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
    fn rules_depend_on_the_server_version() {
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
        assert!(has(rules("redis://h?durable=1", ServerVersion::NEWEST), "+waitaof"));
        assert!(has(rules("redis://h?durable=1", ServerVersion::NEWEST), "+config|get"));
        assert!(!has(rules("redis://h", ServerVersion::NEWEST), "+ping"));
        assert!(has(rules("redis://h?protocol=resp2", ServerVersion::NEWEST), "+ping"));
        assert!(!has(rules("redis://h", ServerVersion::NEWEST), "+client|tracking"));
        for rule in ["+client|tracking", "+client|caching"] {
            assert!(has(rules("redis://h?tracking=1", ServerVersion::NEWEST), rule), "{rule}");
        }
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
    fn a_purpose_needs_no_more_than_its_scripts_call() {
        let of = |purpose, url: &str| {
            let config = url.parse().expect("a good URL");
            Permissions::of(&config).expect("a good prefix").purpose(purpose).rules()
        };
        let all = of(Purpose::Locks, "redis://h?replicas=1");
        for purpose in [Purpose::Operator, Purpose::FreeingOperator, Purpose::Monitor] {
            let rules = of(purpose, "redis://h?replicas=1");
            let mut further = rules.iter().filter(|rule| !all.contains(rule));
            assert!(further.all(|rule| rule == "+acl|whoami"), "{purpose:?}: {rules:?}");
            assert!(!rules.contains(&"+wait".to_owned()), "{purpose:?}");
            let in_cluster = of(purpose, "redis+cluster://h");
            assert!(in_cluster.contains(&"+cluster|slots".to_owned()), "{purpose:?}");
            let publishes = rules.contains(&"+publish".to_owned());
            assert_eq!(in_cluster.contains(&"+spublish".to_owned()), publishes, "{purpose:?}");
            assert_eq!(publishes, purpose != Purpose::Operator);
        }
        let reads = of(Purpose::Operator, "redis://h");
        for command in ["set", "del", "hset", "hdel", "pexpire", "zadd", "zrem", "publish"] {
            assert!(!reads.contains(&format!("+{command}")), "{command}");
        }
    }

    #[test]
    fn words_are_quoted_for_redis_cli() {
        let config: RedisConfig = "redis://h?prefix=it's%5C:".parse().expect("a good URL");
        let acl = Permissions::of(&config).expect("a good prefix").acl("locks").expect("a good name");
        assert!(acl.starts_with("ACL SETUSER locks reset on #SHA256_OF_THE_PASSWORD resetkeys "), "{acl}");
        assert!(acl.contains(r#" "~it's\\\\:*" "#), "{acl}");
    }

    #[test]
    fn invalid_user_names_are_refused() {
        let permissions = Permissions::of(&"redis://h".parse().expect("a good URL")).expect("a good prefix");
        for user in ["", "two words", "two\nlines", "nul\0"] {
            assert_eq!(permissions.acl(user), Err(PermissionsError::User), "{user:?}");
        }
    }
}
