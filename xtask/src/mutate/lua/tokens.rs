//! The tokens of a Lua fragment, with their places.
//!
//! Knows what the fragments use: no long brackets, no strings over several lines (`strip.rs` refuses both). A parser of the
//! whole language (`full_moon`) was turned down: the operators need tokens and their nesting, and no tree.

use std::ops::Range;

use anyhow::{Result, bail};

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A name that is no keyword.
    Name,
    Keyword,
    Number,
    /// With its quotes.
    Text,
    Symbol,
}

/// A token, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    /// Its first byte.
    pub(crate) start: usize,
    /// From 1 on.
    pub(crate) line: usize,
    /// How many brackets are open before it, of any kind.
    pub(crate) depth: usize,
}

impl Token<'_> {
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.text.len()
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && self.kind != TokenKind::Text
    }

    /// Whether an expression can end with it.
    pub(crate) fn ends_expression(&self) -> bool {
        match self.kind {
            TokenKind::Name | TokenKind::Number | TokenKind::Text => true,
            TokenKind::Keyword => matches!(self.text, "nil" | "true" | "false" | "end"),
            TokenKind::Symbol => matches!(self.text, ")" | "]" | "}" | "..."),
        }
    }
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// The longest first.
const SYMBOLS: [&str; 7] = ["...", "..", "==", "~=", "<=", ">=", "::"];

/// Splits a fragment into its tokens, without comments.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token<'_>>> {
    let (mut tokens, mut at, mut line, mut depth) = (Vec::new(), 0, 1, 0_usize);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        if first == '\n' {
            line += 1;
        }
        if first.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        let (kind, length) = if first.is_ascii_alphabetic() || first == '_' {
            let length = length_while(rest, |c| c.is_ascii_alphanumeric() || c == '_');
            let is_keyword = KEYWORDS.contains(&&rest[..length]);
            (if is_keyword { TokenKind::Keyword } else { TokenKind::Name }, length)
        } else if first.is_ascii_digit() {
            (TokenKind::Number, length_while(rest, |c| c.is_ascii_alphanumeric() || c == '.'))
        } else if first == '\'' || first == '"' {
            (TokenKind::Text, text_length(rest, first, line)?)
        } else {
            let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
            (TokenKind::Symbol, symbol.map_or(first.len_utf8(), |symbol| symbol.len()))
        };
        let text = &rest[..length];
        if matches!(text, ")" | "]" | "}") {
            let Some(outer) = depth.checked_sub(1) else { bail!("line {line}: `{text}` closes nothing") };
            depth = outer;
        }
        tokens.push(Token { kind, text, start: at, line, depth });
        if matches!(text, "(" | "[" | "{") {
            depth += 1;
        }
        at += length;
    }
    if depth > 0 {
        bail!("{depth} brackets are not closed");
    }
    Ok(tokens)
}

fn length_while(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// The length of a string with its quotes.
fn text_length(text: &str, quote: char, line: usize) -> Result<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' => break,
            c if c == quote => return Ok(at + 1),
            _ => {}
        }
    }
    bail!("line {line}: a string does not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_told_apart() {
        let source = "local a = '--' .. \"it's\" -- a comment\nif a ~= b.c[1] then f('\\'', 0x1f) end\n";
        let found = tokens(source).expect("well-formed");
        let texts: Vec<&str> = found.iter().map(|token| token.text).collect();
        let expected = [
            "local", "a", "=", "'--'", "..", "\"it's\"", "if", "a", "~=", "b", ".", "c", "[", "1", "]",
            "then", "f", "(", "'\\''", ",", "0x1f", ")", "end",
        ];
        assert_eq!(texts, expected);
        assert!(found.iter().all(|token| &source[token.range()] == token.text));
        assert_eq!((found[6].line, found[13].depth, found[14].depth), (2, 1, 0));
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for source in ["f(", "a]", "x = 'a\n"] {
            assert!(tokens(source).is_err(), "{source}");
        }
    }
}
