//! Splits a byte stream into RESP frames.
//!
//! Handles RESP2 and RESP3 commands and replies, however the bytes are chunked. It does not build values
//! ([`Value`](crate::Value) does), and never changes a byte, so a frame can be forwarded.
//!
//! 1. A frame is complete when no element is missing. A scalar is one element; an aggregate is one, and adds its
//!    elements to the missing ones; an attribute only adds its pairs, since its value follows.
//! 2. Each byte is scanned once: `scanned` never decreases, so a frame that arrives byte by byte costs as much as a
//!    whole one.

/// An error in the byte stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The first byte of a frame is not a type of the protocol.
    #[error("byte {0:#04x} is not a RESP type")]
    UnknownType(u8),
    /// A length or count is not a number.
    #[error("`{0}` is not a length")]
    Length(String),
    /// A frame is longer than the splitter accepts.
    #[error("a frame is longer than {0} bytes")]
    TooLong(usize),
}

/// Splits a stream of bytes into whole frames.
///
/// ```
/// use leasehold_testkit::FrameSplitter;
///
/// let mut replies = FrameSplitter::replies();
/// replies.push(b"+OK\r\n$5\r\nhe");
/// assert_eq!(replies.next_frame(), Ok(Some(b"+OK\r\n".to_vec())));
/// assert_eq!(replies.next_frame(), Ok(None));
/// replies.push(b"llo\r\n");
/// assert_eq!(replies.next_frame(), Ok(Some(b"$5\r\nhello\r\n".to_vec())));
/// ```
#[derive(Debug)]
pub struct FrameSplitter {
    /// Pushed bytes that are not part of a returned frame.
    buffer: Vec<u8>,
    /// How much of `buffer` certainly belongs to its first frame (2).
    scanned: usize,
    /// How far the search for the end of the current line has come (2).
    searched: usize,
    /// How many elements of the first frame are missing (1).
    missing: u64,
    /// Whether plain lines are commands.
    inline: Inline,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inline {
    Allowed,
    Refused,
}

/// The longest accepted frame: far longer than any of a lock, and far too short to exhaust memory.
const MAX_FRAME: usize = 16 << 20;

impl FrameSplitter {
    /// For client output: arrays of bulk strings, or inline commands such as `PING`.
    pub fn requests() -> Self {
        Self::new(Inline::Allowed)
    }

    /// For server output: any RESP2 or RESP3 value, including push messages.
    pub fn replies() -> Self {
        Self::new(Inline::Refused)
    }

    fn new(inline: Inline) -> Self {
        Self { buffer: Vec::new(), scanned: 0, searched: 0, missing: 1, inline }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, or `None` until more bytes arrive. After an error the stream is unusable.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        while self.missing > 0 {
            if !self.scan_element()? {
                if self.buffer.len() > MAX_FRAME {
                    return Err(FrameError::TooLong(MAX_FRAME));
                }
                return Ok(None);
            }
        }
        let rest = self.buffer.split_off(self.scanned);
        let frame = std::mem::replace(&mut self.buffer, rest);
        (self.scanned, self.searched, self.missing) = (0, 0, 1);
        Ok(Some(frame))
    }

    /// Scans one scalar or the header of one aggregate; `false` if it is incomplete.
    fn scan_element(&mut self) -> Result<bool, FrameError> {
        let Some(&kind) = self.buffer.get(self.scanned) else { return Ok(false) };
        let Some(line_end) = self.line_end() else { return Ok(false) };
        let text = trimmed(&self.buffer[self.scanned + 1..line_end]);
        let (length, completed, added) = match kind {
            _ if self.scanned == 0 && self.inline == Inline::Allowed && kind != b'*' => (0, 1, 0),
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => (0, 1, 0),
            b'$' | b'!' | b'=' => (count(text)?.map_or(0, |length| length + 2), 1, 0),
            b'*' | b'~' | b'>' => (0, 1, count(text)?.unwrap_or(0)),
            b'%' => (0, 1, 2 * count(text)?.unwrap_or(0)),
            b'|' => (0, 0, 2 * count(text)?.unwrap_or(0)),
            other => return Err(FrameError::UnknownType(other)),
        };
        let length = usize::try_from(length).map_err(|_| FrameError::TooLong(MAX_FRAME))?;
        if length > MAX_FRAME || added > MAX_FRAME as u64 {
            return Err(FrameError::TooLong(MAX_FRAME));
        }
        let end = line_end + length;
        if self.buffer.len() < end {
            return Ok(false);
        }
        self.missing = self.missing - completed + added;
        (self.scanned, self.searched) = (end, end);
        Ok(true)
    }

    /// The index after the line feed of the line at `scanned`.
    fn line_end(&mut self) -> Option<usize> {
        let from = self.searched.max(self.scanned);
        if let Some(at) = self.buffer[from..].iter().position(|&byte| byte == b'\n') {
            // Stays on the line feed: an incomplete bulk string scans this line again.
            self.searched = from + at;
            return Some(from + at + 1);
        }
        self.searched = self.buffer.len();
        None
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii_end()
}

/// A length; `None` for -1, which is null in RESP2.
fn count(text: &[u8]) -> Result<Option<u64>, FrameError> {
    if text == b"-1" {
        return Ok(None);
    }
    let digits = std::str::from_utf8(text).ok().filter(|digits| digits.len() < 16);
    digits
        .and_then(|digits| digits.parse().ok())
        .map(Some)
        .ok_or_else(|| FrameError::Length(String::from_utf8_lossy(text).into_owned()))
}

/// The arguments of a request frame that [`FrameSplitter::requests`] returned.
pub fn arguments(frame: &[u8]) -> Vec<Vec<u8>> {
    if frame.first() != Some(&b'*') {
        return frame
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(<[u8]>::to_vec)
            .collect();
    }
    let mut arguments = Vec::new();
    let mut rest = after_line(frame);
    while let Some((length, body)) = bulk_head(rest) {
        let Some(argument) = body.get(..length) else { break };
        arguments.push(argument.to_vec());
        rest = body.get(length + 2..).unwrap_or_default();
    }
    arguments
}

fn bulk_head(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let line = bytes.strip_prefix(b"$")?;
    let end = line.iter().position(|&byte| byte == b'\n')?;
    let length = count(trimmed(&line[..end])).ok()??;
    Some((usize::try_from(length).ok()?, &line[end + 1..]))
}

fn after_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
    &bytes[end..]
}

/// The first element of an aggregate, if it is a string: the kind of a push message.
pub(crate) fn first_text(frame: &[u8]) -> Option<&[u8]> {
    let rest = after_line(frame);
    match rest.first()? {
        b'$' => bulk_head(rest).and_then(|(length, body)| body.get(..length)),
        b'+' => rest[1..].split(|&byte| byte == b'\r').next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of each type, and nested ones.
    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no such thing\r\n",
        b":-42\r\n",
        b"$5\r\nhello\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"$7\r\na\r\n+b\r\n\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+x\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5e3\r\n",
        b",inf\r\n",
        b"(3492890328409238509324850943850943825024385\r\n",
        b"!21\r\nSYNTAX invalid syntax\r\n",
        b"=15\r\ntxt:Some string\r\n",
        b"%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n*0\r\n",
        b"~3\r\n+a\r\n#f\r\n_\r\n",
        b"~0\r\n",
        b"%0\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\n\r\n\r\n",
        b"|1\r\n+ttl\r\n:3600\r\n*2\r\n:1\r\n|1\r\n+x\r\n+y\r\n:2\r\n",
    ];

    fn frames(splitter: &mut FrameSplitter) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| splitter.next_frame().expect("the test's bytes are well formed")).collect()
    }

    #[test]
    fn replies_are_split_the_same_however_the_bytes_are_chunked() {
        let stream = REPLIES.concat();
        for at in 0..=stream.len() {
            let mut splitter = FrameSplitter::replies();
            splitter.push(&stream[..at]);
            let mut found = frames(&mut splitter);
            splitter.push(&stream[at..]);
            found.extend(frames(&mut splitter));
            assert_eq!(found, REPLIES, "split at byte {at}");
        }
    }

    #[test]
    fn replies_that_arrive_byte_by_byte_end_at_their_last_byte() {
        let mut splitter = FrameSplitter::replies();
        for reply in REPLIES {
            for (at, byte) in reply.iter().enumerate() {
                splitter.push(&[*byte]);
                let whole = at + 1 == reply.len();
                assert_eq!(
                    splitter.next_frame(),
                    Ok(whole.then(|| reply.to_vec())),
                    "byte {at} of {reply:?}"
                );
            }
        }
    }

    #[test]
    fn requests_are_split_however_chunked_and_give_their_arguments() {
        let stream = b"*2\r\n$3\r\nGET\r\n$5\r\na\r\n*1\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n  \r\necho  hi\n";
        let wanted: &[&[&[u8]]] =
            &[&[b"GET", b"a\r\n*1"], &[b"PING"], &[b"SET", b"k", b""], &[], &[b"echo", b"hi"]];
        for at in 0..=stream.len() {
            let mut splitter = FrameSplitter::requests();
            splitter.push(&stream[..at]);
            let mut found = frames(&mut splitter);
            splitter.push(&stream[at..]);
            found.extend(frames(&mut splitter));
            let found: Vec<_> = found.iter().map(|frame| arguments(frame)).collect();
            assert_eq!(found, wanted, "split at byte {at}");
        }
    }

    #[test]
    fn the_kind_of_a_push_is_its_first_text() {
        assert_eq!(first_text(b">2\r\n$9\r\nsubscribe\r\n:1\r\n"), Some(&b"subscribe"[..]));
        assert_eq!(first_text(b">1\r\n+invalidate\r\n"), Some(&b"invalidate"[..]));
        assert_eq!(first_text(b"*1\r\n:1\r\n"), None);
        assert_eq!(first_text(b"*0\r\n"), None);
    }

    #[test]
    fn an_invalid_frame_is_an_error() {
        let check = |bytes: &[u8], wanted: FrameError| {
            let mut splitter = FrameSplitter::replies();
            splitter.push(bytes);
            assert_eq!(splitter.next_frame(), Err(wanted));
        };
        check(b"hello\r\n", FrameError::UnknownType(b'h'));
        check(b"$x\r\n", FrameError::Length("x".into()));
        check(b"$-2\r\n", FrameError::Length("-2".into()));
        check(b"$?\r\n", FrameError::Length("?".into()));
        check(b"$99999999999\r\n", FrameError::TooLong(MAX_FRAME));
        check(b"*99999999999\r\n", FrameError::TooLong(MAX_FRAME));
    }
}
