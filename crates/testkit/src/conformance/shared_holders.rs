//! Parses the hash of a lock with several holders in Redis.
//!
//! Parsing is strict: a value that no script of Leasehold writes is an error.

use super::rlock::{parse, parse_by, parse_liveness};
use leasehold_core::model::{Content, SharedHold, SharedHolders};
use leasehold_core::{FencingToken, HoldId, Kind, Label, LockMode, OwnValue};
use std::collections::BTreeMap;

/// Returns the stored holders, or another type of value; `None` if the script that created the lock was cut short.
///
/// `index` is the content of the index. If it agrees with the hash, as `shared_hold.lua` says, the numbers and the index must
/// be right; with `is_whole` they must agree.
///
/// ```
/// use leasehold_core::Kind;
/// use leasehold_testkit::conformance::parse_shared_holders;
/// use std::collections::BTreeMap;
///
/// let fields = [("leasehold", "latch 1 1 0 0 0 7")].map(|(field, text)| (field.to_owned(), text.to_owned()));
/// assert_eq!(parse_shared_holders(Kind::Latch, &fields.clone().into(), &BTreeMap::new(), false), Ok(None));
/// parse_shared_holders(Kind::Latch, &fields.clone().into(), &BTreeMap::new(), true).expect_err("a hold is missing");
/// let other = parse_shared_holders(Kind::Barrier, &fields.into(), &BTreeMap::new(), true);
/// assert_eq!(other.expect("a hash").expect("another kind").type_name(), "hash");
/// ```
pub fn parse_shared_holders(
    kind: Kind,
    fields: &BTreeMap<String, String>,
    index: &BTreeMap<String, u64>,
    is_whole: bool,
) -> Result<Option<Content>, String> {
    let head = fields.get("leasehold").map(String::as_str).unwrap_or_default();
    let Some(numbers) = head.strip_prefix(kind.as_str()).and_then(|rest| rest.strip_prefix(' ')) else {
        return Ok(Some(Content::Other("hash".to_owned())));
    };
    let numbers = numbers.split(' ').map(parse).collect::<Result<Vec<u64>, _>>()?;
    let [count, units, writers, upgradable, owner_count, newest] = numbers[..] else {
        return Err(format!("`{head}`"));
    };
    let rest = || fields.iter().filter(|(field, _)| *field != "leasehold");
    let (owner_fields, hold_fields): (Vec<_>, Vec<_>) =
        rest().partition(|(field, _)| field.starts_with("o:"));
    let holds = hold_fields.iter().map(|(hold, text)| parse_hold(kind, hold, text));
    let mut holds = holds.collect::<Result<Vec<_>, _>>()?;
    holds.sort_by_cached_key(|hold| (hold.fence, hold.hold.token()));
    if let Some(hold) = holds.iter().find(|hold| hold.fence.as_u64() > newest) {
        return Err(format!("{hold:?} has a greater token than {newest}"));
    }
    let agrees = rest().count() as u64 == count + owner_count && index.len() as u64 == count;
    let of_mode = |modes: &[LockMode]| holds.iter().filter(|hold| modes.contains(&hold.mode)).count() as u64;
    let found = [
        holds.len() as u64,
        holds.iter().map(|hold| u64::from(hold.mode.count())).sum(),
        of_mode(&[LockMode::Write, LockMode::Upgrade]),
        of_mode(&[LockMode::Upgradable]),
        owner_fields.len() as u64,
    ];
    let owners: BTreeMap<String, String> =
        owner_fields.into_iter().map(|(field, text)| (field.clone(), text.clone())).collect();
    let indexed = holds.iter().all(|hold| {
        index
            .get(&hold.hold.token())
            .is_some_and(|at_ms| *at_ms == hold.until_ms || !is_whole && *at_ms < hold.until_ms)
    });
    let is_right =
        found == [count, units, writers, upgradable, owner_count] && owners == owner_texts(&holds) && indexed;
    if !(is_right || !agrees && !is_whole) {
        return Err(format!("`{head}` and the index {index:?} are not those of {holds:?} and {owners:?}"));
    }
    let newest = Some(FencingToken::new(newest));
    Ok((!holds.is_empty()).then_some(Content::SharedHolders(SharedHolders { holds, newest })))
}

/// The fields of the owners of these holds.
fn owner_texts(holds: &[SharedHold]) -> BTreeMap<String, String> {
    let mut counts = BTreeMap::<_, [u64; 4]>::new();
    for hold in holds {
        let Some(owner) = &hold.owner else { continue };
        let counts = counts.entry(format!("o:{}", owner.as_str())).or_default();
        counts[0] += 1;
        match hold.mode {
            LockMode::Upgradable => counts[1] += 1,
            LockMode::Write => counts[2] += 1,
            LockMode::Upgrade => counts[3] += 1,
            _ => {}
        }
    }
    counts.into_iter().map(|(owner, [all, u, w, x])| (owner, format!("{all} {u} {w} {x}"))).collect()
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
