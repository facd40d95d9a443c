//! Text in a fixed number of columns.

use crate::output::table::shorten;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text in exactly so many columns, the padding behind it.
pub(super) fn left(text: &str, width: usize) -> String {
    let text = shorten(text, width);
    let padding = width.saturating_sub(text.width());
    text + &" ".repeat(padding)
}

/// The text in exactly so many columns, the padding before it.
pub(super) fn right(text: &str, width: usize) -> String {
    let text = shorten(text, width);
    " ".repeat(width.saturating_sub(text.width())) + &text
}

/// The lines of a text, those that are too long broken at blanks where there are some, and continued with an indent.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = if width > 30 { line.len() - line.trim_start().len() + 4 } else { 1 };
        let mut current = String::new();
        for word in line.split_inclusive(' ') {
            let word_width = word.trim_end().width();
            if !current.trim().is_empty() && current.width() + word_width > width {
                lines.push(current.trim_end().to_owned());
                current = " ".repeat(indent.min(width / 2));
            }
            for c in word.chars() {
                if current.width() + c.width().unwrap_or(0) > width && c != ' ' {
                    lines.push(std::mem::replace(&mut current, " ".repeat(indent.min(width / 2))));
                }
                current.push(c);
            }
        }
        lines.push(current.trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_exactly_the_columns() {
        assert_eq!((left("ab", 4), right("ab", 4)), ("ab  ".to_owned(), "  ab".to_owned()));
        assert_eq!((left("漢字漢字", 6), right("漢字漢", 4)), ("漢字… ".to_owned(), " 漢…".to_owned()));
        assert_eq!((left("ab", 0), right("ab", 0)), (String::new(), String::new()));
    }

    #[test]
    fn lines_are_broken_at_blanks_or_else_anywhere() {
        let lines = wrapped("one two three four five six seven eight\n\nlast", 32);
        assert_eq!(lines, ["one two three four five six", "    seven eight", "", "last"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", " efg", " hij"]);
        assert_eq!(wrapped("漢字漢字", 5), ["漢字", " 漢字"]);
        assert!(wrapped("a\u{301}bc d", 1).iter().all(|line| line.width() <= 1));
    }
}
