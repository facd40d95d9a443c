//! A clock that stands still until it is moved, its timers, and whether what they woke has gone on.

use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// For how long nothing must have happened, in real time.
const QUIET: Duration = Duration::from_millis(2);
/// A pause that took longer than this shows that the machine has no processor for what was woken, either.
const LATE: Duration = Duration::from_millis(1);
/// How often to look.
const PAUSE: Duration = Duration::from_micros(200);
/// How long to wait in real time for a future whose timer has fired: it may never be polled again.
const MOST: Duration = Duration::from_secs(2);

/// The time, and the timers.
#[derive(Default)]
pub(super) struct ManualClock {
    state: Mutex<State>,
    /// How often a timer was used, or the store.
    activity: AtomicU64,
}

#[derive(Default)]
struct State {
    now: Duration,
    last_timer: u64,
    /// The timers that are awaited.
    timers: BTreeMap<(Duration, u64), Waker>,
    /// How many have fired whose futures were not polled or dropped since.
    fired: u64,
    keepers: Vec<Weak<KeeperWaker>>,
}

/// One sleep.
pub(super) struct Timer {
    clock: Arc<ManualClock>,
    id: (Duration, u64),
    /// Whether the timer is among those that are awaited, or has fired.
    is_registered: bool,
}

/// Knows whether a keeper is running, or about to.
struct KeeperWaker {
    is_due: AtomicBool,
    is_polled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl ManualClock {
    pub(super) fn now(&self) -> Duration {
        self.state().now
    }

    pub(super) fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes a timer for `left` from now.
    pub(super) fn timer(self: &Arc<Self>, left: Duration) -> Timer {
        let mut state = self.state();
        state.last_timer += 1;
        let id = (state.now.saturating_add(left), state.last_timer);
        drop(state);
        Timer { clock: self.clone(), id, is_registered: false }
    }

    /// Moves on to the next timer, at most to `until`, and fires what is due. Returns false if there was no timer before that.
    pub(super) fn step(&self, until: Duration) -> bool {
        let mut state = self.state();
        let next = state.timers.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= until);
        state.now = state.now.max(next.unwrap_or(until));
        let now = state.now;
        let later = state.timers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.timers, later);
        state.fired += due.len() as u64;
        drop(state);
        due.into_values().for_each(Waker::wake);
        next.is_some()
    }

    /// Wakes everything that sleeps: it looks at the time.
    pub(super) fn wake_all(&self) {
        let mut state = self.state();
        let all = std::mem::take(&mut state.timers);
        state.fired += all.len() as u64;
        drop(state);
        all.into_values().for_each(Waker::wake);
    }

    /// Blocks the thread until what was woken has gone on.
    pub(super) fn settle(&self) {
        let mut settling = Settling::new(self);
        while !settling.is_over() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Lets the tasks of this runtime run, too, until what was woken has gone on.
    pub(super) async fn settle_async(&self) {
        let mut settling = Settling::new(self);
        while !settling.is_over() {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            // Of real time: that of tokio may be paused, and the tasks of this thread have run.
            std::thread::sleep(PAUSE);
        }
    }

    /// A keeper of which this clock knows whether it runs: it is about to from now on, so that the clock does not move before its
    /// thread has started.
    pub(super) fn tracked(
        self: Arc<Self>,
        mut keeper: BoxFuture<'static, ()>,
    ) -> impl Future<Output = ()> + Send {
        let known = Arc::new(KeeperWaker {
            is_due: AtomicBool::new(true),
            is_polled: AtomicBool::new(false),
            waker: Mutex::default(),
        });
        self.state().keepers.push(Arc::downgrade(&known));
        async move {
            let waker = Waker::from(known.clone());
            poll_fn(|cx| {
                *known.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
                known.is_polled.store(true, Ordering::SeqCst);
                known.is_due.store(false, Ordering::SeqCst);
                let polled = keeper.as_mut().poll(&mut Context::from_waker(&waker));
                known.is_polled.store(false, Ordering::SeqCst);
                polled
            })
            .await;
            let own = Arc::downgrade(&known);
            self.state().keepers.retain(|keeper| !keeper.ptr_eq(&own));
        }
    }

    fn is_idle(&self) -> bool {
        let mut state = self.state();
        state.keepers.retain(|keeper| keeper.strong_count() > 0);
        let keepers: Vec<_> = state.keepers.iter().filter_map(Weak::upgrade).collect();
        let has_fired = state.fired > 0;
        drop(state);
        let runs = |keeper: &Arc<KeeperWaker>| {
            keeper.is_due.load(Ordering::SeqCst) || keeper.is_polled.load(Ordering::SeqCst)
        };
        !has_fired && !keepers.iter().any(runs)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for what was woken.
struct Settling<'a> {
    clock: &'a ManualClock,
    begun: Instant,
    seen: u64,
    looked: Instant,
    quiet_since: Option<Instant>,
}

impl<'a> Settling<'a> {
    fn new(clock: &'a ManualClock) -> Self {
        let now = Instant::now();
        Self { clock, begun: now, seen: u64::MAX, looked: now, quiet_since: None }
    }

    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if now.duration_since(self.begun) > MOST {
            // What did not go on until now is not waited for at the next step again.
            self.clock.state().fired = 0;
            return true;
        }
        let was_late = now.duration_since(std::mem::replace(&mut self.looked, now)) > LATE;
        let activity = self.clock.activity.load(Ordering::SeqCst);
        if was_late || activity != self.seen || !self.clock.is_idle() {
            (self.seen, self.quiet_since) = (activity, None);
            return false;
        }
        now.duration_since(*self.quiet_since.get_or_insert(now)) >= QUIET
    }
}

impl Timer {
    pub(super) fn poll(&mut self, cx: &Context<'_>, is_over: impl Fn() -> bool) -> Poll<()> {
        self.deregister();
        let mut state = self.clock.state();
        // Under the lock: it cannot fire in between.
        if state.now >= self.id.0 {
            return Poll::Ready(());
        }
        state.timers.insert(self.id, cx.waker().clone());
        drop(state);
        self.is_registered = true;
        // Another time may be ahead of this one: that of a suspended machine.
        if is_over() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn deregister(&mut self) {
        self.clock.note_activity();
        if std::mem::take(&mut self.is_registered) {
            let mut state = self.clock.state();
            if state.timers.remove(&self.id).is_none() {
                state.fired = state.fired.saturating_sub(1);
            }
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl Wake for KeeperWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_due.store(true, Ordering::SeqCst);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
