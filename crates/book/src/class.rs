//! How a code block is tested.

use crate::snippet::{Mark, Snippet};

/// How a code block is tested. Each belongs to one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Rust: an example that the compiler sees.
    Compiled,
    /// Shell: run with the program.
    Run,
    /// What the block of shell before it prints.
    Printed,
    /// Lines of a file that another test runs or checks.
    Quoted,
    /// TOML or JSON: parsed.
    Parsed,
    /// Not tested, for a reason that stands before it.
    Left,
}

/// The class of a code block. The error says what to write.
pub fn classify(snippet: &Snippet) -> Result<Class, String> {
    let is_quoted = snippet.marks.iter().any(|mark| matches!(mark, Mark::From { .. }));
    let (is_printed, is_left) = (snippet.has(&Mark::Printed), snippet.not_run().is_some());
    let of_a_run = snippet.marks.iter().find(|mark| matches!(mark, Mark::Background | Mark::Exits(_)));
    if [is_quoted, is_printed, is_left].into_iter().filter(|it| *it).count() > 1 {
        return Err("`from`, `printed` and `not run` exclude each other".to_owned());
    }
    let is_ignored = snippet.flags.iter().any(|flag| flag == "ignore");
    let language = snippet.language.as_str();
    match language {
        "" => return Err("a block needs a language after its fence: `text` if it is none".to_owned()),
        "console" | "bash" | "shell" => {
            return Err(format!("write `sh` for commands and `text` for output, not `{language}`"));
        }
        _ => {}
    }
    if let Some(mark) = of_a_run.filter(|_| language != "sh" || is_quoted || is_left) {
        return Err(format!("the mark {mark:?} is for `sh` that is run"));
    }
    match language {
        "rust" if is_ignored && !is_quoted && !is_left => {
            Err("`rust,ignore` needs `<!-- from: PATH -->`, or `<!-- not run: REASON -->`".to_owned())
        }
        "rust" if !is_ignored && (is_quoted || is_left) => {
            Err("the compiler sees this block: write `rust,ignore`, or remove the mark".to_owned())
        }
        "sh" if is_printed => Err("`printed` is for `text` and `json`".to_owned()),
        _ if is_printed => Ok(Class::Printed),
        _ if is_quoted => Ok(Class::Quoted),
        _ if is_left => Ok(Class::Left),
        "rust" => Ok(Class::Compiled),
        "sh" => Ok(Class::Run),
        "toml" | "json" => Ok(Class::Parsed),
        "text" => Err(
            "`text` needs `<!-- printed -->` if the block of shell before it prints this, `<!-- from: PATH -->`, \
             or `<!-- not run: REASON -->` (`a drawing`)"
                .to_owned(),
        ),
        _ => Err(format!(
            "`{language}` needs `<!-- from: PATH -->` of a file that a test checks, or `<!-- not run: REASON -->`"
        )),
    }
}
