//! The gate through which tasks of the user's reach the store, until a shutdown closes it.
//!
//! A future that its task does not poll any more would keep a shutdown waiting, and one that is polled after it would
//! send something. So what goes through here is not awaited but cut off: 1. once the gate is closed nobody is polled
//! in it any more; 2. [`Gate::still`] says that nobody *is being* polled in it either, on another thread. From
//! then on everything that was sent has been handed to the connection, and nothing more will be.

use leasehold_store::sync::{AtomicU64, Notify};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;
use tokio_util::sync::CancellationToken;

/// Set in the count once the gate is closed.
const CLOSED: u64 = 1;
/// One who is being polled.
const ONE: u64 = 2;

#[derive(Default)]
pub(super) struct Gate {
    /// How many are being polled, and whether it is closed.
    count: AtomicU64,
    /// Wakes those who have to learn that it is closed.
    closed: CancellationToken,
    /// Told when the last of those has left who were being polled when it was closed.
    left: Notify,
}

impl Gate {
    /// Closes it; false if it was closed before.
    pub(super) fn close(&self) -> bool {
        let first = self.count.fetch_or(CLOSED, Ordering::SeqCst) & CLOSED == 0;
        self.closed.cancel();
        first
    }

    pub(super) fn is_closed(&self) -> bool {
        self.count.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Runs a future for as long as the gate is open (1); `None` if it was cut off.
    ///
    /// Cancel safety: that of the future.
    pub(super) async fn pass<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        let mut closed = pin!(self.closed.cancelled());
        poll_fn(|cx| {
            {
                let Some(_step) = self.step() else { return Poll::Ready(None) };
                if let Poll::Ready(output) = future.as_mut().poll(cx) {
                    return Poll::Ready(Some(output));
                }
            }
            // Only one that has to wait is to be woken.
            closed.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Counts as one who is being polled for as long as this is kept, whether or not the gate is open: for what has to
    /// be said to the keeper before it ends.
    pub(super) fn inside(&self) -> Step<'_> {
        self.count.fetch_add(ONE, Ordering::SeqCst);
        Step(self)
    }

    /// Waits until nobody is being polled (2). The gate has to be closed.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(super) async fn still(&self) {
        loop {
            let left = self.left.notified();
            if self.count.load(Ordering::SeqCst) == CLOSED {
                return;
            }
            left.await;
        }
    }

    fn step(&self) -> Option<Step<'_>> {
        let step = self.inside();
        (!self.is_closed()).then_some(step)
    }
}

/// Somebody who is being polled.
pub(super) struct Step<'a>(&'a Gate);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(ONE, Ordering::SeqCst) == ONE | CLOSED {
            self.0.left.notify_waiters();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn who_waits_in_it_is_woken_when_it_is_closed_and_nobody_gets_in_then() {
        let gate = Gate::default();
        let mut waits = Box::pin(async { gate.pass(pin!(std::future::pending::<()>())).await });
        assert!(waits.as_mut().now_or_never().is_none());
        assert_eq!(gate.pass(pin!(async { 7 })).now_or_never(), Some(Some(7)));
        assert!(gate.close() && !gate.close());
        assert_eq!(gate.pass(pin!(async { panic!("it is closed") })).now_or_never(), Some(None::<()>));
        assert_eq!(waits.now_or_never(), Some(None));
        assert!(gate.still().now_or_never().is_some());
    }

    #[test]
    fn it_is_not_still_while_somebody_is_polled() {
        let gate = Gate::default();
        let polls = pin!(async {
            gate.close();
            assert!(gate.still().now_or_never().is_none(), "it is this one");
        });
        assert_eq!(gate.pass(polls).now_or_never(), Some(Some(())));
        assert!(gate.still().now_or_never().is_some());
    }
}
