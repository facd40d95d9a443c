//! Sessions, over a store that can be cut off from one client, in virtual time: the cost of a death, an outage and a
//! stop.

mod fixture;
mod on_demand;

use fixture::{Fixture, MS, Process, S};
use leasehold::error::AcquireError;
use leasehold::inspect::Ended;
use leasehold::store::{MemoryStore, Notification};
use leasehold::{Attempt, Client, FencingToken, LostReason};
use leasehold_core::{SessionEntry, SessionMetadata};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::time::{Instant, sleep, timeout};

#[tokio::test(start_paused = true)]
async fn a_session_without_heartbeats_loses_all_its_holds() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let long = process.client.mutex("long").unwrap().lease(600 * S).acquire().await.unwrap();
    let watched = process.client.mutex("watched").unwrap().acquire().await.unwrap();
    sleep(30 * S).await;
    long.check().expect("it beats");
    process.cut();
    let cut_at = Instant::now();
    sleep(7 * S).await;
    long.check().expect("an outage that is shorter than the session is tolerated");
    let (a, b) = tokio::join!(long.lost(), watched.lost());
    assert_eq!((a.reason, b.reason), (LostReason::SessionLapsed, LostReason::SessionLapsed));
    assert!(cut_at.elapsed() < 10 * S, "before the store can think so: {:?}", cut_at.elapsed());
}

/// The process detects the lapse before the store does, and no task has a guard that would release the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_kept_for_local_tasks_is_released_when_its_session_lapses() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(10 * S)).await, fixture.process(None).await);
    let kept = process.client.mutex("a").unwrap().lease(600 * S).sticky(600 * S);
    kept.acquire().await.unwrap().release().await.unwrap();
    let theirs = other.client.mutex("a").unwrap();
    assert!(theirs.inspect().await.unwrap().held);
    process.suspended_ms.fetch_add(11_000, SeqCst);
    sleep(2 * S).await;
    assert!(
        !theirs.inspect().await.unwrap().held,
        "the store would take it for held for as long as its lease"
    );
}

/// It outlives its session, whose mailbox is closed: no message would tell that another client wants the lock.
#[tokio::test(start_paused = true)]
async fn a_hold_of_a_former_session_is_not_kept_for_local_tasks() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(3 * S)).await, fixture.process(None).await);
    let kept = process.client.mutex("a").unwrap().lease(600 * S).lock_delay(S).sticky(600 * S);
    let guard = kept.acquire().await.unwrap();
    sleep(S).await;
    let (first, lapsed) = (process.client.session_id(), process.client.session_lost_signal());
    process.cut();
    lapsed.cancelled().await;
    process.reconnect();
    sleep(5 * S).await;
    assert_ne!(process.client.session_id(), first);
    guard.check().expect("its lease alone ends it");
    guard.release().await.unwrap();
    sleep(S).await;
    assert!(!other.client.mutex("a").unwrap().inspect().await.unwrap().held);
    // A hold of the present session is kept.
    kept.acquire().await.unwrap().release().await.unwrap();
    assert!(other.client.mutex("a").unwrap().inspect().await.unwrap().held);
}

#[tokio::test(start_paused = true)]
async fn another_session_begins_once_the_store_is_back() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let first = process.client.session_id();
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = process.client.mutex("b").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    waiting.await.unwrap().expect("it is free").release().await.unwrap();
    process.cut();
    guard.lost().await;
    let seeking = tokio::spawn({
        let mutex = process.client.mutex("a").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    sleep(10 * S).await;
    let refused = process.client.mutex("c").unwrap().try_acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Store(_))),
        "without a session nothing is requested: {refused:?}"
    );
    assert!(!seeking.is_finished(), "a waiter tolerates the outage");
    process.reconnect();
    let again = seeking.await.unwrap().expect("the store is back");
    assert_ne!(process.client.session_id(), first, "a session that lapsed is never revived");
    assert!(again.fencing_token() > guard.fencing_token());
    assert_eq!(guard.check().unwrap_err().reason, LostReason::SessionLapsed);
    drop(guard);
    sleep(5 * S).await;
    again.check().expect("the holds of the old session are not those of the new one");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_lasts_is_reported_by_the_next_session_too() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(3 * S)).await, fixture.process(None).await);
    let held = other.client.mutex("a").unwrap().acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = process.client.mutex("a").unwrap();
        async move { mutex.acquire_timeout(60 * S).await }
    });
    let is_reported = async || {
        let session = process.client.session_id();
        let sessions = fixture.sessions().await;
        sessions.iter().any(|entry| entry.session == session && entry.activity.contains("\"lock\":\"a\""))
    };
    sleep(S).await;
    assert!(is_reported().await);
    let (first, lapsed) = (process.client.session_id(), process.client.session_lost_signal());
    process.cut();
    lapsed.cancelled().await;
    process.reconnect();
    sleep(5 * S).await;
    assert_ne!(process.client.session_id(), first);
    assert!(is_reported().await);
    held.release().await.unwrap();
    waiting.await.unwrap().expect("granted").release().await.unwrap();
    sleep(S).await;
    assert!(!is_reported().await);
}

/// While no session has begun, no mailbox tells of a connection that was made again, perhaps to a store with older data.
#[tokio::test(start_paused = true)]
async fn what_was_released_is_released_again_when_the_next_session_begins() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(3 * S)).await, fixture.process(None).await);
    let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(S).await;
    process.connection.forgets_releases.store(true, SeqCst);
    guard.release().await.unwrap();
    process.connection.forgets_releases.store(false, SeqCst);
    let theirs = other.client.mutex("a").unwrap();
    let lapsed = process.client.session_lost_signal();
    process.cut();
    lapsed.cancelled().await;
    sleep(10 * S).await;
    assert!(theirs.inspect().await.unwrap().held, "the data of before");
    process.reconnect();
    sleep(5 * S).await;
    assert!(!theirs.inspect().await.unwrap().held, "it would stand until its lease is over");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_session_begins_again_and_keeps_what_the_store_has() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let session = process.client.session_id();
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(4 * S).await;
    fixture.forget(session).await;
    assert!(fixture.sessions().await.is_empty());
    let before = process.connection.extends.load(SeqCst);
    sleep(3 * S).await;
    guard.check().expect("the store has it");
    assert_eq!(process.connection.begins.load(SeqCst), 2);
    assert!(process.connection.extends.load(SeqCst) > before, "it asked whether the store has it");
    assert_eq!(process.client.session_id(), session);
    let [listed] = &fixture.sessions().await[..] else { panic!("one session") };
    assert_eq!((listed.session, listed.held.len()), (session, 1), "with the locks that it holds");
    let about = SessionMetadata::from_json(&listed.metadata).expect("ours");
    assert_eq!(about.labels["zone"].as_str(), "eu-1");
    sleep(60 * S).await;
    guard.check().expect("it is renewed as before");
    assert_eq!(process.connection.begins.load(SeqCst), 2, "a heartbeat begins it only once");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_session_begins_though_the_first_reply_is_lost() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let session = process.client.session_id();
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    process.connection.lost_begins.store(1, SeqCst);
    fixture.forget(session).await;
    sleep(60 * S).await;
    guard.check().expect("the store has it");
    assert_eq!(process.connection.begins.load(SeqCst), 3);
    let [listed] = &fixture.sessions().await[..] else { panic!("one session") };
    assert_eq!((listed.session, process.client.session_id(), listed.held.len()), (session, session, 1));
}

/// The store's clock is set forward, so that it remembers a session that has lapsed.
#[tokio::test(start_paused = true)]
async fn a_lapsed_session_does_not_begin_again() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let session = process.client.session_id();
    let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(4 * S).await;
    fixture.skipped_ms.fetch_add(11_000, SeqCst);
    let lost = timeout(3 * S, guard.lost()).await.expect("with its next heartbeat");
    assert_eq!(lost.reason, LostReason::StoreLostData);
    sleep(S).await;
    assert_ne!(process.client.session_id(), session);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_wait_for_the_lease_of_a_dead_holder() {
    for session in [S, 3 * S, 10 * S] {
        let fixture = Fixture::new();
        let (dead, live) = (fixture.process(Some(session)).await, fixture.process(Some(session)).await);
        let held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
        let next = tokio::spawn({
            let mutex = live.client.mutex("a").unwrap();
            async move { mutex.acquire().await }
        });
        sleep(20 * S).await;
        dead.cut();
        let died = Instant::now();
        let guard = next.await.unwrap().expect("the session of the dead ends");
        let waited = died.elapsed();
        assert!(held.check().is_err(), "the holder detected it first");
        assert!(waited > session / 2 && waited < session + 50 * MS, "{waited:?} of {session:?}");
        assert!(guard.fencing_token() > held.fencing_token());
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_waiter_detects_at_once_that_the_holder_is_dead() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(S)).await, fixture.process(Some(S)).await);
    let _held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    dead.cut();
    sleep(60 * S).await;
    let came = Instant::now();
    drop(live.client.mutex("a").unwrap().acquire().await.unwrap());
    assert!(came.elapsed() < 350 * MS, "{:?}", came.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fifty_dead_waiters_cost_no_more_than_one() {
    let fixture = Fixture::new();
    let holder = fixture.process(Some(3 * S)).await;
    let _held = holder.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let mut dead = vec![holder];
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let process = fixture.process(Some(3 * S)).await;
        let mutex = process.client.mutex("a").unwrap();
        waiting.push(tokio::spawn(async move { mutex.acquire().await }));
        sleep(MS).await;
        dead.push(process);
    }
    let live = fixture.process(Some(3 * S)).await;
    let next = tokio::spawn({
        let mutex = live.client.mutex("a").unwrap();
        async move { mutex.acquire().await }
    });
    sleep(30 * S).await;
    dead.iter().for_each(Process::cut);
    let died = Instant::now();
    drop(next.await.unwrap().expect("all before are dead"));
    assert!(died.elapsed() < 4 * S, "{:?}", died.elapsed());
    for process in waiting {
        process.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_detects_its_loss_without_the_network() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(5 * S).await;
    guard.check().expect("it beats");
    process.suspended_ms.fetch_add(6_000, SeqCst);
    let lost = guard.check().expect_err("nothing ran meanwhile, and nothing needs to");
    assert_eq!(lost.reason, LostReason::SessionLapsed);
    assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
}

#[tokio::test(start_paused = true)]
async fn without_a_session_leases_alone_decide() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(None).await, fixture.process(Some(S)).await);
    let held = dead.client.mutex("a").unwrap().lease(60 * S).acquire().await.unwrap();
    sleep(S).await;
    dead.cut();
    sleep(30 * S).await;
    held.check().expect("its lease lasts");
    let Attempt::Taken(contention) = live.client.mutex("a").unwrap().try_acquire().await.unwrap() else {
        panic!("its lease lasts");
    };
    assert_eq!(contention.holder.and_then(|holder| holder.session), None);
    let came = Instant::now();
    drop(live.client.mutex("a").unwrap().acquire().await.unwrap());
    assert!(came.elapsed() > 25 * S, "{:?}", came.elapsed());
    assert_eq!(dead.connection.heartbeats.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn operators_find_locks_held_for_longer_than_a_moment() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let held = |sessions: &[SessionEntry]| -> Vec<String> {
        let [session] = sessions else { panic!("one session: {sessions:?}") };
        session.held.iter().map(|lock| lock.name.to_string()).collect()
    };
    let quick = process.client.mutex("quick").unwrap();
    for _ in 0..1000 {
        quick.acquire().await.unwrap().release().await.unwrap();
    }
    let guard = process.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(3 * S).await;
    let sessions = fixture.sessions().await;
    assert_eq!(held(&sessions), ["long"]);
    let about = SessionMetadata::from_json(&sessions[0].metadata).expect("ours");
    assert_eq!((about.pid, about.labels["zone"].as_str()), (std::process::id(), "eu-1"));
    // The keeper need not renew a lock for a long time after its user has extended it.
    let own = process.client.mutex("own").unwrap().acquire().await.unwrap();
    own.extend_to(600 * S).await.unwrap();
    sleep(S).await;
    assert_eq!(held(&fixture.sessions().await), ["long", "own"]);
    own.release().await.unwrap();
    guard.release().await.unwrap();
    sleep(3 * S).await;
    assert!(held(&fixture.sessions().await).is_empty());
    assert!(
        process.connection.heartbeats.load(SeqCst) < 10,
        "{}",
        process.connection.heartbeats.load(SeqCst)
    );
    drop((quick, process));
    sleep(S).await;
    assert!(fixture.sessions().await.is_empty(), "an orderly shutdown leaves nothing");
}

/// The next heartbeat reports a release. A client that is dropped right afterwards needs no heartbeat; its keeper once
/// sent one all the same, and the end of the session waited for it.
#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_sends_no_heartbeat() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let guard = process.client.mutex("long").unwrap().acquire().await.unwrap();
    sleep(4 * S).await;
    guard.release().await.unwrap();
    let Process { client, connection, .. } = process;
    let beats = connection.heartbeats.load(SeqCst);
    drop(client);
    sleep(S).await;
    assert_eq!(connection.heartbeats.load(SeqCst), beats);
    assert!(fixture.sessions().await.is_empty(), "it has ended all the same");
}

#[tokio::test]
async fn a_session_cannot_be_shorter_than_a_second() {
    let store = MemoryStore::new();
    let error = Client::with_store(store).session_ttl(999 * MS).connect().await.expect_err("too short");
    assert!(error.to_string().contains("at least 1 s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_is_noticed_within_milliseconds() {
    let fixture = Fixture::new();
    let (process, other) = (fixture.process(Some(10 * S)).await, fixture.process(Some(10 * S)).await);
    for lease in [None, Some(600 * S)] {
        let mutex = process.client.mutex("a").unwrap();
        let mutex = if let Some(lease) = lease { mutex.lease(lease) } else { mutex };
        let guard = mutex.acquire().await.unwrap();
        sleep(20 * S).await;
        let freed = other.client.mutex("a").unwrap();
        let seen = freed.inspect_full().await.unwrap().observed.expect("it is held");
        freed.force_release(seen).await.expect("it is still held as it was seen");
        let freed_at = Instant::now();
        assert_eq!(guard.lost().await.reason, LostReason::ForceReleased);
        assert!(freed_at.elapsed() < 5 * MS, "{:?}", freed_at.elapsed());
        drop(guard);
        process.client.flush().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_forged_messages_costs_a_few_extends_and_no_lock() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(10 * S)).await;
    let guard = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(MS).await; // two that were granted at the same time may have the same number
    let bystander = process.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(20 * S).await;
    let before = process.connection.extends.load(SeqCst);
    let post = process.connection.post.get().expect("it was opened").clone();
    let forged =
        Notification::ForceReleased { to: process.client.session_id(), fence: guard.fencing_token() };
    for _ in 0..10_000 {
        post.deliver(forged);
        post.deliver(Notification::ForceReleased {
            to: process.client.session_id(),
            fence: FencingToken::new(1),
        });
        sleep(MS).await;
    }
    let sent = process.connection.extends.load(SeqCst) - before;
    assert!((10..=45).contains(&sent), "{sent} in 10 s");
    guard.check().expect("the store says that it is held");
    bystander.check().expect("no message named it");
}

#[tokio::test(start_paused = true)]
async fn a_monitor_frees_locks_without_waiters() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let kept = live.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    let evicted = Arc::new(Mutex::new(Vec::new()));
    let evictions = evicted.clone();
    let monitor = live.client.monitor();
    let running = tokio::spawn(monitor.run(move |round| {
        evictions.lock().unwrap().extend(round.evicted.iter().map(|e| (e.name.to_string(), e.fence)));
    }));
    sleep(10 * S).await;
    assert!(evicted.lock().unwrap().is_empty(), "all are alive");
    dead.cut();
    sleep(5 * S).await;
    assert_eq!(*evicted.lock().unwrap(), [("a".to_owned(), Some(held.fencing_token()))]);
    let details = live.client.mutex("a").unwrap().inspect_full().await.unwrap();
    assert!(!details.status.held && details.audit.len() == 1, "{details:?}");
    assert_eq!(details.audit[0].ended, Ended::Evicted);
    kept.check().expect("its session beats");
    sleep(60 * S).await;
    assert_eq!(evicted.lock().unwrap().len(), 1, "no eviction is reported twice");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn row_43_a_session_that_is_back_in_time_keeps_its_holds() {
    let fixture = Fixture::new();
    let (holder, other) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let guard = holder.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    other.connection.reports_all_as_dead.store(true, SeqCst);
    let mut monitor = other.client.monitor();
    for _ in 0..3 {
        let round = monitor.run_once().await;
        assert!(round.dead == 2 && round.evicted.is_empty() && round.fault.is_none(), "{round:?}");
    }
    guard.extend().await.expect("the store checked in the same step");
    // It was not recorded as done either.
    other.connection.reports_all_as_dead.store(false, SeqCst);
    holder.cut();
    sleep(4 * S).await;
    assert_eq!(monitor.run_once().await.evicted.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_monitor_tolerates_an_outage_and_polls_rarely_meanwhile() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let _held = dead.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    dead.cut();
    live.cut();
    let (rounds, evicted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (rounds.clone(), evicted.clone());
    let monitor = live.client.monitor().interval(S);
    let running = tokio::spawn(monitor.run(move |round| {
        counts.0.fetch_add(1, SeqCst);
        counts.1.fetch_add(round.evicted.len() as u64, SeqCst);
    }));
    sleep(300 * S).await;
    assert!((30..=60).contains(&rounds.load(SeqCst)), "{rounds:?}");
    assert!(live.connection.lists.load(SeqCst) < 100, "{:?}", live.connection.lists);
    live.reconnect();
    sleep(40 * S).await;
    // The reported locks of the dead session were forgotten meanwhile, and its lease still runs.
    assert_eq!(evicted.load(SeqCst), 0);
    let (late, late_live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let _held = late.client.mutex("b").unwrap().lease(600 * S).acquire().await.unwrap();
    sleep(10 * S).await;
    late.cut();
    sleep(6 * S).await;
    assert_eq!(evicted.load(SeqCst), 1, "it works as before");
    drop(late_live);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_round_of_the_monitor_has_a_bound() {
    let fixture = Fixture::new();
    let (dead, live) = (fixture.process(Some(3 * S)).await, fixture.process(Some(3 * S)).await);
    let mut held = Vec::new();
    for n in 0..1500 {
        held.push(dead.client.mutex(format!("n{n}")).unwrap().lease(600 * S).acquire().await.unwrap());
    }
    sleep(10 * S).await;
    dead.cut();
    sleep(4 * S).await;
    assert_eq!(live.client.locks().await.unwrap().len(), 1500);
    let mut monitor = live.client.monitor();
    let first = monitor.run_once().await;
    assert_eq!((first.evicted.len(), first.remaining, first.dead), (1024, 476, 1));
    let second = monitor.run_once().await;
    assert_eq!((second.evicted.len(), second.remaining), (476, 0));
    assert!(live.client.locks().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_lapsed_session_removes_no_report_of_the_next_one() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    let old = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(5 * S).await;
    process.cut();
    old.lost().await;
    process.reconnect();
    let again = process.client.mutex("a").unwrap().acquire().await.unwrap();
    sleep(5 * S).await;
    let reported = || async {
        let of_it = |entry: &SessionEntry| entry.session == process.client.session_id();
        fixture.sessions().await.into_iter().find(of_it).expect("it lives").held.len()
    };
    assert_eq!(reported().await, 1, "the new session has reported its hold");
    drop(old);
    sleep(60 * S).await;
    again.check().expect("it is held all the time");
    assert_eq!(reported().await, 1, "and it is still listed");
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_nothing_to_release_does_not_wait_for_a_session_that_cannot_begin() {
    let fixture = Fixture::new();
    let process = fixture.process(Some(3 * S)).await;
    process.cut();
    sleep(20 * S + 300 * MS).await;
    let began = Instant::now();
    process.client.shutdown(30 * S).await.expect("nothing was held");
    assert!(began.elapsed() < 100 * MS, "{:?}", began.elapsed());
}

/// A late reply does not lengthen a session: its time counts from the sending of the heartbeat.
#[tokio::test(start_paused = true)]
async fn a_client_ends_its_session_before_the_store_does_however_slow_the_replies() {
    // For the reply to its creation, and for those to its heartbeats.
    for after in [150 * MS, 7_130 * MS] {
        let fixture = Fixture::new();
        let process = fixture.process_with(Some(4 * S), 900 * MS).await;
        let guard = process.client.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
        sleep(after).await;
        guard.check().expect("it beats");
        process.cut();
        assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
        let sessions = fixture.sessions().await;
        assert!(sessions[0].alive_ms.is_some(), "the store thought so first: {sessions:?}");
    }
}
