//! A ReentrantMutex in Redis, read back from the hash at its key.
//!
//! Parsing is strict: a value that neither our scripts nor Redisson writes is an error.

use leasehold_core::model::{Content, ReentrantHold, ReentrantHolds};
use leasehold_core::{FencingToken, HoldId, Kind, Label, Liveness, OwnValue};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

/// The stored owner and entries, or another type of value; `None` where a script that created the lock was cut short.
///
/// ```
/// use leasehold_testkit::conformance::rlock;
///
/// // A client of Redisson's has it once.
/// let fields = [("5b0f0b3e:61", "1")].map(|(field, text)| (field.to_owned(), text.to_owned()));
/// let content = rlock(&fields.into()).expect("a lock").expect("whose");
/// assert_eq!(content.reentrant_holds().map(|holds| holds.count), Some(1));
/// ```
pub fn rlock(fields: &BTreeMap<String, String>) -> Result<Option<Content>, String> {
    let other = || Ok(Some(Content::Other("hash".to_owned())));
    let mut owners = fields.iter().filter(|(field, _)| *field != "leasehold");
    match (fields.get("leasehold").map(String::as_str), owners.next(), owners.next()) {
        (Some("none"), None, _) => Ok(None),
        // A lock of another kind.
        (Some(kind), _, _) if Kind::parse(kind).is_some() => other(),
        (Some(packed), Some((owner, count)), None) => {
            let entries = entries(packed, owner, parsed(count)?)?;
            Ok(Some(Content::ReentrantHolds(entries)))
        }
        (Some(_), _, _) => Err(format!("a field of ours beside {} others", fields.len() - 1)),
        (None, Some((owner, count)), None) => match count.parse() {
            Ok(count @ 1..) => {
                let owner = parsed_by(owner, OwnValue::new)?;
                let entries = ReentrantHolds { owner, count, fence: None, lease_ms: 0, holds: vec![] };
                Ok(Some(Content::ReentrantHolds(entries)))
            }
            _ => other(),
        },
        (None, _, _) => other(),
    }
}

/// The entries in our field for an owner.
fn entries(packed: &str, of: &str, count: u64) -> Result<ReentrantHolds, String> {
    let mut lines = packed.split('\n');
    let first = lines.next().unwrap_or_default();
    let (fence, lease_ms) = first.split_once(' ').ok_or_else(|| format!("a first line `{first}`"))?;
    let (fence, lease_ms) = (parsed::<u64>(fence)?, parsed(lease_ms)?);
    let owner = lines.next().unwrap_or_default();
    let holds = lines.map(entry).collect::<Result<Vec<_>, _>>()?;
    if owner != of || count == 0 {
        return Err(format!("entries of `{owner}`, of which `{of}` has {count}"));
    }
    if holds.is_empty() != (fence == 0) || holds.is_empty() && lease_ms != 0 {
        return Err(format!("{} entries with `{first}`", holds.len()));
    }
    let fence = (fence > 0).then(|| FencingToken::new(fence));
    Ok(ReentrantHolds { owner: parsed_by(owner, OwnValue::new)?, count, fence, lease_ms, holds })
}

fn entry(line: &str) -> Result<ReentrantHold, String> {
    let words: Vec<_> = line.splitn(5, ' ').collect();
    let [hold, until_ms, since_ms, life, label] = words[..] else {
        return Err(format!("an entry with {} of 5 parts", words.len()));
    };
    Ok(ReentrantHold {
        hold: parsed_by(hold, HoldId::from_token)?,
        until_ms: parsed(until_ms)?,
        since_ms: parsed(since_ms)?,
        liveness: self::life(life)?,
        label: parsed_by(label, Label::new)?,
    })
}

/// The stored liveness of a hold.
pub(super) fn life(text: &str) -> Result<Liveness, String> {
    match text.strip_prefix('s') {
        Some(alive_ms) => Ok(Liveness::Session { alive_ms: parsed(alive_ms)? }),
        None if text == "l" => Ok(Liveness::Lease),
        None => Err(format!("a life `{text}`")),
    }
}

pub(super) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    parsed_by(text, str::parse)
}

pub(super) fn parsed_by<'a, T, E: Display>(
    text: &'a str,
    by: impl Fn(&'a str) -> Result<T, E>,
) -> Result<T, String> {
    by(text).map_err(|error| error.to_string())
}
