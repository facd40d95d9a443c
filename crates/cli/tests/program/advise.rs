//! The advice on leases, from what clients have counted.

use super::fixture::{Fixture, finish};
use leasehold::Client;
use leasehold_testkit::RedisServer;
use serde_json::Value;
use std::time::{Duration, Instant};

fn advice(fixture: &Fixture, class: &[&str]) -> Value {
    let shown = fixture.run(&[&["advise", "--json"], class].concat());
    shown.check(0, "");
    serde_json::from_str(&shown.stdout).expect("it is JSON")
}

/// Has a client hold locks of a class 100 times for 200 ms. Returns the true times, in order.
fn hold_a_hundred_times(url: &str) -> Vec<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(url).await.expect("the store can be reached");
        let tasks = (0..20).map(|n| {
            let mutex = client.mutex(format!("job/{n}")).expect("a good name");
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..5 {
                    let guard = mutex.acquire().await.expect("acquired");
                    let start = Instant::now();
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    guard.release().await.expect("released");
                    times.push(start.elapsed());
                }
                times
            })
        });
        let mut times = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            times.extend(task.await.expect("no panic"));
        }
        client.shutdown(Duration::from_secs(10)).await.expect("in time");
        times.sort_unstable();
        times
    })
}

fn the_lease_is_a_few_times_the_usual_hold(fixture: &Fixture) {
    let empty = fixture.run(&["advise"]);
    empty.check(0, "");
    assert!(empty.stdout.starts_with("no statistics: "), "{empty:?}");
    assert_eq!(advice(fixture, &[])["classes"], Value::Array(vec![]));

    let times = hold_a_hundred_times(fixture.url());
    let [p50, p99] = [times[49], times[98]].map(|time| time.as_secs_f64() * 1e3);
    let found = advice(fixture, &["job/7"]);
    let class = &found["classes"][0];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number: {found}"));
    assert_eq!((class["class"].as_str(), class["holds"].as_u64()), (Some("job/*"), Some(100)), "{found}");
    let near = |value: &Value, exact: f64| (number(value) / exact - 1.0).abs() < 0.2;
    assert!(
        near(&class["hold_ms"]["p99"], p99) && near(&class["hold_ms"]["p50"], p50),
        "{p50}, {p99}: {found}"
    );
    let lease = number(&class["lease_ms"]);
    assert!(lease >= 3.0 * p50 * 0.95 && lease <= 5.0 * p50 * 1.05, "{p50}: {found}");
    // A machine that is busy holds the locks for longer.
    assert!(p50 > 230.0 || (600.0..=1_000.0).contains(&lease), "{p50}: {found}");
    assert_eq!((class["losses"].as_u64(), class["enough"].as_bool()), (Some(0), Some(true)), "{found}");
    assert_eq!(
        (class["split"].as_bool(), &class["crash_wait_ms"]),
        (Some(false), &class["lease_ms"]),
        "{found}"
    );
    let shown = fixture.run(&["advise", "job/*"]);
    shown.check(0, "");
    for part in ["`job/*`: 100 holds in ", "held      p50 ", "lease     ", "crash     ", "split     no ("] {
        assert!(shown.stdout.contains(part), "missing: {part}: {}", shown.stdout);
    }
}

#[test]
fn the_lease_of_a_lock_held_for_200_ms_is_a_few_times_that_on_a_server() {
    let server = RedisServer::start().expect("there is a server");
    the_lease_is_a_few_times_the_usual_hold(&Fixture::redis(&server));
}

#[test]
fn the_lease_of_a_lock_held_for_200_ms_is_a_few_times_that_in_a_file() {
    the_lease_is_a_few_times_the_usual_hold(&Fixture::sqlite());
}

#[test]
fn a_command_under_a_lock_is_counted_unless_that_is_off() {
    let fixture = Fixture::sqlite();
    let holds = || advice(&fixture, &["job"])["classes"][0]["holds"].as_u64();
    for setting in ["off", "on", ""] {
        let mut command = fixture.command(&["run", "job", "--", "true"]);
        command.env("LEASEHOLD_STATISTICS", setting);
        finish(command, "").check(0, "");
    }
    assert_eq!(holds(), Some(2));
    let few = fixture.run(&["advise", "job"]);
    assert!(few.stdout.contains("based on 2 holds only"), "{few:?}");
    let other = fixture.run(&["advise", "other"]);
    other.check(0, "");
    assert!(other.stdout.starts_with("no statistics of `other`"), "{other:?}");
    let mut wrong = fixture.command(&["advise"]);
    wrong.env("LEASEHOLD_STATISTICS", "maybe");
    finish(wrong, "").check(2, "LEASEHOLD_STATISTICS is `maybe`, but must be `on` or `off`");
}

#[test]
fn a_store_without_statistics_says_so() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().expect("there is a server")).collect();
    let ports: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    let fixture = Fixture::at(format!("redlock://{}", ports.join(",")));
    fixture.run(&["advise"]).check(69, "this store keeps no statistics of its clients");
    let gone = Fixture::at("redis://127.0.0.1:1".to_owned());
    gone.run(&["advise"]).check(69, "");
}
