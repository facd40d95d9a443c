//! Tests of `docs/explanation/track-record.md`: what its tables name has the shape of what it is said to be, and exists.
//!
//! 1. A commit is eight hexadecimal digits. That it exists cannot be tested: a checkout may lack the history.
//! 2. Names of tests are tested by `cargo xtask prose`, as in every document; here, that each row names its guard.

use std::fs;
use std::path::Path;

use crate::shell;

const PAGE: &str = "docs/explanation/track-record.md";
const HEAD: &str = "| What it could do | Since | Found by | Mended | Guard | Found again |";

/// A row of a table, under its heading.
struct Row {
    heading: String,
    cells: Vec<String>,
}

fn page() -> String {
    fs::read_to_string(shell::root().join(PAGE)).expect("the page is in the tree")
}

fn rows(page: &str) -> Vec<Row> {
    let (mut heading, mut is_table, mut rows) = (String::new(), false, Vec::new());
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            text.clone_into(&mut heading);
        }
        is_table = line == HEAD || (is_table && line.starts_with('|'));
        if is_table && line != HEAD && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
            rows.push(Row { heading: heading.clone(), cells: cells.collect() });
        }
    }
    rows
}

/// The code spans of a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn is_commit(text: &str) -> bool {
    text.len() == 8 && text.chars().all(|char| char.is_ascii_digit() || ('a'..='f').contains(&char))
}

#[test]
fn each_row_names_its_commits_and_its_guard() {
    let rows = rows(&page());
    assert!(rows.len() > 100, "{}", rows.len());
    for Row { cells, .. } in &rows {
        let [effect, since, found, mended, guard, again] = &cells[..] else {
            panic!("not six cells: {cells:?}");
        };
        for cell in [since, mended] {
            let commits: Vec<_> = spans(cell).collect();
            assert!(matches!(commits[..], [commit] if is_commit(commit)), "{effect}: {cell}");
        }
        assert!(!found.is_empty(), "{effect}");
        let is_search = ["none of its own", "the simulator"].contains(&guard.as_str());
        assert!(is_search || spans(guard).next().is_some(), "{effect}: {guard}");
        // What was seen: at which commit, by which command, and when.
        if !again.starts_with("not repeated") {
            let spans: Vec<_> = spans(again).collect();
            let is_seen = matches!(spans[..], [commit, command] if is_commit(commit) && command.starts_with("cargo xtask sim "));
            let date = again.rsplit(", ").next().unwrap_or_default();
            let has_date = date.len() == 10 && date.chars().all(|char| char.is_ascii_digit() || char == '-');
            assert!(is_seen && has_date, "{effect}: {again}");
        }
    }
}

/// The numbers of the summary are those of the tables.
#[test]
fn the_summary_counts_the_rows() {
    let page = page();
    let rows = rows(&page);
    let repeated = rows.iter().filter(|row| !row.cells[5].starts_with("not repeated")).count();
    let total = format!("{} defects", rows.len());
    assert!(page.contains(&total), "the page does not say {total}");
    assert!(page.contains(&format!("{repeated} of them were repeated")), "{repeated} were repeated");
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    for heading in headings {
        let count = rows.iter().filter(|row| row.heading == heading).count();
        if count > 0 {
            let anchor: String = heading.to_lowercase().replace(' ', "-").replace(',', "");
            let line = format!("| [{heading}](#{anchor}) | {count} |");
            assert!(page.contains(&line), "the summary lacks {line}");
        }
    }
}

/// What the page names in other files exists: their paths, and the headings of its own.
#[test]
fn each_link_resolves() {
    let page = page();
    let root = shell::root().join("docs/explanation");
    let anchor =
        |heading: &str| heading.to_lowercase().replace(' ', "-").replace([',', '`', '.', '(', ')', ':'], "");
    let links: Vec<_> = page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(links.len() > 5, "{links:?}");
    for link in links.into_iter().filter(|link| !link.starts_with("https://")) {
        let (path, wanted) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { shell::root().join(PAGE) } else { root.join(Path::new(path)) };
        assert!(target.exists(), "{link}");
        if !wanted.is_empty() {
            let text = fs::read_to_string(&target).expect("a page");
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            let has = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == wanted);
            assert!(has, "{link}: there is no such heading");
        }
    }
}
