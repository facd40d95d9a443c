//! Parses replies of the scripts into the core's types.
//!
//! [`session`] parses the replies to session operations, [`statistics`](mod@statistics) those about statistics, and [`value`] the
//! parts of a reply.

mod session;
mod statistics;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use session::{heartbeat, now_us, session_records, sessions, word};
pub(crate) use statistics::{statistics, statistics_merged};
pub(crate) use value::Malformed;

use leasehold_core::{
    Acquired, AuditEntry, Ended, Evicted, Extended, FenceRaised, FencingToken, Fingerprint, ForceReleased,
    HistoryEntry, HoldStatus, Holder, Inspection, Label, LockMode, MultiAcquired, Op, OwnValue, OwnerHolds,
    Predecessor, Proclaimed, QueuedWaiter, Refused, Released, Reply, Resized, SessionId, Skipped, TokenBlock,
};
use redis::Value;
use value::{Read, count, items, lossy, number, shown, text};

/// How much of an unknown format is shown, in bytes.
const MAX_FORMAT: usize = 64;
/// How much of what cannot be read is shown.
const MAX_UNREAD: usize = 64;
/// From which length on a word may be a secret, perhaps cut off.
const MIN_SECRET: usize = 8;

/// Parses the reply to an operation.
pub(crate) fn read(op: &Op, value: &Value) -> Read<Reply> {
    if let Some(refused) = refused(value) {
        return Ok(Reply::Refused(refused?));
    }
    match op {
        Op::Acquire(request) => match whole_lease(value, request.lease_ms) {
            Some(granted) => granted.map(Reply::Acquire),
            None => acquired(value).map(Reply::Acquire),
        },
        Op::Extend(_) => extended(value).map(Reply::Extend),
        Op::Release(_) => released(value).map(Reply::Release),
        Op::Inspect(_) => inspection(value).map(Reply::Inspect),
        Op::Evict(_) => evicted(value).map(Reply::Evict),
        Op::ForceRelease(_) => force_released(value).map(Reply::ForceRelease),
        Op::Resize(_) => resized(value).map(Reply::Resize),
        Op::RaiseFence(_) => fence_raised(value).map(Reply::RaiseFence),
        Op::Proclaim(_) => proclaimed(value).map(Reply::Proclaim),
        _ => Err(Malformed),
    }
}

/// Parses the reply to a release that checks the lock's key alone. `None` if the hold was not found there: the record
/// may still contain it.
pub(crate) fn release_by_token(value: &Value) -> Read<Option<Released>> {
    match value {
        Value::Int(-1) => Ok(None),
        left => Ok(Some(Released {
            status: HoldStatus::Held,
            remaining_holds: number(left)?,
            holder: None,
            next_waiter: None,
            next: None,
        })),
    }
}

/// Parses the reply to an acquire of `locks` locks together.
pub(crate) fn multi_acquired(locks: usize, value: &Value) -> Read<Vec<MultiAcquired>> {
    let items = items(value)?;
    let share = |item: &Value| match text(item) {
        Ok("open") => Ok(MultiAcquired::Available),
        Ok("held") => Ok(MultiAcquired::Held),
        Ok(_) => Err(Malformed),
        Err(_) => match refused(item) {
            Some(refused) => Ok(MultiAcquired::Blocked(Err(refused?))),
            None => acquired(item).map(|acquired| match acquired {
                granted @ Acquired::Granted { .. } => MultiAcquired::Acquired(granted),
                other => MultiAcquired::Blocked(Ok(other)),
            }),
        },
    };
    if items.len() == locks { items.iter().map(share).collect() } else { Err(Malformed) }
}

/// The refusal in a reply, if it is one: the operation is not valid for the lock.
fn refused(value: &Value) -> Option<Read<Refused>> {
    let Value::Array(items) = value else { return None };
    let numbers = |first, second| Ok((count(first)?, count(second)?));
    match items.as_slice() {
        [word] if text(word) == Ok("deadlock") => Some(Ok(Refused::WouldDeadlock)),
        [word] if text(word) == Ok("upgradable") => Some(Ok(Refused::NothingToUpgrade)),
        [word, found] => match text(word) {
            Ok("kind") => Some(text(found).map(|found| Refused::WrongKind { found: found.to_owned() })),
            Ok("format") => Some(shown(found, MAX_FORMAT).map(|found| Refused::Format { found })),
            _ => None,
        },
        [word, first, second] => match text(word) {
            Ok("range") => {
                Some(numbers(first, second).map(|(count, limit)| Refused::OutOfRange { count, limit }))
            }
            _ => None,
        },
        [word, requested, known, limit] if text(word) == Ok("differ") => Some(
            numbers(requested, known)
                .and_then(|(requested, known)| Ok((requested, known, count(limit)?)))
                .map(|(requested, known, limit)| Refused::Disagreement { requested, known, limit }),
        ),
        _ => None,
    }
}

/// The short form of the usual reply: the fencing token alone, if the lock was free and has no waiters.
fn whole_lease(value: &Value, lease_ms: u64) -> Option<Read<Acquired>> {
    let fence = text(value).ok()?;
    let granted = |fence| Acquired::Granted {
        fence: FencingToken::new(fence),
        remaining_ms: lease_ms,
        others_wait: false,
        owner_holds: None,
    };
    Some(fence.parse().map(granted).map_err(|_| Malformed))
}

fn acquired(value: &Value) -> Read<Acquired> {
    match items(value)? {
        [word, fence, remaining, others, entered @ ..] if text(word) == Ok("granted") => {
            Ok(Acquired::Granted {
                fence: FencingToken::new(number(fence)?),
                remaining_ms: number(remaining)?,
                others_wait: number(others)? == 1,
                owner_holds: match entered {
                    [] => None,
                    [count, lease_ms] => {
                        Some(OwnerHolds { count: number(count)?, lease_ms: number(lease_ms)? })
                    }
                    _ => return Err(Malformed),
                },
            })
        }
        [word, position, predecessor, alive, description @ ..] if text(word) == Ok("taken") => {
            // -1, which is not a count, means no queue entry, or a liveness that was not requested.
            let predecessor =
                session_id(predecessor)?.map(|session| Predecessor { session, alive_ms: number(alive).ok() });
            // Only a lock with several holders reports the others: a text, in front of the time that the holder has
            // left.
            let (others, description) = match description {
                [others @ (Value::BulkString(_) | Value::SimpleString(_)), description @ ..] => {
                    (text(others)?, description)
                }
                description => ("", description),
            };
            let others = others.split_whitespace().map(|session| session.parse().map_err(|_| Malformed));
            Ok(Acquired::Taken {
                holder: holder(description)?,
                position: number(position).ok(),
                predecessor,
                other_holders: others.collect::<Read<_>>()?,
            })
        }
        [word, how] if text(word) == Ok("ended") => text(how).and_then(ended).map(Acquired::AlreadyEnded),
        _ => Err(Malformed),
    }
}

fn extended(value: &Value) -> Read<Extended> {
    if let Value::Array(reserved) = value {
        let [first, count, waits] = reserved.as_slice() else { return Err(Malformed) };
        let count = number(count)?;
        let count = u32::try_from(count)
            .ok()
            .filter(|count| (1..=TokenBlock::MAX_LEN).contains(count))
            .ok_or(Malformed)?;
        let block = TokenBlock::new(FencingToken::new(number(first)?), count);
        return Ok(Extended::Reserved { block, others_wait: number(waits)? != 0 });
    }
    match number(value)? {
        0 => Ok(Extended::NotHeld),
        1 => Ok(Extended::Extended),
        _ => Err(Malformed),
    }
}

fn released(value: &Value) -> Read<Released> {
    // The short form of the usual reply: the lock was held, and there is nothing else to report.
    if text(value) == Ok("held") {
        return Ok(Released {
            status: HoldStatus::Held,
            remaining_holds: 0,
            holder: None,
            next_waiter: None,
            next: None,
        });
    }
    // Only a ReentrantMutex reports how many times the owner still holds it.
    let (status, description, remaining_holds, next) = match items(value)? {
        [status, description] => (status, description, 0, None),
        [status, description, Value::Int(remaining_holds)] => (status, description, *remaining_holds, None),
        [status, description, Value::Int(remaining_holds), next] => {
            (status, description, *remaining_holds, Some(next))
        }
        [status, description, next] => (status, description, 0, Some(next)),
        _ => return Err(Malformed),
    };
    let remaining_holds = u64::try_from(remaining_holds).map_err(|_| Malformed)?;
    // On a node of a quorum no acquire follows. The line is only a hint, and so is its first session.
    let (next_waiter, next) = match next {
        Some(Value::BulkString(session)) => {
            (std::str::from_utf8(session).ok().and_then(|session| session.parse().ok()), None)
        }
        next => (None, next),
    };
    let next = next.map(|next| match refused(next) {
        Some(refused) => refused.map(Err),
        None => acquired(next).map(Ok),
    });
    let (status, holder) = (text(status).and_then(hold_status)?, holder(items(description)?)?);
    Ok(Released { status, remaining_holds, holder, next_waiter, next: next.transpose()? })
}

fn inspection(value: &Value) -> Read<Inspection> {
    let (waiting, found, description, full) = match items(value)? {
        // A full description ends with what could not be read, if there is anything.
        [waiting, found, limit @ Value::Int(_), agreed, holders, audit @ ..] => {
            return shared_inspection(waiting, found, [limit, agreed], holders, audit);
        }
        [waiting, found, description] => (waiting, found, description, None),
        [waiting, found, description, foreign_fingerprint, audit, history, queue, unread @ ..] => {
            (waiting, found, description, Some((foreign_fingerprint, audit, history, queue, unread)))
        }
        _ => return Err(Malformed),
    };
    let hold_status = requested_status(found)?;
    let mut skipped = Skipped::default();
    let (foreign_fingerprint, audit, history, queue) = match full {
        None => (None, Vec::new(), Vec::new(), Vec::new()),
        Some((foreign_fingerprint, audit, history, queue, unread)) => {
            skip_holders(unread, &mut skipped)?;
            let (audit, history) = past(audit, history, &mut skipped)?;
            (fingerprint(foreign_fingerprint)?, audit, history, waiters(queue, &mut skipped)?)
        }
    };
    Ok(Inspection {
        holder: holder(items(description)?)?,
        waiters: number(waiting)?,
        queue,
        hold_status,
        foreign_fingerprint,
        audit,
        history,
        limit: None,
        agreed: None,
        shared_holders: Vec::new(),
        votes: None,
        blocked_ms: None,
        skipped,
    })
}

/// Parses the inspection of a lock with several holders.
fn shared_inspection(
    waiting: &Value,
    found: &Value,
    // -1, which is not a count, means none.
    [limit, agreed]: [&Value; 2],
    shared_holders: &Value,
    audit: &[Value],
) -> Read<Inspection> {
    let mut skipped = Skipped::default();
    let mut described = Vec::new();
    for description in items(shared_holders)? {
        match items(description).and_then(holder) {
            Ok(Some(holder)) => described.push(holder),
            // Without details the request comes from a client, which needs to know all holders.
            _ if audit.is_empty() => return Err(Malformed),
            _ => skipped.add(|| "a holder, by its mode or its numbers".into()),
        }
    }
    let shared_holders = described;
    let (audit, history, queue) = match audit {
        [] => (Vec::new(), Vec::new(), Vec::new()),
        [audit, history, queue, unread @ ..] => {
            skip_holders(unread, &mut skipped)?;
            let (audit, history) = past(audit, history, &mut skipped)?;
            (audit, history, waiters(queue, &mut skipped)?)
        }
        _ => return Err(Malformed),
    };
    Ok(Inspection {
        holder: shared_holders.first().cloned(),
        waiters: number(waiting)?,
        queue,
        hold_status: requested_status(found)?,
        foreign_fingerprint: None,
        audit,
        history,
        shared_holders,
        limit: count(limit).ok(),
        agreed: count(agreed).ok(),
        votes: None,
        blocked_ms: None,
        skipped,
    })
}

/// The listed waiters. Counts those that cannot be read.
fn waiters(queue: &Value, skipped: &mut Skipped) -> Read<Vec<QueuedWaiter>> {
    let mut listed = Vec::new();
    for entry in items(queue)? {
        match waiter(items(entry)?) {
            Ok(waiter) => listed.push(waiter),
            Err(Malformed) => skipped.add(|| "a queue entry, or the rest of the queue".into()),
        }
    }
    Ok(listed)
}

fn waiter(entry: &[Value]) -> Read<QueuedWaiter> {
    let [session, label, mode, since @ ..] = entry else { return Err(Malformed) };
    let since_ms = since.first().map(number).transpose()?;
    // A line has no labels.
    let label = match since_ms {
        None => Some(Label::new(shown(label, Label::MAX_LEN)?).map_err(|_| Malformed)?),
        Some(_) => None,
    };
    let mode = match text(mode)? {
        "" => LockMode::Exclusive,
        mode => LockMode::parse(mode).ok_or(Malformed)?,
    };
    let session = text(session)?.parse().map_err(|_| Malformed)?;
    Ok(QueuedWaiter { session, label, mode, since_ms })
}

/// The status of the hold in the request, if there was one.
fn requested_status(found: &Value) -> Read<Option<HoldStatus>> {
    match text(found)? {
        "" => Ok(None),
        word => hold_status(word).map(Some),
    }
}

fn fingerprint(value: &Value) -> Read<Option<Fingerprint>> {
    match text(value)? {
        "" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| Malformed),
    }
}

/// Counts the holders that the script could not read: how many there are, and the text of the first.
fn skip_holders(unread: &[Value], skipped: &mut Skipped) -> Read<()> {
    match unread {
        [] => Ok(()),
        [unread] => match items(unread)? {
            [count, first] => {
                let first = format!("a holder, `{}`", without_secrets(&shown(first, MAX_UNREAD)?));
                skipped.merge(Skipped { count: number(count)?, first: Some(first) });
                Ok(())
            }
            _ => Err(Malformed),
        },
        _ => Err(Malformed),
    }
}

/// The text without what may be the secret part of a hold's id: long words after a dot.
fn without_secrets(text: &str) -> String {
    let mut parts = text.split('.');
    let mut cleaned = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_of_id = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let word = part.bytes().take_while(is_of_id).count();
        cleaned.push('.');
        cleaned.push_str(if word >= MIN_SECRET { "…" } else { &part[..word] });
        cleaned.push_str(&part[word..]);
    }
    cleaned
}

/// The audit and the history.
fn past(audit: &Value, history: &Value, skipped: &mut Skipped) -> Read<(Vec<AuditEntry>, Vec<HistoryEntry>)> {
    Ok((entries(&lossy(audit)?, skipped), history_entries(&lossy(history)?, skipped)))
}

/// The entries of a history. Counts lines that are not valid entries, so that the others can still be read.
fn history_entries(history: &str, skipped: &mut Skipped) -> Vec<HistoryEntry> {
    let mut entries = Vec::new();
    for line in history.split('\n').filter(|line| !line.is_empty()) {
        match history_entry(line) {
            Some(entry) => entries.push(entry),
            None => skipped.add(|| format!("a line of the history, `{}`", escaped(line))),
        }
    }
    entries
}

fn history_entry(line: &str) -> Option<HistoryEntry> {
    let fields: Vec<_> = line.split('\t').collect();
    let [from_ms, to_ms, fence, label] = fields[..] else { return None };
    Some(HistoryEntry {
        from_ms: from_ms.parse().ok()?,
        to_ms: to_ms.parse().ok()?,
        fence: (!fence.is_empty()).then(|| fence.parse()).transpose().ok()?,
        label: Label::new(label).ok()?,
    })
}

/// The audit entries. Counts lines that are not valid entries, so that the others can still be read.
pub(crate) fn entries(audit: &str, skipped: &mut Skipped) -> Vec<AuditEntry> {
    let mut entries = Vec::new();
    for line in audit.split('\n').filter(|line| !line.is_empty()) {
        match entry(line) {
            Some(entry) => entries.push(entry),
            None => skipped.add(|| format!("a line of the audit, `{}`", escaped(line))),
        }
    }
    entries
}

/// A text of the store as part of a message: its beginning, without control characters.
fn escaped(text: &str) -> String {
    let shown = text.chars().take(MAX_UNREAD).flat_map(char::escape_debug).collect::<String>();
    if text.chars().nth(MAX_UNREAD).is_some() { shown + "…" } else { shown }
}

fn entry(line: &str) -> Option<AuditEntry> {
    let fields: Vec<_> = line.split('\t').collect();
    let [at_ms, how, fence, known, holder, by] = fields[..] else { return None };
    let fence = (!fence.is_empty()).then(|| fence.parse()).transpose().ok()?;
    let holder = (known == "1").then(|| Label::new(holder)).transpose().ok()?;
    Some(AuditEntry {
        at_ms: at_ms.parse().ok()?,
        ended: ended(how).ok()?,
        fence,
        holder,
        actor: Label::new(by).ok()?,
    })
}

fn evicted(value: &Value) -> Read<Evicted> {
    match items(value)? {
        [word] if text(word) == Ok("alive") => Ok(Evicted::Alive),
        [word, fence, was_queued] if text(word) == Ok("gone") => Ok(Evicted::Removed {
            // -1, which is not a count, means no hold.
            fence: number(fence).ok().map(FencingToken::new),
            was_queued: number(was_queued)? == 1,
        }),
        _ => Err(Malformed),
    }
}

fn force_released(value: &Value) -> Read<ForceReleased> {
    match items(value)? {
        [word] if text(word) == Ok("released") => Ok(ForceReleased::Released),
        [word, description] if text(word) == Ok("changed") => {
            Ok(ForceReleased::Changed { holder: holder(items(description)?)? })
        }
        _ => Err(Malformed),
    }
}

fn resized(value: &Value) -> Read<Resized> {
    match items(value)? {
        [word] if text(word) == Ok("resized") => Ok(Resized::Done),
        // -1, which is not a count, means no limit.
        [word, limit] if text(word) == Ok("changed") => Ok(Resized::Changed { limit: count(limit).ok() }),
        _ => Err(Malformed),
    }
}

fn fence_raised(value: &Value) -> Read<FenceRaised> {
    match number(value)? {
        0 => Ok(FenceRaised::NotHeld),
        1 => Ok(FenceRaised::Raised),
        _ => Err(Malformed),
    }
}

fn proclaimed(value: &Value) -> Read<Proclaimed> {
    match items(value)? {
        [word] if text(word)? == "proclaimed" => Ok(Proclaimed::Done),
        [word] if text(word)? == "not_held" => Ok(Proclaimed::NotHeld),
        [word, found] if text(word)? == "changed" => {
            Ok(Proclaimed::Changed { value: Label::new(text(found)?).map_err(|_| Malformed)? })
        }
        _ => Err(Malformed),
    }
}

/// A session, or `None` for an empty text.
fn session_id(value: &Value) -> Read<Option<SessionId>> {
    match text(value)? {
        "" => Ok(None),
        session => session.parse().map(Some).map_err(|_| Malformed),
    }
}

fn holder(description: &[Value]) -> Read<Option<Holder>> {
    let foreign = |remaining| Holder {
        label: None,
        owner: None,
        count: 1,
        // -1, which is not a count, means a key without an expiry.
        remaining_ms: number(remaining).ok(),
        fence: None,
        since_ms: None,
        session: None,
        mode: LockMode::Exclusive,
        in_cooldown: false,
    };
    match description {
        [] => Ok(None),
        [remaining] => Ok(Some(foreign(remaining))),
        [remaining, fence, since, label, session, owner @ ..] => {
            let in_cooldown = text(session) == Ok("cooldown");
            let ours = Holder {
                in_cooldown,
                label: Some(Label::new(shown(label, Label::MAX_LEN)?).map_err(|_| Malformed)?),
                fence: Some(FencingToken::new(number(fence)?)),
                since_ms: Some(number(since)?),
                // A hold whose session cannot be read is described all the same.
                session: if in_cooldown { None } else { session_id(session).ok().flatten() },
                ..foreign(remaining)
            };
            owned(ours, owner).map(Some)
        }
        [remaining, owner @ ..] => owned(foreign(remaining), owner).map(Some),
    }
}

/// A holder with its owner. For a ReentrantMutex: the owner and its hold count. For a shared lock: the owner or
/// nothing, and the holder's share.
fn owned(holder: Holder, owner: &[Value]) -> Read<Holder> {
    match owner {
        [] => Ok(holder),
        [owner, mode @ (Value::BulkString(_) | Value::SimpleString(_))] => {
            let owner = text(owner).ok().and_then(|owner| OwnValue::new(owner).ok());
            Ok(Holder { owner, mode: LockMode::parse(text(mode)?).ok_or(Malformed)?, ..holder })
        }
        [owner, count] => {
            // A client of another library may use any text as its name.
            let owner = text(owner).ok().and_then(|owner| OwnValue::new(owner).ok());
            Ok(Holder { owner, count: number(count)?, ..holder })
        }
        _ => Err(Malformed),
    }
}

fn hold_status(word: &str) -> Read<HoldStatus> {
    match word {
        "held" => Ok(HoldStatus::Held),
        "queued" => Ok(HoldStatus::Queued),
        "vanished" => Ok(HoldStatus::Vanished),
        "superseded" => Ok(HoldStatus::Superseded),
        "forgotten" => Ok(HoldStatus::Forgotten),
        how => ended(how).map(HoldStatus::Ended),
    }
}

fn ended(how: &str) -> Read<Ended> {
    match how {
        "released" => Ok(Ended::Released),
        "evicted" => Ok(Ended::Evicted),
        "force_released" => Ok(Ended::ForceReleased),
        _ => Err(Malformed),
    }
}
