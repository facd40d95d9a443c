//! The thread of a blocking client, with its runtime, and how callers wait for futures.
//!
//! 1. The thread owns the runtime: connections, messages and timers continue while no caller waits, and the
//!    runtime is never dropped by a caller, which might be in an async context.
//! 2. A caller polls its own future on its own thread, and parks in between. So futures may borrow from it,
//!    and concurrent callers do not wait for one another.
//! 3. No call panics in an async context: it fails before anything is done.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The largest budget of a tokio task between two yields: tokio keeps it in a byte.
const MAX_BUDGET: usize = 256;

/// A call of the blocking API was made inside an async context, where it would keep other tasks from running:
/// nothing was done.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use leasehold::blocking;
///
/// let result = blocking::Client::connect("memory:");
/// assert!(matches!(result, Err(blocking::Error::AsyncContext(_))));
///
/// // Use a thread on which blocking is allowed.
/// let connected = tokio::task::spawn_blocking(|| blocking::Client::connect("memory:")).await;
/// assert!(connected.is_ok_and(|client| client.is_ok()));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the blocking API was called inside an async context, where it would keep other tasks from running: use \
     `leasehold::Client` there, or call from a thread of its own (`spawn_blocking`)"
)]
#[non_exhaustive]
pub struct AsyncContext;

impl AsyncContext {
    /// Creates the error, for tests of code that handles it.
    ///
    /// ```
    /// use leasehold::error::AcquireError;
    /// use leasehold::blocking::{AsyncContext, Error};
    ///
    /// let error = Error::<AcquireError>::from(AsyncContext::new());
    /// assert!(error.failed().is_none());
    /// ```
    #[allow(clippy::new_without_default, reason = "an error has no default")]
    pub const fn new() -> Self {
        Self
    }
}

/// A thread that runs a runtime for as long as this value lives.
#[derive(Debug)]
pub(super) struct RuntimeThread {
    runtime: Handle,
    /// If set, the thread runs on after this value is dropped, until the token is cancelled.
    outlived_by: Arc<OnceLock<CancellationToken>>,
    /// Ends the thread when dropped.
    _open: DropGuard,
}

impl RuntimeThread {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let closed = CancellationToken::new();
        let outlived_by = Arc::new(OnceLock::<CancellationToken>::new());
        let (ready, started) = mpsc::sync_channel(1);
        let end = {
            let (closed, keeper) = (closed.clone(), outlived_by.clone());
            async move {
                closed.cancelled().await;
                if let Some(keeper) = keeper.get() {
                    keeper.cancelled().await;
                }
            }
        };
        let run = move || match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                // The starting thread waits for this.
                let _ = ready.send(Ok(runtime.handle().clone()));
                runtime.block_on(end);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        std::thread::Builder::new().name("leasehold-blocking".into()).spawn(run)?;
        let ended = |_| Err(io::Error::other("the thread ended before its runtime was built"));
        let runtime = started.recv().unwrap_or_else(ended)?;
        Ok(Self { runtime, outlived_by, _open: closed.drop_guard() })
    }

    /// Lets the thread run until the token is cancelled, even after this value is dropped: releases in
    /// progress may need the connection that lives there.
    pub(super) fn outlive(&self, end: CancellationToken) {
        // Set at most once: a client has one keeper.
        let _ = self.outlived_by.set(end);
    }

    /// Blocks the calling thread until a future completes.
    pub(super) fn wait<F: Future>(&self, future: F) -> Result<F::Output, AsyncContext> {
        check_not_async()?;
        Ok(self.wait_unchecked(future))
    }

    /// Like [`wait`](Self::wait), for a caller that has already checked its context.
    pub(super) fn wait_unchecked<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.runtime.enter();
        park_until(future)
    }
}

/// Fails in an async context (3): while a tokio runtime polls a future on this thread. Threads on which tokio
/// allows blocking, by `spawn_blocking` or `block_in_place`, are not such a context.
pub(super) fn check_not_async() -> Result<(), AsyncContext> {
    if Handle::try_current().is_err() {
        return Ok(());
    }
    // A thread can have entered a runtime without being polled by it. Only a polled task has a finite budget,
    // which this check uses up, so the task yields a little earlier.
    let mut cx = Context::from_waker(Waker::noop());
    let has_budget = |cx: &mut Context<'_>| pin!(tokio::task::consume_budget()).poll(cx).is_ready();
    if (0..MAX_BUDGET).all(|_| has_budget(&mut cx)) { Ok(()) } else { Err(AsyncContext) }
}

/// Polls a future on this thread until it is ready, and parks in between (2).
fn park_until<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let thread_waker = Arc::new(ThreadWaker::default());
    let waker = Waker::from(thread_waker.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread_waker.wait();
    }
}

/// Wakes a parked thread. The thread's own park token would not do: the future may consume it while it is
/// polled.
#[derive(Default)]
struct ThreadWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl ThreadWaker {
    fn wait(&self) {
        // No panic can happen while this mutex is locked.
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            woken = self.changed.wait(woken).unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn is_async() -> bool {
        check_not_async().is_err()
    }

    #[test]
    fn a_plain_thread_may_block_also_within_reach_of_a_runtime() {
        assert!(!is_async());
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let _entered = runtime.enter();
        assert!(!is_async());
    }

    #[tokio::test]
    async fn whatever_is_polled_by_a_runtime_may_not() {
        assert!(is_async());
        let task = tokio::spawn(async {
            // The first check uses up the budget; the second must still detect the context.
            let first = is_async() && is_async();
            tokio::task::yield_now().await;
            first && is_async()
        });
        assert!(task.await.expect("no panic"));
        let local = tokio::task::LocalSet::new();
        assert!(
            local
                .run_until(async { tokio::task::spawn_local(async { is_async() }).await.expect("no panic") })
                .await
        );
        assert!(futures_util::future::join(async { is_async() }, async { is_async() }).await == (true, true));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn where_tokio_lets_one_block_one_may() {
        assert!(tokio::spawn(async { is_async() }).await.expect("no panic"));
        assert!(!tokio::task::spawn_blocking(is_async).await.expect("no panic"));
        let in_place = tokio::spawn(async { (tokio::task::block_in_place(is_async), is_async()) });
        assert_eq!(in_place.await.expect("no panic"), (false, true));
        let thread = std::thread::spawn(is_async);
        assert!(!thread.join().expect("no panic"));
    }

    #[test]
    fn a_future_is_woken_from_its_own_poll_from_timers_and_from_other_threads() {
        let thread = RuntimeThread::start().expect("a thread");
        let slept = thread.wait(async {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || sender.send(7));
            receiver.await
        });
        assert_eq!(slept, Ok(Ok(7)));
    }

    #[test]
    fn the_thread_runs_until_its_dependents_have_ended() {
        let thread = RuntimeThread::start().expect("a thread");
        let (end, ran) = (CancellationToken::new(), Arc::new(()));
        thread.outlive(end.clone());
        let kept = Arc::downgrade(&ran);
        let handle = thread.runtime.clone();
        handle.spawn(async move {
            std::future::pending::<()>().await;
            drop(ran);
        });
        drop(thread);
        let done = std::thread::spawn({
            let handle = handle.clone();
            move || park_until(async { handle.spawn(async { 7 }).await })
        });
        assert_eq!(done.join().expect("no panic").expect("it still runs"), 7);
        end.cancel();
        let start = std::time::Instant::now();
        while kept.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "the runtime is not dropped");
            std::thread::yield_now();
        }
    }
}
