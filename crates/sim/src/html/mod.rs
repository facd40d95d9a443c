//! Shows the time line of a run as one HTML file.
//!
//! The file needs no network and no other file. It contains all of the run, and draws a part of it: at first what is around
//! the violation. `page.js` draws; this module writes the data, which is JSON in a script element.
//!
//! 1. Every text is data: escaped in the page, and set as text by the script. None is markup, whatever is in it.
//! 2. The same run gives the same file, to the byte.

mod json;

use crate::checks::recorder::Violation;
use crate::run::{Outcome, Run, Scenario};
use crate::timeline::{ArrowEnd, ArrowKind, BarKind, EntryId, EntryKind, LaneId, Timeline};
use crate::world::time::Instant;
use json::Json;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of a run that was recorded with a trace.
///
/// ```
/// use leasehold_sim::{Mutant, Run, html, run};
///
/// let args = Run { with_trace: true, ..Run::with_mutant(2, Mutant::ReleaseWithoutComparing) };
/// let page = html::page(&args, &run(&args));
/// assert!(page.contains("cargo xtask sim --seed 2 --mutant ReleaseWithoutComparing"));
/// assert!(page.contains("id=\"verdict\""));
/// ```
pub fn page(run: &Run, outcome: &Outcome) -> String {
    let command = command(run);
    let title = format!("Simulated run {}", run.seed);
    let verdict = match &outcome.violation {
        Some(Violation { check, at, what }) => {
            format!("{check}, at {} s: {what}", at.to_string().trim_start())
        }
        None => "No check failed.".to_owned(),
    };
    let state = if outcome.violation.is_some() { "is-violated" } else { "is-fine" };
    let world = match run.scenario {
        Scenario::OneServer => "one server",
        Scenario::TwoPrimaries => "two primaries",
        Scenario::Quorum => "a quorum of five nodes",
    };
    let about = format!("{world}; faults: {:?}; {} events", outcome.profile, outcome.timeline.entries.len());
    let data = data(&outcome.timeline, outcome.violation.as_ref());
    // In one pass: a text that is put in is not searched.
    let parts = PAGE.split('%').map(|part| match part {
        "TITLE" => escaped(&title),
        "COMMAND" => escaped(&command),
        "VERDICT" => escaped(&verdict),
        "STATE" => state.to_owned(),
        "ABOUT" => escaped(&about),
        "STYLE" => STYLE.to_owned(),
        "SCRIPT" => SCRIPT.to_owned(),
        "DATA" => data.clone(),
        other => other.to_owned(),
    });
    parts.collect()
}

/// The command that repeats a run.
pub fn command(run: &Run) -> String {
    let mutant = run.mutant.map_or_else(String::new, |mutant| format!(" --mutant {mutant:?}"));
    // A mutant selects its world.
    let world = match run.scenario {
        Scenario::TwoPrimaries if run.mutant.is_none() => " --two-primaries",
        Scenario::Quorum if run.mutant.is_none() => " --quorum",
        Scenario::OneServer | Scenario::TwoPrimaries | Scenario::Quorum => "",
    };
    format!("cargo xtask sim{world} --seed {}{mutant}", run.seed)
}

/// A text as HTML.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            _ => html.push(char),
        }
    }
    html
}

/// What the script draws. Arrays, as field names would be most of the file; `page.js` names their places.
fn data(timeline: &Timeline, violation: Option<&Violation>) -> String {
    let mut json = Json::default();
    let list = |json: &mut Json, entries: &[EntryId]| json.array(entries, |json, entry| json.number(entry.0));
    json.object(|json| {
        json.key("violation");
        match violation {
            Some(Violation { check, at, what }) => json.row(|json| {
                json.number(at.0);
                json.text(check);
                json.text(what);
            }),
            None => json.null(),
        }
        json.key("lanes");
        json.array(&timeline.lanes, |json, lane| {
            json.row(|json| {
                json.text(&lane.name);
                json.number(u8::from(lane.is_server));
            });
        });
        json.key("locks");
        json.array(&timeline.locks, |json, lock| json.text(lock));
        json.key("entries");
        json.array(&timeline.entries, |json, entry| {
            json.row(|json| {
                json.number(entry.at.0);
                lane(json, entry.lane);
                json.number(entry_kind(entry.kind));
                json.text(&entry.text);
            });
        });
        json.key("arrows");
        json.array(&timeline.arrows, |json, arrow| {
            let (end, at) = match arrow.end {
                ArrowEnd::Arrived(at) => (0, Some(at)),
                ArrowEnd::Lost(at) => (1, at),
                ArrowEnd::InFlight => (2, None),
            };
            json.row(|json| {
                json.number(match arrow.kind {
                    ArrowKind::Request => 0,
                    ArrowKind::Reply => 1,
                    ArrowKind::Notification => 2,
                });
                lane(json, Some(arrow.from));
                json.number(arrow.sent_at.0);
                lane(json, Some(arrow.to));
                time(json, at);
                json.number(end);
                json.number(u8::from(arrow.is_stale));
                list(json, &arrow.entries);
            });
        });
        json.key("bars");
        json.array(&timeline.bars, |json, bar| {
            json.row(|json| {
                lane(json, Some(bar.lane));
                json.number(bar.lock);
                json.number(match bar.kind {
                    BarKind::Guard => 0,
                    BarKind::Hold => 1,
                    BarKind::Foreign => 2,
                });
                json.number(bar.from.0);
                time(json, bar.until);
                json.text(&bar.name);
                json.text(&bar.about);
                list(json, &bar.entries);
            });
        });
        json.key("bands");
        json.array(&timeline.bands, |json, band| {
            json.row(|json| {
                lane(json, band.lane);
                json.number(band.from.0);
                time(json, band.until);
                json.text(&band.name);
                list(json, &band.entries);
            });
        });
    });
    json.finish()
}

fn lane(json: &mut Json, lane: Option<LaneId>) {
    match lane {
        Some(lane) => json.number(lane.0),
        None => json.null(),
    }
}

fn time(json: &mut Json, at: Option<Instant>) {
    match at {
        Some(at) => json.number(at.0),
        None => json.null(),
    }
}

const fn entry_kind(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Sent => 0,
        EntryKind::Executed => 1,
        EntryKind::Received => 2,
        EntryKind::Fault => 3,
        EntryKind::Task => 4,
        EntryKind::Other => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::recorder::Counts;
    use crate::timeline::{Arrow, Bar, Entry, Lane};
    use crate::world::faults::FaultProfile;

    const HOSTILE: &str =
        "</script><script>alert(1)</script><img src=x onerror=\"alert(2)\"> & 'quoted' \\ \u{2028}%DATA%";

    fn hostile() -> (Run, Outcome) {
        let (lane, at) = (LaneId(0), Instant(5));
        let entry = Entry { at, lane: Some(lane), kind: EntryKind::Other, text: HOSTILE.to_owned() };
        let arrow = Arrow {
            kind: ArrowKind::Request,
            from: lane,
            sent_at: at,
            to: lane,
            end: ArrowEnd::InFlight,
            is_stale: false,
            entries: vec![EntryId(0)],
        };
        let bar = Bar {
            lane,
            lock: 0,
            kind: BarKind::Guard,
            from: at,
            until: None,
            name: HOSTILE.to_owned(),
            about: HOSTILE.to_owned(),
            entries: vec![EntryId(0)],
        };
        let timeline = Timeline {
            lanes: vec![Lane { name: HOSTILE.to_owned(), is_server: true }],
            locks: vec![HOSTILE.to_owned()],
            entries: vec![entry],
            arrows: vec![arrow],
            bars: vec![bar],
            bands: Vec::new(),
        };
        let violation = Some(Violation { check: "exclusion", at, what: HOSTILE.to_owned() });
        let (counts, profile) = (Counts::default(), FaultProfile::None);
        (Run::new(1), Outcome { violation, counts, profile, trace: timeline.lines(), timeline })
    }

    /// Opening tags of scripts and images: those of the page alone.
    #[test]
    fn hostile_text_stays_text() {
        let (run, outcome) = hostile();
        let page = page(&run, &outcome);
        assert_eq!(page.matches("<script").count(), 2, "the data and the script");
        assert_eq!(page.matches("</script").count(), 2);
        assert_eq!(page.matches("<img").count(), 0);
        assert!(!data(&outcome.timeline, None).contains('\u{2028}'));
        // It was not taken for a place of the page.
        assert_eq!(page.matches("id=\"data\"").count(), 1);
        assert!(page.contains("%DATA%"));
    }

    #[test]
    fn the_page_fetches_nothing() {
        let (run, outcome) = hostile();
        let page = page(&run, &outcome);
        // The name of SVG's elements is the only address, and no browser fetches it.
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        for forbidden in
            ["http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest", "import("]
        {
            assert!(!addresses.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn the_script_sets_texts_and_no_markup() {
        for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!SCRIPT.contains(forbidden), "{forbidden}");
        }
    }
}
