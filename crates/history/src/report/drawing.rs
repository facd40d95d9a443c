//! Time lines as inline SVG.
//!
//! Owns where things are drawn. All text in a drawing is made here, but for details of faults in titles, which are escaped.

use super::text::escaped;
use crate::event::FaultKind;
use crate::fencing::{duration, seconds};
use crate::timeline::{Call, Timeline};
use crate::verdict::{FaultRecord, Violation};
use std::fmt::Write as _;

/// The width of all drawings.
const WIDTH: f64 = 1120.0;
/// Where time begins; the names of processes stand before.
const LEFT: f64 = 190.0;
/// What is left free at the right.
const RIGHT: f64 = 20.0;
/// The height of a lane.
const LANE: f64 = 74.0;
/// Above the lanes: the labels of faults and of the violation.
const TOP: f64 = 44.0;
/// Where the labels of a lane stand, from its middle.
const ABOVE: f64 = -16.0;
const BELOW: f64 = 24.0;
const BELOW_MORE: f64 = 33.0;
/// How many calls a drawing shows at most.
const LANES: usize = 12;
/// How many marks of a sort a lane shows at most.
const MARKS: usize = 150;

/// The part of time that a drawing shows.
#[derive(Debug, Clone, Copy)]
struct Window {
    from_us: u64,
    to_us: u64,
}

impl Window {
    #[expect(clippy::cast_precision_loss, reason = "a run is shorter than 2^52 microseconds")]
    fn x(self, at_us: u64) -> f64 {
        let part = at_us.clamp(self.from_us, self.to_us) - self.from_us;
        LEFT + (WIDTH - LEFT - RIGHT) * part as f64 / (self.to_us - self.from_us).max(1) as f64
    }

    fn has(self, at_us: u64) -> bool {
        (self.from_us..=self.to_us).contains(&at_us)
    }

    fn length_us(self) -> u64 {
        self.to_us - self.from_us
    }
}

/// What a fault is called in a drawing.
pub(super) fn fault_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Kill => "killed",
        FaultKind::Stop => "stopped",
        FaultKind::Cut => "connections cut",
        FaultKind::Delay => "delayed",
        FaultKind::SwallowReplies => "replies swallowed",
        FaultKind::Partition => "cut off",
        FaultKind::Restart => "store restarted",
        FaultKind::Failover => "fail-over",
    }
}

/// The whole run: its faults, and where the violations are.
pub(super) fn run(timeline: &Timeline<'_>, violations: &[Violation]) -> String {
    let window = Window { from_us: 0, to_us: timeline.end_us.max(1) };
    let height = 80.0;
    let mut svg = begin(height, "The run with its faults and violations");
    svg.push_str("<text class=\"name\" x=\"0\" y=\"26\">Faults</text><text class=\"name\" x=\"0\" y=\"48\">Violations</text>");
    for fault in &timeline.faults {
        let (from, to) = (window.x(fault.from_us), window.x(fault.to_us));
        let _ = write!(
            svg,
            "<rect class=\"fault\" stroke=\"var(--fault)\" x=\"{from:.1}\" y=\"13\" width=\"{:.1}\" height=\"18\"><title>{} from {} to {}: {}</title></rect>",
            (to - from).max(1.0),
            fault_name(fault.kind),
            seconds(fault.from_us),
            seconds(fault.to_us),
            escaped(fault.detail)
        );
    }
    for violation in violations.iter().take(2000) {
        let x = window.x(violation.at_us);
        let _ = write!(
            svg,
            "<path class=\"violation\" d=\"M{x:.1} 36v16\"><title>{} at {}</title></path>",
            violation.check,
            seconds(violation.at_us)
        );
    }
    axis(&mut svg, window, 0, 58.0, 0.0);
    svg.push_str("</svg>");
    svg
}

/// The time lines of the calls of a violation, one below the other. Empty if it involves no call.
pub(super) fn violation(timeline: &Timeline<'_>, violation: &Violation) -> String {
    let calls: Vec<&Call<'_>> = violation
        .calls
        .iter()
        .filter_map(|record| timeline.calls.iter().find(|call| call.id == record.call))
        .collect();
    // Of many, the last ones: what happened is about the call that came last.
    let calls = &calls[calls.len().saturating_sub(LANES)..];
    if calls.is_empty() {
        return String::new();
    }
    let window = window(timeline, violation, calls);
    #[expect(clippy::cast_precision_loss, reason = "a violation has few calls")]
    let bottom = TOP + LANE * calls.len() as f64;
    let mut svg = begin(bottom + 34.0, "Time lines of the calls");
    faults(&mut svg, window, &violation.faults, bottom);
    stretch(&mut svg, window, violation, bottom);
    axis(&mut svg, window, violation.at_us, bottom, TOP);
    let mut top = TOP;
    for call in calls {
        lane(&mut svg, timeline, window, call, top);
        top += LANE;
    }
    svg.push_str("</svg>");
    svg
}

fn begin(height: f64, label: &str) -> String {
    format!("<svg class=\"drawing\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">")
}

/// What is to be seen: the violation, with what led to it and what came of it, as far as that is not many times longer.
fn window(timeline: &Timeline<'_>, violation: &Violation, calls: &[&Call<'_>]) -> Window {
    let (at_us, until_us) = (violation.at_us, violation.until_us.unwrap_or(violation.at_us));
    let begins = calls.iter().map(|call| call.granted_us().unwrap_or(call.asked_us).min(at_us)).min();
    let ends = calls
        .iter()
        .map(|call| {
            let times = [
                call.releases.last().map(|(at, _)| *at),
                call.lost.map(|(at, _)| at),
                call.believed_until_us(),
                call.answered_us(),
            ];
            times.into_iter().flatten().max().unwrap_or(until_us)
        })
        .max();
    // Each hold is to be seen, at least its end.
    let ended = calls.iter().filter_map(|call| call.believed_until_us()).min().unwrap_or(at_us);
    let reach_us = (until_us - at_us).max(100_000).saturating_mul(6).max(at_us.saturating_sub(ended) / 5 * 6);
    let from_us = begins.unwrap_or(at_us).max(at_us.saturating_sub(reach_us));
    let to_us =
        ends.unwrap_or(until_us).clamp(until_us, until_us.saturating_add(reach_us)).max(from_us + 1_000);
    let margin_us = (to_us - from_us) / 16;
    Window {
        from_us: from_us.saturating_sub(margin_us),
        to_us: to_us.saturating_add(margin_us).min(timeline.end_us.max(to_us)),
    }
}

fn faults(svg: &mut String, window: Window, faults: &[FaultRecord], bottom: f64) {
    let mut free_from = LEFT;
    for fault in faults.iter().filter(|fault| fault.from_us <= window.to_us && fault.to_us >= window.from_us)
    {
        let (from, to) = (window.x(fault.from_us), window.x(fault.to_us));
        let title = format!(
            "{} from {} to {}: {}",
            fault_name(fault.kind),
            seconds(fault.from_us),
            seconds(fault.to_us),
            escaped(&fault.detail)
        );
        let _ = write!(
            svg,
            "<rect class=\"fault\" x=\"{from:.1}\" y=\"20\" width=\"{:.1}\" height=\"{:.1}\"><title>{title}</title></rect>",
            (to - from).max(1.0),
            bottom - 20.0
        );
        for at_us in [fault.from_us, fault.to_us].into_iter().filter(|&at_us| window.has(at_us)) {
            let x = window.x(at_us);
            let _ = write!(svg, "<path class=\"fault-edge\" d=\"M{x:.1} 20V{bottom:.1}\"/>");
        }
        let worker = fault.worker.map_or_else(String::new, |worker| format!(" (process {worker})"));
        let label = format!("{}{worker}", fault_name(fault.kind));
        // Labels stand side by side; one for which there is no room has its title.
        #[expect(clippy::cast_precision_loss, reason = "a label is short")]
        let width = label.len() as f64 * 6.5;
        let x = from.max(free_from);
        if x + width <= WIDTH {
            let _ = write!(svg, "<text class=\"warn\" x=\"{x:.1}\" y=\"15\">{label}</text>");
            free_from = x + width + 8.0;
        }
    }
}

/// The time of the violation itself.
fn stretch(svg: &mut String, window: Window, violation: &Violation, bottom: f64) {
    let (from, to) = (window.x(violation.at_us), window.x(violation.until_us.unwrap_or(violation.at_us)));
    let _ = write!(
        svg,
        "<rect class=\"over\" x=\"{from:.1}\" y=\"36\" width=\"{:.1}\" height=\"{:.1}\"/><path class=\"over-edge\" d=\"M{from:.1} 36V{bottom:.1}M{to:.1} 36V{bottom:.1}\"/>",
        (to - from).max(1.0),
        bottom - 36.0
    );
    let label = match violation.until_us {
        Some(until_us) => {
            format!("{}: {}", stretch_name(violation.check), duration(until_us - violation.at_us))
        }
        None => stretch_name(violation.check).to_owned(),
    };
    // Near the right edge the label ends at the line.
    let (anchor, x) = if from > WIDTH - 230.0 { ("end", to) } else { ("start", from) };
    let _ =
        write!(svg, "<text class=\"alarm\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"32\">{label}</text>");
}

fn stretch_name(check: &str) -> &'static str {
    match check {
        "exclusion" => "held at the same time",
        "wake_ups" => "free, with a waiter",
        "tokens" => "token does not grow",
        "counter" => "write",
        "order" => "out of order",
        _ => "violation",
    }
}

fn lane(svg: &mut String, timeline: &Timeline<'_>, window: Window, call: &Call<'_>, top: f64) {
    let middle = top + 38.0;
    let _ = write!(
        svg,
        "<path class=\"axis\" d=\"M0 {top:.1}H{WIDTH}\"/><text class=\"name\" x=\"0\" y=\"{:.1}\">Process {}</text>",
        top + 26.0,
        call.process
    );
    let pid =
        timeline.processes.get(&call.process).map_or_else(String::new, |it| format!("pid {}, ", it.pid));
    let _ = write!(svg, "<text class=\"soft\" x=\"0\" y=\"{:.1}\">{pid}call {}</text>", top + 42.0, call.id);
    if let Some(fence) = call.fence() {
        let _ = write!(svg, "<text class=\"soft\" x=\"0\" y=\"{:.1}\">token {fence}</text>", top + 57.0);
    }
    let waits_until_us = timeline.waits_until_us(call);
    if window.from_us <= waits_until_us && call.asked_us <= window.to_us {
        let (from, to) = (window.x(call.asked_us), window.x(waits_until_us));
        let _ = write!(
            svg,
            "<path class=\"asked\" d=\"M{from:.1} {middle:.1}H{to:.1}\"><title>waits from {} to {}</title></path>",
            seconds(call.asked_us),
            seconds(waits_until_us)
        );
        // Where it was granted at once, that is what stands there.
        let is_apart = window.x(waits_until_us) - window.x(call.asked_us) > 45.0;
        point(svg, window, call.asked_us, middle, if is_apart { "asked" } else { "" }, BELOW);
    }
    if call.granted_us().is_some() {
        hold(svg, timeline, window, call, middle);
    } else if let Some(answered_us) = call.answered_us() {
        point(svg, window, answered_us, middle, "not granted", BELOW);
    }
    if let Some(exited_us) = timeline.exited_us(call) {
        point(svg, window, exited_us, middle, "process ended", BELOW_MORE);
    }
}

fn hold(svg: &mut String, timeline: &Timeline<'_>, window: Window, call: &Call<'_>, middle: f64) {
    let (Some(granted_us), Some(until_us)) = (call.granted_us(), call.believed_until_us()) else { return };
    let ended_us = call
        .releases
        .last()
        .map(|(at, _)| *at)
        .or(timeline.exited_us(call))
        .unwrap_or(timeline.end_us)
        .max(until_us);
    bar(svg, window, "after", (until_us, ended_us), (middle, 12.0), "after the last valid check");
    bar(svg, window, "held", (granted_us, until_us), (middle, 20.0), "believes to hold the lock");
    let granted =
        call.fence().map_or_else(|| "granted".to_owned(), |fence| format!("granted, token {fence}"));
    point(svg, window, granted_us, middle, &granted, ABOVE);
    for check in thinned(&call.checks, |check| window.has(check.at_us)) {
        let (x, class) = (window.x(check.since_us), if check.valid { "valid" } else { "invalid" });
        let state = if check.valid { "valid" } else { "not valid" };
        let path = if check.valid {
            format!("M{x:.1} {:.1}v8", middle + 11.0)
        } else {
            format!("M{:.1} {:.1}l8 8m-8 0l8 -8", x - 4.0, middle + 11.0)
        };
        let _ = write!(
            svg,
            "<path class=\"{class}\" d=\"{path}\"><title>{state} at {}</title></path>",
            seconds(check.since_us)
        );
    }
    let writes: Vec<_> = timeline.locks[call.lock]
        .writes
        .iter()
        .filter(|write| timeline.calls[write.call].id == call.id && window.has(write.at_us))
        .collect();
    for write in thinned(&writes, |_| true) {
        let (x, y) = (window.x(write.at_us), middle);
        let title =
            format!("write at {}: had read {}, found {}", seconds(write.at_us), write.read, write.found);
        if write.fenced {
            let _ = write!(
                svg,
                "<circle class=\"write\" stroke=\"var(--panel)\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"><title>{title}, accepted</title></circle>"
            );
        } else {
            let _ = write!(
                svg,
                "<circle fill=\"var(--panel)\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"8\"/><path class=\"refused\" d=\"M{:.1} {:.1}l9 9m-9 0l9 -9\"><title>{title}, refused</title></path>",
                x - 4.5,
                y - 4.5
            );
            let (anchor, x) = if x > WIDTH - 110.0 { ("end", x + 8.0) } else { ("start", x - 8.0) };
            let _ = write!(
                svg,
                "<text class=\"alarm\" font-size=\"11\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">write refused</text>",
                middle - 16.0
            );
        }
    }
    if let Some((lost_us, _)) = call.lost {
        point(svg, window, lost_us, middle, "lost", BELOW);
    }
    if let Some(release_us) = call.release_asked_us {
        point(svg, window, release_us, middle, "release", BELOW_MORE);
    }
}

fn bar(
    svg: &mut String,
    window: Window,
    class: &str,
    (from_us, to_us): (u64, u64),
    (middle, height): (f64, f64),
    title: &str,
) {
    if to_us < window.from_us || window.to_us < from_us || from_us == to_us {
        return;
    }
    let (from, to) = (window.x(from_us), window.x(to_us));
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height}\"><title>{title}: from {} to {}</title></rect>",
        middle - height / 2.0,
        (to - from).max(1.0),
        seconds(from_us),
        seconds(to_us)
    );
}

/// A line across a lane, with a label below or above.
fn point(svg: &mut String, window: Window, at_us: u64, middle: f64, label: &str, label_at: f64) {
    if !window.has(at_us) {
        return;
    }
    let x = window.x(at_us);
    let (anchor, shift) = if x > WIDTH - 130.0 { ("end", -3.0) } else { ("start", 3.0) };
    let y = middle + label_at;
    let _ = write!(
        svg,
        "<path class=\"edge\" d=\"M{x:.1} {:.1}v24\"><title>{label} at {}</title></path><text class=\"soft\" text-anchor=\"{anchor}\" x=\"{:.1}\" y=\"{y:.1}\">{label}</text>",
        middle - 12.0,
        seconds(at_us),
        x + shift
    );
}

/// At most so many marks, evenly.
fn thinned<T>(marks: &[T], is_shown: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let shown: Vec<&T> = marks.iter().filter(|mark| is_shown(mark)).collect();
    let step = shown.len().div_ceil(MARKS).max(1);
    shown.into_iter().step_by(step)
}

/// Times from an origin on.
fn axis(svg: &mut String, window: Window, origin_us: u64, bottom: f64, top: f64) {
    let step_us = step_us(window.length_us());
    let _ = write!(svg, "<path class=\"axis\" d=\"M{LEFT} {bottom:.1}H{WIDTH}\"/>");
    let before = (origin_us - window.from_us.min(origin_us)) / step_us;
    let mut at_us = origin_us - before * step_us;
    while at_us <= window.to_us {
        if window.has(at_us) {
            let x = window.x(at_us);
            let anchor = if x > WIDTH - 26.0 { "end" } else { "middle" };
            let label = match at_us.cmp(&origin_us) {
                std::cmp::Ordering::Less => format!("−{}", duration_tick(origin_us - at_us)),
                std::cmp::Ordering::Equal => "0".to_owned(),
                std::cmp::Ordering::Greater if origin_us == 0 => duration_tick(at_us),
                std::cmp::Ordering::Greater => format!("+{}", duration_tick(at_us - origin_us)),
            };
            let _ = write!(
                svg,
                "<path class=\"axis\" d=\"M{x:.1} {:.1}V{:.1}\"/><text class=\"soft\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>",
                if top > 0.0 { top } else { bottom },
                bottom + 4.0,
                bottom + 16.0
            );
        }
        at_us = at_us.saturating_add(step_us);
    }
}

/// A round step of which a length has 5 to 12.
fn step_us(length_us: u64) -> u64 {
    let mut step_us = 1;
    for factor in [2, 5, 10].into_iter().cycle() {
        if length_us / step_us <= 10 || step_us > u64::MAX / 10 {
            break;
        }
        // 1, 2, 5, 10, 20 …
        let base = 10_u64.pow(step_us.ilog10());
        step_us = base * factor;
    }
    step_us
}

fn duration_tick(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 if us.is_multiple_of(1_000) => format!("{} ms", us / 1_000),
        1_000..1_000_000 => duration(us),
        _ if us.is_multiple_of(1_000_000) => format!("{} s", us / 1_000_000),
        _ => format!("{}.{:01} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (length, step) in
            [(10, 1), (15, 2), (30, 5), (90, 10), (700_000, 100_000), (60_000_000, 10_000_000)]
        {
            assert_eq!(step_us(length), step, "{length}");
        }
    }
}
