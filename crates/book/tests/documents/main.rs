//! Every document of the repository, and what the checks find in planted ones.

mod fragments;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use leasehold_book::{
    Class, Document, Mark, Snippet, anchors, check_quote, classify, code_spans, commands, difference,
    documents, links, root, snippets,
};

fn all() -> Vec<Document> {
    let documents = documents(root()).expect("the repository can be read");
    assert!(documents.len() > 100, "there are the pages and the decisions: {}", documents.len());
    documents
}

/// What is wrong with a block, if anything is.
fn problem(snippet: &Snippet) -> Option<String> {
    let class = match classify(snippet) {
        Ok(class) => class,
        Err(problem) => return Some(problem),
    };
    match class {
        Class::Quoted => check_quote(root(), snippet).err(),
        Class::Parsed if snippet.language == "toml" => {
            toml::from_str::<toml::Table>(&snippet.code).err().map(|error| error.to_string())
        }
        Class::Parsed => {
            let is_json = |text: &str| serde_json::from_str::<serde_json::Value>(text).map(|_| ());
            let by_line = || snippet.code.lines().filter(|line| !line.is_empty()).try_for_each(is_json);
            is_json(&snippet.code).or_else(|_| by_line()).err().map(|error| error.to_string())
        }
        Class::Compiled | Class::Run | Class::Printed | Class::Left => None,
    }
}

#[test]
fn every_block_of_the_documents_has_a_class() {
    let mut problems = Vec::new();
    // A drawing is all that the map of the code has.
    for Document { path, text } in all().into_iter().filter(|it| it.path != "ARCHITECTURE.md") {
        let snippets = match snippets(&text) {
            Ok(snippets) => snippets,
            Err(problem) => {
                problems.push(format!("{path}: {problem}"));
                continue;
            }
        };
        for snippet in &snippets {
            problems.extend(problem(snippet).map(|problem| format!("{path}:{}: {problem}", snippet.line)));
        }
        let mut before: Option<&Snippet> = None;
        for snippet in &snippets {
            let is_printed = snippet.has(&Mark::Printed);
            if is_printed
                && !before.is_some_and(|it| classify(it) == Ok(Class::Run) || it.has(&Mark::Printed))
            {
                problems
                    .push(format!("{path}:{}: no block of shell that is run stands before it", snippet.line));
            }
            before = Some(snippet);
        }
    }
    assert!(problems.is_empty(), "{} blocks:\n{}", problems.len(), problems.join("\n"));
}

/// The files that a source includes, from the root of the repository.
fn included(source: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(root().join(source)).unwrap_or_default();
    let paths = text.split("#[doc = include_str!(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let directory = source.parent().expect("a source is in a directory");
    paths.map(|path| resolved(&directory.join(path))).collect()
}

/// A path without `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts
}

#[test]
fn the_compiler_sees_every_page_with_rust() {
    let sources = fs::read_dir(root().join("crates")).expect("there are crates").flat_map(|entry| {
        let source = Path::new("crates").join(entry.expect("a crate").file_name()).join("src");
        [source.join("lib.rs"), source.join("pages.rs")]
    });
    let included: BTreeSet<PathBuf> = sources.flat_map(|source| included(&source)).collect();
    let has_rust = |document: &Document| {
        let snippets = snippets(&document.text).unwrap_or_default();
        snippets.iter().any(|snippet| snippet.language == "rust" && classify(snippet) == Ok(Class::Compiled))
    };
    let wanted: BTreeSet<PathBuf> =
        all().into_iter().filter(has_rust).map(|document| PathBuf::from(document.path)).collect();
    let missing: Vec<_> = wanted.difference(&included).collect();
    assert!(missing.is_empty(), "add a line for each to crates/book/src/pages.rs: {missing:?}");
    let idle: Vec<_> = included.difference(&wanted).collect();
    assert!(idle.is_empty(), "they have no Rust: {idle:?}");
}

fn one(text: &str) -> Snippet {
    let mut snippets = snippets(text).expect("the marks are known");
    assert_eq!(snippets.len(), 1, "{text}");
    snippets.remove(0)
}

#[test]
fn a_block_without_a_class_is_an_error_that_says_what_to_write() {
    let class = |text: &str| classify(&one(text));
    assert_eq!(class("```rust\n```"), Ok(Class::Compiled));
    assert_eq!(class("text\n\n<!-- on a server -->\n<!-- exits: 75 -->\n\n```sh\n```"), Ok(Class::Run));
    assert_eq!(class("<!-- printed -->\n```text\n```"), Ok(Class::Printed));
    assert_eq!(class("<!-- from: a/b.yml#part -->\n```yaml\n```"), Ok(Class::Quoted));
    assert_eq!(class("<!-- not run: needs root -->\n```sh\n```"), Ok(Class::Left));
    assert_eq!(class("```toml\n```"), Ok(Class::Parsed));
    let refused = |text: &str, part: &str| {
        let error = class(text).expect_err("it has no class");
        assert!(error.contains(part), "{text}: {error}");
    };
    refused("```\n```", "`text` if it is none");
    refused("    indented", "`text` if it is none");
    refused("```console\n```", "write `sh`");
    refused("```text\n```", "<!-- printed -->");
    refused("```yaml\n```", "<!-- from: PATH -->");
    refused("```rust,ignore\n```", "<!-- from: PATH -->");
    refused("<!-- not run: a reason -->\n```rust\n```", "write `rust,ignore`");
    refused("<!-- printed -->\n```sh\n```", "for `text`");
    refused("<!-- background -->\n```text\n```", "for `sh`");
    refused("<!-- printed -->\n<!-- not run: a reason -->\n```text\n```", "exclude each other");
    for (text, part) in [
        ("<!-- not run -->\n```sh\n```", "`not run` is no mark"),
        ("<!-- not run: -->\n```sh\n```", "is no mark"),
        ("<!-- on server -->\n```sh\n```", "is no mark"),
        ("<!-- printed -->\n\nA paragraph.\n\n```sh\n```", "no code block follows"),
    ] {
        let error = snippets(text).expect_err("the mark is wrong");
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_quote_is_in_its_file() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let quoted = |code: &str, part: &str| {
        let text = format!("<!-- from: tests/documents/quoted.txt{part} -->\n```yaml\n{code}\n```");
        check_quote(&folder, &one(&text))
    };
    assert_eq!(quoted("a: 1\nb:\n  c: 2", ""), Ok(()));
    assert_eq!(quoted("c: 2", ""), Ok(()), "its indentation does not count");
    assert_eq!(quoted("a: 1\n…\n  d: 3", ""), Ok(()));
    assert_eq!(quoted("c: 2\nd: 3", "#inner"), Ok(()));
    for (code, part, error) in [
        ("a: 1\n  c: 2", "", "does not contain"),
        ("d: 3\n…\na: 1", "", "does not contain"),
        ("a: 1", "#inner", "does not contain"),
        ("a: 1", "#other", "has no part `other`"),
    ] {
        assert!(quoted(code, part).is_err_and(|it| it.contains(error)), "{code}");
    }
    let text = "<!-- from: src/no-such-file -->\n```yaml\na: 1\n```";
    assert!(check_quote(&folder, &one(text)).is_err_and(|error| error.starts_with("src/no-such-file: ")));
}

#[test]
fn the_commands_of_a_script_are_found() {
    let found =
        |script: &str| commands(script, "p").into_iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(found("p run a -- sh -c 'echo $X; p no' # p no"), ["p|run|a|--|sh|-c|echo $X; p no"]);
    assert_eq!(found("A=1 p a && p b || q p; p c | q > p\n! p d &"), ["p|a", "p|b", "p|c", "p|d"]);
    assert_eq!(found("x=$(p a \"$(p b)\" ${c:-d}) || exit 1"), ["p|b", "p|a|1|1"]);
    assert_eq!(found("p a \\\n  --b 2>&1 > file --c"), ["p|a|--b|--c"]);
    assert_eq!(found("trap 'p release a' EXIT; if p b; then p c; fi"), ["p|release|a", "p|b", "p|c"]);
    assert_eq!(found("(umask 7; p a)\np b <<E"), ["p|a", "p|b"]);
}

#[test]
fn an_output_is_compared_without_what_varies() {
    let same = |shown: &str, printed: &str| difference(shown, printed);
    assert_eq!(same("a  1\n", "a 1"), None);
    assert_eq!(same("holder web-3/4711/leasehold", "holder x/12/sh"), None);
    assert_eq!(
        same(
            "since 2026-11-23T20:59:48.096Z (in 29.28s, unless",
            "since 2030-01-01T00:00:00.000Z (in 3ms, unless"
        ),
        None
    );
    assert_eq!(same("at 2026-11-23 20:59:48+00:00 (…)", "at 2030-01-01 00:00:00+01:00 (now)"), None);
    assert_eq!(same("(now), 54m59s", "(1s ago), 2h"), None);
    assert_eq!(same("token 1772368200981042", "token 1999999999999999"), None);
    assert_eq!(same("a\n…\nd", "a\nb\nc\nd"), None);
    assert_eq!(same("a … d", "a b c d"), None);
    assert_eq!(same("waiting 0", "waiting 1"), Some("waiting 0".to_owned()));
    assert_eq!(same("a\nb", "a"), Some("b".to_owned()));
    assert_eq!(same("a", "a\nb"), Some("(the end)".to_owned()));
    assert_eq!(same("a\n...\nd", "a\nb"), Some("d".to_owned()));
}

#[test]
fn links_spans_and_anchors_are_read() {
    let text = "# A `b` c\n\n[x](y.md#z) `q r` ![p](i.svg)\n\n```sh\n[no](no.md)\n```\n\n## How to add …\n\n## A b c\n";
    let found: Vec<_> = links(text).into_iter().map(|link| (link.line, link.target)).collect();
    assert_eq!(found, [(3, "y.md#z".to_owned()), (3, "i.svg".to_owned())]);
    assert_eq!(code_spans(text).last(), Some(&(3, "q r".to_owned())));
    assert_eq!(anchors(text), ["a-b-c", "how-to-add-", "a-b-c-1"]);
    let range = links(text)[0].range.clone().expect("it stands in the text");
    assert_eq!(&text[range], "y.md#z");
}
