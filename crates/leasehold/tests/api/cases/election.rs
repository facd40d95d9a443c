//! Elections.

use crate::cases::store::TestStore;
use crate::until::until_waiting;
use leasehold::error::{AcquireError, InspectError, ProclaimError, RunError};
use leasehold::inspect::{Leader, Leaders, Status};
use leasehold::store::FaultKind;
use leasehold::{Attempt, Client, Election, LostReason};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

on_every_store! {
    asynchronous:
    one_leads_at_a_time_and_tokens_grow,
    campaigning_ends_at_its_limit,
    a_try_reports_the_leader,
    each_leader_is_observed_once_and_in_order,
    observers_are_notified_and_do_not_poll,
    an_observer_continues_where_its_future_was_dropped,
    a_forged_hint_does_no_harm,
    a_deposed_leader_is_notified_and_the_next_leads,
    work_is_dropped_when_the_leadership_is_lost,
    a_leader_that_lost_campaigns_again,
    a_mutex_of_the_same_name_is_refused,
    campaign_cancelled_at_every_await,
    waiting_to_lead_cancelled_at_every_await,
    try_campaign_cancelled_at_every_await,
    resign_cancelled_at_every_await,
    a_leader_publishes_other_values_and_observers_see_them,
    a_leader_that_was_superseded_publishes_nothing,
    proclaim_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// More than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

impl crate::until::Inspected for Election {
    async fn status(&self) -> Result<Status, InspectError> {
        self.inspect().await
    }
}

fn election(client: &Client) -> Election {
    client.election("scheduler").expect("a good name")
}

/// The next change of leader, within the time limit.
async fn next(leaders: &mut Leaders) -> Option<Leader> {
    let next = tokio::time::timeout(LIMIT, leaders.next()).await;
    next.expect("something changes").expect("the store answers")
}

async fn one_leads_at_a_time_and_tokens_grow(store: &TestStore) {
    let leads = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for n in 0..4 {
        let election = election(&store.client(&format!("client {n}")).await);
        let leads = leads.clone();
        tasks.push(tokio::spawn(async move {
            let mut last = None;
            for _ in 0..20 {
                let leadership = election.campaign().await.expect("elected");
                assert!(!leads.swap(true, Ordering::SeqCst), "two lead");
                leadership.check().expect("it leads");
                assert!(last < Some(leadership.fencing_token()));
                last = Some(leadership.fencing_token());
                tokio::task::yield_now().await;
                assert!(leads.swap(false, Ordering::SeqCst));
                leadership.resign().await.expect("resigned");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    let after = election(&store.client("after").await);
    assert_eq!(after.leader().await.expect("an answer"), None);
}

async fn campaigning_ends_at_its_limit(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let leadership = a.campaign().await.expect("elected");
    let start = Instant::now();
    let error = b.campaign_timeout(600 * MS).await.expect_err("there is a leader");
    assert!(start.elapsed() >= 600 * MS);
    let AcquireError::TimedOut { contention, .. } = error else { panic!("{error:?}") };
    assert!(contention.to_string().starts_with("held by a for "), "{contention}");
    leadership.resign().await.expect("resigned");
    b.campaign_timeout(LIMIT).await.expect("elected").resign().await.expect("resigned");
}

async fn a_try_reports_the_leader(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let leadership = a.try_campaign().await.expect("an answer").granted().expect("there is no leader");
    assert!(matches!(b.try_campaign().await.expect("an answer"), Attempt::Taken(_)));
    let leader = b.leader().await.expect("an answer").expect("there is a leader");
    assert_eq!((leader.label.as_str(), leader.fence), ("a", leadership.fencing_token()));
    leadership.resign().await.expect("resigned");
    assert_eq!(b.leader().await.expect("an answer"), None);
}

/// No leader, then each leader, and no leader at the end; the fencing tokens are the leaders'.
async fn each_leader_is_observed_once_and_in_order(store: &TestStore) {
    let observer = store.client("observer").await;
    let mut leaders = election(&observer).observe();
    assert_eq!(next(&mut leaders).await, None);
    let clients = [store.client("a").await, store.client("b").await];
    let mut before = None;
    for client in clients.iter().cycle().take(6) {
        let leadership = election(client).campaign().await.expect("elected");
        let leader = next(&mut leaders).await.expect("there is a leader");
        assert_eq!(leader.fence, leadership.fencing_token());
        assert!(before < Some(leader.fence));
        before = Some(leader.fence);
        // An observer that starts later receives the current leader.
        let mut late = election(&observer).observe();
        assert_eq!(next(&mut late).await.expect("there is a leader").fence, leader.fence);
        leadership.resign().await.expect("resigned");
        assert_eq!(next(&mut leaders).await, None);
    }
    // When leadership passes directly to the next candidate, observers receive no gap in between.
    let first = election(&clients[0]).campaign().await.expect("elected");
    let waiting = tokio::spawn({
        let election = election(&clients[1]);
        async move { election.campaign().await.expect("elected") }
    });
    until_waiting(&election(&observer), 1).await;
    assert_eq!(next(&mut leaders).await.map(|leader| leader.fence), Some(first.fencing_token()));
    first.resign().await.expect("resigned");
    let second = waiting.await.expect("no panic");
    assert_eq!(next(&mut leaders).await.map(|leader| leader.fence), Some(second.fencing_token()));
    second.resign().await.expect("resigned");
}

/// Where the store notifies, a new leader is observed within moments, and not by the observer's own polling.
async fn observers_are_notified_and_do_not_poll(store: &TestStore) {
    let (leader, observer) = (store.client("leader").await, store.client("observer").await);
    let mut leaders = election(&observer).observe();
    assert_eq!(next(&mut leaders).await, None);
    for _ in 0..5 {
        let leadership = election(&leader).campaign().await.expect("elected");
        let start = Stopwatch::start();
        assert!(next(&mut leaders).await.is_some());
        start.assert_below(900 * MS, "notified by a message");
        leadership.resign().await.expect("resigned");
        let start = Stopwatch::start();
        assert_eq!(next(&mut leaders).await, None);
        start.assert_below(900 * MS, "notified by a message");
    }
}

async fn an_observer_continues_where_its_future_was_dropped(store: &TestStore) {
    let (leader, observer) = (store.client("leader").await, store.client("observer").await);
    let mut leaders = election(&observer).observe();
    assert_eq!(next(&mut leaders).await, None);
    let leadership = election(&leader).campaign().await.expect("elected");
    let mut observed = Vec::new();
    // Dropped after an increasing delay, until a leader is reported.
    for n in 0..1_000_u32 {
        if let Ok(next) = tokio::time::timeout(MS / 4 * n, leaders.next()).await {
            observed.push(next.expect("an answer").map(|leader| leader.fence));
            break;
        }
    }
    assert_eq!(observed, [Some(leadership.fencing_token())]);
    leadership.resign().await.expect("resigned");
    assert_eq!(next(&mut leaders).await, None);
}

/// Any client can publish a false leader message: an observer that receives it checks, and reports the true leader.
async fn a_forged_hint_does_no_harm(store: &TestStore) {
    let Some(server) = store.server() else { return };
    let (leader, observer) = (store.client("leader").await, store.client("observer").await);
    let mut leaders = election(&observer).observe();
    assert_eq!(next(&mut leaders).await, None);
    let forge = || {
        for text in ["leader 9007199254740991", "unknown", ""] {
            server.cli(&["PUBLISH", "leasehold:{scheduler}:leader:scheduler", text]).expect("it answers");
        }
    };
    forge();
    assert!(tokio::time::timeout(300 * MS, leaders.next()).await.is_err(), "there is no new leader");
    let leadership = election(&leader).campaign().await.expect("elected");
    assert_eq!(next(&mut leaders).await.map(|leader| leader.fence), Some(leadership.fencing_token()));
    forge();
    assert!(tokio::time::timeout(300 * MS, leaders.next()).await.is_err(), "nothing has changed");
    leadership.check().expect("it leads");
    leadership.resign().await.expect("resigned");
}

async fn a_deposed_leader_is_notified_and_the_next_leads(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let first = a.campaign().await.expect("elected");
    let waiting = tokio::spawn({
        let b = b.clone();
        async move { b.campaign().await.expect("elected") }
    });
    until_waiting(&a, 1).await;
    let details = b.inspect_full().await.expect("an answer");
    b.force_release(details.observed.expect("there is a leader")).await.expect("deposed");
    let second = waiting.await.expect("no panic");
    assert!(second.fencing_token() > first.fencing_token());
    let lost = tokio::time::timeout(LIMIT, first.lost()).await.expect("the loss is reported");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    first.check().expect_err("it leads no more");
    second.resign().await.expect("resigned");
}

async fn work_is_dropped_when_the_leadership_is_lost(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let error = a
        .lead(async |leadership| {
            let details = b.inspect_full().await.expect("an answer");
            b.force_release(details.observed.expect("there is a leader")).await.expect("deposed");
            leadership.lost().await;
            std::future::pending::<()>().await;
        })
        .await
        .expect_err("it leads no more");
    assert!(matches!(error, RunError::Lost(_)), "{error:?}");
    assert_eq!(b.lead(async |_| 7).await.expect("elected"), 7);
}

async fn a_leader_that_lost_campaigns_again(store: &TestStore) {
    let (client, b) = (store.client("a").await, election(&store.client("b").await));
    let first = b.campaign().await.expect("elected");
    let (leads, mut led) = tokio::sync::mpsc::unbounded_channel();
    let leading = tokio::spawn({
        // A limit does not apply: it would poll instead of waiting.
        let a = election(&client).max_wait(Duration::ZERO);
        async move {
            a.lead_forever(|leadership| {
                let leads = leads.clone();
                async move {
                    leads.send(leadership.fencing_token()).expect("the test waits");
                    leadership.lost().await;
                }
            })
            .await
        }
    });
    until_waiting(&b, 1).await;
    client.health().await.expect("it is ready");
    first.resign().await.expect("resigned");
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let token = tokio::time::timeout(LIMIT, led.recv()).await.expect("in time").expect("it leads");
        tokens.push(token);
        let details = b.inspect_full().await.expect("an answer");
        b.force_release(details.observed.expect("there is a leader")).await.expect("deposed");
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    // The pause before the next campaign does not delay the end.
    client.shutdown(LIMIT).await.expect("all is released");
    let error = tokio::time::timeout(LIMIT, leading).await.expect("in time").expect("no panic");
    assert!(matches!(error, AcquireError::Closed), "{error:?}");
    client.health().await.expect_err("it was shut down");
}

/// A Mutex and an Election of the same name conflict: each call fails with an error that names the other kind.
async fn a_mutex_of_the_same_name_is_refused(store: &TestStore) {
    let client = store.client("a").await;
    let (mutex, election) = (client.mutex("scheduler").expect("a good name"), election(&client));
    let refused = |error: AcquireError| match error {
        AcquireError::Store(fault) => assert!(matches!(fault.kind, FaultKind::Refused(_)), "{fault}"),
        other => panic!("{other:?}"),
    };
    let leadership = election.campaign().await.expect("elected");
    refused(mutex.try_acquire().await.expect_err("it is an election"));
    refused(mutex.acquire_timeout(S).await.expect_err("it is an election"));
    leadership.check().expect("it leads");
    leadership.resign().await.expect("resigned");
    let guard = mutex.acquire().await.expect("acquired");
    refused(election.campaign_timeout(S).await.expect_err("it is a mutex"));
    guard.release().await.expect("released");
}

async fn until_over(election: &Election) {
    crate::until::until_at_rest(election).await;
}

async fn campaign_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    cancel_at_every_await(|| a.campaign(), async |_| until_over(&b).await).await;
}

async fn try_campaign_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    cancel_at_every_await(|| a.try_campaign(), async |_| until_over(&b).await).await;
}

async fn waiting_to_lead_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let leadership = a.campaign().await.expect("elected");
    cancel_at_every_await(|| b.campaign_timeout(20 * MS), async |_| until_waiting(&a, 0).await).await;
    leadership.check().expect("it leads");
    leadership.resign().await.expect("resigned");
    until_over(&b).await;
}

async fn resign_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    cancel_at_every_await(
        || async {
            let leadership = a.campaign().await.expect("elected");
            leadership.resign().await.expect("resigned");
        },
        async |_| until_over(&b).await,
    )
    .await;
}

async fn a_leader_publishes_other_values_and_observers_see_them(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let leadership = a.campaign().await.expect("elected");
    let mut leaders = b.observe();
    let first = next(&mut leaders).await.expect("there is a leader");
    assert_eq!(first.label, "a");
    for value in ["10.0.0.3:8080", "draining", "", "10.0.0.3:8080"] {
        leadership.proclaim(value).await.expect("published");
        leadership.proclaim(value).await.expect("the same once more");
        let seen = next(&mut leaders).await.expect("it still leads");
        assert_eq!(seen.label, value);
        let same = (first.fence, first.since, first.session);
        assert_eq!((seen.fence, seen.since, seen.session), same, "nothing else changes");
    }
    assert_eq!(leadership.fencing_token(), first.fence);
    leadership.check().expect("it leads");
    // Two tasks at a time: one value follows the other.
    let (one, other) = tokio::join!(leadership.proclaim("one"), leadership.proclaim("other"));
    one.and(other).expect("published");
    assert_eq!(b.leader().await.expect("an answer").expect("it leads").label, "other");
    let long = leadership.proclaim("x".repeat(257)).await;
    assert!(matches!(long, Err(ProclaimError::Value(_))), "{long:?}");
    leadership.resign().await.expect("resigned");
    let next_term = a.campaign().await.expect("elected");
    assert_eq!(b.leader().await.expect("an answer").expect("it leads").label, "a", "a new leadership");
    next_term.resign().await.expect("resigned");
}

async fn a_leader_that_was_superseded_publishes_nothing(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let old = a.campaign().await.expect("elected");
    let observed = b.inspect_full().await.expect("an answer").observed.expect("there is a leader");
    b.force_release(observed).await.expect("deposed");
    let new = b.campaign().await.expect("elected");
    let error = old.proclaim("mine").await.expect_err("another one leads");
    assert!(
        matches!(&error, ProclaimError::Lost(lost) if lost.reason == LostReason::ForceReleased),
        "{error:?}"
    );
    let leader = b.leader().await.expect("an answer").expect("there is a leader");
    assert_eq!((leader.label.as_str(), leader.fence), ("b", new.fencing_token()));
    new.proclaim("ready").await.expect("published");
    new.resign().await.expect("resigned");
}

/// Failure row 4: the value is the old or the new one, and the next call works.
async fn proclaim_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (election(&store.client("a").await), election(&store.client("b").await));
    let leadership = a.campaign().await.expect("elected");
    let mut round = 0;
    cancel_at_every_await(
        || async { leadership.proclaim("new").await.expect("published") },
        async |_| {
            let leader = b.leader().await.expect("an answer").expect("it leads");
            assert!(["a", "new"].contains(&leader.label.as_str()) || leader.label.starts_with("settled"));
            round += 1;
            let settled = format!("settled {round}");
            leadership.proclaim(&settled).await.expect("published");
            assert_eq!(b.leader().await.expect("an answer").expect("it leads").label, settled);
        },
    )
    .await;
    leadership.resign().await.expect("resigned");
}
