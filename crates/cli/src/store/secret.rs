//! A password, as it is read from a file or from the output of a command.
//!
//! 1. No code prints a [`Secret`].

use anyhow::{Result, anyhow, bail};
use std::fmt;
use std::io::Read;

/// No password is longer: a longer first line means that this is another file.
const MAX_BYTES: usize = 4096;

/// A text that is never printed (1).
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) const fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself, for the store alone.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Reads one byte at a time up to the first line feed, and no further.
pub(crate) fn first_line(mut source: impl Read) -> Result<Secret> {
    let mut line = Vec::new();
    let mut byte = [0];
    while read_one(&mut source, &mut byte)? {
        let [byte] = byte;
        if byte == b'\n' {
            break;
        }
        if line.len() == MAX_BYTES {
            bail!("its first line is longer than {MAX_BYTES} bytes, so it is no password");
        }
        line.push(byte);
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    if line.is_empty() {
        bail!("its first line is empty");
    }
    // The error of `from_utf8` would contain the bytes.
    String::from_utf8(line).map(Secret).map_err(|_| anyhow!("its first line is not UTF-8 text"))
}

/// Reads the next byte; false at the end.
fn read_one(source: &mut impl Read, byte: &mut [u8; 1]) -> std::io::Result<bool> {
    loop {
        match source.read(byte) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read.map(|bytes| bytes == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_read_and_not_a_byte_more() {
        let mut source = &b"hunter2\r\nfor the command"[..];
        let secret = first_line(&mut source).expect("there is a line");
        assert_eq!(secret.reveal(), "hunter2");
        assert_eq!(source, b"for the command");
        assert_eq!(format!("{secret:?}"), "Secret(…)");
    }

    #[test]
    fn what_is_no_password_is_refused_without_being_shown() {
        for bytes in [&b""[..], b"\nhunter2", b"hunter2\xff\n", &[b'x'; MAX_BYTES + 1]] {
            let text = format!("{:#}", first_line(bytes).expect_err("it is no password"));
            assert!(!text.contains("hunter2") && !text.contains("xx"), "{text}");
        }
    }
}
