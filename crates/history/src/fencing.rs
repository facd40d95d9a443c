//! What a fencing check at the resource does with the writes of holds that were there together.

use crate::event::LockKind;
use crate::timeline::{Call, Lock, Timeline};
use crate::verdict::RefusedWrite;
use std::fmt::Write as _;

/// The writes under these holds that the check refuses, and what it does in plain sentences. The holds are in order of their grants.
pub(crate) fn against(
    timeline: &Timeline<'_>,
    lock: &Lock<'_>,
    holds: &[usize],
) -> (Vec<RefusedWrite>, String) {
    if lock.spec.kind == LockKind::Semaphore {
        let text = "Holders of permits use the resource side by side, so no fencing check refuses one of them for another.";
        return (Vec::new(), text.to_owned());
    }
    let mut refused = Vec::new();
    let (mut greatest, mut accepted) = (0, 0_u64);
    for write in &lock.writes {
        let is_of_these = holds.contains(&write.call);
        if is_of_these && !write.fenced {
            let call = timeline.calls[write.call].id;
            refused.push(RefusedWrite {
                call,
                fence: write.fence,
                at_us: write.at_us,
                after_fence: greatest,
            });
        }
        accepted += u64::from(is_of_these && write.fenced);
        greatest = greatest.max(write.fence);
    }
    let mut text = String::new();
    for write in &refused {
        let holder = holds.iter().map(|&hold| &timeline.calls[hold]).find(|call| call.id == write.call);
        let holder = holder.map_or_else(String::new, |call| timeline.process_name(call));
        let _ = write!(
            text,
            "The fencing check refuses the write of {holder} at {}: its token {} is smaller than {}, which has written before. ",
            seconds(write.at_us),
            write.fence,
            write.after_fence
        );
    }
    if refused.is_empty() {
        text.push_str(&without_refusal(timeline, holds, accepted));
    }
    (refused, text.trim_end().to_owned())
}

/// What the check does where it refused nothing.
fn without_refusal(timeline: &Timeline<'_>, holds: &[usize], accepted: u64) -> String {
    let fences: Vec<u64> = holds.iter().filter_map(|&hold| timeline.calls[hold].fence()).collect();
    if fences.len() < holds.len() {
        return "There is no token for each of them, so no fencing check tells them apart.".to_owned();
    }
    if !fences.is_sorted_by(|before, after| before < after) {
        let fences: Vec<String> = fences.iter().map(u64::to_string).collect();
        return format!(
            "The tokens do not grow from one hold to the next ({}), so a fencing check does not tell which holder is the later one.",
            fences.join(", ")
        );
    }
    let newest = fences.last().copied().unwrap_or_default();
    let writes = match accepted {
        0 => "None of these holders wrote.",
        _ => "No write came after one with a greater token, so none is refused.",
    };
    format!(
        "{writes} Once token {newest} has written, the fencing check refuses every write with a smaller one."
    )
}

/// Whether a hold has a token that excludes an earlier one.
pub(crate) fn grows(before: &Call<'_>, after: &Call<'_>) -> bool {
    match (before.fence(), after.fence()) {
        (Some(before_fence), Some(after_fence)) => {
            before_fence < after_fence || (before_fence == after_fence && before.has_owner_of(after))
        }
        _ => true,
    }
}

/// A time of the history, for a sentence.
#[expect(clippy::cast_precision_loss, reason = "a run is shorter than 2^52 microseconds")]
pub(crate) fn seconds(us: u64) -> String {
    format!("{:.6} s", us as f64 / 1e6)
}

/// A duration, for a sentence.
#[expect(clippy::cast_precision_loss, reason = "a run is shorter than 2^52 microseconds")]
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}
