//! Parses the hash of a lock with several holders in Redis.
//!
//! Parsing is strict: a value that no script of Leasehold writes is an error.

use super::rlock::{parse, parse_by, parse_liveness};
use leasehold_core::model::{Content, SharedHold, SharedHolders};
use leasehold_core::{FencingToken, HoldId, Kind, Label, LockMode, OwnValue};
use std::collections::BTreeMap;

/// Returns the stored holders, or another type of value; `None` if the script that created the lock was cut short.
///
/// ```
/// use leasehold_core::Kind;
/// use leasehold_testkit::conformance::parse_shared_holders;
///
/// let fields = [("leasehold", "latch")].map(|(field, text)| (field.to_owned(), text.to_owned()));
/// assert_eq!(parse_shared_holders(Kind::Latch, &fields.clone().into()), Ok(None));
/// let other = parse_shared_holders(Kind::Barrier, &fields.into()).expect("a hash").expect("another kind");
/// assert_eq!(other.type_name(), "hash");
/// ```
pub fn parse_shared_holders(
    kind: Kind,
    fields: &BTreeMap<String, String>,
) -> Result<Option<Content>, String> {
    if fields.get("leasehold").map(String::as_str) != Some(kind.as_str()) {
        return Ok(Some(Content::Other("hash".to_owned())));
    }
    let holds = fields.iter().filter(|(field, _)| *field != "leasehold");
    let mut holds = holds.map(|(hold, text)| parse_hold(kind, hold, text)).collect::<Result<Vec<_>, _>>()?;
    holds.sort_by_cached_key(|hold| (hold.fence, hold.hold.token()));
    Ok((!holds.is_empty()).then_some(Content::SharedHolders(SharedHolders { holds })))
}

fn parse_hold(kind: Kind, hold: &str, text: &str) -> Result<SharedHold, String> {
    let lines: Vec<_> = text.splitn(3, '\n').collect();
    let [first, owner, label] = lines[..] else {
        return Err(format!("a hold with {} of 3 lines", lines.len()));
    };
    let words: Vec<_> = first.split(' ').collect();
    let [until_ms, since_ms, fence, mode, liveness] = words[..] else {
        return Err(format!("a hold with {} of 5 words", words.len()));
    };
    let mode = LockMode::parse(mode).filter(|mode| mode.applies_to(kind));
    if owner.is_empty() == kind.has_owners() {
        return Err(format!("a hold of the owner `{owner}`"));
    }
    Ok(SharedHold {
        hold: parse_by(hold, HoldId::from_token)?,
        owner: (!owner.is_empty()).then(|| parse_by(owner, OwnValue::new)).transpose()?,
        mode: mode.ok_or_else(|| format!("a hold `{first}` of a {}", kind.as_str()))?,
        fence: FencingToken::new(parse(fence)?),
        until_ms: parse(until_ms)?,
        since_ms: parse(since_ms)?,
        liveness: parse_liveness(liveness)?,
        label: parse_by(label, Label::new)?,
    })
}
