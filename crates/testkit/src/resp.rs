//! A small synchronous client that speaks RESP2.
//!
//! Owns raw commands for tests. It shares no code with the library's client, pools no connections and resends
//! nothing.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::frame::FrameSplitter;

/// A reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// A status such as `OK`.
    Status(String),
    /// An error reply, with its code: `WRONGTYPE Operation against …`.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// Nil: no value.
    Nil,
    /// Several values.
    Array(Vec<Value>),
}

impl Value {
    /// Whether it is nil.
    pub fn is_nil(&self) -> bool {
        *self == Self::Nil
    }

    /// The integer, also where the server wrote it as a string.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => self.text()?.parse().ok(),
        }
    }

    /// The text of a status, an error or a string that is UTF-8.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Status(text) | Self::Error(text) => Some(text),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            Self::Integer(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// The bytes of a string.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The elements of an array; none for anything else.
    pub fn elements(&self) -> &[Value] {
        match self {
            Self::Array(values) => values,
            _ => &[],
        }
    }

    /// The text after a name, in an array of names and texts.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.elements().chunks(2).find(|pair| pair[0].text() == Some(name))?.get(1)?.text()
    }

    /// Converts an error reply to an error, for set-up steps.
    pub fn ok(self) -> io::Result<Value> {
        match self {
            Self::Error(text) => Err(io::Error::other(text)),
            value => Ok(value),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => write!(f, "+{text}"),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Nil => f.write_str("nil"),
            Self::Array(values) => f.debug_list().entries(values).finish(),
        }
    }
}

/// A connection to a server on loopback. Every wait for a reply is bounded.
#[derive(Debug)]
pub struct RespConnection {
    stream: Stream,
    replies: FrameSplitter,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl RespConnection {
    /// Connects to `port` of 127.0.0.1; a reply may take `limit` at most.
    pub fn open(port: u16, limit: Duration) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream: Stream::Tcp(stream), replies: FrameSplitter::replies() })
    }

    /// Connects to a Unix socket; a reply may take `limit` at most.
    pub fn open_unix(path: &Path, limit: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream: Stream::Unix(stream), replies: FrameSplitter::replies() })
    }

    /// Sends a command and waits for its reply. An error reply is a [`Value::Error`], not an `Err`.
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Value> {
        self.send(arguments)?;
        self.receive()
    }

    /// Sends a command and does not wait: for pipelines, and for commands whose reply does not matter.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let mut frame = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            let argument = argument.as_ref();
            frame.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            frame.extend_from_slice(argument);
            frame.extend_from_slice(b"\r\n");
        }
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(&frame),
            Stream::Unix(stream) => stream.write_all(&frame),
        }
    }

    /// Waits for the next reply, or for the next message of a subscription.
    pub fn receive(&mut self) -> io::Result<Value> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(frame) = self.replies.next_frame().map_err(io::Error::other)? {
                return parse(&mut frame.as_slice());
            }
            let read = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut chunk),
                Stream::Unix(stream) => stream.read(&mut chunk),
            };
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.replies.push(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The system reports "would block" for a read that timed out.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the server does not answer"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Parses one value from the front of a complete frame.
fn parse(frame: &mut &[u8]) -> io::Result<Value> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the reply is not RESP2");
    let end = frame.windows(2).position(|pair| pair == b"\r\n").ok_or_else(malformed)?;
    let (kind, line) = frame[..end].split_first().ok_or_else(malformed)?;
    let text = String::from_utf8_lossy(line).into_owned();
    let number = || text.parse::<i64>().map_err(|_| malformed());
    *frame = &frame[end + 2..];
    match kind {
        b'+' => Ok(Value::Status(text)),
        b'-' => Ok(Value::Error(text)),
        b':' => Ok(Value::Integer(number()?)),
        b'$' | b'*' if number()? < 0 => Ok(Value::Nil),
        b'$' => {
            let length = usize::try_from(number()?).map_err(|_| malformed())?;
            let bytes = frame.get(..length).ok_or_else(malformed)?.to_vec();
            *frame = frame.get(length + 2..).ok_or_else(malformed)?;
            Ok(Value::Bulk(bytes))
        }
        b'*' => (0..number()?).map(|_| parse(frame)).collect::<io::Result<_>>().map(Value::Array),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_and_shown() {
        let bytes = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$4\r\n\r\n\x00\xff\r\n$-1\r\n*1\r\n*-1\r\n";
        let value = parse(&mut &bytes[..]).expect("the bytes are well formed");
        assert_eq!(format!("{value:?}"), r#"[+OK, -ERR no, -7, "\r\n\x00\xff", nil, [nil]]"#);
        assert_eq!(value.elements()[2].integer(), Some(-7));
        let pairs = parse(&mut &b"*4\r\n+a\r\n+1\r\n+b\r\n:2\r\n"[..]).expect("the bytes are well formed");
        assert_eq!((pairs.field("a"), pairs.field("b"), pairs.field("c")), (Some("1"), None, None));
        assert_eq!(value.elements()[3].bytes(), Some(&b"\r\n\x00\xff"[..]));
    }

    #[test]
    fn an_invalid_reply_is_an_error() {
        for bytes in [&b"%1\r\n+a\r\n+b\r\n"[..], b"", b":x\r\n", b"$5\r\nab\r\n"] {
            assert_eq!(parse(&mut &bytes[..]).map_err(|error| error.kind()), Err(io::ErrorKind::InvalidData));
        }
    }
}
