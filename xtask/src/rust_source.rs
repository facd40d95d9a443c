//! Just enough of Rust's syntax to tell code from comments and strings.
//!
//! Does not own any grammar: raw strings, nested comments, character literals and lifetimes are told apart, no more.

/// What a stretch of a source file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Code,
    Comment,
    /// The contents of a string, without its quotes.
    Text,
}

/// The class of each byte of a Rust source.
pub(crate) fn classify(source: &str) -> Vec<Class> {
    let bytes = source.as_bytes();
    let mut classes = vec![Class::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = if rest.starts_with(b"//") {
            let end = at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            fill(&mut classes, at, end, Class::Comment);
            end
        } else if rest.starts_with(b"/*") {
            let end = at + block_comment(rest);
            fill(&mut classes, at, end, Class::Comment);
            end
        } else if let Some((open, close)) = raw_string(bytes, at) {
            fill(&mut classes, at + open, at + close, Class::Text);
            at + close + open - 1
        } else if rest[0] == b'"' {
            let close = string(rest);
            fill(&mut classes, at + 1, at + close, Class::Text);
            at + close + 1
        } else if rest[0] == b'\'' {
            let length = char_literal(rest);
            if length > 1 {
                fill(&mut classes, at + 1, at + length - 1, Class::Text);
            }
            at + length
        } else {
            at + 1
        };
        at = end.max(at + 1);
    }
    classes
}

/// A source in which everything but its code is blank. Lines stay where they are.
pub(crate) fn code_only(source: &str) -> String {
    keep(source, &classify(source), |class| class == Class::Code)
}

/// A source in which everything is blank that is of another class. Lines stay where they are.
pub(crate) fn keep(source: &str, classes: &[Class], is_kept: impl Fn(Class) -> bool) -> String {
    source
        .char_indices()
        .map(|(at, char)| if char == '\n' || is_kept(classes[at]) { char } else { ' ' })
        .collect()
}

fn fill(classes: &mut [Class], from: usize, to: usize, class: Class) {
    let to = to.min(classes.len());
    if let Some(stretch) = classes.get_mut(from..to) {
        stretch.fill(class);
    }
}

fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

/// Where the contents of a raw string begin and end, counted from its first byte.
fn raw_string(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let before = at.checked_sub(1).map(|at| bytes[at]);
    if before.is_some_and(|byte| byte.is_ascii_alphanumeric() && byte != b'b' && byte != b'c' || byte == b'_')
    {
        return None;
    }
    let rest = bytes.get(at..)?.strip_prefix(b"r")?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let open = 2 + hashes;
    let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    let contents = &bytes[at + open..];
    let length = contents.windows(end.len()).position(|it| it == end).unwrap_or(contents.len());
    Some((open, open + length))
}

/// Where the closing quote of a string is, counted from its opening one.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at
}

/// How long a character literal is; 1 for the quote of a lifetime.
fn char_literal(bytes: &[u8]) -> usize {
    if bytes.get(1) == Some(&b'\\') {
        return 3 + bytes.iter().skip(3).position(|byte| *byte == b'\'').unwrap_or(0) + 1;
    }
    let text = String::from_utf8_lossy(&bytes[1..bytes.len().min(6)]).into_owned();
    match text.chars().next() {
        Some(char) if text[char.len_utf8()..].starts_with('\'') => 2 + char.len_utf8(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        let source = "let a = \"he // x\"; // he\nlet c = '\"'; /* a /* b */ c */ fn f<'a>() {}\nr#\"he \" he\"#;b'\\'' z";
        let code = code_only(source);
        assert!(!code.contains("he") && !code.contains("b */"), "{code}");
        assert!(code.contains("fn f<'a>() {}") && code.ends_with('z'), "{code}");
        assert_eq!(code.lines().count(), source.lines().count());
        let comments = keep(source, &classify(source), |class| class == Class::Comment);
        assert_eq!(
            comments.split_whitespace().collect::<Vec<_>>(),
            ["//", "he", "/*", "a", "/*", "b", "*/", "c", "*/"]
        );
    }
}
