//! Links, anchors and code spans of a Markdown text.

use std::collections::BTreeMap;
use std::ops::Range;

use pulldown_cmark::{Event, Tag, TagEnd};

use crate::snippet::{line_of, parser};

/// A link or an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The line where it begins, counted from 1.
    pub line: usize,
    /// Where it leads, as it is written.
    pub target: String,
    /// Where the target stands in the text, if it stands in brackets after the link's words.
    pub range: Option<Range<usize>>,
}

impl Link {
    /// Whether it leads to a file of the repository, or to an anchor of its own page.
    pub fn is_relative(&self) -> bool {
        !self.target.contains("://") && !self.target.starts_with("mailto:")
    }
}

/// All links and images.
pub fn links(text: &str) -> Vec<Link> {
    let of = |event, range: Range<usize>| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            let target = dest_url.into_string();
            let source = &text[range.clone()];
            let at = source.rfind(&format!("({target}")).map(|at| range.start + at + 1);
            let position = at.map(|at| at..at + target.len());
            Some(Link { line: line_of(text, range.start), target, range: position })
        }
        _ => None,
    };
    parser(text).filter_map(|(event, range)| of(event, range)).collect()
}

/// The code spans, each with its line.
pub fn code_spans(text: &str) -> Vec<(usize, String)> {
    let of = |event, range: Range<usize>| match event {
        Event::Code(span) => Some((line_of(text, range.start), span.into_string())),
        _ => None,
    };
    parser(text).filter_map(|(event, range)| of(event, range)).collect()
}

/// The anchors of all headings, as GitHub makes them.
pub fn anchors(text: &str) -> Vec<String> {
    let (mut anchors, mut seen) = (Vec::new(), BTreeMap::new());
    let mut heading: Option<String> = None;
    for (event, _) in parser(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = slug(&heading.take().unwrap_or_default());
                let count = seen.entry(anchor.clone()).or_insert(0_usize);
                anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = |char: char| match char {
        ' ' => Some('-'),
        _ if char.is_alphanumeric() || char == '-' || char == '_' => Some(char),
        _ => None,
    };
    heading.trim().to_lowercase().chars().filter_map(kept).collect()
}
