//! Parses the replies about statistics.

use super::value::{Malformed, Read, items, number, text};
use leasehold_core::{ClassStatistics, Refused, StatisticsList};
use redis::Value;

/// Parses the reply to a merge.
pub(crate) fn statistics_merged(value: &Value) -> Read<Result<(), Refused>> {
    if let Some(refused) = super::refused(value) {
        return refused.map(Err);
    }
    if number(value)? == 1 { Ok(Ok(())) } else { Err(Malformed) }
}

/// Parses the statistics. What is none is counted.
pub(crate) fn statistics(value: &Value) -> Read<StatisticsList> {
    let mut list = StatisticsList::default();
    if let Ok(word) = text(value) {
        let what = match word {
            "type" => "the key of the statistics is no hash",
            "format" => "the statistics have another format",
            "size" => "the statistics have more classes than this library writes",
            _ => return Err(Malformed),
        };
        list.skipped.add(|| what.to_owned());
        return Ok(list);
    }
    let [others, classes @ ..] = items(value)? else { return Err(Malformed) };
    let mut others = number(others)?;
    let (pairs, []) = classes.as_chunks() else { return Err(Malformed) };
    for [class, kept] in pairs {
        match (text(class), text(kept).ok().and_then(parsed)) {
            (Ok(class), Some(statistics)) => list.classes.push((class.to_owned(), statistics)),
            _ => others += 1,
        }
    }
    if others > 0 {
        list.skipped.add(|| "the statistics have a field that is no class, or is too large".to_owned());
        list.skipped.count = others;
    }
    list.classes.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(list)
}

/// Parses the text of a class.
fn parsed(kept: &str) -> Option<ClassStatistics> {
    let mut parts = kept.splitn(3, ' ');
    let (from_ms, to_ms) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(ClassStatistics { from_ms, to_ms, ..ClassStatistics::from_text(parts.next().unwrap_or_default()) })
}
