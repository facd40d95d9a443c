//! What `docs/reference/history.md` shows is what the crate reads.

use leasehold_history::{Event, History, judge};
use std::collections::BTreeSet;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/history.md");
    std::fs::read_to_string(path).expect("the page")
}

/// The lines of the page's example.
fn example(page: &str) -> &str {
    let (_, rest) = page.split_once("```json\n").expect("an example");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_example_of_the_page_is_a_history_with_each_event_and_its_violation() {
    let page = page();
    let lines = example(&page);
    let history = History::read(lines.as_bytes()).expect("a history");
    let checks: BTreeSet<&str> = judge(&history).violations.iter().map(|violation| violation.check).collect();
    assert_eq!(checks.into_iter().collect::<Vec<_>>(), ["counter", "exclusion"]);
    let mut names = BTreeSet::new();
    for line in lines.lines() {
        let _event: Event = serde_json::from_str(line).expect("an event");
        let value: serde_json::Value = serde_json::from_str(line).expect("an object");
        names.insert(value["event"].as_str().expect("a name").to_owned());
        // Each field is described.
        for field in value.as_object().expect("an object").keys() {
            assert!(page.contains(&format!("`{field}`")), "`{field}` is not described");
        }
    }
    // One of each variant of `What`, and a row for it.
    assert_eq!(names.len(), 15, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("| `{name}` |")), "`{name}` has no row");
    }
}

#[test]
fn all_values_that_the_page_names_are_read() {
    let page = page();
    let began = example(&page).lines().next().expect("a line").to_owned();
    let parses =
        |line: &str| serde_json::from_str::<Event>(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    for kind in ["mutex", "election", "reentrant", "rw_lock", "semaphore", "latch", "barrier", "once_per"] {
        parses(&began.replace("\"kind\":\"mutex\"", &format!("\"kind\":\"{kind}\"")));
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
    for kind in ["kill", "stop", "cut", "delay", "swallow_replies", "partition", "restart", "failover"] {
        parses(&format!(
            r#"{{"at_us":1,"process":0,"event":"fault_began","fault":1,"kind":"{kind}","detail":""}}"#
        ));
        assert!(page.contains(&format!("`{kind}`")), "{kind}");
    }
    for mode in
        [r#""exclusive""#, r#""read""#, r#""write""#, r#"{"permits":2}"#, r#""count_down""#, r#""wait""#]
    {
        parses(&format!(r#"{{"at_us":1,"process":1,"event":"asked","call":1,"lock":"a","mode":{mode}}}"#));
        assert!(page.contains(&format!("`{mode}`")), "{mode}");
    }
    let answers = [
        r#"{"answer":"granted","fence":7}"#,
        r#"{"answer":"not_granted"}"#,
        r#"{"answer":"failed","error":"…"}"#,
    ];
    for answer in answers {
        parses(&format!(r#"{{"at_us":1,"process":1,"event":"answered","call":1,"answer":{answer}}}"#));
        assert!(page.contains(&format!("`{answer}`")), "{answer}");
    }
    for answer in
        [r#"{"answer":"released"}"#, r#"{"answer":"not_held"}"#, r#"{"answer":"failed","error":"…"}"#]
    {
        parses(&format!(r#"{{"at_us":1,"process":1,"event":"released","call":1,"answer":{answer}}}"#));
        assert!(page.contains(&format!("`{answer}`")), "{answer}");
    }
}
