//! The stream of a connection, with a limit for each reply.
//!
//! The client library collects a reply until all of it has arrived, however long that is, and takes each confirmation of a
//! subscription for the reply to the oldest request. So what arrives is measured before the library receives it. Nothing is
//! changed, and no value is built.
//!
//! 1. A reply weighs its bytes, and a fixed number more for each of its elements, as it does in memory. The announced length
//!    of a text and the announced number of elements count before they arrive. A connection whose server sends a heavier
//!    reply than [`MAX_WEIGHT`], or a deeper one than [`MAX_DEPTH`], fails.
//! 2. A connection fails when a subscription is confirmed that was not requested: from then on, each reply would go to the
//!    request before the one that it answers.
//! 3. Lines and lengths are read as the library reads them. What it would refuse is refused here, or by the library.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The weight of a reply at most. The longest ones list what a store has: 100 000 sessions weigh 9 MB.
const MAX_WEIGHT: usize = 64 << 20;
/// The weight of an element besides its bytes: about what a value takes in memory.
const ELEMENT_WEIGHT: usize = 64;
/// How deep a reply may nest. The scripts' replies have four levels at most, those of a cluster's nodes five.
const MAX_DEPTH: usize = 32;
/// The length of a line at most. Lines carry states, errors and numbers; longer texts have a length in front.
const MAX_LINE: usize = 64 << 10;
/// How much of a line or of a word is kept: more than the longest number, and than the longest name of a push.
const KEPT: usize = 24;

/// How many confirmations of changes of subscriptions a connection waits for.
#[derive(Debug, Default)]
pub(crate) struct Confirmations {
    subscribed: AtomicUsize,
    unsubscribed: AtomicUsize,
}

/// A change of subscriptions that the client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Subscribe,
    Unsubscribe,
}

impl Confirmations {
    const fn of(&self, change: Change) -> &AtomicUsize {
        match change {
            Change::Subscribe => &self.subscribed,
            Change::Unsubscribe => &self.unsubscribed,
        }
    }

    /// A request is sent that so many messages will confirm.
    pub(crate) fn expect(&self, change: Change, count: usize) {
        self.of(change).fetch_add(count, Ordering::Relaxed);
    }

    /// As many fewer will be sent: the request was refused.
    pub(crate) fn refused(&self, change: Change, count: usize) {
        let less = |left: usize| Some(left.saturating_sub(count));
        // Cannot fail: the function never returns `None`.
        let _ = self.of(change).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A message of this name confirms a change. Returns whether it was expected.
    fn confirmed(&self, name: &[u8]) -> bool {
        let change = match name {
            b"subscribe" => Change::Subscribe,
            b"unsubscribe" => Change::Unsubscribe,
            // These are not requested where this is counted.
            _ => return false,
        };
        let less = |left: usize| left.checked_sub(1);
        self.of(change).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// A stream that measures what it reads.
pub(crate) struct BoundedStream<S> {
    stream: S,
    replies: Replies,
}

impl<S> BoundedStream<S> {
    /// `confirmations` is `None` if the server may end subscriptions without a request, and for a connection of RESP2.
    pub(crate) const fn new(stream: S, confirmations: Option<Arc<Confirmations>>) -> Self {
        Self { stream, replies: Replies::new(confirmations) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let measured = self.replies.measure(&buf.filled()[before..]);
        Poll::Ready(measured.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Why a connection is not read any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("the server sends a reply that is too long")]
    TooLong,
    #[error("the server sends a reply that nests too deep")]
    TooDeep,
    #[error("the server does not speak the protocol of Redis")]
    Protocol,
    #[error("the server confirms a subscription that was not requested")]
    Unrequested,
}

/// Whether a stream failed because of what the server sends.
pub(crate) fn is_refused(error: &io::Error) -> bool {
    error.get_ref().and_then(|cause| cause.downcast_ref::<Refused>()).is_some()
}

/// The replies on a connection, as far as they have arrived.
struct Replies {
    confirmations: Option<Arc<Confirmations>>,
    /// The weight of the current reply so far (1).
    weight: usize,
    /// How many elements are missing on each level of it.
    open: Vec<u64>,
    /// Set while the current reply is a message of which the first word has not arrived.
    is_unnamed_push: bool,
    part: Part,
}

/// What the next byte belongs to.
enum Part {
    /// The first line of an element.
    Line { length: usize, kept: Kept },
    /// A text with a length: how much is left of it, with the end of its line.
    Text { left: usize, kept: Kept },
}

/// The beginning of a line or of a word.
#[derive(Clone, Copy)]
struct Kept {
    bytes: [u8; KEPT],
    length: usize,
    /// Set if the last byte was a carriage return.
    is_after_return: bool,
}

impl Kept {
    const NONE: Self = Self { bytes: [0; KEPT], length: 0, is_after_return: false };

    fn add(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(KEPT - self.length);
        self.bytes[self.length..self.length + length].copy_from_slice(&bytes[..length]);
        self.length += length;
        if let Some(last) = bytes.last() {
            self.is_after_return = *last == b'\r';
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

const LINE: Part = Part::Line { length: 0, kept: Kept::NONE };

impl Replies {
    const fn new(confirmations: Option<Arc<Confirmations>>) -> Self {
        Self { confirmations, weight: 0, open: Vec::new(), is_unnamed_push: false, part: LINE }
    }

    /// Measures the bytes that have arrived.
    fn measure(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        while !bytes.is_empty() {
            let used = match &mut self.part {
                Part::Text { left, kept } => {
                    let used = bytes.len().min(*left);
                    if self.is_unnamed_push {
                        kept.add(&bytes[..used]);
                    }
                    *left -= used;
                    if *left == 0 {
                        let word = *kept;
                        self.finish_value(trimmed(word.as_bytes()))?;
                    }
                    used
                }
                Part::Line { length, kept } => {
                    let (used, is_complete) = match bytes.iter().position(|byte| *byte == b'\n') {
                        // The library ends a line at both characters (3).
                        Some(0) => (1, kept.is_after_return),
                        Some(at) => (at + 1, bytes[at - 1] == b'\r'),
                        None => (bytes.len(), false),
                    };
                    kept.add(&bytes[..used]);
                    *length += used;
                    if *length > MAX_LINE {
                        return Err(Refused::TooLong);
                    }
                    if is_complete {
                        let (line, length) = (*kept, *length);
                        self.finish_line(&line, length)?;
                    }
                    used
                }
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    fn finish_line(&mut self, line: &Kept, length: usize) -> Result<(), Refused> {
        self.add_weight(length + ELEMENT_WEIGHT)?;
        let (kind, rest) = line.as_bytes().split_first().ok_or(Refused::Protocol)?;
        let number = || number(trimmed(rest)).filter(|_| length <= KEPT).ok_or(Refused::Protocol);
        match kind {
            b'$' if number()? < 0 => self.finish_value(b""),
            b'$' | b'!' | b'=' => {
                let text = usize::try_from(number()?).map_err(|_| Refused::Protocol)?.saturating_add(2);
                self.add_weight(text)?;
                self.part = Part::Text { left: text, kept: Kept::NONE };
                Ok(())
            }
            b'*' | b'~' => self.begin(u64::try_from(number()?).unwrap_or(0)),
            b'>' => {
                self.is_unnamed_push |= self.open.is_empty();
                self.begin(u64::try_from(number()?).unwrap_or(0))
            }
            b'%' | b'|' => {
                let pairs = u64::try_from(number()?).map_err(|_| Refused::Protocol)?;
                let value = u64::from(*kind == b'|');
                self.begin(pairs.saturating_mul(2).saturating_add(value))
            }
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => self.finish_value(trimmed(rest)),
            _ => Err(Refused::Protocol),
        }
    }

    /// An element begins that consists of so many others.
    fn begin(&mut self, elements: u64) -> Result<(), Refused> {
        if elements == 0 {
            return self.finish_value(b"");
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(Refused::TooDeep);
        }
        let announced = usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(ELEMENT_WEIGHT);
        if self.weight.saturating_add(announced) > MAX_WEIGHT {
            return Err(Refused::TooLong);
        }
        self.open.push(elements);
        self.part = LINE;
        Ok(())
    }

    /// An element is complete, which is this word if it is a text.
    fn finish_value(&mut self, word: &[u8]) -> Result<(), Refused> {
        if std::mem::take(&mut self.is_unnamed_push) && is_confirmation(word) {
            let is_expected = self.confirmations.as_ref().is_none_or(|expected| expected.confirmed(word));
            if !is_expected {
                return Err(Refused::Unrequested);
            }
        }
        self.part = LINE;
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return Ok(());
            }
            self.open.pop();
        }
        self.weight = 0;
        Ok(())
    }

    fn add_weight(&mut self, weight: usize) -> Result<(), Refused> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > MAX_WEIGHT { Err(Refused::TooLong) } else { Ok(()) }
    }
}

/// Without the end of the line.
fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii_end()
}

/// A number as the library reads one.
fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Whether the library takes messages of this name for replies.
fn is_confirmation(name: &[u8]) -> bool {
    matches!(
        name,
        b"subscribe" | b"unsubscribe" | b"ssubscribe" | b"sunsubscribe" | b"psubscribe" | b"punsubscribe"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures bytes that arrive in pieces of every size; the result does not depend on it.
    fn measured(bytes: &[u8], expected: Option<usize>) -> Result<(), Refused> {
        let of_size = |size: usize| {
            let confirmations = expected.map(|count| {
                let confirmations = Confirmations::default();
                confirmations.expect(Change::Subscribe, count);
                confirmations.expect(Change::Unsubscribe, count);
                Arc::new(confirmations)
            });
            let mut replies = Replies::new(confirmations);
            bytes.chunks(size).try_for_each(|chunk| replies.measure(chunk)).map(|()| replies.open.len())
        };
        let whole = of_size(bytes.len().max(1));
        for size in 1..bytes.len().min(40) {
            assert_eq!(of_size(size), whole, "in pieces of {size}");
        }
        whole.map(drop)
    }

    #[test]
    fn replies_of_every_type_pass() {
        let replies = [
            "+OK\r\n-ERR x\r\n:-1\r\n_\r\n#t\r\n,1.5\r\n(123\r\n+a\nb\r\n",
            "$-1\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n*-1\r\n*0\r\n=7\r\ntxt:abc\r\n!5\r\nERR x\r\n",
            "*2\r\n*1\r\n$1\r\na\r\n~2\r\n:1\r\n%1\r\n+a\r\n_\r\n|1\r\n+a\r\n:1\r\n:2\r\n",
            ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n>0\r\n",
        ];
        assert_eq!(measured(replies.concat().as_bytes(), Some(0)), Ok(()));
    }

    #[test]
    fn what_is_announced_counts_at_once() {
        for (reply, error) in [
            ("$1099511627776\r\n", Refused::TooLong),
            ("$9223372036854775807\r\n", Refused::TooLong),
            ("*2147483647\r\n", Refused::TooLong),
            ("%9223372036854775807\r\n", Refused::TooLong),
            ("|4611686018427387904\r\n", Refused::TooLong),
            ("*1\r\n*1048576\r\n", Refused::TooLong),
            ("!-1\r\n", Refused::Protocol),
            ("=-1\r\n", Refused::Protocol),
            ("%-1\r\n", Refused::Protocol),
            ("$x\r\n", Refused::Protocol),
            ("$000000000000000000000000000000000000001\r\n", Refused::Protocol),
            ("\r\n", Refused::Protocol),
            ("HTTP/1.1 400 Bad Request\r\n", Refused::Protocol),
        ] {
            assert_eq!(measured(reply.as_bytes(), Some(0)), Err(error), "{reply:?}");
        }
    }

    #[test]
    fn a_reply_without_an_end_is_refused() {
        let line = [b"+".to_vec(), vec![b'x'; MAX_LINE]].concat();
        assert_eq!(measured(&line, None), Err(Refused::TooLong));
        let mut replies = Replies::new(None);
        // Arrays of a few texts each, in an array that may have as many.
        let element = [b"*1\r\n$65536\r\n".to_vec(), vec![b'x'; 65_536], b"\r\n".to_vec()].concat();
        assert_eq!(replies.measure(b"*5000\r\n"), Ok(()));
        let taken = (0..5000).take_while(|_| replies.measure(&element).is_ok()).count();
        assert!((1_000..=1_024).contains(&taken), "{taken}");
    }

    #[test]
    fn the_weight_is_that_of_one_reply() {
        let mut replies = Replies::new(None);
        let text = [b"$1048576\r\n".to_vec(), vec![b'x'; 1 << 20], b"\r\n".to_vec()].concat();
        for _ in 0..100 {
            assert_eq!(replies.measure(&text), Ok(()));
        }
    }

    #[test]
    fn a_reply_may_not_nest_without_a_bound() {
        assert_eq!(measured(("*1\r\n".repeat(MAX_DEPTH) + ":1\r\n").as_bytes(), None), Ok(()));
        assert_eq!(measured("*1\r\n".repeat(MAX_DEPTH + 1).as_bytes(), None), Err(Refused::TooDeep));
    }

    #[test]
    fn each_confirmation_was_requested() {
        let confirmation = |name: &str| format!(">3\r\n${}\r\n{name}\r\n$1\r\nc\r\n:1\r\n", name.len());
        let both = confirmation("subscribe") + &confirmation("unsubscribe");
        assert_eq!(measured(both.as_bytes(), Some(1)), Ok(()));
        let twice = confirmation("subscribe") + &both;
        assert_eq!(measured(twice.as_bytes(), Some(1)), Err(Refused::Unrequested));
        assert_eq!(measured(confirmation("ssubscribe").as_bytes(), Some(1)), Err(Refused::Unrequested));
        assert_eq!(measured(b">3\r\n+sunsubscribe\r\n+c\r\n:1\r\n", Some(0)), Err(Refused::Unrequested));
        assert_eq!(measured(both.as_bytes(), None), Ok(()), "the server may");
        // Part of a reply is no message of its own.
        assert_eq!(measured(format!("*2\r\n{both}").as_bytes(), Some(0)), Ok(()));
    }
}
