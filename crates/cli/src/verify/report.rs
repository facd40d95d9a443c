//! The verdict, as text and as JSON.

use crate::output::printable::printable;
use crate::output::report::json_line;
use crate::output::table::{Column, table};
use crate::output::times::spoken;
use leasehold_history::{FaultKind, History, Percentiles, Verdict, What};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// How many violations a text has; the file of `--html` and the JSON have all.
const MAX_VIOLATIONS: usize = 10;

/// The report. The fields of its JSON are stable; those of the verdict are described with the history.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    passed: bool,
    store: &'a str,
    seed: u64,
    started: &'a str,
    calls_per_second: Option<f64>,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

impl<'a> Report<'a> {
    pub(crate) fn new(history: &'a History, verdict: &'a Verdict) -> Self {
        let mut report = Self {
            passed: verdict.passed(),
            store: "",
            seed: 0,
            started: "",
            calls_per_second: None,
            verdict,
        };
        if let Some(What::Began { seed, store, started_at, settings, .. }) =
            history.events().first().map(|event| &event.what)
        {
            (report.seed, report.store, report.started) = (*seed, store, started_at);
            report.calls_per_second = settings.get("calls_per_second").and_then(|rate| rate.parse().ok());
        }
        report
    }

    pub(crate) fn json(&self) -> String {
        json_line(self)
    }

    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let measured = &self.verdict.measured;
        let length = spoken(Duration::from_secs(measured.length_us / 1_000_000));
        let mut text = format!("{}: {length}, seed {}\n\n", self.store, self.seed);
        let columns = [
            Column::new("CHECK"),
            Column::new("JUDGED"),
            Column::new("EXCUSED"),
            Column::new("VIOLATIONS"),
            Column::text("OF WHAT"),
        ];
        let rows = self.verdict.checks.iter().map(|check| {
            let of = check
                .note
                .as_ref()
                .map_or_else(|| check.counts.to_owned(), |note| format!("{}: {note}", check.counts));
            [
                check.name.to_owned(),
                check.judged.to_string(),
                check.excused.to_string(),
                check.violations.to_string(),
                of,
            ]
        });
        let rows: Vec<_> = rows.collect();
        text += &table(&columns, &rows, width);
        text.push('\n');
        let mut line = |label: &str, value: String| {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{label:<11}{value}");
        };
        let calls = format!(
            "{}: {} granted, {} failed; {} writes, {} of late holders refused by their token",
            measured.calls,
            measured.holds,
            measured.failed_calls,
            measured.writes,
            measured.late_writes_refused
        );
        line("calls", calls);
        let faults: Vec<_> =
            measured.faults.iter().map(|(kind, count)| format!("{} {count}", fault_word(*kind))).collect();
        let share = (measured.share_in_faults * 100.0).round();
        line("faults", format!("{}; in {share} % of the time there was one", faults.join(", ")));
        for (label, times) in [
            ("round trip", measured.round_trip),
            ("waited", measured.wait),
            ("hand-off", measured.hand_off),
            ("take-over", measured.take_over),
        ] {
            line(label, times.map_or_else(|| "not measured".to_owned(), percentiles));
        }
        let steps: Vec<_> = measured.clocks.iter().flat_map(|clock| &clock.steps).collect();
        if !measured.clocks.is_empty() {
            line("clock", format!("{} steps", steps.len()));
        }
        text.push('\n');
        for violation in self.verdict.violations.iter().take(MAX_VIOLATIONS) {
            let lock = violation.lock.as_deref().map(|lock| format!(" `{lock}`")).unwrap_or_default();
            let at = Duration::from_micros(violation.at_us).as_secs_f64();
            let what = printable(&violation.what);
            let _ = writeln!(text, "VIOLATION {}{lock} at {at:.3} s: {what}", violation.check);
            if let Some(fencing) = &violation.fencing {
                let _ = writeln!(text, "  {}", printable(fencing));
            }
        }
        let more = self.verdict.violations.len().saturating_sub(MAX_VIOLATIONS);
        if more > 0 {
            let _ = writeln!(text, "and {more} more violations");
        }
        text += match (self.passed, self.verdict.violations.len()) {
            (true, _) => "passed: no check found a violation\n".to_owned(),
            (false, 0) => "not passed: no check had anything to judge\n".to_owned(),
            (false, count) => format!("FAILED: {count} violations\n"),
        }
        .as_str();
        text
    }
}

fn fault_word(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::Kill => "kill",
        FaultKind::Stop => "stop",
        FaultKind::Cut => "cut",
        FaultKind::Delay => "delay",
        FaultKind::SwallowReplies => "swallow_replies",
        FaultKind::Partition => "partition",
        FaultKind::Restart => "restart",
        FaultKind::Failover => "failover",
    }
}

fn percentiles(times: Percentiles) -> String {
    let [p50, p99, max] =
        [times.p50_us, times.p99_us, times.max_us].map(|us| format!("{:?}", Duration::from_micros(us)));
    format!("p50 {p50}, p99 {p99}, longest {max} ({} measured)", times.count)
}
