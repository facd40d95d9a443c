//! Blocks that repeat lines of a file.
//!
//! 1. The lines of a block are lines of the file that follow one another, aside from the indentation that they share, and
//!    from empty lines at the ends.
//!    The quote that ends a string of a program does not count.
//! 2. A line that consists of `…`, or of a comment with nothing else, stands for any lines between.

use std::fs;
use std::path::Path;

use crate::snippet::{Mark, Snippet};

/// Whether a block with the mark `from` repeats lines of that file.
pub fn check_quote(root: &Path, snippet: &Snippet) -> Result<(), String> {
    for mark in &snippet.marks {
        let Mark::From { path, part } = mark else { continue };
        let file = fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
        let lines: Vec<&str> = match part {
            Some(part) => part_of(&file, part).ok_or_else(|| format!("{path} has no part `{part}`"))?,
            None => file.lines().filter(|line| anchor(line).is_none()).collect(),
        };
        if let Some(missing) = first_missing(&lines, &snippet.code) {
            return Err(format!("{path} does not contain these lines one after the other, from\n{missing}"));
        }
    }
    Ok(())
}

/// The name in a line that begins or ends a part, as mdBook marks them.
fn anchor(line: &str) -> Option<&str> {
    let (_, name) = line.split_once("ANCHOR: ").or_else(|| line.split_once("ANCHOR_END: "))?;
    name.split_whitespace().next()
}

fn part_of<'a>(file: &'a str, part: &str) -> Option<Vec<&'a str>> {
    let is_mark = |line: &str, mark: &str| line.contains(mark) && anchor(line) == Some(part);
    let mut lines = file.lines();
    lines.find(|line| is_mark(line, "ANCHOR: "))?;
    let inside: Vec<&str> = lines.by_ref().take_while(|line| !is_mark(line, "ANCHOR_END: ")).collect();
    Some(inside.into_iter().filter(|line| anchor(line).is_none()).collect())
}

/// The first stretch of a block that a file does not contain.
fn first_missing(file: &[&str], block: &str) -> Option<String> {
    let lines: Vec<&str> = block.lines().collect();
    let mut from = 0;
    for stretch in lines.split(|line| is_gap(line)).map(trimmed).filter(|stretch| !stretch.is_empty()) {
        let wanted = dedented(stretch);
        let found = (from..file.len()).find(|at| {
            file.get(*at..at + stretch.len()).is_some_and(|part| are_equal(&dedented(part), &wanted))
        });
        match found {
            Some(at) => from = at + stretch.len(),
            None => return Some(stretch.join("\n")),
        }
    }
    None
}

fn are_equal(file: &[&str], wanted: &[&str]) -> bool {
    let ends = ["\";", "\",", "\""];
    let is_equal = |(line, wanted): (&&str, &&str)| {
        line == wanted || ends.iter().any(|end| line.strip_suffix(end) == Some(*wanted))
    };
    file.iter().zip(wanted).all(is_equal)
}

fn is_gap(line: &str) -> bool {
    line.trim_matches(|char: char| char.is_whitespace() || "/#-;".contains(char)) == "…"
}

fn trimmed<'a, 'b>(mut lines: &'b [&'a str]) -> &'b [&'a str] {
    while let Some((_, rest)) = lines.split_first().filter(|(first, _)| first.trim().is_empty()) {
        lines = rest;
    }
    while let Some((_, rest)) = lines.split_last().filter(|(last, _)| last.trim().is_empty()) {
        lines = rest;
    }
    lines
}

/// Lines without the indentation that all share, and without spaces at their ends.
fn dedented<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let indentation = |line: &&&str| line.len() - line.trim_start().len();
    let shared =
        lines.iter().filter(|line| !line.trim().is_empty()).map(|line| indentation(&line)).min().unwrap_or(0);
    lines.iter().map(|line| line.get(shared..).unwrap_or_default().trim_end()).collect()
}
