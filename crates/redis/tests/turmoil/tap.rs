//! A stream that reports which holds the written requests concern, and which of them they release.

use leasehold_core::HoldId;
use leasehold_testkit::FrameSplitter;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// What a request does to a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// It is to be released.
    Release,
    Other,
}

/// Called for each hold that a request concerns.
pub(crate) type OnSent = Arc<dyn Fn(HoldId, RequestKind) + Send + Sync>;

pub(crate) struct TappedStream {
    stream: DuplexStream,
    requests: FrameSplitter,
    on_sent: OnSent,
}

impl TappedStream {
    pub(crate) fn new(stream: DuplexStream, on_sent: OnSent) -> Self {
        Self { stream, requests: FrameSplitter::requests(), on_sent }
    }
}

impl AsyncRead for TappedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TappedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let length = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.requests.push(&buf[..length]);
        while let Some(request) = self.requests.next_frame().map_err(io::Error::other)? {
            let words = request.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
            let words: Vec<_> = words.filter_map(|word| std::str::from_utf8(word).ok()).collect();
            // No other call has that argument; the released hold is the first one in it.
            let releases = words.iter().any(|word| matches!(*word, "grant" | "free"));
            let mut kind = if releases { RequestKind::Release } else { RequestKind::Other };
            for hold in words.iter().filter_map(|word| HoldId::from_token(word).ok()) {
                (self.on_sent)(hold, std::mem::replace(&mut kind, RequestKind::Other));
            }
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
