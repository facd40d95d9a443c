//! Builds every key and channel of a Redis store. No other module does.
//!
//! 1. Injective: two locks, of whatever kind, never share a key, and no lock's own key is another lock's
//!    record, or a session's. (Each of Leasehold's own keys contains `leasehold:{`, which the full name of a
//!    lock must not contain.)
//! 2. One slot: all keys of a lock hash as the lock's own key does. In a cluster, each slot has its own
//!    record and mailbox of a session.
//! 3. Literal: no part of a name is ever a pattern.

use crate::types::name::{hashed, tag};
use crate::{Kind, Lock, SessionId};
use crc::{CRC_16_XMODEM, Crc};
use std::fmt::{self, Write};
use std::sync::LazyLock;

/// Contained in every key of Leasehold's own, and in no name of a lock.
const RESERVED: &str = "leasehold:{";

/// Between the hash tag and the kind, in the keys of a record, of an audit and of an index.
const RECORD: &str = ":record:";
const AUDIT: &str = ":audit:";
const ENDS: &str = ":ends:";
const HISTORY: &str = ":history:";
const LINE: &str = ":line:";

/// The number of slots in a cluster.
const SLOTS: u16 = 16_384;
const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// For each slot, the smallest number whose decimal text hashes to it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; SLOTS.into()];
    let mut missing = SLOTS;
    for number in 0..u32::MAX {
        let tag = &mut tags[usize::from(slot(&number.to_string()))];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags
});

/// Leasehold's part of a store's keys, with an optional prefix before every key and channel.
///
/// ```
/// use leasehold_core::{KeySpace, Lock};
///
/// let keys = KeySpace::new("app:")?.lock(&Lock::mutex("orders/42".parse()?))?;
/// assert_eq!(keys.name(), "app:orders/42");
/// assert_eq!(keys.record(), "app:leasehold:{app:orders/42}:record:mutex:app:orders/42");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpace {
    prefix: String,
    mailboxes: String,
    watermark: String,
}

/// The keys of one lock.
///
/// ```
/// use leasehold_core::{KeySpace, Lock};
///
/// // All of them hash by the text between the braces, so they are in one slot of a cluster.
/// let keys = KeySpace::default().lock(&Lock::mutex("{orders}/42".parse()?))?;
/// assert_eq!(keys.name(), "{orders}/42");
/// assert_eq!(keys.record(), "leasehold:{orders}:record:mutex:{orders}/42");
/// assert_eq!(keys.audit(), "leasehold:{orders}:audit:mutex:{orders}/42");
/// assert_eq!(keys.ends(), "leasehold:{orders}:ends:mutex:{orders}/42"); // of shared locks only
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockKeys {
    /// The longest key. The other keys are parts of it, or nearly so: keys are built for each request.
    record: String,
    /// The end of the part of it that all keys but the lock's own share.
    tag_end: usize,
    /// The start of the lock's own key in it.
    name_start: usize,
}

impl LockKeys {
    /// The lock itself, at the name that other clients know.
    pub fn name(&self) -> &str {
        self.record.get(self.name_start..).unwrap_or_default()
    }

    /// The record beside the lock: fencing token, holder, last ended hold, queue.
    pub fn record(&self) -> &str {
        &self.record
    }

    /// The audit of evictions and forced releases.
    pub fn audit(&self) -> String {
        self.beside(AUDIT)
    }

    /// The history of the holds that were released.
    pub fn history(&self) -> String {
        self.beside(HISTORY)
    }

    /// The index of the holds of a shared lock by their ends.
    pub fn ends(&self) -> String {
        self.beside(ENDS)
    }

    /// The line of the waiters, on a node of a quorum.
    pub fn line(&self) -> String {
        self.beside(LINE)
    }

    fn beside(&self, what: &str) -> String {
        let (prefix, rest) = self.record.split_at_checked(self.tag_end).unwrap_or_default();
        [prefix, what, rest.strip_prefix(RECORD).unwrap_or_default()].concat()
    }

    /// The slot of these keys in a cluster.
    ///
    /// ```
    /// use leasehold_core::{KeySpace, Lock};
    ///
    /// let slot = |name: &str| -> Result<u16, Box<dyn std::error::Error>> {
    ///     Ok(KeySpace::default().lock(&Lock::mutex(name.parse()?))?.slot())
    /// };
    /// assert_eq!(slot("123456789")?, 0x31c3); // as the documentation of Redis says
    /// assert_eq!(slot("{orders}/42")?, slot("{orders}/43")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slot(&self) -> u16 {
        slot(self.name())
    }

    /// The channel on which Redisson clients publish the release of the `RLock` of this name, and to which
    /// they subscribe.
    ///
    /// ```
    /// use leasehold_core::{KeySpace, Lock};
    ///
    /// let channel = |name: &str| -> Result<String, Box<dyn std::error::Error>> {
    ///     Ok(KeySpace::default().lock(&Lock::reentrant(name.parse()?))?.redisson_channel())
    /// };
    /// assert_eq!(channel("orders/42")?, "redisson_lock__channel:{orders/42}");
    /// assert_eq!(channel("{orders}/42")?, "redisson_lock__channel:{orders}/42");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn redisson_channel(&self) -> String {
        let name = self.name();
        if name.contains('{') {
            format!("redisson_lock__channel:{name}")
        } else {
            format!("redisson_lock__channel:{{{name}}}")
        }
    }
}

impl KeySpace {
    /// The longest prefix, in bytes.
    pub const MAX_PREFIX: usize = 128;

    /// Keys that all begin with `prefix`, which may be empty.
    pub fn new(prefix: &str) -> Result<Self, KeyError> {
        if prefix.len() > Self::MAX_PREFIX {
            return Err(KeyError::PrefixTooLong { len: prefix.len() });
        }
        if prefix.chars().any(|c| c.is_control() || c == '{' || c == '}') {
            return Err(KeyError::PrefixCharacter);
        }
        Ok(Self::with_prefix(prefix.to_owned()))
    }

    fn with_prefix(prefix: String) -> Self {
        let watermark = [&prefix, RESERVED, "watermark}"].concat();
        Self { mailboxes: [&prefix, "leasehold:mailbox:"].concat(), watermark, prefix }
    }

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The keys of a lock, or why this lock cannot have any.
    pub fn lock(&self, lock: &Lock) -> Result<LockKeys, KeyError> {
        let (own, kind) = (lock.name.as_str(), lock.kind.as_str());
        let prefix = self.prefix.as_str();
        // A prefix has no braces, so it is hashed only where the whole key is.
        let hashed = [if tag(own).is_some() { "" } else { prefix }, hashed(own)];
        let mut record = String::with_capacity(64 + 3 * (prefix.len() + own.len()));
        record.extend([prefix, RESERVED, hashed[0], hashed[1], "}"]);
        let tag_end = record.len();
        record.extend([RECORD, kind, ":"]);
        let name_start = record.len();
        record.extend([prefix, own]);
        let keys = LockKeys { record, tag_end, name_start };
        if keys.name().contains(RESERVED) {
            return Err(KeyError::Reserved);
        }
        if hashed[1].contains('}') {
            return Err(KeyError::Brace);
        }
        Ok(keys)
    }

    /// The channel that announces a change of leader of an Election; in the lock's slot.
    ///
    /// ```
    /// use leasehold_core::{KeySpace, Lock};
    ///
    /// let space = KeySpace::new("app:")?;
    /// let keys = space.lock(&Lock::election("{orders}/42".parse()?))?;
    /// assert_eq!(space.leader_channel(&keys), "app:leasehold:{orders}:leader:app:{orders}/42");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leader_channel(&self, keys: &LockKeys) -> String {
        [&self.tagged_prefix(hashed(keys.name())), ":leader:", keys.name()].concat()
    }

    /// The channel that announces the release of a Mutex to clients that wait without a queue entry; in the
    /// lock's slot.
    ///
    /// ```
    /// use leasehold_core::{KeySpace, Lock};
    ///
    /// let space = KeySpace::new("app:")?;
    /// let keys = space.lock(&Lock::mutex("{orders}/42".parse()?))?;
    /// assert_eq!(space.release_channel(&keys), "app:leasehold:{orders}:release:app:{orders}/42");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn release_channel(&self, keys: &LockKeys) -> String {
        [&self.tagged_prefix(hashed(keys.name())), ":release:", keys.name()].concat()
    }

    /// The record of a session on a single server, which has one per process.
    pub fn session(&self, session: SessionId) -> String {
        format!("{}:{session}", self.session_index())
    }

    /// The index of all sessions on a single server.
    pub fn session_index(&self) -> String {
        self.tagged_prefix("sessions")
    }

    /// The greatest fencing token of idle locks, on a single server.
    pub fn watermark(&self) -> &str {
        &self.watermark
    }

    /// The same for the locks in one slot of a cluster.
    ///
    /// ```
    /// use leasehold_core::KeySpace;
    ///
    /// assert_eq!(KeySpace::default().watermark_in(0), "leasehold:{3560}:watermark");
    /// assert_eq!(KeySpace::default().watermark(), "leasehold:{watermark}"); // on one server
    /// ```
    pub fn watermark_in(&self, slot: u16) -> String {
        self.in_slot(slot, format_args!(":watermark"))
    }

    /// The statistics of the clients, on a single server, or in this slot of a cluster.
    ///
    /// ```
    /// use leasehold_core::KeySpace;
    ///
    /// assert_eq!(KeySpace::default().statistics(None), "leasehold:{statistics}");
    /// assert_eq!(KeySpace::default().statistics(Some(0)), "leasehold:{3560}:statistics");
    /// ```
    pub fn statistics(&self, slot: Option<u16>) -> String {
        match slot {
            Some(slot) => self.in_slot(slot, format_args!(":statistics")),
            None => self.tagged_prefix("statistics"),
        }
    }

    /// A key for trials of a server, in a slot if the server is a node of a cluster. `id` distinguishes concurrent trials.
    ///
    /// ```
    /// use leasehold_core::KeySpace;
    ///
    /// assert_eq!(KeySpace::default().trial(None, 255), "leasehold:{trial}:ff");
    /// assert_eq!(KeySpace::default().trial(Some(0), 255), "leasehold:{3560}:trial:ff");
    /// ```
    pub fn trial(&self, slot: Option<u16>, id: u64) -> String {
        match slot {
            Some(slot) => self.in_slot(slot, format_args!(":trial:{id:x}")),
            None => format!("{}:{id:x}", self.tagged_prefix("trial")),
        }
    }

    /// The record of a session in one slot of a cluster. Each slot has its own, so that a script can check in
    /// one step whether a holder is alive.
    ///
    /// ```
    /// use leasehold_core::{KeySpace, Lock, SessionId};
    ///
    /// let (keys, session) = (KeySpace::default(), SessionId::from_random([7; 12]));
    /// let slot = keys.lock(&Lock::mutex("{orders}/42".parse()?))?.slot();
    /// assert_eq!(keys.session_in(slot, session), "leasehold:{1835}:session:BwcHBwcHBwcHBwcH");
    /// assert_eq!(keys.session(session), "leasehold:{sessions}:BwcHBwcHBwcHBwcH"); // on one server
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn session_in(&self, slot: u16, session: SessionId) -> String {
        self.in_slot(slot, format_args!(":session:{session}"))
    }

    /// The index of all sessions in a slot of a cluster.
    ///
    /// ```
    /// use leasehold_core::KeySpace;
    ///
    /// assert_eq!(KeySpace::default().session_index_in(0), "leasehold:{3560}:sessions");
    /// ```
    pub fn session_index_in(&self, slot: u16) -> String {
        self.in_slot(slot, format_args!(":sessions"))
    }

    /// The prefix of the channels of all sessions in a slot of a cluster. They are in the slot as its keys
    /// are.
    ///
    /// ```
    /// use leasehold_core::KeySpace;
    ///
    /// assert_eq!(KeySpace::default().mailbox_prefix_in(0), "leasehold:{3560}:mailbox:");
    /// ```
    pub fn mailbox_prefix_in(&self, slot: u16) -> String {
        self.in_slot(slot, format_args!(":mailbox:"))
    }

    /// A key of Leasehold's in a slot that belongs to no lock. Built for each heartbeat, so in one piece.
    fn in_slot(&self, slot: u16, rest: fmt::Arguments<'_>) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 64);
        // Writing to a text cannot fail.
        let _ = write!(key, "{}{RESERVED}{}}}{rest}", self.prefix, TAGS[usize::from(slot % SLOTS)]);
        key
    }

    /// The prefix of Leasehold's keys with that hash tag.
    fn tagged_prefix(&self, tag: &str) -> String {
        [&self.prefix, RESERVED, tag, "}"].concat()
    }

    /// The channel on which a session receives its grants.
    pub fn mailbox(&self, session: SessionId) -> String {
        format!("{}{session}", self.mailbox_prefix())
    }

    /// The prefix of the channels of all sessions.
    pub fn mailbox_prefix(&self) -> &str {
        &self.mailboxes
    }
}

impl Default for KeySpace {
    fn default() -> Self {
        Self::with_prefix(String::new())
    }
}

/// The slot of a key in a cluster.
fn slot(key: &str) -> u16 {
    CRC.checksum(hashed(key).as_bytes()) % SLOTS
}

/// Why a name or a prefix has no valid keys.
///
/// ```
/// use leasehold_core::{KeyError, KeySpace, Lock};
///
/// let keys = KeySpace::default();
/// assert_eq!(keys.lock(&Lock::mutex("orders}42".parse()?)), Err(KeyError::Brace));
/// assert!(keys.lock(&Lock::mutex("{orders}42".parse()?)).is_ok());
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The prefix is longer than [`KeySpace::MAX_PREFIX`].
    #[error("a key prefix has at most 128 bytes, this one has {len}")]
    PrefixTooLong {
        /// The length of the prefix, in bytes.
        len: usize,
    },
    /// The prefix has a brace or a control character.
    #[error(
        "a key prefix has neither braces nor control characters: put a hash tag into the lock's name instead"
    )]
    PrefixCharacter,
    /// The store is a quorum, and a majority of votes cannot provide a lock of this kind.
    #[error(
        "a quorum of stores has no {word}, only locks that a majority of votes can grant, a Mutex or a ReentrantMutex: use a single server, or one that Sentinel monitors", word = .0.as_str()
    )]
    UnsupportedByQuorum(Kind),
    /// The name is one of Leasehold's own keys.
    #[error("names with `leasehold:{{` in them are Leasehold's own keys: choose another name")]
    Reserved,
    /// Redis would hash the whole name, and the name contains a `}`.
    #[error(
        "a name with a `}}` needs a hash tag, `{{…}}` with something in it, before it: without one its keys would not lie in one slot"
    )]
    Brace,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn keys(prefix: &str, name: &str) -> Result<LockKeys, KeyError> {
        let lock = Lock::mutex(LockName::new(name).expect("a good name"));
        KeySpace::new(prefix).and_then(|space| space.lock(&lock))
    }

    #[test]
    fn hash_tags_as_redis_reads_them() {
        for (key, tag) in [
            ("plain", "plain"),
            ("{a}b", "a"),
            ("x{a}{b}", "a"),
            ("x{}{b}", "x{}{b}"),
            ("x{{a}}", "{a"),
            ("x{a", "x{a"),
            ("}{a}", "a"),
        ] {
            assert_eq!(hashed(key), tag, "{key}");
        }
    }

    #[test]
    fn every_slot_has_a_tag_of_its_own() {
        assert_eq!(slot("foo"), 12_182, "as `CLUSTER KEYSLOT` says");
        for at in 0..SLOTS {
            assert_eq!(slot(&TAGS[usize::from(at)].to_string()), at);
        }
        assert!(TAGS.iter().all(|tag| *tag < 1_000_000), "{:?}", TAGS.iter().max());
    }

    #[test]
    fn names_that_have_no_keys() {
        assert_eq!(keys("", "a}b"), Err(KeyError::Brace));
        assert_eq!(keys("", "a{}b"), Err(KeyError::Brace));
        assert_eq!(keys("", "leasehold:{x}:record:mutex:x"), Err(KeyError::Reserved));
        assert_eq!(keys("", "a:leasehold:{x}:record:mutex:x"), Err(KeyError::Reserved));
        let (space, session) = (KeySpace::default(), SessionId::from_random([7; 12]));
        for ours in [
            space.session_index(),
            space.session(session),
            space.session_index_in(7),
            space.session_in(7, session),
        ] {
            assert_eq!(keys("", &ours), Err(KeyError::Reserved), "{ours}");
        }
        assert_eq!(keys("{", "a"), Err(KeyError::PrefixCharacter));
        assert!(keys("", "leasehold:x").is_ok());
        assert!(keys("", "x{tag}y}z").is_ok());
        assert!(keys("a:", "a b*?[]\\\"'").is_ok());
    }

    proptest! {
        #[test]
        fn keys_are_injective_and_in_one_slot(
            names in proptest::collection::vec("(|a:|leasehold:|leasehold:sessions:|sessions|\\{sessions\\})[ab:{}]{1,8}|sessions|\\{sessions\\}|\\{[0-9]\\}(:|:sessions?)?", 2..40),
            prefixes in proptest::collection::vec("(|a|a:|:)", 2..40),
            sessions in proptest::collection::vec(0..3_u8, 40),
        ) {
            let mut seen: HashMap<String, (String, String)> = HashMap::new();
            for ((prefix, name), byte) in prefixes.iter().zip(&names).zip(&sessions) {
                let Ok(keys) = keys(prefix, name) else { continue };
                let space = KeySpace::new(prefix).expect("there are keys with it");
                let (tag, here) = (hashed(keys.name()).to_owned(), keys.slot());
                let session = SessionId::from_random([*byte; 12]);
                for key in [keys.record(), &keys.audit(), &keys.history(), &space.leader_channel(&keys)] {
                    prop_assert_eq!(hashed(key), &tag);
                }
                let (session_in, session_index_in) = (space.session_in(here, session), space.session_index_in(here));
                let watermark_in = space.watermark_in(here);
                for key in [&session_in, &session_index_in, &watermark_in, &space.mailbox_prefix_in(here)] {
                    prop_assert_eq!(slot(key), here);
                }
                let (one, all) = (space.session(session), space.session_index());
                prop_assert_eq!(hashed(&one), hashed(&all));
                let name = keys.name().to_owned();
                for (key, whose) in [
                    (name.clone(), (name.clone(), "name".to_owned())),
                    (keys.record().to_owned(), (name.clone(), "record".to_owned())),
                    (keys.audit(), (name.clone(), "audit".to_owned())),
                    (keys.history(), (name, "history".to_owned())),
                    (session_in, (format!("{prefix}{here}"), session.to_string())),
                    (session_index_in, (format!("{prefix}{here}"), "sessions".to_owned())),
                    (one, (prefix.clone(), session.to_string())),
                    (all, (prefix.clone(), "sessions".to_owned())),
                    (watermark_in, (format!("{prefix}{here}"), "watermark".to_owned())),
                    (space.watermark().to_owned(), (prefix.clone(), "watermark".to_owned())),
                ] {
                    if let Some(other) = seen.insert(key.clone(), whose.clone()) {
                        prop_assert_eq!(other, whose, "{}", key);
                    }
                }
            }
        }
    }
}
