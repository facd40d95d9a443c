//! A lock in Redis that several have side by side, read back from the hash at its key.
//!
//! Parsing is strict: a value that no script of ours writes is an error.

use super::rlock::{life, parsed, parsed_by};
use leasehold_core::model::{Content, SharedHold, SharedHolders};
use leasehold_core::{FencingToken, HoldId, Kind, Label, LockMode, OwnValue};
use std::collections::BTreeMap;

/// The stored holders, or another type of value; `None` where a script that created the lock was cut short.
///
/// ```
/// use leasehold_core::Kind;
/// use leasehold_testkit::conformance::parts;
///
/// let fields = [("leasehold", "latch")].map(|(field, text)| (field.to_owned(), text.to_owned()));
/// assert_eq!(parts(Kind::Latch, &fields.clone().into()), Ok(None));
/// let other = parts(Kind::Barrier, &fields.into()).expect("well written").expect("something else");
/// assert_eq!(other.type_name(), "hash");
/// ```
pub fn parts(kind: Kind, fields: &BTreeMap<String, String>) -> Result<Option<Content>, String> {
    if fields.get("leasehold").map(String::as_str) != Some(kind.as_str()) {
        return Ok(Some(Content::Other("hash".to_owned())));
    }
    let holds = fields.iter().filter(|(field, _)| *field != "leasehold");
    let mut holds = holds.map(|(hold, text)| part(kind, hold, text)).collect::<Result<Vec<_>, _>>()?;
    holds.sort_by_cached_key(|part| (part.fence, part.hold.token()));
    Ok((!holds.is_empty()).then_some(Content::SharedHolders(SharedHolders { holds })))
}

fn part(kind: Kind, hold: &str, text: &str) -> Result<SharedHold, String> {
    let lines: Vec<_> = text.splitn(3, '\n').collect();
    let [first, owner, label] = lines[..] else {
        return Err(format!("a part with {} of 3 lines", lines.len()));
    };
    let words: Vec<_> = first.split(' ').collect();
    let [until_ms, since_ms, fence, mode, lives] = words[..] else {
        return Err(format!("a part with {} of 5 words", words.len()));
    };
    let mode = LockMode::parse(mode).filter(|mode| mode.applies_to(kind));
    if owner.is_empty() == kind.has_owners() {
        return Err(format!("a part of the owner `{owner}`"));
    }
    Ok(SharedHold {
        hold: parsed_by(hold, HoldId::from_token)?,
        owner: (!owner.is_empty()).then(|| parsed_by(owner, OwnValue::new)).transpose()?,
        mode: mode.ok_or_else(|| format!("a part `{first}` of a {}", kind.as_str()))?,
        fence: FencingToken::new(parsed(fence)?),
        until_ms: parsed(until_ms)?,
        since_ms: parsed(since_ms)?,
        liveness: life(lives)?,
        label: parsed_by(label, Label::new)?,
    })
}
