//! Parses the hash of a ReentrantMutex in Redis.
//!
//! Parsing is strict: a value that neither Leasehold's scripts nor Redisson write is an error.

use leasehold_core::model::{Content, ReentrantHold, ReentrantHolds};
use leasehold_core::{FencingToken, HoldId, Kind, Label, Liveness, OwnValue};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

/// Returns the stored owner and entries, or another type of value; `None` if the script that created the lock was cut
/// short.
///
/// ```
/// use leasehold_testkit::conformance::parse_rlock;
///
/// // A Redisson client holds it once.
/// let fields = [("5b0f0b3e:61", "1")].map(|(field, text)| (field.to_owned(), text.to_owned()));
/// let content = parse_rlock(&fields.into()).expect("a hash").expect("it is held");
/// assert_eq!(content.reentrant_holds().map(|held| held.count), Some(1));
/// ```
pub fn parse_rlock(fields: &BTreeMap<String, String>) -> Result<Option<Content>, String> {
    let other = || Ok(Some(Content::Other("hash".to_owned())));
    let mut owners = fields.iter().filter(|(field, _)| *field != "leasehold");
    match (fields.get("leasehold").map(String::as_str), owners.next(), owners.next()) {
        (Some("none"), None, _) => Ok(None),
        // A lock of another kind.
        (Some(kind), _, _) if Kind::parse(kind).is_some() => other(),
        (Some(packed), Some((owner, count)), None) => {
            let entries = parse_entries(packed, owner, parse(count)?)?;
            Ok(Some(Content::ReentrantHolds(entries)))
        }
        (Some(_), _, _) => Err(format!("the field `leasehold` beside {} others", fields.len() - 1)),
        (None, Some((owner, count)), None) => match count.parse() {
            Ok(count @ 1..) => {
                let owner = parse_by(owner, OwnValue::new)?;
                let entries = ReentrantHolds { owner, count, fence: None, lease_ms: 0, holds: vec![] };
                Ok(Some(Content::ReentrantHolds(entries)))
            }
            _ => other(),
        },
        (None, _, _) => other(),
    }
}

/// The entries of an owner in the field `leasehold`.
fn parse_entries(packed: &str, of: &str, count: u64) -> Result<ReentrantHolds, String> {
    let mut lines = packed.split('\n');
    let first = lines.next().unwrap_or_default();
    let (fence, lease_ms) = first.split_once(' ').ok_or_else(|| format!("a first line `{first}`"))?;
    let (fence, lease_ms) = (parse::<u64>(fence)?, parse(lease_ms)?);
    let owner = lines.next().unwrap_or_default();
    let holds = lines.map(parse_entry).collect::<Result<Vec<_>, _>>()?;
    if owner != of || count == 0 {
        return Err(format!("entries of `{owner}`, and the field of `{of}` has the count {count}"));
    }
    if holds.is_empty() != (fence == 0) || holds.is_empty() && lease_ms != 0 {
        return Err(format!("{} entries with `{first}`", holds.len()));
    }
    let fence = (fence > 0).then(|| FencingToken::new(fence));
    Ok(ReentrantHolds { owner: parse_by(owner, OwnValue::new)?, count, fence, lease_ms, holds })
}

fn parse_entry(line: &str) -> Result<ReentrantHold, String> {
    let words: Vec<_> = line.splitn(5, ' ').collect();
    let [hold, until_ms, since_ms, liveness, label] = words[..] else {
        return Err(format!("an entry with {} of 5 parts", words.len()));
    };
    Ok(ReentrantHold {
        hold: parse_by(hold, HoldId::from_token)?,
        until_ms: parse(until_ms)?,
        since_ms: parse(since_ms)?,
        liveness: parse_liveness(liveness)?,
        label: parse_by(label, Label::new)?,
    })
}

/// The stored liveness of a hold.
pub(super) fn parse_liveness(text: &str) -> Result<Liveness, String> {
    match text.strip_prefix('s') {
        Some(alive_ms) => Ok(Liveness::Session { alive_ms: parse(alive_ms)? }),
        None if text == "l" => Ok(Liveness::Lease),
        None => Err(format!("a liveness `{text}`")),
    }
}

pub(super) fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    parse_by(text, str::parse)
}

pub(super) fn parse_by<'a, T, E: Display>(
    text: &'a str,
    by: impl Fn(&'a str) -> Result<T, E>,
) -> Result<T, String> {
    by(text).map_err(|error| error.to_string())
}
