//! What a cut-off may leave, as the model sees it.
//!
//! Let `before` be the state at which an operation arrived, and `after` the one that it makes as a whole. A script that is
//! stopped leaves one of six states, and each of its keys ends when it would have ended in `before` or in `after`:
//!
//! | Left      | The lock                        | The record                    | The audit |
//! |-----------|---------------------------------|-------------------------------|-----------|
//! | Untouched | as before                       | as before                     | as before |
//! | Freed     | nobody's; it was given up       | as before                     | as before |
//! | Opened    | as before; nobody's if given up | new and empty; there was none | as before |
//! | Entered   | as before; nobody's if given up | as after                      | as before |
//! | Unnoted   | as after                        | as after                      | as before |
//! | Done      | as after                        | as after                      | as after  |
//!
//! and a message is out only where it is Unnoted or Done. What that means for those who come next:
//!
//! - Untouched and Done are what a lost request and a lost reply leave as well.
//! - Unnoted: people are not told who took the lock from whom. Whoever lost it is told by the record.
//! - Freed: nobody has written down how the hold was ended. A second release is told "vanished", or what else the
//!   record says of a hold that is not there; it is never told that it still holds. The next who comes gives the lock on.
//! - Opened means nothing.
//! - Entered: whoever the record names as the last one was never given the lock, was not told so, and has left the queue.
//!   Its fencing token is used up. It finds the lock free with its next look; if others wait by then, they come first.
//!
//! In none of them has anybody the lock who had not asked for it, or whose release was written down, and no token is on its
//! way that the record does not know.

use leasehold_core::model::{LockState, Record};

/// What a cut-off has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    Untouched,
    Freed,
    Opened,
    Entered,
    Unnoted,
    Done,
}

/// Which of the states is `left`, if it is any. `given_up` says whether the operation ends a hold that it
/// finds.
pub(super) fn left(before: &LockState, after: &LockState, left: &LockState, given_up: bool) -> Option<Left> {
    if left == after {
        return Some(Left::Done);
    }
    if left == before {
        return Some(Left::Untouched);
    }
    if !ends_as_in(left, before, after) {
        return None;
    }
    let [before, after, left] = [before, after, left].map(for_ever);
    let value = if given_up { None } else { before.value };
    if left == after {
        Some(Left::Done)
    } else if left.audit != before.audit {
        None
    } else if left.value == after.value && left.record == after.record {
        Some(Left::Unnoted)
    } else if left.value != value {
        None
    } else if given_up && left.record == before.record {
        Some(Left::Freed)
    } else if left.record == after.record {
        Some(Left::Entered)
    } else if before.record.is_none() && left.record.as_ref().is_some_and(is_empty) {
        Some(Left::Opened)
    } else {
        None
    }
}

/// Whether each key ends when it would in one of two states.
fn ends_as_in(left: &LockState, before: &LockState, after: &LockState) -> bool {
    let value = |state: &LockState| state.value.as_ref().map(|value| value.expires_ms);
    let record = |state: &LockState| state.record.as_ref().map(|record| record.expires_ms);
    let value_fits = value(left).is_none() || [value(before), value(after)].contains(&value(left));
    let record_fits = record(left).is_none() || [record(before), record(after)].contains(&record(left));
    let audit = |state: &LockState| state.audit.as_ref().map(|audit| audit.expires_ms);
    let audit_fits = audit(left).is_none() || [audit(before), audit(after)].contains(&audit(left));
    value_fits && record_fits && audit_fits
}

/// A state without its expiries.
fn for_ever(state: &LockState) -> LockState {
    let mut state = state.clone();
    if let Some(value) = &mut state.value {
        value.expires_ms = None;
    }
    if let Some(record) = &mut state.record {
        record.expires_ms = 0;
    }
    state
}

fn is_empty(record: &Record) -> bool {
    let Record { expires_ms: _, last, tenant, ended, tail, tickets, places } = record;
    last.is_none()
        && tenant.is_none()
        && ended.is_none()
        && *tail == 0
        && tickets.is_empty()
        && places.is_empty()
}
