//! A process that ends right after it has dropped a guard.

use leasehold::Client;
use leasehold_testkit::{Proxy, RedisServer, Worker};
use std::time::Duration;

/// Longer than anything takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a request takes to the server: longer than a process needs to end.
const LATENCY: Duration = Duration::from_millis(50);

/// Starts a process that holds the lock `m`, and drops it and ends once it reads a line.
fn start(proxy: &Proxy) -> Worker {
    let worker = Worker::of_test("ending::a_worker_that_drops_and_ends", "dropper");
    let mut worker = worker.env("LEASEHOLD_TEST_URL", proxy.url()).start().unwrap();
    worker.expect("held", LIMIT).unwrap();
    worker
}

/// In its first second the keeper has no connection of its own, so that there is most to wait for.
#[tokio::test]
async fn a_guard_that_is_dropped_as_the_process_ends_is_released() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let mutex = client.mutex("m").unwrap();
    let mut worker = start(&proxy);
    assert!(mutex.inspect().await.unwrap().holder.is_some());
    proxy.delay_requests(LATENCY);
    worker.send("end").unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
    assert_eq!(mutex.inspect().await.unwrap().holder, None, "it was released before the process ended");
}

/// The wait is limited: a server that does not answer keeps no program from ending.
#[tokio::test]
async fn a_process_ends_though_its_release_has_no_answer() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let mut worker = start(&proxy);
    server.stop().unwrap();
    worker.send("end").unwrap();
    assert!(worker.wait(LIMIT).unwrap().success());
    server.resume().unwrap();
}

/// The entry point of the worker.
#[test]
fn a_worker_that_drops_and_ends() {
    if Worker::role().as_deref() != Some("dropper") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&std::env::var("LEASEHOLD_TEST_URL").unwrap()).await.unwrap();
        let guard = client.mutex("m").unwrap().acquire().await.unwrap();
        Worker::report("held");
        Worker::receive();
        drop(guard);
    });
    drop(runtime);
    std::process::exit(0);
}
