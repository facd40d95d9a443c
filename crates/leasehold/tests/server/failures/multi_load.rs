//! Many clients that acquire several locks at once: every request succeeds, without deadlock (failure row 29).

use super::fixture::server;
use leasehold::Client;
use leasehold_testkit::{Random, RedisServer, Worker};
use std::time::{Duration, Instant};

const PROCESSES: u64 = 4;
const TASKS: u64 = 4;
const ROUNDS: u64 = 500;
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// For all processes together; about 15 s on an idle machine.
const LIMIT: Duration = Duration::from_secs(240);

fn start(server: &RedisServer, process: u64) -> Worker {
    Worker::of_test("failures::multi_load::a_worker_that_acquires_multi_mutexes", "sets")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_PROCESS", process.to_string())
        .start()
        .expect("a worker")
}

/// Sixteen tasks in four processes acquire two to five of eight locks, 500 times each. Every acquire succeeds, and
/// nothing stays held. Inside, each task increments a number per lock that only the holder of that lock may touch.
#[test]
fn row_29_each_process_acquires_its_multi_mutex() {
    let server = server();
    let begun = Instant::now();
    let mut workers: Vec<_> = (0..PROCESSES).map(|process| start(&server, process)).collect();
    let mut taken = 0;
    for worker in &mut workers {
        worker
            .expect("done", LIMIT.saturating_sub(begun.elapsed()))
            .expect("the worker acquires all its sets");
        taken += worker.line(LIMIT).expect("a number").parse::<u64>().expect("a number");
    }
    println!("{taken} locks in {} sets took {:?}", PROCESSES * TASKS * ROUNDS, begun.elapsed());
    let counted: u64 = NAMES
        .iter()
        .map(|name| {
            let number = server.cli(&["GET", &format!("number:{name}")]).expect("an answer");
            number.text().expect("it was counted").parse::<u64>().expect("a number")
        })
        .sum();
    assert_eq!(counted, taken, "two were in at once");
    for name in NAMES {
        let held = server.cli(&["EXISTS", name]).expect("an answer").integer();
        assert_eq!(held, Some(0), "{name} is still held after all clients have ended");
    }
}

/// Not a test by itself: one of the processes.
#[test]
fn a_worker_that_acquires_multi_mutexes() {
    if Worker::role().as_deref() != Some("sets") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let url = env("LEASEHOLD_TEST_URL");
    let process: u64 = env("LEASEHOLD_TEST_PROCESS").parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let taken = runtime.block_on(async {
        let client = Client::connect(&url).await.expect("connected");
        let redis = redis::Client::open(url).expect("a good URL");
        let redis = redis.get_multiplexed_async_connection().await.expect("connected");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                tokio::spawn(acquire_multi_mutexes(client.clone(), redis.clone(), process * TASKS + task))
            })
            .collect();
        let mut taken = 0;
        for task in tasks {
            taken += task.await.expect("no panic");
        }
        client.shutdown(Duration::from_secs(5)).await.expect("every hold is released");
        taken
    });
    Worker::report("done");
    Worker::report(&taken.to_string());
}

/// Returns how many locks it acquired.
async fn acquire_multi_mutexes(
    client: Client,
    mut redis: redis::aio::MultiplexedConnection,
    seed: u64,
) -> u64 {
    let random = Random::from_seed(seed);
    let mut taken = 0;
    for _ in 0..ROUNDS {
        let mut names = NAMES.to_vec();
        let wanted = random.between(2, 5);
        while names.len() as u64 > wanted {
            names.swap_remove(usize::try_from(random.below(names.len() as u64)).expect("a small number"));
        }
        let all = client.multi_mutex(names.iter().copied()).expect("good names");
        let guard = all.acquire().await.expect("acquired");
        // Not by INCR: the lock has to exclude others between the read and the write.
        let keys: Vec<_> = names.iter().map(|name| format!("number:{name}")).collect();
        let numbers: Vec<Option<u64>> =
            redis::cmd("MGET").arg(&keys).query_async(&mut redis).await.expect("read");
        let pairs: Vec<_> =
            keys.iter().zip(&numbers).map(|(key, number)| (key, number.unwrap_or(0) + 1)).collect();
        redis::cmd("MSET").arg(pairs).exec_async(&mut redis).await.expect("written");
        taken += wanted;
        guard.release().await.expect("released");
    }
    taken
}
