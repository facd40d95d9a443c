//! Tests of `docs/how-to/runbook.md`: each message of the program, each error type of the published crates and each exit
//! status has a line there, and no line is about a message that is gone.
//!
//! Owns how messages are found in the sources. Does not own what the lines say.
//!
//! 1. A message is a string that follows one of [`BEFORE`]. What is in braces is shown as `…`, and backticks are left out.
//! 2. A line of the page has its messages as code spans in the first cell. A span is a whole message, or its beginning
//!    with a `…` at the end.
//! 3. A message with fewer than [`MIN_LETTERS`] letters of its own only passes on another one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::rust_source::{Class, classify, keep};
use crate::shell;

const PAGE: &str = "docs/how-to/runbook.md";
/// The published crates. The store of tests is not among them: what it reports is seen by the authors of a store.
const CRATES: [&str; 7] = ["cli", "core", "history", "leasehold", "redis", "sqlite", "store"];
const EXIT_STATUSES: &str = "crates/cli/src/output/exit.rs";
/// The fewest letters of a message, and the shortest span.
const MIN_LETTERS: usize = 8;

/// What stands before a message in the code, without white space.
const BEFORE: &[&str] = &[
    "#[error(",
    "anyhow!(",
    "bail!(",
    ".context(",
    ".with_context(||",
    "log::warning(",
    "log::error(",
    "FaultKind::Failed(",
    "FaultKind::Unsupported(",
    "FaultKind::Unusable(",
    "rejected(path,",
    "unusable(path,",
    "unusable(&self.path,",
    "ConnectError::Setting(",
    "lettext=",
    "letwhat=",
    "NO_REDIS:&str=",
    "NO_RESP3:&str=",
    "PAUSED_CLOCK:&str=",
];
/// In these files a message is also what is written by hand.
const WRITTEN_BY_HAND: [&str; 3] =
    ["leasehold/src/engine/shutdown.rs", "leasehold/src/lost_reason.rs", "store/src/fault.rs"];
const WRITTEN: [&str; 2] = ["f.write_str(", "write!(f,"];
/// Parts of messages that stand where a message could.
const PARTS: &[&str] = &["the root certificate", "the client's key", "the command", "`{names}`"];

#[test]
fn each_message_has_a_line_in_the_runbook() {
    let (messages, spans) = (messages(), spans(&page()));
    assert!(messages.len() > 250, "{}", messages.len());
    let is_known = |message: &str| spans.iter().any(|span| is_beginning(span, message));
    let missing: Vec<_> = messages
        .iter()
        .filter(|(_, message)| !is_known(message))
        .map(|(file, text)| format!("{file}: {text}"))
        .collect();
    assert!(missing.is_empty(), "no line in {PAGE}:\n{}", missing.join("\n"));
}

#[test]
fn each_line_of_the_runbook_is_about_a_message_that_exists() {
    // A few messages are put together in a way that the scan does not see: any string of the sources will do.
    let texts: BTreeSet<String> =
        sources().iter().flat_map(|(_, source)| strings(source)).map(|(_, text)| text).collect();
    let is_known = |span: &&String| {
        texts.iter().any(|text| is_beginning(span, text) || text.contains(span.trim_end_matches('…')))
    };
    let spans = spans(&page());
    let stale: Vec<&String> = spans.iter().filter(|span| !is_known(span)).collect();
    assert!(stale.is_empty(), "no such messages: {stale:#?}");
}

#[test]
fn each_error_type_is_in_the_runbook() {
    let page = page();
    let types: BTreeSet<String> = sources().iter().flat_map(|(_, source)| error_types(source)).collect();
    assert!(types.len() > 30, "{types:?}");
    let missing: Vec<_> = types.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in {PAGE}: {missing:?}");
}

#[test]
fn each_exit_status_has_a_row_in_the_runbook() {
    let (page, source) = (page(), read(&shell::root().join(EXIT_STATUSES)));
    let statuses: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| {
            line.trim().strip_prefix("pub(crate) const ")?.split_once("Self(")?.1.split_once(')')
        })
        .map(|(status, _)| status)
        .collect();
    assert!(statuses.len() > 10, "{statuses:?}");
    let missing: Vec<_> =
        statuses.iter().filter(|status| !page.contains(&format!("\n| {status} |"))).collect();
    assert!(missing.is_empty(), "not in {PAGE}: {missing:?}");
}

#[test]
fn messages_are_found_and_shown_without_their_values() {
    let source = r#"
        #[error("a lock `{0}` is {{gone}}: {why:?}")] struct A;
        fn f() { let x = anyhow!(
            "one long \
             line"
        ); g("none of these"); Err(e).with_context(|| format!("failed to read `{}`", p)) }
        // bail!("a comment, and no message")
        #[cfg(test)] mod tests { fn f() { bail!("a test and no message") } }
    "#;
    let found: Vec<String> = messages_of("x.rs", source).collect();
    assert_eq!(found, ["a lock … is {gone}: …", "one long line", "failed to read …"]);
    assert!(is_beginning("a lock … is…", &found[0]) && is_beginning("one long line", &found[1]));
    assert!(!is_beginning("one long", &found[1]) && !is_beginning("one long line more", &found[1]));
}

#[test]
fn public_types_of_errors_are_found() {
    let source = "#[derive(Debug, thiserror::Error)]\n#[error(\"x\")]\npub struct A;\n#[derive(thiserror::Error)] pub(crate) enum B {}
        impl std::error::Error for C {}\npub struct C;\nimpl Error for D {}\nstruct D;";
    assert_eq!(error_types(source).into_iter().collect::<Vec<_>>(), ["A", "C"]);
}

fn page() -> String {
    read(&shell::root().join(PAGE))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sources of the published crates, without files of tests.
fn sources() -> Vec<(String, String)> {
    let crates = shell::root().join("crates");
    let mut directories: Vec<PathBuf> = CRATES.iter().map(|name| crates.join(name).join("src")).collect();
    let mut sources = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory of sources") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(&crates).expect("below").display().to_string();
            if name.contains("tests") {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push((name, read(&path)));
            }
        }
    }
    sources
}

fn messages() -> BTreeSet<(String, String)> {
    let sources = sources();
    let all = sources
        .iter()
        // What the judge of histories says about them is a report, and no failure.
        .filter(|(name, _)| !name.starts_with("history/"))
        .flat_map(|(name, source)| messages_of(name, source).map(move |message| (name.clone(), message)));
    all.collect()
}

fn messages_of(name: &str, source: &str) -> impl Iterator<Item = String> {
    let by_hand = WRITTEN_BY_HAND.contains(&name);
    strings(source).into_iter().filter_map(move |(before, text)| {
        let is_message = |starts: &[&str]| starts.iter().any(|start| before.ends_with(start));
        let is_message = is_message(BEFORE) || by_hand && is_message(&WRITTEN);
        let is_long = text.chars().filter(char::is_ascii_alphabetic).count() >= MIN_LETTERS;
        (is_message && is_long && !PARTS.contains(&text.as_str())).then_some(text)
    })
}

/// The strings of a source outside of its tests, as a reader sees them, each with the code before it.
fn strings(source: &str) -> Vec<(String, String)> {
    let source = match source.find("mod tests {") {
        Some(end) => &source[..end],
        None => source,
    };
    let classes = classify(source);
    // Byte by byte, so that offsets are those of the source.
    let is_code = |(byte, class): (u8, &Class)| *class == Class::Code && byte.is_ascii();
    let code: String = source
        .bytes()
        .zip(&classes)
        .map(|(byte, class)| if is_code((byte, class)) { char::from(byte) } else { ' ' })
        .collect();
    let bytes = source.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let end = (at..bytes.len()).find(|at| classes[*at] != Class::Text).unwrap_or(bytes.len());
        if end > at {
            found.push((code_before(&code, at), shown(&source[at..end])));
        }
        at = end.max(at) + 1;
    }
    found
}

/// What the code says before a string that begins at an offset: without white space, references and `format!`.
fn code_before(code: &str, at: usize) -> String {
    let before = code.get(at.saturating_sub(120)..at).unwrap_or_default();
    let before: String = before.trim_end_matches('"').chars().filter(|char| !char.is_whitespace()).collect();
    let before = before.strip_suffix("format!(").unwrap_or(&before).trim_end_matches('&');
    before.to_owned()
}

/// The text of a string: its escapes resolved, `…` for each value, without backticks.
fn shown(literal: &str) -> String {
    let (mut text, mut chars) = (String::new(), literal.chars().peekable());
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('\n') => while chars.next_if(|char| char.is_whitespace()).is_some() {},
                Some('n' | 't') | None => text.push(' '),
                Some(other) => text.push(other),
            },
            '{' if chars.next_if_eq(&'{').is_some() => text.push('{'),
            '}' if chars.next_if_eq(&'}').is_some() => text.push('}'),
            '{' => {
                while chars.next().is_some_and(|char| char != '}') {}
                text.push('…');
            }
            '`' => {}
            other => text.push(other),
        }
    }
    text.trim().to_owned()
}

/// The code spans in the first cells of the page's tables.
fn spans(page: &str) -> Vec<String> {
    let cells =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).map(|(first, _)| first);
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|span| span.contains(' '))
        .map(str::to_owned)
        .collect()
}

/// Whether a span is a message, or its beginning with a `…` at the end.
fn is_beginning(span: &str, message: &str) -> bool {
    match span.strip_suffix('…') {
        Some(start) if start.chars().count() >= MIN_LETTERS => message.starts_with(start),
        _ => message == span,
    }
}

/// The public types of a source that are errors.
fn error_types(source: &str) -> BTreeSet<String> {
    let source = source.split("mod tests {").next().unwrap_or_default();
    let code = keep(source, &classify(source), |class| class == Class::Code);
    let name = |text: &str| text.chars().take_while(|char| char.is_alphanumeric()).collect::<String>();
    let derived = code.split("thiserror::Error").skip(1).filter_map(|rest| {
        let at = [rest.find("enum "), rest.find("struct ")].into_iter().flatten().min()?;
        rest[..at]
            .trim_end()
            .ends_with("pub")
            .then(|| name(rest[at..].split_once(' ').map_or("", |(_, name)| name)))
    });
    let written = code.split("Error for ").skip(1).map(name).filter(|name| {
        code.contains(&format!("pub struct {name}")) || code.contains(&format!("pub enum {name}"))
    });
    derived.chain(written).filter(|name| !name.is_empty()).collect()
}
