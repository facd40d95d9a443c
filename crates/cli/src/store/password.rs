//! The password for the store, from the environment, a file or standard input.
//!
//! 1. A password is rejected as an argument: the process list shows it to every user of the machine.
//! 2. No code prints a [`Secret`].

use crate::environment::{PASSWORD, variable};
use crate::output::failure::Failure;
use anyhow::{Context, Result, anyhow, bail};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// No password is longer: a longer first line means that this is another file.
const MAX_BYTES: usize = 4096;

/// A text that is never printed (2).
pub(crate) struct Secret(String);

impl Secret {
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

/// The password, if one was given apart from the URL. A file takes precedence over the environment, which is read only
/// if `read_environment` is set.
pub(crate) fn read(file: Option<&Path>, read_environment: bool) -> Result<Option<Secret>, Failure> {
    let Some(file) = file else {
        return Ok(if read_environment { variable(PASSWORD)?.map(Secret) } else { None });
    };
    let secret = if file == Path::new("-") {
        first_line(stdin()).context("failed to read the password from standard input")
    } else {
        File::open(file)
            .map_err(Into::into)
            .and_then(first_line)
            .with_context(|| format!("failed to read the password from `{}`", file.display()))
    };
    secret.map(Some).map_err(Failure::usage)
}

/// Standard input without a buffer: the bytes after the password belong to the command.
fn stdin() -> impl Read {
    struct Unbuffered;
    impl Read for Unbuffered {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            rustix::io::read(rustix::stdio::stdin(), buffer).map_err(Into::into)
        }
    }
    Unbuffered
}

/// Reads one byte at a time up to the first line feed, and no further.
fn first_line(mut source: impl Read) -> Result<Secret> {
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
