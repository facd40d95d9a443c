//! The thread of a blocking client, and the one way in which callers wait for what goes on there.
//!
//! 1. The thread owns the runtime: connections, messages and timers go on while no caller waits for anything, and the
//!    runtime is never dropped by a caller, who might be in an async context.
//! 2. A caller polls its own future, on its own thread, and parks in between. So futures may borrow from it, and many
//!    callers do not wait for one another.
//! 3. No call of ours ever panics in an async context: it is refused before anything is done.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The most that a task of tokio's may do in one go: its budget is kept in a byte.
const LARGEST_BUDGET: usize = 256;

/// A call of the blocking API was made inside an async context, where it would keep other tasks from running: nothing
/// was done.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use leasehold::blocking;
///
/// let refused = blocking::Client::connect("memory:");
/// assert!(matches!(refused, Err(blocking::Error::AsyncContext(_))));
///
/// // A thread on which blocking is allowed will do.
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

/// A thread that runs a runtime, for as long as somebody has this.
#[derive(Debug)]
pub(super) struct Host {
    runtime: Handle,
    /// Has the thread outlive this until the token is cancelled, once it is set.
    outlived_by: Arc<OnceLock<CancellationToken>>,
    /// Ends the thread when it is dropped.
    _open: DropGuard,
}

impl Host {
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
                // Whoever started the thread waits for this.
                let _ = ready.send(Ok(runtime.handle().clone()));
                runtime.block_on(end);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        std::thread::Builder::new().name("leasehold-blocking".into()).spawn(run)?;
        let ended = |_| Err(io::Error::other("the thread has ended before it had a runtime"));
        let runtime = started.recv().unwrap_or_else(ended)?;
        Ok(Self { runtime, outlived_by, _open: closed.drop_guard() })
    }

    /// Has the thread go on until this is cancelled, also after this is gone: what is still being given back may need
    /// the connection that lives there.
    pub(super) fn outlive(&self, end: CancellationToken) {
        // There is one keeper a client.
        let _ = self.outlived_by.set(end);
    }

    /// Waits for a future, with the calling thread.
    pub(super) fn wait<F: Future>(&self, future: F) -> Result<F::Output, AsyncContext> {
        refuse_async()?;
        Ok(self.wait_anywhere(future))
    }

    /// The same for a caller who has asked already.
    pub(super) fn wait_anywhere<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.runtime.enter();
        park_until(future)
    }
}

/// Fails in an async context (3): while a future is being polled by a runtime of tokio's. Threads on which tokio lets
/// one block, by `spawn_blocking` or `block_in_place`, are none.
pub(super) fn refuse_async() -> Result<(), AsyncContext> {
    if Handle::try_current().is_err() {
        return Ok(());
    }
    // Being in reach of a runtime is not yet being polled by it. Who is has a budget, which ends; everybody else has
    // none. The budget is used up by asking: that makes the task yield a little earlier.
    let mut cx = Context::from_waker(Waker::noop());
    let proceeds = |cx: &mut Context<'_>| pin!(tokio::task::consume_budget()).poll(cx).is_ready();
    if (0..LARGEST_BUDGET).all(|_| proceeds(&mut cx)) { Ok(()) } else { Err(AsyncContext) }
}

/// Polls a future on this thread until it is ready, and parks in between (2).
fn park_until<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        bell.wait();
    }
}

/// What wakes a parked thread. A thread's own token would not do: what a future does while it is polled may use it up.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn wait(&self) {
        // Nothing panics while it has the lock.
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            rung = self.changed.wait(rung).unwrap_or_else(PoisonError::into_inner);
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn refused() -> bool {
        refuse_async().is_err()
    }

    #[test]
    fn a_plain_thread_may_block_also_within_reach_of_a_runtime() {
        assert!(!refused());
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let _entered = runtime.enter();
        assert!(!refused());
    }

    #[tokio::test]
    async fn whatever_is_polled_by_a_runtime_may_not() {
        assert!(refused());
        let task = tokio::spawn(async {
            // The budget is used up by asking, and that is not taken for having none.
            let first = refused() && refused();
            tokio::task::yield_now().await;
            first && refused()
        });
        assert!(task.await.expect("no panic"));
        let local = tokio::task::LocalSet::new();
        assert!(
            local
                .run_until(async { tokio::task::spawn_local(async { refused() }).await.expect("no panic") })
                .await
        );
        assert!(futures_util::future::join(async { refused() }, async { refused() }).await == (true, true));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn where_tokio_lets_one_block_one_may() {
        assert!(tokio::spawn(async { refused() }).await.expect("no panic"));
        assert!(!tokio::task::spawn_blocking(refused).await.expect("no panic"));
        let in_place = tokio::spawn(async { (tokio::task::block_in_place(refused), refused()) });
        assert_eq!(in_place.await.expect("no panic"), (false, true));
        let thread = std::thread::spawn(refused);
        assert!(!thread.join().expect("no panic"));
    }

    #[test]
    fn a_future_is_woken_from_its_own_poll_from_timers_and_from_other_threads() {
        let host = Host::start().expect("a thread");
        let slept = host.wait(async {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || sender.send(7));
            receiver.await
        });
        assert_eq!(slept, Ok(Ok(7)));
    }

    #[test]
    fn the_thread_goes_on_until_what_it_outlives_has_ended() {
        let host = Host::start().expect("a thread");
        let (end, ran) = (CancellationToken::new(), Arc::new(()));
        host.outlive(end.clone());
        let kept = Arc::downgrade(&ran);
        let handle = host.runtime.clone();
        handle.spawn(async move {
            std::future::pending::<()>().await;
            drop(ran);
        });
        drop(host);
        let done = std::thread::spawn({
            let handle = handle.clone();
            move || park_until(async { handle.spawn(async { 7 }).await })
        });
        assert_eq!(done.join().expect("no panic").expect("it runs still"), 7);
        end.cancel();
        let start = std::time::Instant::now();
        while kept.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "the runtime is not dropped");
            std::thread::yield_now();
        }
    }
}
