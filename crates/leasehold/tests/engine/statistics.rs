//! What clients count, and when they merge it into the store.

use crate::environment::client_in_paused_time;
use crate::faulty_store::{Behavior, Counter, FaultyStore};
use crate::fixture::mutex;
use leasehold::Client;
use leasehold::inspect::LockStatistics;
use leasehold::store::{MemoryStore, SessionOp};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A store in which this happens to merges, by their number, and how many there were.
fn store(behavior: impl Fn(u32) -> Behavior + Send + Sync + 'static) -> (FaultyStore, Counter) {
    let merges = Counter::default();
    let counter = merges.clone();
    let session_rule = Arc::new(move |op: &SessionOp| match op {
        SessionOp::MergeStatistics(_) => behavior(counter.next()),
        _ => Behavior::Execute,
    });
    (FaultyStore { session_rule, ..FaultyStore::with_sessions(|_, _| Behavior::Execute) }, merges)
}

async fn connect(store: &FaultyStore) -> Client {
    client_in_paused_time(store.clone()).connect().await.expect("it connects")
}

async fn hold(client: &Client, name: &str, time: Duration) {
    let guard = mutex(client, name).acquire().await.expect("acquired");
    sleep(time).await;
    guard.release().await.expect("released");
}

/// What the store has, read by a client that counts nothing.
async fn listed(store: &MemoryStore) -> Vec<LockStatistics> {
    let reader = client_in_paused_time(store.clone()).without_session().connect().await.expect("it connects");
    reader.lock_statistics().await.expect("an answer").items
}

async fn holds(store: &MemoryStore) -> u64 {
    listed(store).await.iter().map(|class| class.holds.count()).sum()
}

#[tokio::test(start_paused = true)]
async fn a_client_merges_once_a_minute_and_when_it_ends() {
    let (store, merges) = store(|_| Behavior::Execute);
    let client = connect(&store).await;
    sleep(130 * S).await;
    assert_eq!(merges.next(), 0, "nothing was counted, so nothing was sent");
    for n in 0..44 {
        hold(&client, &format!("orders/{n}"), 200 * MS).await;
        hold(&client, "nightly", 50 * MS).await;
        sleep(1_250 * MS).await;
    }
    sleep(60 * S).await;
    // A minute and 6 s of work: one merge, and another one for what came after it. This test counts as well.
    assert_eq!(merges.next(), 1 + 2);
    let found = listed(&store.inner).await;
    let [nightly, orders] = &found[..] else { panic!("{found:?}") };
    assert_eq!((nightly.class.as_str(), orders.class.as_str()), ("nightly", "orders/*"));
    for (class, held) in [(nightly, 50 * MS), (orders, 200 * MS)] {
        assert_eq!((class.holds.count(), class.waits.count(), class.losses), (44, 44, 0), "{class:?}");
        let p99 = class.holds.quantile(0.99).expect("there are holds").as_secs_f64();
        assert!((p99 / held.as_secs_f64() - 1.0).abs() < 0.06, "{p99} s in place of {held:?}");
        assert!(class.longest_hold >= held && class.longest_hold < held + 5 * MS, "{class:?}");
        let span = class.span();
        assert!(span > 60 * S && span < 130 * S, "{span:?}");
    }
    sleep(130 * S).await;
    assert_eq!(merges.next(), 1 + 2 + 1, "nothing has changed since");
    hold(&client, "nightly", 50 * MS).await;
    client.shutdown(5 * S).await.expect("in time");
    assert_eq!(
        (merges.next(), holds(&store.inner).await),
        (1 + 2 + 2 + 1, 89),
        "what was left goes at the end"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_refusals_and_losses_are_counted() {
    let (store, _) = store(|_| Behavior::Execute);
    let (holder, other) = (connect(&store).await, connect(&store).await);
    let guard = mutex(&holder, "job").lease(S).acquire().await.expect("acquired");
    assert!(mutex(&other, "job").try_acquire().await.expect("an answer").granted().is_none());
    let waiter = mutex(&other, "job").acquire().await.expect("acquired once the lease is over");
    timeout(S, guard.lost()).await.expect("it is lost");
    waiter.release().await.expect("released");
    for client in [holder, other] {
        client.shutdown(5 * S).await.expect("in time");
    }
    let found = listed(&store.inner).await;
    let [job] = &found[..] else { panic!("{found:?}") };
    assert_eq!((job.holds.count(), job.waits.count(), job.taken, job.refused, job.losses), (2, 2, 1, 1, 1));
    assert!(job.longest_wait > 900 * MS && job.longest_wait < 1_100 * MS, "{job:?}");
    assert!((job.share_taken() - 2.0 / 3.0).abs() < 1e-9, "{job:?}");
}

#[tokio::test(start_paused = true)]
async fn a_merge_that_was_not_executed_is_merged_later_and_one_without_an_answer_is_not() {
    for (behavior, kept) in [(Behavior::Fail, 2), (Behavior::LoseReply, 2), (Behavior::LoseRequest, 1)] {
        let (store, _) = store(move |number| if number == 0 { behavior } else { Behavior::Execute });
        let client = connect(&store).await;
        hold(&client, "job", 100 * MS).await;
        sleep(64 * S).await;
        hold(&client, "job", 100 * MS).await;
        sleep(130 * S).await;
        assert_eq!(holds(&store.inner).await, kept, "no hold counts twice");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_counts_nothing_sends_nothing() {
    let (store, merges) = store(|_| Behavior::Execute);
    let off = client_in_paused_time(store.clone()).statistics(false).connect().await.expect("it connects");
    let alone = client_in_paused_time(store.clone()).without_session().connect().await.expect("it connects");
    for client in [off, alone] {
        hold(&client, "job", 100 * MS).await;
        sleep(130 * S).await;
        client.shutdown(5 * S).await.expect("in time");
    }
    assert_eq!(merges.next(), 0);
    // A store without sessions keeps no statistics.
    let leases = FaultyStore { keeps_sessions: false, ..store };
    let client = connect(&leases).await;
    hold(&client, "job", 100 * MS).await;
    sleep(130 * S).await;
    assert_eq!(merges.next(), 1);
}
