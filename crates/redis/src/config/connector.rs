//! Streams to the server that the user opens in place of the client library.
//!
//! Owns the opening of a stream by the user's function, once for each connection attempt. The link owns the attempts
//! and their limits, and what the stream carries.

use futures_util::future::BoxFuture;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// A bidirectional stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A boxed stream.
pub(crate) type BoxStream = Box<dyn Stream>;

/// Opens streams to the server. Clones open them the same way.
#[derive(Clone)]
pub(crate) struct Connector(Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<BoxStream>> + Send + Sync>);

impl Connector {
    pub(crate) fn new<F, R, S>(open: F) -> Self
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self(Arc::new(move |address| {
            let stream = open(address);
            Box::pin(async move { Ok(Box::new(stream.await?) as BoxStream) })
        }))
    }

    /// Opens a stream to the server at an address.
    pub(crate) async fn open(&self, address: String) -> io::Result<BoxStream> {
        (self.0)(address).await
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}
