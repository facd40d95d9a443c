//! What a partial script may leave, as a state of the model.
//!
//! Let `before` be the state at which an operation arrived, and `after` the state that the whole operation makes. A partial
//! script leaves one of seven states. Each of its keys expires when it would have expired in `before` or in `after`; where
//! holds are released, also when it would have expired without them.
//!
//! | Left      | The lock                         | The record                    | The audit, the history |
//! |-----------|----------------------------------|-------------------------------|-----------|
//! | Untouched | as before                        | as before                     | as before |
//! | Freed     | released                         | as before                     | as before |
//! | Entered   | as before, or released           | as after                      | as before |
//! | Unwritten | as after                         | as before                     | as before |
//! | Unnoted   | as after                         | as after                      | as before |
//! | Done      | as after                         | as after                      | as after  |
//! | Lasting   | as before, with a later expiry   | as before                     | as before |
//!
//! The watermark is as before or as after; as after where the record has been written.
//!
//! A message is published only in Unnoted and Done. For later requests this means:
//!
//! - Untouched and Done are also left by a lost request and a lost reply.
//! - Unnoted: the audit does not show the eviction, or the history the released hold. The record shows it to its client.
//! - Freed: the end of the hold is not recorded. A second release gets "vanished", or what the record says of a hold that
//!   does not exist; it never gets "held". The next request grants the lock.
//! - Lasting: the key of a ReentrantMutex lasts longer than its holds, each of which has its own expiry, or as long as the
//!   remaining holds. A hold that was to start a cooldown ends when the cooldown would. A hold for which tokens were to be reserved lasts
//!   longer, and none are reserved.
//! - Entered: the last holder in the record was never granted the lock, was not notified, and has left the queue. Its
//!   fencing token is used up. Its next poll finds the lock free; waiters that queued meanwhile come first.
//! - Unwritten: a free Mutex without waiters contains the token of the requested hold, and no user value. The client was
//!   not notified. Its next poll finds the hold, and its release ends it. Other clients see a foreign holder until the
//!   lease ends.
//!
//! A released lock has no holder, even in its cooldown. A ReentrantMutex still belongs to an owner with other holds. What a
//! script writes never outlasts its key: a lock that is as after expires as after. Expired entries count as none.
//!
//! In no state is the lock held by a client that did not request it, or whose release was recorded, and the record knows
//! every published token.

use leasehold_core::Kind;
use leasehold_core::model::{Content, LockState, Value, Watermark};

/// The state that a partial script has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    Untouched,
    ForceReleased,
    Lasting,
    Entered,
    Unwritten,
    Unnoted,
    Done,
}

/// Which of the states is `left`, if any. `given_up` is the lock without the holds that the operation ends, if it ends any.
pub(crate) fn left(
    before: &LockState,
    after: &LockState,
    left: &LockState,
    given_up: Option<&LockState>,
) -> Option<Left> {
    if left == after {
        return Some(Left::Done);
    }
    if left == before {
        return Some(Left::Untouched);
    }
    if !ends_as_in(left, before, after, given_up) || !has_watermark(left, before, after) {
        return None;
    }
    if is_unwritten(before, after, left) {
        return Some(Left::Unwritten);
    }
    let value = given_up.map_or(before, |given_up| given_up).value.clone().map(for_ever_there);
    let given_up = given_up.is_some();
    let [before, after, left] = [before, after, left].map(for_ever);
    if left == after {
        Some(Left::Done)
    } else if left == before {
        Some(Left::Lasting)
    } else if left.audit != before.audit || left.history != before.history {
        None
    } else if left.value == after.value && left.record == after.record {
        Some(Left::Unnoted)
    } else if left.value != value {
        None
    } else if given_up && left.record == before.record {
        Some(Left::ForceReleased)
    } else if left.record == after.record || names_a_requester(&before, &left) {
        Some(Left::Entered)
    } else {
        None
    }
}

/// Whether a free Mutex without waiters contains the requested hold, and nothing else was written.
fn is_unwritten(before: &LockState, after: &LockState, left: &LockState) -> bool {
    let record = |state: &LockState| for_ever(state).record;
    let awaited = before.record.as_ref().is_some_and(|record| !record.tickets.is_empty());
    let last_holder = after.record.as_ref().and_then(|record| record.last_holder.as_ref());
    let token = left.value.as_ref().and_then(|value| value.content.token());
    left.kind == Kind::Mutex
        && before.value.is_none()
        && !awaited
        && left.value == after.value
        && last_holder.is_some_and(|last_holder| token == Some(&last_holder.claim.hold.token()))
        && record(left) == record(before)
        && left.audit == before.audit
        && left.history == before.history
}

/// Whether a new record names a holder, beside a key of another type: only then it is dropped again.
fn names_a_requester(before: &LockState, left: &LockState) -> bool {
    let is_other = matches!(&left.value, Some(Value { content: Content::Other(_), .. }));
    let is_new =
        before.record.is_none() && left.record.as_ref().is_some_and(|record| record.entries.is_empty());
    left.kind == Kind::Mutex && is_other && is_new
}

/// Whether each key expires as in one of two states; the lock also as without the holds that were given up.
fn ends_as_in(left: &LockState, before: &LockState, after: &LockState, given_up: Option<&LockState>) -> bool {
    let value = |state: &LockState| state.value.as_ref().map(|value| value.expires_ms);
    let record = |state: &LockState| state.record.as_ref().map(|record| record.expires_ms);
    let content = |state: &LockState| state.value.as_ref().map(|value| value.content.clone());
    let written = content(left) == content(after) && content(left) != content(before);
    let ends = [value(before), value(after), value(given_up.unwrap_or(after))];
    let ends = if written { &ends[1..2] } else { &ends[..] };
    let value_fits = value(left).is_none() || ends.contains(&value(left));
    let record_fits = record(left).is_none()
        || [record(before), record(after)].contains(&record(left))
        || names_a_requester(before, left);
    let audit = |state: &LockState| state.audit.as_ref().map(|audit| audit.expires_ms);
    let audit_fits = audit(left).is_none() || [audit(before), audit(after)].contains(&audit(left));
    let history = |state: &LockState| state.history.as_ref().map(|history| history.expires_ms);
    let history_fits = history(left).is_none() || [history(before), history(after)].contains(&history(left));
    value_fits && record_fits && audit_fits && history_fits
}

/// Whether the watermark is as before or as after; as after if the record has been written.
fn has_watermark(left: &LockState, before: &LockState, after: &LockState) -> bool {
    let is_written = left.record != before.record;
    left.watermark == after.watermark || left.watermark == before.watermark && !is_written
}

/// A state without its expiries, and without the watermark.
fn for_ever(state: &LockState) -> LockState {
    let mut state = LockState { watermark: Watermark::default(), ..state.clone() };
    state.value = state.value.map(for_ever_there);
    if let Some(record) = &mut state.record {
        record.expires_ms = 0;
    }
    state
}

fn for_ever_there(value: Value) -> Value {
    Value { expires_ms: None, ..value }
}
