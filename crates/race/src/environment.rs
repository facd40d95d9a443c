//! An environment whose clock stands still until a test advances it.
//!
//! Where a test never does, every sleep lasts forever, so a missed wake-up is found: no later poll makes up for it.

use futures_util::future::BoxFuture;
use leasehold::Moment;
use leasehold::store::Environment;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{future, thread};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

/// One second: no client starts when its machine did.
const START_US: u64 = 1_000_000;

#[derive(Debug, Clone)]
pub(crate) struct FrozenTime(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Reading it is a scheduling point.
    now_us: AtomicU64,
    /// Not a scheduling point.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    drawn: u64,
    /// The sleeping tasks, by wake-up time and a number.
    sleepers: BTreeMap<(Moment, u64), Option<Waker>>,
    last_sleeper: u64,
    keepers: Vec<thread::JoinHandle<()>>,
}

impl FrozenTime {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { now_us: AtomicU64::new(START_US), state: Mutex::default() }))
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.0.now_us.load(SeqCst)
    }

    /// Advances the clock and wakes the tasks that slept until then.
    pub(crate) fn advance(&self, by: Duration) {
        let by_us = u64::try_from(by.as_micros()).expect("a test lasts less than 500 000 years");
        let now = Moment::from_micros(self.0.now_us.fetch_add(by_us, SeqCst) + by_us);
        for (_, waker) in self.state().sleepers.range_mut(..=(now, u64::MAX)) {
            waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until all keepers have ended.
    pub(crate) fn join_keepers(&self) {
        let keepers = std::mem::take(&mut self.state().keepers);
        for keeper in keepers {
            keeper.join().expect("a keeper does not panic");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Environment for FrozenTime {
    fn now(&self) -> Moment {
        Moment::from_micros(self.now_us())
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.now_us())
    }

    /// Unpredictable to the code under test, and the same whenever a schedule is replayed.
    fn random(&self) -> u64 {
        let mut state = self.state();
        state.drawn += 1;
        state.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        let mut state = self.state();
        state.last_sleeper += 1;
        let sleeper = Sleeper { environment: self.clone(), key: (at, state.last_sleeper) };
        Box::pin(async move { sleeper.sleep().await })
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> io::Result<()> {
        let keeper = thread::spawn(move || future::block_on(keeper));
        self.state().keepers.push(keeper);
        Ok(())
    }
}

/// An entry among the sleeping tasks, removed however the sleep ends: a stale waker would mask a missed wake-up.
struct Sleeper {
    environment: FrozenTime,
    key: (Moment, u64),
}

impl Sleeper {
    async fn sleep(&self) {
        poll_fn(|cx| {
            if self.environment.now() >= self.key.0 {
                return Poll::Ready(());
            }
            self.environment.state().sleepers.insert(self.key, Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.environment.state().sleepers.remove(&self.key);
    }
}
