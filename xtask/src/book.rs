//! `cargo xtask book`: builds the book from `docs/`, and checks all links of the repository's documents.
//!
//! Owns where links must lead. What snippets contain is tested by `leasehold-book` and the tests of the program.
//!
//! 1. A relative link of a document leads to a file of the repository, and its anchor to a heading there, by the rules of
//!    GitHub. In the built book it leads to a file of the book, and its anchor to an id there. So a link works in both.
//! 2. A page of `docs/` is in `docs/SUMMARY.md` once, and `docs/README.md` links to it. The decisions are linked from
//!    their own index.
//! 3. A link from a page to a file outside of `docs/` becomes one to the repository: mdBook runs this program as a
//!    preprocessor.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use leasehold_book::{Document, anchors, documents, links};
use serde_json::Value;

use crate::{install, shell};

/// Where the book is built, from the root.
const BUILT: &str = "target/book";
/// The directory of the pages.
const PAGES: &str = "docs";
/// The files of the repository, for links that leave the book.
const REPOSITORY: &str = "https://github.com/leasehold/leasehold";

/// `cargo xtask book`, and what mdBook calls: `cargo xtask book preprocess [supports RENDERER]`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => build(),
        ["preprocess"] => preprocess(),
        ["preprocess", "supports", _] => Ok(()),
        [first, ..] => bail!("book takes no arguments, but was given `{first}`"),
    }
}

fn build() -> Result<()> {
    let mdbook = install::mdbook()?;
    let documents = documents(shell::root())?;
    let mut findings = check_documents(shell::root(), &documents);
    findings.extend(orphans(&documents));
    // What an earlier run built, and no page is now, must not satisfy a link.
    let built = shell::root().join(BUILT);
    if built.exists() {
        fs::remove_dir_all(&built).with_context(|| format!("failed to remove {}", built.display()))?;
    }
    let mut command = Command::new(mdbook);
    command.arg("build").current_dir(shell::root());
    // This program itself, in place of the command in book.toml: cargo may be busy with another build.
    let program = env::current_exe().context("this program does not know where it is")?;
    command
        .env("MDBOOK_PREPROCESSOR__REPOSITORY__COMMAND", format!("'{}' book preprocess", program.display()));
    shell::run(command)?;
    findings.extend(check_pages(&built)?);
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} links or pages to mend, see above", findings.len());
    }
    println!("{BUILT}/index.html: all links lead somewhere");
    Ok(())
}

/// The links of the documents that lead nowhere in the repository.
fn check_documents(root: &Path, documents: &[Document]) -> Vec<String> {
    let anchors: BTreeMap<&str, Vec<String>> =
        documents.iter().map(|document| (document.path.as_str(), anchors(&document.text))).collect();
    let mut findings = Vec::new();
    for Document { path, text } in documents {
        for link in links(text).into_iter().filter(leasehold_book::Link::is_relative) {
            let (file, anchor) = target(path, &link.target);
            let mut report = |what: String| findings.push(format!("{path}:{}: {what}", link.line));
            let Some(file) = file.filter(|file| root.join(file).exists()) else {
                report(format!("`{}` leads to no file", link.target));
                continue;
            };
            let known = anchors.get(&*file.display().to_string());
            if let (Some(anchor), Some(known)) = (anchor, known)
                && !known.iter().any(|it| it == anchor)
            {
                report(format!("`{}`: no such heading", link.target));
            }
        }
    }
    findings
}

/// The file to which a link of a document leads, if that is inside of the repository, and the anchor there.
fn target<'a>(path: &str, link: &'a str) -> (Option<PathBuf>, Option<&'a str>) {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    if file.is_empty() {
        return (Some(PathBuf::from(path)), anchor);
    }
    let directory = Path::new(path).parent().unwrap_or(Path::new(""));
    (resolved(&directory.join(file)), anchor)
}

/// A path without `..`; `None` if it leads out of where it begins.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name),
            Component::ParentDir if parts.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(parts)
}

/// The pages to which no index leads, and those that the summary has twice.
fn orphans(documents: &[Document]) -> Vec<String> {
    let linked = |index: &str| -> Vec<PathBuf> {
        let index = documents.iter().find(|document| document.path == index);
        let of = |document: &Document| {
            links(&document.text)
                .into_iter()
                .filter_map(|link| target(&document.path, &link.target).0)
                .collect()
        };
        index.map_or_else(Vec::new, of)
    };
    let (summary, pages, decisions) =
        (linked("docs/SUMMARY.md"), linked("docs/README.md"), linked("docs/adr/README.md"));
    let mut findings = Vec::new();
    for document in documents.iter().filter(|document| document.is_page()) {
        let path = Path::new(&document.path);
        match summary.iter().filter(|page| *page == path).count() {
            0 => findings.push(format!("{}: is not in docs/SUMMARY.md", document.path)),
            1 => {}
            count => findings.push(format!("{}: is in docs/SUMMARY.md {count} times", document.path)),
        }
        let is_index = document.path == "docs/README.md";
        if !is_index && ![&pages, &decisions].iter().any(|index| index.iter().any(|page| page == path)) {
            findings.push(format!(
                "{}: neither docs/README.md nor docs/adr/README.md links to it",
                document.path
            ));
        }
    }
    findings
}

/// The links of the built pages that lead to no file, or to no id there.
fn check_pages(built: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in
            fs::read_dir(built.join(&directory)).with_context(|| format!("no {}", built.display()))?
        {
            let path = directory.join(entry?.file_name());
            if built.join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let text = fs::read_to_string(built.join(&path))?;
                pages.insert(path.display().to_string(), text);
            }
        }
    }
    let ids: BTreeMap<&str, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path.as_str(), values(text, "id").collect())).collect();
    let mut findings = Vec::new();
    for (path, text) in &pages {
        // It is shown at whatever address was wrong, and names its links from the root.
        if path == "404.html" {
            continue;
        }
        let links: BTreeSet<&str> = values(text, "href").chain(values(text, "src")).collect();
        for link in links {
            let is_elsewhere = ["http:", "https:", "mailto:", "data:", "javascript:"];
            if is_elsewhere.iter().any(|scheme| link.starts_with(scheme)) {
                continue;
            }
            let (file, anchor) = target(path, link);
            let Some(file) = file.filter(|file| built.join(file).exists()) else {
                findings.push(format!("{BUILT}/{path}: `{link}` leads to no file of the book"));
                continue;
            };
            let known = ids.get(&*file.display().to_string());
            if let (Some(anchor), Some(known)) = (anchor.filter(|anchor| !anchor.is_empty()), known)
                && !known.contains(anchor)
            {
                findings.push(format!("{BUILT}/{path}: `{link}`: no such id"));
            }
        }
    }
    Ok(findings)
}

/// The values of an attribute, in tags.
fn values<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!(" {name}=\"");
    let tags =
        html.split('<').filter(|part| !part.starts_with("!--")).filter_map(|part| part.split('>').next());
    tags.filter_map(move |tag| {
        let (_, rest) = tag.split_once(&start)?;
        rest.split('"').next()
    })
}

/// Reads the book from mdBook, and writes it with links to the repository.
fn preprocess() -> Result<()> {
    let input: Value = serde_json::from_reader(io::stdin().lock()).context("mdBook has sent no JSON")?;
    let Value::Array(parts) = input else { bail!("mdBook has sent no array") };
    let mut book = parts.into_iter().nth(1).context("mdBook has sent no book")?;
    rewrite(&mut book);
    serde_json::to_writer(io::stdout().lock(), &book)?;
    io::stdout().flush()?;
    Ok(())
}

/// Rewrites the links of all chapters.
fn rewrite(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(rewrite),
        Value::Object(fields) => {
            let path =
                fields.get("source_path").and_then(Value::as_str).map(|path| format!("{PAGES}/{path}"));
            if let (Some(path), Some(Value::String(content))) = (path, fields.get_mut("content")) {
                *content = with_links_to_the_repository(shell::root(), &path, content);
            }
            fields.values_mut().for_each(rewrite);
        }
        _ => {}
    }
}

/// A page whose links to files outside of `docs/` lead to the repository, and whose links to a `README.md` lead to the page
/// that mdBook makes of it.
fn with_links_to_the_repository(root: &Path, path: &str, text: &str) -> String {
    let mut text = text.to_owned();
    for link in links(&text.clone()).into_iter().rev().filter(leasehold_book::Link::is_relative) {
        let (Some(range), (Some(file), anchor)) = (link.range, target(path, &link.target)) else { continue };
        let anchor = anchor.map_or_else(String::new, |anchor| format!("#{anchor}"));
        if !file.starts_with(PAGES) {
            let kind = if root.join(&file).is_dir() { "tree" } else { "blob" };
            text.replace_range(range, &format!("{REPOSITORY}/{kind}/main/{}{anchor}", file.display()));
        } else if let Some(directory) =
            link.target.split('#').next().and_then(|it| it.strip_suffix("README.md"))
        {
            text.replace_range(range, &format!("{directory}index.html{anchor}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> Document {
        Document { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn links_that_lead_nowhere_and_orphans_are_found() {
        let documents = [
            document(
                "docs/README.md",
                "# A\n\n[b](b.md#two) [l](../LICENSE-MIT) [x](https://example.org/no)",
            ),
            document("docs/SUMMARY.md", "[A](README.md)\n[B](b.md)"),
            document("docs/adr/README.md", "# D"),
            document("docs/b.md", "## Two\n\n[back](README.md#a) [here](#two)"),
        ];
        // Files exist in the repository, or are those of the list.
        let root = tempdir();
        let files = ["docs/README.md", "docs/b.md", "docs/adr/README.md", "LICENSE-MIT"];
        fs::create_dir_all(root.join("docs/adr")).expect("a directory");
        for file in files {
            fs::write(root.join(file), "").expect("a file");
        }
        let found = |text: &str| {
            let mut documents = documents.to_vec();
            documents[3].text.push_str(text);
            let mut findings = check_documents(&root, &documents);
            findings.extend(orphans(&documents));
            findings.retain(|finding| !finding.starts_with("docs/adr/README.md"));
            findings.join("\n")
        };
        assert_eq!(found(""), "");
        assert_eq!(found("\n[c](c.md)"), "docs/b.md:4: `c.md` leads to no file");
        assert_eq!(found("\n[c](../../LICENSE-MIT)"), "docs/b.md:4: `../../LICENSE-MIT` leads to no file");
        assert_eq!(found("\n[c](README.md#b)"), "docs/b.md:4: `README.md#b`: no such heading");
        assert_eq!(found("\n[c](#one)"), "docs/b.md:4: `#one`: no such heading");
        let mut orphan = documents.to_vec();
        orphan.push(document("docs/c.md", ""));
        orphan[1].text.push_str(" [B](b.md)");
        assert_eq!(
            orphans(&orphan)[1..],
            [
                "docs/adr/README.md: neither docs/README.md nor docs/adr/README.md links to it",
                "docs/b.md: is in docs/SUMMARY.md 2 times",
                "docs/c.md: is not in docs/SUMMARY.md",
                "docs/c.md: neither docs/README.md nor docs/adr/README.md links to it",
            ]
        );
        fs::remove_dir_all(root).expect("it is ours");
    }

    #[test]
    fn links_of_built_pages_are_followed() {
        let root = tempdir();
        fs::create_dir_all(root.join("a")).expect("a directory");
        let page = "<h1 id=\"top\">T</h1><a class=\"x\" href=\"a/b.html#c\">b</a><a href=\"https://example.org\">e</a>\
                    <img src=\"no.svg\"><a href=\"a/b.html#no\">b</a><a href=\"#top\">t</a>&lt;a href=\"text\"";
        fs::write(root.join("index.html"), page).expect("a file");
        fs::write(root.join("a/b.html"), "<a href=\"../index.html\" id=\"c\">").expect("a file");
        assert_eq!(
            check_pages(&root).expect("it is built"),
            [
                "target/book/index.html: `a/b.html#no`: no such id",
                "target/book/index.html: `no.svg` leads to no file of the book"
            ]
        );
        fs::remove_dir_all(root).expect("it is ours");
    }

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let text = "[a](../../Cargo.toml) [b](../README.md#how-to) [c](c.md) [d](../../crates) `[e](../../x)` [f](#f)";
        assert_eq!(
            with_links_to_the_repository(shell::root(), "docs/how-to/a.md", text),
            "[a](https://github.com/leasehold/leasehold/blob/main/Cargo.toml) [b](../index.html#how-to) [c](c.md) \
             [d](https://github.com/leasehold/leasehold/tree/main/crates) `[e](../../x)` [f](#f)"
        );
    }

    /// A directory of the test that calls this.
    fn tempdir() -> PathBuf {
        let name = std::thread::current().name().unwrap_or_default().replace("::", "-");
        let directory = std::env::temp_dir().join(format!("leasehold-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        directory
    }
}
