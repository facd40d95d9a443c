//! The report of a run: one HTML file.
//!
//! 1. The page needs no other file, no network and no script.
//! 2. What comes from a history, such as the name of a lock, is escaped: it stays text.
//! 3. The first thing is whether the run passed, and the table of checks.

mod drawing;
mod text;

use crate::event::FaultKind;
use crate::fencing::{duration, seconds};
use crate::history::History;
use crate::margins::Margins;
use crate::timeline::{Call, Timeline};
use crate::verdict::{CallRecord, CheckOutcome, Measured, Percentiles, Verdict, Violation};
use std::fmt::Write as _;
use text::{escaped, number, prose};

const STYLE: &str = include_str!("style.css");

/// How many violations are shown with a time line.
const SHOWN: usize = 30;

/// How many events of a call are listed.
const LISTED: usize = 200;

/// The report of a judged history: one HTML page that needs no other file, no network and no script.
///
/// ```
/// use leasehold_history::{History, judge, report_html};
///
/// let began = r#"{"at_us":0,"process":0,"event":"began","format":1,"seed":1,"store":"<redis>","started_at":"",
///     "locks":[],"lease_ms":1000,"session_ms":1000,"settings":{}}"#.replace('\n', "");
/// let history = History::read(began.as_bytes()).expect("a history");
/// let page = report_html(&history, &judge(&history));
/// assert!(page.contains("&lt;redis&gt;"));
/// ```
pub fn report_html(history: &History, verdict: &Verdict) -> String {
    let timeline = Timeline::of(history, &Margins::default());
    let mut html = String::new();
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>Locks {}</title><style>{STYLE}</style></head><body><main>",
        if verdict.passed() { "passed" } else { "FAILED" }
    );
    summary(&mut html, history, &timeline, verdict);
    checks(&mut html, &verdict.checks);
    violations(&mut html, &timeline, &verdict.violations);
    measurements(&mut html, &timeline, &verdict.measured);
    html.push_str("</main></body></html>\n");
    html
}

fn summary(html: &mut String, history: &History, timeline: &Timeline<'_>, verdict: &Verdict) {
    let begin = timeline.begin;
    let _ = write!(
        html,
        "<h1>Locks on <code>{}</code>, {} from {}</h1>",
        escaped(begin.store),
        duration(timeline.end_us),
        escaped(begin.started_at)
    );
    let (class, head) = if verdict.passed() { ("good", "Passed") } else { ("bad", "Failed") };
    let mut told = match verdict.violations.len() {
        0 if verdict.passed() => "No violation was found.".to_owned(),
        0 => "Nothing could be judged: no check found anything to look at.".to_owned(),
        1 => "One violation was found.".to_owned(),
        count => format!("{} violations were found.", number(count as u64)),
    };
    let silent: Vec<&str> = verdict.not_judged().map(|check| check.name).collect();
    if !silent.is_empty() {
        let _ = write!(told, " Not judged: {}.", silent.join(", "));
    }
    if !history.has_ended() {
        told.push_str(" The run was interrupted: it is judged as far as it went.");
    }
    let _ = write!(html, "<div class=\"verdict {class}\"><strong>{head}</strong>{told}</div>");
    let _ = write!(html, "<div class=\"scroll\">{}</div>", drawing::run(timeline, &verdict.violations));
}

fn checks(html: &mut String, checks: &[CheckOutcome]) {
    html.push_str("<h2>Checks</h2><div class=\"scroll\"><table><thead><tr><th>Check</th><th>Result</th><th>What it demands</th><th class=\"number\">Judged</th><th class=\"number\">Left out in faults</th></tr></thead><tbody>");
    for check in checks {
        let (class, result) = match (check.violations, check.judged) {
            (0, 0) => ("none", "not judged".to_owned()),
            (0, _) => ("good", "in order".to_owned()),
            (1, _) => ("bad", "1 violation".to_owned()),
            (count, _) => ("bad", format!("{} violations", number(count))),
        };
        let note = check
            .note
            .as_deref()
            .map_or_else(String::new, |note| format!("<span class=\"note\">{}</span>", prose(note)));
        let _ = write!(
            html,
            "<tr class=\"{class}\"><th>{}</th><td class=\"result\">{result}</td><td class=\"wide\">{}{note}</td><td class=\"number\">{}<span class=\"note\">{}</span></td><td class=\"number\">{}</td></tr>",
            check.name,
            check.checks,
            number(check.judged),
            check.counts,
            number(check.excused)
        );
    }
    html.push_str("</tbody></table></div>");
}

fn violations(html: &mut String, timeline: &Timeline<'_>, violations: &[Violation]) {
    if violations.is_empty() {
        return;
    }
    html.push_str("<h2>Violations</h2>");
    legend(html);
    for violation in chosen(violations) {
        let lock = violation
            .lock
            .as_deref()
            .map_or_else(String::new, |lock| format!(" of <code>{}</code>", escaped(lock)));
        let _ = write!(
            html,
            "<article><h3>{}{lock}, at {}</h3><p>{}</p>",
            violation.check,
            seconds(violation.at_us),
            prose(&violation.what)
        );
        let _ = write!(html, "<div class=\"scroll\">{}</div>", drawing::violation(timeline, violation));
        if let Some(fencing) = &violation.fencing {
            let _ = write!(
                html,
                "<p class=\"fencing\"><strong>What a fencing check at the resource does</strong>{}</p>",
                prose(fencing)
            );
        }
        for fault in &violation.faults {
            let _ = write!(
                html,
                "<p class=\"quiet\">Fault: {}{}, from {} to {}. {}</p>",
                drawing::fault_name(fault.kind),
                fault.worker.map_or_else(String::new, |worker| format!(" (process {worker})")),
                seconds(fault.from_us),
                seconds(fault.to_us),
                escaped(&fault.detail)
            );
        }
        calls(html, timeline, &violation.calls);
        html.push_str("</article>");
    }
    let left = violations.len().saturating_sub(SHOWN);
    if left > 0 {
        let _ = write!(
            html,
            "<p class=\"quiet\">{} more violations are not shown here.</p>",
            number(left as u64)
        );
    }
}

/// The first of each check, and then as many as there is room for, in order of time.
fn chosen(violations: &[Violation]) -> impl Iterator<Item = &Violation> {
    let is_first =
        |index: usize| !violations[..index].iter().any(|earlier| earlier.check == violations[index].check);
    let firsts = (0..violations.len()).filter(|&index| is_first(index)).count();
    let mut others = SHOWN.saturating_sub(firsts);
    (0..violations.len())
        .filter(move |&index| {
            let takes_room = !is_first(index);
            let is_chosen = !takes_room || others > 0;
            others -= usize::from(takes_room && is_chosen);
            is_chosen
        })
        .map(|index| &violations[index])
}

fn legend(html: &mut String) {
    let entries = [
        ("<path class=\"asked\" d=\"M0 7H26\"/>", "asked, waits"),
        ("<rect class=\"held\" y=\"1\" width=\"26\" height=\"12\"/>", "believes to hold the lock"),
        ("<rect class=\"after\" y=\"3\" width=\"26\" height=\"8\"/>", "no longer known to be valid"),
        ("<path class=\"valid\" d=\"M13 3v8\"/>", "check: valid"),
        ("<path class=\"invalid\" d=\"M9 3l8 8m-8 0l8 -8\"/>", "check: not valid"),
        ("<circle class=\"write\" cx=\"13\" cy=\"7\" r=\"5\"/>", "write"),
        (
            "<path class=\"refused\" d=\"M9 3l8 8m-8 0l8 -8\"/>",
            "write that the fencing check refuses (on the bar)",
        ),
        ("<rect class=\"fault\" stroke=\"var(--fault)\" y=\"1\" width=\"26\" height=\"12\"/>", "fault"),
        ("<rect class=\"over\" stroke=\"var(--bad)\" y=\"1\" width=\"26\" height=\"12\"/>", "violation"),
    ];
    html.push_str("<ul class=\"legend\">");
    for (shape, name) in entries {
        let _ = write!(html, "<li><svg viewBox=\"0 0 26 14\" aria-hidden=\"true\">{shape}</svg>{name}</li>");
    }
    html.push_str("</ul>");
}

fn calls(html: &mut String, timeline: &Timeline<'_>, records: &[CallRecord]) {
    if records.is_empty() {
        return;
    }
    html.push_str("<div class=\"scroll\"><table><thead><tr><th>Process</th><th>Call</th><th>Mode</th><th class=\"number\">Token</th><th class=\"number\">Asked</th><th class=\"number\">Answered</th><th class=\"number\">Valid until</th><th class=\"number\">Release</th></tr></thead><tbody>");
    for record in records {
        let time = |at_us: Option<u64>| at_us.map_or_else(|| "–".to_owned(), seconds);
        let owner = record.owner.map_or_else(String::new, |owner| format!(", owner {owner}"));
        let answered = match (record.answered_us, record.granted) {
            (Some(at_us), false) => format!("{}, not granted", seconds(at_us)),
            (at_us, _) => time(at_us),
        };
        let _ = write!(
            html,
            "<tr><th>{}{}</th><td>{}</td><td>{}{owner}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{answered}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            record.process,
            record.pid.map_or_else(String::new, |pid| format!(" (pid {pid})")),
            record.call,
            mode_name(record.mode),
            record.fence.map_or_else(|| "–".to_owned(), |fence| fence.to_string()),
            seconds(record.asked_us),
            time(record.believed_until_us),
            time(record.release_asked_us)
        );
    }
    html.push_str("</tbody></table></div>");
    events(html, timeline, records);
}

fn mode_name(mode: crate::Mode) -> String {
    use crate::Mode::{CountDown, Exclusive, Permits, Read, Wait, Write};
    match mode {
        Exclusive => "exclusive".to_owned(),
        Read => "read".to_owned(),
        Write => "write".to_owned(),
        Permits(1) => "1 permit".to_owned(),
        Permits(permits) => format!("{permits} permits"),
        CountDown => "counts down".to_owned(),
        Wait => "waits".to_owned(),
    }
}

/// All that happened to these calls, in order of time.
fn events(html: &mut String, timeline: &Timeline<'_>, records: &[CallRecord]) {
    let calls: Vec<&Call<'_>> = records
        .iter()
        .filter_map(|record| timeline.calls.iter().find(|call| call.id == record.call))
        .collect();
    let mut rows: Vec<(u64, u32, String)> = calls.iter().flat_map(|call| events_of(timeline, call)).collect();
    rows.sort_by_key(|(at_us, ..)| *at_us);
    let left = rows.len().saturating_sub(LISTED);
    html.push_str("<details><summary>Events of these calls</summary><div class=\"scroll\"><table><thead><tr><th class=\"number\">Time</th><th>Process</th><th>Event</th></tr></thead><tbody>");
    // The end of the calls matters more than a long beginning.
    for (at_us, process, what) in &rows[left..] {
        let _ = write!(
            html,
            "<tr><td class=\"number\">{}</td><td>{process}</td><td>{}</td></tr>",
            seconds(*at_us),
            escaped(what)
        );
    }
    html.push_str("</tbody></table></div>");
    if left > 0 {
        let _ = write!(html, "<p class=\"quiet\">{} earlier events are not shown.</p>", number(left as u64));
    }
    html.push_str("</details>");
}

fn events_of(timeline: &Timeline<'_>, call: &Call<'_>) -> Vec<(u64, u32, String)> {
    use crate::{Answer, ReleaseAnswer};
    let mut rows = vec![(call.asked_us, format!("call {}: asks", call.id))];
    for (at_us, answer) in &call.answers {
        let what = match answer {
            Answer::Granted { fence: Some(fence) } => format!("granted, token {fence}"),
            Answer::Granted { fence: None } => "granted".to_owned(),
            Answer::NotGranted => "not granted".to_owned(),
            Answer::Failed { error } => format!("failed: {error}"),
        };
        rows.push((*at_us, format!("call {}: {what}", call.id)));
    }
    for check in &call.checks {
        let state = if check.valid { "valid" } else { "not valid" };
        rows.push((check.since_us, format!("call {}: {state}", call.id)));
    }
    for write in &timeline.locks[call.lock].writes {
        if timeline.calls[write.call].id == call.id {
            let fate = if write.fenced { "accepted" } else { "refused by the fencing check" };
            let what = format!(
                "write of token {}, had read {}, found {}: {fate}",
                write.fence, write.read, write.found
            );
            rows.push((write.at_us, format!("call {}: {what}", call.id)));
        }
    }
    rows.extend(call.lost.map(|(at_us, reason)| (at_us, format!("call {}: lost: {reason}", call.id))));
    rows.extend(call.release_asked_us.map(|at_us| (at_us, format!("call {}: releases", call.id))));
    for (at_us, answer) in &call.releases {
        let what = match answer {
            ReleaseAnswer::Released => "released".to_owned(),
            ReleaseAnswer::NotHeld => "was not held any more".to_owned(),
            ReleaseAnswer::Failed { error } => format!("release failed: {error}"),
        };
        rows.push((*at_us, format!("call {}: {what}", call.id)));
    }
    rows.into_iter().map(|(at_us, what)| (at_us, call.process, what)).collect()
}

fn measurements(html: &mut String, timeline: &Timeline<'_>, measured: &Measured) {
    html.push_str("<h2>Measured</h2><div class=\"scroll\"><table><thead><tr><th>What</th><th class=\"number\">Count</th><th class=\"number\">Median</th><th class=\"number\">90 %</th><th class=\"number\">99 %</th><th class=\"number\">Longest</th></tr></thead><tbody>");
    let rows: [(&str, &str, &Option<Percentiles>); 4] = [
        ("Round trip", "a question to the store, until its answer", &measured.round_trip),
        ("Wait", "a call of acquire, until it is granted; without faults", &measured.wait),
        (
            "Hand-off",
            "the beginning of a release, until the next waiter has the lock; without faults",
            &measured.hand_off,
        ),
        ("Take-over", "the kill of a holder, until the next waiter has the lock", &measured.take_over),
    ];
    for (name, what, percentiles) in rows {
        let _ = write!(
            html,
            "<tr><td class=\"wide\"><strong>{name}</strong><span class=\"note\">{what}</span></td>"
        );
        match percentiles {
            Some(it) => {
                let _ = write!(html, "<td class=\"number\">{}</td>", number(it.count));
                for us in [it.p50_us, it.p90_us, it.p99_us, it.max_us] {
                    let _ = write!(html, "<td class=\"number\">{}</td>", duration(us));
                }
            }
            None => {
                html.push_str("<td class=\"number\">0</td><td colspan=\"4\" class=\"quiet\">not seen</td>");
            }
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    let begin = timeline.begin;
    let faults: Vec<String> =
        measured.faults.iter().map(|(kind, count)| format!("{count} × {}", fault_word(*kind))).collect();
    let steps: Vec<String> = measured
        .clocks
        .iter()
        .flat_map(|clock| clock.steps.iter().map(move |step| (clock.node, step)))
        .map(|(node, step)| {
            let sign = if step.by_us < 0 { "back" } else { "forward" };
            let by = duration(step.by_us.unsigned_abs());
            format!("node {node} by {by} {sign} at {}", seconds(step.at_us))
        })
        .collect();
    let mut facts = vec![
        ("Calls", number(measured.calls)),
        ("Holds", number(measured.holds)),
        ("Calls that failed", number(measured.failed_calls)),
        ("Guarded writes", number(measured.writes)),
        ("Late writes that the fencing check refused", number(measured.late_writes_refused)),
        ("Late writes before a greater token had written", number(measured.late_writes_accepted)),
        ("Faults", if faults.is_empty() { "none".to_owned() } else { faults.join(", ") }),
        ("Time in faults", format!("{:.0} %", measured.share_in_faults * 100.0)),
        ("Steps of the store's clock", if steps.is_empty() { "none".to_owned() } else { steps.join("; ") }),
        ("Lease", duration(begin.lease_us)),
        ("Session", duration(begin.session_us)),
        ("Seed", begin.seed.to_string()),
    ];
    facts.extend(begin.settings.iter().map(|(name, value)| (name.as_str(), value.clone())));
    html.push_str("<dl class=\"facts\">");
    for (name, value) in facts {
        let _ = write!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(&value));
    }
    html.push_str("</dl>");
}

fn fault_word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Kill => "kill",
        FaultKind::Stop => "stop",
        FaultKind::Cut => "cut",
        FaultKind::Delay => "delay",
        FaultKind::SwallowReplies => "swallowed replies",
        FaultKind::Partition => "partition",
        FaultKind::Restart => "restart",
        FaultKind::Failover => "fail-over",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::judge;
    use crate::sample;

    fn page(lines: &str) -> String {
        let history = History::read(lines.as_bytes()).expect("a history");
        report_html(&history, &judge(&history))
    }

    #[test]
    fn the_page_shows_the_verdict_first_and_both_holders_side_by_side() {
        let page = page(sample::TWO_HOLDERS);
        let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?}"));
        assert!(at("Failed") < at("<h2>Checks") && at("<h2>Checks") < at("<h2>Violations"));
        assert!(at("<h2>Violations") < at("<h2>Measured"));
        assert!(at(">Process 1<") < at(">Process 2<"));
        at("write refused");
        at("The fencing check refuses the write of process 1 (pid 4101)");
        at("fail-over");
    }

    #[test]
    fn the_page_needs_nothing_else_and_runs_nothing() {
        let page = page(sample::TWO_HOLDERS);
        for text in ["<script", "http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(text), "{text}");
        }
    }

    #[test]
    fn hostile_names_errors_and_details_stay_text() {
        let hostile = "<script>alert(1)</script>";
        let page = page(
            &sample::TWO_HOLDERS
                .replace("orders/42", hostile)
                .replace("the store does not have the hold", hostile)
                .replace("redis-cli -p 26379 SENTINEL FAILOVER main", hostile)
                .replace("sentinel", hostile),
        );
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn of_many_violations_each_check_shows_its_first() {
        let violation = |check: &'static str| Violation {
            check,
            lock: None,
            at_us: 0,
            until_us: None,
            what: String::new(),
            calls: Vec::new(),
            faults: Vec::new(),
            refused: Vec::new(),
            fencing: None,
        };
        let mut many: Vec<Violation> = (0..100).map(|_| violation("exclusion")).collect();
        many.push(violation("tokens"));
        let checks: Vec<&str> = chosen(&many).map(|violation| violation.check).collect();
        assert_eq!(checks.len(), SHOWN);
        assert_eq!(checks.last(), Some(&"tokens"));
    }
}
