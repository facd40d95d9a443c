//! The keys of a server, as a test reads them.

use leasehold_testkit::Value;
use std::collections::BTreeMap;

type Bytes = Vec<u8>;

/// The keys of a fixture, and the messages that scripts published.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keyspace {
    pub(crate) keys: BTreeMap<String, Entry>,
    /// Channel and text, in order.
    pub(crate) messages: Vec<(String, String)>,
}

/// The content of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) content: Content,
    /// The last millisecond of its life, or `None` if it never expires.
    pub(crate) expires_ms: Option<u64>,
}

/// A value of a type that the tests need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Text(Bytes),
    Hash(BTreeMap<Bytes, Bytes>),
    List(Vec<Bytes>),
    /// Members and their scores, which are whole numbers here.
    Sorted(BTreeMap<Bytes, u64>),
}

impl Content {
    /// The name of its type, as TYPE reports it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }

    /// Its text if it is a string, else its type.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).into_owned(),
            other => other.kind().to_owned(),
        }
    }

    /// The command that writes it to a key that does not exist.
    fn command(&self, key: &str) -> Vec<Bytes> {
        let command = |name: &str, arguments: Vec<Bytes>| {
            [vec![name.as_bytes().to_vec(), key.as_bytes().to_vec()], arguments].concat()
        };
        match self {
            Self::Text(text) => command("SET", vec![text.clone()]),
            Self::Hash(hash) => {
                command("HSET", hash.iter().flat_map(|(field, text)| [field.clone(), text.clone()]).collect())
            }
            Self::List(items) => command("RPUSH", items.clone()),
            Self::Sorted(set) => {
                let pair = |(member, score): (&Bytes, &u64)| [score.to_string().into_bytes(), member.clone()];
                command("ZADD", set.iter().flat_map(pair).collect())
            }
        }
    }
}

impl Entry {
    /// An entry as the prelude dumps it; `None` if the key does not exist.
    pub(crate) fn of(dumped: &Value, now_ms: u64) -> Option<Self> {
        let [kind, content, ttl] = dumped.elements() else { panic!("{dumped:?}") };
        let bytes = |value: &Value| value.bytes().unwrap_or_default().to_vec();
        let pairs = content.elements().chunks(2);
        let score = |score: &Value| score.text().and_then(|score| score.parse().ok()).expect("a whole score");
        let content = match kind.text() {
            Some("string") => Content::Text(bytes(content)),
            Some("hash") => Content::Hash(pairs.map(|pair| (bytes(&pair[0]), bytes(&pair[1]))).collect()),
            Some("list") => Content::List(content.elements().iter().map(bytes).collect()),
            Some("zset") => Content::Sorted(pairs.map(|pair| (bytes(&pair[0]), score(&pair[1]))).collect()),
            _ => return None,
        };
        let ttl = ttl.integer().and_then(|ttl| u64::try_from(ttl).ok());
        Some(Self { content, expires_ms: ttl.map(|ttl_ms| now_ms + ttl_ms) })
    }

    /// The commands that write it to a key that does not exist.
    pub(crate) fn commands(&self, key: &str) -> Vec<Vec<Bytes>> {
        let expiry = self.expires_ms.map(|at_ms| {
            vec![b"PEXPIREAT".to_vec(), key.as_bytes().to_vec(), at_ms.to_string().into_bytes()]
        });
        [self.content.command(key)].into_iter().chain(expiry).collect()
    }
}

impl Keyspace {
    /// The content of a key.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.keys.get(key)
    }

    /// All keys.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.keys.iter().map(|(key, entry)| (key.as_str(), entry))
    }

    /// Removes what has expired.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.keys.retain(|_, entry| entry.expires_ms.is_none_or(|at_ms| now_ms <= at_ms));
    }
}
