//! What the client does, and when each call must have ended.

use super::environment::Simulated;
use super::oracle::Oracle;
use crate::input::Input;
use leasehold::{Client, DetachedHold, LockGuard};
use leasehold_core::{FencingToken, Kind, Lock, LockName, ObservedHolder};
use leasehold_store::Store;
use std::future::Future;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The limit of an acquire.
const ACQUIRE_WITHIN: Duration = Duration::from_millis(200);
/// The limit of a call to the server.
const CALL_WITHIN: Duration = Duration::from_millis(300);
/// How much later than its limit a call may end: timers count whole milliseconds.
const LATE: Duration = Duration::from_millis(10);
/// How long calls may take that send several requests one after the other.
const SEVERAL_CALLS: Duration = Duration::from_secs(3);
/// The lease of all locks.
const LEASE: Duration = Duration::from_secs(4);
const NAME: &str = "job";
const OTHER: &str = "job/2";

/// What the client does, from the first bytes of the input.
#[derive(Debug)]
pub(super) struct Plan {
    kind: u8,
    actions: [u8; 5],
}

impl Plan {
    /// How many bytes of the input it takes.
    pub(super) const LEN: usize = 6;

    pub(super) fn new(input: &mut Input<'_>) -> Self {
        Self { kind: input.byte(), actions: std::array::from_fn(|_| input.byte()) }
    }
}

/// A client, and what the server has said to it.
struct Scenario {
    client: Client,
    oracle: Oracle,
}

pub(super) async fn run(plan: Plan, store: impl Store, environment: Simulated, oracle: Oracle) {
    let client = Client::with_store(store)
        .label("fuzz")
        .call_timeout(CALL_WITHIN)
        .outage_limit(Duration::from_millis(500))
        .watchdog_lease(LEASE)
        .environment(environment);
    let client = within("connect", SEVERAL_CALLS, Box::pin(client.connect_lazy())).await;
    let Ok(client) = client.map_err(shown) else { return };
    let scenario = Scenario { client, oracle };
    let guard = Box::pin(scenario.acquire(plan.kind)).await;
    for action in plan.actions {
        scenario.act(action, guard.as_deref()).await;
    }
    if let Some(guard) = guard {
        let _ = within("release", SEVERAL_CALLS, guard.release()).await.map_err(shown);
    }
    let client = scenario.client;
    let _ =
        within("shutdown", SEVERAL_CALLS, client.shutdown(Duration::from_millis(500))).await.map_err(shown);
}

/// Fails unless the call ends in time, by the simulated clock.
async fn within<T>(what: &str, limit: Duration, call: impl Future<Output = T>) -> T {
    match timeout(limit + LATE, call).await {
        Ok(result) => result,
        Err(elapsed) => panic!("{what} has not ended after {limit:?}: {elapsed}"),
    }
}

/// Errors are for people, and must be printable.
fn shown(error: impl std::error::Error) -> usize {
    let mut length = format!("{error} {error:?}").len();
    let mut source = error.source();
    while let Some(error) = source {
        length += error.to_string().len();
        source = error.source();
    }
    length
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a good name")
}

impl Scenario {
    fn checked<G: LockGuard + 'static>(&self, guard: G) -> Box<dyn LockGuard> {
        self.check(guard.name().as_str(), guard.fencing_token());
        assert!(
            guard.remaining() <= LEASE,
            "{guard:?} has more than its lease of {LEASE:?}:\n{}",
            self.oracle.transcript()
        );
        Box::new(guard)
    }

    fn check(&self, name: &str, fence: FencingToken) {
        self.oracle.check(name, fence);
    }

    /// Acquires a lock of a kind; some in ways that leave no guard.
    #[allow(clippy::too_many_lines, reason = "one arm a kind")]
    async fn acquire(&self, kind: u8) -> Option<Box<dyn LockGuard>> {
        let client = &self.client;
        let limit = ACQUIRE_WITHIN;
        match kind % 16 {
            0 | 1 => {
                let lock = client.mutex(NAME).ok()?;
                let guard =
                    within("acquire", limit, lock.acquire_timeout(limit)).await.map_err(shown).ok()?;
                Some(self.checked(guard))
            }
            2 => {
                let lock = client.mutex(NAME).ok()?;
                let tried =
                    within("try_acquire", CALL_WITHIN, lock.try_acquire()).await.map_err(shown).ok()?;
                tried.granted().map(|guard| self.checked(guard))
            }
            3 => {
                let lock = client.reentrant_mutex(NAME).ok()?.owned_by(&client.new_owner());
                let guard =
                    within("acquire", limit, lock.acquire_timeout(limit)).await.map_err(shown).ok()?;
                let again = within("acquire", limit, lock.acquire_timeout(limit)).await;
                if let Ok(again) = again.map_err(shown) {
                    self.check(NAME, again.fencing_token());
                }
                Some(self.checked(guard))
            }
            4 => {
                let lock = client.rwlock(NAME).ok()?;
                let guard = within("read", limit, lock.read_timeout(limit)).await.map_err(shown).ok()?;
                Some(self.checked(guard))
            }
            5 => {
                let lock = client.rwlock(NAME).ok()?;
                let guard = within("write", limit, lock.write_timeout(limit)).await.map_err(shown).ok()?;
                Some(self.checked(guard))
            }
            6 => {
                let lock = client.rwlock(NAME).ok()?;
                let upgradable = lock.upgradable_read_timeout(limit);
                let upgradable = within("upgradable_read", limit, upgradable).await.map_err(shown).ok()?;
                let upgraded = within("upgrade", SEVERAL_CALLS, Box::pin(upgradable.upgrade_timeout(limit)))
                    .await
                    .ok()?;
                Some(self.checked(upgraded))
            }
            7 | 8 => {
                let lock = client.semaphore(NAME, 3).ok()?;
                let permit = within("acquire", limit, lock.acquire_many_timeout(2, limit))
                    .await
                    .map_err(shown)
                    .ok()?;
                Some(self.checked(permit))
            }
            9 => {
                let lock = client.election(NAME).ok()?;
                let leader =
                    within("campaign", limit, lock.campaign_timeout(limit)).await.map_err(shown).ok()?;
                let _ = within("proclaim", SEVERAL_CALLS, leader.proclaim("ready")).await.map_err(shown);
                Some(self.checked(leader))
            }
            10 => {
                let lock = client.multi_mutex([NAME, OTHER]).ok()?;
                let guard =
                    within("acquire", limit, lock.acquire_timeout(limit)).await.map_err(shown).ok()?;
                guard.fencing_tokens().for_each(|(name, fence)| self.check(name.as_str(), fence));
                let _ = within("release", SEVERAL_CALLS, guard.release()).await.map_err(shown);
                None
            }
            11 => {
                let lock = client.mutex(NAME).ok()?.lease(LEASE);
                let hold = within("acquire_detached", SEVERAL_CALLS, lock.try_acquire_detached()).await;
                let mut hold: DetachedHold = hold.map_err(shown).ok()?.granted()?;
                self.check(NAME, hold.fencing_token());
                let _ = within("extend", SEVERAL_CALLS, hold.extend(client, LEASE)).await.map_err(shown);
                let guard = within("attach", SEVERAL_CALLS, hold.attach(client)).await.map_err(shown).ok()?;
                Some(self.checked(guard))
            }
            12 => {
                let latch = client.latch(NAME, 1).ok()?;
                let _ = within("arrive", SEVERAL_CALLS, latch.arrive()).await.map_err(shown);
                let _ = within("wait", limit, latch.wait_timeout(limit)).await.map_err(shown);
                None
            }
            13 => {
                let barrier = client.barrier(NAME, 1).ok()?;
                let _ = within("wait", limit, barrier.wait_timeout(limit)).await.map_err(shown);
                None
            }
            14 => {
                let job = client.once_per(NAME, Duration::from_secs(2)).ok()?;
                let tried = within("try_start", CALL_WITHIN, job.try_start()).await.map_err(shown).ok()?;
                let guard = tried.granted()?;
                // Its lease is its own.
                self.check(NAME, LockGuard::fencing_token(&guard));
                Some(Box::new(guard))
            }
            _ => {
                // Two tasks of one process, of which the second is handed the hold by the first.
                let lock = client.mutex(NAME).ok()?;
                let (first, second) = (lock.acquire_timeout(limit), lock.acquire_timeout(2 * limit));
                let first = async {
                    let first = first.await.map_err(shown).ok()?;
                    self.check(NAME, first.fencing_token());
                    sleep(limit / 2).await;
                    let _ = within("release", SEVERAL_CALLS, first.release()).await.map_err(shown);
                    Some(())
                };
                let (_, second) = futures_util::join!(first, within("acquire", 2 * limit, second));
                second.map_err(shown).ok().map(|guard| self.checked(guard))
            }
        }
    }

    /// Does one thing, with or without a guard.
    async fn act(&self, action: u8, guard: Option<&dyn LockGuard>) {
        let (client, mutex) = (&self.client, self.client.mutex(NAME).expect("a good name"));
        match action % 20 {
            0 => {}
            1 => drop(within("inspect", CALL_WITHIN, mutex.inspect()).await.map_err(shown)),
            2 => {
                let seen = within("inspect_full", SEVERAL_CALLS, mutex.inspect_full()).await.map_err(shown);
                drop(seen.map(|seen| format!("{seen:?}")));
            }
            3 => {
                let sessions = within("sessions", SEVERAL_CALLS, client.sessions()).await.map_err(shown);
                drop(
                    sessions.map(|sessions| sessions.iter().map(|of| format!("{of:?}")).collect::<Vec<_>>()),
                );
            }
            4 => {
                let locks = within("locks", SEVERAL_CALLS, client.locks()).await.map_err(shown);
                drop(locks.map(|locks| locks.iter().map(|of| format!("{of:?}")).collect::<Vec<_>>()));
            }
            5 => {
                let graph = within("wait_graph", 2 * SEVERAL_CALLS, client.wait_graph()).await.map_err(shown);
                drop(graph.map(|graph| format!("{graph:?}")));
            }
            6 => {
                let found =
                    within("lock_statistics", SEVERAL_CALLS, client.lock_statistics()).await.map_err(shown);
                drop(found.map(|found| found.iter().map(|of| format!("{of:?}")).collect::<Vec<_>>()));
            }
            7 => {
                let limit = Duration::from_millis(500);
                let scan = client.scan("j", limit, |_| true);
                drop(within("scan", limit + SEVERAL_CALLS, scan).await.map_err(shown));
            }
            8 => {
                let _ = within("health", SEVERAL_CALLS, client.health()).await.map_err(shown);
            }
            9 => drop(format!("{:?}", within("run_once", SEVERAL_CALLS, client.monitor().run_once()).await)),
            10 => {
                let observed = ObservedHolder::Hold(FencingToken::new(1));
                let _ = within("force_release", SEVERAL_CALLS, mutex.force_release(observed))
                    .await
                    .map_err(shown);
            }
            11 => {
                let locks = Kind::ALL.map(|kind| Lock { kind, name: name(NAME) });
                let seen =
                    within("inspect_all", SEVERAL_CALLS, client.inspect_all(locks)).await.map_err(shown);
                drop(seen.map(|seen| seen.iter().map(|of| format!("{of:?}")).collect::<Vec<_>>()));
            }
            12 => {
                let Ok(semaphore) = client.semaphore(NAME, 3) else { return };
                let _ = within("resize", SEVERAL_CALLS, semaphore.resize(5)).await.map_err(shown);
                let _ =
                    within("available", SEVERAL_CALLS, semaphore.available_permits()).await.map_err(shown);
            }
            13 => {
                let Ok(election) = client.election(NAME) else { return };
                drop(within("leader", SEVERAL_CALLS, election.leader()).await.map_err(shown));
            }
            14 => {
                let Ok(rwlock) = client.rwlock(NAME) else { return };
                drop(within("inspect_full", SEVERAL_CALLS, rwlock.inspect_full()).await.map_err(shown));
                let forced = rwlock.force_release_readers();
                let _ = within("force_release_readers", SEVERAL_CALLS, forced).await.map_err(shown);
            }
            15 => sleep(Duration::from_millis(700)).await,
            16 => sleep(Duration::from_secs(3)).await,
            17 => {
                let Ok(other) = client.mutex(OTHER) else { return };
                let limit = ACQUIRE_WITHIN;
                let acquired = within("acquire", limit, other.acquire_timeout(limit)).await;
                if let Ok(guard) = acquired.map_err(shown) {
                    self.check(OTHER, guard.fencing_token());
                    let _ = within("extend", SEVERAL_CALLS, guard.extend()).await.map_err(shown);
                }
            }
            18 => within("flush", Duration::from_secs(20), client.flush()).await,
            _ => {
                let Some(guard) = guard else { return };
                let _ = guard.check().map_err(shown);
                let _ = timeout(Duration::from_secs(2), guard.lost()).await.map(shown);
            }
        }
    }
}
