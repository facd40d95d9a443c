//! Observers that call their client, or panic.

use super::fixture::Log;
use crate::environment::client_in_paused_time;
use crate::fixture::mutex;
use futures_util::FutureExt;
use leasehold::Client;
use leasehold::store::MemoryStore;
use leasehold::telemetry::{
    Acquired, HandedOff, Lost, NotAcquired, Observer, Released, RenewalFailed, Renewed, Requested,
    SessionRenewed, Stalled, Waiting,
};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Calls its client from each event.
#[derive(Clone, Default)]
struct CallsBack {
    client: Arc<OnceLock<Client>>,
    calls: Arc<AtomicU64>,
}

thread_local! {
    /// Set while an event is being observed on this thread: what that causes is not.
    static OBSERVING: Cell<bool> = const { Cell::new(false) };
}

impl CallsBack {
    fn call(&self) {
        let Some(client) = self.client.get().filter(|_| !OBSERVING.replace(true)) else { return };
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(client.stats().held < 1_000);
        let _ = client.session_id();
        // One lock that others contend for, and one of its own.
        for name in ["contended/1".to_owned(), format!("own/{call}")] {
            let mutex = mutex(client, &name).sticky(MS);
            // The memory store answers at once, unless the lock is taken. Otherwise the attempt is cancelled.
            let tried = mutex.try_acquire().now_or_never();
            if call.is_multiple_of(3) {
                drop(tried);
            } else if let Some(Ok(tried)) = tried
                && let Some(guard) = tried.granted()
            {
                let _ = guard.release().now_or_never();
            }
            let _ = mutex.acquire().now_or_never();
        }
        OBSERVING.set(false);
    }
}

macro_rules! call_back {
    ($($name:ident($event:ty)),+) => {
        impl Observer for CallsBack {
            $(fn $name(&self, _: &$event) {
                self.call();
            })+

            fn session_lapsed(&self) {
                self.call();
            }
        }
    };
}

call_back! {
    waiting(Waiting<'_>), acquired(Acquired<'_>), not_acquired(NotAcquired<'_>), handed_off(HandedOff<'_>),
    renewed(Renewed<'_>), renewal_failed(RenewalFailed<'_>), released(Released<'_>), lost(Lost<'_>),
    stalled(Stalled), requested(Requested), session_renewed(SessionRenewed)
}

/// Were any mutex of the client held while an observer runs, a thread would wait for itself.
#[test]
fn an_observer_may_call_its_client_from_every_event() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(call_from_every_event());
        let _ = done.send(());
    });
    // Not by a timer of the runtime: its threads may be those that wait.
    is_done
        .recv_timeout(Duration::from_secs(60))
        .expect("no thread waits for itself, and no assertion fails");
}

async fn call_from_every_event() {
    let observer = CallsBack::default();
    let client = Client::with_store(MemoryStore::new()).observer(observer.clone()).session_ttl(1_000 * MS);
    let client = client.watchdog_lease(300 * MS).connect().await.unwrap();
    observer.client.set(client.clone()).unwrap();
    let tasks: Vec<_> = (0..8).map(|task| tokio::spawn(contend(client.clone(), task))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    client.shutdown(Duration::from_secs(5)).await.unwrap();
    let (stats, calls) = (client.stats(), observer.calls.load(Ordering::Relaxed));
    assert!(calls > 500 && stats.acquired > 100, "{calls} {stats:?}");
    assert_eq!((stats.held, stats.waiting), (0, 0), "{stats:?}");
    let ended = stats.released + stats.lost.total() + stats.lost.shut_down;
    assert_eq!(stats.acquired, ended, "each hold ends once: {stats:?}");
}

/// Acquires and releases in all ways, and loses some holds.
async fn contend(client: Client, task: u64) {
    for n in 0..60_u64 {
        let mutex = mutex(&client, &format!("contended/{}", n % 3)).max_wait(20 * MS);
        let mutex = if n % 10 == 0 { mutex.max_hold(2 * MS) } else { mutex };
        let Ok(guard) = mutex.acquire().await else { continue };
        if n % 16 == task % 16 {
            tokio::time::sleep(150 * MS).await;
        } else if n % 5 == 0 {
            tokio::time::sleep(3 * MS).await;
        }
        match n % 3 {
            0 => drop(guard),
            1 => drop(guard.release().now_or_never()),
            _ => drop(guard.release().await),
        }
    }
}

/// Panics at each event.
struct Panics;

impl Observer for Panics {
    fn acquired(&self, _: &Acquired<'_>) {
        panic!("an observer that panics");
    }

    fn renewed(&self, _: &Renewed<'_>) {
        panic!("an observer that panics, on the keeper");
    }

    fn lost(&self, _: &Lost<'_>) {
        panic!("an observer that panics");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_ends_neither_the_keeper_nor_a_task() {
    let (log, store) = (Log::default(), crate::environment::memory());
    let client = client_in_paused_time(store).observer(Panics).observer(log.clone()).connect().await.unwrap();
    let guard = mutex(&client, "m").acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    guard.check().expect("renewed by the keeper");
    guard.release().await.unwrap();
    let short = mutex(&client, "short").lease(100 * MS).acquire().await.unwrap();
    short.lost().await;
    drop(short);
    let events = log.take_all();
    assert!(events.iter().any(|line| line.starts_with("lost short")), "the other one gets all: {events:?}");
    assert!(events.iter().filter(|line| line.starts_with("renewed m")).count() >= 3, "{events:?}");
    client.shutdown(Duration::from_secs(1)).await.unwrap();
}
