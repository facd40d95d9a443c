//! `cargo xtask circles`: whether files of a crate import each other in a circle.
//!
//! Reads `use` declarations and paths in the code, and follows what a module re-exports to the file that defines it.
//! Not read: what macros expand to, and glob imports beyond the module they name.
//!
//! 1. A file and the files of its submodules may import each other: neither edge counts.
//! 2. Code under `#[cfg(test)]`, alone or with further conditions, does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{cargo, rust_source};

/// What stands before code that only tests are built with.
const TESTS: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];

/// A module of a crate, as the names on the way to it.
type Module = Vec<String>;

/// The files of one crate: the module of each, and its source.
type Files = BTreeMap<Module, (PathBuf, String)>;

/// Checks all packages, or the ones that are named.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let metadata = cargo::metadata()?;
    let mut circles = Vec::new();
    for (name, directory) in metadata.packages() {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == name) {
            let files = read_files(&directory.join("src"))?;
            circles.extend(find_circles(&files).into_iter().map(|circle| format!("{name}: {circle}")));
        }
    }
    for circle in &circles {
        println!("{circle}");
    }
    if !circles.is_empty() {
        bail!("{} import circles; the imports are listed above", circles.len());
    }
    Ok(())
}

/// The modules of a crate, without programs in `bin`, each of which is a crate of its own.
fn read_files(source: &Path) -> Result<Files> {
    let mut files = Files::new();
    let mut directories = vec![source.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries =
            fs::read_dir(&directory).with_context(|| format!("failed to read {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() && path != source.join("bin") {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path)?;
                files.insert(module_of(path.strip_prefix(source)?), (path, text));
            }
        }
    }
    Ok(files)
}

fn module_of(path: &Path) -> Module {
    let mut names: Module = path
        .with_extension("")
        .components()
        .map(|it| it.as_os_str().to_string_lossy().into_owned())
        .collect();
    if names.last().is_some_and(|name| name == "mod") || names == ["lib"] || names == ["main"] {
        names.pop();
    }
    names
}

/// One circle for each set of files that import each other, with the lines that make it.
fn find_circles(files: &Files) -> Vec<String> {
    let tests = test_modules(files);
    let sources: BTreeMap<&Module, Source> = files
        .iter()
        .filter(|(module, _)| !(1..=module.len()).any(|length| tests.contains(&module[..length])))
        .map(|(module, (_, text))| (module, Source::read(text)))
        .collect();
    let mut edges: BTreeMap<&Module, BTreeMap<&Module, String>> = BTreeMap::new();
    for (module, source) in &sources {
        for Import { scope, path, .. } in &source.imports {
            let here: Module = module.iter().chain(scope).cloned().collect();
            let Some(file) = resolve(&sources, &here, path) else { continue };
            if !module.starts_with(file) && !file.starts_with(module) {
                edges.entry(module).or_default().entry(file).or_insert_with(|| path.join("::"));
            }
        }
    }
    let mut reported: BTreeSet<&Module> = BTreeSet::new();
    let mut circles = Vec::new();
    for module in sources.keys() {
        if reported.contains(module) {
            continue;
        }
        if let Some(circle) = shortest_circle(module, &edges) {
            let mut members = reachable(module, &edges);
            members.retain(|other| reachable(other, &edges).contains(module));
            let size = members.len();
            reported.extend(members);
            let names: Vec<String> = circle
                .windows(2)
                .map(|pair| format!("{} (`{}`)", file_name(files, pair[0]), edges[pair[0]][pair[1]]))
                .collect();
            circles.push(format!("{size} files in a circle, among them {}", names.join(" -> ")));
        }
    }
    circles
}

fn file_name(files: &Files, module: &Module) -> String {
    let path = &files[module].0;
    let from_src = path.components().skip_while(|it| it.as_os_str() != "src");
    from_src.collect::<PathBuf>().display().to_string()
}

fn reachable<'a>(
    from: &'a Module,
    edges: &BTreeMap<&'a Module, BTreeMap<&'a Module, String>>,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for other in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(*other) {
                next.push(other);
            }
        }
    }
    seen
}

/// The shortest way from a module back to it.
fn shortest_circle<'a>(
    start: &'a Module,
    edges: &BTreeMap<&'a Module, BTreeMap<&'a Module, String>>,
) -> Option<Vec<&'a Module>> {
    let mut before: BTreeMap<&Module, &'a Module> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(module) = next.pop_front() {
        for other in edges.get(module).into_iter().flat_map(BTreeMap::keys) {
            if *other == start {
                let mut circle = vec![start, module];
                while let Some(previous) = before.get(circle[circle.len() - 1]) {
                    circle.push(previous);
                }
                if circle.last() != Some(&start) {
                    circle.push(start);
                }
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(other) {
                before.insert(other, module);
                next.push_back(other);
            }
        }
    }
    None
}

/// The modules that are declared as `#[cfg(test)] mod NAME;`.
fn test_modules(files: &Files) -> BTreeSet<Module> {
    let mut tests = BTreeSet::new();
    for (module, (_, text)) in files {
        let code = rust_source::code_only(text);
        for at in TESTS.iter().flat_map(|mark| code.match_indices(mark)).map(|(at, _)| at) {
            let item = item_after_attributes(&code[at..]);
            let item = item.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            if let Some((name, _)) = item.strip_prefix("mod ").and_then(|rest| rest.split_once(';')) {
                tests.insert(module.iter().cloned().chain([name.trim().to_owned()]).collect());
            }
        }
    }
    tests.retain(|module: &Module| files.contains_key(module));
    tests
}

fn item_after_attributes(code: &str) -> &str {
    let mut rest = code.trim_start();
    while rest.starts_with("#[") {
        let Some(end) = rest.find(']') else { break };
        rest = rest[end + 1..].trim_start();
    }
    rest
}

/// What a file imports, and under which names.
struct Source {
    imports: Vec<Import>,
}

#[derive(Debug, PartialEq, Eq)]
struct Import {
    /// The inline modules around it.
    scope: Module,
    path: Module,
    /// The name that it has in the module, unless it is not declared but used.
    name: Option<String>,
}

impl Source {
    fn read(text: &str) -> Self {
        let code = without_tests(&rust_source::code_only(text));
        let scopes = inline_modules(&code);
        let scope_at = |at: usize| -> Module {
            let around = scopes.iter().filter(|(_, from, to)| (*from..*to).contains(&at));
            around.map(|(name, ..)| name.clone()).collect()
        };
        let mut imports = Vec::new();
        let mut declared = Vec::new();
        for (at, _) in code.match_indices("use ") {
            if code[..at].chars().next_back().is_some_and(|char| char.is_alphanumeric() || char == '_') {
                continue;
            }
            let Some(end) = code[at..].find(';') else { continue };
            declared.push(at..at + end);
            let mut paths = Vec::new();
            read_tree(&[], &code[at + 4..at + end], &mut paths);
            let import = |(path, name)| Import { scope: scope_at(at), path, name: Some(name) };
            imports.extend(paths.into_iter().map(import));
        }
        for (at, path) in inline_paths(&code) {
            if !declared.iter().any(|declaration| declaration.contains(&at)) {
                imports.push(Import { scope: scope_at(at), path, name: None });
            }
        }
        Self { imports }
    }

    /// Where a name leads that this file imports itself.
    fn import(&self, name: &str) -> Option<&Module> {
        let named = |import: &&Import| import.scope.is_empty() && import.name.as_deref() == Some(name);
        self.imports.iter().find(named).map(|import| &import.path)
    }
}

/// The paths of a tree such as `a::{b, c::{self, d as e}}`, each with the name that it gets.
fn read_tree(prefix: &[String], tree: &str, paths: &mut Vec<(Module, String)>) {
    let tree = tree.trim();
    if tree.is_empty() {
        // After the last comma of a list over several lines.
        return;
    }
    if let Some((path, group)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) {
        let prefix: Module = prefix.iter().cloned().chain(segments(path)).collect();
        for branch in split_group(group) {
            read_tree(&prefix, branch, paths);
        }
        return;
    }
    let (path, alias) =
        tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path: Module = prefix.iter().cloned().chain(segments(path)).collect();
    if path.len() > 1 && path.last().is_some_and(|name| name == "self" || name == "*") {
        path.pop();
    }
    if let Some(last) = path.last() {
        let name = alias.unwrap_or(last).to_owned();
        paths.push((path, name));
    }
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Splits at the commas outside of inner braces.
fn split_group(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut branches) = (0_usize, 0, Vec::new());
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                branches.push(&group[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&group[from..]);
    branches
}

/// The paths in the code that begin with `crate`, `super` or `self`, each with its place.
fn inline_paths(code: &str) -> Vec<(usize, Module)> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|char| char.is_alphanumeric() || ['_', ':', '$'].contains(&char)) {
                continue;
            }
            let is_path = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
            let end = code[at..].find(|char| !is_path(char)).unwrap_or(code.len() - at);
            paths.push((at, segments(&code[at..at + end]).collect()));
        }
    }
    paths
}

/// Blanks what stands under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(at) = TESTS.iter().find_map(|mark| code.find(mark)) {
        let open = code[at..].find('{').unwrap_or(usize::MAX);
        let semicolon = code[at..].find(';').unwrap_or(usize::MAX);
        let end = if semicolon < open { semicolon + 1 } else { matching_brace(&code[at..], open) };
        let end = (at + end).min(code.len());
        let blank: String = code[at..end].chars().map(|char| if char == '\n' { '\n' } else { ' ' }).collect();
        code = [&code[..at], &blank, &code[end..]].concat();
    }
    code
}

/// Behind the brace that closes the one at a place.
fn matching_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, char) in code.char_indices().skip_while(|(at, _)| *at < open) {
        match char {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// The modules with a body in the file: the name, and from where to where.
fn inline_modules(code: &str) -> Vec<(String, usize, usize)> {
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("mod ") {
        if code[..at].chars().next_back().is_some_and(|char| char.is_alphanumeric() || char == '_') {
            continue;
        }
        let rest = &code[at + 4..];
        let length = rest.find(|char: char| !(char.is_alphanumeric() || char == '_')).unwrap_or(rest.len());
        if rest[length..].trim_start().starts_with('{') {
            let open = at + 4 + length + rest[length..].find('{').unwrap_or(0);
            let end = open + matching_brace(&code[open..], 0);
            modules.push((rest[..length].to_owned(), open, end));
        }
    }
    modules
}

/// The file that defines what a path names in a module; none if it is of another crate.
fn resolve<'a>(sources: &BTreeMap<&'a Module, Source>, here: &Module, path: &Module) -> Option<&'a Module> {
    let mut at = here.clone();
    let mut path: VecDeque<String> = path.iter().cloned().collect();
    // Each step through a re-export begins anew; a circle of re-exports ends.
    for _ in 0..16 {
        match path.front()?.as_str() {
            "crate" => at.clear(),
            "super" => {
                at.pop();
            }
            "self" => {}
            first if sources.contains_key(&child(&at, first)) => at.push(first.to_owned()),
            _ => return None,
        }
        path.pop_front();
        while let Some(name) = path.front() {
            if name == "super" {
                at.pop();
            } else if name == "self" {
            } else if sources.contains_key(&child(&at, name)) {
                at.push(name.clone());
            } else {
                break;
            }
            path.pop_front();
        }
        let file = sources.keys().filter(|file| at.starts_with(file)).max_by_key(|file| file.len())?;
        let imported = path.front().and_then(|name| sources[file].import(name));
        match imported {
            Some(imported) if at == **file => {
                at.clone_from(file);
                path.pop_front();
                path = imported.iter().cloned().chain(path).collect();
                let is_own = ["crate", "super", "self"].contains(&path.front()?.as_str())
                    || sources.contains_key(&child(&at, path.front()?));
                if !is_own {
                    return Some(file);
                }
            }
            _ => return Some(file),
        }
    }
    None
}

fn child(module: &Module, name: &str) -> Module {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(sources: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| {
            (module_of(Path::new(path)), (Path::new("src").join(path), (*text).to_owned()))
        };
        find_circles(&sources.iter().map(file).collect())
    }

    #[test]
    fn two_files_that_import_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;\npub struct A;"),
            ("b.rs", "use super::a::A;\npub struct B;"),
        ]);
        assert_eq!(
            found,
            ["2 files in a circle, among them src/a.rs (`crate::b::B`) -> src/b.rs (`super::a::A`)"]
        );
    }

    #[test]
    fn a_path_in_the_code_is_an_import() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "fn f() { crate::b::g() }"),
            ("b.rs", "use crate::{a::{self, f as h}}; pub fn g() {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_parent_and_its_children_may_import_each_other() {
        let found = circles(&[
            ("lib.rs", "mod a; use a::A;"),
            ("a.rs", "mod inner; use inner::Inner; pub struct A;"),
            ("a/inner.rs", "use super::A; use crate::X; pub struct Inner;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_re_export_leads_to_the_file_that_defines_it() {
        let files = |b: &'static str| {
            circles(&[
                ("lib.rs", "mod a; mod b; mod c; pub use a::A; pub use c::C;"),
                ("a.rs", "use crate::b::B; pub struct A;"),
                ("b.rs", b),
                ("c.rs", "pub struct C;"),
            ])
        };
        assert_eq!(files("use crate::A; pub struct B;").len(), 1);
        assert_eq!(files("use crate::C; pub struct B;"), [""; 0]);
        assert_eq!(files("use std::fmt; pub struct B;"), [""; 0]);
    }

    #[test]
    fn a_list_over_several_lines_does_not_import_the_module_itself() {
        let found = circles(&[
            ("lib.rs", "mod a; mod c;"),
            ("a.rs", "mod inner; pub use crate::c::C; pub use inner::I;"),
            ("a/inner.rs", "pub struct I;"),
            ("c.rs", "use crate::a::{\n    I,\n};\npub struct C;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn tests_comments_and_strings_do_not_count() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod t;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            (
                "b.rs",
                "// use crate::a::A;\nconst S: &str = \"use crate::a::A;\";\n#[cfg(test)]\nmod tests { use crate::a::A; }",
            ),
            ("t.rs", "use crate::a::A; use crate::u::U;"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_longer_circle_is_shown_whole() {
        let found = circles(&[
            ("lib.rs", ""),
            ("a.rs", "use crate::b::x;"),
            ("b/mod.rs", "pub use self::inner::x; mod inner;"),
            ("b/inner.rs", "use crate::c; pub fn x() {}"),
            ("c.rs", "use crate::a;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("src/a.rs") && found[0].contains("src/b/inner.rs"), "{found:?}");
    }
}
