//! The shutdown gate: tasks of the user reach the store through it, until a shutdown closes it.
//!
//! A future that its task no longer polls would delay a shutdown, and one that is polled later would send something.
//! So a shutdown does not await the futures that run through the gate; it cuts them off:
//!
//! 1. Once the gate is closed, no future is polled in it any more.
//! 2. [`ShutdownGate::drained`] waits until no future *is being* polled in it, on any thread. From then on everything
//!    that was sent has reached the connection, and nothing more is sent.

use leasehold_store::sync::{AtomicU64, Notify};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio_util::sync::CancellationToken;

/// Set in the count once the gate is closed.
const CLOSED: u64 = 1;
/// One future that is being polled.
const POLLED: u64 = 2;

#[derive(Default)]
pub(super) struct ShutdownGate {
    /// The number of futures being polled, and the closed bit.
    count: AtomicU64,
    /// Wakes pending futures when the gate closes.
    closed: CancellationToken,
    /// Notified when the last future that was being polled at closing has returned.
    drained: Notify,
}

impl ShutdownGate {
    /// Closes the gate; false if it was closed before.
    pub(super) fn close(&self) -> bool {
        let first = self.count.fetch_or(CLOSED, Ordering::SeqCst) & CLOSED == 0;
        self.closed.cancel();
        first
    }

    pub(super) fn is_closed(&self) -> bool {
        self.count.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Runs a future while the gate is open (1); `None` if it was cut off.
    ///
    /// Cancel safety: that of the future.
    pub(super) async fn run<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        let mut closed = pin!(self.closed.cancelled());
        poll_fn(|cx| {
            {
                let _permit = self.permit();
                if self.is_closed() {
                    return Poll::Ready(None);
                }
                if let Poll::Ready(output) = future.as_mut().poll(cx) {
                    return Poll::Ready(Some(output));
                }
            }
            // Register for the closing only if the future is pending.
            closed.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Counts as a future being polled until dropped, whether or not the gate is open: for what the keeper must learn
    /// before it ends.
    pub(super) fn permit(&self) -> GatePermit<'_> {
        self.count.fetch_add(POLLED, Ordering::SeqCst);
        GatePermit(self)
    }

    /// Waits until no future is being polled (2). The gate must be closed.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if self.count.load(Ordering::SeqCst) == CLOSED {
                return;
            }
            drained.await;
        }
    }
}

/// A future that is being polled.
pub(super) struct GatePermit<'a>(&'a ShutdownGate);

impl Drop for GatePermit<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(POLLED, Ordering::SeqCst) == POLLED | CLOSED {
            self.0.drained.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn closing_wakes_pending_futures_and_admits_no_more() {
        let gate = ShutdownGate::default();
        let mut waits = Box::pin(async { gate.run(pin!(std::future::pending::<()>())).await });
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(gate.run(pin!(async { 7 })).now_or_never(), Some(Some(7)));
        assert!(gate.close() && !gate.close());
        assert_eq!(gate.run(pin!(async { panic!("the gate is closed") })).now_or_never(), Some(None::<()>));
        assert_eq!(waits.now_or_never(), Some(None));
        assert!(gate.drained().now_or_never().is_some());
    }

    #[test]
    fn it_is_not_drained_while_a_future_is_polled() {
        let gate = ShutdownGate::default();
        let polls = pin!(async {
            gate.close();
            assert!(gate.drained().now_or_never().is_none(), "this future is being polled");
        });
        assert_eq!(gate.run(polls).now_or_never(), Some(Some(())));
        assert!(gate.drained().now_or_never().is_some());
    }
}
