//! `cargo xtask prose`: spelling, and the words that the project does not use for programs.
//!
//! Owns how sources are read for it. The words are in `xtask/prose/words.txt`, names that code has given up in
//! `identifiers.txt`, exceptions with their reasons in `allow.txt`. Spelling is the program `typos`, by `typos.toml`.
//!
//! 1. A phrase is found across the ends of lines, but not across the ends of sentences.
//! 2. Code spans and code blocks of documents and comments are no prose.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::quoted_tests::Names;
use crate::rust_source::{self, Class};
use crate::{install, shell};

/// Directories that hold nothing written here.
const SKIPPED: [&str; 3] = ["target", "node_modules", "__pycache__"];

/// Checks the whole tree. `--count` prints numbers by crate and word; names lead to files below a path alone.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let counts = arguments.iter().any(|argument| argument == "--count");
    let below: Vec<&String> = arguments.iter().filter(|argument| *argument != "--count").collect();
    if let Some(option) = below.iter().find(|argument| argument.starts_with('-')) {
        bail!("there is no option `{option}`: there is --count");
    }
    let rules = Rules::read()?;
    let mut findings = Vec::new();
    let mut used = vec![false; rules.allowed.len()];
    for path in files(shell::root())? {
        let name = path.strip_prefix(shell::root())?.display().to_string();
        if below.is_empty() || below.iter().any(|prefix| name.starts_with(prefix.as_str())) {
            let text = fs::read_to_string(&path).with_context(|| format!("failed to read {name}"))?;
            findings.extend(rules.check(&name, &text, &mut used));
        }
    }
    if below.is_empty() {
        let unused = rules.allowed.iter().zip(&used).filter(|(_, used)| !**used);
        for (allowed, _) in unused {
            eprintln!("xtask: xtask/prose/allow.txt: `{} | {}` matches nothing", allowed.path, allowed.part);
        }
    }
    if counts {
        print_counts(&findings);
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    let quoted = if below.is_empty() { check_quoted_tests()? } else { true };
    let spelling = check_spelling(&below)?;
    match (findings.len(), spelling && quoted) {
        (0, true) => Ok(()),
        (count, spelling) => bail!(
            "{count} words to replace, see above and xtask/prose/words.txt{}",
            if spelling { "" } else { "; and typos, or quoted tests that do not exist" }
        ),
    }
}

/// Whether the code has all tests that documents quote.
fn check_quoted_tests() -> Result<bool> {
    let (mut names, mut documents) = (Names::default(), Vec::new());
    for path in files(shell::root())? {
        let name = path.strip_prefix(shell::root())?.display().to_string();
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {name}"))?;
        match Language::of(&path) {
            Some(Language::Rust) => names.add(&rust_source::code_only(&text)),
            Some(Language::Markdown) => documents.push((name, text)),
            _ => {}
        }
    }
    let missing = documents.iter().flat_map(|(name, text)| {
        names
            .missing(text)
            .into_iter()
            .map(move |(line, test)| format!("{name}:{line}: there is no test `{test}`"))
    });
    let missing: Vec<_> = missing.inspect(|finding| println!("{finding}")).collect();
    Ok(missing.is_empty())
}

/// Whether `typos` finds nothing; installed first if it is not there.
fn check_spelling(below: &[&String]) -> Result<bool> {
    let mut typos = Command::new(install::typos()?);
    typos.current_dir(shell::root()).args(["--format", "brief"]).args(below);
    Ok(shell::status(typos)?.success())
}

fn print_counts(findings: &[Finding]) {
    let mut by_place: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
    for finding in findings {
        *by_place.entry(place(&finding.path)).or_default().entry(&finding.word).or_default() += 1;
    }
    for (place, words) in by_place {
        let mut words: Vec<_> = words.into_iter().collect();
        words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let total: usize = words.iter().map(|(_, count)| count).sum();
        let words: Vec<String> = words.iter().map(|(word, count)| format!("{word} {count}")).collect();
        println!("{total:>5}  {place}: {}", words.join(", "));
    }
    println!("{:>5}  in all", findings.len());
}

/// The crate, or the directory at the root.
fn place(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match &parts[..] {
        ["crates", name, ..] => format!("crates/{name}"),
        [directory, _, ..] => (*directory).to_owned(),
        _ => "the root".to_owned(),
    }
}

/// All files that are read, in order.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut directories, mut files) = (vec![root.to_owned()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("failed to read {}", directory.display()))?
        {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_hidden = name.starts_with('.') && ![".ci", ".github"].contains(&&*name);
            if path.is_dir() && !is_hidden && !SKIPPED.contains(&&*name) {
                directories.push(path);
            } else if path.is_file() && Language::of(&path).is_some() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// How comments are written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    Markdown,
    /// Comments begin with this, outside of quotes.
    Line(&'static str),
}

impl Language {
    fn of(path: &Path) -> Option<Self> {
        if path.ends_with(".ci/run") {
            return Some(Self::Line("#"));
        }
        Some(match path.extension()?.to_str()? {
            "rs" => Self::Rust,
            "md" => Self::Markdown,
            "toml" | "sh" | "py" | "yml" | "yaml" => Self::Line("#"),
            "lua" => Self::Line("--"),
            "go" | "mjs" | "java" => Self::Line("//"),
            _ => return None,
        })
    }
}

/// Where a phrase is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Everywhere,
    Prose,
}

struct Phrase {
    scope: Scope,
    words: Vec<String>,
    exceptions: Vec<Vec<String>>,
}

struct Allowed {
    path: String,
    part: String,
}

struct Rules {
    /// By their first words.
    phrases: BTreeMap<String, Vec<Phrase>>,
    identifiers: BTreeMap<String, String>,
    allowed: Vec<Allowed>,
}

#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    line: usize,
    word: String,
    instead: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.word)?;
        self.instead.iter().try_for_each(|instead| write!(f, " (is now {instead})"))
    }
}

impl Rules {
    fn read() -> Result<Self> {
        let read = |name: &str| {
            let path = shell::root().join("xtask/prose").join(name);
            fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
        };
        Self::parse(&read("words.txt")?, &read("identifiers.txt")?, &read("allow.txt")?)
    }

    fn parse(words: &str, identifiers: &str, allowed: &str) -> Result<Self> {
        let phrase = |line: &str| {
            let (scope, rest) =
                line.split_once(':').with_context(|| format!("words.txt: no scope in `{line}`"))?;
            let scope = match scope {
                "everywhere" => Scope::Everywhere,
                "prose" => Scope::Prose,
                other => bail!("words.txt: there is no scope `{other}`"),
            };
            let (phrase, exceptions) = rest.split_once('!').unwrap_or((rest, ""));
            let exceptions = exceptions.split(',').map(words_of).filter(|words| !words.is_empty()).collect();
            Ok(Phrase { scope, words: words_of(phrase), exceptions })
        };
        let identifier = |line: &str| {
            let (old, new) = line.split_once(' ').with_context(|| format!("identifiers.txt: `{line}`"))?;
            Ok((old.to_owned(), new.to_owned()))
        };
        let allow = |line: &str| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [path, part, reason] if !reason.is_empty() => {
                Ok(Allowed { path: path.to_owned(), part: part.to_owned() })
            }
            _ => bail!("allow.txt: `{line}` is not `PATH | PART | REASON`"),
        };
        let mut phrases: BTreeMap<String, Vec<Phrase>> = BTreeMap::new();
        for line in entries(words) {
            let phrase = phrase(line)?;
            let first = phrase.words.first().with_context(|| format!("words.txt: no word in `{line}`"))?;
            phrases.entry(first.clone()).or_default().push(phrase);
        }
        Ok(Self {
            phrases,
            identifiers: entries(identifiers).map(identifier).collect::<Result<_>>()?,
            allowed: entries(allowed).map(allow).collect::<Result<_>>()?,
        })
    }

    /// What is wrong in a file. Notes which exceptions were needed.
    fn check(&self, path: &str, text: &str, used: &mut [bool]) -> Vec<Finding> {
        let Some(language) = Language::of(Path::new(path)) else { return Vec::new() };
        let stretches = Stretches::of(language, text);
        let mut findings = Vec::new();
        for (line, word) in self.phrases_in(&stretches.prose, |_| true) {
            findings.push((line, word, None));
        }
        for stretch in [&stretches.strings, &stretches.code] {
            for (line, word) in self.phrases_in(stretch, |scope| scope == Scope::Everywhere) {
                findings.push((line, word, None));
            }
        }
        for (line, identifier) in identifiers_in(&stretches.code).chain(identifiers_in(&stretches.spans)) {
            if let Some(new) = self.identifiers.get(identifier) {
                findings.push((line, identifier.to_owned(), Some(new.clone())));
            }
        }
        findings.sort();
        let lines: Vec<&str> = text.lines().collect();
        let mut is_allowed = |line: usize| {
            let line = lines.get(line - 1).copied().unwrap_or_default();
            let allows = |allowed: &Allowed| path.starts_with(&allowed.path) && line.contains(&allowed.part);
            let at = self.allowed.iter().position(allows);
            at.inspect(|at| used[*at] = true).is_some()
        };
        findings.retain(|(line, ..)| !is_allowed(*line));
        let finding = |(line, word, instead)| Finding { path: path.to_owned(), line, word, instead };
        findings.into_iter().map(finding).collect()
    }

    /// The refused phrases of a text, each with its line.
    fn phrases_in(&self, text: &str, is_refused: impl Fn(Scope) -> bool) -> Vec<(usize, String)> {
        let tokens = tokens(text);
        let matches = |at: usize, words: &[String]| {
            words
                .iter()
                .enumerate()
                .all(|(by, word)| matches!(tokens.get(at + by), Some(Token::Word(_, other)) if other == word))
        };
        let mut found = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            let Token::Word(line, word) = token else { continue };
            let phrases = self.phrases.get(word).into_iter().flatten();
            for phrase in phrases.filter(|phrase| is_refused(phrase.scope)) {
                let is_excepted = |exception: &Vec<String>| {
                    let offset = exception.windows(phrase.words.len()).position(|it| it == phrase.words);
                    offset.and_then(|by| at.checked_sub(by)).is_some_and(|at| matches(at, exception))
                };
                if matches(at, &phrase.words) && !phrase.exceptions.iter().any(is_excepted) {
                    found.push((*line, phrase.words.join(" ")));
                }
            }
        }
        found
    }
}

/// The lines of a list, without comments.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn words_of(phrase: &str) -> Vec<String> {
    phrase.split_whitespace().map(str::to_lowercase).collect()
}

/// A file, taken apart; in each part the rest is blank.
struct Stretches {
    prose: String,
    strings: String,
    code: String,
    /// The code spans and blocks of documents and comments.
    spans: String,
}

impl Stretches {
    fn of(language: Language, text: &str) -> Self {
        match language {
            Language::Markdown => {
                let (prose, spans) = without_spans(text);
                Self { prose, spans, strings: String::new(), code: String::new() }
            }
            Language::Rust => {
                let classes = rust_source::classify(text);
                let (prose, spans) =
                    without_spans(&rust_source::keep(text, &classes, |class| class == Class::Comment));
                Self {
                    prose,
                    spans,
                    strings: rust_source::keep(text, &classes, |class| class == Class::Text),
                    code: rust_source::keep(text, &classes, |class| class == Class::Code),
                }
            }
            Language::Line(mark) => {
                let (mut comments, mut code) = (String::new(), String::new());
                for line in text.lines() {
                    let at = comment_at(line, mark);
                    code.push_str(&line[..at]);
                    comments.push_str(&line[at..]);
                    code.push('\n');
                    comments.push('\n');
                }
                let (prose, spans) = without_spans(&comments);
                Self { prose, spans, strings: String::new(), code }
            }
        }
    }
}

/// Where the comment of a line begins, or where the line ends.
fn comment_at(line: &str, mark: &str) -> usize {
    let (mut quote, mut before) = (None, ' ');
    for (at, char) in line.char_indices() {
        match quote {
            None if line[at..].starts_with(mark) && (mark != "#" || before.is_whitespace()) => return at,
            None if char == '"' || char == '\'' => quote = Some(char),
            Some(open) if char == open && before != '\\' => quote = None,
            _ => {}
        }
        before = char;
    }
    line.len()
}

/// Parts prose from its code spans and code blocks.
fn without_spans(text: &str) -> (String, String) {
    let (mut prose, mut spans) = (String::new(), String::new());
    let (mut in_block, mut in_span) = (false, false);
    for line in text.lines() {
        let start = line.trim_start_matches([' ', '/', '!', '*', '#', '-', '>']);
        let is_fence = start.starts_with("```");
        if line.trim().is_empty() || start.is_empty() {
            in_span = false;
        }
        for char in line.chars() {
            let is_code = in_block || is_fence || in_span;
            if char == '`' && !in_block && !is_fence {
                in_span = !in_span;
            }
            // A span stands for a word, so that phrases do not reach over it.
            prose.push(if is_code || char == '`' { if char == '`' { ';' } else { ' ' } } else { char });
            spans.push(if is_code && char != '`' { char } else { ' ' });
        }
        in_block ^= is_fence;
        prose.push('\n');
        spans.push('\n');
    }
    (prose, spans)
}

enum Token {
    /// With its line.
    Word(usize, String),
    /// No phrase reaches over it.
    End,
}

/// Words, as names in code have them, too. Marks of comments are none.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            tokens.push(Token::End);
        }
        let mut word = String::new();
        for char in line.chars().chain([' ']) {
            if char.is_alphanumeric() || char == '\'' || char == '’' {
                word.extend(char.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                let whole = std::mem::take(&mut word);
                let word = whole.trim_matches('\'');
                // "he's" is "he", too.
                let stem = word.split(['\'', '’']).next().unwrap_or(word);
                tokens.push(Token::Word(at + 1, stem.to_owned()));
            }
            if !char.is_whitespace() && !"_/*#!->".contains(char) {
                tokens.push(Token::End);
            }
        }
    }
    tokens
}

fn identifiers_in(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    text.lines().enumerate().flat_map(move |(at, line)| {
        line.split(move |char| !is_part(char)).filter(|word| !word.is_empty()).map(move |word| (at + 1, word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str =
        "# a comment\neverywhere: nobody\neverywhere: he\nprose: who ! users who\nprose: is told\n";

    fn found(path: &str, text: &str) -> Vec<String> {
        let rules =
            Rules::parse(WORDS, "Seat LockEntry\n", "docs/a.md | a fine line | It is one.\n").expect("rules");
        let mut used = vec![false; 1];
        rules.check(path, text, &mut used).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn words_are_found_in_comments_strings_and_names() {
        let text = "// Nobody waits.\nfn nobody_waits() { say(\"he's there\") }\n// the head of it\n";
        assert_eq!(found("a.rs", text), ["a.rs:1: nobody", "a.rs:2: he", "a.rs:2: nobody"]);
    }

    #[test]
    fn a_phrase_is_found_over_the_end_of_a_line_and_not_of_a_sentence() {
        assert_eq!(found("a.rs", "/// The waiter is\n/// told so.\n"), ["a.rs:1: is told"]);
        assert_eq!(found("a.rs", "/// So it is. Told so.\n"), [""; 0]);
        assert_eq!(found("a.rs", "fn f() { g(\"it is told\") }"), [""; 0]);
    }

    #[test]
    fn an_exception_is_the_phrase_around_it() {
        assert_eq!(found("a.md", "Users who read.\nThose who read.\n"), ["a.md:2: who"]);
    }

    #[test]
    fn code_in_documents_is_no_prose() {
        let text = "`who` is an argument\n\n```sh\nwho am i\n```\nand who else\n";
        assert_eq!(found("a.md", text), ["a.md:6: who"]);
        assert_eq!(found("a.rs", "/// ```\n/// let he = 1;\n/// ```\nfn f() {}"), [""; 0]);
    }

    #[test]
    fn old_names_are_found_whole_in_code_and_code_spans() {
        let text = "struct Seat; // `Seat` and a Seat\nstruct Seats;\n";
        assert_eq!(found("a.rs", text), ["a.rs:1: Seat (is now LockEntry)"; 2]);
    }

    #[test]
    fn comments_of_other_languages_are_read() {
        assert_eq!(found("a.toml", "a = \"who # who\" # who\n"), ["a.toml:1: who"]);
        assert_eq!(found("a.lua", "local who = 1 -- who\n"), ["a.lua:1: who"]);
        assert_eq!(found("a.txt", "who"), [""; 0]);
    }

    #[test]
    fn an_allowed_line_is_passed_over() {
        assert_eq!(found("docs/a.md", "Here is a fine line, who knows.\n"), [""; 0]);
        assert_eq!(found("docs/b.md", "Here is a fine line, who knows.\n"), ["docs/b.md:1: who"]);
        assert!(Rules::parse(WORDS, "", "docs/a.md | a line without a reason\n").is_err());
    }
}
