//! The announcement of a leader change.

use leasehold_core::model::{LockState, all_alive};
use leasehold_core::{Inspect, Kind, Op, Reply};

/// Returns what a store publishes for an Election after an operation; `None` if the leader is the same.
pub fn leader_announcement(before: &LockState, after: &LockState, now_us: u64) -> Option<String> {
    let last = |state: &LockState| state.record.as_ref().and_then(|record| record.last_fence);
    let elected = |state: &LockState| {
        state.record.as_ref().map(|record| (record.last_fence, record.last_holder.clone()))
    };
    let token = |state: &LockState| {
        let content = state.value.as_ref().map(|value| &value.content);
        content.and_then(|content| content.token()).map(str::to_owned)
    };
    if after.kind != Kind::Election {
        return None;
    }
    let in_cooldown = token(after).is_some_and(|token| {
        token == Kind::Election.cooldown_token(last(after)) || token == Kind::Election.cooldown_token(None)
    });
    // The token may be unchanged if it is the greatest possible, and the holder if it had been elected by a minority.
    let given = !in_cooldown && token(after).is_some() && token(before) != token(after);
    if let Some(fence) = last(after).filter(|_| given || elected(before) != elected(after)) {
        return Some(format!("leader {fence}"));
    }
    let inspect = Op::Inspect(Inspect { claim: None, details: false });
    let (seen, _) = before.clone().apply(now_us, &inspect, &all_alive);
    let was_held = matches!(seen, Reply::Inspect(seen) if seen.holder.is_some());
    let over = after.value.is_none() || (in_cooldown && token(before) != token(after));
    (was_held && over).then(|| "none".to_owned())
}
