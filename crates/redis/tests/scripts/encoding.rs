//! The model's state in the form in which the scripts store it in Redis.

use crate::fixture::Found;
use leasehold_core::model::{
    Audit, History, QueueEntry, QueueEntryId, Record, RecordedHolder, Reserved, SessionRecord,
};
use leasehold_core::{Claim, Ended, HistoryEntry, Kind, Liveness, LockMode};
use leasehold_store::Notification;
use leasehold_testkit::Value;
use std::collections::BTreeMap;

/// The fields of a lock record, as in its hash.
pub(crate) fn fields(record: &Record) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("format".to_owned(), "1".to_owned())]);
    let mut put = |field: &str, value: String| drop(fields.insert(field.to_owned(), value));
    let own = |claim: &Claim| claim.value.as_ref().map_or("", |value| value.as_str()).to_owned();
    if let Some(last) = record.last_fence {
        put("last", last.to_string());
    }
    if let Some(Reserved { last_fence, notify_wanted: notifies }) = record.reserved {
        put("reserved", format!("{last_fence}{}", if notifies { " notify" } else { "" }));
    }
    if let Some(RecordedHolder { claim, since_ms, liveness, label }) = &record.last_holder {
        let (hold, liveness) = (claim.hold.token(), letter(*liveness));
        put("holder", format!("{hold}\n{since_ms}\n{liveness}\n{}\n{label}", own(claim)));
    }
    let endings = record.ended.holds.iter().map(|(hold, how)| hold.token()[17..29].to_owned() + mark(*how));
    let endings: String = endings.collect();
    if !endings.is_empty() {
        put("ended", endings);
    }
    let line: Vec<String> = record.tickets.values().map(QueueEntryId::encode).collect();
    if record.next_ticket > 0 {
        let (first, last) =
            (line.first().cloned().unwrap_or_default(), line.last().cloned().unwrap_or_default());
        put("queue", format!("{} {} {first} {last}", line.len(), record.next_ticket));
    }
    for pair in line.windows(2) {
        put(&format!("n:{}", pair[0]), pair[1].clone());
        put(&format!("p:{}", pair[1]), pair[0].clone());
    }
    if let Some(limit) = record.limit {
        let agreed = record.agreed.map_or_else(String::new, |agreed| format!(" {agreed}"));
        put("limit", format!("{limit}{agreed}"));
    }
    for (of, QueueEntry { ticket, nonce, expires_ms, lease_ms, liveness, claim, label, mode }) in
        &record.entries
    {
        let (hold, own, liveness) = (claim.hold.token(), own(claim), letter(*liveness));
        let mut entry =
            format!("{ticket}\n{nonce}\n{expires_ms}\n{lease_ms}\n{liveness}\n{hold}\n{own}\n{label}");
        if *mode != LockMode::Exclusive {
            entry.push('\n');
            entry.push_str(&mode.encode());
        }
        put(&format!("w:{}", of.encode()), entry);
    }
    fields
}

/// The fields of a session record.
pub(crate) fn session_fields(record: &SessionRecord) -> BTreeMap<String, String> {
    let held = record.held.iter().map(|lock| (format!("l:mutex:{}", lock.name), "1".to_owned()));
    let until = record.alive_until_ms.to_string();
    let rest = [("format", "1"), ("until", &until), ("metadata", &record.metadata)];
    let activity = (!record.activity.is_empty()).then_some(("activity", record.activity.as_str()));
    held.chain(rest.into_iter().chain(activity).map(|(field, text)| (field.to_owned(), text.to_owned())))
        .collect()
}

/// The text of an audit.
pub(crate) fn lines(audit: &Audit) -> String {
    let lines = audit.entries.iter().map(|entry| {
        let fence = entry.fence.map_or_else(String::new, |fence| fence.to_string());
        let whose = entry.holder.as_ref().map_or_else(|| "0\t".to_owned(), |whose| format!("1\t{whose}"));
        format!("{}\t{}\t{fence}\t{whose}\t{}", entry.at_ms, word(entry.ended), entry.actor)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a history.
pub(crate) fn history_lines(history: &History) -> String {
    let lines = history.entries.iter().map(|HistoryEntry { from_ms, to_ms, fence, label }| {
        let fence = fence.map_or_else(String::new, |fence| fence.to_string());
        format!("{from_ms}\t{to_ms}\t{fence}\t{label}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

pub(crate) fn letter(liveness: Liveness) -> String {
    match liveness {
        Liveness::Session { alive_ms } => format!("s{alive_ms}"),
        Liveness::Lease => "l".to_owned(),
    }
}

pub(crate) fn word(how: Ended) -> &'static str {
    match how {
        Ended::Released => "released",
        Ended::Evicted => "evicted",
        Ended::ForceReleased => "force_released",
        _ => panic!("{how:?} is none of the model's"),
    }
}

fn mark(how: Ended) -> &'static str {
    match how {
        Ended::Released => ".",
        Ended::Evicted => "!",
        Ended::ForceReleased => "~",
        _ => panic!("{how:?} is none of the model's"),
    }
}

/// The links before the first and after the last queue entry have no meaning, and may be left from before.
fn without_loose_ends(mut fields: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let ends =
        fields.get("queue").map(|queue| queue.split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>());
    if let Some([first, last]) = ends.as_deref() {
        fields.remove(&format!("p:{first}"));
        fields.remove(&format!("n:{last}"));
    }
    fields
}

/// The fields of a record as it is found: a hash, or a text if it has no queue.
pub(crate) fn found_fields(kind: Kind, found: &Found) -> BTreeMap<String, String> {
    let mut fields = if found.kind == "string" {
        let text = found.content.text().unwrap();
        let reserved = if kind.is_shared() { "limit" } else { "reserved" };
        let names = ["format", "last", reserved, "ended", "holder"];
        let parts = text.splitn(names.len(), '\n').map(str::to_owned);
        names.into_iter().map(str::to_owned).zip(parts).filter(|(_, part)| !part.is_empty()).collect()
    } else {
        without_loose_ends(pairs(&found.content))
    };
    fields.retain(|field, text| field != "queue" || text != "0 0  ");
    fields
}

pub(crate) fn pairs(hash: &Value) -> BTreeMap<String, String> {
    let texts: Vec<_> = hash.elements().iter().map(|text| text.text().unwrap().to_owned()).collect();
    texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

/// The members of a sorted set.
pub(crate) fn scores(set: &Value) -> BTreeMap<String, u64> {
    pairs(set).into_iter().map(|(member, score)| (member, score.parse().expect("a whole score"))).collect()
}

pub(crate) fn messages(notifications: &[Notification]) -> Vec<(String, String)> {
    notifications
        .iter()
        .map(|notification| (format!("m:leasehold:mailbox:{}", notification.to()), notification.message()))
        .collect()
}
