//! A stream that tells which holds are spoken of in what is written to it.

use leasehold_core::HoldId;
use leasehold_testkit::Splitter;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

pub(crate) struct Tapped {
    stream: DuplexStream,
    requests: Splitter,
    on_sent: Arc<dyn Fn(HoldId) + Send + Sync>,
}

impl Tapped {
    pub(crate) fn new(stream: DuplexStream, on_sent: Arc<dyn Fn(HoldId) + Send + Sync>) -> Self {
        Self { stream, requests: Splitter::requests(), on_sent }
    }
}

impl AsyncRead for Tapped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tapped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let length = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.requests.push(&buf[..length]);
        while let Some(request) = self.requests.next_frame().map_err(io::Error::other)? {
            let words = request.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_end);
            let words = words.filter_map(|word| std::str::from_utf8(word).ok());
            words.filter_map(|word| HoldId::from_token(word).ok()).for_each(|hold| (self.on_sent)(hold));
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
