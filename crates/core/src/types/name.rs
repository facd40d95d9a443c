//! The name of a lock, parsed once at the edge.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Between a name and a key. The encoded key has no `#`, so the last one ends the name.
const KEY_MARK: &str = "#key:";
/// Before the hash of a key. An encoded key has two hexadecimal digits after each `%`.
const HASHED_MARK: &str = "%sha1:";

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// Cheap to clone. Further restrictions depend on the store's keys: see
/// [`KeySpace::lock`](crate::KeySpace::lock).
///
/// ```
/// use leasehold_core::LockName;
///
/// let name: LockName = "orders/42".parse()?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert!("".parse::<LockName>().is_err());
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 512;

    /// Parses a name.
    pub fn new(name: impl AsRef<str>) -> Result<Self, NameError> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > Self::MAX_LEN {
            return Err(NameError::TooLong { len: name.len() });
        }
        if let Some((at, found)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::Control { at, found });
        }
        Ok(Self(name.into()))
    }

    /// Makes a name of any text: the SHA-1 hash of its UTF-8 bytes, as 40 hexadecimal digits. Equal texts get equal
    /// names, on every host and in every version.
    ///
    /// For texts that [`new`](Self::new) refuses or that are secret, such as URLs and tokens. Two texts can be made to
    /// have the same hash at great cost: their locks would exclude each other.
    ///
    /// ```
    /// use leasehold_core::LockName;
    ///
    /// let url = format!("https://example.org/?{}", "q=1&".repeat(500));
    /// assert_eq!(LockName::hashed(&url), LockName::hashed(&url));
    /// assert_eq!(LockName::hashed("abc").as_str(), "a9993e364706816aba3e25717850c26c9cd0d89d");
    /// ```
    pub fn hashed(text: impl AsRef<str>) -> Self {
        Self(sha1_smol::Sha1::from(text.as_ref()).digest().to_string().into())
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part of the name that decides where the lock is kept in a store of several servers: the text
    /// between the first `{` and the first `}` after it, if that is not empty, or else the whole name. Locks
    /// with the same hash tag are kept together.
    ///
    /// ```
    /// use leasehold_core::LockName;
    ///
    /// assert_eq!(LockName::new("{orders}/42")?.hash_tag(), "orders");
    /// assert_eq!(LockName::new("orders/42")?.hash_tag(), "orders/42");
    /// # Ok::<(), leasehold_core::NameError>(())
    /// ```
    pub fn hash_tag(&self) -> &str {
        hashed(&self.0)
    }
}

/// A name that many locks share, each for a key.
///
/// Two different pairs of a name and a key have different names, and a key adds no hash tag. The name of a lock is the
/// shared one, `#key:`, and the key with `#`, `%`, `{`, `}` and control characters percent-encoded. A key for which that is
/// too long is replaced by `%sha1:` and its [hash](LockName::hashed), and differs from others as the hash does.
///
/// ```
/// use leasehold_core::{KeyedName, LockName};
///
/// let exports = KeyedName::new(LockName::new("exports")?)?;
/// assert_eq!(exports.for_key("acme").as_str(), "exports#key:acme");
/// assert_eq!(exports.for_key("50%\n{}").as_str(), "exports#key:50%25%0A%7B%7D");
/// assert!(exports.for_key(&"x".repeat(1_000)).as_str().starts_with("exports#key:%sha1:"));
/// # Ok::<(), leasehold_core::NameError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyedName(LockName);

impl KeyedName {
    /// The longest shared name, in bytes.
    pub const MAX_LEN: usize = LockName::MAX_LEN - KEY_MARK.len() - HASHED_MARK.len() - 40;

    /// Fails if the name has more than [`MAX_LEN`](Self::MAX_LEN) bytes.
    pub fn new(name: LockName) -> Result<Self, NameError> {
        match name.0.len() {
            len if len > Self::MAX_LEN => Err(NameError::TooLongForKeys { len }),
            _ => Ok(Self(name)),
        }
    }

    /// The shared name.
    pub const fn name(&self) -> &LockName {
        &self.0
    }

    /// The name of the lock for a key, which may be any text, also an empty one.
    pub fn for_key(&self, key: &str) -> LockName {
        let name = &self.0;
        let encoded = format!("{name}{KEY_MARK}{}", KeyText(key));
        if encoded.len() <= LockName::MAX_LEN {
            return LockName(encoded.into());
        }
        LockName(format!("{name}{KEY_MARK}{HASHED_MARK}{}", LockName::hashed(key)).into())
    }
}

/// A key, as part of a name.
struct KeyText<'a>(&'a str);

impl fmt::Display for KeyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() || matches!(c, '#' | '%' | '{' | '}') {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    write!(f, "%{byte:02X}")?;
                }
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for LockName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

/// Parses names given as other types.
macro_rules! parse_from {
    ($($text:ty),+) => { $(
        impl TryFrom<$text> for LockName {
            type Error = NameError;

            fn try_from(name: $text) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    )+ };
}

parse_from! { &str, String, &String, Arc<str>, &Arc<str>, Box<str>, Cow<'_, str>, &Cow<'_, str> }

/// Without a `String` of the caller's own: `client.mutex(format_args!("orders/{id}"))`.
impl TryFrom<fmt::Arguments<'_>> for LockName {
    type Error = NameError;

    fn try_from(name: fmt::Arguments<'_>) -> Result<Self, NameError> {
        match name.as_str() {
            Some(name) => Self::new(name),
            None => Self::new(name.to_string()),
        }
    }
}

impl From<&Self> for LockName {
    fn from(name: &Self) -> Self {
        name.clone()
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Lets functions accept a `LockName` where they parse other types into one.
impl From<std::convert::Infallible> for NameError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Why a text is not the name of a lock.
///
/// ```
/// use leasehold_core::{LockName, NameError};
///
/// assert_eq!(LockName::new("orders\n42"), Err(NameError::Control { at: 6, found: '\n' }));
/// assert!(LockName::new("x".repeat(513)).unwrap_err().to_string().ends_with("use `LockName::hashed`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("a lock name needs at least one character")]
    Empty,
    /// The text is longer than [`LockName::MAX_LEN`].
    #[error("a lock name has at most 512 bytes, this one has {len}: shorten it, or use `LockName::hashed`")]
    TooLong {
        /// The length of the text, in bytes.
        len: usize,
    },
    /// The text is longer than [`KeyedName::MAX_LEN`].
    #[error(
        "a lock name for keys has at most 461 bytes, this one has {len}: shorten it, or use `LockName::hashed`"
    )]
    TooLongForKeys {
        /// The length of the text, in bytes.
        len: usize,
    },
    /// The text has a control character.
    #[error("a lock name has no control characters, but {found:?} is at byte {at}")]
    Control {
        /// The position of the character, in bytes.
        at: usize,
        /// The character.
        found: char,
    },
}

/// The part of a key that Redis hashes: its hash tag, or else all of it.
pub(crate) fn hashed(key: &str) -> &str {
    tag(key).unwrap_or(key)
}

/// What is between the first `{` and the first `}` after it, if that is not empty.
pub(crate) fn tag(key: &str) -> Option<&str> {
    let (tag, _) = key.split_once('{')?.1.split_once('}')?;
    Some(tag).filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_text_is_a_name() {
        let id = 42;
        let expected = LockName::new("orders/42");
        let text = || "orders/42".to_owned();
        assert_eq!(LockName::try_from(text()), expected);
        assert_eq!(LockName::try_from(Arc::<str>::from(text())), expected);
        assert_eq!(LockName::try_from(&Arc::<str>::from(text())), expected);
        assert_eq!(LockName::try_from(text().into_boxed_str()), expected);
        assert_eq!(LockName::try_from(Cow::Borrowed("orders/42")), expected);
        assert_eq!(LockName::try_from(&Cow::<str>::Owned(text())), expected);
        assert_eq!(LockName::try_from(format_args!("orders/{id}")), expected);
        assert_eq!(LockName::try_from(format_args!("")), Err(NameError::Empty));
    }

    #[test]
    fn bounds_of_a_name() {
        assert_eq!(LockName::new(""), Err(NameError::Empty));
        assert_eq!(LockName::new("a\0b"), Err(NameError::Control { at: 1, found: '\0' }));
        assert_eq!(LockName::new("a\r\nb"), Err(NameError::Control { at: 1, found: '\r' }));
        assert_eq!(LockName::new("é\u{85}"), Err(NameError::Control { at: 2, found: '\u{85}' }));
        assert!(LockName::new("x".repeat(512)).is_ok());
        assert_eq!(LockName::new("x".repeat(513)), Err(NameError::TooLong { len: 513 }));
        assert_eq!(LockName::new("é".repeat(257)), Err(NameError::TooLong { len: 514 }));
        for odd in ["*", "a b", "'\"", "{", "}{", "a}b", "[x]?", "\\", "日本"] {
            assert_eq!(LockName::new(odd).as_ref().map(LockName::as_str), Ok(odd));
        }
    }

    #[test]
    fn pairs_of_a_name_and_a_key_have_different_names() {
        let long = "k".repeat(600);
        let hash = LockName::hashed(&long);
        let keys = [
            "",
            "a",
            "A",
            "#",
            "#key:",
            "#key:a",
            "%",
            "%23",
            "%23key:a",
            "{",
            "}",
            "{a}",
            "\0",
            "\n",
            "\u{85}",
            "é",
            "日本",
            "/",
            "*",
            "a b",
            &long,
            &format!("{long}k"),
            &format!("%sha1:{hash}"),
            &format!("sha1:{hash}"),
            hash.as_str(),
        ]
        .map(str::to_owned);
        let longest = "n".repeat(461);
        let names = ["a", "a#key:", "a#key:a", "a#key:%23", "{t}/a", "a{b", "é", &longest];
        let mut seen = std::collections::BTreeMap::new();
        for name in names {
            let keyed = LockName::new(name).and_then(KeyedName::new).expect("a good name");
            for key in &keys {
                let made = keyed.for_key(key);
                assert_eq!(LockName::new(made.as_str()).as_ref(), Ok(&made), "a good name: {made:?}");
                assert_eq!(tag(made.as_str()), tag(name), "{made:?}");
                let before = seen.insert(made.clone(), (name, key.clone()));
                assert_eq!(before, None, "{made:?}");
            }
        }
        let too_long = LockName::new("n".repeat(462)).expect("a good name");
        assert_eq!(KeyedName::new(too_long), Err(NameError::TooLongForKeys { len: 462 }));
        assert_eq!(KeyedName::MAX_LEN, 461);
    }
}
