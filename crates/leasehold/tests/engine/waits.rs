//! What waits for what: what clients report, and the cycles that are found.

use crate::environment::{client_in_paused_time, memory};
use crate::fixture::mutex;
use leasehold::error::AcquireError;
use leasehold::inspect::{SessionId, WaitCycle, WaitGraph};
use leasehold::store::{Lock, MemoryStore, Outcome, SessionOp, SessionReply, Shards, Store};
use leasehold::{Client, Deadlock, Owner};
use leasehold_core::{Heartbeat, Partition};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

async fn client(store: &MemoryStore) -> Client {
    client_in_paused_time(store.clone()).connect().await.expect("it connects")
}

/// What a session reports.
async fn activity(store: &MemoryStore, session: SessionId) -> String {
    match store.execute_session(Partition::ONLY, &SessionOp::List, S).await {
        Outcome::Done(SessionReply::List(list)) => {
            let entry = list.entries.into_iter().find(|entry| entry.session == session);
            entry.expect("the session is listed").activity
        }
        other => panic!("{other:?}"),
    }
}

async fn graph(client: &Client) -> WaitGraph {
    client.wait_graph().await.expect("an answer")
}

/// The locks of a cycle, in the order of the alphabet.
fn locks(cycle: &WaitCycle) -> Vec<&str> {
    let mut locks: Vec<_> = cycle.waits.iter().map(|wait| wait.lock.as_str()).collect();
    locks.sort_unstable();
    locks
}

/// A task that acquires the locks one after the other, with a pause after each, and never releases them.
fn take(client: &Client, names: [&'static str; 2], pause: Duration) -> tokio::task::JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move {
        let first = mutex(&client, names[0]).acquire().await.expect("acquired");
        sleep(pause).await;
        let second = mutex(&client, names[1]).acquire().await.expect("acquired");
        std::future::pending::<()>().await;
        drop((first, second));
    })
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_reported_once_it_lasts_and_withdrawn_when_it_ends() {
    let store = memory();
    let (a, b) = (client(&store).await, client(&store).await);
    let guard = mutex(&a, "m").acquire().await.expect("acquired");
    let other = mutex(&b, "other").acquire().await.expect("acquired");
    let waiter = tokio::spawn({
        let b = b.clone();
        async move {
            let inner = mutex(&b, "inner").acquire().await.expect("acquired");
            let guard = mutex(&b, "m").acquire().await.expect("acquired");
            inner.release().await.expect("released");
            guard
        }
    });
    sleep(290 * MS).await;
    assert_eq!(activity(&store, b.session_id()).await, "");
    sleep(30 * MS).await;
    let text = activity(&store, b.session_id()).await;
    assert!(text.contains("\"lock\":\"m\"") && text.contains("\"lock\":\"inner\""), "{text}");
    assert!(!text.contains("other"), "held by no waiter: {text}");
    let shown = graph(&a).await;
    let [wait] = &shown.waits[..] else { panic!("{shown:?}") };
    assert_eq!((wait.lock.as_str(), wait.session, wait.refuses), ("m", b.session_id(), false));
    let [holder] = &wait.holders[..] else { panic!("{wait:?}") };
    assert_eq!((holder.fence, holder.session), (Some(guard.fencing_token()), Some(a.session_id())));
    assert!(holder.waiters.is_empty() && shown.cycles.is_empty(), "{shown:?}");
    guard.release().await.expect("released");
    let granted = waiter.await.expect("no panic");
    sleep(520 * MS).await;
    assert_eq!(activity(&store, b.session_id()).await, "");
    assert_eq!(graph(&a).await.waits, []);
    drop((granted, other));
    assert_eq!(activity(&store, a.session_id()).await, "", "it never waited");
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_two_clients_is_named_within_two_seconds_and_not_before() {
    let store = memory();
    let (a, b, observer) = (client(&store).await, client(&store).await, client(&store).await);
    let one = take(&a, ["a", "b"], S);
    let other = take(&b, ["b", "a"], 3 * S);
    // The second wait begins after three seconds.
    let start = Instant::now();
    while start.elapsed() < 3 * S {
        let early = graph(&observer).await;
        assert!(early.cycles.is_empty(), "{early:?}");
        sleep(20 * MS).await;
    }
    let found = loop {
        let found = graph(&observer).await;
        if !found.cycles.is_empty() {
            break found;
        }
        assert!(start.elapsed() < 5 * S, "{found:?}");
        sleep(20 * MS).await;
    };
    assert!(start.elapsed() < 5 * S, "{:?}", start.elapsed());
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!(locks(cycle), ["a", "b"]);
    let sessions: Vec<_> = cycle.waits.iter().map(|wait| wait.session).collect();
    assert_eq!(sessions, [a.session_id(), b.session_id()], "the oldest wait comes first");
    let text = cycle.to_string();
    assert!(text.contains("waits for `b`") && text.ends_with("held by the first"), "{text}");
    one.abort();
    let _ = one.await;
    sleep(S).await;
    assert!(graph(&observer).await.cycles.is_empty());
    other.abort();
}

/// Each shard has a session of each client, which reports all that the client waits for, or its part of it.
#[tokio::test(start_paused = true)]
async fn a_cycle_over_several_shards_is_named() {
    let stores = [0, 1, 2].map(|n: usize| (n.to_string(), Arc::new(memory()) as Arc<dyn Store>));
    let shards = || Shards::new(stores.clone()).expect("three stores");
    let mut there: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"]
        .into_iter()
        .map(|name| (shards().shard_of(&Lock::mutex(name.parse().expect("a name"))).to_owned(), name))
        .collect();
    there.sort_unstable();
    there.dedup_by(|one, other| one.0 == other.0);
    let [(_, first), (_, second), (_, third)] = there[..] else { panic!("a lock in each shard: {there:?}") };
    let client = async || client_in_paused_time(shards()).connect().await.expect("it connects");
    let (clients, observer) = ([client().await, client().await, client().await], client().await);
    let tasks = [
        take(&clients[0], [first, second], S),
        take(&clients[1], [second, third], S),
        take(&clients[2], [third, first], 2 * S),
    ];
    let start = Instant::now();
    let found = loop {
        let found = graph(&observer).await;
        if !found.cycles.is_empty() {
            break found;
        }
        assert!(start.elapsed() < 4 * S, "{found:?}");
        sleep(20 * MS).await;
    };
    assert!(start.elapsed() > 2 * S, "the third wait begins then");
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    let mut expected = [first, second, third];
    expected.sort_unstable();
    assert_eq!(locks(cycle), expected);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    for task in tasks {
        let _ = task.await;
    }
    sleep(S).await;
    assert_eq!(graph(&observer).await.waits, [], "in no shard");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_client_are_told_apart() {
    let store = memory();
    let ours = client(&store).await;
    let tasks = [take(&ours, ["a", "b"], S), take(&ours, ["b", "a"], S), take(&ours, ["c", "a"], S)];
    sleep(2 * S).await;
    let found = graph(&ours).await;
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!((locks(cycle), found.waits.len()), (vec!["a", "b"], 3));
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn an_owner_is_one_in_every_process() {
    let store = memory();
    let clients = [client(&store).await, client(&store).await, client(&store).await, client(&store).await];
    // Each piece of work holds a lock by one process, and waits by another.
    let work = |holder: &Client, waiter: &Client, names: [&'static str; 2], owner: &str| {
        let owner = Owner::new(owner).expect("an owner");
        let (holder, waiter, elsewhere) =
            (holder.clone(), waiter.clone(), Owner::from_header(owner.to_header()));
        let waits = async move {
            sleep(500 * MS).await;
            mutex(&waiter, names[1]).acquire().await.map(drop)
        };
        let holds = async move {
            let guard = mutex(&holder, names[0]).acquire().await.expect("acquired");
            tokio::spawn(elsewhere.expect("an owner").scope(waits))
                .await
                .expect("no panic")
                .expect("acquired");
            guard.release().await
        };
        tokio::spawn(owner.scope(holds))
    };
    let one = work(&clients[0], &clients[1], ["a", "b"], "request-1");
    let other = work(&clients[2], &clients[3], ["b", "a"], "request-2");
    sleep(2 * S).await;
    let found = graph(&clients[0]).await;
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!(locks(cycle), ["a", "b"]);
    assert!(cycle.waits.iter().all(|wait| wait.waiter.starts_with('o') && !wait.waiter.contains("request")));
    for client in &clients {
        let text = activity(&store, client.session_id()).await;
        assert!(!text.is_empty() && !text.contains("request"), "{text}");
    }
    one.abort();
    other.abort();
}

#[tokio::test(start_paused = true)]
async fn reports_may_say_that_any_number_is_left_out() {
    let store = memory();
    let observer = client(&store).await;
    for of in [1, 2] {
        let session = SessionId::from_random([of; 12]);
        let op = SessionOp::Heartbeat(Heartbeat {
            session,
            alive_ms: 10_000,
            begin: Some(String::new()),
            acquired: Vec::new(),
            released: Vec::new(),
            renew_listing: true,
            activity: Some(format!(r#"{{"client":"{session}","omitted":18446744073709551615}}"#)),
        });
        assert!(matches!(store.execute_session(Partition::ONLY, &op, S).await, Outcome::Done(_)));
    }
    assert_eq!(graph(&observer).await.omitted, u64::MAX);
}

#[tokio::test(start_paused = true)]
async fn a_process_inside_of_a_hold_waits_for_it() {
    let store = memory();
    let (outer, observer) = (client(&store).await, client(&store).await);
    let guard = mutex(&outer, "a").acquire().await.expect("acquired");
    let other = client(&store).await;
    let others = mutex(&other, "b").acquire().await.expect("acquired");
    let inside = |name: &str, fence| {
        let name: leasehold::LockName = name.parse().expect("a good name");
        client_in_paused_time(store.clone()).enclosing_hold(&name, fence).connect()
    };
    let wait = |client: Client, name: &'static str| {
        tokio::spawn(async move { mutex(&client, name).acquire().await.map(drop) })
    };
    let one = wait(inside("a", guard.fencing_token()).await.expect("it connects"), "b");
    sleep(2 * S).await;
    assert!(graph(&observer).await.cycles.is_empty());
    let two = wait(inside("b", others.fencing_token()).await.expect("it connects"), "a");
    sleep(S).await;
    let found = graph(&observer).await;
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!(locks(cycle), ["a", "b"]);
    two.abort();
    // A process between the two, which itself holds something and waits for nothing.
    let between = inside("b", others.fencing_token()).await.expect("it connects");
    let middle = mutex(&between, "c").acquire().await.expect("acquired");
    let three = wait(inside("c", middle.fencing_token()).await.expect("it connects"), "a");
    sleep(2 * S).await;
    let found = graph(&observer).await;
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!(locks(cycle), ["a", "b"]);
    // And one that waits for the lock around itself.
    one.abort();
    three.abort();
    let own = wait(inside("a", guard.fencing_token()).await.expect("it connects"), "a");
    sleep(2 * S).await;
    let found = graph(&observer).await;
    let [cycle] = &found.cycles[..] else { panic!("{found:?}") };
    assert_eq!(locks(cycle), ["a"]);
    own.abort();
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_given_away_makes_no_cycle_of_one() {
    let store = memory();
    let ours = client(&store).await;
    let permits = ours.semaphore("pool", 2).expect("a semaphore");
    // The common loop: a permit for each task, acquired before the task is spawned.
    let spawner = tokio::spawn(async move {
        for _ in 0..6 {
            let permit = permits.acquire().await.expect("acquired");
            tokio::spawn(async move {
                sleep(2 * S).await;
                permit.release().await.expect("released");
            });
        }
    });
    for _ in 0..8 {
        sleep(600 * MS).await;
        let shown = graph(&ours).await;
        assert!(shown.cycles.is_empty(), "{shown:?}");
    }
    spawner.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_ended_before_the_other_one_began_makes_no_cycle() {
    let store = memory();
    let (a, b, observer) = (client(&store).await, client(&store).await, client(&store).await);
    let busy = mutex(&b, "c").acquire().await.expect("acquired");
    let other = tokio::spawn({
        let b = b.clone();
        async move {
            let first = mutex(&b, "b").acquire().await.expect("acquired");
            sleep(1_020 * MS).await;
            let second = mutex(&b, "a").acquire().await.expect("acquired");
            drop((first, second));
        }
    });
    sleep(5 * MS).await;
    // It waits for `b` until it gives up after one second, and still holds `a` then.
    let one = tokio::spawn({
        let a = a.clone();
        async move {
            let first = mutex(&a, "a").acquire().await.expect("acquired");
            mutex(&a, "b").max_wait(S).acquire().await.expect_err("held for longer");
            sleep(2 * S).await;
            drop(first);
        }
    });
    // Another report of the client, because of which the wait is withdrawn half a second later only.
    sleep(650 * MS).await;
    let third = tokio::spawn(async move { mutex(&a, "c").acquire().await.map(drop) });
    let mut looks = Vec::new();
    for _ in 0..60 {
        sleep(20 * MS).await;
        let observer = observer.clone();
        looks.push(tokio::spawn(async move { graph(&observer).await }));
    }
    let mut both = 0;
    for look in looks {
        let shown = look.await.expect("no panic");
        both = both.max(shown.waits.len());
        assert!(shown.cycles.is_empty(), "{shown:#?}");
    }
    assert!(both >= 2, "the looks saw waits");
    drop(busy);
    for task in [one, other] {
        task.await.expect("no panic");
    }
    third.await.expect("no panic").expect("acquired");
}

/// Each look shows a cycle, but with another wait: it is one that gives up, and tries again.
#[tokio::test(start_paused = true)]
async fn a_wait_that_begins_anew_between_the_looks_makes_no_cycle() {
    let store = memory();
    let (a, b, observer) = (client(&store).await, client(&store).await, client(&store).await);
    let stuck = take(&a, ["a", "b"], 100 * MS);
    let again = tokio::spawn(async move {
        let held = mutex(&b, "b").acquire().await.expect("acquired");
        for _ in 0..20 {
            mutex(&b, "a").max_wait(650 * MS).acquire().await.expect_err("held for longer");
        }
        drop(held);
    });
    let mut looks = Vec::new();
    for _ in 0..200 {
        sleep(50 * MS).await;
        let observer = observer.clone();
        looks.push(tokio::spawn(async move { graph(&observer).await }));
    }
    let mut both = 0;
    for look in looks {
        let shown = look.await.expect("no panic");
        both += usize::from(shown.waits.len() == 2);
        assert!(shown.cycles.is_empty(), "{shown:#?}");
    }
    assert!(both >= 20, "the looks saw both waits: {both}");
    stuck.abort();
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_ends_during_the_wait_is_withdrawn() {
    let store = memory();
    let (a, b) = (client(&store).await, client(&store).await);
    let guard = mutex(&a, "m").acquire().await.expect("acquired");
    for (lock, goes_on) in [("released", false), ("handed on", true)] {
        let (give, given) = tokio::sync::oneshot::channel();
        let waiter = tokio::spawn({
            let b = b.clone();
            async move {
                let _ = give.send(mutex(&b, lock).acquire().await.expect("acquired"));
                mutex(&b, "m").acquire().await.map(drop)
            }
        });
        let elsewhere = given.await.expect("acquired");
        let next = goes_on.then(|| {
            tokio::spawn({
                let b = b.clone();
                async move {
                    let guard = mutex(&b, lock).acquire().await.expect("acquired");
                    sleep(3 * S).await;
                    drop(guard);
                }
            })
        });
        sleep(2 * S).await;
        let name = format!("\"lock\":\"{lock}\"");
        let holds = |text: &str| text.split("\"holds\"").nth(1).is_some_and(|holds| holds.contains(&name));
        assert!(holds(&activity(&store, b.session_id()).await));
        elsewhere.release().await.expect("released");
        sleep(520 * MS).await;
        let text = activity(&store, b.session_id()).await;
        assert!(text.contains("\"lock\":\"m\"") && !holds(&text), "{text}");
        waiter.abort();
        if let Some(next) = next {
            next.await.expect("no panic");
        }
        sleep(S).await;
    }
    drop(guard);
}

/// What a wait that refuses a deadlock ends with: nothing, or the cycle.
fn cycle_of<G>(acquired: Result<G, AcquireError>) -> Option<WaitCycle> {
    match acquired {
        Ok(_) => None,
        Err(AcquireError::Deadlock(cycle)) => Some(*cycle),
        Err(error) => panic!("{error}"),
    }
}

/// A task that holds one lock and waits for another one, until it is refused that one. Returns the lock it did not get.
fn refusing(
    client: &Client,
    names: [&'static str; 2],
    pause: Duration,
) -> tokio::task::JoinHandle<Option<WaitCycle>> {
    let client = client.clone();
    tokio::spawn(async move {
        let first = mutex(&client, names[0]).acquire().await.expect("acquired");
        sleep(pause).await;
        let result = cycle_of(mutex(&client, names[1]).deadlock(Deadlock::Refuse).acquire().await);
        first.release().await.expect("released");
        result
    })
}

#[tokio::test(start_paused = true)]
async fn the_youngest_wait_that_refuses_gets_the_cycle_and_the_others_go_on() {
    for refusers in [[true, true, true], [true, false, false], [false, true, true]] {
        let store = memory();
        let names = [["a", "b"], ["b", "c"], ["c", "a"]];
        let mut waits = Vec::new();
        for (at, refuses) in refusers.into_iter().enumerate() {
            let client = client(&store).await;
            let pause = S + 100 * MS * u32::try_from(at).expect("small");
            waits.push(if refuses {
                refusing(&client, names[at], pause)
            } else {
                tokio::spawn(async move {
                    let first = mutex(&client, names[at][0]).acquire().await.expect("acquired");
                    sleep(pause).await;
                    let second = mutex(&client, names[at][1]).acquire().await.expect("acquired");
                    drop((first, second));
                    None
                })
            });
        }
        let start = Instant::now();
        let mut cycles = Vec::new();
        for wait in waits {
            cycles.push(wait.await.expect("no panic"));
        }
        assert!(start.elapsed() < 6 * S, "{:?}", start.elapsed());
        let expected = refusers.iter().rposition(|refuses| *refuses).expect("one refuses");
        for (at, cycle) in cycles.into_iter().enumerate() {
            assert_eq!(cycle.is_some(), at == expected, "{refusers:?}: {at}");
            let Some(cycle) = cycle else { continue };
            assert_eq!(locks(&cycle), ["a", "b", "c"]);
            assert!(cycle.waits.iter().all(|wait| wait.process.is_some()), "{cycle:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_in_no_cycle_is_not_refused() {
    let store = memory();
    let (a, b) = (client(&store).await, client(&store).await);
    let guard = mutex(&a, "b").acquire().await.expect("acquired");
    let waiter = refusing(&b, ["a", "b"], MS);
    sleep(30 * S).await;
    guard.release().await.expect("released");
    assert_eq!(waiter.await.expect("no panic"), None);
}

/// Beginnings and ends.
type Intervals = Vec<(Instant, Option<Instant>)>;

/// When tasks waited for locks and held them: by task and lock.
#[derive(Default)]
struct History {
    waits: HashMap<(String, String), Intervals>,
    holds: HashMap<(String, String), Intervals>,
}

type SharedHistory = Arc<StdMutex<History>>;

/// Notes the time between its creation and its end.
struct Noted {
    history: SharedHistory,
    is_wait: bool,
    key: (String, String),
    at: usize,
}

impl Noted {
    fn new(history: &SharedHistory, is_wait: bool, lock: &str) -> Self {
        let key = (tokio::task::id().to_string(), lock.to_owned());
        let mut all = history.lock().expect("no panic");
        let entries = if is_wait { &mut all.waits } else { &mut all.holds };
        let list = entries.entry(key.clone()).or_default();
        list.push((Instant::now(), None));
        Self { history: history.clone(), is_wait, at: list.len() - 1, key }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut all = self.history.lock().expect("no panic");
        let entries = if self.is_wait { &mut all.waits } else { &mut all.holds };
        if let Some(list) = entries.get_mut(&self.key) {
            list[self.at].1 = Some(Instant::now());
        }
    }
}

impl History {
    /// Whether all waits and holds of a cycle existed at one instant.
    fn confirms(&self, cycle: &WaitCycle) -> bool {
        let task =
            |waiter: &str| waiter.rsplit_once("/t").map(|(_, task)| task.to_owned()).unwrap_or_default();
        let intervals = cycle.waits.iter().enumerate().flat_map(|(at, wait)| {
            let next = &cycle.waits[(at + 1) % cycle.waits.len()];
            let lock = wait.lock.to_string();
            let waits = self.waits.get(&(task(&wait.waiter), lock.clone())).cloned();
            let holds = self.holds.get(&(task(&next.waiter), lock)).cloned();
            [waits.unwrap_or_default(), holds.unwrap_or_default()]
        });
        // Each task waits for a lock and holds it once, so the latest interval is the one.
        let now = Instant::now();
        let (mut from, mut to) = (None, now);
        for list in intervals {
            let Some((start, end)) = list.last().copied() else { return false };
            from = from.max(Some(start));
            to = to.min(end.unwrap_or(now));
        }
        from.is_some_and(|from| from <= to)
    }
}

/// Tasks that acquire several locks each, hold them for a while, and sometimes give up: `ordered`, in the order of their names.
async fn random_schedule(
    clients: [Client; 2],
    number: u64,
    ordered: bool,
    history: SharedHistory,
    mut random: StdRng,
) {
    let tasks = random.random_range(2..5_usize);
    let mut running = Vec::new();
    for _ in 0..tasks {
        let client = clients[random.random_range(0..2)].clone();
        let mut locks: Vec<u32> = (0..4).filter(|_| random.random_range(0..3) > 0).collect();
        if !ordered {
            for at in (1..locks.len()).rev() {
                locks.swap(at, random.random_range(0..=at));
            }
        }
        let history = history.clone();
        let mut random = StdRng::seed_from_u64(random.random());
        running.push(tokio::spawn(async move {
            sleep(MS * random.random_range(0..300)).await;
            let mut held = Vec::new();
            for lock in locks {
                let name = format!("{number}/{lock}");
                let noted = Noted::new(&history, true, &name);
                let patience = MS * *[700, 1_500, 4_000, 8_000].get(random.random_range(0..4)).expect("one");
                let acquired = acquire(&client, &name, lock, patience, &mut random).await;
                drop(noted);
                let Some(guard) = acquired else { break };
                held.push((guard, Noted::new(&history, false, &name)));
                sleep(MS * random.random_range(0..900)).await;
            }
            while !held.is_empty() {
                let (guard, noted) = held.swap_remove(random.random_range(0..held.len()));
                // It is over at the store before it is noted.
                guard.release().await;
                drop(noted);
                sleep(MS * random.random_range(0..200)).await;
            }
        }));
    }
    for task in running {
        task.await.expect("no panic");
    }
}

/// Any guard.
enum AnyGuard {
    Mutex(leasehold::Guard),
    Permit(leasehold::Permit),
    Read(leasehold::ReadGuard),
    Write(Box<leasehold::WriteGuard>),
}

impl AnyGuard {
    async fn release(self) {
        match self {
            Self::Mutex(guard) => guard.release().await.expect("released"),
            Self::Permit(guard) => guard.release().await.expect("released"),
            Self::Read(guard) => guard.release().await.expect("released"),
            Self::Write(guard) => guard.release().await.expect("released"),
        }
    }
}

/// Acquires a lock whose kind its number chooses; gives up after a while, by the limit of the lock or by dropping the future.
async fn acquire(
    client: &Client,
    name: &str,
    lock: u32,
    patience: Duration,
    random: &mut StdRng,
) -> Option<AnyGuard> {
    let limit = if random.random_range(0..2) == 0 { patience } else { 60 * S };
    let acquiring = async {
        match lock {
            0 | 3 => mutex(client, name).max_wait(limit).acquire().await.ok().map(AnyGuard::Mutex),
            1 => {
                let pool = client.semaphore(name, 2).expect("a semaphore").max_wait(limit);
                pool.acquire().await.ok().map(AnyGuard::Permit)
            }
            _ => {
                let table = client.rwlock(name).expect("a lock").max_wait(limit);
                if random.random_range(0..2) == 0 {
                    table.read().await.ok().map(AnyGuard::Read)
                } else {
                    table.write().await.ok().map(|guard| AnyGuard::Write(Box::new(guard)))
                }
            }
        }
    };
    timeout(patience, acquiring).await.ok().flatten()
}

/// Runs so many schedules, some at a time. Returns the numbers of waits and of cycles that were seen. Each cycle must have existed.
async fn run_schedules(schedules: u64, ordered: bool, seed: u64) -> (usize, usize) {
    const AT_A_TIME: u64 = 50;
    let (mut waits, mut cycles) = (0, 0);
    for batch in 0..schedules / AT_A_TIME {
        let store = memory();
        let clients = [client(&store).await, client(&store).await];
        let observer = client(&store).await;
        let history = SharedHistory::default();
        let all: Vec<_> = (0..AT_A_TIME)
            .map(|number| {
                let random = StdRng::seed_from_u64(seed ^ (batch * AT_A_TIME + number));
                tokio::spawn(random_schedule(clients.clone(), number, ordered, history.clone(), random))
            })
            .collect();
        let mut random = StdRng::seed_from_u64(seed ^ batch);
        while all.iter().any(|task| !task.is_finished()) {
            let shown = graph(&observer).await;
            waits += shown.waits.len();
            cycles += shown.cycles.len();
            for cycle in &shown.cycles {
                let history = history.lock().expect("no panic");
                assert!(history.confirms(cycle), "seed {seed}, batch {batch}: {cycle:#?}");
            }
            sleep(MS * random.random_range(50..400)).await;
        }
        for task in all {
            task.await.expect("no panic");
        }
        sleep(S).await;
        assert_eq!(graph(&observer).await.waits, [], "seed {seed}, batch {batch}");
    }
    (waits, cycles)
}

/// The seed of random schedules.
fn seed() -> u64 {
    let seed = rand::random();
    println!("seed {seed}");
    seed
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_schedules_without_a_cycle_show_none() {
    let (waits, cycles) = run_schedules(10_000, true, seed()).await;
    println!("{waits} waits");
    assert!(waits > 10_000, "the schedules produce waits: {waits}");
    assert_eq!(cycles, 0);
}

#[tokio::test(start_paused = true)]
async fn cycles_of_random_schedules_are_found_and_exist() {
    let (waits, cycles) = run_schedules(1_000, false, seed()).await;
    println!("{waits} waits, {cycles} cycles");
    assert!(cycles > 100, "{cycles} of 1000 schedules");
}

/// A wait of each kind that refuses: the other process holds its lock, and waits for one of this process.
#[tokio::test(start_paused = true)]
async fn a_wait_of_any_kind_refuses_to_be_part_of_a_cycle() {
    for kind in ["election", "set", "reentrant set", "key", "all keys", "mutex"] {
        let store = memory();
        let (here, there) = (client(&store).await, client(&store).await);
        let own = mutex(&here, "own").acquire().await.expect("acquired");
        let (held, holds) = tokio::sync::oneshot::channel();
        let other = tokio::spawn(async move {
            let keyed = there.keyed_semaphore("keyed", 2, 1).expect("a good name");
            let guard: Box<dyn std::any::Any + Send> = match kind {
                "election" => {
                    Box::new(there.election("wanted").expect("a good name").campaign().await.expect("leads"))
                }
                "reentrant set" => Box::new(
                    there.reentrant_mutex("wanted").expect("a good name").acquire().await.expect("acquired"),
                ),
                "key" => Box::new(keyed.acquire("a").await.expect("acquired")),
                "all keys" => Box::new(keyed.all().acquire_many(2).await.expect("acquired")),
                _ => Box::new(mutex(&there, "wanted").acquire().await.expect("acquired")),
            };
            held.send(()).expect("the test waits");
            let own = mutex(&there, "own").acquire().await.expect("acquired");
            drop((own, guard));
        });
        holds.await.expect("it holds");
        let names = ["wanted", "free"];
        let refuse = Deadlock::Refuse;
        let keyed = here.keyed_semaphore("keyed", 2, 1).expect("a good name").deadlock(refuse);
        let refused = match kind {
            "election" => {
                cycle_of(here.election("wanted").expect("a good name").deadlock(refuse).campaign().await)
            }
            "set" => cycle_of(here.multi_mutex(names).expect("good names").deadlock(refuse).acquire().await),
            "reentrant set" => {
                let set = here.multi_reentrant_mutex(names).expect("good names");
                cycle_of(set.deadlock(refuse).acquire().await)
            }
            "key" | "all keys" => cycle_of(keyed.acquire("a").await),
            _ => cycle_of(mutex(&here, "wanted").deadlock(refuse).acquire().await),
        };
        let cycle = refused.unwrap_or_else(|| panic!("{kind}: acquired"));
        assert_eq!(cycle.waits.len(), 2, "{kind}: {cycle}");
        // Nothing is left of the set, and the other process goes on.
        own.release().await.expect("released");
        other.await.expect("no panic");
        let _ = mutex(&here, "free").try_acquire().await.expect("a reply").granted().expect("free");
    }
}
