//! Text that is safe and readable on a terminal.
//!
//! 1. What a terminal would interpret, and what it would not show, is escaped as `\u{…}`: two names that differ look
//!    different, and no text changes the order or the lines of what is around it.
//! 2. JSON is not escaped: it is for programs, which get the text as it is.

use leasehold::LockName;
use std::fmt::Write;

/// A text from another client or a server, without the characters that a terminal would interpret or hide (1).
pub(crate) fn printable(text: &str) -> String {
    escaped(text, |_| false)
}

/// A text of several lines, of which each is [`printable`].
pub(crate) fn printable_lines(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

/// Names for messages: in backquotes, separated by commas.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a LockName>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn escaped(text: &str, is_kept: fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_kept(c) || !(c.is_control() || is_invisible(c)) {
            shown.push(c);
        } else {
            write!(shown, "{}", c.escape_unicode()).expect("writing to a string cannot fail");
        }
    }
    shown
}

/// Whether a character is not shown itself, or changes how others are: those of Unicode's properties `Bidi_Control` and
/// `Default_Ignorable_Code_Point`, of the categories Cf (format), Zl and Zp (separators of lines and paragraphs), and a few
/// that look like nothing.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' // SOFT HYPHEN
        | '\u{34f}' // COMBINING GRAPHEME JOINER
        | '\u{600}'..='\u{605}' // ARABIC NUMBER SIGN to ARABIC NUMBER MARK ABOVE
        | '\u{61c}' // ARABIC LETTER MARK
        | '\u{6dd}' // ARABIC END OF AYAH
        | '\u{70f}' // SYRIAC ABBREVIATION MARK
        | '\u{890}'..='\u{891}' // ARABIC POUND MARK ABOVE, ARABIC PIASTRE MARK ABOVE
        | '\u{8e2}' // ARABIC DISPUTED END OF AYAH
        | '\u{115f}'..='\u{1160}' // HANGUL CHOSEONG FILLER, HANGUL JUNGSEONG FILLER
        | '\u{17b4}'..='\u{17b5}' // KHMER VOWEL INHERENT AQ, KHMER VOWEL INHERENT AA
        | '\u{180b}'..='\u{180f}' // MONGOLIAN FREE VARIATION SELECTORS, MONGOLIAN VOWEL SEPARATOR
        | '\u{200b}'..='\u{200f}' // ZERO WIDTH SPACE, NON-JOINER, JOINER, LEFT-TO-RIGHT MARK, RIGHT-TO-LEFT MARK
        | '\u{2028}'..='\u{2029}' // LINE SEPARATOR, PARAGRAPH SEPARATOR
        | '\u{202a}'..='\u{202e}' // LEFT-TO-RIGHT EMBEDDING to RIGHT-TO-LEFT OVERRIDE
        | '\u{2060}'..='\u{206f}' // WORD JOINER to NOMINAL DIGIT SHAPES, with the isolates U+2066 to U+2069
        | '\u{2800}' // BRAILLE PATTERN BLANK
        | '\u{3164}' // HANGUL FILLER
        | '\u{fe00}'..='\u{fe0f}' // VARIATION SELECTOR-1 to VARIATION SELECTOR-16
        | '\u{feff}' // ZERO WIDTH NO-BREAK SPACE
        | '\u{ffa0}' // HALFWIDTH HANGUL FILLER
        | '\u{fff0}'..='\u{fffb}' // reserved, INTERLINEAR ANNOTATION ANCHOR, SEPARATOR, TERMINATOR
        | '\u{110bd}' // KAITHI NUMBER SIGN
        | '\u{110cd}' // KAITHI NUMBER SIGN ABOVE
        | '\u{13430}'..='\u{1343f}' // EGYPTIAN HIEROGLYPH VERTICAL JOINER to END WALLED ENCLOSURE
        | '\u{1bca0}'..='\u{1bca3}' // SHORTHAND FORMAT LETTER OVERLAP to SHORTHAND FORMAT UP STEP
        | '\u{1d173}'..='\u{1d17a}' // MUSICAL SYMBOL BEGIN BEAM to MUSICAL SYMBOL END PHRASE
        | '\u{e0000}'..='\u{e0fff}' // tags, VARIATION SELECTOR-17 to VARIATION SELECTOR-256, reserved
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_interpret_or_hide_is_escaped() {
        let table = [
            ("web-3", "web-3"),
            ("lönger, 漢字, कि, 👍", "lönger, 漢字, कि, 👍"),
            ("a\\u{200b}b", "a\\u{200b}b"),
            ("web-3\x1b[2J", "web-3\\u{1b}[2J"),
            ("\u{9b}x\n", "\\u{9b}x\\u{a}"),
            ("pay\u{200b}roll", "pay\\u{200b}roll"),
            ("a\u{200d}b\u{200c}c", "a\\u{200d}b\\u{200c}c"),
            ("gpj\u{202e}exe", "gpj\\u{202e}exe"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("\u{200e}\u{200f}\u{61c}", "\\u{200e}\\u{200f}\\u{61c}"),
            ("one\u{2028}two\u{2029}", "one\\u{2028}two\\u{2029}"),
            ("\u{feff}job", "\\u{feff}job"),
            ("jo\u{ad}b\u{fe0f}", "jo\\u{ad}b\\u{fe0f}"),
            ("\u{e0041}\u{e0100}", "\\u{e0041}\\u{e0100}"),
            ("\u{3164}\u{2800}", "\\u{3164}\\u{2800}"),
        ];
        for (text, shown) in table {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(shown), shown, "twice is once");
        }
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(printable_lines("one\ntwo\r\u{2028}\n"), "one\ntwo\\u{d}\\u{2028}\n");
    }
}
