//! Mutual exclusion, by a counter. Processes read a number from Redis under the lock and write it back incremented,
//! together with a count of their own; no increment may be lost.

use super::fixture::server;
use leasehold::Client;
use leasehold_testkit::{RedisServer, RespConnection, Worker};
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);

fn start(server: &RedisServer, process: usize, rounds: u32) -> Worker {
    Worker::of_test("failures::counter::a_worker_that_counts", "counter")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_PORT", server.port().to_string())
        .env("LEASEHOLD_TEST_PROCESS", process.to_string())
        .env("LEASEHOLD_TEST_ROUNDS", rounds.to_string())
        .start()
        .expect("a worker")
}

fn number(server: &RedisServer, key: &str) -> i64 {
    let text = server.cli(&["GET", key]).expect("an answer").text().map(str::to_owned);
    text.map_or(0, |text| text.parse().expect("a number"))
}

fn sum_of_counts(server: &RedisServer) -> i64 {
    (0..PROCESSES).map(|process| number(server, &format!("count:{process}"))).sum()
}

/// Four processes, 250 times each: number = sum of counts = 1000.
#[test]
fn four_processes_count_to_a_thousand() {
    let server = server();
    let mut workers: Vec<_> = (0..PROCESSES).map(|process| start(&server, process, 250)).collect();
    for worker in &mut workers {
        worker.expect("done", LIMIT).expect("the worker finishes");
    }
    assert_eq!((number(&server, "number"), sum_of_counts(&server)), (1000, 1000));
}

/// A process is killed every 0.2 s and started again, with leases of 1 s: number = sum of counts.
#[test]
fn killed_processes_lose_no_count() {
    let server = server();
    let mut workers: Vec<_> = (0..PROCESSES).map(|process| start(&server, process, u32::MAX)).collect();
    let begun = Instant::now();
    let mut kills = 0;
    while begun.elapsed() < Duration::from_secs(12) {
        std::thread::sleep(Duration::from_millis(200));
        let victim = kills % PROCESSES;
        workers[victim].kill().expect("killed");
        workers[victim] = start(&server, victim, u32::MAX);
        kills += 1;
    }
    for worker in &mut workers {
        worker.kill().expect("killed");
    }
    let (number, sum) = (number(&server, "number"), sum_of_counts(&server));
    assert_eq!(number, sum, "after {kills} kills");
    // The number reached means little: most of the time the lock waits for the lease of a killed process to end.
    assert!(number > 0, "no process counted between {kills} kills");
}

/// Not a test by itself: one of the counting processes.
#[test]
fn a_worker_that_counts() {
    if Worker::role().as_deref() != Some("counter") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let (url, own) = (env("LEASEHOLD_TEST_URL"), format!("count:{}", env("LEASEHOLD_TEST_PROCESS")));
    let port = env("LEASEHOLD_TEST_PORT").parse().expect("a port");
    let rounds: u32 = env("LEASEHOLD_TEST_ROUNDS").parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut redis = RespConnection::open(port, LIMIT).expect("connected");
        let mut call =
            |words: &[&str]| redis.call(words).and_then(leasehold_testkit::Value::ok).expect("done");
        let client = Client::builder(&url).watchdog_lease(Duration::from_secs(1)).connect().await;
        let mutex = client.expect("connected").mutex("counter").expect("a good name");
        for _ in 0..rounds {
            let guard = mutex.acquire().await.expect("acquired");
            let number =
                call(&["GET", "number"]).text().map_or(0, |text| text.parse::<u64>().expect("a number"));
            let next = (number + 1).to_string();
            call(&["MULTI"]);
            call(&["SET", "number", &next]);
            call(&["INCR", &own]);
            call(&["EXEC"]);
            guard.release().await.expect("released");
        }
        Worker::report("done");
    });
}
