//! Text in a page: escaped, and in units that a person reads.

/// Text as HTML. Control characters and those that change the direction of text are replaced, so that a name changes nothing but itself.
pub(super) fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\n' | '\t' => html.push(' '),
            char if char.is_control() || is_direction(char) => html.push(char::REPLACEMENT_CHARACTER),
            char => html.push(char),
        }
    }
    html
}

fn is_direction(char: char) -> bool {
    matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escaped text in which what stands between backticks is code.
pub(super) fn prose(text: &str) -> String {
    let escaped = escaped(text);
    let mut parts = escaped.split('`').peekable();
    let mut html = parts.next().unwrap_or_default().to_owned();
    let mut is_code = true;
    while let Some(part) = parts.next() {
        match (is_code, parts.peek()) {
            (true, Some(_)) => html.extend(["<code>", part, "</code>"]),
            (true, None) => html.extend(["`", part]),
            (false, _) => html.push_str(part),
        }
        is_code = !is_code;
    }
    html
}

/// With narrow spaces between thousands.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_text() {
        assert_eq!(escaped("<script>&\"'"), "&lt;script&gt;&amp;&quot;&#39;");
        assert_eq!(escaped("a\u{202e}b\u{1b}[0m\n"), "a\u{fffd}b\u{fffd}[0m ");
        assert_eq!(prose("`<b>` had two"), "<code>&lt;b&gt;</code> had two");
        assert_eq!(prose("a ` alone"), "a ` alone");
        assert_eq!(prose("`a`b` c"), "<code>a</code>b` c");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(number(7), "7");
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
