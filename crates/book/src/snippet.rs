//! The code blocks of a document, each with the marks before it.

use std::ops::Range;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

/// A code block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snippet {
    /// The line of its fence, counted from 1.
    pub line: usize,
    /// The first word after the fence; empty if there is none, or if the block is indented only.
    pub language: String,
    /// What follows the language, after a comma: `no_run`.
    pub flags: Vec<String>,
    /// What it contains.
    pub code: String,
    /// The marks before it.
    pub marks: Vec<Mark>,
}

/// An HTML comment before a code block, which says how the block is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// `not run: REASON`
    NotRun(String),
    /// `on a server`: from here on the page has a server.
    OnServer,
    /// `printed`: what the block of shell before it prints.
    Printed,
    /// `background`: what a reader types in another terminal.
    Background,
    /// `exits: STATUS`: how the last command of the block ends.
    Exits(i32),
    /// `from: PATH` or `from: PATH#NAME`: lines of a file, or of a named part of it.
    From {
        /// From the root of the repository.
        path: String,
        /// The part's name.
        part: Option<String>,
    },
}

impl Snippet {
    /// Whether it has a mark.
    pub fn has(&self, mark: &Mark) -> bool {
        self.marks.contains(mark)
    }

    /// The reason for which it is not run, if it has that mark.
    pub fn not_run(&self) -> Option<&str> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::NotRun(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// How its last command must end.
    pub fn exits(&self) -> i32 {
        let status = |mark: &Mark| if let Mark::Exits(status) = mark { Some(*status) } else { None };
        self.marks.iter().find_map(status).unwrap_or(0)
    }
}

/// The code blocks of a Markdown text. The error names a line, and what is wrong with its mark.
pub fn snippets(text: &str) -> Result<Vec<Snippet>, String> {
    let mut snippets: Vec<Snippet> = Vec::new();
    let (mut comments, mut is_code): (Vec<(usize, String)>, bool) = (Vec::new(), false);
    for (event, range) in parser(text) {
        // It is counted from the beginning: only where it is needed.
        let line = || line_of(text, range.start);
        match event {
            Event::Html(html) => comments.push((line(), html.into_string())),
            Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
            Event::Start(Tag::CodeBlock(kind)) => {
                is_code = true;
                let info = match kind {
                    CodeBlockKind::Fenced(info) => info.into_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                let mut words = info.split([',', ' ']).map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let marks = marks(&std::mem::take(&mut comments))?;
                let line = line();
                snippets.push(Snippet { line, language, flags: words.collect(), code: String::new(), marks });
            }
            Event::End(TagEnd::CodeBlock) => is_code = false,
            Event::Text(part) if is_code => {
                if let Some(snippet) = snippets.last_mut() {
                    snippet.code.push_str(&part);
                }
            }
            _ => {
                if let Some(mark) = marks(&std::mem::take(&mut comments)).unwrap_or_default().first() {
                    return Err(format!("line {}: no code block follows the mark {mark:?}", line()));
                }
            }
        }
    }
    Ok(snippets)
}

/// The events of a Markdown text, as mdBook and GitHub read it.
pub(crate) fn parser(text: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
    Parser::new_ext(text, options).into_offset_iter()
}

pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

fn marks(comments: &[(usize, String)]) -> Result<Vec<Mark>, String> {
    let mut marks = Vec::new();
    let Some((line, _)) = comments.first() else { return Ok(marks) };
    let mut rest = comments.iter().map(|(_, html)| html.as_str()).collect::<String>();
    while let Some((_, after)) = rest.split_once("<!--") {
        let Some((comment, after)) = after.split_once("-->") else { break };
        let comment = comment.split_whitespace().collect::<Vec<_>>().join(" ");
        marks.push(mark(&comment).ok_or_else(|| {
            format!(
                "line {line}: `{comment}` is no mark of a code block: there are `not run: REASON`, `on a server`, \
                 `printed`, `background`, `exits: STATUS` and `from: PATH`"
            )
        })?);
        rest = after.to_owned();
    }
    Ok(marks)
}

fn mark(comment: &str) -> Option<Mark> {
    let (name, value) = comment.split_once(':').unwrap_or((comment, ""));
    let value = value.trim();
    match (name, value) {
        ("on a server", "") => Some(Mark::OnServer),
        ("printed", "") => Some(Mark::Printed),
        ("background", "") => Some(Mark::Background),
        ("not run", reason) if !reason.is_empty() => Some(Mark::NotRun(reason.to_owned())),
        ("exits", status) => status.parse().ok().map(Mark::Exits),
        ("from", path) if !path.is_empty() => {
            let (path, part) = path.split_once('#').map_or((path, None), |(path, part)| (path, Some(part)));
            Some(Mark::From { path: path.to_owned(), part: part.map(str::to_owned) })
        }
        _ => None,
    }
}
