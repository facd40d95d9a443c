//! A store with injected faults, and a machine that can be suspended.

use futures_util::future::BoxFuture;
use leasehold::store::{
    Executed, Fault, FaultKind, Lock, MemoryStore, NotificationSink, Op, Outcome, Phase, Reply, Store,
};
use leasehold::{Client, Environment, Moment, SessionId};
use leasehold_core::{Extended, KeyError, Partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) const SOON: Duration = Duration::from_millis(2500);

/// What happens to an operation.
#[derive(Clone, Copy)]
pub(crate) enum Whim {
    Obey,
    /// Execute it after this delay.
    Late(Duration),
    /// No reply within the call's timeout, and no effect.
    Hang,
    /// Execute it, and never reply.
    Mute,
    /// Fail at once with a transient fault.
    Fail,
    /// The reply to an extend that arrives too late.
    NotHeld,
}

pub(crate) type Mood = Arc<dyn Fn(&Lock, &Op) -> Whim + Send + Sync>;

/// A memory store with injected faults.
#[derive(Clone)]
pub(crate) struct Moody {
    pub(crate) inner: MemoryStore,
    pub(crate) mood: Mood,
    /// Whether mailboxes are never opened, and how many were closed.
    pub(crate) shut: bool,
    pub(crate) closed: Arc<AtomicU32>,
    /// Set while opening a mailbox fails with a transient fault.
    pub(crate) mail_is_down: Arc<AtomicBool>,
    /// How many delayed operations are in flight.
    pub(crate) late: Arc<AtomicU32>,
}

impl Moody {
    pub(crate) fn new(
        inner: &MemoryStore,
        mood: impl Fn(&Lock, &Op) -> Whim + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner: inner.clone(),
            mood: Arc::new(mood),
            shut: false,
            closed: Arc::default(),
            mail_is_down: Arc::default(),
            late: Arc::default(),
        }
    }

    pub(crate) async fn client(self, watchdog: Duration) -> Client {
        Client::with_store(self).watchdog_lease(watchdog).connect().await.expect("it connects")
    }
}

impl std::fmt::Debug for Moody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moody")
    }
}

impl Store for Moody {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        let fault =
            |kind| Outcome::Failed(Executed::Unknown, Fault::new(kind, Phase::Reply, "a moody store"));
        Box::pin(async move {
            match (self.mood)(lock, op) {
                Whim::Obey => self.inner.execute(lock, op, within).await,
                Whim::Late(by) => {
                    self.late.fetch_add(1, Ordering::SeqCst);
                    sleep(by).await;
                    let outcome = self.inner.execute(lock, op, within).await;
                    self.late.fetch_sub(1, Ordering::SeqCst);
                    outcome
                }
                Whim::Hang => {
                    sleep(within).await;
                    fault(FaultKind::TimedOut)
                }
                Whim::Mute => {
                    self.inner.execute(lock, op, within).await;
                    sleep(within).await;
                    fault(FaultKind::TimedOut)
                }
                Whim::Fail => fault(FaultKind::Busy),
                Whim::NotHeld => Outcome::Done(Reply::Extend(Extended::NotHeld)),
            }
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        if self.shut {
            Box::pin(std::future::pending())
        } else if self.mail_is_down.load(Ordering::SeqCst) {
            let fault = Fault::new(FaultKind::Unreachable, Phase::Connect, "a moody store");
            Box::pin(std::future::ready(Err(fault)))
        } else {
            self.inner.open_mailbox(place, session, post, within)
        }
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        self.inner.close_mailbox(place, session);
    }

    fn fork(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// A machine that can be suspended: its clock advances, its timers do not.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) booted: Instant,
    pub(crate) slept_us: Arc<AtomicU64>,
}

impl Environment for Machine {
    fn now(&self) -> Moment {
        let slept = Duration::from_micros(self.slept_us.load(Ordering::SeqCst));
        Moment::ZERO + MS + self.booted.elapsed() + slept
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// An environment whose clock follows tokio's paused time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paused(pub(crate) tokio::time::Instant);

impl Environment for Paused {
    fn now(&self) -> Moment {
        Moment::ZERO + MS + self.0.elapsed()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.0.elapsed()
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn sleep_until(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(sleep(at.since(self.now())))
    }

    fn spawn_keeper(&self, keeper: BoxFuture<'static, ()>) -> std::io::Result<()> {
        tokio::spawn(keeper);
        Ok(())
    }
}

/// Returns true on the first call only.
pub(crate) fn once() -> impl Fn() -> bool + Send + Sync {
    let asked = AtomicU32::new(0);
    move || asked.fetch_add(1, Ordering::SeqCst) == 0
}
