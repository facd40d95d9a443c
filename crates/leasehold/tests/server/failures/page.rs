//! Checks docs/reference/failure-modes.md against the tests: each test that the page names is where the page says, and the
//! page names each test that names a row.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The page's symbols for the places of tests, and a part of the path that each stands for.
const PLACES: [(&str, &[&str]); 12] = [
    ("F", &["leasehold/tests/server/failures/"]),
    ("V", &["leasehold/tests/server/durable", "leasehold/tests/server/valkey_9"]),
    ("M", &["leasehold/tests/api/cases/"]),
    ("C", &["testkit/src/conformance/cases/"]),
    ("R", &["redis/tests/store/"]),
    ("L", &["redis/tests/scripts/"]),
    ("S", &["sqlite/tests/store/", "sqlite/src/tests"]),
    ("P", &["cli/tests/program/"]),
    ("E", &["leasehold/tests/engine/"]),
    ("Q", &["store/tests/quorum/"]),
    ("X", &["redis/tests/partial_scripts/"]),
    ("U", &["/src/"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The files that define a function, by the function's name.
fn functions() -> BTreeMap<String, Vec<String>> {
    let (mut folders, mut found) = (vec![root().join("crates")], BTreeMap::<_, Vec<_>>::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let text = fs::read_to_string(&path).expect("a text");
                for line in text.lines() {
                    let Some((before, rest)) = line.split_once("fn ") else { continue };
                    let name: String =
                        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if before.is_empty() || before.ends_with(' ') {
                        found.entry(name).or_default().push(path.display().to_string());
                    }
                }
            }
        }
    }
    found
}

/// The rows of the page: the text after each number.
fn rows() -> BTreeMap<u32, String> {
    let page = fs::read_to_string(root().join("docs/reference/failure-modes.md")).expect("the page");
    let mut rows = BTreeMap::new();
    for part in page.split("\n**").skip(1) {
        if let Some((number, text)) = part.split_once('.')
            && let Ok(number) = number.parse()
        {
            rows.insert(number, text.split("\n## ").next().unwrap_or_default().to_owned());
        }
    }
    rows
}

#[test]
fn every_test_that_the_page_names_is_where_it_says() {
    let (functions, rows) = (functions(), rows());
    assert!((1..=56).all(|row| rows.contains_key(&row)), "rows are missing: {:?}", rows.keys());
    let mut named = 0;
    for (row, text) in rows {
        let Some((_, tests)) = text.split_once("Tests: ") else { continue };
        let tests = tests.split("\n\n").next().unwrap_or_default();
        let mut location: &[&str] = &[];
        for word in tests.split_whitespace() {
            if let Some((_, paths)) = PLACES.iter().find(|(sign, _)| *sign == word) {
                location = paths;
            }
            let name = word.trim_end_matches(['.', ',', ';']).trim_matches('`');
            if !word.starts_with('`') || name.contains(['/', ':', '.']) || name.matches('_').count() < 2 {
                continue;
            }
            named += 1;
            let places = functions.get(name);
            assert!(places.is_some(), "row {row}: there is no test `{name}`");
            let there =
                |path: &String| location.is_empty() || location.iter().any(|part| path.contains(part));
            assert!(places.into_iter().flatten().any(there), "row {row}: `{name}` is in {places:?}");
        }
    }
    assert!(named > 150, "{named} names were found on the page");
}

#[test]
fn every_test_that_names_a_row_is_named_there() {
    let rows = rows();
    let tests = functions().into_keys().filter_map(|name| {
        let number = name.strip_prefix("row_")?.split('_').next()?.parse().ok()?;
        Some((number, name))
    });
    let mut found = 0;
    for (row, name) in tests {
        found += 1;
        assert!(rows[&row].contains(&format!("`{name}`")), "row {row} does not name `{name}`");
    }
    assert!(found > 40, "{found} tests name a row");
}
