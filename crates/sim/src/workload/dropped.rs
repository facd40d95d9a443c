//! Futures that are dropped before they end.

use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is dropped when it is pending after so many polls. Its output is `None` then.
pub(crate) struct DroppedAfter<F: ?Sized> {
    pub(crate) inner: Pin<Box<F>>,
    pub(crate) polls: u64,
}

impl<F: Future + ?Sized> Future for DroppedAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.inner.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls <= 1 => Poll::Ready(None),
            Poll::Pending => {
                self.polls -= 1;
                Poll::Pending
            }
        }
    }
}
