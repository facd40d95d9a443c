//! Strips and joins Lua fragments at compile time, so that a connection sends no comments.
//!
//! Stripping removes comments, blank lines, indentation, and spaces that only readers need, and nothing else. Long
//! brackets, and strings over several lines, fail the build.

/// A fragment without comments.
pub(super) struct Stripped<const N: usize> {
    bytes: [u8; N],
    /// How many of the bytes are in use.
    len: usize,
}

impl<const N: usize> Stripped<N> {
    pub(super) const fn text(&self) -> &str {
        text_of(self.bytes.split_at(self.len).0)
    }
}

/// Whether a byte outside of a string ends the token before it, and begins none that a space could split or join.
const fn is_separator(byte: u8) -> bool {
    matches!(byte, b'\n' | b',' | b'{' | b'}' | b'=' | b'~' | b'<' | b'>')
}

/// Strips a fragment.
pub(super) const fn strip<const N: usize>(source: &str) -> Stripped<N> {
    let source = source.as_bytes();
    let (mut bytes, mut len, mut at) = ([0; N], 0, 0);
    // The quote that ends the present string, or 0.
    let mut quote = 0;
    while at < source.len() {
        let byte = source[at];
        let next = if at + 1 < source.len() { source[at + 1] } else { b'\n' };
        if quote != 0 {
            assert!(byte != b'\n', "a string ends on its line");
            bytes[len] = byte;
            len += 1;
            if byte == b'\\' {
                assert!(next != b'\n', "a string ends on its line");
                bytes[len] = next;
                len += 1;
                at += 1;
            } else if byte == quote {
                quote = 0;
            }
        } else if byte == b'-' && next == b'-' {
            assert!(at + 2 == source.len() || source[at + 2] != b'[', "a comment ends on its line");
            while at + 1 < source.len() && source[at + 1] != b'\n' {
                at += 1;
            }
        } else if byte == b'\n' {
            while len > 0 && bytes[len - 1] == b' ' {
                len -= 1;
            }
            if len > 0 && bytes[len - 1] != b'\n' {
                bytes[len] = b'\n';
                len += 1;
            }
        } else if byte == b' ' && (len == 0 || is_separator(bytes[len - 1]) || is_separator(next)) {
            // Nothing would run together.
        } else {
            assert!(byte != b'\t' && byte != b'\r', "a fragment has spaces and newlines only");
            assert!(byte != b'[' || (next != b'[' && next != b'='), "a fragment has no long brackets");
            if byte == b'\'' || byte == b'"' {
                quote = byte;
            }
            bytes[len] = byte;
            len += 1;
        }
        at += 1;
    }
    assert!(len > 0 && bytes[len - 1] == b'\n', "a fragment ends with a newline");
    Stripped { bytes, len }
}

pub(super) const fn length(texts: &[&str]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < texts.len() {
        sum += texts[at].len();
        at += 1;
    }
    sum
}

pub(super) const fn join<const N: usize>(texts: &[&str]) -> [u8; N] {
    let (mut bytes, mut start, mut at) = ([0; N], 0, 0);
    while at < texts.len() {
        let (_, rest) = bytes.split_at_mut(start);
        let (target, _) = rest.split_at_mut(texts[at].len());
        target.copy_from_slice(texts[at].as_bytes());
        start += texts[at].len();
        at += 1;
    }
    bytes
}

pub(super) const fn text_of(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => panic!("whole fragments are UTF-8"),
    }
}
