//! What reaches the recorder of the `metrics` facade.

use crate::environment::{client_in_paused_time, memory};
use crate::faulty_store::{Behavior, FaultyStore, MS};
use crate::fixture::{force_release, mutex};
use leasehold::Client;
use leasehold::store::Op;
use metrics::Unit;
use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The metrics by name and labels.
fn read(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let snapshot = snapshotter.snapshot().into_vec();
    let named = snapshot.into_iter().map(|(key, _, _, value)| {
        let (_, key) = key.into_parts();
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    });
    named.collect()
}

fn count(metrics: &BTreeMap<String, DebugValue>, name: &str) -> u64 {
    match metrics.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{name}: {other:?} of {:?}", metrics.keys().collect::<Vec<_>>()),
    }
}

fn gauge(metrics: &BTreeMap<String, DebugValue>, name: &str) -> f64 {
    match metrics.get(name) {
        Some(DebugValue::Gauge(value)) => value.into_inner(),
        other => panic!("{name}: {other:?}"),
    }
}

fn values(metrics: &BTreeMap<String, DebugValue>, name: &str) -> Vec<f64> {
    match metrics.get(name) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.into_inner()).collect(),
        other => panic!("{name}: {other:?}"),
    }
}

async fn client(store: FaultyStore, records: bool) -> Client {
    client_in_paused_time(store).metrics(records).connect().await.unwrap()
}

/// Lets every metric be recorded, for locks whose names have a secret part.
async fn use_all(client: &Client, other: &Client) {
    let name = |what: &str| format!("{what}/4711");
    let orders = mutex(client, &name("orders"));
    let held = orders.acquire().await.unwrap();
    let local = tokio::spawn({
        let orders = orders.clone();
        async move { orders.acquire().await.unwrap() }
    });
    sleep(2_000 * MS).await;
    held.release().await.unwrap();
    local.await.unwrap().release().await.unwrap();
    let taken = mutex(other, &name("orders")).acquire().await.unwrap();
    assert!(orders.try_acquire().await.unwrap().granted().is_none());
    orders.acquire_timeout(1_000 * MS).await.unwrap_err();
    assert!(timeout(100 * MS, orders.acquire()).await.is_err());
    let remote = tokio::spawn(async move { orders.acquire().await.unwrap() });
    sleep(100 * MS).await;
    taken.release().await.unwrap();
    force_release(&mutex(other, &name("orders"))).await;
    remote.await.unwrap().lost().await;
    let failing = mutex(client, &name("failing")).lease(8_000 * MS).acquire().await.unwrap();
    failing.lost().await;
    let permits = client.semaphore(name("permits"), 2).unwrap().class("given");
    let permit = permits.acquire().await.unwrap();
    sleep(3_000 * MS).await;
    drop(permit);
    let _kept = permits.acquire().await.unwrap();
    client.shutdown(Duration::from_secs(1)).await.unwrap();
}

fn store() -> FaultyStore {
    FaultyStore::with_sessions(|lock, op| match op {
        Op::Extend(_) if lock.name.as_str().starts_with("failing") => Behavior::Fail,
        _ => Behavior::Execute,
    })
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_recorded_by_kind_and_class() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let store = store();
    use_all(&client(store.clone(), true).await, &client(store, false).await).await;
    let metrics = read(&snapshotter);
    let of = |name: &str| format!("{name}{{kind=mutex,class=orders/*}}");
    let counted =
        |name: &str, label: &str| count(&metrics, &format!("{name}{{kind=mutex,class=orders/*,{label}}}"));
    let waits = values(&metrics, &of("leasehold_wait_seconds"));
    assert_eq!(waits.len(), 5, "three acquired, one timed out and one cancelled: {waits:?}");
    assert!(waits.iter().any(|wait| (wait - 2.0).abs() < 0.01), "in seconds: {waits:?}");
    assert_eq!(values(&metrics, &of("leasehold_hold_seconds")).len(), 3);
    assert_eq!(
        (gauge(&metrics, &of("leasehold_held")), gauge(&metrics, &of("leasehold_waiting"))),
        (0.0, 0.0)
    );
    let outcomes = ["acquired", "taken", "timed_out", "cancelled"];
    let outcomes = outcomes.map(|outcome| counted("leasehold_acquires_total", &format!("outcome={outcome}")));
    assert_eq!(outcomes, [3, 1, 1, 1]);
    assert_eq!(counted("leasehold_losses_total", "reason=force_released"), 1);
    let handovers = ["from=local", "from=remote"].map(|from| counted("leasehold_handovers_total", from));
    assert_eq!(handovers, [1, 1]);
    let failing = "{kind=mutex,class=failing/*}";
    assert!(count(&metrics, &format!("leasehold_failed_renewals_total{failing}")) > 1);
    let permits = "{kind=semaphore,class=given}";
    assert!(!values(&metrics, &format!("leasehold_renewal_slack_seconds{permits}")).is_empty());
    assert!(!values(&metrics, "leasehold_session_margin_seconds{}").is_empty());
    assert!(count(&metrics, "leasehold_requests_total{operation=acquire,outcome=done}") > 3);
    assert!(!values(&metrics, "leasehold_request_seconds{operation=release}").is_empty());
    let shut_down = "leasehold_losses_total{kind=semaphore,class=given,reason=shut_down}";
    assert_eq!((count(&metrics, shut_down), gauge(&metrics, &format!("leasehold_held{permits}"))), (1, 0.0));
}

#[tokio::test(start_paused = true)]
async fn no_label_contains_the_name_of_a_lock() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let store = store();
    use_all(&client(store.clone(), true).await, &client(store, false).await).await;
    let snapshot = snapshotter.snapshot().into_vec();
    assert!(snapshot.len() > 20);
    for (key, unit, description, _) in snapshot {
        let (kind, key) = key.into_parts();
        assert!(description.is_some(), "{} is described", key.name());
        let is_seconds = key.name().ends_with("_seconds");
        assert_eq!(unit, Some(if is_seconds { Unit::Seconds } else { Unit::Count }), "{}", key.name());
        assert_eq!(kind == MetricKind::Histogram, is_seconds, "{}", key.name());
        assert_eq!(kind == MetricKind::Counter, key.name().ends_with("_total"), "{}", key.name());
        for label in key.labels() {
            assert!(!label.value().contains("4711"), "{label:?}");
            let known = ["kind", "class", "outcome", "reason", "from", "operation"];
            assert!(known.contains(&label.key()), "{label:?}");
        }
    }
}

#[test]
fn the_page_lists_the_metrics_of_the_code() {
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|char: char| !(char.is_ascii_lowercase() || char == '_'));
        words.filter(|word| word.starts_with("leasehold_")).map(str::to_owned).collect()
    };
    let page = names(include_str!("../../../../../docs/how-to/observe.md"));
    let code = names(include_str!("../../../src/telemetry/metrics.rs"));
    let code: BTreeSet<_> = code.into_iter().filter(|name| name != "leasehold_core").collect();
    assert_eq!(page, code);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_metrics_records_none() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _local = metrics::set_default_local_recorder(&recorder);
    let client = client_in_paused_time(memory()).metrics(false).connect().await.unwrap();
    mutex(&client, "m").acquire().await.unwrap().release().await.unwrap();
    assert!(snapshotter.snapshot().into_vec().is_empty());
}
