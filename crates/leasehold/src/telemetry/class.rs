//! Classes of locks: what figures are grouped by, since the names of locks are without number.
//!
//! 1. A class is given, or made from the name: what looks like an id is replaced by `*`.
//! 2. A client has at most [`MAX_CLASSES`], and then [`OTHER`]: names that look like words cannot make more.

/// The largest number of classes of a client, without the last one.
pub(super) use leasehold_core::MAX_CLASSES;
use leasehold_core::{LockName, OTHER_CLASS};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The class of all further locks.
pub(super) const OTHER: &str = OTHER_CLASS;
/// The longest class, in bytes.
const MAX_LEN: usize = 80;
/// The shortest run of hexadecimal digits that is an id, if it has decimal digits and letters.
const MIN_HEX: usize = 6;
/// The same without decimal digits: shorter ones are words.
const MIN_HEX_LETTERS: usize = 12;
/// The shortest run of letters and digits that is an id, if it has both.
const MIN_MIXED: usize = 16;
/// The lengths of the parts of a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// The classes of locks of other clients, made from their names: for figures about a fleet.
///
/// The class of `orders/42` is `orders/*`, as in the metrics of a client. There are 200 at most, and then `other`. A class that
/// another client has [given](crate::Mutex::class) to its lock is unknown here.
///
/// ```
/// use leasehold::LockName;
/// use leasehold::telemetry::LockClasses;
///
/// let classes = LockClasses::default();
/// assert_eq!(&*classes.of_name(&LockName::new("orders/42")?), "orders/*");
/// assert_eq!(&*classes.of_name(&LockName::new("nightly")?), "nightly");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct LockClasses(Classes);

impl LockClasses {
    /// The class of the lock of this name.
    pub fn of_name(&self, name: &LockName) -> Arc<str> {
        self.0.of_name(name.as_str()).0.name.clone()
    }
}

/// A class of one client.
#[derive(Debug, Clone)]
pub(crate) struct Class(Arc<ClassEntry>);

#[derive(Debug)]
struct ClassEntry {
    name: Arc<str>,
    index: usize,
}

impl Class {
    fn new(name: &str, index: usize) -> Self {
        Self(Arc::new(ClassEntry { name: name.into(), index }))
    }

    /// Its name.
    pub(super) fn as_str(&self) -> &str {
        &self.0.name
    }

    /// Its number in its client: at most [`MAX_CLASSES`].
    pub(super) fn index(&self) -> usize {
        self.0.index
    }
}

/// The classes of a client.
#[derive(Debug)]
pub(super) struct Classes {
    known: RwLock<HashMap<Box<str>, Class>>,
    other: Class,
}

impl Default for Classes {
    fn default() -> Self {
        Self { known: RwLock::default(), other: Class::new(OTHER, MAX_CLASSES) }
    }
}

impl Classes {
    /// The class of a lock of this name.
    pub(super) fn of_name(&self, name: &str) -> Class {
        self.named(&collapse(name))
    }

    /// The class of this name.
    pub(super) fn named(&self, class: &str) -> Class {
        let class = shorten(class);
        // No code panics while it holds this lock.
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(class) = known.get(class) {
            return class.clone();
        }
        let is_full = known.len() >= MAX_CLASSES;
        drop(known);
        if is_full {
            return self.other.clone();
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let index = known.len();
        match known.get(class) {
            Some(class) => class.clone(),
            None if index >= MAX_CLASSES => self.other.clone(),
            None => known.entry(class.into()).or_insert(Class::new(class, index)).clone(),
        }
    }
}

/// The class that a name stands for: numbers, hexadecimal runs, UUIDs and other ids are replaced by `*`.
pub(super) fn collapse(name: &str) -> String {
    let mut class = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        if let Some(len) = uuid_len(rest) {
            class.push('*');
            rest = &rest[len..];
        } else if first.is_ascii_alphanumeric() {
            let (run, after) = rest.split_at(run_len(rest));
            collapse_run(run, &mut class);
            rest = after;
        } else {
            class.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    class
}

/// How long the run of ASCII letters and digits is that a text begins with.
fn run_len(text: &str) -> usize {
    text.bytes().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(text.len())
}

/// The length of the UUID that a text begins with.
fn uuid_len(text: &str) -> Option<usize> {
    let mut at = 0;
    for (part, len) in UUID.into_iter().enumerate() {
        if part > 0 {
            (text.as_bytes().get(at) == Some(&b'-')).then_some(())?;
            at += 1;
        }
        let run = text.get(at..at + run_len(text.get(at..)?))?;
        (run.len() == len && run.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(())?;
        at += len;
    }
    Some(at)
}

/// Appends a run of letters and digits, without what is an id.
fn collapse_run(run: &str, class: &mut String) {
    let has_digits = run.bytes().any(|byte| byte.is_ascii_digit());
    let has_letters = run.bytes().any(|byte| byte.is_ascii_alphabetic());
    let min_hex = if has_digits && has_letters { MIN_HEX } else { MIN_HEX_LETTERS };
    let is_hex = run.len() >= min_hex && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex || has_digits && has_letters && run.len() >= MIN_MIXED {
        class.push('*');
        return;
    }
    let mut was_digit = false;
    for char in run.chars() {
        if !char.is_ascii_digit() {
            class.push(char);
        } else if !was_digit {
            class.push('*');
        }
        was_digit = char.is_ascii_digit();
    }
}

/// The part of a class that is kept.
pub(super) fn shorten(class: &str) -> &str {
    let ends_there = |at: &usize| class.is_char_boundary(*at);
    let end = (0..=MAX_LEN.min(class.len())).rev().find(ends_there).unwrap_or_default();
    &class[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_collapsed_and_words_are_kept() {
        for (name, class) in [
            ("orders/42", "orders/*"),
            ("orders/42/items/7", "orders/*/items/*"),
            ("nightly", "nightly"),
            ("user42", "user*"),
            ("report:2024-01-31", "report:*-*-*"),
            ("job-a1b2c3", "job-*"),
            ("cart/0f8fad5b-d9cb-469f-a165-70867728950e", "cart/*"),
            ("cart/0F8FAD5B-D9CB-469F-A165-70867728950E/x", "cart/*/x"),
            // Parts of the wrong length are no UUID.
            ("cart/0f8fad5b-d9cb-469f-a165-7086772895", "cart/*-d*cb-*f-a*-*"),
            ("blob/da39a3ee5e6b4b0d3255bfef95601890afd80709", "blob/*"),
            ("blob/abcdefabcdef", "blob/*"),
            ("face/decade", "face/decade"),
            ("event/01ARZ3NDEKTSV4RRFFQ69G5FAV", "event/*"),
            ("10.0.0.1:6379", "*.*.*.*:*"),
            ("größe/5", "größe/*"),
            ("", ""),
            ("*", "*"),
        ] {
            assert_eq!(collapse(name), class, "{name}");
        }
    }

    #[test]
    fn a_collapsed_name_is_its_own_class_and_has_no_digits() {
        for n in 0..2000_u64 {
            // Letters, digits, separators, and a letter of two bytes, in an order that `n` gives.
            let part = |at: u64| {
                ["a", "f", "7", "0", "-", "/", "x", "é", "Z", "-"]
                    [((n * 7919 + at * at * 31 + n / (at + 1)) % 10) as usize]
            };
            let name: String = (0..n % 60).map(part).collect();
            let class = collapse(&name);
            assert_eq!(collapse(&class), class, "{name}");
            assert!(
                !class.bytes().any(|byte| byte.is_ascii_digit()) && class.len() <= name.len(),
                "{name}: {class}"
            );
        }
    }

    #[test]
    fn a_client_has_two_hundred_classes_and_then_other() {
        let classes = Classes::default();
        let word = |n: usize| ["ga", "le", "mi", "no", "pu", "re", "so", "tu"][n % 8];
        let name = |n: usize| format!("{}{}{}/7", word(n), word(n / 8), word(n / 64));
        let all: Vec<_> = (0..300).map(|n| classes.of_name(&name(n))).collect();
        let indexes: BTreeSet<_> = all.iter().map(Class::index).collect();
        assert_eq!((indexes.len(), indexes.last()), (MAX_CLASSES + 1, Some(&MAX_CLASSES)));
        assert!(all[MAX_CLASSES..].iter().all(|class| class.as_str() == OTHER));
        assert_eq!(classes.of_name(&name(3)).as_str(), all[3].as_str(), "one that is known stays");
        assert_eq!(classes.named("given").as_str(), OTHER);
    }

    #[test]
    fn a_long_class_is_cut_between_characters() {
        let long = "é".repeat(60);
        assert_eq!(Classes::default().of_name(&long).as_str(), "é".repeat(40));
    }
}
