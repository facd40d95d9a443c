//! Dropping a future at each of its awaits.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// More points than any operation of Leasehold has, to detect a future that never completes.
const MAX_POINTS: usize = 10_000;

/// Starts the future of `start` again and again, and drops it after its k-th pending poll, k = 0, 1, 2, …, until it
/// completes before it can be dropped. After each drop it runs `check` with k. k = 0 drops the future before its first
/// poll. Returns the number of points at which the future was dropped.
///
/// A point is a poll: a future that is woken without need has more of them, and with a network the number differs
/// between runs. The output of the completed run is dropped before this returns.
///
/// Cancel safety: when this future itself is dropped, so is the future under test, with no check after it.
///
/// # Panics
///
/// If the future has not completed after 10 000 points.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use leasehold_testkit::cancel_at_every_await;
///
/// let lock = tokio::sync::Mutex::new(());
/// let points = cancel_at_every_await(
///     || async {
///         let _guard = lock.lock().await;
///         tokio::task::yield_now().await;
///     },
///     async |_k| assert!(lock.try_lock().is_ok(), "a cancelled task left the lock taken"),
/// )
/// .await;
/// assert_eq!(points, 2);
/// # }
/// ```
pub async fn cancel_at_every_await<F: Future>(
    mut start: impl FnMut() -> F,
    mut check: impl AsyncFnMut(usize),
) -> usize {
    for k in 0..MAX_POINTS {
        if completes_within(start(), k).await {
            return k;
        }
        check(k).await;
    }
    panic!("the future did not complete within {MAX_POINTS} polls");
}

/// Whether the future completes before its `limit`-th pending poll; it is dropped in either case.
async fn completes_within(future: impl Future, limit: usize) -> bool {
    let mut future = pin!(future);
    let mut pending = 0;
    poll_fn(|context| {
        if pending == limit {
            return Poll::Ready(false);
        }
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending => {
                pending += 1;
                // At the limit the future is dropped at once, whether or not anything would have woken it.
                if pending == limit { Poll::Ready(false) } else { Poll::Pending }
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn every_point_is_visited_once_and_checked() {
        let reached = RefCell::new(Vec::new());
        let checked = RefCell::new(Vec::new());
        let points = cancel_at_every_await(
            || async {
                reached.borrow_mut().push("start");
                yield_now().await;
                reached.borrow_mut().push("middle");
                yield_now().await;
                reached.borrow_mut().push("end");
            },
            async |k| checked.borrow_mut().push(k),
        )
        .await;
        assert_eq!(points, 3);
        assert_eq!(*checked.borrow(), [0, 1, 2]);
        assert_eq!(*reached.borrow(), ["start", "start", "middle", "start", "middle", "end"]);
    }

    #[tokio::test]
    async fn a_ready_future_is_dropped_only_unpolled() {
        assert_eq!(cancel_at_every_await(|| async {}, async |_| {}).await, 1);
    }

    #[tokio::test]
    async fn a_point_that_nothing_wakes_is_cancelled_too() {
        let runs = Cell::new(0);
        let points = cancel_at_every_await(
            || {
                runs.set(runs.get() + 1);
                let stuck = runs.get() < 3;
                let (sender, receiver) = oneshot::channel::<()>();
                async move {
                    if stuck {
                        let _ = receiver.await;
                    }
                    drop(sender);
                }
            },
            async |_| {},
        )
        .await;
        assert_eq!(points, 2);
    }
}
